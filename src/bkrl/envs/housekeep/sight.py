"""What the agent sees: things and receptacles in the camera's picture, floor that comes into view, the observation."""

from typing import Any, Final

import numpy as np

from bkrl.core.jit import Int, helper
from bkrl.envs.housekeep import layout
from bkrl.envs.housekeep.floors import clear
from bkrl.envs.housekeep.houses import DRAWN
from bkrl.envs.housekeep.packer import NOWHERE

RANGE: Final = 5.0
"""Metres from the camera within which things are seen."""
GRAB_RANGE: Final = 3.0
GRAB_ANGLE: Final = np.radians(12.0)
"""How far beside the view axis something may be that the axis itself does not hit: turns of 20 and tilts of 10 degrees
miss by up to 11.2."""
STEEPEST: Final = np.radians(30.0)
_TALL: Final = 2.5
_ROWS, _COLUMNS = layout.ROWS, layout.COLUMNS
_SQUARE, _THING = layout.SQUARE, layout.THING


@helper
def axes(env: Any) -> tuple[float, float, float, float]:
    """Sine and cosine of the yaw, sine and cosine of the tilt."""
    yaw, tilt = np.radians(env.yaw), np.radians(float(env.tilt))
    return np.sin(yaw), np.cos(yaw), np.sin(tilt), np.cos(tilt)


@helper
def in_picture(dx: float, dy: float, dz: float, axis: Any) -> bool:
    """Is a point, relative to the camera, within its range and its field of view of 90 by 90 degrees?"""
    if dx * dx + dy * dy + dz * dz > RANGE * RANGE:
        return False
    sin_yaw, cos_yaw, sin_tilt, cos_tilt = axis
    ahead = -sin_yaw * dx - cos_yaw * dz
    right = cos_yaw * dx - sin_yaw * dz
    depth = ahead * cos_tilt + dy * sin_tilt
    height = dy * cos_tilt - ahead * sin_tilt
    return depth > 0 and abs(right) <= depth and abs(height) <= depth


@helper
def _seen(env: Any, camera: float, axis: Any, room: Any, corner_of: Any, middle: Any, half: Any, top: Any) -> bool:
    """Is the middle of a box, or a corner of its top, in the picture, with nothing between?

    middle: x, y, z; half: its halves along x and z, NaN where it has no known extent; top: x, y, z of the middle of its
    top.
    """
    for corner in range(-1, 0 if np.isnan(half[0]) else 4):
        x, y, z = middle if corner < 0 else top
        if corner >= 0:
            x += half[0] if corner & 1 else -half[0]
            z += half[1] if corner & 2 else -half[1]
        inside = in_picture(x - env.x, y - camera, z - env.z, axis)
        if inside and clear(room, corner_of, env.x, env.z, x, z):
            return True
    return False


@helper
def look_for(env: Any, things: Any, house: Any) -> None:
    """Say of all receptacles and things whether they are in view. Who stands at a receptacle sees what is on it."""
    # Helpers get single arrays, and those only where they must: to hand over a whole house costs more than to look
    axis, camera, room, origin = axes(env), house.camera, house.open, (house.origin[0], house.origin[1])
    sin_yaw, cos_yaw = axis[0], axis[1]
    present, centre, base, half, tops = house.present[env.reduced], house.centre, house.base, house.half, house.top
    spread = house.spread
    for r in range(len(tops)):
        seen = False
        x, y, z = centre[r, 0], centre[r, 1], centre[r, 2]
        half_x, half_z = half[r, 0], half[r, 1]
        dx, dz, wide = x - env.x, z - env.z, spread[r]
        ahead, aside = -sin_yaw * dx - cos_yaw * dz, abs(cos_yaw * dx - sin_yaw * dz)
        # No corner can be in the picture beyond these: nothing is more than _TALL above or below the camera
        near = dx * dx + dz * dz <= (RANGE + wide) ** 2
        if near and present[r] and aside - wide <= (ahead + wide) * axis[3] + _TALL * abs(axis[2]):
            top = (base[r, 0], y if np.isnan(tops[r]) else tops[r], base[r, 1])
            seen = _seen(env, camera, axis, room, origin, (x, y, z), (half_x, half_z), top)
        seen |= env.at == r
        env.receptacles[r] = 2 if seen else min(1, env.receptacles[r])
    look_for_things(env, things, house)


