"""Suggesters that ask no language model: the env's own rules, the same with errors, and the two without knowledge."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from bkrl.core.errors import InputError, UsageError
from bkrl.core.registry import PLUGINS, Registry, load_plugins
from bkrl.core.seeds import generator
from bkrl.envs.family import GoalSpace
from bkrl.goals.protocol import Goals, Known, Suggester

IMPOSSIBLE: Final = (
    "fly to the moon", "open the door", "ride the cow", "build a boat", "swim across the lake", "cook dinner",
    "light a fire", "dig a hole", "climb the tree", "talk to the zombie", "read a book", "plant a flower",
)  # fmt: skip
"""Goals that no action of Crafter reaches."""
OWN: Registry[Callable[[GoalSpace, int], Suggester]] = Registry("suggester")
"""Those of plugins."""
KINDS: Final = ("bad_timing", "nonsense", "impossible")
"""What can be wrong with a goal: it cannot be done here; no rule of the env allows it; there is no such deed."""


def deeds_to_suggest(situations: GoalSpace) -> Goals:
    """The possible deeds but for moving and waiting."""
    return tuple(deed for deed in situations.possible if not deed.startswith(("do nothing", "move ")))


class Oracle(Known):
    """The deeds that make sense by the rules of the env: what knowledge could give at best (paper, section 4)."""

    name = "oracle"

    def __init__(self, situations: GoalSpace) -> None:
        self.situations = situations

    def suggest(self, keys: Sequence[int]) -> list[Goals | None]:
        return [self.situations.sensible(key) for key in keys]


class EveryDeed(Known):
    """Every deed, everywhere, counted when it is tried. Paid once an episode this is the paper's Novelty, paid every
    time its Uniform."""

    def __init__(self, situations: GoalSpace, name: str) -> None:
        self.situations, self.name = situations, name
        self._goals = tuple(dict.fromkeys(situations.deeds))
        self.said = {"deeds": len(self._goals)}

    def suggest(self, keys: Sequence[int]) -> list[Goals | None]:
        return [self._goals for _ in keys]


class SharedWords(Known):
    """The possible deeds of which a word stands in the text, within another word too (sleep in sleepy): what reading
    gives without knowledge, the control of a language model's goals.
    """

    name = "words"

    def __init__(self, situations: GoalSpace) -> None:
        self.situations = situations

    def suggest(self, keys: Sequence[int]) -> list[Goals | None]:
        texts = [" ".join(self.situations.text(key)) for key in keys]
        possible = deeds_to_suggest(self.situations)
        return [tuple(deed for deed in possible if any(word in text for word in deed.split())) for text in texts]


class Noisy(Known):
    """The oracle with stated shares of wrong goals: how good must goals be to help?

    Each goal of the oracle is replaced with probability `rates[kind]` by one that is wrong in that way. A situation's
    goals are drawn once, from the seed and the situation, so they are the same in every process.

    Args:
        situations: of the env.
        rates: for each of `KINDS`, within 0 and 1 and together at most 1.
        seed: of the errors.
    """

    name = "noisy"

    def __init__(self, situations: GoalSpace, rates: Mapping[str, float], seed: int) -> None:
        if sum(rates.values()) > 1 + 1e-9:
            raise UsageError(
                f"The shares of wrong goals add up to {sum(rates.values()):g}; together they can be at most 1."
            )
        self.situations, self.rates, self.seed = situations, dict(rates), seed
        self.said = {"rates": self.rates}
        possible = set(situations.possible)
        self._nonsense = tuple(deed for deed in dict.fromkeys(situations.deeds) if deed not in possible)
        if rates.get("nonsense", 0) > 0 and not self._nonsense:
            raise UsageError("Every deed of this env makes sense somewhere, so there is no nonsense to suggest.")

    def suggest(self, keys: Sequence[int]) -> list[Goals | None]:
        return [self._of(key) for key in keys]

    def _of(self, key: int) -> Goals:
        rng = generator(self.seed, "noisy goals", key)
        sensible = self.situations.sensible(key)
        wrong = {
            "bad_timing": tuple(deed for deed in deeds_to_suggest(self.situations) if deed not in sensible),
            "nonsense": self._nonsense,
            "impossible": IMPOSSIBLE,
        }
        edges = np.cumsum([self.rates.get(kind, 0.0) for kind in KINDS])
        goals: list[str] = []
        for goal in sensible:
            kind = int(np.searchsorted(edges, rng.random(), side="right"))
            others = [one for one in wrong[KINDS[kind]] if one not in goals] if kind < len(KINDS) else []
            goals.append(str(rng.choice(others)) if others else goal)
        return tuple(goals)


def register_suggester(name: str, make: Callable[[GoalSpace, int], Suggester], help: str = "") -> None:
    """Make a suggester of goals known as `--suggester NAME` where goals are deeds.

    Args:
        name: none of those of `bkrl list suggesters`, which go before it.
        make: makes a `bkrl.goals.protocol.Suggester` that knows its goals at once, given the `GoalSpace` of an env and
            a seed; the same for the same arguments, since a policy file keeps its name alone. `Known` is a base for it.
        help: one line for `bkrl list suggesters`.
    """
    OWN.add(name, make, help)


def own_suggesters() -> Registry[Callable[[GoalSpace, int], Suggester]]:
    """Those that plugins registered."""
    load_plugins()
    return OWN


def plain_suggester(name: str, situations: GoalSpace, rates: Mapping[str, float], seed: int) -> Suggester:
    """The suggester of this name that asks nobody; InputError where it is of a plugin that is not here."""
    if name == "oracle":
        return Oracle(situations)
    if name in ("novelty", "uniform"):
        return EveryDeed(situations, name)
    if name == "words":
        return SharedWords(situations)
    if name == "noisy":
        return Noisy(situations, rates, seed)
    if name not in own_suggesters().names():
        raise InputError(f"The goals of '{name}' come from a plugin that is not here; name its module in {PLUGINS}.")
    return OWN.get(name)(situations, seed)


class Replayed(Known):
    """The goals that another run was given, from what its policy keeps; situations that it never met have none.

    Args:
        name: as in `--suggester`.
        goals: situation → its goals, None where no answer came.
        said: what a manifest says of where they are from.
    """

    def __init__(self, name: str, goals: Mapping[int, Goals | None], said: Mapping[str, Any]) -> None:
        self.name, self._goals, self.said = name, dict(goals), said

    def suggest(self, keys: Sequence[int]) -> list[Goals | None]:
        return [self._goals.get(key) for key in keys]
