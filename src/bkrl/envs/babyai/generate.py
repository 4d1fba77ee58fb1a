"""Layouts of the published single-room levels, drawn as minigrid draws them.

Source: `RoomGridLevel._gen_grid`, `RoomGrid.place_agent`, `add_object`, `add_distractors`, `MiniGridEnv.place_obj`,
`RoomGridLevel.check_objs_reachable`. The draws, their order and their bounds are minigrid's, so the same stream of
random numbers gives the same layout and is left in the same state.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bkrl.core.jit import helper
from bkrl.envs.babyai.constants import COLORS_AS_DRAWN, DOOR, EMPTY, KINDS_AS_DRAWN, WALL
from bkrl.envs.babyai.levels import Level
from bkrl.envs.babyai.pcg64 import integer_below
from bkrl.envs.babyai.state import (
    EMPTY_CELL,
    GO_TO,
    MARGIN,
    MEMBER_SHIFT,
    NO_TASK,
    NOTHING_CARRIED,
    PICK_UP,
    TRACKED_SHIFT,
    WALL_CELL,
    ahead,
    cell_at,
    color_of,
    kind_of,
    make_cell,
)

MAX_TRIES: Final = 1000  # of placing one thing, then the layout is drawn afresh
HEADINGS: Final = 4
_COLORS: Final = np.array(COLORS_AS_DRAWN)
_KINDS: Final = np.array(KINDS_AS_DRAWN)
_NOWHERE: Final = -1

LEVEL = np.dtype(
    [
        ("room_size", np.int64),
        ("distractors", np.int64),
        ("task", np.int64),
        ("num_targets", np.int64),
        ("num_colors", np.int64, (2,)),
        ("colors", np.int64, (2, 6)),
        ("num_kinds", np.int64, (2,)),
        ("kinds", np.int64, (2, 3)),
    ]
)


def level_record(level: Level) -> NDArray[Any]:
    """A level for the kernels: an array of one LEVEL record."""
    record = np.zeros(1, LEVEL)
    record["room_size"], record["distractors"] = level.room_size, level.distractors
    record["task"] = PICK_UP if level.task == "pick up" else GO_TO
    record["num_targets"] = len(level.targets)
    for i, target in enumerate(level.targets):
        record["num_colors"][0, i], record["num_kinds"][0, i] = len(target.colors), len(target.kinds)
        record["colors"][0, i, : len(target.colors)] = target.colors
        record["kinds"][0, i, : len(target.kinds)] = target.kinds
    return record


@helper
def generate(grid: Any, world: Any, level: Any, stride: int) -> None:
    """Draw a layout and its mission, again and again until everything in it can be reached."""
    while True:
        if draw_layout(grid, world, level, stride) and all_reachable(grid, world.agent, stride):
            break
    set_mission(grid, world, level)


@helper
def draw_layout(grid: Any, world: Any, level: Any, stride: int) -> bool:
    """`RoomGridLevel._gen_grid` and the level's `gen_mission`; False where something found no place."""
    clear_room(grid, level.room_size, stride)
    if not place_agent(grid, world, level.room_size, stride, 0):
        return False
    for i in range(level.num_targets):
        color = level.colors[i, integer_below(world, level.num_colors[i])]
        kind = level.kinds[i, integer_below(world, level.num_kinds[i])]
        world.target_color[2 * i], world.target_kind[2 * i] = color, kind
        if not place_object(grid, world, make_cell(kind, color, 0), level.room_size, stride, 0):
            return False
    for _ in range(level.distractors):
        color = _COLORS[integer_below(world, len(_COLORS))]
        kind = _KINDS[integer_below(world, len(_KINDS))]
        if not place_object(grid, world, make_cell(kind, color, 0), level.room_size, stride, 0):
            return False
    return True


@helper
def clear_room(grid: Any, size: int, stride: int) -> None:
    """An empty room within its walls."""
    grid[:] = WALL_CELL
    for y in range(1, size - 1):
        start = (MARGIN + y) * stride + MARGIN + 1
        grid[start : start + size - 2] = EMPTY_CELL


@helper
def find_place(grid: Any, world: Any, size: int, stride: int, agent: int, left: int) -> int:
    """`MiniGridEnv.place_obj`: a random empty cell of the room that begins in column `left`, not beside the agent.

    _NOWHERE after MAX_TRIES.
    """
    for _ in range(MAX_TRIES + 1):
        x = left + integer_below(world, size)
        y = integer_below(world, size)
        at = (MARGIN + y) * stride + MARGIN + x
        if kind_of(cell_at(grid, at)) != EMPTY:
            continue
        if agent != _NOWHERE and distance(at, agent, stride) < 2:
            continue
        return at
    return _NOWHERE


@helper
def distance(a: int, b: int, stride: int) -> int:
    """Manhattan distance between two cells."""
    return abs(a // stride - b // stride) + abs(a % stride - b % stride)


@helper
def place_agent(grid: Any, world: Any, size: int, stride: int, left: int) -> bool:
    """`RoomGrid.place_agent`: with an empty cell or a wall in front."""
    while True:
        world.agent = find_place(grid, world, size, stride, _NOWHERE, left)
        if world.agent == _NOWHERE:
            return False
        world.heading = integer_below(world, HEADINGS)
        front = kind_of(cell_at(grid, world.agent + ahead(world.heading, stride)))
        if front in (EMPTY, WALL):
            return True


@helper
def place_object(grid: Any, world: Any, cell: int, size: int, stride: int, left: int) -> bool:
    """`RoomGrid.place_in_room`."""
    at = find_place(grid, world, size, stride, world.agent, left)
    if at == _NOWHERE:
        return False
    grid[at] = cell
    return True


@helper
def all_reachable(grid: Any, agent: int, stride: int) -> bool:
    """`check_objs_reachable`: whether each object stands beside a cell the agent can walk to, through any door."""
    reached = np.zeros(len(grid), np.bool_)
    stack = np.empty(len(grid), np.int64)
    reached[agent] = True
    stack[0] = agent
    waiting = 1
    while waiting > 0:
        waiting -= 1
        at = stack[waiting]
        if kind_of(cell_at(grid, at)) not in (EMPTY, DOOR):
            continue
        for beside in (at + 1, at - 1, at + stride, at - stride):
            if not reached[beside]:
                reached[beside] = True
                stack[waiting] = beside
                waiting += 1
    unreached = 0
    for at in range(len(grid)):
        unreached += kind_of(cell_at(grid, at)) > WALL and not reached[at]
    return unreached == 0


@helper
def set_mission(grid: Any, world: Any, level: Any) -> None:
    """The instructions of `RoomGridLevel.reset`: every object of a target's colour and type is meant."""
    world.task[:] = NO_TASK
    world.in_sequence = level.num_targets > 1
    world.target_is_plural = 0
    world.strict = 0
    for i in range(level.num_targets):
        task = 2 * i
        world.task[task] = level.task
        found = 0
        for at in range(len(grid)):
            cell = cell_at(grid, at)
            if kind_of(cell) == world.target_kind[task] and color_of(cell) == world.target_color[task]:
                grid[at] = cell | 1 << (MEMBER_SHIFT + 2 * task) | 1 << (TRACKED_SHIFT + 2 * task)
                found += 1
        if found > 1:
            world.target_is_plural |= 1 << task
    world.max_steps = level.num_targets * level.room_size * level.room_size


@helper
def begin_episode(world: Any) -> None:
    """What every episode starts with."""
    world.steps = 0
    world.episode_return = 0.0
    world.carrying = NOTHING_CARRIED
    world.stale = 0
    world.done = 0
    world.watched = 0
    world.first_clause_done = 0
