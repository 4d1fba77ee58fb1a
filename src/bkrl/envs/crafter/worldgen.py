"""World generation, `crafter/worldgen.py` cell by cell and draw by draw.

Terrain is a decision tree: is noise above a threshold? So noise is laid quickly and roughly (`lay_noise`), in whole
planes, of which later ones leave out columns that cannot need them. Where a number lies within `_MARGIN` of its
threshold, it is computed with the reference's operations in the reference's order. Noise is a pure function, so this
changes nothing; random draws are never reordered.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bkrl.core.jit import Int, helper, write
from bkrl.envs.crafter import state as c
from bkrl.envs.crafter.mt19937 import WORDS, randint, skip_words, uniforms
from bkrl.envs.crafter.noise import ROUGH, lay_noise, noise3, seed_noise
from bkrl.envs.crafter.rules import AREA, CHUNK, HEALTH

COW_HEALTH, ZOMBIE_HEALTH, SKELETON_HEALTH = HEALTH["cow"], HEALTH["zombie"], HEALTH["skeleton"]
CENTER: Final = AREA // 2
_MARGIN: Final = np.float32(4 * ROUGH)
"""The mountain's weights add up to most: 1, .3 times 1.15 of water, 3.4 of `start`, which moves half as far: 3.05."""

# Planes of noise: what the two coordinates are divided by, the first before the second, and z
_PLANES: Final = (
    ((3, 1), (3, 1), 8.0),  # start
    ((15, 1), (15, 1), 3.0),  # water
    ((5, 1), (5, 1), 3.0),
    ((15, 1), (15, 1), 0.0),  # mountain
    ((5, 1), (5, 1), 0.0),
    ((7, 1), (7, 1), 6.0),
    ((1.5, 1), (5, 3), 7.0),
    ((5, 3), (1.5, 1), 7.0),
    ((8, 1), (8, 1), 1.0),
    ((6, 1), (6, 1), 2.0),
    ((5, 1), (5, 1), 6.0),
    ((9, 1), (9, 1), 4.0),
    ((7, 1), (7, 1), 5.0),
)
_START, _WATER, _WATER_FINE, _MOUNTAIN, _MOUNTAIN_FINE = range(5)
_CAVE, _LEVEL_TUNNEL, _UPRIGHT_TUNNEL, _COAL, _IRON, _LAVA, _SAND, _TREE = range(5, len(_PLANES))
_X: Final[Any] = np.array([np.arange(AREA) / first / second for (first, second), _, _ in _PLANES])
_Y: Final[Any] = np.array([np.arange(AREA) / first / second for _, (first, second), _ in _PLANES])
"""(planes, AREA): where the cells lie in the noise."""
_Z: Final[Any] = np.array([z for _, _, z in _PLANES])

_SQUARED: Final = (np.arange(AREA)[:, None] - CENTER) ** 2 + (np.arange(AREA) - CENTER) ** 2
_FAR: Final[Any] = np.exp(np.sqrt(_SQUARED) - 4).astype(np.float32)
"""exp(-start) at [x, y] where its noise is 0."""
_CLEARING: Final = 19
"""Cells from the player at which the noise of `start` is of no account any more: exp(4 + 2 - 19) is 2e-6."""
_NEAR: Final = _SQUARED < _CLEARING**2

# Ground that is not decided yet: a meadow (grass or a tree), to which the level of water is added: 1 may be sand, 2 is
# sand or water, 3 is water; and rock, to which its height is added: 1, 2 may hold diamonds, 3 may be a cave or lava
_UNKNOWN: Final = 0
_MEADOW: Final = 100
_ROCK: Final = 200

# Bands: the first and the last cell of each column for which a plane is needed
_EVERYWHERE, _CENTRAL, _GREEN, _WET, _ROCKY, _HIGH = range(6)
_BANDS: Final[Any] = np.zeros((6, 2, AREA), np.int64)
_BANDS[_EVERYWHERE, 1] = AREA - 1
_BANDS[_CENTRAL, 0] = np.where(_NEAR.any(1), _NEAR.argmax(1), AREA)
_BANDS[_CENTRAL, 1] = np.where(_NEAR.any(1), AREA - 1 - _NEAR[:, ::-1].argmax(1), -1)


ROOM: Final = np.dtype(
    [
        ("noise", np.float32, (len(_PLANES), AREA * AREA)),  # roughly
        ("ground", np.int32, (AREA * AREA,)),
        ("bands", np.int64, (6, 2, AREA)),
        ("ahead", np.float64, (WORDS,)),  # doubles that are drawn already
        ("used", np.int64),  # the next of them
        ("mt", np.uint32, (WORDS,)),  # the stream as it was before they were drawn
        ("mt_pos", np.int64),
    ],
    align=True,
)
"""Room for what becomes of one map: a record, because arrays in a tuple are counted whenever they are looked at."""


