"""The loops over envs: the only kernels called from Python. Each works on envs start..stop-1."""

from typing import Any

from bkrl.core.jit import kernel
from bkrl.envs.babyai.constants import AVOID, DROP, MATCH, PICKUP, REWARD_DECAY, TOGGLE
from bkrl.envs.babyai.generate import begin_episode, fill_hands, generate
from bkrl.envs.babyai.glam.generate import generate_glam
from bkrl.envs.babyai.minigrid.halls import generate_hall
from bkrl.envs.babyai.minigrid.rooms import generate_rooms
from bkrl.envs.babyai.minigrid.rules import move_obstacles, verify_own
from bkrl.envs.babyai.missions import FAILURE, SUCCESS, track, verify_mission
from bkrl.envs.babyai.rules import FELL_INTO_LAVA, REACHED_GOAL, act
from bkrl.envs.babyai.state import ahead, cell_at
from bkrl.envs.babyai.view import observe


@kernel
def step_envs(
    grids: Any,
    envs: Any,
    actions: Any,
    idle: Any,
    own_step: Any,
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
    """One action in each env that does not idle (`MiniGridEnv.step`, `RoomGridLevel.step`).

    `own_step`: None unless the level has one, see `minigrid.rules`. `shown`: a copy of the observations.
    """
    for n in range(start, stop):
        if idle[n]:
            rewards[n] = 0.0
            terminated[n] = truncated[n] = success[n] = False
            continue
        grid, env, action = grids[n], envs[n], actions[n]
        env.steps += 1
        carried_before, task, hit = env.carrying, env.task[0], False
        stood, heading, front = env.agent, env.heading, env.agent + ahead(env.heading, stride)
        was_in_front = cell_at(grid, front)
        if own_step is not None:  # else numba does not compile it
            if task == AVOID:
                hit = move_obstacles(grid, env, action, stride)
            elif task == MATCH and action == PICKUP:
                action = TOGGLE
        outcome = act(grid, env, action, stride)
        if own_step is not None:
            status = FAILURE if hit else verify_own(grid, env, action, carried_before, stride)
        else:
            if action == DROP:
                track(grid, env)
            status = verify_mission(grid, env, action, carried_before, stride)
        solved = status == SUCCESS or (status != FAILURE and outcome == REACHED_GOAL)
        reward = 1 - REWARD_DECAY * (env.steps / env.max_steps) if solved else -1.0 if hit else 0.0
        env.episode_return += reward
        rewards[n] = reward
        success[n] = solved and reward > 0
        terminated[n] = solved or status == FAILURE or outcome in (REACHED_GOAL, FELL_INTO_LAVA)
        truncated[n] = env.steps >= env.max_steps
        stays = env.agent == stood and env.heading == heading and env.carrying == carried_before
        if not stays or cell_at(grid, front) != was_in_front or task == AVOID or env.steps == 1:
            observe(grid, env, stride, observations[n])
    for n in range(start, stop):
        for byte in range(observations.shape[1]):  # a slice would be copied twice: the two might overlap
            shown[n, byte] = observations[n, byte]


@kernel
def begin_envs(
    grids: Any,
    envs: Any,
    missions: Any,
    plans: Any,
    level: Any,
    steps: Any,
    template: Any,
    doors: Any,
    chosen: Any,
    stride: int,
    observations: Any,
    start: int,
    stop: int,
) -> None:
    """A new episode in each chosen env of a level with a recipe (`generate`); `plans` (N,): for layouts while drawn."""
    plan = plans[start]
    for n in range(start, stop):
        if chosen[n]:
            generate(grids[n], envs[n], plan, missions[n], level[0], steps, template, doors, stride)
            begin_episode(envs[n])
            observe(grids[n], envs[n], stride, observations[n])
            if level[0].carrying:
                fill_hands(grids[n], envs[n], plan)


@kernel
def begin_glam_envs(
    grids: Any,
    envs: Any,
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
    """A new episode in each chosen env of one of GLAM's levels."""
    for n in range(start, stop):
        if chosen[n]:
            generate_glam(grids[n], envs[n], level[0], episodes[n], case_ends, repeat_ends, crowd, stride)
            begin_episode(envs[n])
            observe(grids[n], envs[n], stride, observations[n])


@kernel
def begin_hall_envs(
    grids: Any, envs: Any, level: Any, chosen: Any, stride: int, observations: Any, start: int, stop: int
) -> None:
    """A new episode in each chosen env of one of minigrid's levels with one room."""
    for n in range(start, stop):
        if chosen[n]:
            generate_hall(grids[n], envs[n], level[0], stride)
            begin_episode(envs[n])
            observe(grids[n], envs[n], stride, observations[n])


@kernel
def begin_room_envs(
    grids: Any, envs: Any, level: Any, chosen: Any, stride: int, observations: Any, start: int, stop: int
) -> None:
    """The same for those with several rooms."""
    for n in range(start, stop):
        if chosen[n]:
            generate_rooms(grids[n], envs[n], level[0], stride)
            begin_episode(envs[n])
            observe(grids[n], envs[n], stride, observations[n])
