"""What a run was made from: how an input is recorded, where it is now, and whether it is still the same."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bkrl.core.errors import InputError
from bkrl.core.files import sha256
from bkrl.core.flags import flags_of
from bkrl.runs.folder import locate
from bkrl.runs.samples import samples

if TYPE_CHECKING:
    from bkrl.runs.record import Run


def read_by(config: object) -> dict[str, Path]:
    """What a run of these settings reads: setting, with a number where it names several → run or file.

    Text that names no run (`tiny-t5`) is none.
    """
    found: dict[str, Path] = {}
    for one in flags_of(type(config)):
        value = one.of(config) if one.flag.reads else None
        if isinstance(value, str) and (weights := Path(value.removeprefix("hf:"), "model.safetensors")).is_file():
            value = weights  # a model of transformers
        if isinstance(value, Path) or (isinstance(value, str) and (locate(Path(value)) / "manifest.json").is_file()):
            found[one.name] = Path(value)
        elif isinstance(value, tuple):
            found |= {f"{one.name.rstrip('_')} {number}": path for number, path in enumerate(value, 1)}
    return found


def files_of_envs(*envs: str) -> dict[str, Path]:
    """The files that envs read: those of `@file=PATH`."""
    options = [dict(one.split("=", 1) for one in env.partition("@")[2].split(",") if "=" in one) for env in envs]
    files = dict.fromkeys(named["file"] for named in options if "file" in named)
    return {f"env file {number}".removesuffix(" 1"): Path(file) for number, file in enumerate(files, 1)}


def input_hash(recorded: Mapping[str, Any]) -> str:
    """The hash of an input as it was recorded: of a run's manifest, or of a file."""
    return str(recorded.get("sha256", recorded.get("manifest_sha256")))


def hash_at(path: Path, recorded: Mapping[str, Any]) -> str | None:
    """The hash of what is at a path now, to be compared with `input_hash(recorded)`; None when nothing is there."""
    folder = locate(path) if path.as_posix() in samples() else path
    file = folder if "sha256" in recorded else folder / "manifest.json"
    return sha256(file) if file.is_file() else None


def input_at(run: Run, name: str) -> Path | None:
    """Where an input of a run is now: the place that holds what was recorded, else the first that holds anything.

    It is looked for where it was, where its path leads from each folder above the run (the run was made elsewhere, with
    relative paths), and beside the run and beside its folder (a study was moved as a whole; the runs of a task lie one
    folder deeper than what they read). None: nothing is at any of these.
    """
    recorded = run.config["inputs"][name]
    path = Path(recorded["path"])
    above = run.path.absolute().parents
    beside = (folder / path.name for folder in above[:2])
    places = (path, *(folder / path for folder in above), *beside)
    there = {}
    for place in dict.fromkeys(places):  # an absolute path is the same from every folder
        there[place] = hash_at(place, recorded)
        if there[place] == input_hash(recorded):
            return place
    return next((place for place, found in there.items() if found is not None), None)


def dataset_at(run: Run, named: Path | None = None) -> Path:
    """Where the dataset of a run is: at the place that was named, else where `input_at` finds it.

    Raises:
        InputError: no place was named, and it is at none that is known.
    """
    if named is not None:
        return named
    recorded = run.config["inputs"].get("dataset")
    if recorded is None:
        raise InputError(f"{run.path} does not say which dataset it was made from; name it with --dataset.")
    found = input_at(run, "dataset")
    if found is None:
        raise InputError(
            f"{run.path} was made from {recorded['path']}, which is not there; say where it is with --dataset."
        )
    return found


def check_inputs(run: Run, places: Mapping[str, Path] | None = None) -> list[str]:
    """Sentences about inputs of a complete run that are gone or have changed since; empty when all is well.

    Args:
        run: a complete run.
        places: where inputs are now, by their names; others are looked for as `input_at` does.
    """
    problems = []
    for name, recorded in run.manifest["inputs"].items():
        place = (places or {}).get(name) or input_at(run, name) or Path(recorded["path"])
        here = hash_at(place, recorded)
        if here is None:
            problems.append(f"{run.path}: its {name} {place} is no longer there.")
        elif here != input_hash(recorded):
            problems.append(f"{run.path}: its {name} {place} was made again since.")
    return problems
