"""Cells side by side in worker processes on this machine, one thread each."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bkrl.core.reporter import Reporter
from bkrl.studies.executors import log_of
from bkrl.studies.executors.work import work
from bkrl.studies.section import Cell

PATIENCE = 20.0
"""Seconds in which a worker that was told to stop may finish its iteration; then its newest checkpoint has to do."""

_DIED = "its process ended without a message (was it killed, or was memory short?)"
_STOPPED = "its process was told to stop from outside; what it had is kept, and --retry-failed goes on from there"


class _Job(NamedTuple):
    cell: Cell
    slot: int
    future: Future[str]


class Local:
    """A fixed number of workers, each a pool of its own: when one is killed, the others go on.

    Args:
        jobs: workers.
        out: the study's folder.
    """

    def __init__(self, jobs: int, out: Path) -> None:
        self._out = out
        self._pools: list[ProcessPoolExecutor | None] = [None] * jobs
        self._jobs: list[_Job] = []
        self._others = {*multiprocessing.active_children()}  # children of who sweeps, before there was a worker

    def prepare(self, cells: Sequence[Cell], reporter: Reporter) -> None:
        """Nothing: a kernel is compiled by the first worker that needs it, and the others wait for that one."""

    def free(self) -> int:
        """Idle workers."""
        return len(self._pools) - len(self._jobs)

    def start(self, cells: Sequence[Cell]) -> None:
        """Give each an idle worker."""
        idle = sorted(set(range(len(self._pools))) - {job.slot for job in self._jobs})
        for cell, slot in zip(cells, idle):
            task = partial(_work, cell, log_of(cell, self._out))
            try:
                future = self._pool(slot).submit(task)
            except BrokenProcessPool:  # its worker was killed while it had nothing to do
                self._pools[slot] = None
                future = self._pool(slot).submit(task)
            self._jobs.append(_Job(cell, slot, future))

    def running(self) -> dict[str, str]:
        """All that were started are running."""
        return {job.cell.run_dir.as_posix(): "running" for job in self._jobs}

    def ended(self, seconds: float) -> list[tuple[Cell, str]]:
        """Cells whose worker is done, or dead."""
        done = wait([job.future for job in self._jobs], timeout=seconds, return_when=FIRST_COMPLETED).done
        over = [job for job in self._jobs if job.future in done]
        self._jobs = [job for job in self._jobs if job.future not in done]
        return [(job.cell, self._reason(job)) for job in over]

    def stop(self) -> str:
        """End the workers; those that are in the middle of a run keep what they have."""
        for _ in range(2):
            if not all(job.future.done() for job in self._jobs):
                for worker in {*multiprocessing.active_children()} - self._others:
                    worker.terminate()
                wait([job.future for job in self._jobs], timeout=PATIENCE)
        for pool in filter(None, self._pools):
            pool.shutdown(wait=True, cancel_futures=True)
        return ""

    def _pool(self, slot: int) -> ProcessPoolExecutor:
        pool = self._pools[slot]
        if pool is None:
            # Spawned, not forked: torch and numba own threads that do not survive a fork.
            context = multiprocessing.get_context("spawn")
            pool = self._pools[slot] = ProcessPoolExecutor(
                1, mp_context=context, initializer=_start_worker, initargs=(os.getpid(),)
            )
        return pool

    def _reason(self, job: _Job) -> str:
        problem = job.future.exception()
        if problem is None:
            return job.future.result()
        pool, self._pools[job.slot] = self._pools[job.slot], None  # its worker is dead, or takes no other cell
        if pool is not None:
            pool.shutdown(wait=False)
        if isinstance(problem, BrokenProcessPool):
            return _DIED
        return _STOPPED if isinstance(problem, KeyboardInterrupt) else f"{type(problem).__name__}: {problem}"


# In a worker: whether it has been asked to stop, and whether it is in a cell.
_stopping = False
_working = False


def _start_worker(parent: int) -> None:
    """Ignore SIGINT and SIGHUP, which a terminal sends to every process: the parent reacts, and then terminates its
    workers or dies, so that they keep what they have.
    """
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    for name in ("SIGINT", "SIGHUP"):
        if name in vars(signal):  # Windows has no SIGHUP
            signal.signal(vars(signal)[name], signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(0))
    threading.Thread(target=_stop_with, args=(parent,), daemon=True).start()


def _stop_with(parent: int) -> None:
    """A worker whose parent was killed (perhaps before this worker had begun) keeps what it has and stops."""
    while os.getppid() == parent:
        time.sleep(1.0)
    if _working:  # once only: a second signal would not let it finish what it keeps
        os.kill(os.getpid(), signal.SIGTERM)
    while _working:
        time.sleep(0.1)
    os._exit(0)


def _work(cell: Cell, log: Path) -> str:
    """Run a cell in a worker that may be asked to stop."""
    global _working
    if _stopping:
        return ""
    _working = True
    try:
        idle = signal.signal(signal.SIGTERM, _interrupt)
        try:
            return work(cell, log)
        finally:
            signal.signal(signal.SIGTERM, idle)
    finally:
        _working = False


def _interrupt(number: int, frame: object) -> None:
    """Stop a stage as Ctrl-C would, so that it keeps what it has; the next cell may be on its way already."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    global _stopping
    _stopping = True
    raise KeyboardInterrupt
