"""Three-dimensional OpenSimplex noise, equal to the last bit to `opensimplex.OpenSimplex(seed).noise3`.

OpenSimplex (Kurt Spencer, 2014; public domain) sums contributions of the lattice points around (x, y, z): those of the
tetrahedron or octahedron the point lies in, and two extra ones. Floating-point sums depend on their order, so the order
here is that of the `opensimplex` package. A lattice point (i, j, k) relative to the cell's origin lies at a distance of
(dx - i, dy - j, dz - k), each less (i + j + k) / 3.

Which two extra points belong to a place is looked up in `_EXTRA`, and points out of reach count as 0: a branch would be
mispredicted half of the time, and making a world is almost nothing but this noise.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from bkrl.envs.crafter.scalars import Int
from bkrl.envs.jit import kernel

_STRETCH: Final = -1.0 / 6  # (1 / sqrt(3 + 1) - 1) / 3
_SQUISH: Final = 1.0 / 3  # (sqrt(3 + 1) - 1) / 3
_NORM: Final = 103
# Directions to the vertices of a rhombicuboctahedron: a long component of 11 and two of 4, in all signs and places
_GRADIENTS: Final = np.array(
    [
        [sign * length for sign, length in zip(signs, np.roll([11, 4, 4], place), strict=True)]
        for signs in (
            (-1, 1, 1),
            (1, 1, 1),
            (-1, -1, 1),
            (1, -1, 1),
            (-1, 1, -1),
            (1, 1, -1),
            (-1, -1, -1),
            (1, -1, -1),
        )
        for place in range(3)
    ],
    np.float64,
)
LARGEST: Final = 1.0
"""The noise stays within ±0.99: the sum over all lattice points with the gradient that fits each best, maximised."""

# A set of axes is three bits: 1 for x, 2 for y, 4 for z. Where a place lies in its cell:
_AT_ORIGIN: Final = 0  # in the tetrahedron at (0, 0, 0), which is among the two nearest points
_BY_ORIGIN: Final = 1  # in it, but two others are nearer
_AT_CORNER: Final = 2  # in the tetrahedron at (1, 1, 1), which is among the two nearest points
_BY_CORNER: Final = 3
_NEAR_CORNER: Final = 4  # in the octahedron, both nearest points on the side of (1, 1, 1)
_NEAR_ORIGIN: Final = 5  # in the octahedron, both nearest points on the side of (0, 0, 0)
_BETWEEN: Final = 6  # in the octahedron, one on either side


def _unit(axes: int) -> list[int]:
    return [axes >> axis & 1 for axis in range(3)]


def _first(axes: int) -> int:
    return next(bit for bit in (1, 2, 4) if axes & bit)


def _extra_points(where: int, axes: int, others: int) -> tuple[list[int], list[int]]:
    """The two extra lattice points of a place, from its region and the axes that decide."""
    u, missing = _unit(axes), 7 & ~axes
    if where in (_AT_ORIGIN, _AT_CORNER):
        # Beyond the nearest point, turned once to either side: at the origin a step back along the other axes, at
        # the corner a step on along its own. The first of the two changes gets its own point.
        change = [bit for bit in (1, 2, 4) if (missing if where == _AT_ORIGIN else axes) & bit]
        step = -1 if where == _AT_ORIGIN else 1
        changed = [[value + step * (bit == 1 << axis) for axis, value in enumerate(u)] for bit in change]
        return changed[0], changed[1]
    if where == _BY_ORIGIN:
        return u, [2 * value - 1 for value in u]
    if where == _BY_CORNER:
        return u, [2 * value for value in u]
    if where == _NEAR_CORNER:
        return [1, 1, 1], [2 * value for value in _unit(_first(axes) if axes else 4)]
    if where == _NEAR_ORIGIN:
        return [0, 0, 0], [1 - 2 * value for value in _unit(_first(missing) if missing else 4)]
    return [1 - 2 * value for value in _unit(_first(missing) if missing else 4)], [
        2 * value for value in _unit(_first(others) if others else 4)
    ]


_EXTRA: Final = np.zeros((7, 8, 8, 6), np.int64)
"""Two lattice points at [where, axes, others]."""
for _where in range(7):
    for _axes in range(8):
        for _others in range(8):
            if _where in (_AT_ORIGIN, _AT_CORNER) and bin(_axes).count("1") != (1 if _where == _AT_ORIGIN else 2):
                continue
            _EXTRA[_where, _axes, _others] = np.concatenate(_extra_points(_where, _axes, _others))
_EXTRA_REAL: Final = np.concatenate([_EXTRA, _EXTRA.reshape(7, 8, 8, 2, 3).sum(-1) * _SQUISH], axis=-1)
"""The same as doubles, and for each of the two what `_point` calls its squish."""

_MULTIPLIER: Final = np.uint64(6364136223846793005)
_INCREMENT: Final = np.uint64(1442695040888963407)


@kernel
def seed_noise(world: Any, seed: Int) -> None:
    """`OpenSimplex(seed)`: fill the world's `permutation` and the index of the gradient of each of its entries."""
    source = np.arange(256).astype(np.uint8)
    state = np.uint64(seed)
    for _ in range(3):
        state = state * _MULTIPLIER + _INCREMENT
    for i in range(255, -1, -1):
        state = state * _MULTIPLIER + _INCREMENT
        r = (np.int64(state) + 31) % (i + 1)  # the sign of the divisor, as in Python
        world.permutation[i] = source[r]
        world.gradient[i] = source[r] % len(_GRADIENTS)
        source[r] = source[i]


