"""Walking and seeing in a house: floor polygons, the map of what can be looked through, and shortest ways.

A step goes to the nearest point to where it is aimed at that can be reached without leaving the floor, so an agent that
walks into a wall slides along it. Sight is blocked by what is neither floor nor furniture: squares of 5 cm that are
farther than `BODY` from all floor and outside all footprints. The 3D worlds' walls are not in the data, so this is
where their walls must be; furniture hides nothing, however tall.
"""

from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bkrl.core.jit import Int, helper, kernel
from bkrl.envs.housekeep.labels import holders
from bkrl.envs.housekeep.tables import Floor, floor, scene

CELL: Final = 0.05
BODY: Final = 0.2
"""The floor is what the middle of an agent of radius 0.18 can reach, on squares of 5 cm."""
_MARGIN: Final = 1.0  # of the map around the floor and the receptacles
_NEAREST: Final = 1.2  # a receptacle farther than this from the floor is not seen through a passage of its own
_GRID: Final = np.linspace(-1, 1, 7)
_TOLERANCE: Final = 1e-7
_BEYOND: Final = 1e-9  # squares by which a look steps over the rim of one, so that the next one is asked for
_FARTHEST: Final = 60
_MOST: Final = 48  # polygons that one step may touch

Point = tuple[float, float]


@helper
def inside(floor: Any, polygon: Int, x: float, z: float) -> bool:
    """Is the point in a polygon, rim included? Corners run clockwise or counter-clockwise, all in one sense."""
    left = right = False
    for k in range(floor.sides[polygon]):
        after = (k + 1) % floor.sides[polygon]
        ax, az = floor.corners[polygon, k]
        bx, bz = floor.corners[polygon, after]
        side = (bx - ax) * (z - az) - (bz - az) * (x - ax)
        left |= side > _TOLERANCE
        right |= side < -_TOLERANCE
    return not (left and right)


@helper
def polygon_at(floor: Any, x: float, z: float) -> Int:
    """The first polygon of the main island that holds a point; -1: none."""
    for polygon in range(len(floor.sides)):
        if floor.main[polygon] and inside(floor, polygon, x, z):
            return polygon
    return -1


@helper
def nearest_floor(floor: Any, x: float, z: float) -> tuple[Int, float, float]:
    """The nearest point of the main island: polygon, x, z."""
    polygon = polygon_at(floor, x, z)
    if polygon >= 0:
        return polygon, x, z
    best, found, best_x, best_z = np.inf, np.int64(0), x, z
    for p in range(len(floor.sides)):
        for k in range(floor.sides[p] if floor.main[p] else 0):
            ax, az = floor.corners[p, k]
            bx, bz = floor.corners[p, (k + 1) % floor.sides[p]]
            near_x, near_z = nearest_on(ax, az, bx, bz, x, z)
            away = np.hypot(near_x - x, near_z - z)
            if away < best:
                best, found, best_x, best_z = away, np.int64(p), near_x, near_z
    return found, best_x, best_z


@helper
def nearest_on(ax: float, az: float, bx: float, bz: float, x: float, z: float) -> Point:
    """The point of the segment a–b that is nearest to (x, z)."""
    dx, dz = bx - ax, bz - az
    length = dx * dx + dz * dz
    t = ((x - ax) * dx + (z - az) * dz) / length if length > 0 else 0.0
    t = min(1.0, max(0.0, t))
    return ax + t * dx, az + t * dz


@helper
def walk(floor: Any, polygon: Int, x: float, z: float, to_x: float, to_z: float) -> tuple[Int, float, float]:
    """Where a step from (x, z) in `polygon` towards (to_x, to_z) ends: polygon, x, z.

    That is the nearest point to the target on the polygons that join the first one through edges within the circle
    whose diameter is the step (as Recast's moveAlongSurface, on which Habitat stands).
    """
    middle_x, middle_z = (x + to_x) / 2, (z + to_z) / 2
    radius = np.hypot(to_x - x, to_z - z) / 2 + 0.001
    queue = np.empty(_MOST, np.int64)
    queue[0], count, at = polygon, 1, 0
    best, best_polygon, best_x, best_z = np.inf, polygon, x, z
    while at < count:
        here = queue[at]
        at += 1
        if inside(floor, here, to_x, to_z):
            return here, to_x, to_z
        for k in range(floor.sides[here]):
            ax, az = floor.corners[here, k]
            bx, bz = floor.corners[here, (k + 1) % floor.sides[here]]
            other = floor.neighbours[here, k]
            if other < 0:
                near_x, near_z = nearest_on(ax, az, bx, bz, to_x, to_z)
                distance = np.hypot(near_x - to_x, near_z - to_z)
                if distance < best:
                    best, best_polygon, best_x, best_z = distance, here, near_x, near_z
                continue
            near_x, near_z = nearest_on(ax, az, bx, bz, middle_x, middle_z)
            known = np.hypot(near_x - middle_x, near_z - middle_z) > radius or count == _MOST
            for one in range(count):
                known |= queue[one] == other
            if not known:
                queue[count] = other
                count += 1
    return best_polygon, best_x, best_z


