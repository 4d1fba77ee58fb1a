"""Cells as tasks of a Ray cluster: one that is there, by its address, or one of this machine that ends with the sweep.

Every node has bkrl and sees the study's folder under the same path. Ray does a cell again whose worker or node is lost;
the run goes on at its newest checkpoint. What is finished is on the disk, and needs no cluster.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bkrl.core.errors import RunFailed, UsageError
from bkrl.core.reporter import Reporter
from bkrl.studies.executors import cores, log_of
from bkrl.studies.executors.work import work
from bkrl.studies.section import Cell

RETRIES = 5
"""How often a cell is done again whose worker or node was lost."""
_ANSWERS = 10.0
"""Seconds in which a cluster must take a connection."""
_PATIENCE = 60.0
"""Seconds that a cell has to keep what it has, when the sweep is stopped."""


class Ray:
    """Gives cells to Ray as its processors become free.

    Args:
        out: the study's folder.
        address: of a cluster, "auto" for the one that this machine belongs to; "" starts one here.
        jobs: cells at the same time; 0: as many as the cluster has processors for.
        gpus: of each cell; a share of one, such as 0.25, lets cells share it.
    """

    def __init__(self, out: Path, address: str, jobs: int, gpus: float) -> None:
        try:
            import ray
        except ImportError:
            raise UsageError("--executor ray needs Ray: pip install 'bkrl[ray]'.") from None
        self._ray, self._out, self._address, self._jobs, self._gpus = ray, out, address, jobs, gpus
        self._tasks: dict[Any, Cell] = {}

    def prepare(self, cells: Sequence[Cell], reporter: Reporter) -> None:
        """Join the cluster, or start one with as many processors as `jobs` cells need.

        Raises:
            RunFailed: no cluster answers there, or this machine has fewer GPUs than a cell asks for.
        """
        threads = max(map(_threads, cells), default=1)
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        quiet = {"log_to_driver": False, "logging_level": "ERROR"}
        try:
            if self._address:
                at = urlsplit(self._address if "//" in self._address else f"//{self._address}")
                if at.hostname and at.port:  # Ray itself tries for minutes
                    socket.create_connection((at.hostname, at.port), _ANSWERS).close()
                self._ray.init(address=self._address, **quiet)
            else:
                room = self._jobs * threads or max(cores(), threads)
                self._ray.init(address="local", num_cpus=room, include_dashboard=False, **quiet)
        except (ConnectionError, ValueError, RuntimeError, OSError) as problem:
            where = self._address or "this machine"
            raise RunFailed(f"No Ray cluster is at {where} ({type(problem).__name__}); see `ray status`.") from None
        self._task = self._ray.remote(num_gpus=self._gpus, max_retries=RETRIES)(_do)
        alive = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        reporter.say(f"Ray: {len(alive)} nodes with {self._processors()} processors")
        if not any(self._gpus <= one.get("GPU", 0) and threads <= one.get("CPU", 0) for one in alive):
            lacks = f"No node has {threads} processors and {self._gpus:g} GPUs, as much as a cell may ask for"
            if not self._address:
                raise RunFailed(f"{lacks}; give fewer --gpus.")
            reporter.warn(f"{lacks}: it waits until there is one.")

    def free(self) -> int:
        """As many as there are processors that no cell of ours has, and they come and go; one cell waits for any."""
        room = self._processors() - sum(map(_threads, self._tasks.values()))
        return max(0 if self._tasks else 1, min(room, self._jobs - len(self._tasks)) if self._jobs else room)

    def start(self, cells: Sequence[Cell]) -> None:
        """Submit these."""
        for cell in cells:
            task = self._task.options(num_cpus=_threads(cell), name=cell.run_dir.as_posix())
            self._tasks[task.remote(cell, log_of(cell, self._out), Path.cwd())] = cell

    def running(self) -> dict[str, str]:
        """All that were submitted: no more are than there is room for."""
        return {cell.run_dir.as_posix(): "running" for cell in self._tasks.values()}

    def ended(self, seconds: float) -> list[tuple[Cell, str]]:
        """Cells whose task is over."""
        done, _ = self._ray.wait(list(self._tasks), num_returns=1, timeout=seconds)
        return [(self._tasks.pop(task), self._reason(task)) for task in done]

    def stop(self) -> str:
        """Stop what runs, which keeps what it has, and leave the cluster."""
        if self._ray.is_initialized():
            for task in self._tasks:
                self._ray.cancel(task)
            if self._tasks:
                self._ray.wait(list(self._tasks), num_returns=len(self._tasks), timeout=_PATIENCE)
            self._ray.shutdown()
        return ""

    def _reason(self, task: Any) -> str:
        try:
            return str(self._ray.get(task))
        except self._ray.exceptions.RayError as problem:
            lost = str(problem).strip().partition("\n")[0]
            return f"its worker was lost {RETRIES + 1} times ({type(problem).__name__}: {lost})"

    def _processors(self) -> int:
        return int(self._ray.cluster_resources().get("CPU", 0))


def _threads(cell: Cell) -> int:
    return int(vars(cell.config).get("threads", 1))


def _do(cell: Cell, log: Path, folder: Path) -> str:
    """On a node: do a cell, in the folder from which the sweep was started."""
    try:
        os.chdir(folder)
    except OSError:
        return f"{socket.gethostname()} does not see {folder}; show every node the sweep's folder under the same path."
    return work(cell, log)
