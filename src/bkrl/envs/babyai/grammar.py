"""BabyAI's missions: one small grammar, read into values and written back in the same words.

    mission = tasks [", then " tasks | " after you " tasks]
    tasks   = task [" and " task]
    task    = "go to" thing | "pick up" thing | "open" thing | "put" thing "next to" thing
    thing   = ("the" | "a") [colour] ("ball" | "box" | "key" | "door" | "object") [place]

Source: the `surface` methods of `minigrid.envs.babyai.core.verifier`.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

from bkrl.core.errors import InputError
from bkrl.envs.babyai.constants import COLOR_NAMES

NOUNS: Final = ("ball", "box", "key", "door", "object")
PLACES: Final = ("in front of you", "behind you", "on your left", "on your right")

_THING = rf"(the|a) (?:({'|'.join(COLOR_NAMES)}) )?({'|'.join(NOUNS)})(?: ({'|'.join(PLACES)}))?"
_TASK = re.compile(rf"(go to|pick up|open) {_THING}|put {_THING} next to {_THING}")
_ORDER = re.compile(r"(, then | after you )")


@dataclass(frozen=True)
class Thing:
    """What a mission names.

    Attributes:
        article: "the" where one object of the level is meant, "a" where any of several is.
        color: one of `COLOR_NAMES`; "" where any colour will do.
        noun: one of `NOUNS`; "object" is any of them.
        place: one of `PLACES`, seen from where the agent begins; "" where any place will do.
    """

    article: str
    color: str
    noun: str
    place: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, (self.article, self.color, self.noun, self.place)))


@dataclass(frozen=True)
class Task:
    """One thing to do.

    Attributes:
        verb: "go to", "pick up", "open" or "put".
        thing: what it is done with.
        beside: what "put" puts its thing next to; None for other verbs.
    """

    verb: str
    thing: Thing
    beside: Thing | None = None

    def __str__(self) -> str:
        return f"{self.verb} {self.thing}" + (f" next to {self.beside}" if self.beside else "")


@dataclass(frozen=True)
class Mission:
    """What an episode asks for.

    Attributes:
        tasks: done in any order, one or two.
        order: how `others` stand to them; "" where there are none. "A after you B": A is `tasks`, B is done first.
        others: the tasks after "then" or after "after you".
    """

    tasks: tuple[Task, ...]
    order: Literal["", "then", "after"] = ""
    others: tuple[Task, ...] = ()

    def __str__(self) -> str:
        between = {"": "", "then": ", then ", "after": " after you "}[self.order]
        return between.join(" and ".join(map(str, tasks)) for tasks in (self.tasks, self.others) if tasks)


@lru_cache(1 << 14)  # levels ask for the same things again and again
def read_mission(text: str) -> Mission:
    """The mission that a sentence of BabyAI states: `str` of it is the sentence.

    Raises InputError for any other sentence.
    """
    first, order, second = (*_ORDER.split(text, maxsplit=1), "", "")[:3]
    tasks = tuple(_task(part, text) for part in first.split(" and "))
    if not order:
        return Mission(tasks)
    others = tuple(_task(part, text) for part in second.split(" and "))
    return Mission(tasks, "then" if order == ", then " else "after", others)


def _task(part: str, text: str) -> Task:
    found = _TASK.fullmatch(part)
    if found is None:
        raise InputError(
            f"'{text}' is no mission of BabyAI: '{part}' is none of its tasks. No other mission can be translated; "
            "leave the language out."
        )
    verb, *parts = found.groups(default="")
    # The twelve groups are three things of four parts: of "go to" and the like, what "put" moves, and beside what.
    things = [Thing(*parts[i : i + 4]) for i in (0, 4, 8) if parts[i]]
    return Task(verb or "put", *things)
