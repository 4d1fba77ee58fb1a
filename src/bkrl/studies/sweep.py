"""Doing the cells of a study: what is ready is started, what is finished is skipped, what fails is remembered.

A cell is finished when its run's manifest is there and was made with these settings. So a sweep that was stopped, or
killed, goes on where it was. Beside the runs, `OUT/sweep/` holds `state.json` (failures, and the jobs of a cluster) and
what each cell said, under `log/`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import NamedTuple, NotRequired, TypedDict

from bkrl.core.config import SweepConfig
from bkrl.core.errors import InputError
from bkrl.core.files import atomic_write, make_folder, read_json, to_json
from bkrl.core.reporter import Line, Reporter, duration
from bkrl.runs.folder import acquire
from bkrl.runs.record import Run
from bkrl.studies.cells import chosen, name_of, needs, report_on, state_of
from bkrl.studies.clocks import CellClock, speed, summary
from bkrl.studies.executors import Executor, cores, log_of
from bkrl.studies.executors.local import Local
from bkrl.studies.executors.ray import Ray
from bkrl.studies.executors.slurm import Slurm, outcome_of
from bkrl.studies.section import Cell
from bkrl.studies.study import Study, load_study

_POLL = 1.0


class SweepOutcome(NamedTuple):
    """How a sweep ended.

    Attributes:
        out: the study's folder.
        done: names of finished cells.
        failed: name → reason.
        blocked: names of cells that need a failed one.
        report: the report's run, when it was asked for and nothing failed.
    """

    out: Path
    done: list[str]
    failed: dict[str, str]
    blocked: list[str]
    report: Run | None = None


class _Saved(TypedDict):
    failed: NotRequired[dict[str, str]]
    jobs: NotRequired[dict[str, str]]
    seconds: NotRequired[dict[str, float]]


@dataclass
class SweepState:
    """What a sweep remembers from one start to the next, by names of cells; `seconds` that each was seen running."""

    path: Path
    failed: dict[str, str] = field(default_factory=dict)
    jobs: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def load(self) -> SweepState:
        """Recall what an earlier start saved, if there was one; InputError when that is damaged."""
        try:
            found: _Saved = read_json(self.path, _Saved) if self.path.exists() else {}
        except InputError:
            raise InputError(
                f"{self.path} is damaged; restore it, or remove it when no job of this study is queued on a cluster."
            ) from None
        self.failed.update(found.get("failed", {}))
        self.jobs.update(found.get("jobs", {}))
        self.seconds.update(found.get("seconds", {}))
        return self

    def save(self) -> None:
        """Write it."""
        atomic_write(self.path, to_json({"failed": self.failed, "jobs": self.jobs, "seconds": self.seconds}))


def run(config: SweepConfig, reporter: Reporter) -> SweepOutcome:
    """Do every cell of a study that is not done.

    Raises:
        UsageError: the study is invalid, or another sweep is at work in the same folder.
        KeyboardInterrupt: Ctrl-C; local workers have stopped and kept what they have.
    """
    out = config.folder
    study = load_study(config.study, out, config.llm)
    cells = chosen(study, out, config.only)
    state = SweepState(out / "sweep" / "state.json")
    executor = open_executor(config, study, state)
    make_folder(out / "sweep")
    with acquire(out / "sweep"):
        state.load()  # only now: until a moment ago another sweep may have written it
        if config.retry_failed:
            for cell in cells:
                state.failed.pop(name_of(cell, out), None)
                outcome_of(log_of(cell, out)).unlink(missing_ok=True)  # that of a job which no sweep has seen end
        announce(study, cells, config.jobs or (cores() if config.executor == "local" else 0), reporter)
        outcome = _Sweep(cells, out, state, executor, reporter).go()
    if config.report and not outcome.failed and not outcome.blocked:
        report = import_module("bkrl.stages.report").run(report_on(cells, study).config, reporter)
        outcome = outcome._replace(report=report)
    return outcome


def open_executor(config: SweepConfig, study: Study, state: SweepState) -> Executor:
    """What runs the cells: worker processes here, or jobs of a cluster."""
    if config.executor == "ray":
        return Ray(config.folder, config.ray.address, config.jobs, config.ray.gpus)
    if config.executor == "slurm":
        given = {key: value for key, value in vars(config.slurm).items() if value is not None}
        return Slurm(config.folder, state.jobs, state.save, {**study.slurm, **given}, config.jobs)
    return Local(config.jobs or cores(), config.folder)


def runs(n: int) -> str:
    """So many runs, in words."""
    return f"{n} run{'' if n == 1 else 's'}"


def failures(outcome: SweepOutcome) -> str:
    """Which cells failed and why, in sentences."""
    reasons = [f"{outcome.out / name}: {reason}" for name, reason in outcome.failed.items()]
    blocked = f" {len(outcome.blocked)} more need those." if outcome.blocked else ""
    total = len(outcome.done) + len(outcome.failed) + len(outcome.blocked)
    return f"{len(outcome.failed)} of {runs(total)} failed: {' '.join(reasons)}{blocked}"


def listed(cells: Sequence[Cell], out: Path) -> list[tuple[str, str, int, str]]:
    """Name, stage, steps and state of each cell, as of now."""
    failed = SweepState(out / "sweep" / "state.json").load().failed
    rows = []
    for cell in cells:
        name = name_of(cell, out)
        how = state_of(cell) or (f"failed: {failed[name]}" if name in failed else "to do")
        rows.append((name, cell.stage.replace("_", "-"), cell.steps, how))
    return rows


def announce(study: Study, cells: Sequence[Cell], jobs: int, reporter: Reporter) -> None:
    """Say what there is to do, and about how long it takes; `jobs`: at the same time, 0 where it is not known."""
    reporter.say(study.title)
    parts = {"train_rs": "train", "evaluate": "evaluate"}
    for title in ("prepare", "train", "evaluate"):
        part = [cell for cell in cells if parts.get(cell.stage, "prepare") == title]
        if not part:
            continue
        done = sum((cell.run_dir / "manifest.json").exists() for cell in part)
        steps = sum(cell.steps for cell in part)
        count = f", {steps:,} environment steps" if steps else ""
        reporter.say(f"  {title}: {runs(len(part))}{count}" + (f" ({done} done already)" if done else ""))
    everything = sum(cell.steps for cell in study.training)
    left = sum(c.steps for c in cells if c.stage == "train_rs" and not (c.run_dir / "manifest.json").exists())
    if left and jobs and study.minutes:
        now = speed()
        seconds = 60 * study.minutes / now * 2 / min(jobs, len(study.training)) * left / everything
        reporter.say(
            f"  about {duration(seconds)} on {jobs} cores, measured now: {now:.1f} times as fast as the two on which "
            f"the study took {duration(60 * study.minutes)}; stop at any time, the same command continues"
        )


class _Sweep:
    """One start of a sweep: cells wait, run, and are done, failed or blocked."""

    def __init__(
        self, cells: Sequence[Cell], out: Path, state: SweepState, executor: Executor, reporter: Reporter
    ) -> None:
        self.cells = cells
        self.out = out
        self.state = state
        self.executor = executor
        self.reporter = reporter
        self.needs = needs(cells)
        self.done: set[Path] = set()
        self.failed: dict[Path, str] = {}
        self.ended: dict[Path, float] = {}
        self.clocks: dict[Path, CellClock] = {}
        self.waiting: list[Cell] = []
        for cell in cells:
            how = state_of(cell)
            if how == "done":
                self._succeed(cell)
            elif how or name_of(cell, out) in state.failed:
                self.failed[cell.run_dir] = how or state.failed[name_of(cell, out)]
            else:
                self.waiting.append(cell)

    def go(self) -> SweepOutcome:
        """Start, wait and file until nothing is left that can be done."""
        try:
            blocked = self._blocked()
            if todo := [cell for cell in self.waiting if cell.run_dir not in blocked]:
                self.executor.prepare(todo, self.reporter)
                with self.reporter.board() as show:
                    self._until_done(show)
        finally:
            if parting := self.executor.stop():
                self.reporter.say(parting)
            self.state.save()
        left = [name_of(cell, self.out) for cell in self.waiting]
        done = [name_of(cell, self.out) for cell in self.cells if cell.run_dir in self.done]
        failed = {name_of(c, self.out): self.failed[c.run_dir] for c in self.cells if c.run_dir in self.failed}
        return SweepOutcome(self.out, done, failed, left)

    def _until_done(self, show: Callable[[Sequence[Line], str], None]) -> None:
        started = time.monotonic()
        while True:
            running = self.executor.running()
            idle = [cell for cell in self.waiting if cell.run_dir.as_posix() not in running]
            ready = [cell for cell in idle if self.done.issuperset(self.needs[cell.run_dir])]
            if starting := ready[: self.executor.free()]:
                self.executor.start(starting)
                self.state.save()
            lines = self._lines()
            show(lines, summary(lines, time.monotonic() - started))
            if not self.executor.running():
                return
            for cell, reason in self.executor.ended(_POLL):
                self.waiting.remove(cell)
                how = reason or state_of(cell) or "it ended without a result"
                if how == "done":
                    self._succeed(cell)
                    if cell.run_dir in self.clocks:
                        self.state.seconds[name_of(cell, self.out)] = round(self.clocks[cell.run_dir].seconds(), 1)
                else:
                    self.failed[cell.run_dir] = self.state.failed[name_of(cell, self.out)] = how
                self.state.save()

    def _succeed(self, cell: Cell) -> None:
        self.done.add(cell.run_dir)
        self.state.failed.pop(name_of(cell, self.out), None)

    def _blocked(self) -> set[Path]:
        """Run directories of the cells that wait for something that has failed, directly or not."""
        waiting = {cell.run_dir for cell in self.waiting}
        lost = set(self.failed)
        while more := {folder for folder in waiting - lost if not lost.isdisjoint(self.needs[folder])}:
            lost |= more
        return lost & waiting

    def _lines(self) -> list[Line]:
        running, blocked = self.executor.running(), self._blocked()
        return [self._line(cell, running.get(cell.run_dir.as_posix()), cell.run_dir in blocked) for cell in self.cells]

    def _line(self, cell: Cell, active: str | None, blocked: bool) -> Line:
        name = name_of(cell, self.out)
        if active == "queued":
            return Line(name, "queued", total=cell.steps)
        if active is not None:
            return self.clocks.setdefault(cell.run_dir, CellClock.start(cell)).line(name, cell)
        clock = self.clocks.get(cell.run_dir)
        seconds = self.ended.setdefault(cell.run_dir, clock.seconds()) if clock else 0.0
        if cell.run_dir in self.done:
            return Line(name, "done", cell.steps, cell.steps, seconds=seconds)
        if cell.run_dir in self.failed:
            return Line(name, "failed", total=cell.steps, seconds=seconds, note=self.failed[cell.run_dir])
        if blocked:
            return Line(name, "waiting", note="needs one that failed")
        return Line(name, "waiting", total=cell.steps)
