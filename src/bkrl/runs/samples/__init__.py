"""The runs that ship with the package: named `sample:NAME` wherever a path of such a run is wanted."""

from __future__ import annotations

from pathlib import Path

from bkrl.core.errors import InputError
from bkrl.core.registry import did_you_mean

PREFIX = "sample:"
SAMPLES = Path(__file__).parent


def samples() -> list[str]:
    """All of them, as `sample:NAME`."""
    return sorted(PREFIX + manifest.parent.name for manifest in SAMPLES.glob("*/manifest.json"))


def locate(path: Path) -> Path:
    """The folder of a run: that of a sample for `sample:NAME`, any other path as it is.

    Raises:
        InputError: there is no sample of that name.
    """
    text = Path(path).as_posix()
    if not text.startswith(PREFIX):
        return Path(path)
    names = samples()
    if text not in names:
        raise InputError(f"There is no sample '{text}'.{did_you_mean(text, names)} There are {', '.join(names)}.")
    return SAMPLES / text.removeprefix(PREFIX)
