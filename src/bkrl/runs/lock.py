"""One process at a time works in a run directory; the lock ends with the process, however that ends."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO

from bkrl.core.errors import InputError, UsageError
from bkrl.core.files import lock, locked

LOCK = ".lock"


def acquire(path: Path) -> IO[bytes]:
    """Lock a folder until the returned file is closed.

    Raises:
        UsageError: another process has locked it.
        InputError: a link in it leads elsewhere, and so would what is written there.
    """
    for folder, folders, files in os.walk(path):
        for entry in (Path(folder, name) for name in (*folders, *files)):
            if entry.is_symlink() and leaves(path, entry):
                raise InputError(f"{entry} is a link that leads out of {path}; put what it leads to in its place.")
    while True:
        file = (path / LOCK).open("ab")
        if not lock(file):
            file.close()
            raise UsageError(f"Another process is at work in {path}; wait for it or stop it.")
        try:
            if os.path.samestat(os.fstat(file.fileno()), (path / LOCK).stat()):
                return file
        except FileNotFoundError:
            pass
        file.close()  # a process that finished removed the file after we opened it; the next one would make another


def busy(path: Path) -> bool:
    """Whether a process works in a run directory; the right to read there is enough to ask."""
    return locked(path / LOCK)


def leaves(folder: Path, path: Path) -> bool:
    """Whether a path below a folder is, links followed, somewhere else."""
    try:
        return not path.resolve().is_relative_to(folder.resolve())
    except (ValueError, RuntimeError, OSError):  # a name that no file can have, a link to itself
        return True
