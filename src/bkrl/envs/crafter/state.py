"""The state of many Crafter envs: one record an env, and a table of objects each.

Objects stand in the order in which they were added, the player first, as in crafter's own list; that is the order they
act in. A removed object leaves an empty row, and rows are moved up (in order) when many are empty. Crafter also keeps
the objects of each 12×12 chunk in a set; here an object remembers when it came to its chunk (`arrival`), which is the
order of an insertion-ordered set, and an env remembers in which order its chunks were first used.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bkrl.core.jit import Int, helper
from bkrl.envs.crafter.layout import CELL, CELL_NAMES, FACING_STEPS
from bkrl.envs.crafter.mt19937 import WORDS
from bkrl.envs.crafter.rules import ACHIEVEMENTS, AREA, CHUNK, ITEMS, MATERIALS, VITALS, WALKABLE

# What stands in a cell: the ids of the symbolic observation, in the order of `layout.CELL_NAMES`
NOTHING, WATER, GRASS, STONE, PATH, SAND, TREE, LAVA, COAL, IRON, DIAMOND, TABLE, FURNACE = range(1 + len(MATERIALS))
PLAYER, COW, ZOMBIE, SKELETON, ARROW, PLANT, RIPE_PLANT = range(1 + len(MATERIALS), len(CELL_NAMES))
HEALTH, FOOD, DRINK, ENERGY = range(len(VITALS))  # of `rules.ITEMS`

# Sets of materials are bits
WALKABLE_SET: Final = sum(1 << CELL[name] for name in WALKABLE)
PLAYER_WALKABLE_SET: Final = WALKABLE_SET | 1 << LAVA
ARROW_WALKABLE_SET: Final = WALKABLE_SET | 1 << WATER | 1 << LAVA

DIRECTIONS: Final = np.array(FACING_STEPS, np.int64)
"""(4, 2): left, right, up, down, also the order in which creatures draw a random direction."""
FACING_DOWN: Final = 3

CHUNKS_A_SIDE: Final = -(-AREA // CHUNK)
CHUNKS: Final = CHUNKS_A_SIDE**2

THE_PLAYER: Final = 1
"""The player's row in the table of objects; row 0 stays empty, so that 0 in `object_at` means no object."""

OBJECT: Final = np.dtype(
    [
        ("arrival", np.int32),  # when it came to its chunk, on the env's own count
        ("x", np.int16),
        ("y", np.int16),
        ("health", np.int16),
        ("timer", np.int16),  # zombie: cooldown; skeleton: reload; plant: age; arrow: direction
        ("kind", np.uint8),  # NOTHING once removed
    ],
    align=True,
)

ENV: Final = np.dtype(
    [
        # MT19937, and as it was before the noise of the last picture was drawn
        ("mt", np.uint32, (WORDS,)),
        ("picture_mt", np.uint32, (WORDS,)),
        ("mt_pos", np.int32),
        ("picture_mt_pos", np.int32),
        # Seeds: the next episode's is drawn up in Python, from the seed and the episode's number
        ("seed", np.int64),
        ("episode", np.int64),
        ("next_seed", np.int64),
        # Noise of the terrain, and its tunnels [x, y]: needed while an env is made
        ("permutation", np.uint8, (256,)),
        ("gradient", np.uint8, (256,)),
        ("tunnels", np.uint8, (AREA, AREA)),
        # The map
        ("materials", np.uint8, (AREA, AREA)),  # [x, y]
        ("object_at", np.int16, (AREA, AREA)),  # [x, y] row in the table of objects
        ("objects_end", np.int32),  # first unused row of the table
        ("removed", np.int32),  # empty rows before it
        ("arrivals", np.int32),
        ("grass_cells", np.int16, (CHUNKS,)),
        ("path_cells", np.int16, (CHUNKS,)),
        ("chunk_order", np.uint8, (CHUNKS,)),
        ("chunk_used", np.uint8, (CHUNKS,)),
        ("chunks_used", np.int32),
        # The player
        ("inventory", np.int16, (len(ITEMS),)),
        ("achievements", np.int32, (len(ACHIEVEMENTS),)),
        ("hunger", np.float64),
        ("thirst", np.float64),
        ("fatigue", np.float64),
        ("recover", np.float64),
        ("health_felt", np.int16),  # health at the player's last turn
        ("facing", np.uint8),
        ("sleeping", np.uint8),
        # The episode
        ("steps", np.int32),
        ("unlocked", np.int32),  # rewarded achievements so far
        ("health_paid", np.int16),  # health at the last reward
        ("episode_return", np.float64),
    ],
    align=True,
)

