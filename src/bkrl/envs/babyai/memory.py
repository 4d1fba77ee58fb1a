"""What an agent in a MiniGrid env has done in its episode, found from its views and actions alone.

The place of the agent is reckoned from its actions: relative to where it began, on a map that wraps round after `_SIDE`
cells, which is more than any level has but GLAM's "open" with rooms of more than 33 cells a side. Only what the agent
saw counts: a door was opened if it changed in its view. In Dynamic-Obstacles a step that an obstacle just then prevents
is taken for one.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bkrl.core.jit import helper, kernel
from bkrl.envs.babyai import constants as c
from bkrl.envs.babyai.state import KIND_MASK, STATE_MASK, STATE_SHIFT
from bkrl.envs.memory import count

NAMES: Final[tuple[str, ...]] = (
    "cells_visited",
    "cells_seen",
    "doors_opened",
    "doors_unlocked",
    "keys_picked_up",
    "balls_picked_up",
    "boxes_picked_up",
    "boxes_opened",
    "things_put_down",
)
"""Cells beyond the first; cells that are no walls; doors, each once; kinds and colours of things, each once; and how
often a thing was put down."""
HANDLING: Final = NAMES[2:]
"""What takes more than to move."""
GOALS: Final = (
    "explore the room",
    "look around",
    "open a door",
    "unlock a door",
    "pick up a key",
    "pick up a ball",
    "pick up a box",
    "open a box",
    "put a thing down",
)
"""What the fields count, said as goals."""
_VISITED, _SEEN, _OPENED, _UNLOCKED, _PICKED, _BOXES_OPENED, _PUT_DOWN = 0, 1, 2, 3, 4, 7, 8
_X, _Y, _HEADING, _BEGUN, _HAD = 9, 10, 11, 12, 13  # _HAD: kind and colour picked up, 3 * 6 entries
_COLORS: Final = 6
_MAP: Final = _HAD + 3 * _COLORS
_SIDE: Final = 64
_WAS_VISITED, _WAS_SEEN, _WAS_OPENED, _WAS_UNLOCKED = 1, 2, 4, 8  # bits of a place on the map
_STEPS: Final = np.array([[1, 0], [0, 1], [-1, 0], [0, -1]])
"""(x, y) of a step in each heading."""


class RoomMemory:
    """See `EpisodeMemory`; the actions are those of `constants`, and further ones do nothing."""

    names, goals = NAMES, GOALS
    size = _MAP + _SIDE * _SIDE

    def update(
        self, kept: NDArray[np.uint8], before: NDArray[np.uint8], actions: NDArray[np.int64], after: NDArray[np.uint8]
    ) -> None:
        _update(kept, before, actions, after)


def never_counted(grids: NDArray[np.uint32]) -> tuple[str, ...]:
    """The fields that nothing in these layouts, cells (..., H, W), can fill; a box may hold anything."""
    kinds, states = grids & KIND_MASK, grids >> STATE_SHIFT & STATE_MASK
    doors, boxes = kinds == c.DOOR, bool((kinds == c.BOX).any())
    there = {
        "doors_opened": doors.any(),
        "doors_unlocked": (doors & (states == c.LOCKED)).any(),
        "keys_picked_up": boxes or (kinds == c.KEY).any(),
        "balls_picked_up": boxes or (kinds == c.BALL).any(),
        "boxes_picked_up": boxes,
        "boxes_opened": boxes,
        "things_put_down": np.isin(kinds, (c.KEY, c.BALL, c.BOX)).any(),
    }
    return tuple(name for name, can in there.items() if not can)


@kernel
def _update(kept, before, actions, after):  # type: ignore[no-untyped-def]
    for n in range(kept.shape[0]):
        one, was, now = kept[n], before[n], after[n]
        if not one[_BEGUN]:
            one[_BEGUN] = 1
            one[_MAP + _place(one, 0, 0)] |= _WAS_VISITED
            _look(one, was)
            one[_SEEN] = 0  # what is seen at first is no deed
        _act(one, was, actions[n], now)
        _look(one, now)


@helper
def _place(one: Any, ahead: Any, right: Any) -> Any:
    """The place on the map so many cells before and to the right of the agent."""
    heading = np.int64(one[_HEADING])
    side = (heading + 1) % 4
    x = np.int64(one[_X]) + ahead * _STEPS[heading, 0] + right * _STEPS[side, 0]
    y = np.int64(one[_Y]) + ahead * _STEPS[heading, 1] + right * _STEPS[side, 1]
    return (x % _SIDE) * _SIDE + y % _SIDE


@helper
def _mark(one: Any, place: Any, bit: Any, field: Any) -> None:
    """Count a place the first time."""
    if not one[_MAP + place] & bit:
        one[_MAP + place] |= bit
        count(one, field)


@helper
def _look(one: Any, view: Any) -> None:
    """All cells in view that are no walls were seen."""
    for x in range(c.VIEW):
        for y in range(c.VIEW):
            if view[x, y, 0] != c.UNSEEN and view[x, y, 0] != c.WALL:
                _mark(one, _place(one, c.AGENT_Y - y, x - c.AGENT_X), _WAS_SEEN, _SEEN)


@helper
def _is_thing(kind: Any) -> bool:
    return c.KEY <= kind <= c.BOX


@helper
def _act(one: Any, was: Any, action: Any, now: Any) -> None:
    """What one action did."""
    kind, state = was[c.AGENT_X, c.AGENT_Y - 1, 0], was[c.AGENT_X, c.AGENT_Y - 1, 2]
    new, new_state = now[c.AGENT_X, c.AGENT_Y - 1, 0], now[c.AGENT_X, c.AGENT_Y - 1, 2]
    if action == c.LEFT:
        one[_HEADING] = (one[_HEADING] + 3) % 4
    elif action == c.RIGHT:
        one[_HEADING] = (one[_HEADING] + 1) % 4
    elif action == c.FORWARD:
        if kind in (c.EMPTY, c.FLOOR, c.GOAL, c.LAVA) or (kind == c.DOOR and state == c.OPEN):
            place = _place(one, 1, 0)
            one[_X], one[_Y] = place // _SIDE, place % _SIDE
            _mark(one, place, _WAS_VISITED, _VISITED)
    elif action == c.PICKUP:
        if _is_thing(kind) and not _is_thing(new):  # some levels begin with a thing in hand that no view has shown
            held, color = np.int64(kind) - c.KEY, np.int64(was[c.AGENT_X, c.AGENT_Y - 1, 1]) % _COLORS
            if not one[_HAD + _COLORS * held + color]:
                one[_HAD + _COLORS * held + color] = 1
                count(one, _PICKED + held)
    elif action == c.DROP:
        if _is_thing(new) and not _is_thing(kind):
            count(one, _PUT_DOWN)
    elif action == c.TOGGLE:
        if kind == c.DOOR and state != c.OPEN and new == c.DOOR and new_state == c.OPEN:
            place = _place(one, 1, 0)
            _mark(one, place, _WAS_OPENED, _OPENED)
            if state == c.LOCKED:
                _mark(one, place, _WAS_UNLOCKED, _UNLOCKED)
        elif kind == c.BOX and new != c.BOX:
            count(one, _BOXES_OPENED)
