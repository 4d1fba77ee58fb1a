"""The integers of a MiniGrid env: object types, colours, door states, actions, headings.

Source: `minigrid.core.constants` and `minigrid.core.actions` of PyPI minigrid. They are repeated here so that captions
and kernels need neither minigrid nor pygame; a test compares them with the installed package.
"""

from collections.abc import Mapping
from typing import Final

# Object types: channel 0 of a view.
UNSEEN: Final = 0
EMPTY: Final = 1
WALL: Final = 2
FLOOR: Final = 3
DOOR: Final = 4
KEY: Final = 5
BALL: Final = 6
BOX: Final = 7
GOAL: Final = 8
LAVA: Final = 9
TYPE_NAMES: Final = ("unseen", "empty", "wall", "floor", "door", "key", "ball", "box", "goal", "lava", "agent")

# Colours: channel 1 of a view.
RED: Final = 0
GREEN: Final = 1
BLUE: Final = 2
PURPLE: Final = 3
YELLOW: Final = 4
GREY: Final = 5
COLOR_NAMES: Final = ("red", "green", "blue", "purple", "yellow", "grey")
# minigrid draws a random colour from the names in alphabetical order, a random object from key, ball, box.
COLORS_AS_DRAWN: Final = (BLUE, GREEN, GREY, PURPLE, RED, YELLOW)
KINDS_AS_DRAWN: Final = (KEY, BALL, BOX)

# Door states: channel 2 of a view (0 for everything else).
OPEN: Final = 0
CLOSED: Final = 1
LOCKED: Final = 2
STATE_NAMES: Final = ("open", "closed", "locked")

# Actions.
LEFT: Final = 0
RIGHT: Final = 1
FORWARD: Final = 2
PICKUP: Final = 3
DROP: Final = 4
TOGGLE: Final = 5
DONE: Final = 6
ACTION_NAMES: Final = ("left", "right", "forward", "pickup", "drop", "toggle", "done")
ACTION_SETS: Final[Mapping[str, tuple[str, ...]]] = {
    "restricted": ("turn left", "turn right", "go forward"),
    "canonical": ("turn left", "turn right", "go forward", "pick up", "drop", "toggle"),
    "augmented": (
        "turn left", "turn right", "go forward", "pick up", "drop", "toggle", "sleep", "do nothing", "think",
    ),
    "synonyms-1": ("rotate left", "rotate right", "move ahead", "take", "release", "switch"),
    "synonyms-2": ("shift left", "shift right", "go ahead", "take", "release", "turn"),
}  # fmt: skip
"""Names of sets → names of actions in the order above; the seventh and all that follow do nothing. The first three are
those of GLAM (Carta et al. 2023), with which policies are trained; the others are its synonyms of the second."""
DONE_ENDS: Final = ("MiniGrid-GoToDoor-", "MiniGrid-GoToObject-")
"""Beginnings of the ids in which the seventh ends an episode; they have no such sets."""

# What a task of a mission is.
NO_TASK: Final = 0
GO_TO: Final = 1
PICK_UP: Final = 2
OPEN_DOOR: Final = 3
PUT_NEXT: Final = 4
# What minigrid's levels have steps of their own for (`minigrid.rules`); such a mission is task 0 and no other.
FETCH: Final = 5
GO_BESIDE: Final = 6
PUT_NEAR: Final = 7
RED_THEN_BLUE: Final = 8
MATCH: Final = 9
AVOID: Final = 10

# Of anything that a layout's step leaves open: it is drawn.
ANY: Final = -1

# The view: VIEW x VIEW cells, indexed [x, y]; the agent stands at [VIEW // 2, VIEW - 1] and looks towards y = 0.
VIEW: Final = 7
OBS_SHAPE: Final = (VIEW, VIEW, 3)
AGENT_X: Final = VIEW // 2
AGENT_Y: Final = VIEW - 1

# The reward of success is 1 - REWARD_DECAY * steps / max_steps (`MiniGridEnv._reward`).
REWARD_DECAY: Final = 0.9
