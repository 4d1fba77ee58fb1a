"""How long a study would take on several machines, reckoned from runs that were measured."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from pathlib import Path
from statistics import median
from typing import Any

from bkrl.core.reporter import duration
from bkrl.labelers.plan import NUM
from bkrl.report.costs import loop_seconds
from bkrl.runs.folder import complete_below
from bkrl.runs.record import Run
from bkrl.stats.curves import series_of
from bkrl.studies.cells import name_of, needs
from bkrl.studies.section import Cell
from bkrl.studies.sweep import SweepState

MACHINES = (1, 8, 64)
_WORK = {"train-rs": "steps", "collect": "steps", "evaluate": "episodes", "label": "num"}
"""The setting to which a stage's time is proportional, but for explorers that play episodes; other stages have none."""
_Key = tuple[str, str, str]


def outlook(cells: Sequence[Cell], out: Path, measured: Path, jobs: int) -> str:
    """A sentence about the time of all cells on `MACHINES` machines that do `jobs` cells at once; "" without a measure.

    Args:
        cells: each after what it needs; `out` is their study's folder.
        measured: a study's folder. A run took as long as its sweep's last start has counted, or its clocks, if more.
    """
    if not (rates := _rates(measured)):
        return ""
    seconds = [_seconds(cell.made[0], vars(cell.config), name_of(cell, out), rates) for cell in cells]
    places = {cell.run_dir: place for place, cell in enumerate(cells)}
    after = [[places[folder] for folder in needed] for needed in needs(cells).values()]
    times = [f"{duration(makespan([one or 0.0 for one in seconds], after, n * jobs))} on {n}" for n in MACHINES]
    unknown = {cell.stage.replace("_", "-") for cell, one in zip(cells, seconds, strict=True) if one is None}
    left_out = f"; not measured, and left out: {', '.join(sorted(unknown))}" if unknown else ""
    return f"As fast as the runs in {measured}, with {jobs} cells at once on a machine: {', '.join(times)}{left_out}."


def makespan(seconds: Sequence[float], after: Sequence[Sequence[int]], slots: int) -> float:
    """When the last of some tasks ends, if each begins as soon as what it needs has ended and a slot is free.

    Args:
        seconds: of each task.
        after: for each, the places of those that it needs.
        slots: tasks at the same time.
    """
    missing, followers = [len(set(one)) for one in after], [[] for _ in after]  # type: list[int], list[list[int]]
    for task, needed in enumerate(after):
        for one in set(needed):
            followers[one].append(task)
    ready = deque(task for task, count in enumerate(missing) if not count)
    running: list[tuple[float, int]] = []
    now = 0.0
    while ready or running:
        while ready and len(running) < slots:
            task = ready.popleft()
            heappush(running, (now + seconds[task], task))
        now, ended = heappop(running)
        for task in followers[ended]:
            missing[task] -= 1
            if not missing[task]:
                ready.append(task)
    return now


def _rates(folder: Path) -> dict[_Key, list[float]]:
    """Seconds for a unit of work, of each complete run below a folder: by stage, section and method."""
    counted, rates = SweepState(folder / "sweep" / "state.json").load().seconds, dict[_Key, list[float]]()
    for path in complete_below(folder):
        run = Run.open(path, verify=False)
        name = run.path.relative_to(folder).as_posix()
        seconds = max(counted.get(name, 0.0), loop_seconds(series_of(run.metrics())))
        if seconds:
            keys, work = _like(run.stage, run.config["config"], name)
            for key in dict.fromkeys(keys):
                rates.setdefault(key, []).append(seconds / work)
    return rates


def _seconds(stage: str, settings: Mapping[str, Any], name: str, rates: Mapping[_Key, list[float]]) -> float | None:
    """Those of a cell, from the runs that are most like it; None without any of its stage."""
    keys, work = _like(stage, settings, name)
    return next((median(rates[key]) * work for key in keys if key in rates), None)


def _like(stage: str, settings: Mapping[str, Any], name: str) -> tuple[list[_Key], float]:
    """What runs like one are filed under, the most alike first, and how much work it is."""
    section, alg = name.partition("/")[0], str(settings.get("alg", settings.get("variant", "")))
    plays = stage == "collect" and settings.get("explorer", "rnd") != "rnd"
    by = "episodes" if plays else _WORK.get(stage, "")
    kind, work = f"{stage} by {by}", float(settings.get(by) or NUM.get(settings.get("variant", ""), 1))
    return [(kind, section, alg), (kind, section, ""), (kind, "", "")], work
