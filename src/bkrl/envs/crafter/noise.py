"""Three-dimensional OpenSimplex noise, equal to the last bit to `opensimplex.OpenSimplex(seed).noise3`.

OpenSimplex (Kurt Spencer, 2014; public domain) sums contributions of the lattice points around (x, y, z): those of the
tetrahedron or octahedron the point lies in, and two extra ones. Floating-point sums depend on their order, so the order
here is that of the `opensimplex` package. A lattice point (i, j, k) relative to the cell's origin lies at a distance of
(dx - i, dy - j, dz - k), each less (i + j + k) / 3.

Which two extra points belong to a place is looked up in `_EXTRA`. Whole maps get `lay_noise`, which is quick and close.
"""

from typing import Any, Final

import numpy as np

from bkrl.core.jit import Int, helper
from bkrl.envs.crafter.rules import AREA

_STRETCH: Final = -1.0 / 6  # (1 / sqrt(3 + 1) - 1) / 3
_SQUISH: Final = 1.0 / 3  # (sqrt(3 + 1) - 1) / 3
_NORM: Final = 103
# Directions to the vertices of a rhombicuboctahedron: a long component of 11 and two of 4, in all signs and places
_SIGNS = [(x, y, z) for z in (1, -1) for y in (1, -1) for x in (-1, 1)]
_GRADIENTS: Final = np.array([np.roll([11, 4, 4], place) * one for one in _SIGNS for place in range(3)], np.float64)

# A set of axes is three bits: 1 for x, 2 for y, 4 for z. A place lies in one of three parts of its cell:
_LOW: Final = 0  # the tetrahedron at (0, 0, 0)
_HIGH: Final = 1  # the tetrahedron at (1, 1, 1)
_MIDDLE: Final = 2  # the octahedron between them


_CORNERS: Final = np.array([[0o10, 0o4, 0o2, 0o1, 0, 0], [0o6, 0o5, 0o3, 0o7, 0, 0], [0o4, 0o2, 0o1, 0o6, 0o5, 0o3]])
"""The corners of each part, in the order of their sum; 0 where there are no more. Bits 4, 2, 1 are x, y, z."""


def _unit(axes: int) -> list[int]:
    return [axes >> axis & 1 for axis in range(3)]


def _first(axes: int) -> int:
    """One axis of a set: x before y before z."""
    return next((bit for bit in (1, 2) if axes & bit), 4)


def _extra_points(part: int, yes: bool, also: bool, a: int, b: int) -> list[list[int]]:
    """The two extra lattice points of a place, from what `noise3` finds out about it.

    Args:
        part: of the cell.
        yes, also: in a tetrahedron, whether its corner is among the two nearest points, and whether b is nearer than a;
            in the octahedron, whether a and b are on the far side, that of (1, 1, 1).
        a, b: the two nearest points apart from a tetrahedron's corner.
    """
    if part != _MIDDLE:
        nearest, low = _unit(b if also else a), part == _LOW
        if not yes:
            both = _unit(a | b if low else a & b)
            return [both, [2 * value - 1 if low else 2 * value for value in both]]
        # Next to the nearest point: a step back along one axis it lacks, or a step on along one it has
        change = [axis for axis in range(3) if nearest[axis] != low]
        step = -1 if low else 1
        return [[value + step * (axis == one) for axis, value in enumerate(nearest)] for one in change][:2]
    if yes and also:
        return [[1, 1, 1], [2 * value for value in _unit(_first(a & b))]]
    if not yes and not also:
        return [[0, 0, 0], [1 - 2 * value for value in _unit(_first(7 & ~(a | b)))]]
    far, near = (a, b) if yes else (b, a)
    return [[1 - 2 * value for value in _unit(_first(7 & ~far))], [2 * value for value in _unit(_first(near))]]


_EXTRA: Final = np.zeros((3, 2, 2, 8, 8, 6), np.int64)
"""Two lattice points at [part, yes, also, a, b]; rows that cannot come up mean nothing."""
for _part, _yes, _also, _a, _b in np.ndindex(_EXTRA.shape[:-1]):
    _corners = [bin(_axes).count("1") for _axes in (_a, _b)]
    if _part == _MIDDLE or _corners == ([1, 1] if _part == _LOW else [2, 2]):
        _EXTRA[_part, _yes, _also, _a, _b] = np.ravel(_extra_points(_part, bool(_yes), bool(_also), _a, _b))
