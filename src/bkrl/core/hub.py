"""Transformers models by folder, or by name in the local cache of Hugging Face. Nothing is fetched here."""

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from bkrl.core.errors import InputError
from bkrl.core.files import sha256

_HEAD_BYTES = 1 << 16
_NOTES = (".cache", ".git")
"""What `hf download` and git write beside a model, with the time of it: the same model fetched again has others."""


def is_place(spec: str) -> bool:
    """Whether `spec` is a folder or looks like a path; everything else is a name."""
    return Path(spec).is_dir() or spec.startswith((".", "/", "~"))


def model_folder(spec: str) -> Path:
    """The folder of a model on this machine; InputError with the command that fetches it when there is none."""
    if Path(spec).is_dir():
        return Path(spec)
    if is_place(spec):
        raise InputError(f"There is no model folder {spec}.")
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        config = try_to_load_from_cache(spec, "config.json")
    except HFValidationError:  # no name that a model can have
        config = None
    if not isinstance(config, str):
        raise InputError(
            f"There is no model folder {spec} and no model of that name on this machine; fetch it first with "
            f"`hf download {spec}`, or name a folder."
        )
    return Path(config).parent


def reason(error: Exception) -> str:
    """Why a model could not be loaded, on one line."""
    said = str(error).strip()
    return said.splitlines()[0][:200] if said else type(error).__name__


def content(folder: Path, known: str = "") -> str:
    """sha256 over names and contents of the files of a model folder, without notes of what brought them; `known` where
    that is what earlier versions took for it, which read these notes, too, and before that both ends of each file.
    """
    every = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    if known and _of_ends(every) == known:
        return known
    files = {name: file for name, file in every.items() if name.partition("/")[0] not in _NOTES}
    if known and len(files) < len(every) and _of_files(every) == known:
        return known
    return _of_files(files)


def _of_files(files: Mapping[str, Path]) -> str:
    digest = hashlib.sha256()
    for name, file in files.items():
        now = file.stat()
        digest.update(f"{name}\0{_hashed(file, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns)}".encode())
    return digest.hexdigest()


@lru_cache(None)
def _hashed(file: Path, *state: int) -> str:
    """The file's SHA-256, read once as long as its state stays."""
    return sha256(file)


def _of_ends(files: Mapping[str, Path]) -> str:
    digest = hashlib.sha256()
    for name, file in files.items():
        size = file.stat().st_size
        digest.update(f"{name}\0{size}\0".encode())
        with file.open("rb") as data:
            digest.update(data.read(_HEAD_BYTES))
            if size > 2 * _HEAD_BYTES:
                data.seek(size - _HEAD_BYTES)
                digest.update(data.read(_HEAD_BYTES))
    return digest.hexdigest()
