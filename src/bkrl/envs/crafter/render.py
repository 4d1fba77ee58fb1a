"""What the player sees: the 64×64 picture of `crafter/engine.py` (LocalView, ItemView), and the symbolic observation.

The night's noise is drawn from the world's own random stream, one double for each pixel of the local view, at every
step in the dark, looked at or not. `pass_picture` moves the stream on without drawing; it keeps the stream as it was
before, so that the picture can still be drawn afterwards.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from bkrl.core.jit import Int, helper
from bkrl.envs.crafter.creatures import is_ripe
from bkrl.envs.crafter.layout import CELL_NAMES, DAYLIGHT, FACING, INVENTORY, SLEEPING, VIEW_COLUMNS, VIEW_ROWS
from bkrl.envs.crafter.mt19937 import WORDS, skip_words, uniforms
from bkrl.envs.crafter.rules import ITEMS
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

_DARK: Final = 0.5  # daylight below this brings noise
_NOISE_WORDS: Final = 2 * UNIT * UNIT * VIEW_COLUMNS * VIEW_ROWS  # one double a pixel, two words a double
_NOISE_LOW: Final = 32
_NOISE_HIGH: Final = 127
_NIGHT_TINT: Final = np.array([0, 16, 64])
_SLEEP_TINT: Final = np.array([0, 0, 16])
_TINT: Final = 0.5
_DIM: Final = np.float32(0.4)  # colour left by night
_VIEW_WIDTH: Final = UNIT * VIEW_COLUMNS
_VIEW_HEIGHT: Final = UNIT * VIEW_ROWS

_PLAYER_SPRITE: Final = SPRITES.index("player-left")
_SLEEPER_SPRITE: Final = SPRITES.index("player-sleep")
_COW_SPRITE: Final = SPRITES.index("cow")
_ZOMBIE_SPRITE: Final = SPRITES.index("zombie")
_SKELETON_SPRITE: Final = SPRITES.index("skeleton")
_ARROW_SPRITE: Final = SPRITES.index("arrow-left")
_PLANT_SPRITE: Final = SPRITES.index("plant")
_RIPE_SPRITE: Final = SPRITES.index("plant-ripe")


@helper
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


@helper
def pass_picture(world: Any, daylight: float) -> None:
    """Move the random stream on as if the picture had been drawn."""
    if daylight < _DARK:
        for word in range(WORDS):
            world.picture_mt[word] = world.mt[word]
        world.picture_mt_pos = world.mt_pos
        skip_words(world, _NOISE_WORDS)


@helper
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


@helper
def draw_picture(world: Any, objects: Any, daylight: float, tiles: Any, image: Any) -> None:
    """Draw (64, 64, 3), indexed [y, x]; the last row and column stay black."""
    image[_VIEW_HEIGHT:] = 0
    image[:, _VIEW_WIDTH:] = 0
    if daylight < _DARK:
        _draw_by_night(world, objects, daylight, tiles, image)
    else:
        _draw_by_day(world, objects, daylight, tiles, image)
    for item in range(len(ITEMS)):
        field = tiles.items[item, world.inventory[item]]
        top, left = (VIEW_ROWS + item // VIEW_COLUMNS) * UNIT, item % VIEW_COLUMNS * UNIT
        for i in range(UNIT):
            for j in range(UNIT):
                for channel in range(3):
                    image[top + i, left + j, channel] = field[i, j, channel]


@helper
def _draw_by_day(world: Any, objects: Any, daylight: float, tiles: Any, image: Any) -> None:
    """The local view without noise: cells that look the same are worked out once and copied."""
    player = objects[THE_PLAYER]
    drawn_at = np.full(len(SPRITES) * len(CELL_NAMES), -1)
    for row in range(VIEW_ROWS):
        for column in range(VIEW_COLUMNS):
            x, y = player.x + column - VIEW_COLUMNS // 2, player.y + row - VIEW_ROWS // 2
            sprite, material = _tile_at(world, objects, x, y)
            top, left = row * UNIT, column * UNIT
            like = drawn_at[sprite * len(CELL_NAMES) + material]
            if like >= 0:
                like_top, like_left = like // VIEW_COLUMNS * UNIT, like % VIEW_COLUMNS * UNIT
                for i in range(UNIT):
                    for j in range(UNIT):
                        for channel in range(3):
                            image[top + i, left + j, channel] = image[like_top + i, like_left + j, channel]
                continue
            drawn_at[sprite * len(CELL_NAMES) + material] = row * VIEW_COLUMNS + column
            tile = tiles.cells[sprite, material]
            for i in range(UNIT):
                for j in range(UNIT):
                    r, g, b = np.int64(tile[i, j, 0]), np.int64(tile[i, j, 1]), np.int64(tile[i, j, 2])
                    r, g, b = _lit(r, g, b, r, g, b, daylight, world.sleeping)
                    image[top + i, left + j, 0] = r
                    image[top + i, left + j, 1] = g
                    image[top + i, left + j, 2] = b


@helper
def _draw_by_night(world: Any, objects: Any, daylight: float, tiles: Any, image: Any) -> None:
    """The local view with noise, which crafter draws column by column of the picture."""
    player = objects[THE_PLAYER]
    noise = np.empty(_VIEW_WIDTH * _VIEW_HEIGHT)
    uniforms(world, noise)
    amount = 2 * (_DARK - daylight)
    for column in range(VIEW_COLUMNS):
        for row in range(VIEW_ROWS):
            x, y = player.x + column - VIEW_COLUMNS // 2, player.y + row - VIEW_ROWS // 2
            sprite, material = _tile_at(world, objects, x, y)
            tile = tiles.cells[sprite, material]
            top, left = row * UNIT, column * UNIT
            for j in range(UNIT):
                for i in range(UNIT):
                    grain = _NOISE_LOW + (_NOISE_HIGH - _NOISE_LOW) * noise[(left + j) * _VIEW_HEIGHT + top + i]
                    mask = amount * tiles.vignette[left + j, top + i]
                    r, g, b = np.int64(tile[i, j, 0]), np.int64(tile[i, j, 1]), np.int64(tile[i, j, 2])
                    noisy_r = np.int64((1 - mask) * r + mask * grain)
                    noisy_g = np.int64((1 - mask) * g + mask * grain)
                    noisy_b = np.int64((1 - mask) * b + mask * grain)
                    r, g, b = _lit(r, g, b, noisy_r, noisy_g, noisy_b, daylight, world.sleeping)
                    image[top + i, left + j, 0] = r
                    image[top + i, left + j, 1] = g
                    image[top + i, left + j, 2] = b


@helper
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


@helper
def _grey(r: Int, g: Int, b: Int) -> Int:
    """Pillow's conversion to luminance."""
    return (r * 19595 + g * 38470 + b * 7471 + 0x8000) >> 16


