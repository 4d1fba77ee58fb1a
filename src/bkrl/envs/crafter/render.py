"""What the player sees: the 64×64 picture of `crafter/engine.py` (LocalView, ItemView), and the symbolic observation.

The night's noise is drawn from the env's own random stream, one double for each pixel of the local view, at every
step in the dark, looked at or not. `pass_picture` moves the stream on without drawing; it keeps the stream as it was
before, so that the picture can still be drawn afterwards.
"""

from typing import Any, Final

import numpy as np

from bkrl.core.jit import Int, helper, write
from bkrl.envs.crafter.creatures import is_ripe
from bkrl.envs.crafter.layout import CELL_NAMES, DAYLIGHT, FACING, INVENTORY, OBJECTS, SLEEPING, VIEW_COLUMNS, VIEW_ROWS
from bkrl.envs.crafter.mt19937 import skip_words, uniforms
from bkrl.envs.crafter.rules import ITEMS, MAX_ITEM
from bkrl.envs.crafter.state import ARROW, PLAYER, RIPE_PLANT, THE_PLAYER, inside
from bkrl.envs.crafter.textures import SPRITES, UNIT

_DARK: Final = 0.5  # daylight below this brings noise
_NOISE_WORDS: Final = 2 * UNIT * UNIT * VIEW_COLUMNS * VIEW_ROWS  # one double a pixel, two words a double
_NOISE_LOW: Final = 32
_NOISE_HIGH: Final = 127
_NIGHT_TINT: Final = np.array([0, 16, 64])
_SLEEP_TINT: Final = np.array([0, 0, 16])
_TINT: Final = 0.5
_DIM: Final = np.float32(0.4)  # colour left by night
_GREY_R, _GREY_G, _GREY_B, _GREY_HALF = 19595, 38470, 7471, 0x8000  # Pillow's luminance, in 65536ths
_VIEW_WIDTH: Final = UNIT * VIEW_COLUMNS
_VIEW_HEIGHT: Final = UNIT * VIEW_ROWS
_VIEW_PIXELS: Final = _VIEW_WIDTH * _VIEW_HEIGHT
_IMAGE_SIDE: Final = 64
_LINE: Final = 3 * _IMAGE_SIDE  # bytes of a row of the picture, and of a tile
_TILE_LINE: Final = 3 * UNIT
_TILE: Final = UNIT * _TILE_LINE
_LAST_FIELDS: Final = (
    _VIEW_HEIGHT + (len(ITEMS) - 1) // VIEW_COLUMNS * UNIT
)  # the last row of items begins at this line
_ITEMS_RIGHT: Final = _TILE_LINE * ((len(ITEMS) - 1) % VIEW_COLUMNS + 1)

_SLEEPER_SPRITE: Final = SPRITES.index("player-sleep")
_RIPE_SPRITE: Final = SPRITES.index("plant-ripe")
_FIRST_SPRITE: Final = np.array([[kind in str(one) for one in SPRITES].index(True) for kind in OBJECTS[:-1]])
"""Of each kind of object from `PLAYER` on; where there are four, that which faces left."""


@helper
def observe(env: Any, objects: Any, daylight: float, observation: Any) -> None:
    """Write the symbolic observation (82,), see `layout`."""
    player = objects[THE_PLAYER]
    left, top = np.int64(player.x) - VIEW_COLUMNS // 2, np.int64(player.y) - VIEW_ROWS // 2
    for row in range(VIEW_ROWS):
        for column in range(VIEW_COLUMNS):
            x, y = left + column, top + row
            seen: Int = np.int64(0)
            if inside(x, y):
                at = np.int64(env.object_at[x, y])
                if at == 0:
                    seen = np.int64(env.materials[x, y])
                elif is_ripe(objects[at]):
                    seen = RIPE_PLANT
                else:
                    seen = np.int64(objects[at].kind)
            observation[row * VIEW_COLUMNS + column] = seen
    observation[FACING] = env.facing
    for item in range(len(ITEMS)):
        observation[INVENTORY.start + item] = env.inventory[item]
    observation[SLEEPING] = env.sleeping
    observation[DAYLIGHT] = np.uint8(255 * daylight)


@helper
def pass_picture(env: Any, daylight: float) -> None:
    """Move the random stream on as if the picture had been drawn."""
    if daylight < _DARK:
        write(env.picture_mt, env.mt)
        env.picture_mt_pos = env.mt_pos
        skip_words(env, _NOISE_WORDS)


