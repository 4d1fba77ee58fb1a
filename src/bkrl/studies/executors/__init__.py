"""Where the cells of a sweep run: in worker processes here (local), on a cluster (slurm), or by hand (print)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from bkrl.core.reporter import Reporter
from bkrl.studies.study import Cell


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


def open_executor(
    kind: str,
    *,
    jobs: int,
    log: Callable[[Cell], Path],
    name: Callable[[Cell], str],
    folder: Path,
    submitted: dict[str, str],
    save: Callable[[], None],
    parameters: Mapping[str, Any],
) -> Executor:
    """The executor of that name.

    Args:
        kind: "local" or "slurm".
        jobs: cells at the same time; 0: as many as there are cores, or as the cluster allows.
        log: where a cell's words go.
        name: a cell's name.
        folder: for an executor's own files.
        submitted: name → job number, of an earlier start; kept up to date.
        save: writes `submitted` to disk.
        parameters: of jobs on a cluster.
    """
    if kind == "slurm":
        from bkrl.studies.executors.slurm import Slurm

        return Slurm(folder / "slurm", submitted, save, name, log, parameters, jobs)
    from bkrl.studies.executors.local import Local

    return Local(jobs or cores(), log)


def cores() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
