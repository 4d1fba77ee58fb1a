"""Carrying a learner to its end: checkpoints, exact resume, milestones, signals, warnings.

What is shared by the stages that train. The same command continues where the newest whole checkpoint is; if the envs
can be saved, what follows is byte for byte what would have followed.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from bkrl.core.files import atomic_write, check_files, sha256
from bkrl.core.prefixes import under
from bkrl.core.reporter import Reporter
from bkrl.learn.checkpoint import Checkpoints
from bkrl.learn.protocol import Learner, Saved
from bkrl.runs.record import Run

Milestone = Callable[[int, int], float | None]
"""Called with (its number, the step reached) when a milestone is passed; may return the mean return it evaluated."""


class Fallen(Exception):
    """A milestone found that training makes the policy worse; it carries the mean return found there."""

    def __init__(self, score: float) -> None:
        super().__init__(score)
        self.score = score


def train(
    learner: Learner,
    run: Run,
    reporter: Reporter,
    *,
    title: str,
    checkpoint_every: int,
    milestones: Sequence[int],
    at_milestone: Milestone,
    at_best: Callable[[], Sequence[str]] | None = None,
    kept: Callable[[int], Sequence[str]] = lambda number: (),
) -> None:
    """Train until `learner.done`, logging every iteration to the run's metrics.jsonl.

    Lines with a clock in them (`time/…`) stand apart from the others, which are the same in every repetition.

    Args:
        learner: freshly made, or made in the same way as before the run was stopped.
        run: where metrics and checkpoints go; after the last iteration its checkpoints are removed by `finished`.
        title: of the progress line.
        checkpoint_every: env steps between checkpoints.
        milestones: increasing env steps; each is passed once, after the iteration that reaches it (0: before the
            first one), the last one at the latest when the learner is done.
        at_milestone: what to do there; `Fallen` ends training.
        at_best: what to do when that return was higher than all before, also those before a restart; returns the names
            of the files it wrote into the run. Checkpoints hold them too: a restart may lead elsewhere than before, so
            it puts back those that were the best where it begins.
        kept: files that `at_milestone` wrote into the run, by the milestone's number; checkpoints hold their hashes.

    Raises:
        Diverged: what was learnt is not finite; the last checkpoint is from before that.
        InputError: metrics.jsonl or another file of the run is not what it was at the checkpoint to go on from.
        RunFailed: a checkpoint cannot be written, or the network not be compiled.
        KeyboardInterrupt: SIGINT or SIGTERM came; the iteration was finished and a checkpoint written.
    """
    checkpoints = Checkpoints(run.file("checkpoints"))
    checkpoints.sweep()
    progress, best_files = _resume(learner, run, reporter, checkpoints)
    saved_at = learner.step
    started, first_step = time.perf_counter(), learner.step
    progress_line = reporter.progress(title, learner.total_steps)
    with _signals_wait() as interrupted, learner.hardware.compiling(), progress_line as update:
        while True:
            best = False
            while (passed := progress["milestones"]) < len(milestones):
                # Iterations of unequal length may end before the last milestone.
                last = learner.done and passed == len(milestones) - 1
                if (learner.step < milestones[passed] and not last) or "fallen" in progress:
                    break
                began = time.perf_counter()
                try:
                    score = at_milestone(progress["milestones"], learner.step)
                except Fallen as found:
                    score, progress["fallen"] = found.score, True
                run.log(learner.step, **{"time/milestone": time.perf_counter() - began})
                progress["files"] |= {name: sha256(run.file(name)) for name in kept(progress["milestones"])}
                progress["milestones"] += 1
                progress["score"] = score
                if score is not None and (progress["best"] is None or score > progress["best"]):
                    progress["best"], best = score, True
                    if at_best is not None:
                        best_files = {name: run.file(name).read_bytes() for name in at_best()}
            due = learner.step - saved_at >= checkpoint_every
            over = learner.done or "fallen" in progress
            if due or best or interrupted() or over:
                _save(learner, run, checkpoints, progress, best_files, best)
                saved_at = learner.step
            interrupted(leave=True)
            if over:
                break
            metrics = learner.iterate()
            clock = {key: value for key, value in metrics.items() if key.startswith("time/")}
            figures = {key: value for key, value in metrics.items() if key not in clock}
            run.log(learner.step, **figures)
            clock["time/sps"] = (learner.step - first_step) / (time.perf_counter() - started)
            run.log(learner.step, **clock)
            _warn(learner, figures, progress, reporter)
            update(min(learner.step, learner.total_steps), _note(figures, progress.get("score")))


def milestones(every: int, last: int, iteration: int) -> list[int]:
    """The distinct ends of iterations at or after each multiple of `every`, the end of training included.

    With every 50, last 120 and iterations of 32 steps: 0, 64, 128 (for 100, and for the end at 120).
    """
    return sorted({-(-min(step, last) // iteration) * iteration for step in range(0, last + every, every)})


def finished(run: Run) -> None:
    """Remove the checkpoints of a run whose results are written."""
    Checkpoints(run.file("checkpoints")).clear()


def _save(
    learner: Learner,
    run: Run,
    checkpoints: Checkpoints,
    progress: dict[str, Any],
    best_files: dict[str, bytes],
    best: bool,
) -> None:
    tensors, counters, exact = learner.state()
    tensors |= {f"best.{name}": np.frombuffer(raw, np.uint8) for name, raw in best_files.items()}
    size, digest = run.sync()
    facts = {
        "counters": counters,
        "progress": progress,
        "exact": exact,
        "hardware": str(learner.hardware),
        "metrics_bytes": size,
        "metrics_sha256": digest,
    }
    checkpoints.save(learner.step, tensors, facts, best=best)


def _resume(
    learner: Learner, run: Run, reporter: Reporter, checkpoints: Checkpoints
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Put everything back as the newest whole checkpoint has it, or start from nothing.

    Returns:
        How far the run is, and the files of the best policy so far.
    """
    found = checkpoints.newest()
    for sentence in found.skipped if found else []:
        reporter.warn(sentence)
    if found is None or not found.tensors:
        if found is not None:
            reporter.warn("no whole checkpoint is left, so this run begins again.")
        run.rewind(0)
        files = {"config.json": sha256(run.file("config.json"))}
        return {"milestones": 0, "best": None, "score": None, "warned": [], "files": files}, {}
    progress = dict(found.facts["progress"])
    for name, digest in progress["files"].items():
        file = run.file(name)
        check_files(file.parent, {file.name: digest}, "restore it, or pass --fresh")
    run.rewind(int(found.facts["metrics_bytes"]), found.facts["metrics_sha256"])
    exact = bool(found.facts["exact"])
    learner.restore(Saved(found.tensors, found.facts["counters"], exact))
    began, now = found.facts["hardware"], str(learner.hardware)
    if began != now:
        reporter.warn(f"this run computed on {began} and goes on with {now}: its last digits will differ.")
    how = "exactly where it was" if exact else "with fresh episodes, because these envs cannot be saved"
    reporter.say(f"continuing at step {learner.step:,}, {how}")
    best_files = {name: array.tobytes() for name, array in under(found.tensors, "best.").items()}
    for name, raw in best_files.items():
        path = run.file(name)
        if not path.is_file() or path.read_bytes() != raw:
            reporter.warn(f"{path} is not what the checkpoint holds, and is put back from there.")
            atomic_write(path, raw)
    return progress, best_files