@helper
def straight(floor: Any, polygon: Int, x: float, z: float, to_x: float, to_z: float) -> Int:
    """The polygon in which a straight walk from (x, z) in `polygon` arrives at a point; -1: a wall is in the way."""
    before = np.int64(-1)
    for _ in range(len(floor.sides)):
        if inside(floor, polygon, to_x, to_z):
            return polygon
        leave, other = -1.0, np.int64(-1)
        for k in range(floor.sides[polygon]):
            ax, az = floor.corners[polygon, k]
            bx, bz = floor.corners[polygon, (k + 1) % floor.sides[polygon]]
            across = (to_x - x) * (bz - az) - (to_z - z) * (bx - ax)
            if abs(across) < 1e-12:
                continue
            t = ((ax - x) * (bz - az) - (az - z) * (bx - ax)) / across
            s = ((ax - x) * (to_z - z) - (az - z) * (to_x - x)) / across
            behind = np.int64(floor.neighbours[polygon, k])
            # Where the way leaves by a corner, an edge that leads on is taken before a wall
            onward = t > leave + 1e-9 or (t > leave - 1e-9 and behind >= 0)
            if -1e-6 <= s <= 1 + 1e-6 and behind != before and t >= -1e-6 and onward:
                leave, other = t, behind
        if other < 0:
            return np.int64(-1)
        before, polygon = np.int64(polygon), other
    return np.int64(-1)


@helper
def clear(room: Any, origin: Any, ax: float, az: float, bx: float, bz: float) -> bool:
    """Can one look from a to b? `room` (W, H): see `view_map`; `origin`: its corner.

    All squares whose inside the segment crosses must be open; squares that it only touches do not count. Where all is
    open within k squares, the way goes on by k squares at once.
    """
    ax, az = (ax - origin[0]) / CELL, (az - origin[1]) / CELL
    dx, dz = (bx - origin[0]) / CELL - ax, (bz - origin[1]) / CELL - az
    length = max(abs(dx), abs(dz))
    scale = 1 / length if length > 0 else 0.0
    dx, dz = dx * scale, dz * scale  # one square along the longer side for each unit of t
    every_x, every_z = (1 / abs(dx) if dx != 0 else np.inf), (1 / abs(dz) if dz != 0 else np.inf)
    t = 0.0
    while True:
        x, z = ax + dx * t, az + dz * t
        i, k = np.int64(np.floor(x)), np.int64(np.floor(z))
        if not (0 <= i < room.shape[0] and 0 <= k < room.shape[1]) or room[i, k] == 0:
            return False
        if t >= length:
            return True
        if room[i, k] > 1:
            t += np.float64(room[i, k]) - 1
        else:
            over_x = (i + 1 - x if dx > 0 else x - i) * every_x if dx != 0 else np.inf
            over_z = (k + 1 - z if dz > 0 else z - k) * every_z if dz != 0 else np.inf
            t += min(over_x, over_z) + _BEYOND
        t = min(t, length)


@kernel
def _paint(view: Any, origin: Any, floor: Any, first: Any, end: Any) -> None:
    """Mark squares of `view` whose middle is within `BODY` of the floor, a polygon's from `first` (P, 2) to `end`."""
    for polygon in range(len(floor.sides)):
        sides = floor.sides[polygon]
        for i in range(first[polygon, 0], end[polygon, 0]):
            x = origin[0] + (i + 0.5) * CELL
            for k in range(first[polygon, 1], end[polygon, 1]):
                z = origin[1] + (k + 0.5) * CELL
                near = view[i, k] or inside(floor, polygon, x, z)
                side = 0
                while not near and side < sides:
                    ax, az = floor.corners[polygon, side]
                    bx, bz = floor.corners[polygon, (side + 1) % sides]
                    there_x, there_z = nearest_on(ax, az, bx, bz, x, z)
                    near = np.hypot(there_x - x, there_z - z) <= BODY
                    side += 1
                view[i, k] = near


