"""Spearman's rank correlation and the area under the ROC curve, with ties."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def rank_correlation(a: NDArray[Any], b: NDArray[Any]) -> float:
    """Spearman's rank correlation of (n,) and (n,); 0 where one side is constant."""
    from scipy.stats import spearmanr

    return 0.0 if np.ptp(a) == 0 or np.ptp(b) == 0 else float(spearmanr(a, b).statistic)


def area_under_curve(high: NDArray[Any], low: NDArray[Any]) -> float:
    """How often a value of `high` is above one of `low`, ties counted half (Mann and Whitney's U over n·m)."""
    from scipy.stats import rankdata

    both, n = rankdata(np.concatenate([high, low])), len(high)
    return float((both[:n].sum() - n * (n + 1) / 2) / (n * len(low)))
