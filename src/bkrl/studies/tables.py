"""Plain TOML tables, checked: keys, names that become folders, seeds. Errors name the entry."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bkrl.core.errors import UsageError
from bkrl.core.registry import did_you_mean

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)  # device names on Windows


def on_top(under: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` on top of `under`, tables within tables too."""
    if not isinstance(above, Mapping):
        raise UsageError(f"Settings are a table, not {above!r}.")
    merged = dict(under)
    for key, value in above.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = on_top(merged[key], value) if both else value
    return merged


def tables_of(parent: Mapping[str, Any], key: str, owner: str) -> list[Mapping[str, Any]]:
    """The [[key]] tables of a table; none is an empty list."""
    found = parent.get(key, [])
    if not isinstance(found, list) or not all(isinstance(item, Mapping) for item in found):
        raise UsageError(f"{owner}'s {key} is written as [[…{key}]] tables.")
    return found


def check_keys(table: Mapping[str, Any], keys: Iterable[str], owner: str) -> None:
    """UsageError for a key that is not one of `keys`."""
    for key in table:
        if key not in set(keys):
            raise UsageError(f"{owner} has no '{key}'.{did_you_mean(key, keys)}")


def check_choice(value: Any, known: Sequence[Any], what: str) -> None:
    """UsageError for a value that is not one of `known`."""
    if value not in known:
        raise UsageError(
            f"{what} is {value!r}.{did_you_mean(str(value), map(str, known))} Known: {', '.join(map(str, known))}."
        )


def name_of_folder(table: Mapping[str, Any], what: str) -> str:
    """The table's name, safe as the name of a folder everywhere."""
    name = table.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name.endswith(".") or _RESERVED.fullmatch(name):
        raise UsageError(
            f"The name {name!r} of the {what} will not do for a folder: letters, digits and . _ + - (at most 64, "
            "beginning with a letter or digit)."
        )
    return name


def seed_list(found: Any, what: str) -> list[int]:
    """Distinct seeds, or UsageError."""
    good = isinstance(found, list) and found and all(type(seed) is int and seed >= 0 for seed in found)
    if not good:
        raise UsageError(f"{what} must be a list of seeds, such as [1, 2, 3], not {found!r}.")
    check_unique([str(seed) for seed in found], what)
    return list(found)


def check_unique(names: Sequence[str], what: str) -> None:
    """UsageError when two are the same, or the same to a file system that knows no case."""
    seen = {}
    for name in names:
        if name.lower() in seen:
            raise UsageError(f"'{name}' stands twice in {what}.")
        seen[name.lower()] = name
