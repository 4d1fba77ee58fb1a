"""How far the cells of a sweep are: the line of each while it runs, and one sentence about them all."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bkrl.core.lines import newest_row
from bkrl.core.reporter import Line, duration
from bkrl.studies.section import Cell

_MEASURED = 0.3
_REFERENCE = 71_000.0
"""Rounds of `speed` a second of an idle core of the machine on which the shipped studies' minutes were measured."""


def speed() -> float:
    """How fast a core works now, other programs included, against the machine of the studies' minutes; takes .3 s."""
    numbers = np.linspace(-1.0, 1.0, 4096, dtype=np.float32)
    began, rounds = time.perf_counter(), 0
    while (spent := time.perf_counter() - began) < _MEASURED:
        np.tanh(numbers)
        sum(range(1000))
        rounds += 1
    return rounds / spent / _REFERENCE


@dataclass
class CellClock:
    """When a cell was first seen running, and since when, and which step, its steps have been counted.

    The rate is that of steps alone: what comes before the first of them (imports, compilation) is left out.
    """

    started: float
    first: float
    counted: float | None = None

    @classmethod
    def start(cls, cell: Cell) -> CellClock:
        """The clock of a cell that is first seen running now."""
        return cls(time.monotonic(), last_step(cell.run_dir))

    def seconds(self) -> float:
        """How long ago that was."""
        return time.monotonic() - self.started

    def line(self, name: str, cell: Cell) -> Line:
        """How far the cell is."""
        done = min(last_step(cell.run_dir), cell.steps) if cell.steps else 0.0
        if self.counted is None and done > self.first:
            self.counted, self.first = time.monotonic(), done
        rate = (done - self.first) / (time.monotonic() - self.counted) if self.counted and done > self.first else 0.0
        return Line(name, "running", done, cell.steps, rate, self.seconds())


def summary(lines: Sequence[Line], seconds: float) -> str:
    """One sentence about them all; the rate is that of the steps being made now.

    What is left is taken to go on at that rate, with those that have just begun as fast as the others, but not to end
    before the slowest of those that run.
    """
    count = {state: sum(line.state == state for line in lines) for state in ("done", "running", "queued", "failed")}
    parts = [f"{count['done']}/{len(lines)} done"]
    parts += [f"{count[state]} {state}" for state in ("running", "queued", "failed") if count[state]]
    stepping = [line for line in lines if line.state == "running" and line.total]
    rated = [line for line in stepping if line.rate > 0]
    if rated:
        rate = sum(line.rate for line in rated)
        left = sum(line.total - line.done for line in lines if line.state in ("running", "queued", "waiting"))
        slowest = max((line.total - line.done) / line.rate for line in rated)
        parts.append(f"{rate:,.0f} steps/s")
        parts.append(f"about {duration(max(left / rate * len(rated) / len(stepping), slowest))} of steps left")
    parts.append(f"{duration(seconds)} so far")
    return ", ".join(parts)


def last_step(run_dir: Path) -> int:
    """The step of the newest whole line of metrics.jsonl; 0 when there is none."""
    step = newest_row(run_dir / "metrics.jsonl").get("step")
    return step if isinstance(step, int) else 0
