"""Houses seen from above: floor, furniture, things and where they belong; and what the agent knows, as tiles."""

from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bkrl.envs.housekeep import layout
from bkrl.envs.housekeep.captions import damage_is_said, scene_of, things_of
from bkrl.envs.housekeep.houses import DRAWN, House
from bkrl.envs.housekeep.houses import house as house_named
from bkrl.envs.housekeep.tables import scene_names

SCALE: Final = 5
"""Pixels a side of a square of 10 cm."""
_WALL, _FLOOR, _UNSEEN_FLOOR = (60, 60, 66), (236, 232, 224), (206, 203, 198)
_FURNITURE, _OTHER, _RIGHT = (190, 160, 120), (170, 170, 170), (40, 170, 70)
_WRONG, _TIDY, _AGENT, _LINE = (208, 48, 48), (24, 128, 48), (30, 90, 210), (208, 120, 48)
_EDGE = (128, 104, 76)
_TILE, _PLAN_TILE = 8, 4
_COARSE: Final = 2
"""Squares of `DRAWN` along a side of one of the plan's."""
_ARROW: Final = len(layout.SQUARE_NAMES)
_STANDS, _NOT_SEEN = _ARROW + 1, _ARROW + 2


@lru_cache(16)
def _ground(number: int) -> NDArray[np.uint8]:
    """(H, W, 3) the house without things: rows along z, columns along x. Furniture has an edge."""
    own, colours = house_named(scene_names()[number]), np.empty((256, 3), np.uint8)
    colours[:] = _FURNITURE
    colours[0], colours[layout.FLOOR], colours[layout.THING - 1] = _WALL, _FLOOR, _OTHER
    codes, owner = (one.T.repeat(SCALE, 0).repeat(SCALE, 1) for one in (own.codes, own.owner))
    picture = colours[codes]
    edge = (owner != np.roll(owner, 1, 0)) | (owner != np.roll(owner, 1, 1))
    picture[edge & (codes > layout.FLOOR)] = _EDGE
    return picture


@lru_cache(16)
def _squares(number: int) -> NDArray[np.int16]:
    """(H, W) the square of the house that each pixel of floor shows, counted from 1; 0 for all other pixels."""
    picture, side = _ground(number), round(layout.SQUARE / DRAWN) * SCALE
    H, W = picture.shape[:2]
    shown = house_named(scene_names()[number]).square_at.T.repeat(side, 0).repeat(side, 1)[:H, :W]
    shown = np.pad(shown, ((0, H - shown.shape[0]), (0, W - shown.shape[1])))
    shown[(picture != _FLOOR).any(-1)] = 0
    return shown


