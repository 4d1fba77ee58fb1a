"""Files as bkrl writes them: whole or not at all (temporary file, fsync, rename), JSON and Parquet, with hashes."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import math
import os
import shutil
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

from bkrl.core.documents import Mismatch, parse_json, typed
from bkrl.core.errors import InputError, RunFailed, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

CONTINUE = "everything written so far is intact: free some space and run the same command again."


def disk_is_full(error: BaseException) -> bool:
    """Whether an error says that nothing more can be written."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def sha256(path: Path) -> str:
    """The file's SHA-256 in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_files(folder: Path, digests: Mapping[str, str], again: str = "train the policy again") -> None:
    """InputError where a file is missing, or is not what its SHA-256 was taken of; `again`: what mends that."""
    for name, digest in digests.items():
        if not (folder / name).is_file():
            raise InputError(f"{folder / name} is missing; {again}.")
        if sha256(folder / name) != digest:
            raise InputError(f"{folder / name} was changed after it was written; {again}.")


def lock(file: IO[bytes], shared: bool = False) -> bool:
    """Lock an open file until it is closed or its process ends; False: another process has locked it.

    Without locks in the system or the file system it is always True.
    """
    if fcntl is not None:
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            pass
    return True


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Inside the `with` block, no other process is inside one of the same file; waits for its turn.

    Without locks in the system or the file system, or where the file cannot be written, it does not wait.
    """
    with ExitStack() as stack:
        if fcntl is not None:
            with suppress(OSError):
                fcntl.flock(stack.enter_context(path.open("ab")), fcntl.LOCK_EX)
        yield


def locked(path: Path) -> bool:
    """Whether a process has locked a file that this one may read. False where there is no file."""
    try:
        with path.open("rb") as file:
            return not lock(file, shared=True)
    except OSError:
        return False


def atomic_write(path: Path, data: bytes | str) -> None:
    """Write a whole file or nothing: a reader sees the old bytes or the new ones, also after a crash.

    Raises:
        RunFailed: the disk is full or the folder cannot be written; what was there stays.
    """
    raw = data.encode() if isinstance(data, str) else data
    _atomically(path, lambda temporary: temporary.write_bytes(raw))


def unshare(path: Path) -> None:
    """Give a file that has other names, too (`ln`, `cp -al`), bytes of its own under this one: what is written here
    must not change a copy elsewhere. RunFailed where there is no room for them.
    """
    if path.exists() and path.stat().st_nlink > 1:
        _atomically(path, lambda temporary: shutil.copy2(path, temporary))


def make_folder(path: Path) -> None:
    """Make a folder and those above it, as far as they are missing.

    Raises:
        UsageError: it cannot be made there.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        file = next((place for place in (path, *path.parents) if place.is_file()), None)
        why = f" ({error.strerror})" if file is None else f": {file} is a file"
        raise UsageError(f"{path} cannot be made{why}; choose another --out.") from None


def write_table(path: Path, table: pa.Table) -> None:
    """Write one Parquet file atomically, zstd-compressed, with page checksums."""
    import pyarrow.parquet as pq

    # Level 9 writes a quarter less than level 1. A relative path with a colon would be read as an address.
    options = {"compression": "zstd", "compression_level": 9, "write_page_checksum": True}
    _atomically(path, lambda temporary: pq.write_table(table, temporary.absolute(), **options))


def read_table(path: Path, schema: pa.Schema | None = None) -> pa.Table:
    """Read one Parquet file, verifying page checksums and, if given, that the columns are named as those of `schema`.

    Raises:
        InputError: the file is missing, damaged, or of another schema or a newer version.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path.absolute(), page_checksum_verification=True) as file:
            # Batch by batch: a list of numbers takes eight times its size while it is unpacked.
            table = pa.Table.from_batches(file.iter_batches(2**14), schema=file.schema_arrow)
    except FileNotFoundError:
        raise InputError(f"{path} is missing; make it again with the command in its folder's config.json.") from None
    except (pa.ArrowInvalid, OSError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{path} is damaged ({reason}); restore it or make it again.") from None
    if schema is not None:
        wanted, found = _version(schema), _version(table.schema)
        if not min(wanted, 1) <= found <= wanted:
            raise InputError(f"{path} has schema version {found}, this bkrl reads 1 to {wanted}; make it again.")
        if table.schema.names != schema.names:
            raise InputError(f"{path} has other columns than this bkrl writes; make it again.")
    return table


def _version(schema: pa.Schema) -> int:
    """The version a table's schema names; 0: none, -1: nonsense."""
    said = (schema.metadata or {}).get(b"bkrl.schema_version", b"0")
    return int(said) if said.isdigit() else -1


def read_json(path: Path, kind: Any = dict[str, Any]) -> Any:
    """A JSON document from a file, as the type that is needed (see `typed`).

    Raises:
        InputError: the file is missing, is not JSON, or is of another type.
    """
    try:
        value = parse_json(path.read_bytes())
    except FileNotFoundError:
        raise InputError(f"{path} is missing; restore it or make its run again.") from None
    except (Mismatch, OSError) as error:
        raise InputError(f"{path} cannot be read as JSON ({error}); restore it or make its run again.") from None
    try:
        return typed(kind, value)
    except Mismatch as problem:
        raise InputError(f"{path} is damaged: {problem}; restore it or make its run again.") from None


def read_text(path: Path, what: str, remedy: str) -> str:
    """A file of UTF-8 text, without its byte order mark. InputError "WHAT cannot be read (why); REMEDY." for others."""
    try:
        return path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else error.strerror
        raise InputError(f"{what} cannot be read ({reason}); {remedy}.") from None


def to_json(value: object) -> str:
    """JSON as bkrl writes it: indented, stable, strict (no NaN), paths and dataclasses understood."""
    return json.dumps(plain(value), indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def with_checksum(document: Mapping[str, Any]) -> dict[str, Any]:
    """A document with its own checksum, which `check_checksum` compares."""
    return {**document, "crc": zlib.crc32(to_json(document).encode())}


def check_checksum(document: Mapping[str, Any]) -> None:
    """Mismatch when a document with a checksum was changed; those of earlier versions have none."""
    content = {key: value for key, value in document.items() if key != "crc"}
    if "crc" in document and document != with_checksum(content):
        raise Mismatch("its checksum is of other values")


def plain(value: Any) -> Any:
    """A value as JSON knows it: dataclasses and mappings as dicts, paths as text, NaN and infinities as None.

    Fields of a dataclass whose metadata says `{"kept": False}` are left out.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(vars(value)[f.name]) for f in dataclasses.fields(value) if f.metadata.get("kept", True)}
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, Path):
        return value.as_posix()
    if hasattr(value, "tolist"):  # NumPy scalars and arrays
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _atomically(path: Path, write: Any) -> None:
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}.tmp")
    try:
        temporary.touch(exist_ok=False)
    except OSError as error:
        raise RunFailed(
            f"{path} cannot be written ({error.strerror}); make its folder writable, or choose another."
        ) from None
    try:
        write(temporary)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        free = shutil.disk_usage(path.parent).free if path.parent.exists() else 0
        raise RunFailed(f"{path} cannot be written ({error.strerror}; {free // 2**20} MiB free); {CONTINUE}") from None
    finally:
        temporary.unlink(missing_ok=True)
    with suppress(OSError):  # some file systems cannot sync a folder
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
