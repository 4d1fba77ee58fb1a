"""Metadata of a setting: its option, when it has no effect, what sets two runs apart.

A setting is a field of a frozen dataclass, `Annotated[type, Flag("…")]`. Everything that other parts need to know of it
stands on its `Flag`.
"""

import dataclasses
import inspect
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

LENIENT = "--lenient"
"""The switch that leaves alone what has no effect beside the other flags."""
SWITCHES = (bool, bool | None)
"""Types of settings that are given as --name or --no-name."""


class AppliesWhen(NamedTuple):
    """When a setting applies: in words, and as a test of all settings (None: that cannot be known yet)."""

    to: str
    holds: Callable[[Any], bool | None]


@dataclass(frozen=True)
class Flag:
    """The facts about one setting.

    Attributes:
        help: what it means, with its unit.
        least, most: its limits.
        positional: whether it is given by position.
        only: what it has an effect with. Beside anything else a person who gives it is refused.
        identity: whether another value makes another run. If not, it says how the work is done (threads, places, limits
            of spending), and a run may go on under another value.
        pooled: whether a report pools runs of one method that differ in it, or tells them apart by other means.
        reads: whether it names a run or a file that is read; the run records the hash of what is there.
        planned: whether the plan of a study decides it, so that a study file cannot.
        seldom: whether the help page of a method leaves it to `--help-all`.
    """

    help: str
    least: float | None = None
    most: float | None = None
    positional: bool = False
    only: tuple[AppliesWhen, ...] = ()
    identity: bool = True
    pooled: bool = False
    reads: bool = False
    planned: bool = False
    seldom: bool = False

    @property
    def must_agree(self) -> bool:
        """Whether runs must have the same value to be pooled in a report."""
        return self.identity and not self.pooled


class Setting(NamedTuple):
    """One setting of a class: the names of the fields that lead to it, its type, its flag and its default."""

    path: tuple[str, ...]
    kind: Any
    flag: Flag
    default: Any

    @property
    def name(self) -> str:
        """Its own name, without that of the group it stands in."""
        return self.path[-1]

    def of(self, config: Any) -> Any:
        """Its value in a config, or in the tables that a config was written as; its default where it is missing."""
        for part in self.path:
            config = config.get(part, self.default) if isinstance(config, Mapping) else vars(config)[part]
            if config is self.default:
                break
        return config


def flags_of(config: type) -> list[Setting]:
    """Every setting of a class, those of groups last."""
    return list(_flags_of(config))


@cache
def _flags_of(config: type) -> tuple[Setting, ...]:
    plain, nested = [], []
    hints = typing.get_type_hints(config, include_extras=True)
    for f in sorted(dataclasses.fields(config), key=lambda one: one.kw_only is True):  # a base's settings come last
        hint = hints[f.name]
        if dataclasses.is_dataclass(hint):
            group = f.default_factory() if callable(f.default_factory) else None
            for one in flags_of(typing.cast(type, hint)):
                default = one.default if group is None else vars(group)[one.name]
                nested.append(one._replace(path=(f.name, *one.path), default=default))
            continue
        kind, flag = typing.get_args(hint)[:2] if typing.get_origin(hint) is typing.Annotated else (hint, Flag(""))
        default = inspect.Parameter.empty if f.default is dataclasses.MISSING else f.default
        plain.append(Setting((f.name,), kind, flag, default))
    return (*plain, *nested)


def option_name(path: tuple[str, ...]) -> str:
    """`--learning-rate` for ("ppo", "learning_rate"), `--from` for ("from_",), which Python reserves."""
    return "--" + path[-1].rstrip("_").replace("_", "-")


def without_effect(config: Any, given: Iterable[str], sure: bool = True) -> dict[str, str]:
    """The settings among `given` without effect, each with what it would have one with.

    Args:
        config: the settings of a verb.
        given: names of the settings that the user gave; a nested one goes by its own name.
        sure: leave out those of which it cannot be known yet.
    """
    names, refused = set(given), (False,) if sure else (False, None)
    failed = {
        one.name: next((only.to for only in one.flag.only if only.holds(config) in refused), "")
        for one in flags_of(type(config))
        if one.name in names
    }
    return {name: to for name, to in failed.items() if to}


def changed(config: Any) -> list[str]:
    """The settings of a config that differ from their defaults; a nested one goes by its own name."""
    return [one.name for one in flags_of(type(config)) if one.of(config) != one.default]


def words(names: Iterable[str]) -> str:
    """ "a, b or c"."""
    *most, final = names
    return f"{', '.join(most)} or {final}" if most else final
