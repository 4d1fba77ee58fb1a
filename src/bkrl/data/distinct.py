"""Distinct views, windows and transitions, so that each is computed once.

In a room, two thirds to nine tenths of a rollout's views have been seen before in it, and its windows repeat each view
H + 1 times. So a view is embedded, captioned or copied once; within a rollout, while the policy does not change, it
gets its logits and values once; and two windows are compared by the numbers of their views. Each is the same function
as without, and sums of gradients are the same sums, in another order.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bkrl.core.jit import helper, kernel


def distinct_rows(rows: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For (M, ...) rows: where each distinct one is first seen (U,), increasing, and for every row its place among them
    (M,).  Rows are compared whole, byte by byte.
    """
    first, places = np.empty((2, len(rows)), np.int64)
    count = _number(_words(rows), 0, len(rows), _table(len(rows)), first, 0, places)
    return first[:count], places


class Repeats:
    """The distinct rows of a (T, N, *obs_shape) uint8 array that is filled row by row.

    Args:
        storage: the array; held, and read when `add` is called.

    Attributes:
        count: how many distinct observations there are so far.
        numbers: (T * N,) int64, which of them stands at each place (t * N + n).
    """

    def __init__(self, storage: NDArray[np.uint8]) -> None:
        T, N = storage.shape[:2]
        flat = storage.reshape(T * N, -1)
        if not np.shares_memory(flat, storage):
            raise ValueError("the storage must be contiguous")
        self._rows = flat.view(np.uint64) if flat.shape[1] % 8 == 0 else flat
        self._table = _table(T * N)
        self._num_envs = N
        self.count = 0
        self.numbers, self._first = np.zeros((2, T * N), np.int64)

    @property
    def first(self) -> NDArray[np.int64]:
        """(count,) the places where they were first seen, increasing."""
        return self._first[: self.count]

    @property
    def origins(self) -> NDArray[np.int64]:
        """(T * N,) the place where the observation of each place was first seen."""
        return self._first[self.numbers]

    def clear(self) -> None:
        """A new rollout begins."""
        self._table.fill(-1)
        self.count = 0

    def add(self, t: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Take in row t: the numbers of its observations (N,), and the envs that are the first to see one (U,)."""
        place, before = t * self._num_envs, self.count
        stop = place + self._num_envs
        self.count = _number(self._rows, place, stop, self._table, self._first, before, self.numbers)
        return self.numbers[place:stop], self.first[before:] - place


def numbered(texts: NDArray[np.object_]) -> tuple[NDArray[np.int64], list[str]]:
    """(B,) texts as numbers of the distinct ones, and these in the order in which they are first met."""
    places: dict[str, int] = {}
    numbers = [places.setdefault(text, len(places)) for text in texts.tolist()]
    return np.array(numbers, np.int64), list(places)


def _words(rows: NDArray[Any]) -> NDArray[np.uint64]:
    """(M, W): each row's bytes as whole words, the last one filled up with zeros."""
    count = len(rows)
    flat = np.ascontiguousarray(rows).reshape(count, -1).view(np.uint8) if count else np.zeros((0, 8), np.uint8)
    if flat.shape[1] % 8:
        padded = np.zeros((count, -(-flat.shape[1] // 8) * 8), np.uint8)
        padded[:, : flat.shape[1]] = flat
        flat = padded
    return flat.view(np.uint64)


def _table(rows: int) -> NDArray[np.int64]:
    """Room for that many rows, at most half of it taken."""
    return np.full(1 << max(2 * rows - 1, 1).bit_length(), -1, np.int64)


@kernel
def _number(rows, start, stop, table, first, count, numbers):  # type: ignore[no-untyped-def]
    """Number the distinct rows, `count` of which are there: where each is first seen, which one each row is, how many
    there are then.
    """
    for i in range(start, stop):
        slot = _slot(rows, i, table)
        if table[slot] < 0:
            table[slot], first[count], numbers[i] = i, i, count
            count += 1
        else:
            numbers[i] = numbers[table[slot]]
    return count


@helper
def _slot(rows, i, table):  # type: ignore[no-untyped-def]
    """Where in the table the number of a row like rows[i] stands, or has its free place.

    Open addressing with linear probing; rows are compared whole, so a collision of hashes is no repeat.
    """
    mask = table.size - 1
    hashed = np.uint64(14695981039346656037)
    for j in range(rows.shape[1]):
        hashed = (hashed ^ np.uint64(rows[i, j])) * np.uint64(1099511628211)
        hashed ^= hashed >> np.uint64(29)
    slot = np.int64(hashed & np.uint64(mask))
    while True:
        place = table[slot]
        if place < 0:
            return slot
        same = True
        for j in range(rows.shape[1]):
            if rows[place, j] != rows[i, j]:
                same = False
                break
        if same:
            return slot
        slot = (slot + 1) & mask