_MULTIPLIER: Final = np.uint64(6364136223846793005)
_INCREMENT: Final = np.uint64(1442695040888963407)


@helper
def seed_noise(env: Any, seed: Int) -> None:
    """`OpenSimplex(seed)`: fill the env's `permutation` and the index of the gradient of each of its entries."""
    source = env.gradient  # numbers not taken yet, below those that are done
    for i in range(256):
        source[i] = i
    state = np.uint64(seed)
    for _ in range(3):
        state = state * _MULTIPLIER + _INCREMENT
    for i in range(255, -1, -1):
        state = state * _MULTIPLIER + _INCREMENT
        r = (np.int64(state) + 31) % (i + 1)  # the sign of the divisor, as in Python
        taken = source[r]
        source[r] = source[i]
        env.permutation[i] = taken
        env.gradient[i] = taken % len(_GRADIENTS)


@helper
def _point(env: Any, xb: Int, yb: Int, zb: Int, dx: float, dy: float, dz: float, i: Int, j: Int, k: Int) -> float:
    """Contribution of lattice point (i, j, k) of the cell at (xb, yb, zb)."""
    squish = (i + j + k) * _SQUISH
    dx, dy, dz = dx - i - squish, dy - j - squish, dz - k - squish
    attn = max(2 - dx * dx - dy * dy - dz * dz, 0.0)
    g = env.gradient[(env.permutation[(env.permutation[(xb + i) & 255] + yb + j) & 255] + zb + k) & 255]
    attn *= attn
    return attn * attn * (_GRADIENTS[g, 0] * dx + _GRADIENTS[g, 1] * dy + _GRADIENTS[g, 2] * dz)


@helper
def noise3(env: Any, x: float, y: float, z: float) -> float:
    """Noise at (x, y, z), within ±1."""
    stretch = (x + y + z) * _STRETCH
    xs, ys, zs = x + stretch, y + stretch, z + stretch
    xf, yf, zf = np.floor(xs), np.floor(ys), np.floor(zs)
    xb, yb, zb = int(xf), int(yf), int(zf)
    squish = (xb + yb + zb) * _SQUISH
    dx, dy, dz = x - (xf + squish), y - (yf + squish), z - (zf + squish)
    xin, yin, zin = xs - xf, ys - yf, zs - zf
    inside = xin + yin + zin
    value = 0.0
    # The conditions below are data, not branches
    if inside <= 1:  # which two of the other points of this tetrahedron are nearest?
        part = _LOW
        z_over_x = (xin < yin) & (zin > xin)
        z_over_y = (xin >= yin) & (zin > yin)
        a, a_score = (4, zin) if z_over_x else (1, xin)
        b, b_score = (4, zin) if z_over_y else (2, yin)
        yes = 1 - inside > min(a_score, b_score)
        also = b_score > a_score
    elif inside >= 2:
        part = _HIGH
        z_under_x = (xin > yin) & (zin < xin)
        z_under_y = (xin <= yin) & (zin < yin)
        a, a_score = (3, zin) if z_under_x else (6, xin)
        b, b_score = (3, zin) if z_under_y else (5, yin)
        yes = 3 - inside < max(a_score, b_score)
        also = b_score < a_score
    else:  # of three pairs of opposite points, which two points are nearest?
        part = _MIDDLE
        a_score, b_score, c_score = xin + yin - 1, xin + zin - 1, yin + zin - 1
        yes, also, c_far = a_score > 0, b_score > 0, c_score > 0
        a, b, c = 3 if yes else 4, 5 if also else 2, 6 if c_far else 1
        a_score, b_score, c_score = abs(a_score), abs(b_score), abs(c_score)
        c_for_a = (a_score <= b_score) & (a_score < c_score)
        c_for_b = (a_score > b_score) & (b_score < c_score)
        a, yes = (c, c_far) if c_for_a else (a, yes)
        b, also = (c, c_far) if c_for_b else (b, also)
    for corner in _CORNERS[part]:
        if corner > 0:
            value += _point(env, xb, yb, zb, dx, dy, dz, corner >> 2 & 1, corner >> 1 & 1, corner & 1)
    extra = _EXTRA[part, int(yes), int(also), a, b]
    for at in range(0, len(extra), 3):
        value += _point(env, xb, yb, zb, dx, dy, dz, extra[at], extra[at + 1], extra[at + 2])
    return value / _NORM


