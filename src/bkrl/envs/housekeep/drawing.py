"""Houses seen from above: floor, furniture, things and where they belong, and the agent's own map as tiles."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bkrl.envs.housekeep import layout
from bkrl.envs.housekeep.houses import DRAWN, House

SCALE: Final = 5
"""Pixels a side of a square of 10 cm."""
_WALL, _FLOOR, _UNSEEN_FLOOR = (60, 60, 66), (236, 232, 224), (206, 203, 198)
_FURNITURE, _OTHER, _RIGHT = (190, 160, 120), (170, 170, 170), (120, 190, 120)
_WRONG, _TIDY, _AGENT, _LINE = (208, 48, 48), (24, 128, 48), (30, 90, 210), (208, 120, 48)
_TILE: Final = 8


@lru_cache(16)
def _ground(number: int, codes: bytes, shape: tuple[int, int]) -> NDArray[np.uint8]:
    """(H, W, 3) the house without things: rows along z, columns along x."""
    colours = np.empty((256, 3), np.uint8)
    colours[:] = _FURNITURE
    colours[0], colours[layout.FLOOR], colours[layout.THING - 1] = _WALL, _FLOOR, _OTHER
    plain = colours[np.frombuffer(codes, np.uint8).reshape(shape).T]
    return plain.repeat(SCALE, 0).repeat(SCALE, 1)


def draw(house: House, world: Any, things: NDArray[Any], squares: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """(H, W, 3) uint8 of one env: where things lie (red: wrong, green: right), lines to where they belong, the agent.

    Floor that was not seen yet is darker. world: a `WORLD` record; things: (10,) `THING`; squares: (Q,) bool.
    """
    picture = _ground(house.number, house.codes.tobytes(), house.codes.shape).copy()
    side = round(layout.SQUARE / DRAWN) * SCALE
    for i, k in np.argwhere(house.square_at > 0):
        if not squares[house.square_at[i, k] - 1]:
            part = picture[k * side : (k + 1) * side, i * side : (i + 1) * side]
            part[(part == _FLOOR).all(-1)] = _UNSEEN_FLOOR
    for one in things[things["model"] >= 0]:
        right = house.right[int(world["reduced"]), :, int(one["kind"])]
        held = one["receptacle"] < 0
        x, z = (world["x"], world["z"]) if held else (one["x"], one["z"])
        fine = not held and bool(right[one["receptacle"]])
        if not fine:
            for r in np.flatnonzero(right & ~np.isnan(house.half[:, 0])):
                _line(picture, house, (x, z), (house.base[r, 0], house.base[r, 1]), _LINE, dotted=True)
                _frame(picture, house, house.base[r], house.half[r], _RIGHT)
        _disc(picture, house, x, z, 0.12, _TIDY if fine else _WRONG)
    x, z, yaw = float(world["x"]), float(world["z"]), np.radians(float(world["yaw"]))
    _line(picture, house, (x, z), (x - 0.5 * np.sin(yaw), z - 0.5 * np.cos(yaw)), _AGENT)
    _disc(picture, house, x, z, 0.18, _AGENT)
    if world["held"] >= 0:
        _disc(picture, house, x, z, 0.09, _WRONG)
    return picture


def _pixel(house: House, x: float, z: float) -> tuple[int, int]:
    """Row and column."""
    return (
        int((z - house.origin[1]) / DRAWN * SCALE),
        int((x - house.origin[0]) / DRAWN * SCALE),
    )


def _disc(picture: NDArray[np.uint8], house: House, x: float, z: float, radius: float, colour: Any) -> None:
    row, column = _pixel(house, x, z)
    wide = max(2, round(radius / DRAWN * SCALE))
    rows, columns = np.ogrid[: picture.shape[0], : picture.shape[1]]
    picture[(rows - row) ** 2 + (columns - column) ** 2 <= wide * wide] = colour


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


def tile_maps(observations: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Observations (N, 294) as the agent's map, (N, 11, 11) tile numbers, and the tiles (T, 8, 8, 4) RGBA."""
    codes = observations[:, layout.MAP].reshape(-1, layout.ROWS, layout.COLUMNS).astype(np.int64)
    agent = len(layout.SQUARE_NAMES)
    codes[:, layout.ROWS - 1, layout.COLUMNS // 2] = agent
    tiles = np.full((agent + 1, _TILE, _TILE, 4), 255, np.uint8)
    hues = np.linspace(0, 1, len(layout.CATEGORIES), endpoint=False)
    for i, hue in enumerate(hues):
        shade = 170 + 50 * np.cos(2 * np.pi * (hue + np.array([0, 1 / 3, 2 / 3])))
        tiles[layout.FIRST_CATEGORY + i, ..., :3] = shade.astype(np.uint8)
    tiles[0, ..., :3], tiles[layout.FLOOR, ..., :3] = _WALL, _FLOOR
    tiles[layout.THING, ..., :3] = _FLOOR
    tiles[layout.THING, 2:6, 2:6, :3] = _WRONG
    tiles[agent, ..., :3] = _FLOOR
    for row in range(_TILE):
        half = 1 + row // 2
        tiles[agent, row, _TILE // 2 - half : _TILE // 2 + half, :3] = _AGENT
    used, maps = np.unique(codes, return_inverse=True)
    return maps.reshape(codes.shape), tiles[used]
