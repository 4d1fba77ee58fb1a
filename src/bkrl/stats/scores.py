"""Scores over many achievements."""

import numpy as np
from numpy.typing import NDArray

from bkrl.core.seeds import generator
from bkrl.stats.intervals import Interval, Samples, bootstrap

_DRAWS = 1000


def geometric_score(rates: NDArray[np.float64]) -> NDArray[np.float64]:
    """Crafter's score within 0 and 1 of success rates (…, A): the geometric mean of 1 + rate in %, less 1, over 100.

    Source: Hafner 2021 (arXiv 2109.06780), S = exp(mean ln(1 + sᵢ)) − 1 with sᵢ in %. Rare achievements count more
    than in a mean: two of which one is always unlocked and one never give .09, not .5.
    """
    return np.expm1(np.log1p(100 * rates).mean(-1)) / 100


def score_interval(unlocked: NDArray[np.bool_], seed: int = 0) -> Interval:
    """The score of episodes (E, A), with a 95 % bootstrap interval over episodes; one episode gives none."""

    def score(episodes: Samples) -> NDArray[np.float64]:
        return geometric_score(unlocked[episodes[0].astype(np.int64)].mean(1))

    return bootstrap([np.arange(len(unlocked))], generator(seed, "score"), score, repetitions=_DRAWS)
