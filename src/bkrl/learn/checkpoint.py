"""Checkpoints that are whole or not there: tensors as safetensors, the rest as JSON, no pickle, every byte hashed.

A checkpoint is a folder `step-000000123456/` holding `state.safetensors`, `state.json` and, written last,
`manifest.json` with the size and SHA-256 of both. It is written under another name, read back, and renamed into place.
All of them are checked when a run goes on: each damaged one is named, and the newest whole one is used.
"""

import hashlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError
from torch import Tensor

from bkrl.core.errors import BkrlError, InputError, RunFailed
from bkrl.core.files import CONTINUE, atomic_write, read_json, sha256, sync_folder, to_json

_TENSORS, _STATE, _MANIFEST = "state.safetensors", "state.json", "manifest.json"


@dataclass(frozen=True)
class Checkpoint:
    """What was read back.

    Attributes:
        step: env steps taken.
        tensors: arrays by name.
        facts: counters and everything else that is JSON.
        best: the name of the checkpoint of the best evaluation so far, this one included.
        skipped: one sentence for each checkpoint that was damaged.
    """

    step: int
    tensors: dict[str, np.ndarray]
    facts: dict[str, Any]
    best: str | None = None
    skipped: list[str] = field(default_factory=list)


class Checkpoints:
    """The checkpoints of one run: the newest `keep`, and the one of the best evaluation so far."""

    def __init__(self, folder: Path, keep: int = 2) -> None:
        self.folder = folder
        self.keep = keep
        self._best: str | None = None

    def save(
        self, step: int, tensors: Mapping[str, Tensor | np.ndarray], facts: Mapping[str, Any], *, best: bool = False
    ) -> Path:
        """Write a checkpoint, then remove those that are neither new nor best, and those of later steps.

        Raises:
            RunFailed: it could not be written; the older ones are untouched.
        """
        target = self.folder / f"step-{step:012d}"
        temporary = self.folder / f".{target.name}.{os.getpid()}.tmp"
        arrays, text = _as_arrays(tensors)
        self._best = target.name if best else self._best
        try:
            self.folder.mkdir(exist_ok=True)  # not its parents: a run whose folder has vanished must hear of it
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
            files = {
                _TENSORS: safetensors.numpy.save(arrays),
                _STATE: to_json({"step": step, "facts": dict(facts), "text": text, "best": self._best}).encode(),
            }
            for name, raw in files.items():
                atomic_write(temporary / name, raw)
            described = {
                name: {"bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()} for name, raw in files.items()
            }
            atomic_write(temporary / _MANIFEST, to_json({"files": described}))
            _verify(temporary)  # what cannot be read back must not push out what can
            if target.exists():
                shutil.rmtree(target)
            temporary.rename(target)
            sync_folder(self.folder)
        except OSError as error:
            raise RunFailed(f"The checkpoint {target} cannot be written ({error.strerror}); {CONTINUE}") from None
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        self._rotate(target)
        return target

    def newest(self) -> Checkpoint | None:
        """The newest whole checkpoint, or None when there is none; the older ones are checked too."""
        skipped: list[str] = []
        found: Checkpoint | None = None
        for path in reversed(self._all()):
            try:
                if found is None:
                    found = _load(path)
                else:
                    _verify(path)
            except InputError as problem:
                skipped.append(f"{problem} It is left out.")
        if found is None:
            return Checkpoint(0, {}, {}, skipped=skipped) if skipped else None
        self._best = found.best
        return replace(found, skipped=skipped)

    def sweep(self) -> None:
        """Remove what a kill left half-written."""
        if self.folder.is_dir():
            for path in self.folder.glob(".step-*.tmp"):
                shutil.rmtree(path, ignore_errors=True)

    def clear(self) -> None:
        """Remove all of them: the run starts anew, or is complete."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _all(self) -> list[Path]:
        return sorted(self.folder.glob("step-*")) if self.folder.is_dir() else []

    def _rotate(self, newest: Path) -> None:
        # Later ones are damaged or of lost training.
        earlier = [path for path in self._all() if path.name <= newest.name]
        kept = earlier[-self.keep :] + [path for path in earlier if path.name == self._best]
        for path in self._all():
            if path not in kept:
                shutil.rmtree(path, ignore_errors=True)


def _load(path: Path) -> Checkpoint:
    _verify(path)
    state = read_json(path / _STATE)
    try:
        arrays = safetensors.numpy.load((path / _TENSORS).read_bytes())
    except (SafetensorError, ValueError) as error:
        raise InputError(f"The checkpoint {path} is damaged ({error}).") from None
    for name, dtype in state["text"].items():
        array = arrays[name]
        arrays[name] = array.reshape(-1).view(np.dtype(dtype)).reshape(array.shape[:-1])
    return Checkpoint(int(state["step"]), arrays, state["facts"], state["best"])


def _verify(path: Path) -> None:
    try:
        recorded = read_json(path / _MANIFEST)["files"]
        for name in (_TENSORS, _STATE):
            known = recorded[name]
            if (path / name).stat().st_size != known["bytes"] or sha256(path / name) != known["sha256"]:
                raise InputError(f"The checkpoint {path} is damaged: {name} is not what was written.")
    except (OSError, KeyError, TypeError) as error:
        raise InputError(f"The checkpoint {path} is damaged ({error}).") from None
    except BkrlError as problem:
        text = str(problem)
        raise InputError(text if "checkpoint" in text else f"The checkpoint {path} is damaged: {text}") from None


def _as_arrays(tensors: Mapping[str, Tensor | np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Contiguous arrays; text arrays, which safetensors does not know, as bytes with their dtype beside them."""
    arrays: dict[str, np.ndarray] = {}
    text: dict[str, str] = {}
    for name, tensor in tensors.items():
        array = tensor.detach().cpu().numpy() if isinstance(tensor, Tensor) else np.asarray(tensor)
        array = np.ascontiguousarray(array).reshape(array.shape)
        if array.dtype.kind in "US":
            text[name] = array.dtype.str
            array = array.reshape(-1).view(np.uint8).reshape(*array.shape, array.dtype.itemsize)
        arrays[name] = array
    return arrays, text
