"""Scores over many achievements."""

import numpy as np
from numpy.typing import NDArray

from bkrl.core.seeds import generator
from bkrl.stats.intervals import Interval, interval, unknown

_DRAWS = 1000


def geometric_score(rates: NDArray[np.float64]) -> NDArray[np.float64]:
    """Crafter's score within 0 and 1 of success rates (…, A): the geometric mean of 1 + rate in %, less 1, over 100.

    Source: Hafner 2021 (arXiv 2109.06780), S = exp(mean ln(1 + sᵢ)) − 1 with sᵢ in %. Rare achievements count more
    than in a mean: two of which one is always unlocked and one never give .09, not .5.
    """
    return np.expm1(np.log1p(100 * rates).mean(-1)) / 100


def score_interval(unlocked: NDArray[np.bool_], seed: int = 0) -> Interval:
    """The score of episodes (E, A), with a 95 % bootstrap interval over episodes; one episode gives none."""
    E = len(unlocked)
    score = float(geometric_score(unlocked.mean(0)))
    if E < 2:
        return unknown(score, E)
    draws = generator(seed, "score").integers(0, E, (_DRAWS, E))
    scores = geometric_score(np.stack([unlocked[row].mean(0) for row in draws]))
    low, high = np.quantile(scores, [0.025, 0.975])
    return interval(score, float(low), float(high), E, "bootstrap")
