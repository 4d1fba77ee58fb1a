"""Some of many, evenly spaced: the two ways in which bkrl picks what it measures, asks about and shows."""

import numpy as np
from numpy.typing import NDArray


def end_to_end(total: int, count: int) -> NDArray[np.int64]:
    """(at most `count`,) places in 0 … total − 1, evenly spaced, the first and the last among them."""
    return np.unique(np.linspace(0, total - 1, min(count, total)).astype(np.int64))


def beginnings(total: int, count: int) -> NDArray[np.int64]:
    """(at most `count`,) places in 0 … total − 1 where as many equal parts begin, the first among them."""
    count = min(count, total)
    return np.arange(count) * total // max(1, count)
