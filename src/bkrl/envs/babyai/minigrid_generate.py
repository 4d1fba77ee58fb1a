"""Layouts of minigrid's levels that are not BabyAI's, drawn as the `_gen_grid` methods in `minigrid.envs` draw them.

The draws, their order and their bounds are minigrid's, so the same stream of random numbers gives the same layout and
is left in the same state.
"""

from dataclasses import asdict, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bkrl.core.jit import helper
from bkrl.envs.babyai import minigrid_levels as levels
from bkrl.envs.babyai.constants import NO_TASK
from bkrl.envs.babyai.minigrid_halls import (
    draw_crossing,
    draw_door_key,
    draw_doors,
    draw_hall,
    draw_lava,
    draw_memory,
    draw_objects,
    draw_red_blue_doors,
    fill,
)
from bkrl.envs.babyai.minigrid_rooms import draw_grid_of_rooms, draw_locked_room, draw_multi_room, draw_rooms
from bkrl.envs.babyai.rooms import NOWHERE
from bkrl.envs.babyai.state import EMPTY_CELL, WALL_CELL

MINIGRID_LEVEL = np.dtype(
    [(field.name, np.int64) for field in fields(levels.MiniGridLevel) if field.type in (int, bool)]
)


def minigrid_record(level: levels.MiniGridLevel) -> NDArray[Any]:
    """A level for the kernels: an array of one MINIGRID_LEVEL record."""
    record = np.zeros(1, MINIGRID_LEVEL)
    values = asdict(level)
    for name in MINIGRID_LEVEL.names or ():
        record[name] = values[name]
    return record


@helper
def clear_map(grid: Any, env: Any, level: Any, stride: int) -> None:
    """One empty room as large as the map, nobody in it, and the facts of every episode of a level."""
    env.task[:] = NO_TASK
    env.task[0] = level.task
    env.max_steps, env.see_through = level.max_steps, level.see_through
    env.strict = env.in_sequence = env.target_is_plural = 0
    env.agent, env.heading, env.obstacles = NOWHERE, 0, 0
    for at in range(len(grid)):
        grid[at] = WALL_CELL
    fill(grid, 1, 1, level.width - 2, level.height - 2, EMPTY_CELL, stride)


@helper
def generate_hall(grid: Any, env: Any, level: Any, stride: int) -> None:
    """A new episode of a level with one room."""
    clear_map(grid, env, level, stride)
    layout = level.layout
    if layout == levels.HALL:
        draw_hall(grid, env, level, stride)
    elif layout == levels.CROSSING:
        draw_crossing(grid, env, level, stride)
    elif layout == levels.DOOR_KEY:
        draw_door_key(grid, env, level.width, level.height, stride)
    elif layout == levels.OBJECTS:
        draw_objects(grid, env, level, stride)
    elif layout == levels.DOORS:
        draw_doors(grid, env, level.width, level.height, stride)
    elif layout == levels.MEMORY:
        draw_memory(grid, env, level, stride)
    elif layout == levels.RED_BLUE_DOORS:
        draw_red_blue_doors(grid, env, level.height, stride)
    else:
        draw_lava(grid, env, level, stride)


@helper
def generate_rooms(grid: Any, env: Any, level: Any, plan: Any, stride: int) -> None:
    """A new episode of a level with several rooms."""
    layout, drawn = level.layout, False
    while not drawn:
        clear_map(grid, env, level, stride)
        drawn = True
        if layout == levels.GRID_OF_ROOMS:
            draw_grid_of_rooms(grid, env, level, stride)
        elif layout == levels.LOCKED_ROOM:
            draw_locked_room(grid, env, level.width, level.height, stride)
        elif layout == levels.MULTI_ROOM:
            draw_multi_room(grid, env, level, stride)
        else:
            drawn = draw_rooms(grid, env, level, plan, stride)
