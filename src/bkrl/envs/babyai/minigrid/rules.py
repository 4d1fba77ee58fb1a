"""The rules of minigrid's levels with a `step` of their own, on the same grids, member bits and tracked bits.

Sources: the `step` methods in `minigrid.envs`. "Pick up this object" and "open this door" are the tasks of `missions`.
"""

from typing import Any, Final

import numpy as np

from bkrl.core.jit import helper
from bkrl.envs.babyai import constants as c
from bkrl.envs.babyai.missions import CONTINUE, FAILURE, SUCCESS, is_tracked
from bkrl.envs.babyai.pcg64 import integer_below
from bkrl.envs.babyai.state import (
    EMPTY_CELL,
    FIRST,
    MARGIN,
    NOTHING_CARRIED,
    ahead,
    cell_at,
    color_of,
    is_target,
    kind_of,
    put,
    state_of,
)

MAX_OBSTACLES: Final = 8  # one byte of `state.ENV["obstacles"]` each
_TRIES: Final = 101  # to find an obstacle another place; then it stays


@helper
def verify_own(grid: Any, env: Any, action: int, carried_before: int, stride: int) -> int:
    """What an action has done to the mission of a level with a step of its own.

    Tracked cells are those in which the agent, or what it drops, has to be (bit 0) or must not be (bit 1). `done` says
    whether the red door is open.
    """
    task, here = env.task[0], cell_at(grid, env.agent)
    front = cell_at(grid, env.agent + ahead(env.heading, stride))
    if task == c.FETCH:
        if env.carrying == NOTHING_CARRIED:
            return CONTINUE
        return SUCCESS if is_target(env, env.carrying, FIRST) else FAILURE
    if task == c.GO_BESIDE:
        if action == c.DONE:
            return SUCCESS if is_tracked(here, 0) else FAILURE
        return FAILURE if action == c.TOGGLE else CONTINUE
    if task == c.PUT_NEAR:
        if action == c.PICKUP and env.carrying != NOTHING_CARRIED:
            return CONTINUE if is_target(env, env.carrying, FIRST) else FAILURE
        if action == c.DROP and carried_before != NOTHING_CARRIED:
            return SUCCESS if env.carrying == NOTHING_CARRIED and is_tracked(front, 0) else FAILURE
        return CONTINUE
    if task == c.MATCH:
        return SUCCESS if is_tracked(here, 0) else FAILURE if is_tracked(here, 1) else CONTINUE
    if task == c.RED_THEN_BLUE and action == c.TOGGLE and kind_of(front) == c.DOOR:
        is_open = state_of(front) == c.OPEN
        if color_of(front) == c.BLUE and is_open:
            return SUCCESS if env.done else FAILURE
        if color_of(front) == c.RED:
            env.done = is_open
    return CONTINUE


@helper
def move_obstacles(grid: Any, env: Any, action: int, stride: int) -> bool:
    """What `DynamicObstaclesEnv.step` does first; the result says whether the agent runs into something.

    That depends on what was in front before the obstacles moved.
    """
    front = kind_of(cell_at(grid, env.agent + ahead(env.heading, stride)))
    for i in range(0, 8 * MAX_OBSTACLES, 8):
        place: Any = np.int64(env.obstacles >> np.uint64(i)) & 255
        if place == 0:  # fewer than MAX_OBSTACLES
            break
        at = ((place >> 4) + MARGIN) * stride + (place & 15) + MARGIN
        for _ in range(_TRIES):
            x = integer_below(env, 3) - 1
            y = integer_below(env, 3) - 1
            to = at + x + y * stride
            if kind_of(cell_at(grid, to)) == c.EMPTY and to != env.agent:
                put(grid, to, cell_at(grid, at))
                put(grid, at, EMPTY_CELL)
                env.obstacles += np.uint64(16 * y + x) << np.uint64(i)
                break
    return action == c.FORWARD and front not in (c.EMPTY, c.GOAL)
