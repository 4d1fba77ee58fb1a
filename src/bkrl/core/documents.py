"""JSON and TOML that others may have written or damaged: read as plain values, and checked against a type.

A type says all that a reader needs of a document: a TypedDict, which may have other keys, a dataclass, which may not,
containers and plain values; `Annotated[int, Flag("…", least=1, most=9)]` sets limits.
"""

import dataclasses
import json
import math
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from bkrl.core.flags import Flag
from bkrl.core.registry import did_you_mean

DEEPEST = 100
"""Lists and tables within each other; no file of bkrl's own needs more than ten."""
_TOO_DEEP = f"it is nested more than {DEEPEST} deep"


class Mismatch(ValueError):
    """A document is not of the type that is needed; the text says what is wrong and where."""


def parse_json(raw: str | bytes) -> Any:
    """JSON text as plain values; Mismatch when it is no JSON, is nested too deeply or has text that is not Unicode."""
    return _parse(json.loads, raw)


def parse_toml(raw: str) -> dict[str, Any]:
    """TOML text as plain values; Mismatch when it is no TOML, is nested too deeply or has integers beyond 64 bits."""
    import tomllib  # `bkrl --help` does without

    document: dict[str, Any] = _parse(tomllib.loads, raw)
    for value in _values(document):
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise Mismatch("it holds an integer of more than 64 bits")
    return document


def _parse(parse: Any, raw: str | bytes) -> Any:
    try:
        found = parse(raw)
        for value in _values(found):
            if isinstance(value, str):
                value.encode()  # half a surrogate pair can be read and not be written
    except RecursionError:
        raise Mismatch(_TOO_DEEP) from None
    except Mismatch:
        raise
    except ValueError as error:
        raise Mismatch(str(error)) from None
    return found


def _values(document: Any) -> Iterator[Any]:
    """Everything in a document, keys too; Mismatch below the deepest level."""
    level = [document]
    for _ in range(DEEPEST):
        yield from level
        level = [part for value in level for part in _parts(value)]
        if not level:
            return
    raise Mismatch(_TOO_DEEP)


def _parts(value: Any) -> Sequence[Any]:
    if isinstance(value, dict):
        return [*value, *value.values()]
    return value if isinstance(value, list) else ()


def typed(hint: Any, value: Any, what: str = "") -> Any:
    """A plain value as a type: lists as the tuples, tables as the dataclasses that it names.

    Args:
        hint: the type.
        value: as `parse_json` and `parse_toml` give it.
        what: the value's name in a Mismatch; "" for a whole document.

    Raises:
        Mismatch: it is of another type, out of its limits or not finite, or a key is missing or unknown.
    """
    kind, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if kind is typing.Annotated:
        return _limited(typed(inner[0], value, what), inner[1:], what)
    if kind is typing.NotRequired:
        return typed(inner[0], value, what)
    if kind in (typing.Union, types.UnionType):
        if value is None and types.NoneType in inner:
            return None
        return _either([one for one in inner if one is not types.NoneType], value, what)
    if kind is typing.Literal:
        if not isinstance(value, str) or value not in inner:
            near = did_you_mean(str(value), inner)
            raise Mismatch(f"{what} is {_short(value)}.{near} Known: {', '.join(inner)}")
        return value
    if kind in (list, tuple, Sequence):
        return _sequence(kind, inner, value, what)
    if kind in (dict, Mapping):
        table = _table(value, what)
        return {key: typed(inner[1], one, _within(what, key)) for key, one in table.items()}
    if typing.is_typeddict(hint) or dataclasses.is_dataclass(hint):
        return _record(hint, _table(value, what), what)
    return _plain(hint, value, what)


def _plain(hint: Any, value: Any, what: str) -> Any:
    if hint is Path:
        if not isinstance(value, (str, Path)) or "\0" in str(value):
            raise Mismatch(f"{what} must be a path in quotes, not {_short(value)}")
        return Path(value)
    accepted = (int, float) if hint is float else hint
    if not isinstance(value, accepted) or (isinstance(value, bool) and hint is not bool):
        raise Mismatch(f"{what} must be of type {hint.__name__}, not {_short(value)}")
    if hint is float:
        try:
            value = float(value)
        except OverflowError:
            value = math.inf
        if not math.isfinite(value):
            raise Mismatch(f"{what} must be a finite number, not {_short(value)}")
    return value


def _either(hints: Sequence[Any], value: Any, what: str) -> Any:
    """The value as the first of the types that it is; what is wrong with it as the first of all, if it is none."""
    failures = []
    for hint in hints:
        try:
            return typed(hint, value, what)
        except Mismatch as failure:
            failures.append(failure)
    raise failures[0]


def _limited(value: Any, limits: Sequence[Any], what: str) -> Any:
    for flag in limits:
        if isinstance(flag, Flag) and value is not None:
            if flag.least is not None and value < flag.least:
                raise Mismatch(f"{what} must be at least {flag.least:g}, not {_short(value)}")
            if flag.most is not None and value > flag.most:
                raise Mismatch(f"{what} must be at most {flag.most:g}, not {_short(value)}")
    return value


def _sequence(kind: Any, inner: Sequence[Any], value: Any, what: str) -> Any:
    if not isinstance(value, (list, tuple)):
        raise Mismatch(f"{what} must be a list, not {_short(value)}")
    hints = [inner[0]] * len(value) if kind is not tuple or inner[-1] is ... else inner
    if len(hints) != len(value):
        raise Mismatch(f"{what} must have {len(hints)} entries, not {len(value)}")
    found = [typed(hint, one, f"{what}[{number}]") for number, (hint, one) in enumerate(zip(hints, value, strict=True))]
    return tuple(found) if kind is tuple else found


def _table(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise Mismatch(f"{what or 'it'} must be a table, not {_short(value)}")
    return value


def _record(kind: Any, table: Mapping[str, Any], what: str) -> Any:
    """A table with known keys, as a TypedDict or a dataclass."""
    hints = hints_of(kind)
    if dataclasses.is_dataclass(kind):
        required = {field.name for field in dataclasses.fields(kind) if _needed(field)}
        for key in table.keys() - hints.keys():
            raise Mismatch(f"{what or 'it'} has no '{key}'")
    else:
        required = {key for key, hint in hints.items() if typing.get_origin(hint) is not typing.NotRequired}
    for key in sorted(required - table.keys()):
        raise Mismatch(f"{what or 'it'} lacks '{key}'")
    found = {key: typed(hints[key], one, _within(what, key)) if key in hints else one for key, one in table.items()}
    try:
        return kind(**found)
    except ValueError as problem:
        raise Mismatch(f"{what or 'it'} is invalid: {problem}") from None


def _within(what: str, key: str) -> str:
    return f"{what}.{key}" if what else key


def _needed(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


@cache
def hints_of(kind: type) -> dict[str, Any]:
    """The annotations of a record's fields, with their flags."""
    return typing.get_type_hints(kind, include_extras=True)


def _short(value: Any) -> str:
    """A value for a message, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
