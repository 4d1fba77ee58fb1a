"""Options of an env as a part of its id: `ID@NAME=VALUE,NAME=VALUE`.

Whatever knows an env knows it by its id: datasets, policies, potentials, manifests, studies, reports. So an option that
stands in the id is known to all of them.
"""

import typing
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from bkrl.core.errors import UsageError
from bkrl.core.flags import Setting

MARK = "@"
_FORM = "ID@NAME=VALUE,NAME=VALUE, where a list is A+B"


def split(env_id: str) -> tuple[str, dict[str, str]]:
    """The id without options, and the options as they are written; UsageError where they are not NAME=VALUE."""
    bare, mark, text = env_id.partition(MARK)
    options: dict[str, str] = {}
    for part in text.split(",") if mark else ():
        name, equals, value = part.partition("=")
        if not (name and equals and value) or name in options:
            why = "names an option twice" if name in options else f"has '{part}'"
            raise UsageError(f"The env '{env_id}' {why}; options are written {_FORM}.")
        options[name] = value
    return bare, options


def joined(bare: str, options: Mapping[str, Any], known: Sequence[Setting]) -> str:
    """The id with those of the options that are not as `known` has them, in its order."""
    chosen = {one.name: options[one.name] for one in known if options.get(one.name, one.default) != one.default}
    text = ",".join(f"{name}={_text(value)}" for name, value in chosen.items())
    return f"{bare}{MARK}{text}" if text else bare


def read(bare: str, options: Mapping[str, str], known: Sequence[Setting]) -> dict[str, Any]:
    """Options as values of their types; UsageError for one that is not known, or is no number where it must be one."""
    kinds = {one.name: _plain(one.kind) for one in known}
    found: dict[str, Any] = {}
    for name, text in options.items():
        if name not in kinds:
            raise unknown(bare, name, kinds)
        if kinds[name] is int:
            try:
                found[name] = int(text)
            except ValueError:
                raise UsageError(f"{name} of '{bare}' must be a whole number, not '{text}'.") from None
        else:
            found[name] = tuple(text.split("+")) if typing.get_origin(kinds[name]) is tuple else text
    return found


def unknown(env_id: str, name: str, known: Collection[str]) -> UsageError:
    """What is said where an env does not have an option."""
    knows = f"it knows {', '.join(known)}" if known else "it has none"
    return UsageError(f"'{env_id}' has no option '{name}'; {knows}.")


def _plain(kind: Any) -> Any:
    return typing.get_args(kind)[0] if typing.get_origin(kind) is typing.Annotated else kind


def _text(value: Any) -> str:
    return "+".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)