FIRST_ROWS: Final = 512
"""Rows of the object tables to begin with; an episode has about 100 objects."""


def rows_needed(table_ends: NDArray[np.int64]) -> int:
    """Rows that surely suffice for one more step: every object may add one, and so may each chunk's three balances."""
    return 2 * int(table_ends.max()) + 3 * CHUNKS


@helper
def inside(x: Int, y: Int) -> bool:
    """Is (x, y) on the map?"""
    return 0 <= x < AREA and 0 <= y < AREA


@helper
def object_on(env: Any, x: Int, y: Int) -> Int:
    """The row of the object at (x, y); 0 where there is none or the map ends."""
    return np.int64(env.object_at[x, y]) if inside(x, y) else np.int64(0)


@helper
def is_free(env: Any, x: Int, y: Int, walkable: Int) -> bool:
    """Nobody stands at (x, y) and its material is in the set `walkable`."""
    return inside(x, y) and env.object_at[x, y] == 0 and (walkable >> np.int64(env.materials[x, y])) & 1 == 1


@helper
def chunk_of(x: Int, y: Int) -> Int:
    """Number of the chunk (x, y) lies in."""
    return (x // CHUNK) * CHUNKS_A_SIDE + y // CHUNK


@helper
def set_material(env: Any, x: Int, y: Int, material: Int) -> None:
    """Change the ground at (x, y), keeping count of the grass and path of its chunk."""
    chunk = chunk_of(x, y)
    before = env.materials[x, y]
    env.grass_cells[chunk] += (material == GRASS) - (before == GRASS)
    env.path_cells[chunk] += (material == PATH) - (before == PATH)
    env.materials[x, y] = material


@helper
def _enter_chunk(env: Any, thing: Any, chunk: Int) -> None:
    if not env.chunk_used[chunk]:
        env.chunk_used[chunk] = 1
        env.chunk_order[env.chunks_used] = chunk
        env.chunks_used += 1
    thing.arrival = env.arrivals
    env.arrivals += 1


@helper
def add(env: Any, objects: Any, kind: Int, x: Int, y: Int, health: Int, timer: Int) -> None:
    """Put a new object on the free cell (x, y)."""
    row = np.int64(env.objects_end)
    if row >= len(objects):
        raise RuntimeError("the table of objects is full")
    thing = objects[row]
    thing.kind, thing.x, thing.y, thing.health, thing.timer = kind, x, y, health, timer
    env.object_at[x, y] = row
    env.objects_end += 1
    _enter_chunk(env, thing, chunk_of(x, y))


@helper
def remove(env: Any, objects: Any, row: Int) -> None:
    """Take an object out of the env; its place and health can still be read."""
    thing = objects[row]
    if thing.kind != NOTHING:
        env.object_at[thing.x, thing.y] = 0
        thing.kind = NOTHING
        env.removed += 1


@helper
def move(env: Any, objects: Any, row: Int, dx: Int, dy: Int, walkable: Int) -> bool:
    """Step by (dx, dy) if that cell is free. An object removed this turn stays where it is; the result is True."""
    thing = objects[row]
    old_x, old_y = np.int64(thing.x), np.int64(thing.y)
    x, y = old_x + dx, old_y + dy
    if not is_free(env, x, y, walkable):
        return False
    if thing.kind != NOTHING:
        env.object_at[old_x, old_y] = 0
        env.object_at[x, y] = row
        thing.x, thing.y = x, y
        if chunk_of(x, y) != chunk_of(old_x, old_y):
            _enter_chunk(env, thing, chunk_of(x, y))
    return True


@helper
def hurt(env: Any, objects: Any, row: Int, damage: Int) -> None:
    """Lower the health of an object, of the player too; never below 0."""
    if row == THE_PLAYER:
        env.inventory[HEALTH] = max(0, np.int64(env.inventory[HEALTH]) - damage)
    else:
        objects[row].health = max(0, np.int64(objects[row].health) - damage)


@helper
def close_gaps(env: Any, objects: Any) -> None:
    """Move the rows up over removed ones, once half of them are empty; the order stays."""
    if 2 * env.removed < env.objects_end or env.objects_end < 64:
        return
    end = THE_PLAYER
    for row in range(THE_PLAYER, env.objects_end):
        thing = objects[row]
        if thing.kind != NOTHING:
            if end != row:
                into = objects[end]
                into.arrival, into.x, into.y = thing.arrival, thing.x, thing.y
                into.health, into.timer, into.kind = thing.health, thing.timer, thing.kind
                env.object_at[thing.x, thing.y] = end
            end += 1
    env.objects_end = end
    env.removed = 0
