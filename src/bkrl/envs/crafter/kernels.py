"""The loops over worlds: the kernels that Python calls. Each works on worlds start..stop-1, without the GIL."""

from __future__ import annotations

from typing import Any

import numpy as np

from bkrl.envs.crafter.balance import BALANCE_EVERY, balance
from bkrl.envs.crafter.creatures import creature_turn, distance_to_player
from bkrl.envs.crafter.mt19937 import seed_stream
from bkrl.envs.crafter.player import player_turn
from bkrl.envs.crafter.render import observe, pass_picture, picture_again, semantic_map
from bkrl.envs.crafter.rules import AREA, MAX_ITEM, VITALS
from bkrl.envs.crafter.scalars import Int
from bkrl.envs.crafter.state import FACING_DOWN, HEALTH, NOTHING, PLAYER, THE_PLAYER, add, close_gaps
from bkrl.envs.crafter.worldgen import generate_world
from bkrl.jit import kernel

ACTIVE_WITHIN = 18
"""Objects at least this many steps from the player rest: twice the longer side of the view."""


@kernel
def _begin(world: Any, objects: Any) -> None:
    """`Env.reset`, with the seed laid ready in `next_seed`."""
    world.episode += 1
    seed_stream(world, world.next_seed)
    world.materials[:] = 0
    world.grass_cells[:] = 0
    world.path_cells[:] = 0
    world.object_at[:] = 0
    world.objects_end = THE_PLAYER
    world.removed = world.arrivals = world.chunks_used = 0
    world.chunk_used[:] = 0
    world.inventory[:] = 0
    world.inventory[: len(VITALS)] = MAX_ITEM
    world.achievements[:] = 0
    world.hunger = world.thirst = world.fatigue = world.recover = 0.0
    world.health_felt = world.health_paid = MAX_ITEM
    world.facing = FACING_DOWN
    world.sleeping = 0
    world.steps = world.unlocked = 0
    world.episode_return = 0.0
    add(world, objects, PLAYER, AREA // 2, AREA // 2, 0, 0)
    generate_world(world, objects)


@kernel
def _tick(world: Any, objects: Any, verb: Int, base_damage: Int, full_item_fails: bool, daylight: Any) -> None:
    """`Env.step` up to the picture: everybody near the player takes a turn, then the chunks are balanced."""
    close_gaps(world, objects)
    world.steps += 1
    end = np.int64(world.objects_end)  # who comes now acts from the next step on
    player_turn(world, objects, verb, base_damage, full_item_fails)
    for row in range(THE_PLAYER + 1, end):
        if objects[row].kind != NOTHING and distance_to_player(objects, row) < ACTIVE_WITHIN:
            creature_turn(world, objects, row)
    if world.steps % BALANCE_EVERY == 0:
        balance(world, objects, daylight[world.steps])


@kernel
def _show(
    world: Any, objects: Any, daylight: Any, tiles: Any, symbolic: bool, picture: bool, observation: Any, image: Any
) -> None:
    """Write what was asked for; the random stream moves on either way."""
    light = daylight[world.steps]
    if symbolic:
        observe(world, objects, light, observation)
    pass_picture(world, light)
    if picture:
        picture_again(world, objects, light, tiles, image)


@kernel
def step_worlds(
    worlds: Any,
    tables: Any,
    verbs: Any,
    actions: Any,
    tasks: Any,
    rules: Any,
    daylight: Any,
    tiles: Any,
    still: Any,
    out: Any,
    start: Int,
    stop: Int,
) -> None:
    """One action in each world that does not stand still.

    Args:
        worlds: (N,) `WORLD` records.
        tables: (N, rows) `OBJECT` records.
        verbs: (actions,) index in `rules.VERBS` of each action.
        actions: (N,).
        tasks: (tasks,) indices of the rewarded achievements.
        rules: a `Switches`.
        daylight: (length + 1,) by step.
        tiles: see `textures`.
        still: (N,) bool, worlds that do not move.
        out: an `Outputs`.
        start, stop: the worlds to step.
    """
    for n in range(start, stop):
        if still[n]:
            out.rewards[n] = 0.0
            out.terminated[n] = out.truncated[n] = out.success[n] = False
            continue
        world, objects = worlds[n], tables[n]
        _tick(world, objects, verbs[actions[n]], rules.base_damage, rules.full_item_fails, daylight)
        unlocked: Int = 0
        for task in tasks:
            unlocked += world.achievements[task] > 0
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
        _show(world, objects, daylight, tiles, rules.symbolic, rules.picture, out.symbolic[n], out.images[n])
        out.table_ends[n] = world.objects_end


@kernel
def begin_worlds(
    worlds: Any, tables: Any, chosen: Any, rules: Any, daylight: Any, tiles: Any, out: Any, start: Int, stop: Int
) -> None:
    """A new episode in each chosen world."""
    for n in range(start, stop):
        if chosen[n]:
            _begin(worlds[n], tables[n])
            out.table_ends[n] = worlds[n].objects_end
            _show(worlds[n], tables[n], daylight, tiles, rules.symbolic, rules.picture, out.symbolic[n], out.images[n])


@kernel
def look(
    worlds: Any, tables: Any, n: Int, daylight: Any, tiles: Any, observation: Any, image: Any, semantic: Any
) -> None:
    """All that can be seen of one world, leaving it as it was."""
    world, objects = worlds[n], tables[n]
    light = daylight[world.steps]
    observe(world, objects, light, observation)
    picture_again(world, objects, light, tiles, image)
    semantic_map(world, objects, semantic)