def _note(figures: dict[str, float], score: float | None) -> str:
    """How well it goes: the last evaluation if there is one, since the first episodes to end are the short ones."""
    if score is not None:
        return f"return {score:.2f} when last evaluated"
    if "rollout/success_rate" not in figures:
        return ""
    return f"success {figures['rollout/success_rate']:.2f}, return {figures['rollout/return']:.2f}"


def _warn(learner: Learner, figures: dict[str, float], progress: dict[str, Any], reporter: Reporter) -> None:
    """Say what the learner warns of, once in a run for each sign."""
    for sign, sentence in learner.warnings(figures).items():
        if sign not in progress["warned"]:
            progress["warned"].append(sign)
            reporter.warn(f"step {learner.step:,}: {sentence}.")


class _Interrupted:
    """Whether a signal has come, and how to leave as it asks."""

    def __init__(self) -> None:
        self.number: int | None = None
        self.since = 0.0
        self.before: dict[int, Any] = {}

    def __call__(self, leave: bool = False) -> bool:
        if leave and self.number is not None:
            self.restore()
            handler = self.before.get(self.number)
            if callable(handler):
                handler(self.number, None)
            signal.raise_signal(self.number)
            raise KeyboardInterrupt
        return self.number is not None

    def restore(self) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)


@contextmanager
def _signals_wait() -> Iterator[_Interrupted]:
    """Let the first SIGINT or SIGTERM wait until the iteration is over; another one, a second later, acts at once.

    Signals that come within a second count as one: a worker gets those sent to its group twice, from its parent too.
    A signal that was ignored before stays ignored.
    """
    state = _Interrupted()

    def later(number: int, frame: Any) -> None:
        if state.number is None:
            state.number, state.since = number, time.monotonic()
        elif time.monotonic() - state.since > 1.0:
            state(leave=True)

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is not signal.SIG_IGN:
                state.before[number] = signal.signal(number, later)
    try:
        yield state
    finally:
        state.restore()
