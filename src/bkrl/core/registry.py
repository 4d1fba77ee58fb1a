"""Objects by name, with a suggestion when a name is nearly right."""

import difflib
import os
from collections.abc import Iterable
from importlib import import_module
from importlib.metadata import entry_points
from typing import Generic, TypeVar, cast

from bkrl.core.errors import UsageError

T = TypeVar("T")
PLUGINS = "BKRL_PLUGINS"
"""Environment variable: modules, divided by commas, that register environments or potentials of their own."""
GROUP = "bkrl"
"""The group of entry points by which an installed package names such modules."""

_begun = False


def load_plugins() -> None:
    """Import the modules that extend bkrl from outside, once in a process.

    While one is being imported, nothing is done: it imports parts of bkrl that ask for plugins themselves.

    Raises:
        UsageError: one of them cannot be imported.
    """
    global _begun
    if _begun:
        return
    _begun = True
    named = [name.strip() for name in os.environ.get(PLUGINS, "").split(",") if name.strip()]
    for name in dict.fromkeys([*named, *(entry.module for entry in entry_points(group=GROUP))]):
        try:
            import_module(name)
        except Exception as error:  # whatever it raises as it is imported
            _begun = False
            raise UsageError(
                f"The plugin '{name}' cannot be imported ({type(error).__name__}: {error}); mend it, correct "
                f"{PLUGINS}, or put its folder on PYTHONPATH."
            ) from error


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """`" Did you mean 'x'?"` for the nearest of `names`, of equal ones the first; an empty string when none is near."""
    by_lower = {n.lower(): n for n in names}
    matcher = difflib.SequenceMatcher(b=name.lower())

    def nearness(other: str) -> float:
        matcher.set_seq1(other)
        return matcher.ratio()

    best = max(by_lower, key=nearness, default="")
    return f" Did you mean '{by_lower[best]}'?" if best and nearness(best) >= 0.6 else ""


class Registry(Generic[T]):
    """A name → object table. A target given as `"module:attribute"` is imported when it is first asked for."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._targets: dict[str, T | str] = {}
        self._help: dict[str, str] = {}

    def add(self, name: str, target: T | str, help: str = "") -> None:
        """Register `name`; a name can be taken once."""
        if name in self._targets:
            raise ValueError(f"{self.kind} '{name}' is registered twice")
        self._targets[name] = target
        self._help[name] = help

    def get(self, name: str) -> T:
        """The object of that name; UsageError with the nearest name when there is none."""
        if name not in self._targets:
            known = ", ".join(self.names())
            raise UsageError(f"There is no {self.kind} '{name}'.{did_you_mean(name, self._targets)} Known: {known}.")
        target = self._targets[name]
        if isinstance(target, str):
            module, _, attribute = target.partition(":")
            target = cast(T, getattr(import_module(module), attribute))
            self._targets[name] = target
        return target

    def names(self) -> list[str]:
        """All names, in the order of registration."""
        return list(self._targets)

    def help(self, name: str) -> str:
        """The line of help given at registration."""
        return self._help[name]
