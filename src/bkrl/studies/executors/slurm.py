"""Cells as jobs of a SLURM cluster, through submitit: what is ready together goes as one array.

A job that runs out of time, or is pre-empted, keeps a checkpoint, is queued again and continues from there. What a job
found is in its run directory and in a small file beside its log; job states come from `squeue`, which every cluster
has. The sweep may be stopped and started again: jobs that still wait or run are found again by their numbers, and those
of a submission that was cut off by the name that was saved for it before.
"""

import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bkrl.core.errors import RunFailed, UsageError
from bkrl.core.files import atomic_write, read_json, to_json
from bkrl.core.reporter import Reporter
from bkrl.studies.cells import name_of
from bkrl.studies.executors import log_of
from bkrl.studies.executors.work import work
from bkrl.studies.section import Cell

MANY = 1_000_000
ARRAY = 1000
"""Jobs of one array at most; more than 1001 are refused where a cluster's MaxArraySize was left alone."""
MINUTES, REQUEUES = 240, 1000
"""How long a job may run by default, and how often it may run out of that: practically always."""
POLL_SECONDS = 5.0
"""Between two questions to the queue; a cluster's users share it."""
_QUEUED = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD")
_OVER = ("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "DEADLINE", "BOOT_FAIL")
_HOPELESS = (
    "PartitionTimeLimit", "PartitionNodeLimit", "PartitionDown", "BadConstraints", "InvalidQOS", "InvalidAccount",
)  # fmt: skip
"""Why a job waits although waiting will not help."""
_GONE = "The job ended without a result (cancelled, out of memory or refused its time?); see {log} and {folder}."


class Slurm:
    """Submits cells, and remembers their job numbers in `jobs`, which the sweep keeps.

    Args:
        out: the study's folder; every node must see it.
        jobs: name of a cell → job number, from an earlier start of the same sweep; kept up to date. From before a
            submission until its numbers are known: the name of the array in the queue, a slash, the place in it.
        save: writes `jobs` to disk.
        parameters: of submitit's SlurmExecutor: partition, time (minutes), mem (GB), gpus_per_node, ...
        most: jobs of an array that may run at the same time; 0: no limit.
    """

    def __init__(
        self, out: Path, jobs: dict[str, str], save: Callable[[], None], parameters: Mapping[str, Any], most: int = 0
    ) -> None:
        try:
            import submitit
        except ImportError:
            raise UsageError("--executor slurm needs submitit: pip install 'bkrl[slurm]'.") from None
        self._out, self._folder, self._jobs, self._save = out, out / "sweep" / "slurm", jobs, save
        self._cells: dict[str, Cell] = {}
        self._states: dict[str, str] = {}
        self._called: dict[str, str] = {}
        self._missing: dict[str, int] = {}
        self._warned: set[str] = set()
        self._reporter = Reporter()
        self._asked = 0.0
        try:
            self._executor = submitit.SlurmExecutor(folder=self._folder, max_num_timeout=REQUEUES)
            settings: dict[str, Any] = {"job_name": "bkrl", "time": MINUTES, "stderr_to_stdout": True}
            settings |= {"array_parallelism": MANY, **parameters, **({"array_parallelism": most} if most else {})}
            extra = {"requeue": True, **settings.pop("additional_parameters", {})}
            self._executor.update_parameters(additional_parameters=extra, **settings)
            self._title, self._cpus = str(settings["job_name"]), settings.get("cpus_per_task")
        except RuntimeError:
            raise UsageError("There is no srun here; start the sweep on a machine of the cluster.") from None
        except (ValueError, TypeError) as error:
            raise UsageError(f"The slurm settings are not understood: {str(error).splitlines()[0]}.") from None

    def prepare(self, cells: Sequence[Cell], reporter: Reporter) -> None:
        """Find the jobs of an earlier start that still wait or run.

        Raises:
            RunFailed: there were some, and the queue does not say what became of them.
        """
        self._reporter = reporter
        for cell in cells:
            if name_of(cell, self._out) in self._jobs:
                self._cells[name_of(cell, self._out)] = cell
        if self._cells:
            self._find()
            if any("/" in self._jobs[name] for name in self._cells):
                time.sleep(POLL_SECONDS)  # an sbatch that outlived its sweep may be on its way
                self._find()
        found = [name for name in self._cells if self._jobs[name] in self._states]
        for name in set(self._cells) - set(found):
            if self._reason(self._cells[name]) is None:  # one that left word while no sweep was there is told of
                del self._cells[name], self._jobs[name]
        for name in found:
            self._hand_over(self._cells[name], self._jobs[name])
        if found:
            reporter.say(f"{len(found)} jobs of an earlier start are still in the queue")

    def free(self) -> int:
        """The cluster's queue has room; what is ready beyond an array goes as the next one."""
        return ARRAY

    def start(self, cells: Sequence[Cell]) -> None:
        """Submit one array, under a name that is saved before: a kill on the way loses no job."""
        for cell in cells:
            outcome_of(log_of(cell, self._out)).unlink(missing_ok=True)
        called = f"{self._title}-{secrets.token_hex(6)}"
        self._jobs.update({name_of(cell, self._out): f"{called}/{place}" for place, cell in enumerate(cells)})
        self._save()
        cpus = self._cpus or max(vars(cell.config).get("threads", 1) for cell in cells)
        try:
            self._executor.update_parameters(job_name=called, cpus_per_task=cpus)
            submitted = self._executor.map_array(CellTask(), cells, [log_of(cell, self._out) for cell in cells])
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            why = str(error).strip().splitlines() or [type(error).__name__]
            raise RunFailed(f"The jobs could not be submitted: {why[-1]}.") from None
        for cell, job in zip(cells, submitted, strict=True):
            self._cells[name_of(cell, self._out)], self._jobs[name_of(cell, self._out)] = cell, job.job_id
            self._states[job.job_id] = "PENDING"

    def running(self) -> dict[str, str]:
        """What was submitted and has not ended."""
        waits = {name: self._states.get(self._jobs[name], "RUNNING") in _QUEUED for name in self._cells}
        return {cell.run_dir.as_posix(): "queued" if waits[name] else "running" for name, cell in self._cells.items()}

    def ended(self, seconds: float) -> list[tuple[Cell, str]]:
        """Jobs that have left the queue, seen twice: a shared disk may show their files a little later."""
        time.sleep(seconds)
        if time.monotonic() - self._asked < POLL_SECONDS:
            return []
        if not self._ask():
            self._warn("squeue", "squeue does not answer; it is asked again, and the jobs go on meanwhile.")
            return []
        over = []
        for name, cell in list(self._cells.items()):
            if self._jobs[name] in self._states:
                self._missing.pop(name, None)
                continue
            self._missing[name] = self._missing.get(name, 0) + 1
            reason = self._reason(cell)
            if reason is not None or self._missing[name] > 1:
                del self._cells[name], self._jobs[name], self._missing[name]
                gone = _GONE.format(log=log_of(cell, self._out), folder=self._folder)
                over.append((cell, gone if reason is None else reason))
        return over

    def stop(self) -> str:
        """Jobs go on without the sweep."""
        if not self._cells:
            return ""
        jobs = " ".join(sorted({self._jobs[name].split("_")[0] for name in self._cells}))
        return f"{len(self._cells)} jobs go on; the same command finds them again, `scancel {jobs}` ends them."

    def _ask(self) -> bool:
        """Learn the states of all our jobs; False when the queue did not answer."""
        self._asked = time.monotonic()
        command = ["squeue", "--noheader", "--array", "--format=%i|%T|%r|%j", f"--user={os.getuid()}"]
        try:
            answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
        except (OSError, subprocess.SubprocessError):
            return False
        self._states, self._called = {}, {}
        for job, state, reason, called in (line.split("|", 3) for line in answer.splitlines() if line.count("|") > 2):
            if state not in _OVER:
                self._states[job], self._called[job] = state, called
            if state == "PENDING" and reason in _HOPELESS and job in self._jobs.values():
                self._warn(reason, f"job {job} waits because of {reason}, and waiting will not help; see its settings.")
        return True

    def _warn(self, about: str, text: str) -> None:
        """Say it once."""
        if about not in self._warned:
            self._warned.add(about)
            self._reporter.warn(text)

    def _find(self) -> None:
        """Ask, and learn the numbers of jobs whose sweep was killed while it submitted them."""
        if not self._ask():
            raise RunFailed("squeue does not answer, and jobs of an earlier start may be queued; try again later.")
        numbers = {f"{called}/{job.partition('_')[2] or 0}": job for job, called in self._called.items()}
        self._jobs.update({name: numbers[job] for name, job in self._jobs.items() if job in numbers})

    def _hand_over(self, cell: Cell, job: str) -> None:
        """Give a queued job what it reads when it starts, if its sweep was killed before it had done so."""
        from submitit.core.utils import JobPaths
        from submitit.helpers import DelayedSubmission

        paths = JobPaths(self._folder, job)
        if not paths.submitted_pickle.exists():
            task, half = DelayedSubmission(CellTask(), cell, log_of(cell, self._out)), self._folder / f".{job}.tmp"
            task.set_timeout(self._executor.parameters["time"], REQUEUES)
            task.dump(half)
            paths.move_temporary_file(half, "submitted_pickle")

    def _reason(self, cell: Cell) -> str | None:
        """What a job that is over left: "" when its run is complete, the reason of a failure, None when neither."""
        if (cell.run_dir / "manifest.json").exists():
            return ""
        outcome = outcome_of(log_of(cell, self._out))
        return str(read_json(outcome, dict[str, str]).get("reason", "")) if outcome.exists() else None


class CellTask:
    """What runs on the cluster's node."""

    def __call__(self, cell: Cell, log: Path) -> None:
        """Do a cell, and write down why it failed. At a signal to stop, keep a checkpoint and be queued again."""
        out_of_time: list[int] = []
        queue_again = signal.getsignal(signal.SIGUSR2)  # submitit's, which asks for this job to be queued again

        def at_limit(number: int, frame: Any) -> None:
            out_of_time.append(number)
            signal.raise_signal(signal.SIGTERM)

        def leave(number: int, frame: Any) -> None:
            raise KeyboardInterrupt

        signal.signal(signal.SIGTERM, leave)
        signal.signal(signal.SIGUSR2, at_limit)
        try:
            reason = work(cell, log)
        except KeyboardInterrupt:
            if out_of_time and callable(queue_again):
                queue_again(signal.SIGUSR2, None)
            os._exit(143)  # cancelled, or pre-empted by SLURM, which queues it again by itself: there is no result
        if reason:
            atomic_write(outcome_of(log), to_json({"reason": reason}))

    def checkpoint(self, cell: Cell, log: Path) -> Any:
        """What to run when the job is queued again: the same, since a run continues by itself."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(CellTask(), cell, log)


def outcome_of(log: Path) -> Path:
    """The file in which a job that failed says why."""
    return log.with_suffix(".json")
