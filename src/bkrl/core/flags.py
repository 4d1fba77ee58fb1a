"""What a setting says of itself, and how the settings of a frozen dataclass are called on the command line."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from dataclasses import dataclass
from typing import Any

LENIENT = "--lenient"
"""The switch that leaves alone what has no effect beside the other flags."""


@dataclass(frozen=True)
class Flag:
    """Help of one setting, its least and greatest value, and whether it is given by position."""

    help: str
    least: float | None = None
    most: float | None = None
    positional: bool = False


def flags_of(config: type) -> list[tuple[tuple[str, ...], Any, Flag, Any]]:
    """Every setting of a config class as (path of field names, type, Flag, default), nested ones after plain ones."""
    plain, nested = [], []
    hints = typing.get_type_hints(config, include_extras=True)
    for f in dataclasses.fields(config):
        hint = hints[f.name]
        if dataclasses.is_dataclass(hint):
            nested += [((f.name, *path), kind, flag, default) for path, kind, flag, default in flags_of(hint)]  # type: ignore[arg-type]
            continue
        kind, flag = typing.get_args(hint)[:2]
        default = inspect.Parameter.empty if f.default is dataclasses.MISSING else f.default
        plain.append(((f.name,), kind, flag, default))
    return plain + nested


def option_name(path: tuple[str, ...]) -> str:
    """`--learning-rate` for ("ppo", "learning_rate")."""
    return "--" + path[-1].replace("_", "-")
