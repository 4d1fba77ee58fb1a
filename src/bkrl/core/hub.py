"""Transformers models by folder, or by name in the local cache of Hugging Face. Nothing is fetched here."""

import hashlib
from pathlib import Path

from bkrl.core.errors import InputError

_HEAD_BYTES = 1 << 16


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


def content(folder: Path) -> str:
    """sha256 over names, sizes and both ends of every file of a model folder: cheap, and another model gives another
    value.
    """
    digest = hashlib.sha256()
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        size = file.stat().st_size
        digest.update(f"{file.relative_to(folder).as_posix()}\0{size}\0".encode())
        with file.open("rb") as data:
            digest.update(data.read(_HEAD_BYTES))
            if size > 2 * _HEAD_BYTES:
                data.seek(size - _HEAD_BYTES)
                digest.update(data.read(_HEAD_BYTES))
    return digest.hexdigest()
