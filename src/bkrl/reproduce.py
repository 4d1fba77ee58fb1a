"""The whole chain from one study file: collect → label → train-rm → train-rs → evaluate → report.

A study is a list of idempotent cells, each one a stage and its settings. A cell whose run is complete is not run
again, so a study that was stopped goes on where it was. Training cells run side by side, one thread each.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import signal
import threading
import time
import tomllib
from collections.abc import Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from importlib import import_module, resources
from pathlib import Path
from typing import Any, NamedTuple, cast

from bkrl import config as settings
from bkrl.config import ReproduceConfig
from bkrl.errors import BkrlError, RunFailed, UsageError
from bkrl.registry import did_you_mean
from bkrl.reporter import Reporter
from bkrl.run import Run

_CONFIGS = {verb.replace("-", "_"): kind for verb, kind in settings.VERBS.items() if verb != "reproduce"}
_WORLD_KEYS = {"name", "variants", "algs", "seeds", *_CONFIGS} - {"report"}


class Cell(NamedTuple):
    """One stage with its settings; `config.run_dir` is where its run lives."""

    stage: str
    config: Any


class Study(NamedTuple):
    """Cells in the order they need each other: those before training, training, evaluation, the report."""

    title: str
    minutes: float
    preparation: list[Cell]
    training: list[Cell]
    evaluation: list[Cell]
    report: Cell

    def cells(self) -> list[Cell]:
        """All of them, in order."""
        return [*self.preparation, *self.training, *self.evaluation, self.report]


def load_study(preset: str, out: Path) -> Study:
    """Read a shipped study file and place all its runs under `out`; UsageError names a key it does not know."""
    text = resources.files("bkrl").joinpath("studies", f"{preset}.toml").read_text()
    return plan(tomllib.loads(text), out)


def plan(document: Mapping[str, Any], out: Path) -> Study:
    """The cells of a study document: `title`, `minutes`, and a `[[world]]` for each world.

    An algorithm may name a control of its potential, as in "bk-pref:shuffled" (see `train-rm --control`).
    """
    preparation: list[Cell] = []
    training: list[Cell] = []
    evaluation: list[Cell] = []
    for world in document["world"]:
        for key in world:
            if key not in _WORLD_KEYS:
                raise UsageError(f"A study's world has no '{key}'.{did_you_mean(key, _WORLD_KEYS)}")
        root = out / world["name"]
        collect = _cell("collect", world, out=root / "data")
        preparation.append(collect)
        potentials: dict[str, Path] = {}
        for variant in world["variants"]:
            labels = root / f"label-{variant}"
            preparation.append(_cell("label", world, variant, dataset=root / "data", variant=variant, out=labels))
            for control in ("none", *sorted(c for a, c in map(_split, world["algs"]) if a == f"bk-{variant}" and c)):
                name = f"bk-{variant}" if control == "none" else f"bk-{variant}:{control}"
                potentials[name] = root / f"rm-{name.removeprefix('bk-').replace(':', '-')}"
                rm = _cell("train_rm", world, variant, labels=labels, control=control, out=potentials[name])
                preparation.append(rm)
        for seed in world["seeds"]:
            for alg in world["algs"]:
                name = f"{alg.replace(':', '-')}-s{seed}"
                cell = {"alg": _split(alg)[0], "seed": seed, "potential": potentials.get(alg)}
                training.append(_cell("train_rs", world, out=root / name, **cell))
                evaluation.append(_cell("evaluate", world, policy=root / name, out=root / f"eval-{name}"))
    runs = tuple(cell.config.run_dir for cell in (*training, *evaluation))
    report = Cell("report", settings.ReportConfig(runs=runs, out=out / "report", title=document["title"]))
    return Study(document["title"], float(document["minutes"]), preparation, training, evaluation, report)


def run(config: ReproduceConfig, reporter: Reporter) -> Run | None:
    """Run a preset to its report; what is complete already is skipped.

    Raises:
        RunFailed: some cells failed; each is named with its reason, the others are finished.
    """
    study = load_study(config.preset, config.out)
    jobs = config.jobs or os.cpu_count() or 1
    _announce(study, config, jobs, reporter)
    if config.dry_run:
        return None
    for cell in study.preparation:
        _timed(cell, reporter)
    _side_by_side(study.training, jobs, reporter, "train")
    _side_by_side(study.evaluation, jobs, reporter, "evaluate")
    report = _timed(study.report, reporter)
    reporter.say(f"report: {report.path / 'report.html'}")
    return report


def run_cell(stage: str, config: Any, reporter: Reporter) -> Run:
    """Run one cell; a complete one comes back as it is."""
    return cast(Run, import_module(f"bkrl.stages.{stage}").run(config, reporter))


def _announce(study: Study, config: ReproduceConfig, jobs: int, reporter: Reporter) -> None:
    reporter.say(f"{study.title} (preset {config.preset}), everything under {config.out}")
    for title, cells in (("prepare", study.preparation), ("train", study.training), ("evaluate", study.evaluation)):
        done = sum((cell.config.run_dir / "manifest.json").exists() for cell in cells)
        steps = sum(getattr(cell.config, "steps", 0) for cell in cells)
        told = f", {steps:,} environment steps" if steps else ""
        reporter.say(f"  {title}: {len(cells)} runs{told}" + (f" ({done} done already)" if done else ""))
    left = [cell for cell in study.training if not (cell.config.run_dir / "manifest.json").exists()]
    if left:
        minutes = study.minutes * 2 / min(jobs, len(study.training)) * len(left) / len(study.training)
        reporter.say(
            f"  about {minutes:.0f} minutes on {jobs} cores ({study.minutes:.0f} in all were measured on 2); "
            "stop at any time, the same command continues"
        )


def _timed(cell: Cell, reporter: Reporter) -> Run:
    started = time.monotonic()
    already = (cell.config.run_dir / "manifest.json").exists()
    result = run_cell(cell.stage, cell.config, reporter)
    if not already:
        reporter.say(f"{cell.stage.replace('_', '-')} {result.path}: {time.monotonic() - started:.1f} s")
    return result


def _side_by_side(cells: list[Cell], jobs: int, reporter: Reporter, title: str) -> None:
    """Run cells in worker processes, showing one progress line for all; failures are told together at the end."""
    todo = [cell for cell in cells if not (cell.config.run_dir / "manifest.json").exists()]
    if not todo:
        return
    total = sum(getattr(cell.config, "steps", 1) for cell in todo)
    unit = "steps" if hasattr(todo[0].config, "steps") else "runs"
    failed: list[str] = []
    started = time.monotonic()
    # Spawned, not forked: torch and numba own threads that do not survive a fork.
    context = multiprocessing.get_context("spawn")
    with (
        ProcessPoolExecutor(min(jobs, len(todo)), mp_context=context, initializer=_start_worker) as pool,
        reporter.progress(title, total, unit) as update,
    ):
        pending = {pool.submit(_work, cell): cell for cell in todo}
        futures: set[Future[str]] = set(pending)
        try:
            while futures:
                done, futures = wait(futures, timeout=1.0, return_when=FIRST_COMPLETED)
                failed += [reason for future in done if (reason := future.result())]
                finished = len(todo) - len(futures)
                update(_progress(todo, unit), f"{finished}/{len(todo)} runs")
        except KeyboardInterrupt:
            for worker in multiprocessing.active_children():
                worker.terminate()
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    reporter.say(f"{title} {len(todo)} runs: {time.monotonic() - started:.1f} s")
    if failed:
        raise RunFailed(f"{len(failed)} of {len(todo)} runs failed: {' '.join(failed)} Run the same command to retry.")


_stopping = False  # in a worker: it was told to stop


def _start_worker() -> None:
    """A terminal sends Ctrl-C to every process; workers leave it to their parent, which then terminates them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(0))
    threading.Thread(target=_stop_with, args=(os.getppid(),), daemon=True).start()


