"""What the player sees: the 64×64 picture of `crafter/engine.py` (LocalView, ItemView), and the symbolic observation.

The night's noise is drawn from the world's own random stream, one double for each pixel of the local view, at every
step in the dark, looked at or not. `pass_picture` moves the stream on without drawing; it keeps the stream as it was
before, so that the picture can still be drawn afterwards.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from bkrl.envs.crafter.creatures import is_ripe
from bkrl.envs.crafter.layout import DAYLIGHT, FACING, INVENTORY, SLEEPING, VIEW_COLUMNS, VIEW_ROWS
from bkrl.envs.crafter.mt19937 import skip_words, uniform
from bkrl.envs.crafter.rules import AREA, ITEMS
from bkrl.envs.crafter.scalars import Int
from bkrl.envs.crafter.state import (
    ARROW,
    COW,
    PLAYER,
    RIPE_PLANT,
    SKELETON,
    THE_PLAYER,
    ZOMBIE,
    inside,
)
from bkrl.envs.crafter.textures import SPRITES, UNIT
from bkrl.envs.jit import kernel

_DARK: Final = 0.5  # daylight below this brings noise
_NOISE_WORDS: Final = 2 * UNIT * UNIT * VIEW_COLUMNS * VIEW_ROWS  # two words a double, one double a pixel
_NOISE_LOW: Final = 32
_NOISE_HIGH: Final = 127
_NIGHT_TINT: Final = np.array([0, 16, 64])
_SLEEP_TINT: Final = np.array([0, 0, 16])
_TINT: Final = 0.5

_PLAYER_SPRITE: Final = SPRITES.index("player-left")
_SLEEPER_SPRITE: Final = SPRITES.index("player-sleep")
_COW_SPRITE: Final = SPRITES.index("cow")
_ZOMBIE_SPRITE: Final = SPRITES.index("zombie")
_SKELETON_SPRITE: Final = SPRITES.index("skeleton")
_ARROW_SPRITE: Final = SPRITES.index("arrow-left")
_PLANT_SPRITE: Final = SPRITES.index("plant")
_RIPE_SPRITE: Final = SPRITES.index("plant-ripe")


@kernel
def observe(world: Any, objects: Any, daylight: float, observation: Any) -> None:
    """Write the symbolic observation (82,), see `layout`."""
    player = objects[THE_PLAYER]
    left, top = np.int64(player.x) - VIEW_COLUMNS // 2, np.int64(player.y) - VIEW_ROWS // 2
    for row in range(VIEW_ROWS):
        for column in range(VIEW_COLUMNS):
            x, y = left + column, top + row
            seen: Int = np.int64(0)
            if inside(x, y):
                at = np.int64(world.object_at[x, y])
                if at == 0:
                    seen = np.int64(world.materials[x, y])
                elif is_ripe(objects[at]):
                    seen = RIPE_PLANT
                else:
                    seen = np.int64(objects[at].kind)
            observation[row * VIEW_COLUMNS + column] = seen
    observation[FACING] = world.facing
    for item in range(len(ITEMS)):
        observation[INVENTORY.start + item] = world.inventory[item]
    observation[SLEEPING] = world.sleeping
    observation[DAYLIGHT] = np.uint8(255 * daylight)


@kernel
def semantic_map(world: Any, objects: Any, canvas: Any) -> None:
    """Write crafter's semantic map (64, 64), indexed [x, y]: materials, and the kind of object where one stands."""
    for x in range(AREA):
        for y in range(AREA):
            at = world.object_at[x, y]
            canvas[x, y] = objects[at].kind if at != 0 else world.materials[x, y]


@kernel
def pass_picture(world: Any, daylight: float) -> None:
    """Move the random stream on as if the picture had been drawn."""
    if daylight < _DARK:
        world.picture_mt[:] = world.mt
        world.picture_mt_pos = world.mt_pos
        skip_words(world, _NOISE_WORDS)


@kernel
def picture_again(world: Any, objects: Any, daylight: float, tiles: Any, image: Any) -> None:
    """Draw the picture that `pass_picture` passed over; the stream comes out as it was."""
    if daylight < _DARK:
        kept = world.mt.copy()
        kept_pos = world.mt_pos
        world.mt[:] = world.picture_mt
        world.mt_pos = world.picture_mt_pos
        draw_picture(world, objects, daylight, tiles, image)
        world.mt[:] = kept
        world.mt_pos = kept_pos
    else:
        draw_picture(world, objects, daylight, tiles, image)


