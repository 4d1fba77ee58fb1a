"""The single-room BabyAI-Text levels of the published code, as data.

Every level is one square room of `room_size` cells a side (walls included). A layout is drawn in this order, always
from the environment's own generator: the agent, then for each target its colour and type (only where there is a choice)
and its cell, then the distractors (duplicates allowed); a layout in which some object cannot be reached is drawn again.
The published code drew the target of its pretraining level from NumPy's global generator and asked for a purple box in
`GoTo-PurpleBallGreenKey`; both are put right here. The step limit is minigrid's: room_size² for each place to go.
"""

from dataclasses import dataclass, replace
from typing import Literal

from bkrl.envs.babyai.constants import BALL, BLUE, BOX, GO_TO, GREEN, KEY, PICK_UP, PURPLE, RED
from bkrl.envs.babyai.recipes import (
    AGENT,
    CHOOSE,
    COLORS,
    DISTRACTORS,
    DRAW_KIND,
    DRAWN,
    OBJECT,
    REACHABLE,
    SAME,
    TASK,
    Recipe,
    Step,
)

Task = Literal["go to", "pick up", "go to, then go to"]


@dataclass(frozen=True)
class Target:
    """An object the mission names: one colour and one type, each drawn from the choices given (ids of `constants`)."""

    colors: tuple[int, ...]
    kinds: tuple[int, ...]


@dataclass(frozen=True)
class Level:
    """One single-room level: what to do with which targets among how many distractors."""

    env_id: str
    task: Task
    targets: tuple[Target, ...]
    room_size: int = 20
    distractors: int = 7
    deviation: str = ""  # from the published code, as one sentence

    @property
    def max_steps(self) -> int:
        """Steps after which an episode is truncated."""
        return len(self.targets) * self.room_size**2


RED_BALL = Target((RED,), (BALL,))
RED_KEY = Target((RED,), (KEY,))
PURPLE_BALL = Target((PURPLE,), (BALL,))
PURPLE_KEY = Target((PURPLE,), (KEY,))
GREEN_KEY = Target((GREEN,), (KEY,))
BLUE_BOX = Target((BLUE,), (BOX,))
PRETRAINING = Target((RED, GREEN, BLUE), (BALL, BOX))

_DISTRACTORS_OF_SIZE = {20: 7, 23: 12, 25: 15, 28: 20, 30: 25}


def _go_to(name: str, target: Target, size: int = 20) -> Level:
    return Level(f"BabyAI-Text-GoToLocal-{name}-S{size}", "go to", (target,), size, _DISTRACTORS_OF_SIZE[size])


def _all_levels() -> list[Level]:
    drawn = "The target is drawn from the world's own stream of random numbers, not from NumPy's global one."
    levels = [replace(_go_to("Pretraining", PRETRAINING), deviation=drawn)]
    levels += [
        _go_to(name, target)
        for name, target in (
            ("RedBall", RED_BALL),
            ("PurpleBall", PURPLE_BALL),
            ("RedKey", RED_KEY),
            ("PurpleKey", PURPLE_KEY),
        )
    ]
    levels += [
        _go_to(name, target, size)
        for name, target in (("RedBall", RED_BALL), ("PurpleKey", PURPLE_KEY))
        for size in (23, 25, 28, 30)
    ]
    levels += [
        Level("BabyAI-Text-GoTo-RedBallBlueBox-S20", "go to, then go to", (RED_BALL, BLUE_BOX)),
        Level(
            "BabyAI-Text-GoTo-PurpleBallGreenKey-S20",
            "go to, then go to",
            (PURPLE_BALL, GREEN_KEY),
            deviation="It asks for the green key of its name, where the published code asks for a purple box.",
        ),
        Level("BabyAI-Text-PickUp-RedBall-S20", "pick up", (RED_BALL,), distractors=8),
        Level("BabyAI-Text-PickUp-PurpleKey-S20", "pick up", (PURPLE_KEY,), distractors=8),
    ]
    return levels


LEVELS: dict[str, Level] = {level.env_id: level for level in _all_levels()}


def recipe_of(level: Level) -> Recipe:
    """The steps by which a layout is drawn, in the order that this file's first lines say."""
    steps = [Step(AGENT)]
    for target in level.targets:
        steps += [
            Step(COLORS, number=1, among=target.colors),
            Step(DRAW_KIND, among=target.kinds),
            Step(OBJECT, 0, 0, kind=SAME, color=DRAWN),
            Step(CHOOSE, number=1),
        ]
    steps += [Step(DISTRACTORS, number=level.distractors), Step(REACHABLE)]
    action = PICK_UP if level.task == "pick up" else GO_TO
    steps += [Step(TASK, action=action, clause=i, first=i) for i in range(len(level.targets))]
    return Recipe("TextLevel", tuple(steps), level.room_size, 1, 1)
