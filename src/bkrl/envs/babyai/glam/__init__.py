"""The levels that GLAM introduced, as data: several kinds of tasks in one level, some objects never asked for.

Source: Carta et al. 2023 (arXiv 2302.02662) and its code. Five pairs of colour and noun are held out: missions of the
training levels never name them, missions of the test level name nothing else. Two things are put right here. The
published code draws the kind of task once per environment, from a generator that no seed reaches; here the env's own
stream draws it for each episode (`task_mix`). And it draws whole layouts until the mission passes the filter, which
takes 0.1 s for some; here objects are drawn so that it passes, with the same distribution (`glam.reference`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Literal

from bkrl.core.errors import UsageError
from bkrl.core.flags import Flag, flags_of
from bkrl.core.registry import did_you_mean
from bkrl.envs.babyai.constants import BALL, BOX, COLORS_AS_DRAWN, GREEN, GREY, KEY, RED, YELLOW

Pair = tuple[int, int]
"""A colour and a kind of object, ids of `constants`."""

PAIRS: Final[tuple[Pair, ...]] = tuple((color, kind) for color in COLORS_AS_DRAWN for kind in (KEY, BALL, BOX))
HELD_OUT: Final[tuple[Pair, ...]] = ((YELLOW, BOX), (RED, KEY), (GREEN, BALL))
HELD_OUT_DOORS: Final = (RED, GREY)

TASK_KINDS: Final[Mapping[str, str]] = {
    "goto": "go to A",
    "pickup": "pick up A",
    "open": "open the door, which is locked",
    "putnext": "put A next to B",
    "seq": "pick up A, then go to B | go to B after you pick up A",
    "pickup-then-goto": "pick up A, then go to B",
    "goto-after-pickup": "go to B after you pick up A",
    "pickup-seq-pickup": "pick up A, then pick up B | pick up B after you pick up A",
}
"""Name of a kind of task → its missions; where there are two forms, either comes half of the time."""
MIXED: Final = ("goto", "pickup", "open", "putnext", "seq")

TASK_MIXES: Final = ("per-episode", "per-instance", "balanced")

_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "language": ("en", "fr"),
    "held_out": ("mission-only", "also-distractors"),
    "task_mix": TASK_MIXES,
}
_SMALLEST, _LARGEST = 5, 50  # rooms; in a smaller one two objects may find no place


@dataclass(frozen=True)
class GlamLevel:
    """One level. Fields with a flag are options of its env.

    Attributes:
        env_id: its id.
        asks_for: what missions may name: pairs that are not held out ("train"), those that are ("test"), or any.
        captions: the language of its captions where none is asked for.
        task_kinds: names from `TASK_KINDS`, all equally likely.
        num_dists: objects beside those that the mission names (and beside the key of an "open" task).
        room_size: cells a side, walls included.
        language: of missions.
        held_out: "mission-only", as published: held-out pairs lie about in training levels, but no mission names them;
            "also-distractors": they are nowhere. Makes no difference where `asks_for` is not "train".
        task_mix: who draws the kind of a task. "per-episode": the env's stream, for each episode. "per-instance", as
            published: the same for all episodes of an env, drawn when it is seeded. "balanced": one after the other,
            beginning with number seed modulo their count.
    """

    env_id: str
    asks_for: Literal["train", "test", "all"] = "train"
    captions: str = "en"
    num_dists: Annotated[int, Flag("objects beside those that the mission names")] = 8
    room_size: Annotated[int, Flag("cells a side, walls included")] = 8
    language: Annotated[str, Flag("of missions: en or fr")] = "en"
    task_kinds: Annotated[tuple[str, ...], Flag("kinds of tasks, as in goto+open, all equally likely")] = MIXED
    held_out: Annotated[
        str, Flag("where held-out objects are missing: mission-only, as published, or also-distractors")
    ] = "mission-only"
    task_mix: Annotated[str, Flag("who draws a task's kind: per-episode, per-instance or balanced")] = "per-episode"

    @property
    def max_steps(self) -> int:
        """The step limit of the longest kind of task."""
        places = [self.rooms(kind) if kind in ("goto", "pickup", "open") else 2 for kind in self.task_kinds]
        return max(places) * self.room_size**2

    @property
    def asked_for(self) -> tuple[Pair, ...]:
        """The pairs that missions may name."""
        if self.asks_for == "all":
            return PAIRS
        return tuple(pair for pair in PAIRS if (pair in HELD_OUT) == (self.asks_for == "test"))

    @property
    def placed(self) -> tuple[Pair, ...]:
        """The pairs that a distractor may be."""
        return self.asked_for if (self.asks_for, self.held_out) == ("train", "also-distractors") else PAIRS

    @property
    def doors(self) -> tuple[int, ...]:
        """The colours that a door may have."""
        if self.asks_for == "all":
            return COLORS_AS_DRAWN
        return tuple(color for color in COLORS_AS_DRAWN if (color in HELD_OUT_DOORS) == (self.asks_for == "test"))

    def first_turn(self, seed: int) -> int:
        """What `task_mix` carries from one episode to the next (`GlamEnv.turn`), after seeding."""
        return seed % len(self.task_kinds) if self.task_mix == "balanced" else -1

    @staticmethod
    def rooms(kind: str) -> int:
        """How many rooms, side by side, a kind of task has."""
        return 2 if kind == "open" else 1

    def chosen(self, options: Mapping[str, Any]) -> GlamLevel:
        """The level with these fields replaced; UsageError, with what is possible, for a value that cannot be."""
        options = dict(options)
        if "task_kinds" in options:
            kinds = options["task_kinds"]
            options["task_kinds"] = kinds = (kinds,) if isinstance(kinds, str) else tuple(kinds)
            for kind in kinds or ("",):
                if kind not in TASK_KINDS:
                    near, known = did_you_mean(str(kind), TASK_KINDS), ", ".join(TASK_KINDS)
                    raise UsageError(f"There is no kind of task '{kind}'.{near} task_kinds takes some of {known}.")
            if len(set(kinds)) < len(kinds):
                raise UsageError(f"task_kinds names a kind twice: {', '.join(kinds)}. All are equally likely.")
        for name, choices in _CHOICES.items():
            if name in options and options[name] not in choices:
                raise UsageError(f"{name} must be {' or '.join(choices)}, not {options[name]!r}.")
        for name, least in (("num_dists", 0), ("room_size", _SMALLEST)):
            value = options.get(name, least)
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value:
                raise UsageError(f"{name} must be a whole number of at least {least}, not {value!r}.")
        level = replace(self, **options)
        if level.room_size > _LARGEST:
            raise UsageError(f"room_size must be at most {_LARGEST}, not {level.room_size}.")
        most = most_distractors(level.room_size)
        if level.num_dists > most:
            raise UsageError(
                f"A room of size {level.room_size} takes {most} distractors, not {level.num_dists}; with more there is "
                "hardly a layout in which each can be walked to: choose a smaller num_dists or a larger room_size."
            )
        return level


def most_distractors(room_size: int) -> int:
    """How many objects, beside the two of a mission, may lie in a room of so many cells a side, walls included.

    Rooms of up to 6 by 6 free cells take half of their cells (`glam.crowds`). In larger ones layouts are drawn until
    each object can be reached. With n objects in w * w cells, d = n / (w * w), some w² d⁵ + 4 w d⁴ + 4 d³ of them have
    no free cell beside them (within, at a wall, in a corner). At 1.5 some 2 to 10 % of the layouts pass; four objects
    in a hundred cells more, and one in thousands does.
    """
    width = room_size - 2
    if width <= 6:
        return width**2 // 2 - 2
    shares = ((count, count / width**2) for count in range(width**2 // 2))
    return max(n for n, d in shares if width**2 * d**5 + 4 * width * d**4 + 4 * d**3 <= 1.5) - 2


def cases(level: GlamLevel, may_equal: bool) -> list[float]:
    """How the two objects of a mission come to be drawn, as three weights.

    The published way: n pairs, each any of u; two of the n, drawn with replacement, are the mission's; where the same
    object was drawn twice and no other is like it, the second is drawn again; all of it again until both are among the
    a pairs that may be asked for. Objects are put down one like the other, so it does not matter which two of the n
    are meant, and three cases remain, whose chances all have the factor 1 / (n u²):

    * two objects were drawn at once: (n-1)/n · (a/u)², or (n-1)/n · a(a-1)/u² where the two must not be alike;
    * one object twice, the only one of its kind, then another: 1/n · a/u · (a-1)/u · ((u-1)/u)^(n-2);
    * one object twice, and another is like it: 1/n · a/u · (1 - ((u-1)/u)^(n-1)), which a mission that needs two
      kinds of objects does not allow.
    """
    a, u, n = len(level.asked_for), len(level.placed), level.num_dists + 2
    unlike = (u - 1) / u  # the chance that a distractor is unlike the first object
    return [
        (n - 1) * a * (a if may_equal else a - 1),
        a * (a - 1) * unlike ** (n - 2),
        a * u * (1 - unlike ** (n - 1)) if may_equal else 0,
    ]


def repeats(level: GlamLevel) -> list[float]:
    """In the third of these cases: a weight for each number of others before the first that is like the object."""
    u = len(level.placed)
    return [((u - 1) / u) ** j for j in range(level.num_dists + 1)]


OPTIONS: Final = {one.name: one for one in flags_of(GlamLevel) if one.flag.help}

LEVELS: Final[Mapping[str, GlamLevel]] = {
    level.env_id: level
    for level in (
        GlamLevel("BabyAI-MixedTrainLocal-v0"),
        GlamLevel("BabyAI-MixedTestLocal-v0", "test"),
        GlamLevel("BabyAI-MixedTrainLocalFrench-v0", captions="fr", language="fr"),
        GlamLevel("BabyAI-PickUpSeqPickUpLocal-v0", task_kinds=("pickup-seq-pickup",)),
        GlamLevel("BabyAI-PickUpSeqGoToLocal-v0", task_kinds=("seq",)),
        GlamLevel("BabyAI-PickUpThenGoToLocal-v0", task_kinds=("pickup-then-goto",)),
        GlamLevel("BabyAI-GoToAfterPickUpLocal-v0", task_kinds=("goto-after-pickup",)),
        # As published: captions are French, missions English, and eight objects lie in the room.
        GlamLevel("BabyAI-GoToFrench-v0", "all", "fr", num_dists=7, task_kinds=("goto",)),
    )
}
