"""Whether work fits into bounds of memory and time: tried in a copy of this process, which ends with it."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

MEMORY = 256 * 2**20
"""Bytes beyond those of this process."""
SECONDS = 10.0


def fits(work: Callable[[], object]) -> bool:
    """Whether `work` ends in time and within memory; errors of its own are for whoever does it next. True where a
    process cannot be copied or bounded (Windows).
    """
    if not hasattr(os, "fork"):
        return True
    child = os.fork()
    if child == 0:
        status = 1
        try:
            _bound()
            work()
            status = 0
        except MemoryError:
            pass
        except BaseException:  # noqa: BLE001 - it will be raised again where it can be explained
            status = 0
        finally:
            os._exit(status)
    deadline, pause = time.monotonic() + SECONDS, 0.0002
    try:
        while time.monotonic() < deadline:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                child = 0
                return status == 0
            time.sleep(pause)
            pause = min(0.05, 2 * pause)
        return False
    finally:
        if child:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _bound() -> None:
    """Limit the memory of this process."""
    import resource

    with suppress(OSError, ValueError):
        used = int(Path("/proc/self/statm").read_text("ascii").split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
