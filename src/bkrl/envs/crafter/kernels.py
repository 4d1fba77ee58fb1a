"""The loops over worlds: the kernels that Python calls. Each works on worlds start..stop-1, without the GIL."""

from __future__ import annotations

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
def _clear(world: Any) -> None:
    """The world's records as an episode finds them; its seed, and what `generate_world` writes anew, are left."""
    for x in range(AREA):
        for y in range(AREA):
            world.materials[x, y] = world.object_at[x, y] = world.tunnels[x, y] = 0
    for chunk in range(CHUNKS):
        world.grass_cells[chunk] = world.path_cells[chunk] = world.chunk_used[chunk] = 0
    world.objects_end = THE_PLAYER
    world.removed = world.arrivals = world.chunks_used = 0
    for item in range(len(ITEMS)):
        world.inventory[item] = MAX_ITEM if item < len(VITALS) else 0
    for achievement in range(len(ACHIEVEMENTS)):
        world.achievements[achievement] = 0
    world.hunger = world.thirst = world.fatigue = world.recover = 0.0
    world.health_felt = world.health_paid = MAX_ITEM
    world.facing = FACING_DOWN
    world.sleeping = 0
    world.steps = world.unlocked = 0
    world.episode_return = 0.0


@helper
def _tick(world: Any, objects: Any, action: Any, rules: Any, daylight: Any, counts: Any) -> tuple[bool, bool]:
    """`Env.step` up to the picture: all objects near the player take a turn, then the chunks are balanced.

    Returns the two successes of `player_turn`.
    """
    close_gaps(world, objects)
    world.steps += 1
    end = np.int64(world.objects_end)  # who comes now acts from the next step on
    success = player_turn(world, objects, action, rules)
    for row in range(THE_PLAYER + 1, end):
        if objects[row].kind != NOTHING and distance_to_player(objects, row) < ACTIVE_WITHIN:
            creature_turn(world, objects, row)
    if world.steps % BALANCE_EVERY == 0:
        balance(world, objects, daylight[world.steps], counts)
    return success


@kernel
def step_worlds(
    worlds: Any,
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
    """One action in each world that does not idle.

    Args:
        worlds: (N,) `WORLD` records.
        tables: (N, rows) `OBJECT` records.
        table: (A, 4) what each action does, see `engine.action_table`.
        actions: (N,).
        tasks: (tasks,) indices of the rewarded achievements.
        rules: a `Switches`.
        daylight: (length + 1,) by step.
        idle: (N,) bool, worlds that do nothing.
        counts: room to count creatures in, see `balance`.
        out: an `Outputs`.
        start, stop: the worlds to step.
    """
    for n in range(start, stop):
        if idle[n]:
            out.rewards[n] = 0.0
            out.terminated[n] = out.truncated[n] = out.success[n] = False
            out.eval_success[n] = out.action_success[n] = False
            continue
        world, objects = worlds[n], tables[n]
        did, permitted = _tick(world, objects, table[actions[n]], rules, daylight, counts)
        out.eval_success[n], out.action_success[n] = did, permitted
        unlocked: Int = 0
        for task in range(len(tasks)):
            unlocked += world.achievements[tasks[task]] > 0
        health = np.int64(world.inventory[HEALTH])
        reward = 0.0
        if rules.pays:
            reward = 1.0 if unlocked > world.unlocked else 0.0
            if rules.health_reward:
                reward += (health - np.int64(world.health_paid)) / 10
        world.unlocked = unlocked
        world.health_paid = health
        world.episode_return += reward
        solved = unlocked == len(tasks)
        terminated = health <= 0 or (solved and rules.ends_on_success)
        truncated = world.steps >= len(daylight) - 1 and not terminated
        out.rewards[n] = reward
        out.terminated[n] = terminated
        out.truncated[n] = truncated
        out.success[n] = solved and (terminated or truncated)
        _show(world, objects, daylight[world.steps], rules.symbolic, out.symbolic[n])
        out.table_ends[n] = world.objects_end


@helper
def _show(world: Any, objects: Any, light: float, symbolic: bool, observation: Any) -> None:
    """Write the symbolic observation if it was asked for; the random stream moves on either way."""
    if symbolic:
        observe(world, objects, light, observation)
    pass_picture(world, light)


@kernel
def begin_worlds(
    worlds: Any, tables: Any, chosen: Any, rules: Any, daylight: Any, column: Any, out: Any, start: Int, stop: Int
) -> None:
    """`Env.reset` of each chosen world, with the seed laid ready in `next_seed`. `column`: room, see `Column`."""
    for n in range(start, stop):
        if chosen[n]:
            world, objects = worlds[n], tables[n]
            world.episode += 1
            seed_stream(world, world.next_seed)
            _clear(world)
            add(world, objects, PLAYER, AREA // 2, AREA // 2, 0, 0)
            generate_world(world, objects, column)
            out.table_ends[n] = world.objects_end
            _show(world, objects, daylight[0], rules.symbolic, out.symbolic[n])


@kernel
def observe_worlds(worlds: Any, tables: Any, daylight: Any, observations: Any, start: Int, stop: Int) -> None:
    """The symbolic observations of worlds as they stand."""
    for n in range(start, stop):
        observe(worlds[n], tables[n], daylight[worlds[n].steps], observations[n])


@kernel
def draw_worlds(
    worlds: Any, tables: Any, chosen: Any, daylight: Any, tiles: Any, images: Any, start: Int, stop: Int
) -> None:
    """The pictures of the chosen worlds as they stand; the worlds stay as they were."""
    for n in range(start, stop):
        if chosen[n]:
            picture_again(worlds[n], tables[n], daylight[worlds[n].steps], tiles, images[n])