@helper
def _pale(grey: Int, channel: Int) -> Int:
    """Pillow's `blend`: what is left of a channel when 60 % of the colour is taken away, in single precision."""
    return np.uint8(np.float32(grey) + _DIM * np.float32(channel - grey))


@helper
def _lit(
    r: Int, g: Int, b: Int, noisy_r: Int, noisy_g: Int, noisy_b: Int, daylight: float, sleeping: Int
) -> tuple[Int, Int, Int]:
    """`_light` and `_sleep`: mix the colours of day and night (noisy, pale, bluish); asleep, grey and darker."""
    grey = _grey(noisy_r, noisy_g, noisy_b)
    night = 1 - daylight
    red = daylight * r + night * ((1 - _TINT) * _pale(grey, noisy_r) + _TINT * _NIGHT_TINT[0])
    green = daylight * g + night * ((1 - _TINT) * _pale(grey, noisy_g) + _TINT * _NIGHT_TINT[1])
    blue = daylight * b + night * ((1 - _TINT) * _pale(grey, noisy_b) + _TINT * _NIGHT_TINT[2])
    if sleeping:
        grey = _grey(np.int64(red), np.int64(green), np.int64(blue))
        red = (1 - _TINT) * grey + _TINT * _SLEEP_TINT[0]
        green = (1 - _TINT) * grey + _TINT * _SLEEP_TINT[1]
        blue = (1 - _TINT) * grey + _TINT * _SLEEP_TINT[2]
    return np.uint8(red), np.uint8(green), np.uint8(blue)