@cache
def view_map(name: str) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """What can be looked through in a scene, (W, H) uint8, x by z, and the corner (2,) of its first square.

    0: a wall. k > 0: this square and all within k - 1 squares of it, also slantwise, can be looked through.

    Floor within `BODY`, the footprints of receptacles, and passages of three squares from a receptacle to the nearest
    corner of the floor, so that it can be seen from there, and all of its footprint where things can be put on it.
    """
    ground, known, able = floor(name), scene(name), holders(name)
    places = np.concatenate([ground.corners.reshape(-1, 2), np.stack([known.x, known.z], 1)])
    origin = np.floor((places.min(0) - _MARGIN) / CELL) * CELL
    view = np.zeros(np.ceil((places.max(0) + _MARGIN - origin) / CELL).astype(int), bool)
    low, high = ground.corners.min(1) - BODY - origin, ground.corners.max(1) + BODY - origin
    first, end = np.maximum(low / CELL - 1, 0).astype(int), np.minimum(high / CELL + 2, view.shape).astype(int)
    _paint(view, origin, ground, first, end)
    for r in range(len(known.keys)):
        if not np.isnan(known.half[r, 0]):
            first, last = ((known.base[r] + sign * known.half[r] - origin) / CELL for sign in (-1, 1))
            (i, k), (end_i, end_k) = np.maximum(0, np.floor(first).astype(int)), np.ceil(last).astype(int)
            view[i:end_i, k:end_k] = True
        here = np.array([[known.x[r], known.z[r]]])
        if np.hypot(*(known.nav[r] - here[0])) < _NEAREST:
            if able[r]:
                grid = np.stack(np.meshgrid(_GRID, _GRID), -1).reshape(-1, 2)
                here = np.concatenate([here, known.base[r] + grid * known.half[r]])
            t = np.linspace(0, 1, 1 + int(4 * _NEAREST / CELL))[:, None, None]
            i, k = np.floor((here + t * (known.nav[r] - here) - origin) / CELL).astype(int).reshape(-1, 2).T
            for di, dk in np.ndindex(3, 3):
                view[i + di - 1, k + dk - 1] = True
    room, wide = view.astype(np.uint8), np.pad(view, 1)
    for _ in range(_FARTHEST):
        shifts = [wide[i : i + view.shape[0], k : k + view.shape[1]] for i in range(3) for k in range(3)]
        inner = np.logical_and.reduce(shifts)
        room += inner
        wide = np.pad(inner, 1)
    room.flags.writeable = False
    return room, origin


def corners_of(ground: Floor) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """(C, 2) the corners of the main island, a millimetre inside, and (C,) whether shortest ways can turn there.

    These are the corners at which the floor's angle is more than 180 degrees. Inside, so that a way along a wall is no
    way through it where the sixth digit of a coordinate differs.
    """
    angles: dict[tuple[float, float], float] = {}
    inward: dict[tuple[float, float], NDArray[np.float64]] = {}
    first: dict[tuple[float, float], NDArray[np.float64]] = {}
    for p in np.flatnonzero(ground.main):
        own = ground.corners[p, : ground.sides[p]]
        for k, corner in enumerate(own):
            before, after = own[k - 1] - corner, own[(k + 1) % len(own)] - corner
            before, after = before / np.linalg.norm(before), after / np.linalg.norm(after)
            key = (round(float(corner[0]), 4), round(float(corner[1]), 4))
            angles[key] = angles.get(key, 0.0) + float(np.arccos(np.clip(before @ after, -1, 1)))
            # The sum of all unit vectors into the polygon: twice the sine of half its angle, along its middle
            inward[key] = inward.get(key, np.zeros(2)) + before + after
            first.setdefault(key, before + after)
    order = sorted(angles)
    moved = [np.array(key) + 0.001 * _unit(inward[key]) for key in order]
    for i, key in enumerate(order):
        if on_floor(ground, *moved[i]) < 0:  # two rooms meet in this corner only: move into one of them
            moved[i] = np.array(key) + 0.001 * _unit(first[key])
    turning = [np.pi + 1e-6 < angles[key] < 2 * np.pi - 1e-3 for key in order]
    return np.array(moved).reshape(-1, 2), np.array(turning, bool)


def _unit(vector: NDArray[np.float64]) -> NDArray[np.float64]:
    return vector / max(1e-9, float(np.linalg.norm(vector)))


@kernel
def put_on_floor(floor: Any, x: float, z: float) -> Any:
    """`nearest_floor`, for Python."""
    return nearest_floor(floor, x, z)


@kernel
def on_floor(floor: Any, x: float, z: float) -> Int:
    """`polygon_at`, for Python."""
    return polygon_at(floor, x, z)
