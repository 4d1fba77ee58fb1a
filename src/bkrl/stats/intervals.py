"""Statistics for a handful of seeds.

Every estimate carries its interval, the number of runs ``n`` behind it and the method that made the interval. Follows
Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice" (arXiv 2108.13264):
interquartile mean, stratified percentile bootstrap, performance profiles, probability of improvement. With fewer than
``FEW_SEEDS`` runs a bootstrap is far too sure of itself, so Student's t is used there instead, and callers are
expected to show ``few_seeds_warning``.

Only numpy: nothing here needs a plotting or statistics package at run time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

import numpy as np

FEW_SEEDS = 5
REPETITIONS = 2000
EXHAUSTIVE_FLIPS = 14  # 2**14 sign patterns are still instant; beyond that they are sampled

Strata = Sequence[np.ndarray]
"""One array per task; the last axis runs over seeds. Leading axes, where present, are bootstrap repetitions."""


@dataclass(frozen=True)
class Interval:
    """An estimate with its two-sided interval; ``low`` and ``high`` are NaN where one run allows no interval."""

    estimate: float
    low: float
    high: float
    n: int
    method: Literal["t", "bootstrap", "none"]
    level: float = 0.95

    @property
    def known(self) -> bool:
        return not (math.isnan(self.low) or math.isnan(self.high))


def few_seeds_warning(n: int) -> str:
    """A plain sentence when ``n`` runs are too few to conclude from, else the empty string."""
    if n >= FEW_SEEDS:
        return ""
    if n <= 0:
        return "There is no run here, so nothing can be said."
    if n == 1:
        return "There is only one seed: its spread is unknown, and nothing can be concluded from it."
    return (
        f"There are only {n} seeds (fewer than {FEW_SEEDS}): the intervals are wide and rest on normality; read them "
        "as hints."
    )


# --- centre ---------------------------------------------------------------------------------------


def interquartile_mean(scores: np.ndarray, axis: int | None = None) -> np.ndarray:
    """Mean of the middle half: ``floor(n/4)`` values are cut from each end (the 25 % trimmed mean of Agarwal et al.
    2021).

    ``axis=None`` pools all values, as the paper does over runs and tasks. With n < 4 nothing is cut and this is the
    mean.
    """
    values = np.asarray(scores, dtype=np.float64)
    if axis is None:
        values, axis = values.reshape(-1), 0
    n = values.shape[axis]
    if n == 0:
        raise ValueError("the interquartile mean of no values is undefined")
    cut = n // 4
    ordered = np.sort(values, axis=axis)
    return np.asarray(np.take(ordered, np.arange(cut, n - cut), axis=axis).mean(axis=axis))


def pooled_iqm(strata: Strata) -> np.ndarray:
    """Interquartile mean over all runs of all tasks: a statistic for ``stratified_bootstrap``."""
    return interquartile_mean(np.concatenate(list(strata), axis=-1), axis=-1)


def mean_of_means(strata: Strata) -> np.ndarray:
    """Mean over tasks of the mean over runs: a statistic for ``stratified_bootstrap``."""
    return np.asarray(np.mean([x.mean(axis=-1) for x in strata], axis=0))


# --- intervals ------------------------------------------------------------------------------------


def student_cdf(t: float, df: int) -> float:
    """P(T <= t) of Student's t with an integer number of degrees of freedom (Abramowitz and Stegun 26.7.3 and
    26.7.4).
    """
    if df < 1:
        raise ValueError("Student's t needs at least one degree of freedom")
    theta = math.atan(t / math.sqrt(df))
    sine, cosine = math.sin(theta), math.cos(theta)
    first = 0 if df % 2 == 0 else 1
    term = 1.0 if first == 0 else cosine
    total = 0.0
    for power in range(first, df - 1, 2):
        total += term
        term *= cosine * cosine * (power + 1) / (power + 2)
    inside = sine * total if first == 0 else 2 / math.pi * (theta + sine * total)
    return 0.5 + 0.5 * inside


def student_quantile(p: float, df: int) -> float:
    """The t with ``student_cdf(t, df) == p``, by bisection; 0 < p < 1."""
    if not 0 < p < 1:
        raise ValueError("a quantile needs 0 < p < 1")
    if p < 0.5:
        return -student_quantile(1 - p, df)
    low, high = 0.0, 1.0
    while student_cdf(high, df) < p:
        high *= 2
    for _ in range(200):
        middle = 0.5 * (low + high)
        if middle in (low, high):
            break
        low, high = (middle, high) if student_cdf(middle, df) < p else (low, middle)
    return 0.5 * (low + high)


def wilson_interval(successes: float, n: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a proportion: sound also at 0 and n successes, unlike the normal approximation; (0, 1)
    when n is 0.
    """
    if n == 0:
        return 0.0, 1.0
    z, rate = 1.959963984540054, successes / n  # z: the 97.5 % point of the normal distribution
    centre = rate + z**2 / (2 * n)
    half = z * math.sqrt(rate * (1 - rate) / n + z**2 / (4 * n**2))
    scale = 1 + z**2 / n
    return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)


