"""Which processes are alive, by locks on files: the system lets go of a lock however its process ends."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import IO

from bkrl.core.files import lock, locked

_STALE_SECONDS = 3600.0


class SignsOfLife:
    """A folder with a locked file for each living process. Where files cannot be locked nobody is said to be alive."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._own: IO[bytes] | None = None

    def show(self, name: str) -> None:
        """Be alive under this name until `close`, or the end of the process."""
        if self._own is not None:
            return
        with contextlib.suppress(OSError):
            self._folder.mkdir(exist_ok=True)
            self._sweep()
            self._own = (self._folder / name).open("wb")
            lock(self._own)

    def alive(self, name: str) -> bool:
        """Whether a process shows itself under this name."""
        return locked(self._folder / name)

    def close(self) -> None:
        if self._own is not None:
            self._own.close()
            Path(self._own.name).unlink(missing_ok=True)
            self._own = None

    def _sweep(self) -> None:
        """Remove what killed processes have left; young files may be about to be locked."""
        for file in self._folder.iterdir():
            with contextlib.suppress(FileNotFoundError):  # another process sweeps, too
                if time.time() - file.stat().st_mtime > _STALE_SECONDS and not self.alive(file.name):
                    file.unlink()
