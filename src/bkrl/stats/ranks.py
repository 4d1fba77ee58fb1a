"""Spearman's rank correlation and the area under the ROC curve, with ties."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

_RESAMPLES = 500


def rank_correlation(a: NDArray[Any], b: NDArray[Any]) -> float:
    """Spearman's rank correlation of (n,) and (n,); 0 where one side is constant, or nothing is there."""
    from scipy.stats import spearmanr

    return 0.0 if len(a) == 0 or np.ptp(a) == 0 or np.ptp(b) == 0 else float(spearmanr(a, b).statistic)


def rank_correlation_with_interval(a: NDArray[Any], b: NDArray[Any]) -> dict[str, Any]:
    """Spearman's rank correlation with its 95 % interval by Fisher's z (Fieller, Hartley and Pearson 1957).

    z is taken half of a possible step of the value inside of 1 and -1, where it would have no end.
    """
    value, n = rank_correlation(a, b), len(a)
    inside = np.clip(value, *np.array([-1, 1]) * (1 - 6 / max(6, n**3 - n)))
    low, high = np.tanh(np.arctanh(inside) + np.array([-1.96, 1.96]) * np.sqrt(1.06 / max(1, n - 3))).tolist()
    return {"value": value, "low": min(low, value), "high": max(high, value), "n": n}


def area_under_curve(high: NDArray[Any], low: NDArray[Any]) -> float:
    """How often a value of `high` is above one of `low`, ties counted half (Mann and Whitney's U over n·m)."""
    from scipy.stats import rankdata

    both, n = rankdata(np.concatenate([high, low])), len(high)
    return float((both[:n].sum() - n * (n + 1) / 2) / (n * len(low)))


def area_with_interval(told: NDArray[np.float64], right: NDArray[np.bool_]) -> dict[str, Any]:
    """(Q, G) scores, NaN for none, and the truth → the area under the curve of all, with a 95 % percentile bootstrap
    over the Q; null where nothing is to be told apart.
    """

    def area(some: NDArray[np.int64]) -> float:
        scores, yes = told[some].reshape(-1), right[some].reshape(-1)
        high, low = scores[yes & ~np.isnan(scores)], scores[~yes & ~np.isnan(scores)]
        return area_under_curve(high, low) if len(high) and len(low) else np.nan

    rng = np.random.Generator(np.random.PCG64(0))
    figures = [area(np.arange(len(told))), np.nan, np.nan]
    if not np.isnan(figures[0]):
        drawn = [area(rng.integers(0, len(told), len(told))) for _ in range(_RESAMPLES)]
        figures[1:] = np.nanquantile(drawn, [0.025, 0.975]).tolist()
    value, low, high = (None if np.isnan(one) else float(one) for one in figures)
    return {"value": value, "low": low, "high": high, "n": len(told)}