def t_interval(values: np.ndarray, level: float = 0.95) -> Interval:
    """Mean of ``values`` (n,) with Student's t interval. One value gives no interval, nor do fewer than ``FEW_SEEDS``
    that do not differ: their spread is not zero, it was not seen.
    """
    x = np.asarray(values, dtype=np.float64).reshape(-1)
    if x.size == 0:
        raise ValueError("an interval of no values is undefined")
    mean = float(x.mean())
    if x.size == 1 or (x.size < FEW_SEEDS and np.ptp(x) == 0):
        return Interval(mean, math.nan, math.nan, int(x.size), "none", level)
    half = student_quantile(0.5 + level / 2, x.size - 1) * float(x.std(ddof=1)) / math.sqrt(x.size)
    return Interval(mean, mean - half, mean + half, int(x.size), "t", level)


def stratified_bootstrap(
    strata: Strata,
    rng: np.random.Generator,
    statistic: Callable[[Strata], np.ndarray] = pooled_iqm,
    *,
    repetitions: int = REPETITIONS,
    level: float = 0.95,
    shared: bool = False,
    indices: Sequence[np.ndarray] | None = None,
) -> Interval:
    """Percentile bootstrap of ``statistic``, resampling runs with replacement inside each task, never across tasks.

    ``strata``: one (n_k,) array per task. ``statistic`` maps (R, n_k) arrays to (R,). ``shared`` draws the same run
    indices in every stratum (equal n_k), for strata that are paired by seed. ``indices``, one (R, m_k) array per task,
    says which runs each repetition takes where they are not to be drawn one by one. ``n`` is the smallest stratum: what
    the estimate can rest on at best.
    """
    arrays = [np.asarray(x, dtype=np.float64).reshape(-1) for x in strata]
    if not arrays or any(x.size == 0 for x in arrays):
        raise ValueError("the bootstrap needs at least one run in every task")
    sizes = [x.size for x in arrays]
    if shared and len(set(sizes)) != 1:
        raise ValueError("strata paired by seed need the same number of runs")
    estimate = float(statistic([x[None] for x in arrays])[0])
    n = min(sizes)
    if n == 1:
        return Interval(estimate, math.nan, math.nan, 1, "none", level)
    if indices is None and shared:
        indices = [rng.integers(0, n, size=(repetitions, n))] * len(arrays)
    elif indices is None:
        indices = [rng.integers(0, x.size, size=(repetitions, x.size)) for x in arrays]
    draws = [x[index] for x, index in zip(arrays, indices, strict=True)]
    low, high = np.quantile(statistic(draws), [0.5 - level / 2, 0.5 + level / 2])
    return Interval(estimate, float(low), float(high), n, "bootstrap", level)


def centre_interval(values: np.ndarray, rng: np.random.Generator, level: float = 0.95) -> Interval:
    """What the tables show: interquartile mean with bootstrap from ``FEW_SEEDS`` runs on, mean with Student's t
    below.
    """
    x = np.asarray(values, dtype=np.float64).reshape(-1)
    if x.size < FEW_SEEDS:
        return t_interval(x, level)
    return stratified_bootstrap([x], rng, pooled_iqm, level=level)


# --- comparisons ----------------------------------------------------------------------------------


