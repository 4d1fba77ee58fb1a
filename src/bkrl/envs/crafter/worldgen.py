"""World generation, `crafter/worldgen.py` cell by cell and draw by draw.

Terrain is a decision tree over noise. Most decisions are clear long before all noise is known: with noise never beyond
±1, two coarse planes bound `water` and `mountain` well enough for most cells. The bounds are wide by `_MARGIN`, and
where they do not decide, the value itself is computed with the reference's operations in the reference's order. Noise
is a pure function, so leaving some out, or taking it plane by plane, changes nothing; random draws are never reordered.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bkrl.core.jit import Int, helper
from bkrl.envs.crafter.mt19937 import randint, uniform
from bkrl.envs.crafter.noise import LARGEST, noise3, seed_noise
from bkrl.envs.crafter.rules import AREA
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
    set_material,
)

COW_HEALTH: Final = 3
ZOMBIE_HEALTH: Final = 5
SKELETON_HEALTH: Final = 3

CENTER: Final = AREA // 2
_MARGIN: Final = 1e-6
_AXIS: Final = np.arange(AREA) - CENTER
_DISTANCE: Final = np.hypot(_AXIS[:, None], _AXIS[None, :])
_START_LEAST: Final[Any] = 1 / (1 + np.exp(_DISTANCE - 4 + 2 * LARGEST))
_START_MOST: Final[Any] = 1 / (1 + np.exp(_DISTANCE - 4 - 2 * LARGEST))
"""Bounds of `start`, the clearing around the player, at [x, y]."""
_UNKNOWN: Final = -1
# Ground that is not decided yet: grass or a tree; and rock, to which its height of 1 to 3 is added
_MEADOW: Final = 100
_ROCK: Final = 200


class Column(NamedTuple):
    """Room for what becomes of one column of the map, (AREA,) each."""

    water: NDArray[np.float64]
    mountain: NDArray[np.float64]
    ground: NDArray[np.int64]
    trees: NDArray[np.bool_]
    coal: NDArray[np.bool_]
    iron: NDArray[np.bool_]

    @classmethod
    def empty(cls) -> Column:
        """Room that holds nothing yet."""
        return cls(np.empty(AREA), np.empty(AREA), np.empty(AREA, np.int64), *np.empty((3, AREA), bool))


_QUOTIENTS: Final[Any] = np.arange(2 * AREA) / np.maximum(1, np.arange(16))[:, None]
"""x / size at [size, x]: a look-up is quicker than a division."""


@helper
def _plane(env: Any, x: Int, y: Int, z: float, size: Int) -> float:
    """`_simplex` of one size: noise at (x / size, y / size, z)."""
    return noise3(env, _QUOTIENTS[size, x], _QUOTIENTS[size, y], z)


@helper
def _level(value: float, spread: float, first: float, second: float, third: float) -> Int:
    """How many of three rising thresholds a number within `spread` of `value` exceeds, or _UNKNOWN."""
    low, high = value - spread - _MARGIN, value + spread + _MARGIN
    level = (low > first) + (low > second) + (low > third)
    return level if level == (high > first) + (high > second) + (high > third) else _UNKNOWN


@helper
def _height(mountain: float, spread: float) -> Int:
    """Level of `mountain`: 1 rock, 2 may hold diamonds, 3 may be a cave or lava."""
    return _level(mountain, spread, 0.15, 0.18, 0.3)


@helper
def _wetness(water: float, spread: float) -> Int:
    """Level of `water`: 1 may be sand, 2 may be sand and is water otherwise, 3 water."""
    return _level(water, spread, 0.25, 0.3, 0.35)


@helper
def _ground(env: Any, x: Int, y: Int, water_coarse: float, mountain_coarse: float) -> Int:
    """The first decisions of `_set_material`: a material, or _MEADOW, or _ROCK and its height.

    `exp` is the C library's here and NumPy's there. They may differ in the last bit, which matters only where a
    threshold falls between the two.
    """
    height, wetness = _UNKNOWN, _UNKNOWN
    if _START_MOST[x, y] < 0.5:
        height, wetness = _estimate(env, x, y, water_coarse, mountain_coarse)
    if height == _UNKNOWN or (height == 0 and wetness == _UNKNOWN):
        start = 4 - np.sqrt(float((x - CENTER) ** 2 + (y - CENTER) ** 2))
        start += 2 * _plane(env, x, y, 8.0, 3)
        start = 1 / (1 + np.exp(-start))
        water = water_coarse + 0.15 * _plane(env, x, y, 3.0, 5) + 0.1
        water -= 2 * start
        mountain = (mountain_coarse + 0.3 * _plane(env, x, y, 0.0, 5)) / 1.3
        mountain -= 4 * start + 0.3 * water
        if start > 0.5:
            return GRASS
        height = (mountain > 0.15) + (mountain > 0.18) + (mountain > 0.3)
        wetness = (water > 0.25) + (water > 0.3) + (water > 0.35)
    if height > 0:
        return _ROCK + height
    if (wetness == 1 or wetness == 2) and _plane(env, x, y, 4.0, 9) > -0.2:
        return SAND
    return WATER if wetness > 1 else _MEADOW


@helper
def _estimate(env: Any, x: Int, y: Int, water_coarse: float, mountain_coarse: float) -> tuple[Int, Int]:
    """Height and wetness of a cell outside the clearing, as far as bounds tell; fine noise only where needed."""
    start = (_START_LEAST[x, y] + _START_MOST[x, y]) / 2
    start_spread = _START_MOST[x, y] - start
    water, water_spread = water_coarse + 0.1 - 2 * start, 0.15 * LARGEST + 2 * start_spread
    mountain, mountain_spread = mountain_coarse / 1.3 - 4 * start, 0.3 * LARGEST / 1.3 + 4 * start_spread
    height = _height(mountain - 0.3 * water, mountain_spread + 0.3 * water_spread)
    if height == _UNKNOWN:
        mountain, mountain_spread = mountain + 0.3 * _plane(env, x, y, 0.0, 5) / 1.3, 4 * start_spread
        height = _height(mountain - 0.3 * water, mountain_spread + 0.3 * water_spread)
    if height > 0:
        return height, _UNKNOWN
    wetness = _wetness(water, water_spread)
    if height == _UNKNOWN or wetness == _UNKNOWN:
        water, water_spread = water + 0.15 * _plane(env, x, y, 3.0, 5), 2 * start_spread
        height = _height(mountain - 0.3 * water, mountain_spread + 0.3 * water_spread)
        wetness = _wetness(water, water_spread)
    return height, wetness


@helper
def _tunnel(env: Any, x: Int, y: Int) -> bool:
    """Is rock at (x, y) cut by a horizontal or a vertical tunnel?"""
    return (
        noise3(env, _QUOTIENTS[3, 2 * x], _QUOTIENTS[5, y] / 3, 7.0) > 0.4
        or noise3(env, _QUOTIENTS[5, x] / 3, _QUOTIENTS[3, 2 * y], 7.0) > 0.4
    )


@helper
def _rock(env: Any, x: Int, y: Int, height: Int, coal: bool, iron: bool) -> Int:
    """What solid rock holds, given where coal and iron can be."""
    if coal and uniform(env) > 0.85:
        return COAL
    if iron and uniform(env) > 0.75:
        return IRON
    if height >= 2 and uniform(env) > 0.994:
        return DIAMOND
    if height == 3 and _plane(env, x, y, 6.0, 5) > 0.35:
        return LAVA
    return STONE


@helper
def _lay_ground(env: Any, column: Any) -> None:
    """`_set_material` for all cells: column by column, first the noise, one plane after the other, then the draws."""
    water_coarse, mountain_coarse, ground = column.water, column.mountain, column.ground
    trees, coal, iron = column.trees, column.coal, column.iron
    for x in range(AREA):
        for y in range(AREA):
            water_coarse[y] = _plane(env, x, y, 3.0, 15)
        for y in range(AREA):
            mountain_coarse[y] = _plane(env, x, y, 0.0, 15)
        for y in range(AREA):
            ground[y] = _ground(env, x, y, water_coarse[y], mountain_coarse[y])
        for y in range(AREA):
            if ground[y] == _MEADOW:
                trees[y] = _plane(env, x, y, 5.0, 7) > 0
        for y in range(AREA):
            if ground[y] == _ROCK + 3 and _plane(env, x, y, 6.0, 7) > 0.15:
                ground[y] = PATH  # a cave
        for y in range(AREA):
            if ground[y] > _ROCK and _tunnel(env, x, y):
                ground[y] = PATH
                env.tunnels[x, y] = 1
        for y in range(AREA):
            if ground[y] > _ROCK:
                coal[y] = _plane(env, x, y, 1.0, 8) > 0
        for y in range(AREA):
            if ground[y] > _ROCK:
                iron[y] = _plane(env, x, y, 2.0, 6) > 0.4
        for y in range(AREA):
            material = ground[y]
            if material == _MEADOW:
                material = TREE if trees[y] and uniform(env) > 0.8 else GRASS
            elif material > _ROCK:
                material = _rock(env, x, y, material - _ROCK, coal[y], iron[y])
            set_material(env, x, y, material)


@helper
def _populate(env: Any, objects: Any, x: Int, y: Int) -> None:
    """`_set_object`: who lives at (x, y) when the game begins."""
    material = np.int64(env.materials[x, y])
    if (WALKABLE_SET >> material) & 1 == 0:
        return
    dx, dy = x - CENTER, y - CENTER
    squared = dx * dx + dy * dy
    if squared > 3 * 3 and material == GRASS and uniform(env) > 0.985:
        add(env, objects, COW, x, y, COW_HEALTH, 0)
    elif squared > 10 * 10 and uniform(env) > 0.993:
        add(env, objects, ZOMBIE, x, y, ZOMBIE_HEALTH, 0)
    elif material == PATH and env.tunnels[x, y] and uniform(env) > 0.95:
        add(env, objects, SKELETON, x, y, SKELETON_HEALTH, 0)


@helper
def generate_world(env: Any, objects: Any, column: Any) -> None:
    """Terrain, then creatures, column by column, on a map that is clear; the player is there already."""
    seed_noise(env, randint(env, 2**31 - 1))
    _lay_ground(env, column)
    for x in range(AREA):
        for y in range(AREA):
            _populate(env, objects, x, y)
