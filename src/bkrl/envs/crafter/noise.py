"""Three-dimensional OpenSimplex noise, equal to the last bit to `opensimplex.OpenSimplex(seed).noise3`.

OpenSimplex (Kurt Spencer, 2014; public domain) sums contributions of the lattice points around (x, y, z): those of the
tetrahedron or octahedron the point lies in, and two extra ones. Floating-point sums depend on their order, so the order
here is that of the `opensimplex` package. A lattice point (i, j, k) relative to the cell's origin lies at a distance of
(dx - i, dy - j, dz - k), each less (i + j + k) / 3.
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
_MULTIPLIER: Final = np.uint64(6364136223846793005)
_INCREMENT: Final = np.uint64(1442695040888963407)


@kernel
def permutation(seed: Int, perm: Any, gradient: Any) -> None:
    """The package's `_init`: fill `perm` (256,) and the gradient index of each of its entries, both uint8."""
    source = np.arange(256).astype(np.uint8)
    state = np.uint64(seed)
    for _ in range(3):
        state = state * _MULTIPLIER + _INCREMENT
    for i in range(255, -1, -1):
        state = state * _MULTIPLIER + _INCREMENT
        r = (np.int64(state) + 31) % (i + 1)  # the sign of the divisor, as in Python
        perm[i] = source[r]
        gradient[i] = perm[i] % len(_GRADIENTS)
        source[r] = source[i]


@kernel
def _point(
    perm: Any, gradient: Any, xb: Int, yb: Int, zb: Int, dx: float, dy: float, dz: float, i: Int, j: Int, k: Int
) -> float:
    """Contribution of lattice point (i, j, k) of the cell at (xb, yb, zb)."""
    squish = (i + j + k) * _SQUISH
    ddx = dx - i - squish
    ddy = dy - j - squish
    ddz = dz - k - squish
    attn = 2 - ddx * ddx - ddy * ddy - ddz * ddz
    if attn <= 0:
        return 0.0
    g = gradient[(perm[(perm[(xb + i) & 255] + yb + j) & 255] + zb + k) & 255]
    attn *= attn
    return attn * attn * (_GRADIENTS[g, 0] * ddx + _GRADIENTS[g, 1] * ddy + _GRADIENTS[g, 2] * ddz)