@kernel
def _point(world: Any, xb: Int, yb: Int, zb: Int, dx: float, dy: float, dz: float, i: Int, j: Int, k: Int) -> float:
    """Contribution of lattice point (i, j, k) of the cell at (xb, yb, zb)."""
    squish = (i + j + k) * _SQUISH
    return _pull(world, xb + i, yb + j, zb + k, dx - i - squish, dy - j - squish, dz - k - squish)


@kernel
def _pull(world: Any, x: Int, y: Int, z: Int, ddx: float, ddy: float, ddz: float) -> float:
    """Contribution of the lattice point (x, y, z), of which the place lies at (ddx, ddy, ddz)."""
    attn = max(2 - ddx * ddx - ddy * ddy - ddz * ddz, 0.0)
    g = world.gradient[(world.permutation[(world.permutation[x & 255] + y) & 255] + z) & 255]
    attn *= attn
    return attn * attn * (_GRADIENTS[g, 0] * ddx + _GRADIENTS[g, 1] * ddy + _GRADIENTS[g, 2] * ddz)


@kernel
def noise3(world: Any, x: float, y: float, z: float) -> float:
    """Noise at (x, y, z); never beyond ±`LARGEST`."""
    stretch = (x + y + z) * _STRETCH
    xs, ys, zs = x + stretch, y + stretch, z + stretch
    xf, yf, zf = np.floor(xs), np.floor(ys), np.floor(zs)
    xb, yb, zb = int(xf), int(yf), int(zf)
    squish = (xb + yb + zb) * _SQUISH
    dx, dy, dz = x - (xf + squish), y - (yf + squish), z - (zf + squish)
    xin, yin, zin = xs - xf, ys - yf, zs - zf
    inside = xin + yin + zin
    value = 0.0
    others: Int = 0
    if inside <= 1:  # the tetrahedron at (0, 0, 0): which two of its other points are nearest?
        z_over_x = (xin < yin) & (zin > xin)
        z_over_y = (xin >= yin) & (zin > yin)
        a, a_score = (4, zin) if z_over_x else (1, xin)
        b, b_score = (4, zin) if z_over_y else (2, yin)
        at_origin = 1 - inside > min(a_score, b_score)
        nearest = b if b_score > a_score else a
        where = _AT_ORIGIN if at_origin else _BY_ORIGIN
        axes = nearest if at_origin else a | b
        value += _point(world, xb, yb, zb, dx, dy, dz, 0, 0, 0)
        value += _point(world, xb, yb, zb, dx, dy, dz, 1, 0, 0)
        value += _point(world, xb, yb, zb, dx, dy, dz, 0, 1, 0)
        value += _point(world, xb, yb, zb, dx, dy, dz, 0, 0, 1)
    elif inside >= 2:  # the tetrahedron at (1, 1, 1)
        z_under_x = (xin > yin) & (zin < xin)
        z_under_y = (xin <= yin) & (zin < yin)
        a, a_score = (3, zin) if z_under_x else (6, xin)
        b, b_score = (3, zin) if z_under_y else (5, yin)
        at_corner = 3 - inside < max(a_score, b_score)
        nearest = b if b_score < a_score else a
        where = _AT_CORNER if at_corner else _BY_CORNER
        axes = nearest if at_corner else a & b
        value += _point(world, xb, yb, zb, dx, dy, dz, 1, 1, 0)
        value += _point(world, xb, yb, zb, dx, dy, dz, 1, 0, 1)
        value += _point(world, xb, yb, zb, dx, dy, dz, 0, 1, 1)
        value += _point(world, xb, yb, zb, dx, dy, dz, 1, 1, 1)
    else:  # the octahedron between them: of three pairs of opposite points, which two are nearest?
        a_score, b_score, c_score = xin + yin - 1, xin + zin - 1, yin + zin - 1
        a_far, b_far, c_far = a_score > 0, b_score > 0, c_score > 0
        a, b, c = 3 if a_far else 4, 5 if b_far else 2, 6 if c_far else 1
        a_score, b_score, c_score = abs(a_score), abs(b_score), abs(c_score)
        c_for_a = (a_score <= b_score) & (a_score < c_score)
        c_for_b = (a_score > b_score) & (b_score < c_score)
        a, a_far = (c, c_far) if c_for_a else (a, a_far)
        b, b_far = (c, c_far) if c_for_b else (b, b_far)
        both = a_far == b_far
        where = (_NEAR_CORNER if a_far else _NEAR_ORIGIN) if both else _BETWEEN
        axes = (a & b if a_far else a | b) if both else (a if a_far else b)
        others = b if a_far else a
        value += _point(world, xb, yb, zb, dx, dy, dz, 1, 0, 0)
        value += _point(world, xb, yb, zb, dx, dy, dz, 0, 1, 0)
        value += _point(world, xb, yb, zb, dx, dy, dz, 0, 0, 1)
        value += _point(world, xb, yb, zb, dx, dy, dz, 1, 1, 0)
        value += _point(world, xb, yb, zb, dx, dy, dz, 1, 0, 1)
        value += _point(world, xb, yb, zb, dx, dy, dz, 0, 1, 1)
    e, r = _EXTRA[where, axes, others], _EXTRA_REAL[where, axes, others]
    value += _pull(world, xb + e[0], yb + e[1], zb + e[2], dx - r[0] - r[6], dy - r[1] - r[6], dz - r[2] - r[6])
    value += _pull(world, xb + e[3], yb + e[4], zb + e[5], dx - r[3] - r[7], dy - r[4] - r[7], dz - r[5] - r[7])
    return value / _NORM
