"""Situations that a record does not hold: its rows with other things in the same places and other numbers in hand.

A program says something of any situation, and an explorer meets few of those that a good agent comes to. So a network
that is to say what a program says is shown these, too. They need not be possible.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bkrl.envs.family import Symbols

_FIELD = 32  # so many entries of the same categories are a field of cells, fewer are numbers
_SWAPS = 2
_PLACED = 0.06  # of the cells hold anything


def varied(observations: NDArray[np.uint8], symbols: Symbols, rng: np.random.Generator) -> NDArray[np.uint8]:
    """(B, *obs_shape) uint8: in each row two pairs of kinds of cells have changed places, a few cells hold anything,
    and half of the numbers are others, one in two of them 0. Quantities stay.

    Args:
        observations: (B, *obs_shape) uint8.
        symbols: what their entries mean.
        rng: decides.
    """
    rows = observations.reshape(len(observations), -1).copy()
    sizes = np.array(symbols.sizes)
    for size in np.unique(sizes[sizes > 1]):
        entries = np.flatnonzero(sizes == size)
        found = rows[:, entries]
        drawn = rng.integers(0, size, found.shape, np.uint8)
        if len(entries) < _FIELD:
            drawn *= rng.random(found.shape) < 0.5
            found = np.where(rng.random(found.shape) < 0.5, drawn, found)
        else:
            for _ in range(_SWAPS):
                one, other = rng.integers(0, size, (2, len(rows), 1), np.uint8)
                found = np.where(found == one, other, np.where(found == other, one, found))
            found = np.where(rng.random(found.shape) < _PLACED, drawn, found)
        rows[:, entries] = found
    return rows.reshape(observations.shape)
