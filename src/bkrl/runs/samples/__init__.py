"""The runs that ship with the package: named `sample:NAME` wherever a path of such a run is wanted."""

from __future__ import annotations

from pathlib import Path

PREFIX = "sample:"
SAMPLES = Path(__file__).parent


def samples() -> list[str]:
    """All of them, as `sample:NAME`."""
    return sorted(PREFIX + manifest.parent.name for manifest in SAMPLES.glob("*/manifest.json"))
