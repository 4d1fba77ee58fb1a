"""What a process is busy with, said at least every ten seconds to the person who waits.

Code that may take long names its work (`doing`); a stage lets it be said (`spoken`). Work that is over sooner is never
mentioned, and nothing is said where no stage listens.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

INTERVAL = 10.0
"""Seconds of silence after which the innermost work is named."""


class _Work:
    def __init__(self, what: str, total: int, unit: str) -> None:
        self.what, self.total, self.unit, self.done = what, total, unit, 0
        self.began = self.said = time.monotonic()

    def __str__(self) -> str:
        count = f": {self.done:,} of {self.total:,} {self.unit}".rstrip() if self.total else ""
        return f"{self.what}{count}, {time.monotonic() - self.began:,.0f} s"


_works: list[_Work] = []


@contextmanager
def doing(what: str, total: int = 0, unit: str = "") -> Iterator[Callable[[int], None]]:
    """Name the work inside the block; call what is yielded with how much of `total` is done.

    Example:
        >>> with doing("reading prompts", 82_000, "samples") as done:
        ...     done(4_096)
    """
    work = _Work(what, total, unit)

    def done(count: int) -> None:
        work.done = count

    _works.append(work)
    try:
        yield done
    finally:
        _works.remove(work)


@contextmanager
def spoken(say: Callable[[str], None]) -> Iterator[None]:
    """Inside the block, `say` gets a line for work that has gone on for `INTERVAL` seconds, and again after as many."""
    over = threading.Event()

    def listen() -> None:
        while not over.wait(INTERVAL / 10):
            work = next(iter(_works[-1:]), None)
            if work is not None and time.monotonic() - work.said >= INTERVAL:
                work.said = time.monotonic()
                say(str(work))

    thread = threading.Thread(target=listen, name="activity", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
