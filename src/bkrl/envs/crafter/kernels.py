"""The loops over envs: the kernels that Python calls. Each works on envs start..stop-1, without the GIL."""

from typing import Any

import numpy as np

from bkrl.core.jit import Int, helper, kernel
from bkrl.envs.crafter.balance import BALANCE_EVERY, balance
from bkrl.envs.crafter.creatures import creature_turn, distance_to_player
from bkrl.envs.crafter.mt19937 import seed_stream
from bkrl.envs.crafter.player import player_turn
from bkrl.envs.crafter.render import observe, pass_picture, picture_again
from bkrl.envs.crafter.rules import ACHIEVEMENTS, AREA, ITEMS, MAX_ITEM, VITALS
from bkrl.envs.crafter.state import CHUNKS, FACING_DOWN, HEALTH, NOTHING, PLAYER, THE_PLAYER, add, close_gaps
from bkrl.envs.crafter.worldgen import generate_world

ACTIVE_WITHIN = 18
"""Objects at least this many steps from the player take no turn: twice the longer side of the view."""


@helper
def _clear(env: Any) -> None:
    """The env's records as an episode finds them; its seed, and what `generate_env` writes anew, are left."""
    for x in range(AREA):
        for y in range(AREA):
            env.materials[x, y] = env.object_at[x, y] = env.tunnels[x, y] = 0
    for chunk in range(CHUNKS):
        env.grass_cells[chunk] = env.path_cells[chunk] = env.chunk_used[chunk] = 0
    env.objects_end = THE_PLAYER
    env.removed = env.arrivals = env.chunks_used = 0
    for item in range(len(ITEMS)):
        env.inventory[item] = MAX_ITEM if item < len(VITALS) else 0
    for achievement in range(len(ACHIEVEMENTS)):
        env.achievements[achievement] = 0
    env.hunger = env.thirst = env.fatigue = env.recover = 0.0
    env.health_felt = env.health_paid = MAX_ITEM
    env.facing = FACING_DOWN
    env.sleeping = 0
    env.steps = env.unlocked = 0
    env.episode_return = 0.0


@helper
def _tick(env: Any, objects: Any, action: Any, rules: Any, daylight: Any, counts: Any) -> tuple[bool, bool]:
    """`Env.step` up to the picture: all objects near the player take a turn, then the chunks are balanced.

    Returns the two successes of `player_turn`.
    """
    close_gaps(env, objects)
    env.steps += 1
    end = np.int64(env.objects_end)  # who comes now acts from the next step on
    success = player_turn(env, objects, action, rules)
    for row in range(THE_PLAYER + 1, end):
        if objects[row].kind != NOTHING and distance_to_player(objects, row) < ACTIVE_WITHIN:
            creature_turn(env, objects, row)
    if env.steps % BALANCE_EVERY == 0:
        balance(env, objects, daylight[env.steps], counts)
    return success


@kernel
def step_envs(
    envs: Any,
    tables: Any,
    table: Any,
    actions: Any,
    tasks: Any,
    rules: Any,
    daylight: Any,
    idle: Any,
    counts: Any,
    out: Any,
    start: Int,
    stop: Int,
) -> None:
    """One action in each env that does not idle.

    Args:
        envs: (N,) `ENV` records.
        tables: (N, rows) `OBJECT` records.
        table: (A, 4) what each action does, see `engine.action_table`.
        actions: (N,).
        tasks: (tasks,) indices of the rewarded achievements.
        rules: a `Switches`.
        daylight: (length + 1,) by step.
        idle: (N,) bool, envs that do nothing.
        counts: room to count creatures in, see `balance`.
        out: the `CrafterOutputs`.
        start, stop: the envs to step.
    """
    for n in range(start, stop):
        if idle[n]:
            out.rewards[n] = 0.0
            out.terminated[n] = out.truncated[n] = out.success[n] = False
            out.eval_success[n] = out.action_success[n] = False
            continue
        env, objects = envs[n], tables[n]
        did, permitted = _tick(env, objects, table[actions[n]], rules, daylight, counts)
        out.eval_success[n], out.action_success[n] = did, permitted
        unlocked: Int = 0
        for task in range(len(tasks)):
            unlocked += env.achievements[tasks[task]] > 0
        health = np.int64(env.inventory[HEALTH])
        reward = 0.0
        if rules.pays:
            reward = 1.0 if unlocked > env.unlocked else 0.0
            if rules.health_reward:
                reward += (health - np.int64(env.health_paid)) / 10
        env.unlocked = unlocked
        env.health_paid = health
        env.episode_return += reward
        solved = unlocked == len(tasks)
        terminated = health <= 0 or (solved and rules.ends_on_success)
        truncated = env.steps >= len(daylight) - 1 and not terminated
        out.rewards[n] = reward
        out.terminated[n] = terminated
        out.truncated[n] = truncated
        out.success[n] = solved and (terminated or truncated)
        _show(env, objects, daylight[env.steps], rules.symbolic, out.symbolic[n])
        out.table_ends[n] = env.objects_end


@helper
def _show(env: Any, objects: Any, light: float, symbolic: bool, observation: Any) -> None:
    """Write the symbolic observation if it was asked for; the random stream moves on either way."""
    if symbolic:
        observe(env, objects, light, observation)
    pass_picture(env, light)


@kernel
def begin_envs(
    envs: Any, tables: Any, chosen: Any, rules: Any, daylight: Any, rooms: Any, out: Any, start: Int, stop: Int
) -> None:
    """`Env.reset` of each chosen env, with the seed laid ready in `next_seed`. `rooms`: (1,) `worldgen.ROOM`."""
    for n in range(start, stop):
        if chosen[n]:
            env, objects = envs[n], tables[n]
            env.episode += 1
            seed_stream(env, env.next_seed)
            _clear(env)
            add(env, objects, PLAYER, AREA // 2, AREA // 2, 0, 0)
            generate_world(env, objects, rooms[0])
            out.table_ends[n] = env.objects_end
            _show(env, objects, daylight[0], rules.symbolic, out.symbolic[n])


@kernel
def observe_envs(envs: Any, tables: Any, daylight: Any, observations: Any, start: Int, stop: Int) -> None:
    """The symbolic observations of envs as they stand."""
    for n in range(start, stop):
        observe(envs[n], tables[n], daylight[envs[n].steps], observations[n])


@kernel
def draw_envs(
    envs: Any, tables: Any, chosen: Any, daylight: Any, tiles: Any, images: Any, start: Int, stop: Int
) -> None:
    """The pictures of the chosen envs as they stand; the envs stay as they were."""
    for n in range(start, stop):
        if chosen[n]:
            picture_again(envs[n], tables[n], daylight[envs[n].steps], tiles, images[n])