ROUGH: Final = 1.5e-4
"""How far `lay_noise` may be from `noise3`, which leaves out points that pull by as much as 1.22e-4."""
_REACH: Final = float(np.sqrt(2))
_BLOCK: Final = 8
"""Cells of a column are computed in a multiple of so many."""
_GRADIENTS_32: Final = _GRADIENTS.astype(np.float32)


@helper
def lay_noise(env: Any, step_x: float, step_y: float, z: float, bands: Any, plane: Any) -> None:
    """Noise in single precision at (x * step_x, y * step_y, z) for a whole map.

    Each lattice point that reaches the plane adds its contribution to the cells around it. The point (i, j, k) lies at
    (i, j, k) + (i + j + k) / 3; `diagonal` is i + j + k.

    Args:
        env: see `state`.
        step_x, step_y, z: where cells lie in the noise.
        bands: (2, AREA), the first and the last cell of each column that must be right.
        plane: (AREA * AREA,) of float32, for the noise.
    """
    for at in range(len(plane)):
        plane[at] = np.float32(0)
    far_x, far_y, step = (AREA - 1) * step_x, (AREA - 1) * step_y, np.float32(step_y)
    cells_x, cells_y = 1 / step_x, 1 / step_y
    for diagonal in range(int((z - 3 * _REACH) / 2) - 1, int((far_x + far_y + z + 3 * _REACH) / 2) + 2):
        shift = diagonal * _SQUISH
        for k in range(int(np.ceil(z - shift - _REACH)), int(np.floor(z - shift + _REACH)) + 1):
            dz = z - shift - k
            left = 2 - dz * dz
            reach, rest = np.sqrt(left), diagonal - k
            first = int(np.ceil(max(-shift - reach, rest + shift - far_y - reach)))
            for i in range(first, int(np.floor(min(far_x - shift + reach, rest + shift + reach))) + 1):
                x, y = i + shift, rest - i + shift
                g = env.gradient[(env.permutation[(env.permutation[i & 255] + rest - i) & 255] + k) & 255]
                pull_x, pull_y = _GRADIENTS_32[g, 0], _GRADIENTS_32[g, 1]
                pull_z = np.float32(_GRADIENTS[g, 2] * dz)
                start = max(0, int((y - reach) * cells_y))
                cells = ((min(AREA - 1, int((y + reach) * cells_y)) - start) // _BLOCK + 1) * _BLOCK
                start = min(start, AREA - cells)
                dy = np.float32(start * step_y - y)
                for column in range(
                    max(0, int(np.ceil((x - reach) * cells_x))), min(AREA - 1, int((x + reach) * cells_x)) + 1
                ):
                    if bands[0, column] < start + cells and bands[1, column] >= start:
                        dx = np.float32(column * step_x - x)
                        squared, along = np.float32(left) - dx * dx, pull_x * dx + pull_z
                        _add_pull(plane, column * AREA + start, cells, dy, step, squared, along, pull_y)
    for at in range(len(plane)):
        plane[at] *= np.float32(1 / _NORM)


@helper
def _add_pull(plane: Any, first: Int, cells: Int, dy: Any, step: Any, left: Any, along: Any, pull_y: Any) -> None:
    """Add what a lattice point contributes to so many cells of a column, by vector instructions."""
    for at in range(cells):
        y = dy + np.float32(np.int32(at)) * step
        attn = left - y * y
        attn = attn if attn > 0 else np.float32(0)
        attn *= attn
        plane[np.uint64(first) + np.uint64(at)] += attn * attn * (along + pull_y * y)