def draw(house: House, env: Any, things: NDArray[Any], squares: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """(H, W, 3) uint8 of one env: where things lie (red: wrong, green: right), the agent and where it looks.

    Where wrong things belong is framed in green, and a dotted line leads to the nearest such place. Floor that was not
    seen yet is darker. env: a `ENV` record; things: (10,) `THING`; squares: (Q,) bool.
    """
    picture = _ground(house.number).copy()
    picture[np.append(False, ~squares)[_squares(house.number)]] = _UNSEEN_FLOOR
    for one in things[things["model"] >= 0]:
        right = house.right[int(env["reduced"]), :, int(one["kind"])]
        held = one["receptacle"] < 0
        x, z = (env["x"], env["z"]) if held else (one["x"], one["z"])
        fine = not held and bool(right[one["receptacle"]])
        if not fine:
            places = np.flatnonzero(right & ~np.isnan(house.half[:, 0]))
            for r in places:
                _frame(picture, house, house.base[r], house.half[r], _RIGHT)
            if len(places):
                nearest = places[np.hypot(*(house.base[places] - (x, z)).T).argmin()]
                _line(picture, house, (x, z), house.base[nearest], _LINE, dotted=True)
        _disc(picture, house, x, z, 0.12, _TIDY if fine else _WRONG)
    x, z, yaw = float(env["x"]), float(env["z"]), np.radians(float(env["yaw"]))
    for along in np.linspace(0, 0.45, 10):
        _disc(picture, house, x - along * np.sin(yaw), z - along * np.cos(yaw), 0.18 * (1 - 1.6 * along), _AGENT)
    if env["held"] >= 0:
        _disc(picture, house, x, z, 0.09, _WRONG)
    return picture


def _pixel(house: House, x: float, z: float) -> tuple[int, int]:
    """Row and column."""
    return (int((z - house.origin[1]) / DRAWN * SCALE), int((x - house.origin[0]) / DRAWN * SCALE))


def _disc(picture: NDArray[np.uint8], house: House, x: float, z: float, radius: float, colour: Any) -> None:
    row, column = _pixel(house, x, z)
    wide = max(2, round(radius / DRAWN * SCALE))
    top, left = max(0, row - wide), max(0, column - wide)
    part = picture[top : max(0, row + wide + 1), left : max(0, column + wide + 1)]
    rows, columns = np.ogrid[top : top + part.shape[0], left : left + part.shape[1]]
    part[(rows - row) ** 2 + (columns - column) ** 2 <= wide * wide] = colour


def _line(picture: NDArray[np.uint8], house: House, a: Any, b: Any, colour: Any, dotted: bool = False) -> None:
    (row, column), (to_row, to_column) = _pixel(house, *a), _pixel(house, *b)
    count = 1 + max(abs(to_row - row), abs(to_column - column))
    rows, columns = (np.round(np.linspace(p, q, count)).astype(int) for p, q in ((row, to_row), (column, to_column)))
    keep = (rows >= 0) & (rows < picture.shape[0]) & (columns >= 0) & (columns < picture.shape[1])
    if dotted:
        keep &= np.arange(count) % 6 < 2
    picture[rows[keep], columns[keep]] = colour


def _frame(picture: NDArray[np.uint8], house: House, base: Any, half: Any, colour: Any) -> None:
    corners = [(base[0] + i * half[0], base[1] + k * half[1]) for i, k in ((-1, -1), (1, -1), (1, 1), (-1, 1))]
    for a, b in zip(corners, corners[1:] + corners[:1], strict=True):
        _line(picture, house, a, b, colour)


@damage_is_said()
def tile_maps(observations: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Observations (N, 294) as (N, H, W) tile numbers, and the tiles (T, S, S, 4) RGBA.

    Where there is a map they show that, otherwise the plan of the house: what was seen in it is coloured, things are
    red, and the agent stands where high-level control says that it does.
    """
    codes = observations[:, layout.MAP].reshape(-1, layout.ROWS, layout.COLUMNS).astype(np.int64)
    if codes.any():
        codes[:, layout.ROWS - 1, layout.COLUMNS // 2] = _ARROW
        side = _TILE
    else:
        codes, side = _plans(observations), _PLAN_TILE
    used, maps = np.unique(codes, return_inverse=True)
    return maps.reshape(codes.shape), _tiles(side)[used]


def _tiles(side: int) -> NDArray[np.uint8]:
    """(T, side, side, 4) RGBA, by the codes of the map, then `_ARROW`, `_STANDS` and `_NOT_SEEN`."""
    tiles = np.full((_NOT_SEEN + 1, side, side, 4), 255, np.uint8)
    hues = np.linspace(0, 1, len(layout.CATEGORIES), endpoint=False)
    for i, hue in enumerate(hues):
        shade = 170 + 50 * np.cos(2 * np.pi * (hue + np.array([0, 1 / 3, 2 / 3])))
        tiles[layout.FIRST_CATEGORY + i, ..., :3] = shade.astype(np.uint8)
    tiles[layout.THING - 1, ..., :3] = _OTHER
    tiles[0, ..., :3], tiles[layout.FLOOR, ..., :3] = _WALL, _FLOOR
    inner = slice(side // 4, -(side // 4)) if side == _TILE else slice(None)
    tiles[layout.THING, ..., :3] = _FLOOR
    tiles[layout.THING, inner, inner, :3] = _WRONG
    tiles[_ARROW, ..., :3] = _FLOOR
    for row in range(side):
        half = 1 + row // 2
        tiles[_ARROW, row, side // 2 - half : side // 2 + half, :3] = _AGENT
    tiles[_STANDS, ..., :3], tiles[_NOT_SEEN, ..., :3] = _AGENT, _UNSEEN_FLOOR
    return tiles


def _plans(observations: NDArray[np.uint8]) -> NDArray[np.int64]:
    """(N, H, W) codes of the houses' plans, squares of 20 cm; smaller houses are in the corner of the picture."""
    houses = [house_named(scene_of(one)) for one in observations]
    shape = np.max([one.codes[::_COARSE, ::_COARSE].shape for one in houses], 0)
    plans = np.zeros((len(houses), shape[1], shape[0]), np.int64)
    for plan, own, observation in zip(plans, houses, observations, strict=True):
        codes, owner = (one[::_COARSE, ::_COARSE].T for one in (own.codes, own.owner))
        seen = np.append(True, observation[layout.RECEPTACLES :] > 0)[owner]
        plan[: codes.shape[0], : codes.shape[1]] = np.where(seen | (codes == layout.THING - 1), codes, _NOT_SEEN)
        at = int(observation[layout.AT]) - 1
        if at >= 0:
            _mark(plan, own, own.stands[at, :2], _STANDS)
        for number, thing in enumerate(things_of(observation)):
            if thing.on >= 0:
                _mark(
                    plan, own, own.base[thing.on] + 0.4 * ((number % 3) - 1) * (own.half[thing.on] > 0.4), layout.THING
                )
            elif at >= 0:
                _mark(plan, own, own.stands[at, :2] + 0.4, layout.THING)
    return plans


def _mark(plan: NDArray[np.int64], house: House, point: NDArray[np.float64], code: int) -> None:
    """Two squares by two at a point of the house."""
    column, row = ((point - house.origin) / (DRAWN * _COARSE)).astype(int)
    plan[max(0, row - 1) : row + 1, max(0, column - 1) : column + 1] = code
