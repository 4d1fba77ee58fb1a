"""Houses as arrays: all that the engine looks up in a scene."""

from functools import cache, lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bkrl.core.jit import helper, kernel
from bkrl.envs.housekeep import layout
from bkrl.envs.housekeep.floors import corners_of, inside, on_floor, straight, view_map
from bkrl.envs.housekeep.labels import holders, labels
from bkrl.envs.housekeep.tables import Floor, floor, scene, scene_names

REACH: Final = 1.2
"""Metres from a receptacle's nearest floor to its nearest corner: farther ones cannot be reached (Housekeep's rule)."""
DRAWN: Final = 0.1
"""Side of a square of the map of codes."""
_FAR: Final = 1e9


class House(NamedTuple):
    """One scene. R receptacles, C places (corners where ways turn, then the R stands), W × H squares.

    Attributes:
        number: of the scene in `tables.scene_names()`.
        ground: its floor.
        camera: height of the camera.
        open, origin: see `floors.view_map`.
        codes: (W', H') codes of the map without things, in squares of `DRAWN`.
        owner: (W', H') 1 + the receptacle that a square belongs to, 0 none.
        squares: (Q, 2) middles of the squares of half a metre that are floor.
        square_at: (W'', H'') 1 + the number of the square, 0 none.
        centre: (R, 3) middle of each receptacle; low: (R,) its lower side; top: (R,) NaN where it is not known;
            spread: (R,) how far its corners are from its middle, seen from above.
        base, half: (R, 2) footprint.
        present: (2, R) bool, in the full and the reduced layout.
        holds: (R,) bool, things can be put on it.
        usable: (R,) bool, and it can be reached from the floor.
        right: (2, R, O) bool, where things belong; soft, quality: (R, O), see `labels`.
        stands: (R, 3) x, z and yaw of where one stands to use it; stand_polygon: (R,) -1 where there is no place.
        places: (C, 2); polygon: (C,); away: (C, C) length of the shortest way; next: (C, C) the first place on it.
    """

    number: int
    ground: Floor
    camera: float
    open: NDArray[np.uint8]
    origin: NDArray[np.float64]
    codes: NDArray[np.uint8]
    owner: NDArray[np.int16]
    squares: NDArray[np.float64]
    square_at: NDArray[np.int16]
    centre: NDArray[np.float64]
    low: NDArray[np.float64]
    top: NDArray[np.float64]
    spread: NDArray[np.float64]
    base: NDArray[np.float64]
    half: NDArray[np.float64]
    present: NDArray[np.bool_]
    holds: NDArray[np.bool_]
    usable: NDArray[np.bool_]
    right: NDArray[np.bool_]
    soft: NDArray[np.float64]
    quality: NDArray[np.float64]
    stands: NDArray[np.float64]
    stand_polygon: NDArray[np.int64]
    places: NDArray[np.float64]
    polygon: NDArray[np.int64]
    away: NDArray[np.float64]
    next: NDArray[np.int16]


@lru_cache(16)
def house(name: str) -> House:
    """The arrays of a scene."""
    known, ground = scene(name), floor(name)
    both = labels(name), labels(name, reduced=True)
    view, origin = view_map(name)
    codes, owner, squares, square_at = _maps(name)
    low = np.fmax(ground.height, 2 * known.y - np.where(np.isnan(known.top), known.y, known.top))
    middle, wide = np.stack([known.x, known.z], 1), known.half
    corners = [known.base + wide * sign for sign in ((1, 1), (1, -1), (-1, 1), (-1, -1))]
    reached = np.nanmin([np.hypot(*(one - known.nav).T) for one in (*corners, middle)], 0) < REACH
    yaw = np.degrees(np.arctan2(-(known.x - known.nav[:, 0]), -(known.z - known.nav[:, 1])))
    corners_inside, turning = corners_of(ground)
    nearest = np.hypot(*(known.nav[:, None] - corners_inside).transpose(2, 0, 1)).argmin(1)
    places = np.concatenate([corners_inside[turning], corners_inside[nearest]])
    polygon, away, following = _ways(ground, places)
    R = len(known.keys)
    return House(
        scene_names().index(name),
        ground,
        ground.height + 1.5,
        view,
        origin,
        codes,
        owner,
        squares,
        square_at,
        np.stack([known.x, known.y, known.z], 1),
        low,
        known.top,
        np.nan_to_num(np.max([np.hypot(*(one - middle).T) for one in corners], 0)),
        known.base,
        known.half,
        np.stack([one.present for one in both]),
        holders(name),
        holders(name) & reached & ((away[-R:] < _FAR).sum(1) > len(places) / 2),
        np.stack([one.right for one in both]),
        both[0].soft,
        both[0].quality,
        np.concatenate([corners_inside[nearest], yaw[:, None]], 1),
        polygon[-R:],
        places,
        polygon,
        away,
        following,
    )


