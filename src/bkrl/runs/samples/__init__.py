"""The runs that ship with the package: named `sample:NAME` wherever a path of such a run is wanted."""

from collections.abc import Sequence
from pathlib import Path

from bkrl.core.files import read_json

PREFIX = "sample:"
SAMPLES = Path(__file__).parent


def samples(stages: Sequence[str] = ()) -> list[str]:
    """All of them, as `sample:NAME`, or those of these stages."""
    found = sorted(SAMPLES.glob("*/manifest.json"))
    return [PREFIX + one.parent.name for one in found if not stages or read_json(one)["stage"] in stages]
