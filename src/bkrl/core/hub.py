"""Transformers models by folder, or by name in the local cache of Hugging Face. Nothing is fetched here."""

import hashlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from bkrl.core.errors import InputError
from bkrl.core.files import sha256

_NOTES = (".cache", ".git")
"""What `hf download` and git write beside a model, with the time of it: the same model fetched again has others."""

HERE: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
"""How transformers is to open what lies on this machine."""


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


@contextmanager
def quiet(kind: type[Warning] = FutureWarning) -> Iterator[None]:
    """Without the bars and advice of transformers, and without warnings of this kind."""
    from transformers.utils import logging

    bars, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", kind)  # of the future where peft calls transformers
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def read_tokenizer(where: str, folder: Path, **how: Any) -> Any:
    """The tokenizer of a folder; InputError where it holds none: transformers makes an empty one up."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, **HERE, **how)
    if len(set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens)) < 2:
        raise InputError(f"{where} holds no tokenizer; put the model's tokenizer.json beside its weights.")
    return tokenizer


def read_model(auto: Any, folder: Path, **how: Any) -> Any:
    """A model, of a class of transformers; ValueError where weights are missing, which would be drawn at random."""
    model, said = auto.from_pretrained(folder, output_loading_info=True, **HERE, **how)
    if missing := sorted(name for name in said["missing_keys"] if not name.startswith("pooler.")):
        raise ValueError(f"its weights have no {missing[0]}")
    return model


def reason(error: Exception) -> str:
    """Why a model could not be loaded, on one line."""
    said = str(error).strip()
    return said.splitlines()[0][:200] if said else type(error).__name__


def content(folder: Path) -> str:
    """sha256 over names and contents of the files of a model folder, without notes of what brought them."""
    digest = hashlib.sha256()
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        name, now = file.relative_to(folder), file.stat()
        if name.parts[0] not in _NOTES:
            state = now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns
            digest.update(f"{name.as_posix()}\0{_hashed(file, *state)}".encode())
    return digest.hexdigest()


@lru_cache(None)
def _hashed(file: Path, *state: int) -> str:
    """The file's SHA-256, read once as long as its state stays."""
    return sha256(file)