@cache
def _maps(name: str) -> tuple[NDArray[np.uint8], NDArray[np.int16], NDArray[np.float64], NDArray[np.int16]]:
    """Codes and owners in squares of `DRAWN`, the floor's squares of half a metre, and their numbers.

    All maps begin at the corner of `view_map`.
    """
    (view, origin), known = view_map(name), scene(name)
    fine = round(DRAWN / 0.05)
    shape = tuple(-(-side // fine) for side in view.shape)
    seen_floor = np.zeros((shape[0] * fine, shape[1] * fine), bool)
    seen_floor[: view.shape[0], : view.shape[1]] = view > 0
    codes = np.where(seen_floor[fine // 2 :: fine, fine // 2 :: fine], layout.FLOOR, 0).astype(np.uint8)
    owner = np.zeros(shape, np.int16)
    order = np.argsort(-np.nan_to_num(known.half).prod(1), kind="stable")  # small ones over large ones
    for r in order.tolist():
        if np.isnan(known.half[r, 0]):
            continue
        first, last = ((known.base[r] + sign * known.half[r] - origin) / DRAWN for sign in (-1, 1))
        (i, k), (end_i, end_k) = np.maximum(0, np.floor(first).astype(int)), np.ceil(last).astype(int)
        category = known.categories[r] if known.categories[r] in layout.CATEGORIES else "other"
        codes[i:end_i, k:end_k] = layout.FIRST_CATEGORY + layout.CATEGORIES.index(category)
        owner[i:end_i, k:end_k] = r + 1
    many = round(layout.SQUARE / 0.05)
    coarse = tuple(-(-side // many) for side in view.shape)
    number, squares = np.zeros(coarse, np.int16), []
    for i in range(coarse[0]):
        for k in range(coarse[1]):
            middle = origin + (np.array([i, k]) + 0.5) * layout.SQUARE
            at = tuple(((middle - origin) / DRAWN).astype(int))
            if at[0] < shape[0] and at[1] < shape[1] and codes[at] == layout.FLOOR:
                squares.append(middle)
                number[i, k] = len(squares)
    return codes, owner, np.array(squares), number


def _ways(ground: Floor, places: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[Any]]:
    """Polygons of places, lengths of the shortest ways between them, and the first place on each."""
    polygon = np.array([on_floor(ground, x, z) for x, z in places])
    away = np.full((len(places), len(places)), _FAR)
    following = np.tile(np.arange(len(places), dtype=np.int16), (len(places), 1))
    _shortest(ground, places, polygon, away, following)
    return polygon, away, following


@helper
def sees_straight(ground: Any, x: float, z: float, to_x: float, to_z: float) -> bool:
    """Can one walk straight from a point of the main island to another? All polygons that hold the first are tried."""
    for polygon in range(len(ground.sides)):
        if ground.main[polygon] and inside(ground, polygon, x, z) and straight(ground, polygon, x, z, to_x, to_z) >= 0:
            return True
    return False


@kernel
def _shortest(ground: Any, places: Any, polygon: Any, away: Any, following: Any) -> None:
    """Floyd and Warshall's shortest ways over the places that see one another."""
    count = len(places)
    for a in range(count):
        away[a, a] = 0.0
        for b in range(a):
            if polygon[a] >= 0 and polygon[b] >= 0:
                ax, az = places[a]
                bx, bz = places[b]
                if sees_straight(ground, ax, az, bx, bz) or sees_straight(ground, bx, bz, ax, az):
                    away[a, b] = away[b, a] = np.hypot(bx - ax, bz - az)
    for via in range(count):
        for a in range(count):
            for b in range(count):
                through = away[a, via] + away[via, b]
                if through < away[a, b] - 1e-9:
                    away[a, b] = through
                    following[a, b] = following[a, via]
