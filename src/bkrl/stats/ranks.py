"""Spearman's rank correlation and the area under the ROC curve, with ties."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def ranks(values: NDArray[Any]) -> NDArray[np.float64]:
    """(n,) ranks from 1, ties at their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts).astype(np.float64)
    return (last - (counts - 1) / 2.0)[inverse]


def rank_correlation(a: NDArray[Any], b: NDArray[Any]) -> float:
    """Spearman's rank correlation of (n,) and (n,); 0 where one side is constant."""
    x, y = ranks(a), ranks(b)
    spread = float(x.std() * y.std())
    return 0.0 if spread == 0 else float(((x - x.mean()) * (y - y.mean())).mean() / spread)


def area_under_curve(high: NDArray[Any], low: NDArray[Any]) -> float:
    """How often a value of `high` is above one of `low`, ties counted half (Mann and Whitney's U over n·m)."""
    both = ranks(np.concatenate([high, low]))
    count = len(high)
    return float((both[:count].sum() - count * (count + 1) / 2) / (count * len(low)))