@kernel
def draw_picture(world: Any, objects: Any, daylight: float, tiles: Any, image: Any) -> None:
    """Draw (64, 64, 3), indexed [y, x]; the last row and column stay black."""
    dark = daylight < _DARK
    sleeping = world.sleeping != 0
    player = objects[THE_PLAYER]
    left, top = np.int64(player.x) - VIEW_COLUMNS // 2, np.int64(player.y) - VIEW_ROWS // 2
    image[UNIT * VIEW_COLUMNS :] = 0
    image[:, UNIT * VIEW_COLUMNS] = 0
    # crafter draws the noise column by column of the picture, so that is the order here
    noise_amount = 2 * (0.5 - daylight)
    for column in range(VIEW_COLUMNS):
        if not dark:
            for row in range(VIEW_ROWS):
                sprite, material = _tile_at(world, objects, left + column, top + row)
                tile = tiles.cells[sprite, material]
                for i in range(UNIT):
                    for j in range(UNIT):
                        r, g, b = np.int64(tile[i, j, 0]), np.int64(tile[i, j, 1]), np.int64(tile[i, j, 2])
                        _light(
                            image[row * UNIT + j, column * UNIT + i], r, g, b, r, g, b, daylight, sleeping, tiles.dim
                        )
        else:
            for i in range(UNIT):
                x = column * UNIT + i
                for row in range(VIEW_ROWS):
                    sprite, material = _tile_at(world, objects, left + column, top + row)
                    tile = tiles.cells[sprite, material]
                    for j in range(UNIT):
                        y = row * UNIT + j
                        noise = _NOISE_LOW + (_NOISE_HIGH - _NOISE_LOW) * uniform(world)
                        mask = noise_amount * tiles.vignette[x, y]
                        r, g, b = np.int64(tile[i, j, 0]), np.int64(tile[i, j, 1]), np.int64(tile[i, j, 2])
                        nr = np.int64((1 - mask) * r + mask * noise)
                        ng = np.int64((1 - mask) * g + mask * noise)
                        nb = np.int64((1 - mask) * b + mask * noise)
                        _light(image[y, x], r, g, b, nr, ng, nb, daylight, sleeping, tiles.dim)
    for item in range(len(ITEMS)):
        field = tiles.items[item, world.inventory[item]]
        x0, y0 = item % VIEW_COLUMNS * UNIT, (VIEW_ROWS + item // VIEW_COLUMNS) * UNIT
        for i in range(UNIT):
            for j in range(UNIT):
                for channel in range(3):
                    image[y0 + j, x0 + i, channel] = field[i, j, channel]
    for item in range(len(ITEMS), 2 * VIEW_COLUMNS):
        x0, y0 = item % VIEW_COLUMNS * UNIT, (VIEW_ROWS + item // VIEW_COLUMNS) * UNIT
        image[y0 : y0 + UNIT, x0 : x0 + UNIT] = 0


@kernel
def _tile_at(world: Any, objects: Any, x: Int, y: Int) -> tuple[Int, Int]:
    """(sprite, material) to be drawn for a cell."""
    if not inside(x, y):
        return np.int64(0), np.int64(0)
    material = np.int64(world.materials[x, y])
    at = np.int64(world.object_at[x, y])
    if at == 0:
        return np.int64(0), material
    thing = objects[at]
    kind = np.int64(thing.kind)
    if kind == PLAYER:
        return _SLEEPER_SPRITE if world.sleeping else _PLAYER_SPRITE + np.int64(world.facing), material
    if kind == COW:
        return np.int64(_COW_SPRITE), material
    if kind == ZOMBIE:
        return np.int64(_ZOMBIE_SPRITE), material
    if kind == SKELETON:
        return np.int64(_SKELETON_SPRITE), material
    if kind == ARROW:
        return _ARROW_SPRITE + np.int64(thing.timer), material
    return np.int64(_RIPE_SPRITE if is_ripe(thing) else _PLANT_SPRITE), material


@kernel
def _grey(r: Int, g: Int, b: Int) -> Int:
    """Pillow's conversion to luminance."""
    return (r * 19595 + g * 38470 + b * 7471 + 0x8000) >> 16


@kernel
def _light(
    pixel: Any, r: Int, g: Int, b: Int, nr: Int, ng: Int, nb: Int, daylight: float, sleeping: bool, dim: Any
) -> None:
    """`_light` and `_sleep`: mix the colours of day and night (noisy, pale, bluish); asleep, grey and darker."""
    grey = _grey(nr, ng, nb)
    night = 1 - daylight
    lit_r = daylight * r + night * ((1 - _TINT) * dim[grey, nr] + _TINT * _NIGHT_TINT[0])
    lit_g = daylight * g + night * ((1 - _TINT) * dim[grey, ng] + _TINT * _NIGHT_TINT[1])
    lit_b = daylight * b + night * ((1 - _TINT) * dim[grey, nb] + _TINT * _NIGHT_TINT[2])
    if sleeping:
        grey = _grey(np.int64(lit_r), np.int64(lit_g), np.int64(lit_b))
        lit_r = (1 - _TINT) * grey + _TINT * _SLEEP_TINT[0]
        lit_g = (1 - _TINT) * grey + _TINT * _SLEEP_TINT[1]
        lit_b = (1 - _TINT) * grey + _TINT * _SLEEP_TINT[2]
    pixel[0], pixel[1], pixel[2] = np.uint8(lit_r), np.uint8(lit_g), np.uint8(lit_b)
