"""Which settings and inputs make a run what it is: a command that differs in none of them continues it."""

from collections.abc import Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from bkrl.core.files import plain, read_json
from bkrl.core.flags import flags_of
from bkrl.runs.folder import CONFIG, only_config
from bkrl.runs.inputs import hash_at, input_hash, read_by


class Input(TypedDict):
    """What a run records of an input: a run with its manifest's hash, or a file with its own."""

    path: str
    stage: NotRequired[str]
    sha256: NotRequired[str]
    manifest_sha256: NotRequired[str]


class Config(TypedDict):
    """config.json."""

    format: int
    stage: str
    argv: list[str]
    config: dict[str, Any]
    inputs: dict[str, Input]


def differences(found: Mapping[str, Any], wanted: Mapping[str, Any], settings: type) -> list[str]:
    """What sets a recorded run apart from a wanted one, leaving out what changes no result.

    Args:
        found: config.json of the recorded run.
        wanted: stage, config and inputs of the other, as in config.json.
        settings: the class of the config that is wanted.

    Returns:
        Names of settings, and `input 'NAME'`.
    """
    if found["stage"] != wanted["stage"]:
        return ["stage"]
    inputs_old = {name: input_hash(one) for name, one in found["inputs"].items()}
    inputs_new = {name: input_hash(one) for name, one in wanted["inputs"].items()}
    same = {name for name, known in inputs_old.items() if known == inputs_new.get(name)}  # wherever they lie
    names = [name for name in _differing(found["config"], wanted["config"], settings) if name not in same]
    return names + [f"input '{k}'" for k in {**inputs_old, **inputs_new} if inputs_old.get(k) != inputs_new.get(k)]


def changed(path: Path, stage: str, config: object) -> list[str]:
    """The settings in which the run at a path differs from a config; none for a run that will be replaced.

    An input that is elsewhere by now, or is named by another path, is the same one.
    """
    if only_config(path):
        return []
    found = read_json(path / CONFIG, Config)
    wanted = {one.name: plain(one.of(config)) for one in flags_of(type(config))}  # those in groups too
    same = {
        name: recorded
        for name, recorded in found["inputs"].items()
        if isinstance(wanted.get(name), str) and hash_at(Path(wanted[name]), recorded) == input_hash(recorded)
    }
    asked = {"stage": stage, "config": plain(config), "inputs": same}
    read, reads = ({one for one in names if one.startswith("from ")} for names in (found["inputs"], read_by(config)))
    others = [f"input '{name}'" for name in sorted(read ^ reads)]  # what `lm make` reads is known by its hashes alone
    return differences({**found, "inputs": same}, asked, type(config)) + others


def _differing(old: Mapping[str, Any], new: Mapping[str, Any], settings: type) -> list[str]:
    """Names of the settings whose recorded value is another one.

    A setting that was not recorded, because it is newer than the run, had its default. One that was recorded and that
    the class lacks (earlier versions recorded those of all methods) had no effect.
    """
    if not is_dataclass(settings):  # datasets that are made of others have a dict
        return [key for key in {**old, **new} if old.get(key) != new.get(key)]
    return [one.name for one in flags_of(settings) if one.flag.identity and plain(one.of(old)) != one.of(new)]
