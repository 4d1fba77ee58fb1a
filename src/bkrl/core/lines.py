"""Append-only files of JSON objects, one a line: how a line is added, and what a crash may leave at the end.

A crash can tear the line that is being written. The torn line is the last one, lacks its line feed and is no JSON
object. Readers leave it out; the next writer removes it. A last line that only lacks its line feed is whole.
"""

import errno
import hashlib
import os
from pathlib import Path
from typing import Any

from bkrl.core.documents import Mismatch, parse_json, typed
from bkrl.core.errors import InputError
from bkrl.core.files import unshare


class LineFile:
    """A file of lines, open for adding some, made if it is missing. Every method may raise OSError; callers say what
    was lost. Hard links to it are broken before it is written (`unshare`, which may raise RunFailed), those of a copy
    that is made meanwhile, too.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = self._open()
        raw = path.read_bytes()
        self._size = _whole(raw)
        self._hash = hashlib.sha256(raw[: self._size])
        if self._size < len(raw):
            os.ftruncate(self._file, self._size)
        elif raw and not raw.endswith(b"\n"):
            self._write(b"\n")

    def append(self, text: str) -> None:
        """Add one line, or nothing where the disk is full. `sync` makes sure that it is on the disk."""
        self._write(text.encode() + b"\n")

    @property
    def content(self) -> tuple[int, str]:
        """The number of bytes in the file and their SHA-256, as they were written: a later change is not in it."""
        return self._size, self._hash.hexdigest()

    @property
    def removed(self) -> bool:
        """Whether the file was deleted since it was opened."""
        return os.fstat(self._file).st_nlink == 0

    def sync(self) -> None:
        """Wait until everything is on the disk."""
        os.fsync(self._file)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _open(self) -> int:
        unshare(self._path)
        return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)

    def _write(self, data: bytes) -> None:
        if os.fstat(self._file).st_nlink > 1:
            shared, self._file = self._file, self._open()
            os.close(shared)
        written = os.write(self._file, data)
        if written != len(data):  # the last bytes of a full disk: half a line is taken back
            os.ftruncate(self._file, os.fstat(self._file).st_size - written)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._size += len(data)
        self._hash.update(data)


def read_lines(path: Path) -> tuple[list[bytes], bool]:
    """The lines of a file without their line feeds, and whether a torn last line was left out. OSError as `open`."""
    raw = path.read_bytes()
    whole = _whole(raw)
    return raw[:whole].removesuffix(b"\n").split(b"\n") if whole else [], whole < len(raw)


def read_rows(path: Path, kind: Any = dict[str, Any], *, mend: str) -> list[Any]:
    """The JSON objects of a file, each as the type that is needed (see `typed`); none where there is no file.

    Raises:
        InputError: a line is damaged, and it is not a torn last one; `mend` says what to do about that.
    """
    if not path.exists():
        return []
    rows = []
    for number, line in enumerate(read_lines(path)[0], 1):
        try:
            rows += [typed(kind, parse_json(line))] if line else []
        except Mismatch:
            raise InputError(f"{path} is damaged at line {number}; {mend}.") from None
    return rows


def newest_row(path: Path, size: int = 4096) -> dict[str, Any]:
    """The last object within the last `size` bytes of a file that may be written just now; {} where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(path.stat().st_size - size, 0))
            lines = file.read().split(b"\n")[:-1]
    except OSError:
        return {}
    for line in reversed(lines):
        try:
            row: dict[str, Any] = typed(dict[str, Any], parse_json(line))
        except Mismatch:
            continue
        return row
    return {}


def _whole(raw: bytes) -> int:
    """How many bytes are left without the torn last line."""
    end = raw.rfind(b"\n") + 1
    try:
        typed(dict[str, Any], parse_json(raw[end:]))
    except Mismatch:
        return end
    return len(raw)