def empty_room() -> NDArray[np.void]:
    """(1,) `ROOM` that holds nothing yet."""
    room = np.zeros(1, ROOM)
    room["bands"] = _BANDS
    return room


@helper
def _draw_ahead(env: Any, room: Any) -> None:
    """Have enough draws ready for one column, which needs at most three a cell."""
    if room.used > WORDS - 3 * AREA:
        _give_back(env, room)
        write(room.mt, env.mt)
        room.mt_pos = env.mt_pos
        uniforms(env, room.ahead)


@helper
def _give_back(env: Any, room: Any) -> None:
    """Set the stream to where it would be if nothing had been drawn ahead."""
    if room.used <= WORDS:
        write(env.mt, room.mt)
        env.mt_pos = room.mt_pos
        skip_words(env, 2 * room.used)
    room.used = 0


@helper
def _chance(room: Any, above: float) -> bool:
    """Is the next double of the stream above this?"""
    at = np.uint64(room.used)
    room.used += 1
    return bool(room.ahead[at] > above)


@helper
def _exact(env: Any, plane: Int, x: Int, y: Int) -> float:
    """`_simplex` of one size."""
    return noise3(env, _X[plane, x], _Y[plane, y], _Z[plane])


@helper
def _above(env: Any, room: Any, plane: Int, x: Int, y: Int, threshold: float) -> bool:
    """Is the noise of a plane above a threshold?"""
    rough = room.noise[plane, x * AREA + y] - np.float32(threshold)
    return bool(rough > 0 if abs(rough) > _MARGIN else _exact(env, plane, x, y) > threshold)


@helper
def _lay(env: Any, room: Any, plane: Int, band: Int) -> None:
    lay_noise(env, _X[plane, 1], _Y[plane, 1], _Z[plane], room.bands[band], room.noise[plane])


@helper
def _near(value: float, threshold: float) -> bool:
    return bool(abs(value - np.float32(threshold)) < _MARGIN)


@helper
def _grounds(noise: Any, ground: Any) -> None:
    """What the first decisions of `_set_material` make of all cells; _UNKNOWN where one is close.

    The loop calls nothing that is not inlined, so that the compiler makes vector instructions of it.
    """
    one = np.float32(1)
    far = _FAR.reshape(AREA * AREA)
    for at in range(AREA * AREA):
        e = noise[_START, at] * np.float32(-0.25)  # exp(-2 n) is the eighth power of the series of exp(-n / 4)
        e = one + e * (one + e * (np.float32(1 / 2) + e * (np.float32(1 / 6) + e * np.float32(1 / 24))))
        e *= e
        e *= e
        start = one / (one + far[at] * (e * e))
        water = noise[_WATER, at] + np.float32(0.15) * noise[_WATER_FINE, at] + np.float32(0.1) - start - start
        mountain = (noise[_MOUNTAIN, at] + np.float32(0.3) * noise[_MOUNTAIN_FINE, at]) * np.float32(1 / 1.3)
        mountain -= np.float32(4) * start + np.float32(0.3) * water
        close = _near(start, 0.5) | _near(mountain, 0.15) | _near(mountain, 0.18) | _near(mountain, 0.3)
        close |= _near(water, 0.25) | _near(water, 0.3) | _near(water, 0.35)
        height = np.int32(mountain > np.float32(0.15)) + np.int32(mountain > np.float32(0.18))
        height += np.int32(mountain > np.float32(0.3))
        wetness = np.int32(water > np.float32(0.25)) + np.int32(water > np.float32(0.3))
        wetness += np.int32(water > np.float32(0.35))
        kind = np.int32(_ROCK) + height if height > 0 else np.int32(_MEADOW) + wetness
        kind = np.int32(c.GRASS) if start > np.float32(0.5) else kind
        ground[at] = np.int32(_UNKNOWN) if close else kind


@helper
def _ground(env: Any, x: Int, y: Int) -> Int:
    """The same of one cell, by the reference's arithmetic.

    `exp` is the C library's here and NumPy's there. They may differ in the last bit, which matters only where a
    threshold falls between the two.
    """
    start = 4 - np.sqrt(float((x - CENTER) ** 2 + (y - CENTER) ** 2))
    start += 2 * _exact(env, _START, x, y)
    start = 1 / (1 + np.exp(-start))
    water = _exact(env, _WATER, x, y) + 0.15 * _exact(env, _WATER_FINE, x, y) + 0.1
    water -= 2 * start
    mountain = (_exact(env, _MOUNTAIN, x, y) + 0.3 * _exact(env, _MOUNTAIN_FINE, x, y)) / 1.3
    mountain -= 4 * start + 0.3 * water
    if start > 0.5:
        return c.GRASS
    height = (mountain > 0.15) + (mountain > 0.18) + (mountain > 0.3)
    return _ROCK + height if height > 0 else _MEADOW + (water > 0.25) + (water > 0.3) + (water > 0.35)


