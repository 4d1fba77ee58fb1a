"""The loops over worlds: the only kernels called from Python. Each works on worlds start..stop-1."""

from __future__ import annotations

from typing import Any

from bkrl.core.jit import kernel
from bkrl.envs.babyai.constants import AVOID, DROP, MATCH, PICKUP, PUT_NEXT, REWARD_DECAY, TOGGLE
from bkrl.envs.babyai.generate import begin_episode, fill_hands, generate
from bkrl.envs.babyai.glam_generate import generate_glam
from bkrl.envs.babyai.minigrid_generate import generate_hall, generate_rooms
from bkrl.envs.babyai.minigrid_rules import move_obstacles, verify_own
from bkrl.envs.babyai.missions import FAILURE, SUCCESS, track, verify_mission
from bkrl.envs.babyai.rules import FELL_INTO_LAVA, REACHED_GOAL, act
from bkrl.envs.babyai.view import observe


@kernel
def step_worlds(
    grids: Any,
    worlds: Any,
    actions: Any,
    idle: Any,
    stride: int,
    observations: Any,
    shown: Any,
    rewards: Any,
    terminated: Any,
    truncated: Any,
    success: Any,
    start: int,
    stop: int,
) -> None:
    """One action in each world that does not idle (`MiniGridEnv.step`, `RoomGridLevel.step`).

    `shown`: a copy of the observations.
    """
    for n in range(start, stop):
        if idle[n]:
            rewards[n] = 0.0
            terminated[n] = truncated[n] = success[n] = False
            continue
        grid, world, action = grids[n], worlds[n], actions[n]
        world.steps += 1
        carried_before, task, hit = world.carrying, world.task[0], False
        if task == AVOID:
            hit = move_obstacles(grid, world, action, stride)
        elif task == MATCH and action == PICKUP:
            action = TOGGLE
        outcome = act(grid, world, action, stride)
        if task > PUT_NEXT:
            status = FAILURE if hit else verify_own(grid, world, action, carried_before, stride)
        else:
            if action == DROP:
                track(grid, world)
            status = verify_mission(grid, world, action, carried_before, stride)
        solved = status == SUCCESS or (status != FAILURE and outcome == REACHED_GOAL)
        reward = 1 - REWARD_DECAY * (world.steps / world.max_steps) if solved else -1.0 if hit else 0.0
        world.episode_return += reward
        rewards[n] = reward
        success[n] = solved and reward > 0
        terminated[n] = solved or status == FAILURE or outcome in (REACHED_GOAL, FELL_INTO_LAVA)
        truncated[n] = world.steps >= world.max_steps
        observe(grid, world, stride, observations[n])
    for n in range(start, stop):
        for byte in range(observations.shape[1]):  # a slice would be copied twice: the two might overlap
            shown[n, byte] = observations[n, byte]


@kernel
def begin_worlds(
    grids: Any,
    worlds: Any,
    missions: Any,
    plans: Any,
    level: Any,
    steps: Any,
    template: Any,
    chosen: Any,
    stride: int,
    observations: Any,
    start: int,
    stop: int,
) -> None:
    """A new episode in each chosen world of a level with a recipe. `plans` (N,) is for layouts while they are drawn."""
    plan = plans[start]
    for n in range(start, stop):
        if chosen[n]:
            generate(grids[n], worlds[n], plan, missions[n], level[0], steps, template, stride)
            begin_episode(worlds[n])
            observe(grids[n], worlds[n], stride, observations[n])
            if level[0].carrying:
                fill_hands(grids[n], worlds[n], plan)


@kernel
def begin_glam_worlds(
    grids: Any,
    worlds: Any,
    level: Any,
    episodes: Any,
    case_ends: Any,
    repeat_ends: Any,
    crowd: Any,
    chosen: Any,
    stride: int,
    observations: Any,
    start: int,
    stop: int,
) -> None:
    """A new episode in each chosen world of one of GLAM's levels."""
    for n in range(start, stop):
        if chosen[n]:
            generate_glam(grids[n], worlds[n], level[0], episodes[n], case_ends, repeat_ends, crowd, stride)
            begin_episode(worlds[n])
            observe(grids[n], worlds[n], stride, observations[n])


@kernel
def begin_hall_worlds(
    grids: Any, worlds: Any, level: Any, chosen: Any, stride: int, observations: Any, start: int, stop: int
) -> None:
    """A new episode in each chosen world of one of minigrid's levels with one room."""
    for n in range(start, stop):
        if chosen[n]:
            generate_hall(grids[n], worlds[n], level[0], stride)
            begin_episode(worlds[n])
            observe(grids[n], worlds[n], stride, observations[n])


@kernel
def begin_room_worlds(
    grids: Any, worlds: Any, plans: Any, level: Any, chosen: Any, stride: int, observations: Any, start: int, stop: int
) -> None:
    """The same for those with several rooms; `plans` as for `begin_worlds`."""
    plan = plans[start]
    for n in range(start, stop):
        if chosen[n]:
            generate_rooms(grids[n], worlds[n], level[0], plan, stride)
            begin_episode(worlds[n])
            observe(grids[n], worlds[n], stride, observations[n])