@helper
def look_for_things(env: Any, things: Any, house: Any) -> None:
    """`look_for`, of things alone."""
    axis, camera, room, origin = axes(env), house.camera, house.open, (house.origin[0], house.origin[1])
    for t in range(len(things)):
        thing = things[t]
        if thing.model < 0:
            continue
        if thing.receptacle == NOWHERE:
            thing.seen, thing.seen_on = 1, NOWHERE
            continue
        middle, top = (thing.x, thing.y, thing.z), (thing.x, thing.y + thing.half[1], thing.z)
        here = env.at >= 0 and thing.receptacle == env.at
        if here or _seen(env, camera, axis, room, origin, middle, (thing.half[0], thing.half[2]), top):
            thing.seen, thing.seen_on = 2, thing.receptacle
        else:
            thing.seen = min(1, thing.seen)


@helper
def look(env: Any, things: Any, squares: Any, house: Any) -> None:
    """Take in what is in view now. `squares`: (Q,) bool, the floor's squares that were seen in this episode."""
    look_for(env, things, house)
    axis, camera, room, origin = axes(env), house.camera, house.open, (house.origin[0], house.origin[1])
    down, middles = house.ground.height - camera, house.squares
    for q in range(len(middles)):
        x, z = middles[q, 0], middles[q, 1]
        if squares[q] or not in_picture(x - env.x, down, z - env.z, axis):
            continue
        if clear(room, origin, env.x, env.z, x, z):
            squares[q] = True
            env.squares_seen += 1


