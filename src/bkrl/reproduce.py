"""The whole chain from one study file: collect → label → train-rm → train-rs → evaluate → report.

A study is a list of idempotent cells, each one a stage and its settings. A cell whose run is complete is not run
again, so a study that was stopped goes on where it was. Training cells run side by side, one thread each.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from bkrl.config import ReproduceConfig
from bkrl.errors import BkrlError, RunFailed
from bkrl.reporter import Reporter
from bkrl.run import Run
from bkrl.study import Cell, Study, load_study


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