@helper
def picture_again(env: Any, objects: Any, daylight: float, tiles: Any, image: Any) -> None:
    """Draw the picture that `pass_picture` passed over; the stream comes out as it was."""
    if daylight < _DARK:
        kept, kept_pos = env.mt.copy(), env.mt_pos
        write(env.mt, env.picture_mt)
        env.mt_pos = env.picture_mt_pos
        draw_picture(env, objects, daylight, tiles, image)
        write(env.mt, kept)
        env.mt_pos = kept_pos
    else:
        draw_picture(env, objects, daylight, tiles, image)


@helper
def draw_picture(env: Any, objects: Any, daylight: float, tiles: Any, image: Any) -> None:
    """Draw (64, 64, 3), indexed [y, x]; the last row and column stay black."""
    pixels = image.reshape(image.size)
    if daylight < _DARK:
        _draw_by_night(env, objects, daylight, tiles, pixels)
    else:
        _draw_by_day(env, objects, daylight, tiles, pixels)
    for item in range(len(ITEMS)):
        field = (item * (MAX_ITEM + 1) + env.inventory[item]) * _TILE
        _blit(tiles.fields, field, pixels, (VIEW_ROWS + item // VIEW_COLUMNS) * UNIT, item % VIEW_COLUMNS * UNIT)
    for y in range(_IMAGE_SIDE):  # the rim, and what is right of the last item
        right = 3 * _VIEW_WIDTH if y < _LAST_FIELDS else _ITEMS_RIGHT if y < _IMAGE_SIDE - 1 else 0
        pixels[y * _LINE + right : (y + 1) * _LINE] = 0


@helper
def _blit(source: Any, start: Int, pixels: Any, top: Int, left: Int) -> None:
    """Copy the tile at `start`, row by row, to where its first pixel is (left, top).

    A row is copied with three bytes too many: a number that machines copy at once. The tile to the right covers them.
    """
    for i in range(UNIT):
        into, first = (top + i) * _LINE + 3 * left, start + i * _TILE_LINE
        for at in range(_TILE_LINE + 3):
            pixels[np.uint64(into + at)] = source[np.uint64(first + at)]


@helper
def _draw_by_day(env: Any, objects: Any, daylight: float, tiles: Any, pixels: Any) -> None:
    """The local view without noise: cells that look the same are worked out once and copied."""
    player = objects[THE_PLAYER]
    tile_of = np.full(len(SPRITES) * len(CELL_NAMES), -1)
    shown = np.empty(VIEW_ROWS * VIEW_COLUMNS, np.int64)
    colours = np.empty((3, _VIEW_PIXELS), np.int32)
    count: Int = 0
    for row in range(VIEW_ROWS):
        for column in range(VIEW_COLUMNS):
            x, y = player.x + column - VIEW_COLUMNS // 2, player.y + row - VIEW_ROWS // 2
            sprite, material = _tile_at(env, objects, x, y)
            look = sprite * len(CELL_NAMES) + material
            if tile_of[look] < 0:
                tile_of[look] = count
                tile = tiles.cells[sprite, material].reshape(_TILE)
                for at in range(UNIT * UNIT):
                    for channel in range(3):
                        colours[channel, count * UNIT * UNIT + at] = tile[3 * at + channel]
                count += 1
            shown[row * VIEW_COLUMNS + column] = tile_of[look]
    vignette = tiles.vignette.reshape(_VIEW_PIXELS)
    _light(colours, count * UNIT * UNIT, vignette, vignette, 0.0, daylight, env.sleeping)
    lit = np.empty(count * _TILE + 3, np.uint8)
    for at in range(count * UNIT * UNIT):
        for channel in range(3):
            lit[3 * at + channel] = colours[channel, at]
    for row in range(VIEW_ROWS):
        for column in range(VIEW_COLUMNS):
            _blit(lit, shown[row * VIEW_COLUMNS + column] * _TILE, pixels, row * UNIT, column * UNIT)


@helper
def _draw_by_night(env: Any, objects: Any, daylight: float, tiles: Any, pixels: Any) -> None:
    """The local view with noise, which crafter draws column by column of the picture: so lie the colours here, too."""
    player = objects[THE_PLAYER]
    noise = np.empty(_VIEW_PIXELS)
    uniforms(env, noise)
    colours = np.empty((3, _VIEW_PIXELS), np.int32)
    for column in range(VIEW_COLUMNS):
        for row in range(VIEW_ROWS):
            x, y = player.x + column - VIEW_COLUMNS // 2, player.y + row - VIEW_ROWS // 2
            sprite, material = _tile_at(env, objects, x, y)
            tile = tiles.cells[sprite, material]
            for j in range(UNIT):
                first = (column * UNIT + j) * _VIEW_HEIGHT + row * UNIT
                for i in range(UNIT):
                    for channel in range(3):
                        colours[channel, first + i] = tile[i, j, channel]
    vignette = tiles.vignette.reshape(_VIEW_PIXELS)
    _light(colours, _VIEW_PIXELS, noise, vignette, 2 * (_DARK - daylight), daylight, env.sleeping)
    for y in range(_VIEW_HEIGHT):
        for x in range(_VIEW_WIDTH):
            for channel in range(3):
                pixels[y * _LINE + 3 * x + channel] = colours[channel, x * _VIEW_HEIGHT + y]


@helper
def _light(colours: Any, count: Int, noise: Any, vignette: Any, amount: float, daylight: float, sleeping: Int) -> None:
    """`_light` and `_sleep` for colours (3, count or more), in place: day is mixed with night (noisy, pale, bluish).

    noise, vignette: (count or more,), see `Tiles`; `amount` is the weight of both. Grey and paler colours are Pillow's.
    The loop calls nothing, so that the compiler makes vector instructions of it.
    """
    night = 1 - daylight
    tint_r, tint_g, tint_b = _TINT * _NIGHT_TINT[0], _TINT * _NIGHT_TINT[1], _TINT * _NIGHT_TINT[2]
    reds, greens, blues = colours[0], colours[1], colours[2]
    for at in range(count):
        grain = _NOISE_LOW + (_NOISE_HIGH - _NOISE_LOW) * noise[at]
        mask = amount * vignette[at]
        r, g, b = reds[at], greens[at], blues[at]
        noisy_r = np.int32((1 - mask) * r + mask * grain)
        noisy_g = np.int32((1 - mask) * g + mask * grain)
        noisy_b = np.int32((1 - mask) * b + mask * grain)
        grey = np.int32(np.int32(noisy_r * _GREY_R + noisy_g * _GREY_G + noisy_b * _GREY_B + _GREY_HALF) >> 16)
        whole = np.float32(grey)  # paler colours are in single precision
        pale_r = np.int32(whole + _DIM * np.float32(np.int32(noisy_r - grey)))
        pale_g = np.int32(whole + _DIM * np.float32(np.int32(noisy_g - grey)))
        pale_b = np.int32(whole + _DIM * np.float32(np.int32(noisy_b - grey)))
        reds[at] = np.int32(daylight * r + night * ((1 - _TINT) * pale_r + tint_r))
        greens[at] = np.int32(daylight * g + night * ((1 - _TINT) * pale_g + tint_g))
        blues[at] = np.int32(daylight * b + night * ((1 - _TINT) * pale_b + tint_b))
    if sleeping:
        for at in range(count):
            r, g, b = reds[at], greens[at], blues[at]
            grey = np.int32(np.int32(r * _GREY_R + g * _GREY_G + b * _GREY_B + _GREY_HALF) >> 16)
            reds[at] = np.int32((1 - _TINT) * grey + _TINT * _SLEEP_TINT[0])
            greens[at] = np.int32((1 - _TINT) * grey + _TINT * _SLEEP_TINT[1])
            blues[at] = np.int32((1 - _TINT) * grey + _TINT * _SLEEP_TINT[2])


@helper
def _tile_at(env: Any, objects: Any, x: Int, y: Int) -> tuple[Int, Int]:
    """(sprite, material) to be drawn for a cell."""
    if not inside(x, y):
        return np.int64(0), np.int64(0)
    material = np.int64(env.materials[x, y])
    at = np.int64(env.object_at[x, y])
    if at == 0:
        return np.int64(0), material
    thing = objects[at]
    kind = np.int64(thing.kind)
    first = _FIRST_SPRITE[kind - PLAYER]
    if kind == PLAYER:
        return _SLEEPER_SPRITE if env.sleeping else first + np.int64(env.facing), material
    if kind == ARROW:
        return first + np.int64(thing.timer), material
    return np.int64(_RIPE_SPRITE) if is_ripe(thing) else first, material