def _stop_with(parent: int) -> None:
    """A worker whose parent was killed keeps what it has and stops, rather than train on for nobody."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os.kill(os.getpid(), signal.SIGTERM)


def _work(cell: Cell) -> str:
    """Run a cell in a worker; the sentence of its failure, or an empty string."""
    if _stopping:
        return ""
    idle = signal.signal(signal.SIGTERM, _interrupt)
    try:
        run_cell(cell.stage, cell.config, Reporter())
    except BkrlError as problem:
        return f"{cell.config.run_dir}: {problem}"
    finally:
        signal.signal(signal.SIGTERM, idle)
    return ""


def _interrupt(number: int, frame: object) -> None:
    """Stop a stage as Ctrl-C would, so that it keeps what it has; the next cell may be on its way already."""
    del number, frame
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    global _stopping
    _stopping = True
    raise KeyboardInterrupt


def _progress(cells: Iterable[Cell], unit: str) -> float:
    """How much of all cells is done, read from their run directories."""
    total = 0.0
    for cell in cells:
        complete = (cell.config.run_dir / "manifest.json").exists()
        if unit == "runs":
            total += complete
        else:
            total += cell.config.steps if complete else _last_step(cell.config.run_dir / "metrics.jsonl")
    return total


def _last_step(path: Path) -> int:
    try:
        with path.open("rb") as file:
            file.seek(max(path.stat().st_size - 4096, 0))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError:
        return 0
    for line in reversed(lines[:-1]):
        if line.startswith('{"step": '):
            return int(line[9:].split(",")[0].rstrip("}"))
    return 0


def _split(alg: str) -> tuple[str, str]:
    """("bk-pref", "shuffled") of "bk-pref:shuffled", and ("bk-pref", "") of "bk-pref"."""
    name, _, control = alg.partition(":")
    return name, control


def _cell(stage: str, world: Mapping[str, Any], own_of: str | None = None, /, **fixed: Any) -> Cell:
    """Settings from the study's table for this stage, the variant's own sub-table on top, and what the plan fixes."""
    table = dict(world.get(stage, {}))
    own = {key: table.pop(key) for key in [key for key, value in table.items() if _is_variant(key, value)]}
    table |= own.get(own_of, {}) if own_of else {}
    return Cell(stage, build(_CONFIGS[stage], table, **fixed))


def _is_variant(key: str, value: Any) -> bool:
    return key in ("code", "pref", "goal") and isinstance(value, dict)


def build(kind: type, table: Mapping[str, Any], **fixed: Any) -> Any:
    """A config from plain values, nested tables included; UsageError names an unknown setting."""
    fields = {f.name: f for f in dataclasses.fields(kind)}
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in fields:
            raise UsageError(f"There is no setting '{key}' in {kind.__name__}.{did_you_mean(key, fields)}")
        if isinstance(value, dict):
            factory = cast(type, fields[key].default_factory)
            value = build(factory, value)
        values[key] = Path(value) if "Path" in str(fields[key].type) else value
    return kind(**values, **fixed)