@kernel
def noise3(x: float, y: float, z: float, perm: Any, gradient: Any) -> float:
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
    # A set of axes is three bits: 1 for x, 2 for y, 4 for z
    if inside <= 1:  # the tetrahedron at (0, 0, 0)
        a, a_score, b, b_score = 1, xin, 2, yin
        if a_score >= b_score and zin > b_score:
            b, b_score = 4, zin
        elif a_score < b_score and zin > a_score:
            a, a_score = 4, zin
        rest = 1 - inside
        if rest > a_score or rest > b_score:  # the origin is one of the two nearest points
            c = b if b_score > a_score else a
            i0, j0, k0 = c & 1, c >> 1 & 1, c >> 2
            i1, j1, k1 = i0, j0, k0
            if c & 1 == 0:
                i0 = -1
            if c & 2 == 0:
                if c & 1 == 0:
                    j1 = -1
                else:
                    j0 = -1
            if c & 4 == 0:
                k1 = -1
        else:
            c = a | b
            i0, j0, k0 = c & 1, c >> 1 & 1, c >> 2
            i1, j1, k1 = 2 * i0 - 1, 2 * j0 - 1, 2 * k0 - 1
        value += _point(perm, gradient, xb, yb, zb, dx, dy, dz, 0, 0, 0)
        value += _point(perm, gradient, xb, yb, zb, dx, dy, dz, 1, 0, 0)
        value += _point(perm, gradient, xb, yb, zb, dx, dy, dz, 0, 1, 0)
        value += _point(perm, gradient, xb, yb, zb, dx, dy, dz, 0, 0, 1)
    elif inside >= 2:  # the tetrahedron at (1, 1, 1)
        a, a_score, b, b_score = 6, xin, 5, yin
        if a_score <= b_score and zin < b_score:
            b, b_score = 3, zin
        elif a_score > b_score and zin < a_score:
            a, a_score = 3, zin
        rest = 3 - inside
        if rest < a_score or rest < b_score:  # (1, 1, 1) is one of the two nearest points
            c = b if b_score < a_score else a
            i0, j0, k0 = c & 1, c >> 1 & 1, c >> 2
            i1, j1, k1 = i0, j0, k0
            if c & 1 != 0:
                i0 = 2
            if c & 2 != 0:
                if c & 1 != 0:
                    j1 = 2
                else:
                    j0 = 2
            if c & 4 != 0:
                k1 = 2
        else:
            c = a & b
            i0, j0, k0 = c & 1, c >> 1 & 1, c >> 2
            i1, j1, k1 = 2 * i0, 2 * j0, 2 * k0
        value += _point(perm, gradient, xb, yb, zb, dx, dy, dz, 1, 1, 0)
        value += _point(perm, gradient, xb, yb, zb, dx, dy, dz, 1, 0, 1)
        value += _point(perm, gradient, xb, yb, zb, dx, dy, dz, 0, 1, 1)
        value += _point(perm, gradient, xb, yb, zb, dx, dy, dz, 1, 1, 1)
    else:  # the octahedron between them
        p = xin + yin
        a_far = p > 1
        a, a_score = (3, p - 1) if a_far else (4, 1 - p)
        p = xin + zin
        b_far = p > 1
        b, b_score = (5, p - 1) if b_far else (2, 1 - p)
        p = yin + zin
        c_far = p > 1
        c, c_score = (6, p - 1) if c_far else (1, 1 - p)
        if a_score <= b_score and a_score < c_score:
            a, a_far = c, c_far
        elif a_score > b_score and b_score < c_score:
            b, b_far = c, c_far
        if a_far == b_far:
            if a_far:  # both nearest points on the side of (1, 1, 1)
                i0, j0, k0 = 1, 1, 1
                c = a & b
                i1, j1, k1 = 0, 0, 0
                if c & 1 != 0:
                    i1 = 2
                elif c & 2 != 0:
                    j1 = 2
                else:
                    k1 = 2
            else:  # both on the side of (0, 0, 0)
                i0, j0, k0 = 0, 0, 0
                c = a | b
                i1, j1, k1 = 1, 1, 1
                if c & 1 == 0:
                    i1 = -1
                elif c & 2 == 0:
                    j1 = -1
                else:
                    k1 = -1
        else:  # one on either side
            far, near = (a, b) if a_far else (b, a)
            i0, j0, k0 = 1, 1, 1
            if far & 1 == 0:
                i0 = -1
            elif far & 2 == 0:
                j0 = -1
            else:
                k0 = -1
            i1, j1, k1 = 0, 0, 0
            if near & 1 != 0:
                i1 = 2
            elif near & 2 != 0:
                j1 = 2
            else:
                k1 = 2
        value += _point(perm, gradient, xb, yb, zb, dx, dy, dz, 1, 0, 0)
        value += _point(perm, gradient, xb, yb, zb, dx, dy, dz, 0, 1, 0)
        value += _point(perm, gradient, xb, yb, zb, dx, dy, dz, 0, 0, 1)
        value += _point(perm, gradient, xb, yb, zb, dx, dy, dz, 1, 1, 0)
        value += _point(perm, gradient, xb, yb, zb, dx, dy, dz, 1, 0, 1)
        value += _point(perm, gradient, xb, yb, zb, dx, dy, dz, 0, 1, 1)
    value += _point(perm, gradient, xb, yb, zb, dx, dy, dz, i0, j0, k0)
    value += _point(perm, gradient, xb, yb, zb, dx, dy, dz, i1, j1, k1)
    return value / _NORM
