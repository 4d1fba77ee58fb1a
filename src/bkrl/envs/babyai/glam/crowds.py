"""Where objects lie in a crowded room, drawn from tables so that few layouts are thrown away.

Levels draw whole layouts until the agent can walk to every object. Of layouts with 18 objects in 36 cells one in 15,000
passes. A crowd is drawn from fewer: the room is cut into an upper and a lower half, and a half comes from the list of
those that can pass. Such a half has no object out of reach even where the whole row across the cut is free. Two halves
are drawn with the chances that they have among all layouts, so the layouts that pass have the same distribution.
"""

from functools import cache
from math import comb
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bkrl.envs.babyai.glam import GlamLevel

SINGLE, DOUBLE, LOCKED_IN = range(3)
"""What a room holds: the objects of missions with one object, those of missions with two, those of an "open" task."""

_WIDTHS: Final = (5, 6)  # cells a side; smaller rooms are never so full, and of larger ones there are too many halves


class Crowd(NamedTuple):
    """Cells are bits, x + y (width + 1): of a room of 6 x 6 cells, bits 0-5 are the upper row, and bit 6 is no cell.

    A spot is a cell that objects keep away from: they lie neither there nor beside it. Spots are numbered row by row;
    the last one is none at all. In rooms with a "goto" mission and the like, the agent begins at the spot.

    Attributes:
        width: cells a side.
        room: all cells.
        counts: (3,) objects in the room, for `SINGLE`, `DOUBLE` and `LOCKED_IN`.
        patterns: (P,) occupied cells of upper or lower halves.
        first: (spots, 2, C + 1) those of a spot's upper (0) or lower half (1) with c objects are
            `patterns[first[spot, half, c] : first[spot, half, c + 1]]`.
        ends: (3, spots * C) cumulated weights of spot * C + objects in the upper half; zeros where a room is not
            crowded, and objects are placed one by one.
    """

    width: int
    room: int
    counts: NDArray[np.int64]
    patterns: NDArray[np.int64]
    first: NDArray[np.int64]
    ends: NDArray[np.float64]


def crowd_of(level: GlamLevel) -> Crowd:
    """The tables of a level."""
    return _crowd(level.room_size - 2, level.num_dists)


@cache
def _crowd(width: int, num_dists: int) -> Crowd:
    counts = np.array([num_dists + 1, num_dists + 2, num_dists + 1])
    # With 2 * width objects or fewer, all may be reached from cells that do not touch the cut: the lists lack those.
    crowded = [width in _WIDTHS and count > 2 * width for count in counts]
    if not any(crowded):
        return Crowd(width, 0, counts, np.zeros(0, np.int64), np.zeros((1, 2, 2), np.int64), np.zeros((3, 1)))
    patterns, first = _halves(width)
    spots, C = len(first), first.shape[2] - 1
    numbers = np.diff(first)  # (spots, 2, C)
    weights = np.zeros((3, spots, C))
    middle = width // 2 * (width + 1)  # where the agent is while objects are placed in the room to the right
    for use, count in enumerate(counts.tolist()):
        for spot in (middle, spots - 1) if use == LOCKED_IN else range(spots - 1):
            free = width * width - _near(width, spot).bit_count()
            for upper in range(max(0, count - C + 1), min(count + 1, C)) if crowded[use] else ():
                both = int(numbers[spot, 0, upper]) * int(numbers[spot, 1, count - upper])
                weights[use, spot, upper] = both / comb(free, count)
    return Crowd(width, _room(width), counts, patterns, first, weights.reshape(3, -1).cumsum(1))


def _row(width: int, y: int) -> int:
    return ((1 << width) - 1) << y * (width + 1)


def _room(width: int) -> int:
    return sum(_row(width, y) for y in range(width))


def _near(width: int, spot: int) -> int:
    """The cell with this number and those beside it; nothing for the last spot."""
    if spot == width * width:
        return 0
    bit = 1 << spot % width + spot // width * (width + 1)
    return (bit | bit << 1 | bit >> 1 | bit << width + 1 | bit >> width + 1) & _room(width)


@cache
def _halves(width: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """`patterns` and `first` of a room."""
    cut = width // 2
    C = width * (width - cut) + 1
    halves = [_half(width, range(cut), cut), _half(width, range(cut, width), cut - 1)]
    parts: list[NDArray[np.int64]] = []
    known: dict[tuple[int, int], NDArray[np.int64]] = {}  # many spots are far from one of the halves
    first = np.zeros((width * width + 1, 2, C + 1), np.int64)
    for spot in range(width * width + 1):
        for half, (patterns, counts, cells) in enumerate(halves):
            near = _near(width, spot) & cells
            if (half, near) not in known:
                clear = (patterns & near) == 0
                begin = sum(map(len, parts))
                parts.append(patterns[clear])
                known[half, near] = begin + np.searchsorted(counts[clear], np.arange(C + 1))
            first[spot, half] = known[half, near]
    return np.concatenate(parts), first


def _half(width: int, rows: range, across: int) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """The patterns of these rows that can pass where row `across` is free, their numbers of objects, and all cells."""
    codes = np.arange(1 << width * len(rows))
    patterns, counts = np.zeros_like(codes), np.zeros_like(codes)
    for i in range(width * len(rows)):
        occupied = codes >> i & 1
        patterns |= occupied << i % width + (rows[0] + i // width) * (width + 1)
        counts += occupied
    cells = sum(_row(width, y) for y in rows)
    reached = np.full_like(codes, _row(width, across))
    free = ~patterns & cells
    for _ in range(width * len(rows)):
        reached |= free & _beside(reached, width)
    order = np.argsort(counts, kind="stable")
    order = order[(patterns & ~_beside(reached, width))[order] == 0]
    return patterns[order], counts[order], cells


def _beside(cells: NDArray[np.int64], width: int) -> NDArray[np.int64]:
    return cells << 1 | cells >> 1 | cells << width + 1 | cells >> width + 1
