"""Distinct rows of a byte array, fast and exact: a potential is evaluated once for each distinct view or window."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bkrl.windows import Windows

_MULTIPLIERS = np.random.Generator(np.random.PCG64(0x5EED)).integers(1, 2**63, 4096, np.uint64) * np.uint64(
    2
) + np.uint64(1)
_MIX = np.uint64(0x9E3779B97F4A7C15)


def distinct_rows(rows: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For (M, ...) rows: indices (U,) of one representative each, and for every row its place among them (M,).

    Rows are compared by a 64-bit hash and then byte by byte with their representative, so the answer is exact.
    """
    count = len(rows)
    if count == 0:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    flat = np.ascontiguousarray(rows).reshape(count, -1).view(np.uint8)
    words = -(-flat.shape[1] // 8)
    if flat.shape[1] % 8:
        padded = np.zeros((count, words * 8), np.uint8)
        padded[:, : flat.shape[1]] = flat
        flat = padded
    keys = flat.view(np.uint64)
    mixed = keys * _MIX
    mixed ^= mixed >> np.uint64(29)
    multipliers = np.resize(_MULTIPLIERS, words) if words > len(_MULTIPLIERS) else _MULTIPLIERS[:words]
    mixed *= multipliers
    mixed ^= mixed >> np.uint64(32)
    hashes = np.add.reduce(mixed, axis=1, dtype=np.uint64)
    _, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
    if not np.array_equal(keys[first][inverse], keys):  # two different rows with one hash: sort the rows themselves
        whole = keys.view(np.dtype((np.void, words * 8))).ravel()
        _, first, inverse = np.unique(whole, return_index=True, return_inverse=True)
    return first, inverse


def distinct_views(windows: Windows) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The distinct observations (U, *obs_shape) in B windows, and each window's as numbers among them (B, H+1)."""
    count, rows = windows.valid.shape
    views = windows.observations.reshape(count * rows, *windows.observations.shape[2:])
    first, inverse = distinct_rows(views)
    return views[first], inverse.reshape(count, rows)
