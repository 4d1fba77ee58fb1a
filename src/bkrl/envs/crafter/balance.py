"""Spawning and despawning, chunk by chunk: `Env._balance_chunk`. Runs at every tenth step."""

from typing import Any, Final

import numpy as np

from bkrl.core.jit import Int, helper
from bkrl.envs.crafter import state as c
from bkrl.envs.crafter.creatures import distance_to_player
from bkrl.envs.crafter.mt19937 import randint, uniform
from bkrl.envs.crafter.rules import AREA, CHUNK
from bkrl.envs.crafter.worldgen import COW_HEALTH, SKELETON_HEALTH, ZOMBIE_HEALTH

BALANCE_EVERY: Final = 10
COUNTS_SHAPE: Final = (c.CHUNKS, c.SKELETON + 1)
"""Of the int64 array in which creatures are counted, by chunk and kind."""

_ZOMBIE_SPAWN_DISTANCE: Final = 6
_ZOMBIE_DESPAWN_DISTANCE: Final = 0
_SKELETON_DISTANCE: Final = 7
_COW_DISTANCE: Final = 5


@helper
def balance(env: Any, objects: Any, daylight: float, counts: Any) -> None:
    """Every chunk that ever held an object, in the order in which they first did. `counts` is room: `COUNTS_SHAPE`."""
    for i in range(c.CHUNKS):
        counts[i, c.COW] = counts[i, c.ZOMBIE] = counts[i, c.SKELETON] = 0
    for row in range(c.THE_PLAYER + 1, env.objects_end):
        thing = objects[row]
        kind = np.int64(thing.kind)
        if kind in (c.COW, c.ZOMBIE, c.SKELETON):
            counts[c.chunk_of(thing.x, thing.y), kind] += 1
    for i in range(env.chunks_used):
        chunk = np.int64(env.chunk_order[i])
        _balance_chunk(
            env, objects, chunk, counts[chunk, c.COW], counts[chunk, c.ZOMBIE], counts[chunk, c.SKELETON], daylight
        )


@helper
def _balance_chunk(
    env: Any, objects: Any, chunk: Int, cows: Int, zombies: Int, skeletons: Int, daylight: float
) -> None:
    grass, path = np.int64(env.grass_cells[chunk]), np.int64(env.path_cells[chunk])
    most = 3.5 - 3 * daylight
    least = most if grass >= 50 else 0.0
    if _wants_more(env, zombies, least, 0.3):
        _spawn(env, objects, chunk, c.ZOMBIE, c.GRASS, grass, _ZOMBIE_SPAWN_DISTANCE, ZOMBIE_HEALTH)
    elif _wants_fewer(env, zombies, most, 0.4):
        _despawn(env, objects, chunk, c.ZOMBIE, zombies, _ZOMBIE_DESPAWN_DISTANCE)
    if _wants_more(env, skeletons, 1.0 if path >= 6 else 0.0, 0.1):
        _spawn(env, objects, chunk, c.SKELETON, c.PATH, path, _SKELETON_DISTANCE, SKELETON_HEALTH)
    elif _wants_fewer(env, skeletons, 2.0, 0.1):
        _despawn(env, objects, chunk, c.SKELETON, skeletons, _SKELETON_DISTANCE)
    if _wants_more(env, cows, 1.0 if grass >= 30 else 0.0, 0.01):
        _spawn(env, objects, chunk, c.COW, c.GRASS, grass, _COW_DISTANCE, COW_HEALTH)
    elif _wants_fewer(env, cows, 1.5 + daylight, 0.1):
        _despawn(env, objects, chunk, c.COW, cows, _COW_DISTANCE)


@helper
def _wants_more(env: Any, count: Int, least: float, probability: float) -> bool:
    return count < int(least) and uniform(env) < probability


@helper
def _wants_fewer(env: Any, count: Int, most: float, probability: float) -> bool:
    return count > int(most) and uniform(env) < probability


@helper
def _spawn(
    env: Any, objects: Any, chunk: Int, kind: Int, material: Int, space: Int, distance: Int, health: Int
) -> None:
    """A new creature on a random cell of its material, if that is free and far enough from the player."""
    choice = randint(env, space)
    x0, y0 = (chunk // c.CHUNKS_A_SIDE) * CHUNK, (chunk % c.CHUNKS_A_SIDE) * CHUNK
    for x in range(x0, min(x0 + CHUNK, AREA)):
        for y in range(y0, min(y0 + CHUNK, AREA)):
            if env.materials[x, y] == material:
                if choice == 0:
                    player = objects[c.THE_PLAYER]
                    away = abs(np.int64(player.x) - x) + abs(np.int64(player.y) - y)
                    if env.object_at[x, y] == 0 and away >= distance:
                        c.add(env, objects, kind, x, y, health, 0)
                    return
                choice -= 1


@helper
def _despawn(env: Any, objects: Any, chunk: Int, kind: Int, count: Int, distance: Int) -> None:
    """Take away one creature of the chunk, drawn in the order in which they came to it, if it is far enough."""
    choice = randint(env, count)
    last = np.int64(-1)
    row: Int = np.int64(0)
    for _ in range(choice + 1):
        earliest = np.int64(2**31)
        for candidate in range(c.THE_PLAYER + 1, env.objects_end):
            thing = objects[candidate]
            if (
                thing.kind == kind
                and last < thing.arrival < earliest
                and c.chunk_of(np.int64(thing.x), np.int64(thing.y)) == chunk
            ):
                earliest, row = np.int64(thing.arrival), candidate
        last = earliest
    if distance_to_player(objects, row) >= distance:
        c.remove(env, objects, row)
