"""What an action does to an env: one function for each rule.

Source: `MiniGridEnv.step` and `minigrid.core.world_object` of PyPI minigrid; each function names what it restates.
"""

from typing import Any, Final

from bkrl.core.jit import helper
from bkrl.envs.babyai import constants as c
from bkrl.envs.babyai.state import (
    COLOR_MASK,
    CONTENT_COLOR_SHIFT,
    CONTENT_KIND_SHIFT,
    EMPTY_CELL,
    KIND_MASK,
    NOTHING_CARRIED,
    OBJECT_MASK,
    STATE_MASK,
    STATE_SHIFT,
    ahead,
    cell_at,
    color_of,
    kind_of,
    make_cell,
    put,
    state_of,
)

# What becomes of the agent by moving.
NOTHING_HAPPENED: Final = 0
REACHED_GOAL: Final = 1
FELL_INTO_LAVA: Final = 2


@helper
def act(grid: Any, env: Any, action: int, stride: int) -> int:
    """Carry out one action (`MiniGridEnv.step`); the result says whether the agent met a goal or lava."""
    front = env.agent + ahead(env.heading, stride)
    if action == c.LEFT:
        env.heading = (env.heading + 3) % 4
    elif action == c.RIGHT:
        env.heading = (env.heading + 1) % 4
    elif action == c.FORWARD:
        return move(grid, env, front)
    elif action == c.PICKUP:
        pick_up(grid, env, front)
    elif action == c.DROP:
        drop(grid, env, front)
    elif action == c.TOGGLE:
        toggle(grid, env, front)
    return NOTHING_HAPPENED


@helper
def can_enter(cell: int) -> bool:
    """`WorldObj.can_overlap`: empty cells, floor, goal, lava and open doors."""
    kind = kind_of(cell)
    return kind in (c.EMPTY, c.FLOOR, c.GOAL, c.LAVA) or (kind == c.DOOR and state_of(cell) == c.OPEN)


@helper
def hides(cell: int) -> bool:
    """`not WorldObj.see_behind`: walls, and doors that are not open."""
    kind = kind_of(cell)
    return kind == c.WALL or (kind == c.DOOR and state_of(cell) != c.OPEN)


@helper
def move(grid: Any, env: Any, front: int) -> int:
    """One step forward. A goal or lava in front counts even where it could not be entered."""
    cell = cell_at(grid, front)
    if can_enter(cell):
        env.agent = front
    if kind_of(cell) == c.GOAL:
        return REACHED_GOAL
    if kind_of(cell) == c.LAVA:
        return FELL_INTO_LAVA
    return NOTHING_HAPPENED


@helper
def pick_up(grid: Any, env: Any, front: int) -> None:
    """`WorldObj.can_pickup`: keys, balls and boxes, with empty hands."""
    cell = cell_at(grid, front)
    kind = kind_of(cell)
    if (kind in (c.KEY, c.BALL, c.BOX)) and env.carrying == NOTHING_CARRIED:
        env.carrying = cell & OBJECT_MASK
        put(grid, front, EMPTY_CELL)
        env.stale = 1


@helper
def drop(grid: Any, env: Any, front: int) -> None:
    """Lay down what is carried, into an empty cell only."""
    if kind_of(cell_at(grid, front)) == c.EMPTY and env.carrying != NOTHING_CARRIED:
        put(grid, front, env.carrying)
        env.carrying = NOTHING_CARRIED
        env.stale = 1


@helper
def toggle(grid: Any, env: Any, front: int) -> None:
    """`Door.toggle` and `Box.toggle`; nothing else can be toggled."""
    cell = cell_at(grid, front)
    if kind_of(cell) == c.DOOR:
        grid[front] = toggled_door(cell, env.carrying)
    elif kind_of(cell) == c.BOX:
        put(grid, front, content_of(cell))
        env.stale = 1


@helper
def toggled_door(door: int, carried: int) -> int:
    """An open door closes, a closed one opens, a locked one opens for a key of its colour (which is kept)."""
    state = state_of(door)
    if state == c.LOCKED:
        has_key = kind_of(carried) == c.KEY and color_of(carried) == color_of(door)
        state = c.OPEN if has_key else c.LOCKED
    else:
        state = c.CLOSED if state == c.OPEN else c.OPEN
    return (door & ~(STATE_MASK << STATE_SHIFT)) | state << STATE_SHIFT


@helper
def content_of(box: int) -> int:
    """What a box leaves behind when it is opened: its content, or nothing. The mission never refers to a content."""
    kind = (box >> CONTENT_KIND_SHIFT) & KIND_MASK
    if kind == 0:
        return EMPTY_CELL
    return make_cell(kind, (box >> CONTENT_COLOR_SHIFT) & COLOR_MASK, 0)
