"""Which settings and inputs make a run what it is: a command that differs in none of them continues it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from bkrl.core.errors import UsageError
from bkrl.core.files import plain, read_json
from bkrl.core.flags import flags_of
from bkrl.runs.inputs import hash_at, input_hash
from bkrl.runs.lock import LOCK

_HALF_CONFIG = re.compile(r"\.config\.json\..*\.tmp")


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


def differences(found: Mapping[str, Any], wanted: Mapping[str, Any], config: object) -> list[str]:
    """What sets a recorded run apart from a wanted one, leaving out what changes no result.

    Args:
        found: config.json of the recorded run.
        wanted: stage and inputs, as in config.json.
        config: the settings that are wanted, a dataclass; tests give a dict.

    Returns:
        Names of settings, and `input 'NAME'`.
    """
    if found["stage"] != wanted["stage"]:
        return ["stage"]
    inputs_old = {name: input_hash(one) for name, one in found["inputs"].items()}
    inputs_new = {name: input_hash(one) for name, one in wanted["inputs"].items()}
    same = {name for name, known in inputs_old.items() if known == inputs_new.get(name)}  # wherever they lie
    names = [name for name in _differing(found["config"], config) if name not in same]
    return names + [f"input '{k}'" for k in {**inputs_old, **inputs_new} if inputs_old.get(k) != inputs_new.get(k)]


def changed(path: Path, stage: str, config: object) -> list[str]:
    """The settings in which the run at a path differs from a config; none for a run that will be replaced.

    An input that is elsewhere by now, or is named by another path, is the same one.
    """
    if only_config(path):
        return []
    found, wanted = read_json(path / "config.json", Config), _values(config)
    same = {
        name: recorded
        for name, recorded in found["inputs"].items()
        if isinstance(wanted.get(name), str) and hash_at(Path(wanted[name]), recorded) == input_hash(recorded)
    }
    return differences({**found, "inputs": same}, {"stage": stage, "inputs": same}, config)


def only_config(path: Path) -> bool:
    """Whether a run has written nothing but its config: its command was refused, or killed at the very beginning."""
    return all(file.name in ("config.json", LOCK) or _HALF_CONFIG.fullmatch(file.name) for file in path.iterdir())


def refuse_if_different(path: Path, different: Sequence[str], most: int = 3) -> None:
    """UsageError when the run at a path differs from the wanted one; at most so many differences are named."""
    if different:
        more = f" and {len(different) - most} more" if len(different) > most else ""
        raise UsageError(
            f"{path} holds a run that differs in {', '.join(different[:most])}{more}; choose another --out, or pass "
            "--fresh to remove it first."
        )


def _values(config: object) -> dict[str, Any]:
    """Settings by their own names, those in groups too."""
    return (
        plain(config) if isinstance(config, Mapping) else {o.name: plain(o.of(config)) for o in flags_of(type(config))}
    )


def _differing(old: Mapping[str, Any], config: object) -> list[str]:
    """Names of the settings whose recorded value is another one.

    A setting that was not recorded, because it is newer than the run, had its default. One that was recorded and that
    the class lacks (earlier versions recorded those of all methods) had no effect.
    """
    if isinstance(config, Mapping):
        return [key for key in {**old, **config} if old.get(key) != plain(config.get(key))]
    settings = [one for one in flags_of(type(config)) if one.flag.identity]
    return [one.name for one in settings if plain(one.of(old)) != plain(one.of(config))]
