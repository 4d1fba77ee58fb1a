"""World generation, `crafter/worldgen.py` cell by cell and draw by draw.

Terrain is a decision tree over noise. Most decisions are clear long before all noise is known: with noise never beyond
±1, two coarse planes bound `water` and `mountain` well enough for most cells. The bounds are wide by `_MARGIN`, and
where they do not decide, the value itself is computed with the reference's operations in the reference's order. Noise
is a pure function, so leaving some out changes nothing; random draws are never reordered.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from bkrl.envs.crafter.mt19937 import randint, uniform
from bkrl.envs.crafter.noise import LARGEST, noise3, permutation
from bkrl.envs.crafter.rules import AREA
from bkrl.envs.crafter.scalars import Int
from bkrl.envs.crafter.state import (
    COAL,
    COW,
    DIAMOND,
    GRASS,
    IRON,
    LAVA,
    PATH,
    SAND,
    SKELETON,
    STONE,
    TREE,
    WALKABLE_SET,
    WATER,
    ZOMBIE,
    add,
)
from bkrl.envs.jit import kernel

COW_HEALTH: Final = 3
ZOMBIE_HEALTH: Final = 5
SKELETON_HEALTH: Final = 3

CENTER: Final = AREA // 2
_MARGIN: Final = 1e-6
_CLEARING: Final = 14  # beyond this distance the clearing around the player lifts nothing by more than _FAINT
_FAINT: Final = 1 / (1 + np.exp(_CLEARING - 4 - 2 * LARGEST))


@kernel
def _clearing(x: Int, y: Int, distance: float, perm: Any, gradient: Any) -> float:
    start = 4 - distance
    start += 2 * noise3(x / 3, y / 3, 8.0, perm, gradient)
    return 1 / (1 + np.exp(-start))


@kernel
def _rock(x: Int, y: Int, mountain: float, tunnels: Any, world: Any, perm: Any, gradient: Any) -> Int:
    """What a mountain is made of at (x, y), where `mountain` > 0.15."""
    if mountain > 0.3 and noise3(x / 7, y / 7, 6.0, perm, gradient) > 0.15:
        return PATH  # a cave
    if (
        noise3(2 * x / 3, y / 5 / 3, 7.0, perm, gradient) > 0.4
        or noise3(x / 5 / 3, 2 * y / 3, 7.0, perm, gradient) > 0.4
    ):
        tunnels[x, y] = True  # horizontal, vertical
        return PATH
    if noise3(x / 8, y / 8, 1.0, perm, gradient) > 0 and uniform(world) > 0.85:
        return COAL
    if noise3(x / 6, y / 6, 2.0, perm, gradient) > 0.4 and uniform(world) > 0.75:
        return IRON
    if mountain > 0.18 and uniform(world) > 0.994:
        return DIAMOND
    if mountain > 0.3 and noise3(x / 5, y / 5, 6.0, perm, gradient) > 0.35:
        return LAVA
    return STONE


@kernel
def _material(x: Int, y: Int, tunnels: Any, world: Any, perm: Any, gradient: Any) -> Int:
    """`_set_material`: the terrain at (x, y)."""
    dx, dy = x - CENTER, y - CENTER
    distance = np.sqrt(float(dx * dx + dy * dy))
    water_coarse = noise3(x / 15, y / 15, 3.0, perm, gradient)
    mountain_coarse = noise3(x / 15, y / 15, 0.0, perm, gradient)
    dry = False  # surely too dry for water and sand
    flat = False  # surely no mountain
    if distance > _CLEARING:
        water_low = water_coarse - 0.15 * LARGEST + 0.1 - 2 * _FAINT
        water_high = water_coarse + 0.15 * LARGEST + 0.1
        flat = (mountain_coarse + 0.3 * LARGEST) / 1.3 - 0.3 * water_low < 0.15 - _MARGIN
        dry = water_high < 0.25 - _MARGIN
        if flat and water_low > 0.35 + _MARGIN:
            return WATER
    if not (flat and dry):
        start = _clearing(x, y, distance, perm, gradient)
        water = water_coarse + 0.15 * noise3(x / 5, y / 5, 3.0, perm, gradient) + 0.1
        water -= 2 * start
        if start > 0.5:
            return GRASS
        if not flat:
            mountain = (mountain_coarse + 0.3 * noise3(x / 5, y / 5, 0.0, perm, gradient)) / 1.3
            mountain -= 4 * start + 0.3 * water
            if mountain > 0.15:
                return _rock(x, y, mountain, tunnels, world, perm, gradient)
        if 0.25 < water <= 0.35 and noise3(x / 9, y / 9, 4.0, perm, gradient) > -0.2:
            return SAND
        if water > 0.3:
            return WATER
    if noise3(x / 7, y / 7, 5.0, perm, gradient) > 0 and uniform(world) > 0.8:
        return TREE
    return GRASS


@kernel
def _populate(x: Int, y: Int, tunnels: Any, world: Any, objects: Any) -> None:
    """`_set_object`: who lives at (x, y) when the game begins."""
    material = np.int64(world.materials[x, y])
    if (WALKABLE_SET >> material) & 1 == 0:
        return
    dx, dy = x - CENTER, y - CENTER
    squared = dx * dx + dy * dy
    if squared > 3 * 3 and material == GRASS and uniform(world) > 0.985:
        add(world, objects, COW, x, y, COW_HEALTH, 0)
    elif squared > 10 * 10 and uniform(world) > 0.993:
        add(world, objects, ZOMBIE, x, y, ZOMBIE_HEALTH, 0)
    elif material == PATH and tunnels[x, y] and uniform(world) > 0.95:
        add(world, objects, SKELETON, x, y, SKELETON_HEALTH, 0)


@kernel
def generate_world(world: Any, objects: Any) -> None:
    """Terrain, then creatures, column by column; the player is there already."""
    perm, gradient = np.empty(256, np.uint8), np.empty(256, np.uint8)
    permutation(randint(world, 2**31 - 1), perm, gradient)
    tunnels = np.zeros((AREA, AREA), np.bool_)
    for x in range(AREA):
        for y in range(AREA):
            world.materials[x, y] = _material(x, y, tunnels, world, perm, gradient)
    for x in range(AREA):
        for y in range(AREA):
            _populate(x, y, tunnels, world, objects)
