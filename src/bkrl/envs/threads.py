"""Envs divided among threads: kernels run without the GIL, and no result depends on how many threads there are."""

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bkrl.core.errors import UsageError


class Shares:
    """The shares of N envs, one for each thread; the calling thread takes the first.

    Args:
        num_envs: N.
        threads: threads to use.
        least: envs below which a thread costs more than it saves.
    """

    def __init__(self, num_envs: int, threads: int, least: int = 1) -> None:
        if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
            raise UsageError(f"The number of threads must be a whole number of at least 1, not {threads!r}.")
        count = max(1, min(threads, num_envs // least))
        edges = [num_envs * i // count for i in range(count + 1)]
        self._first, *self._others = itertools.pairwise(edges)
        self._pool: ThreadPoolExecutor | None = None

    def run(self, work: Callable[..., Any], *args: Any) -> None:
        """Call `work(*args, start, stop)` for each share."""
        if not self._others:
            work(*args, *self._first)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(len(self._others), thread_name_prefix="bkrl-envs")
        running = [self._pool.submit(work, *args, *share) for share in self._others]
        work(*args, *self._first)
        for one in running:
            one.result()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