@helper
def _draw_map(env: Any, squares: Any, house: Any, out: Any) -> None:
    """The map of `layout`, without things."""
    sin_yaw, cos_yaw, _, _ = axes(env)
    for row in range(_ROWS):
        ahead = (_ROWS - 1 - row) * _SQUARE
        for column in range(_COLUMNS):
            right = (column - _COLUMNS // 2) * _SQUARE
            x = env.x - sin_yaw * ahead + cos_yaw * right - house.origin[0]
            z = env.z - cos_yaw * ahead - sin_yaw * right - house.origin[1]
            code = np.uint8(0)
            i, k = np.int64(np.floor(x / DRAWN)), np.int64(np.floor(z / DRAWN))
            if 0 <= i < house.codes.shape[0] and 0 <= k < house.codes.shape[1]:
                code = house.codes[i, k]
                owner = house.owner[i, k]
                if owner > 0 and env.receptacles[owner - 1] == 0:
                    code = np.uint8(0)
                elif code == 1:
                    square = house.square_at[np.int64(x / _SQUARE), np.int64(z / _SQUARE)]
                    if square == 0 or not squares[square - 1]:
                        code = np.uint8(0)
            out[row * _COLUMNS + column] = code


@helper
def observe(env: Any, things: Any, squares: Any, house: Any, out: Any, picture: bool) -> None:
    """Write the observation of `layout`; without `picture` nothing is on its map."""
    sin_yaw, cos_yaw, _, _ = axes(env)
    if picture:
        _draw_map(env, squares, house, out)
    out[layout.SCENE] = house.number + 1
    out[layout.TILT] = (env.tilt + 30) // 10
    out[layout.YAW] = np.int64(np.floor(env.yaw / 10 + 0.5)) % layout.YAWS
    out[layout.HELD] = env.held + 1
    out[layout.AT] = env.at + 1
    for t in range(len(things)):
        thing, first = things[t], layout.THINGS + t * layout.SLOT_BYTES
        for byte in range(layout.SLOT_BYTES):
            out[first + byte] = 0
        if thing.model < 0 or thing.seen == 0:
            continue
        out[first + layout.CLASS_LOW] = (thing.kind + 1) & 255
        out[first + layout.CLASS_HIGH] = (thing.kind + 1) >> 8
        out[first + layout.STATUS] = layout.IN_HAND if thing.receptacle == NOWHERE else thing.seen
        out[first + layout.ON] = thing.seen_on + 1
        if picture and thing.receptacle != NOWHERE:
            dx, dz = thing.x - env.x, thing.z - env.z
            far = _ROWS - 1 - np.int64(np.floor((-sin_yaw * dx - cos_yaw * dz) / _SQUARE + 0.5))
            beside = _COLUMNS // 2 + np.int64(np.floor((cos_yaw * dx - sin_yaw * dz) / _SQUARE + 0.5))
            if 0 <= far < _ROWS and 0 <= beside < _COLUMNS:
                out[far * _COLUMNS + beside] = _THING
    for r in range(layout.MOST_RECEPTACLES):
        out[layout.RECEPTACLES + r] = env.receptacles[r]


@helper
def _hit(low: Any, high: Any, eye: Any, ray: Any) -> float:
    """How far along a ray from `eye` a box is hit; -1 where it is missed."""
    enter, leave = 0.0, np.inf
    for i in range(3):
        if ray[i] == 0:
            if not low[i] <= eye[i] <= high[i]:
                return -1.0
            continue
        near, far = (low[i] - eye[i]) / ray[i], (high[i] - eye[i]) / ray[i]
        enter, leave = max(enter, min(near, far)), min(leave, max(near, far))
    return enter if enter <= leave else -1.0


@helper
def _nearness(low: Any, high: Any, middle: Any, eye: Any, ray: Any) -> float:
    """How well the view axis points at a box: its distance - 100 where it is hit, its angle to `middle` otherwise.

    A middle more than 30 degrees above or below counts as one at 30 degrees. Infinite beyond the range or the angle.
    Less is better.
    """
    distance = _hit(low, high, eye, ray)
    if 0 <= distance <= GRAB_RANGE:
        return distance - 100.0
    dx, dy, dz = middle[0] - eye[0], middle[1] - eye[1], middle[2] - eye[2]
    flat = np.hypot(dx, dz)
    if dx * dx + dy * dy + dz * dz > GRAB_RANGE * GRAB_RANGE or flat == 0:
        return np.inf
    # The camera tilts by 30 degrees only: what is higher or lower is aimed at by tilting as far as it goes
    rise = min(STEEPEST, max(-STEEPEST, np.arctan2(dy, flat)))
    along = (dx * ray[0] + dz * ray[2]) / flat * np.cos(rise) + ray[1] * np.sin(rise)
    angle = np.arccos(min(1.0, max(-1.0, along)))
    return angle if angle <= GRAB_ANGLE else np.inf


@helper
def aimed_at(env: Any, things: Any, house: Any) -> Int:
    """What grabbing would reach: a thing (its slot) with empty hands, a receptacle with full ones; -1: nothing.

    Among what is in view, within 3 m: what the view axis hits first, else what is nearest to it within 12 degrees.
    """
    sin_yaw, cos_yaw, sin_tilt, cos_tilt = axes(env)
    eye = (env.x, house.camera, env.z)
    ray = (-sin_yaw * cos_tilt, sin_tilt, -cos_yaw * cos_tilt)
    best, found = np.inf, np.int64(-1)
    if env.held < 0:
        for t in range(len(things)):
            thing = things[t]
            if thing.model < 0 or thing.seen != 2:
                continue
            middle = (thing.x, thing.y, thing.z)
            low = (thing.x - thing.half[0], thing.y - thing.half[1], thing.z - thing.half[2])
            high = (thing.x + thing.half[0], thing.y + thing.half[1], thing.z + thing.half[2])
            near = _nearness(low, high, middle, eye, ray)
            if near < best:
                best, found = near, np.int64(t)
        return found
    for r in range(len(house.low)):
        if env.receptacles[r] != 2 or not house.holds[r]:
            continue
        x, z = house.base[r]
        half_x, half_z = house.half[r]
        low = (x - half_x, house.low[r], z - half_z)
        high = (x + half_x, house.top[r], z + half_z)
        near = _nearness(low, high, (x, house.top[r], z), eye, ray)
        if near < best:
            best, found = near, np.int64(r)
    return found
