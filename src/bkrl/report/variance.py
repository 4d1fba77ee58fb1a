"""Several draws of labels × several seeds: how much of the spread between runs is the labels', how much the seeds'.

A method that learns from labels is a random thing twice over: asked again, the annotator gives other labels; trained
again, PPO takes another way. Seeds alone cannot say what another draw of labels would have done.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bkrl.report.statistics import Interval, t_interval


@dataclass(frozen=True)
class VarianceSplit:
    """One-way random-effects analysis of variance, runs within draws.

    ``between`` and ``within``: estimated variances of a draw's mean and of a run around it; ``share``: the part of
    their sum that is between draws (the intraclass correlation). ``f`` and ``p`` test that draws do not differ.
    ``over_draws``: mean with Student's t over the draws' means, so ``n`` = ``draws``: what can be said of another
    draw.
    """

    draws: int
    n: int
    between: float
    within: float
    share: float
    f: float
    p: float
    over_draws: Interval


def split_variance(by_draw: Mapping[str, Sequence[float]]) -> VarianceSplit | None:
    """Variance components by the method of moments; None without two draws, or without two runs of some draw.

    With a draws of n_i runs, N in all: MSB and MSW are the mean squares between and within, and the variance between
    is max(0, (MSB − MSW) / n0) with n0 = (N − Σ n_i² / N) / (a − 1) (Searle, Casella and McCulloch 1992, section 3.6).
    """
    groups = [np.asarray(values, dtype=np.float64) for values in by_draw.values() if len(values)]
    a, sizes = len(groups), np.array([len(g) for g in groups])
    total = int(sizes.sum()) if a else 0
    if a < 2 or total <= a:
        return None
    means = np.array([g.mean() for g in groups])
    grand = float(np.concatenate(groups).mean())
    ms_between = float((sizes * (means - grand) ** 2).sum()) / (a - 1)
    ms_within = float(sum(((g - g.mean()) ** 2).sum() for g in groups)) / (total - a)
    n0 = (total - float((sizes**2).sum()) / total) / (a - 1)
    between = max(0.0, (ms_between - ms_within) / n0)
    whole = between + ms_within
    f = ms_between / ms_within if ms_within > 0 else (math.inf if ms_between > 0 else 0.0)
    return VarianceSplit(
        draws=a,
        n=total,
        between=between,
        within=ms_within,
        share=between / whole if whole > 0 else 0.0,
        f=f,
        p=f_survival(f, a - 1, total - a),
        over_draws=t_interval(means),
    )


def f_survival(f: float, df1: int, df2: int) -> float:
    """P(F > f) of Fisher's F distribution."""
    if f <= 0:
        return 1.0
    if math.isinf(f):
        return 0.0
    return _beta(df2 / (df2 + df1 * f), df2 / 2, df1 / 2)


def _beta(x: float, a: float, b: float) -> float:
    """Regularised incomplete beta function by its continued fraction (Abramowitz and Stegun 26.5.8, evaluated by
    Lentz's method).
    """
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast only on the other side
        return 1 - _beta(1 - x, b, a)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)) / a
    tiny = 1e-300
    c, d = 1.0, 1 / max(1 - (a + b) * x / (a + 1), tiny)
    value = d
    for m in range(1, 500):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 + numerator * d
            c = 1 + numerator / c
            d = 1 / (d if abs(d) > tiny else tiny)
            c = c if abs(c) > tiny else tiny
            value *= d * c
        if abs(d * c - 1) < 1e-15:
            break
    return front * value