def improvement(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """P(X > Y) + P(X = Y)/2 over all pairs of the last axes (Mann-Whitney U divided by n m): (..., n), (..., m) ->
    (...).
    """
    difference = np.asarray(x)[..., :, None] - np.asarray(y)[..., None, :]
    return np.asarray((0.5 + 0.5 * np.sign(difference)).mean(axis=(-2, -1)))


def probability_of_improvement(
    x: Strata,
    y: Strata,
    rng: np.random.Generator,
    *,
    repetitions: int = REPETITIONS,
    level: float = 0.95,
    indices: Sequence[np.ndarray] | None = None,
) -> Interval:
    """Probability that a run of X beats a run of Y on the same task, averaged over tasks (Agarwal et al. 2021,
    section 4.3).

    ``x`` and ``y``: one (n_k,) and one (m_k,) array per task, tasks in the same order. ``indices``: as in
    ``stratified_bootstrap``, of all of ``x`` and then of ``y``.
    """
    if len(x) != len(y) or not x:
        raise ValueError("the probability of improvement needs the same tasks on both sides")

    def statistic(strata: Strata) -> np.ndarray:
        return np.asarray(
            np.mean([improvement(a, b) for a, b in zip(strata[: len(x)], strata[len(x) :], strict=True)], axis=0)
        )

    return stratified_bootstrap([*x, *y], rng, statistic, repetitions=repetitions, level=level, indices=indices)


def mean_difference(x: np.ndarray, y: np.ndarray, rng: np.random.Generator, level: float = 0.95) -> Interval:
    """Difference of means of two independent samples: bootstrap from ``FEW_SEEDS`` runs on each side on, below Welch's
    t with its degrees of freedom rounded down; one run on a side gives no interval, nor do few that differ on neither.
    """
    x, y = (np.asarray(v, dtype=np.float64).reshape(-1) for v in (x, y))
    n = min(x.size, y.size)
    estimate = float(x.mean() - y.mean())
    if n >= FEW_SEEDS:
        return stratified_bootstrap([x, y], rng, lambda s: s[0].mean(axis=-1) - s[1].mean(axis=-1), level=level)
    if n == 1 or (np.ptp(x) == 0 and np.ptp(y) == 0):
        return Interval(estimate, math.nan, math.nan, n, "none", level)
    parts = [float(v.var(ddof=1)) / v.size for v in (x, y)]
    df = sum(parts) ** 2 / sum(part**2 / (v.size - 1) for part, v in zip(parts, (x, y)))
    half = student_quantile(0.5 + level / 2, max(1, math.floor(df))) * math.sqrt(sum(parts))
    return Interval(estimate, estimate - half, estimate + half, n, "t", level)


@dataclass(frozen=True)
class PairedTest:
    """Two methods compared over the seeds they share, or over datasets; ``p`` is two-sided, ``smallest_p`` what ``n``
    ``units`` could show at best.
    """

    difference: Interval
    p: float
    smallest_p: float
    n: int
    units: Literal["pairs", "datasets"] = "pairs"


def paired_test(
    a: Mapping[int, float], b: Mapping[int, float], rng: np.random.Generator, *, samples: int = 20_000
) -> PairedTest:
    """Mean difference a − b over shared seeds with Student's t interval, and the exact sign-flip permutation test of
    no difference.

    All 2^n sign patterns are tried up to n = ``EXHAUSTIVE_FLIPS``; beyond, ``samples`` random ones plus the observed
    one. A seed without a finite value on either side is not shared.
    """
    seeds = sorted(seed for seed in set(a) & set(b) if math.isfinite(a[seed] - b[seed]))
    if not seeds:
        raise ValueError("a paired test needs at least one seed that both sides have")
    d = np.array([a[s] - b[s] for s in seeds], dtype=np.float64)
    n = len(d)
    if n <= EXHAUSTIVE_FLIPS:
        signs = np.array(list(product((1.0, -1.0), repeat=n)))
    else:
        signs = np.concatenate([np.ones((1, n)), rng.choice((1.0, -1.0), size=(samples, n))])
    observed = abs(d.mean())
    # The tolerance keeps sign patterns that equal the observed one up to rounding from being missed.
    p = float((np.abs(signs @ d) / n >= observed - 1e-12 * max(1.0, observed)).mean())
    return PairedTest(t_interval(d), p, max(2.0 ** (1 - n), 1.0 / len(signs)), n)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment: p values of one family of comparisons, controlled for their number, in the given
    order.
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted = [0.0] * len(p_values)
    running = 0.0
    for rank, i in enumerate(order):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = running
    return adjusted


# --- profiles -------------------------------------------------------------------------------------


def performance_profile(
    strata: Strata,
    thresholds: np.ndarray,
    rng: np.random.Generator,
    *,
    repetitions: int = REPETITIONS,
    level: float = 0.95,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Share of runs that score above each threshold, averaged over tasks (Agarwal et al. 2021, equation 1), with a
    pointwise band.

    ``thresholds`` (K,) -> ``share``, ``low``, ``high``, each (K,).
    """
    arrays = [np.asarray(x, dtype=np.float64).reshape(-1) for x in strata]
    if not arrays or any(x.size == 0 for x in arrays):
        raise ValueError("a performance profile needs at least one run in every task")
    tau = np.asarray(thresholds, dtype=np.float64)

    def share(sample: Strata) -> np.ndarray:
        return np.asarray(np.mean([(x[..., None] > tau).mean(axis=-2) for x in sample], axis=0))

    draws = [x[rng.integers(0, x.size, size=(repetitions, x.size))] for x in arrays]
    low, high = np.quantile(share(draws), [0.5 - level / 2, 0.5 + level / 2], axis=0)
    return share(arrays), low, high
