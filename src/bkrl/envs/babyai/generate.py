"""Layouts of the published single-room levels, drawn as minigrid draws them.

Source: `RoomGridLevel._gen_grid`, `RoomGrid.place_agent`, `add_object`, `add_distractors`, `MiniGridEnv.place_obj`,
`RoomGridLevel.check_objs_reachable`. The draws, their order and their bounds are minigrid's, so the same stream of
random numbers gives the same layout and is left in the same state.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bkrl.core.jit import helper
from bkrl.envs.babyai.levels import Level
from bkrl.envs.babyai.pcg64 import integer_below
from bkrl.envs.babyai.rooms import all_reachable, clear_room, draw_color, draw_kind, place_agent, place_object
from bkrl.envs.babyai.state import (
    GO_TO,
    MARGIN,
    MEMBER_SHIFT,
    NO_TASK,
    NOTHING_CARRIED,
    PICK_UP,
    TRACKED_SHIFT,
    cell_at,
    color_of,
    kind_of,
    make_cell,
)

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
    size, corner = level.room_size, MARGIN * stride + MARGIN
    clear_room(grid, size, stride)
    if not place_agent(grid, world, corner, size, stride):
        return False
    for i in range(level.num_targets):
        color = level.colors[i, integer_below(world, level.num_colors[i])]
        kind = level.kinds[i, integer_below(world, level.num_kinds[i])]
        world.target_color[2 * i], world.target_kind[2 * i] = color, kind
        if not place_object(grid, world, make_cell(kind, color, 0), corner, size, stride):
            return False
    for _ in range(level.distractors):
        color = draw_color(world)
        if not place_object(grid, world, make_cell(draw_kind(world), color, 0), corner, size, stride):
            return False
    return True


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