@helper
def _survey(env: Any, ground: Any, bands: Any) -> None:
    """Decide what is unknown, and find the bands."""
    for x in range(AREA):
        for band in range(_GREEN, _HIGH + 1):
            bands[band, 0, x], bands[band, 1, x] = AREA, -1
        for y in range(AREA):
            kind = np.int64(ground[x * AREA + y])
            if kind == _UNKNOWN:
                kind = _ground(env, x, y)
                ground[x * AREA + y] = kind
            if kind == c.GRASS:
                continue
            if kind >= _ROCK:
                _widen(bands, _ROCKY, x, y)
                if kind == _ROCK + 3:
                    _widen(bands, _HIGH, x, y)
            else:
                if kind <= _MEADOW + 1:
                    _widen(bands, _GREEN, x, y)
                if kind == _MEADOW + 1 or kind == _MEADOW + 2:
                    _widen(bands, _WET, x, y)


@helper
def _widen(bands: Any, band: Int, x: Int, y: Int) -> None:
    if bands[band, 1, x] < 0:
        bands[band, 0, x] = y
    bands[band, 1, x] = y


@helper
def _material(env: Any, room: Any, x: Int, y: Int) -> Int:
    """The rest of `_set_material`, and its draws."""
    kind = np.int64(room.ground[x * AREA + y])
    if kind > _ROCK:
        return _rock(env, room, x, y, kind - _ROCK)
    if kind == _MEADOW + 3:
        return c.WATER
    if kind > _MEADOW and _above(env, room, _SAND, x, y, -0.2):
        return c.SAND
    if kind == _MEADOW + 2:
        return c.WATER
    return c.TREE if kind != c.GRASS and _above(env, room, _TREE, x, y, 0.0) and _chance(room, 0.8) else c.GRASS


@helper
def _rock(env: Any, room: Any, x: Int, y: Int, height: Int) -> Int:
    """What rock at (x, y) holds."""
    if height == 3 and _above(env, room, _CAVE, x, y, 0.15):
        return c.PATH
    if _above(env, room, _LEVEL_TUNNEL, x, y, 0.4) or _above(env, room, _UPRIGHT_TUNNEL, x, y, 0.4):
        env.tunnels[x, y] = 1
        return c.PATH
    if _above(env, room, _COAL, x, y, 0.0) and _chance(room, 0.85):
        return c.COAL
    if _above(env, room, _IRON, x, y, 0.4) and _chance(room, 0.75):
        return c.IRON
    if height >= 2 and _chance(room, 0.994):
        return c.DIAMOND
    if height == 3 and _above(env, room, _LAVA, x, y, 0.35):
        return c.LAVA
    return c.STONE


@helper
def _lay_ground(env: Any, room: Any) -> None:
    """`_set_material` for all cells."""
    for plane in range(_CAVE):
        _lay(env, room, plane, _CENTRAL if plane == _START else _EVERYWHERE)
    _grounds(room.noise, room.ground)
    _survey(env, room.ground, room.bands)
    for plane in range(_CAVE, len(_PLANES)):
        band = _ROCKY if plane < _SAND else _WET if plane == _SAND else _GREEN
        _lay(env, room, plane, _HIGH if plane in (_CAVE, _LAVA) else band)
    for x in range(AREA):
        _draw_ahead(env, room)
        for y in range(AREA):
            material = _material(env, room, x, y)
            env.materials[x, y] = material
            chunk = x // CHUNK * c.CHUNKS_A_SIDE + y // CHUNK
            env.grass_cells[chunk] += material == c.GRASS
            env.path_cells[chunk] += material == c.PATH


@helper
def _populate(env: Any, objects: Any, room: Any, x: Int, y: Int) -> None:
    """`_set_object`: who lives at (x, y) when the game begins."""
    material = np.int64(env.materials[x, y])
    if (c.WALKABLE_SET >> material) & 1 == 0:
        return
    dx, dy = x - CENTER, y - CENTER
    squared = dx * dx + dy * dy
    if squared > 3 * 3 and material == c.GRASS and _chance(room, 0.985):
        c.add(env, objects, c.COW, x, y, COW_HEALTH, 0)
    elif squared > 10 * 10 and _chance(room, 0.993):
        c.add(env, objects, c.ZOMBIE, x, y, ZOMBIE_HEALTH, 0)
    elif material == c.PATH and env.tunnels[x, y] and _chance(room, 0.95):
        c.add(env, objects, c.SKELETON, x, y, SKELETON_HEALTH, 0)


@helper
def generate_world(env: Any, objects: Any, room: Any) -> None:
    """Terrain, then creatures, column by column, on a map that is clear; the player is there already."""
    seed_noise(env, randint(env, 2**31 - 1))
    room.used = WORDS + 1  # nothing is drawn ahead yet
    _lay_ground(env, room)
    for x in range(AREA):
        _draw_ahead(env, room)
        for y in range(AREA):
            _populate(env, objects, room, x, y)
    _give_back(env, room)
