"""Where the cells of a sweep run: in worker processes here (local), on a cluster (slurm, ray), or by hand (print)."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from bkrl.core.reporter import Reporter
from bkrl.studies.cells import name_of
from bkrl.studies.section import Cell


class Executor(Protocol):
    """Runs cells that need nothing more from each other."""

    def prepare(self, cells: Sequence[Cell], reporter: Reporter) -> None:
        """Do once what all of `cells` would otherwise do on their own."""

    def free(self) -> int:
        """How many more cells may be started now."""

    def start(self, cells: Sequence[Cell]) -> None:
        """Start these; at most `free()` of them."""

    def running(self) -> dict[str, str]:
        """Run directory → "running" or "queued", of all that were started and have not ended."""

    def ended(self, seconds: float) -> list[tuple[Cell, str]]:
        """Wait at most so long; what has ended since the last call, with the reason of a failure or ""."""

    def stop(self) -> str:
        """Leave, when all is done or when the person at the keyboard wants to; a sentence about what goes on, or ""."""


def log_of(cell: Cell, out: Path) -> Path:
    """The file for what a cell says."""
    return out / "sweep" / "log" / f"{name_of(cell, out)}.log"


def cores() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
