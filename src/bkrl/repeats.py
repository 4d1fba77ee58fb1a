"""Which rows of an array are repeats of earlier ones, so that what is done with a row is done once.

In a room, two thirds to nine tenths of a rollout's views have been seen before in it. While a rollout is taken the
policy stands still, so a view seen again gets the logits and values it got before; in a minibatch the network runs on
the distinct views, and what it says of them is handed to all their repeats; a potential looks at each distinct view and
window once. All are the same function as without, and the sums of gradients are the same sums, in another order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bkrl.jit import kernel


class Repeats:
    """The distinct rows of a (T, N, *obs_shape) uint8 array that is filled row by row.

    Args:
        storage: the array; held, and read when `add` is called.

    Attributes:
        origins: (T * N,) int64; where (t * N + n) the observation of each place was first seen.
    """

    def __init__(self, storage: NDArray[np.uint8]) -> None:
        T, N = storage.shape[:2]
        flat = storage.reshape(T * N, -1)
        if not np.shares_memory(flat, storage):
            raise ValueError("the storage must be contiguous")
        self._rows = flat.view(np.uint64) if flat.shape[1] % 8 == 0 else flat
        self._table = _table(T * N)
        self._num_envs = N
        self.origins = np.zeros(T * N, np.int64)

    def clear(self) -> None:
        """A new rollout begins."""
        self._table.fill(-1)

    def add(self, t: int) -> NDArray[np.int64]:
        """Take in row t; the (N,) origins of its observations. A world whose origin is its own place sees a new one."""
        first = t * self._num_envs
        last = first + self._num_envs
        _find(self._rows, first, last, self._table, self.origins)
        return self.origins[first:last]


def distinct_rows(rows: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For (M, ...) rows: where each distinct one is first seen (U,), increasing, and for every row its place among them
    (M,).  Rows are compared whole, byte by byte.
    """
    count = len(rows)
    flat = np.ascontiguousarray(rows).reshape(count, -1).view(np.uint8) if count else np.zeros((0, 8), np.uint8)
    if flat.shape[1] % 8:
        padded = np.zeros((count, -(-flat.shape[1] // 8) * 8), np.uint8)
        padded[:, : flat.shape[1]] = flat
        flat = padded
    origins = np.empty(count, np.int64)
    _find(flat.view(np.uint64), 0, count, _table(count), origins)
    new = origins == np.arange(count)
    return np.flatnonzero(new), (np.cumsum(new) - 1)[origins]


def _table(rows: int) -> NDArray[np.int64]:
    """Room for that many rows, at most half of it taken."""
    return np.full(1 << max(2 * rows - 1, 1).bit_length(), -1, np.int64)


@kernel
def _find(rows, first, last, table, origins):  # type: ignore[no-untyped-def]
    """Open addressing with linear probing; rows are compared whole, so a collision of hashes is no repeat."""
    mask = table.size - 1
    for i in range(first, last):
        hashed = np.uint64(14695981039346656037)
        for j in range(rows.shape[1]):
            hashed = (hashed ^ np.uint64(rows[i, j])) * np.uint64(1099511628211)
            hashed ^= hashed >> np.uint64(29)
        slot = np.int64(hashed & np.uint64(mask))
        while True:
            origin = table[slot]
            if origin < 0:
                table[slot] = origins[i] = i
                break
            same = True
            for j in range(rows.shape[1]):
                if rows[origin, j] != rows[i, j]:
                    same = False
                    break
            if same:
                origins[i] = origin
                break
            slot = (slot + 1) & mask
