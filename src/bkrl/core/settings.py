"""Settings from plain values: the one place where they are checked, for the command line, study files and Python."""

import dataclasses
import re
import typing
from collections.abc import Mapping
from typing import Any, cast

from bkrl.core.documents import Mismatch, hints_of, typed
from bkrl.core.errors import UsageError
from bkrl.core.flags import flags_of
from bkrl.core.registry import did_you_mean


def build(kind: type, table: Mapping[str, Any], **fixed: Any) -> Any:
    """A config from plain values, nested tables included.

    Args:
        kind: the class of settings.
        table: the values that were given.
        fixed: values of this program, which are not checked.

    Raises:
        UsageError: a setting is unknown, of the wrong type, out of its limits, or both given and fixed.
    """
    return kind(**values_of(kind, table, fixed), **fixed)


def values_of(kind: type, table: Mapping[str, Any], fixed: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a table, checked; a nested table is laid over the default that its owner gives the group."""
    name, values, hints = _name(kind), {}, hints_of(kind)
    defaults = {f.name: f.default_factory for f in dataclasses.fields(kind) if callable(f.default_factory)}
    for key, value in table.items():
        if key not in hints:
            raise UsageError(f"There is no setting '{key}' in {name}.{did_you_mean(key, hints)}")
        if key in fixed:
            raise UsageError(f"'{key}' of {name} is decided by the study's plan; leave it out.")
        if dataclasses.is_dataclass(hints[key]) and isinstance(value, Mapping):
            group = cast(type, hints[key])
            given = values_of(group, value, {})
            values[key] = dataclasses.replace(defaults[key](), **given) if key in defaults else group(**given)
            continue
        try:
            values[key] = typed(hints[key], value, f"'{key}' in {name}")
        except Mismatch as problem:
            raise UsageError(f"{problem}.") from None
    return values


def nested(kind: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Values by the names of settings as the tables that `build` takes; what the class lacks stays as it is."""
    paths = {one.name: one.path for one in flags_of(kind)}
    table: dict[str, Any] = {}
    for name, value in given.items():
        *groups, last = paths.get(name, (name,))
        place = table
        for group in groups:
            place = place.setdefault(group, {})
        place[last] = value
    return table


def checked(config: Any) -> Any:
    """A config that a program made, with its values looked at as those of a study file are; text becomes a path.

    Raises:
        UsageError: a value is of the wrong type, or out of its limits.
    """
    return build(type(config), _table(config))


def _table(config: Any) -> dict[str, Any]:
    found = {field.name: vars(config)[field.name] for field in dataclasses.fields(config)}
    return {name: _table(value) if dataclasses.is_dataclass(value) else value for name, value in found.items()}


def _name(kind: type) -> str:
    """The verb that a class of settings is of; a method's class goes by the one it extends, `TrainRsConfig`, while
    `AskConfig` is a part of several verbs.
    """
    bases = [one for one in reversed(kind.__mro__) if dataclasses.is_dataclass(one)]
    name = next(one.__name__ for one in bases if one is kind or one.__name__ != "AskConfig")
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name.removesuffix("Config")).lower()


def choices(kind: type, setting: str) -> tuple[str, ...]:
    """The values that a setting of a config may have."""
    return choices_of(typing.get_args(hints_of(kind)[setting])[0])


def choices_of(hint: Any) -> tuple[str, ...]:
    """The values of a `Literal`, also of one that may be None; of any other type none."""
    if typing.get_origin(hint) is typing.Literal:
        return typing.get_args(hint)
    return next((found for found in map(choices_of, typing.get_args(hint)) if found), ())
