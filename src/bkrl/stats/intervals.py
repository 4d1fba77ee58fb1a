"""Statistics for a handful of seeds.

Every estimate carries its interval, the number of runs ``n`` behind it and the method that made the interval. Follows
Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice" (arXiv 2108.13264):
interquartile mean, percentile bootstrap over runs, performance profiles, probability of improvement. With fewer than
``FEW_SEEDS`` runs a bootstrap is far too sure of itself, so Student's t is used there instead, and callers are
expected to show ``few_seeds_warning``.

Every interval is a two-sided one of 95 %.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
from scipy import special

FEW_SEEDS = 5
REPETITIONS = 2000
EXHAUSTIVE_FLIPS = 14  # 2**14 sign patterns are still instant; beyond that they are sampled
SAMPLED_FLIPS = 20_000
ENDS = (0.025, 0.975)

Samples = Sequence[np.ndarray]
"""One array for each side; the last axis runs over runs. Leading axes, where present, are bootstrap repetitions."""


def step_label(steps: float) -> str:
    """Env steps for people: 950, 20k, 1.25M."""
    if math.isinf(steps):
        return "∞"
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(steps) >= 0.9995 * size:  # what is rounded to the next size is said in it
            return f"{steps / size:.3g}{suffix}"
    return f"{steps:.0f}"


if TYPE_CHECKING:
    End = float
else:
    End = float | None


@dataclass(frozen=True)
class Interval:
    """An estimate with its two-sided interval over `n` runs or datasets, everywhere from here to a page's cell; `low`
    and `high` are NaN, and null in a file, where there is none.
    """

    estimate: float
    low: End
    high: End
    known: bool
    method: str
    n: int

    def __post_init__(self) -> None:
        for name in ("low", "high"):  # from a file
            if vars(self)[name] is None:
                object.__setattr__(self, name, math.nan)

    def clipped(self, most: float = 1.0, least: float = 0.0) -> Interval:
        """The interval of what cannot leave [least, most]; Student's t does not know that."""
        low, high = (float(np.clip(end, least, most)) for end in (self.low, self.high))
        return replace(self, low=low, high=high)

    def spread(self, form: Callable[[float], str], grid: float = 0.0) -> str:
        """The interval for the eye, each end in this form, as in " (0.71 to 0.92)"; "" where there is none.

        grid: env steps between evaluations, for what is measured in steps: said where the interval has no width.
        """
        return f" ({on_grid(self, grid) or f'{form(self.low)} to {form(self.high)}'})" if self.known else ""


def interval(estimate: float, low: float, high: float, n: int, method: Literal["t", "bootstrap", "none"]) -> Interval:
    """An interval; none where an end is NaN."""
    known = not (math.isnan(low) or math.isnan(high))
    return Interval(estimate, low if known else math.nan, high if known else math.nan, known, method, n)


def on_grid(found: Interval, grid: float) -> str:
    """What to say in place of an interval that has no width because all runs crossed at the same evaluation: the
    spread is less than the steps between two evaluations, not none. "" for every other interval.
    """
    same = math.isclose(found.low, found.high, rel_tol=1e-9)
    return f"grid of {step_label(grid)} steps" if same and grid > 0 else ""


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


def interquartile_mean(values: np.ndarray, axis: int = -1) -> np.ndarray:
    """Mean of the middle half: ``floor(n/4)`` values are cut from each end (the 25 % trimmed mean of Agarwal et al.
    2021). With n < 4 nothing is cut and this is the mean.
    """
    from scipy.stats import trim_mean

    return np.asarray(trim_mean(values, 0.25, axis=axis))


def middle(samples: Samples) -> np.ndarray:
    """Interquartile mean of one sample: a statistic for ``bootstrap``."""
    return interquartile_mean(samples[0])


def mean(samples: Samples) -> np.ndarray:
    """Mean of one sample: a statistic for ``bootstrap``."""
    return np.asarray(samples[0].mean(axis=-1))


# --- intervals ------------------------------------------------------------------------------------


def student_975(df: float) -> float:
    """The t that Student's distribution exceeds 2.5 times in 100: half the width of a 95 % interval, in errors."""
    return float(special.stdtrit(df, 0.975))


def unknown(estimate: float, n: int) -> Interval:
    """An estimate of which no interval can be given."""
    return interval(estimate, math.nan, math.nan, n, "none")


def symmetric(estimate: float, error: float, df: float, n: int) -> Interval:
    """Student's t interval of an estimate with a standard error."""
    half = student_975(df) * error
    return interval(estimate, estimate - half, estimate + half, n, "t")


def welch(parts: Sequence[float], sizes: Sequence[int]) -> int:
    """Welch's degrees of freedom of a sum of variances of means, rounded down.

    Args:
        parts: the variance of each mean.
        sizes: how many values each mean is over.
    """
    df = sum(parts) ** 2 / sum(part**2 / (size - 1) for part, size in zip(parts, sizes, strict=True))
    return max(1, math.floor(df + 1e-9))


def wilson_interval(successes: float, n: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a proportion: sound also at 0 and n successes, unlike the normal approximation; (0, 1)
    when n is 0.
    """
    if n == 0:
        return 0.0, 1.0
    from scipy.stats import binomtest

    found = binomtest(round(successes), n).proportion_ci(0.95, method="wilson")
    return float(found.low), float(found.high)


def t_interval(values: np.ndarray) -> Interval:
    """Mean of ``values`` (n,) with Student's t interval. One value gives no interval, nor do fewer than ``FEW_SEEDS``
    that do not differ: their spread is not zero, it was not seen.
    """
    x = np.asarray(values, dtype=np.float64).reshape(-1)
    if x.size == 0:
        raise ValueError("an interval of no values is undefined")
    mean = float(x.mean())
    if x.size == 1 or (x.size < FEW_SEEDS and np.ptp(x) == 0):
        return unknown(mean, int(x.size))
    return symmetric(mean, float(x.std(ddof=1)) / math.sqrt(x.size), x.size - 1, int(x.size))


def bootstrap(
    samples: Samples,
    rng: np.random.Generator,
    statistic: Callable[[Samples], np.ndarray] = middle,
    *,
    repetitions: int = REPETITIONS,
    indices: Sequence[np.ndarray] | None = None,
) -> Interval:
    """Percentile bootstrap of ``statistic``, resampling the runs of each sample with replacement.

    ``samples``: one (n_k,) array for each side. ``statistic`` maps (R, n_k) arrays to (R,). ``indices``, one (R, m_k)
    array for each side, says which runs each repetition takes where they are not to be drawn one by one, which
    scipy's bootstrap cannot. ``n`` is the smallest sample: what the estimate can rest on at best.
    """
    arrays = [np.asarray(x, dtype=np.float64).reshape(-1) for x in samples]
    if any(x.size == 0 for x in arrays):
        raise ValueError("the bootstrap needs at least one run on every side")
    estimate = float(statistic([x[None] for x in arrays])[0])
    n = min(x.size for x in arrays)
    if n == 1:
        return unknown(estimate, 1)
    if indices is None:
        indices = [rng.integers(0, x.size, size=(repetitions, x.size)) for x in arrays]
    low, high = np.quantile(statistic([x[index] for x, index in zip(arrays, indices, strict=True)]), ENDS)
    return interval(estimate, float(low), float(high), n, "bootstrap")


# --- comparisons ----------------------------------------------------------------------------------


def improvement(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """P(X > Y) + P(X = Y)/2 over all pairs of the last axes (Mann-Whitney U divided by n m): (..., n), (..., m) ->
    (...). The probability of improvement of Agarwal et al. 2021, section 4.3, on one task.
    """
    difference = np.asarray(x)[..., :, None] - np.asarray(y)[..., None, :]
    return np.asarray((0.5 + 0.5 * np.sign(difference)).mean(axis=(-2, -1)))


def mean_difference(x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> Interval:
    """Difference of means of two independent samples: bootstrap from ``FEW_SEEDS`` runs on each side on, below Welch's
    t with its degrees of freedom rounded down; one run on a side gives no interval, nor do few that differ on neither.
    """
    x, y = (np.asarray(v, dtype=np.float64).reshape(-1) for v in (x, y))
    n = min(x.size, y.size)
    estimate = float(x.mean() - y.mean())
    if n >= FEW_SEEDS:
        return bootstrap([x, y], rng, lambda s: s[0].mean(axis=-1) - s[1].mean(axis=-1))
    if n == 1 or (np.ptp(x) == 0 and np.ptp(y) == 0):
        return unknown(estimate, n)
    parts = [float(v.var(ddof=1)) / v.size for v in (x, y)]
    return symmetric(estimate, math.sqrt(sum(parts)), welch(parts, [x.size, y.size]), n)


@dataclass(frozen=True, kw_only=True)
class PairedTest:
    """A test of mean success in training over `n` shared seeds, or over datasets: `value` is the two-sided p, `holm`
    the one that is adjusted for its family of tests, `smallest` what `n` `units` could show at best.
    """

    value: float
    holm: float
    smallest: float
    n: int
    units: str = "pairs"
    difference: Interval


def paired_test(a: Mapping[int, float], b: Mapping[int, float], rng: np.random.Generator) -> PairedTest:
    """Mean difference a − b over shared seeds with Student's t interval, and the exact sign-flip permutation test of
    no difference.

    All 2^n sign patterns are tried up to n = ``EXHAUSTIVE_FLIPS``; beyond, ``SAMPLED_FLIPS`` random ones plus the
    observed one. A seed without a finite value on either side is not shared.
    """
    seeds = sorted(seed for seed in set(a) & set(b) if math.isfinite(a[seed] - b[seed]))
    if not seeds:
        raise ValueError("a paired test needs at least one seed that both sides have")
    d = np.array([a[s] - b[s] for s in seeds], dtype=np.float64)
    n = len(d)
    exact = n <= EXHAUSTIVE_FLIPS
    p = 1.0 if n == 1 else _sign_flips(d, rng)
    smallest = max(2.0 ** (1 - n), 0.0 if exact else 1.0 / (SAMPLED_FLIPS + 1))
    return PairedTest(value=p, holm=p, smallest=smallest, n=n, difference=t_interval(d))


def _sign_flips(d: np.ndarray, rng: np.random.Generator) -> float:
    """The p of no difference: how often a mean as far from 0 comes of the same differences with random signs."""
    from scipy.stats import permutation_test

    found = permutation_test(
        (d,),
        lambda x, axis: np.abs(x.mean(axis=axis)),
        permutation_type="samples",
        alternative="greater",
        n_resamples=SAMPLED_FLIPS,
        rng=rng,
    )
    return float(found.pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment: p values of one family of comparisons, controlled for their number, in the given
    order.
    """
    p = np.asarray(p_values, dtype=np.float64)
    order, adjusted = np.argsort(p, kind="stable"), np.empty_like(p)
    adjusted[order] = np.maximum.accumulate(np.minimum(1.0, np.arange(len(p), 0, -1) * p[order]))
    return adjusted.tolist()


def performance_profile(
    scores: np.ndarray, thresholds: np.ndarray, rng: np.random.Generator, *, repetitions: int = REPETITIONS
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Share of runs that score above each threshold (Agarwal et al. 2021, equation 1), with a pointwise band.

    ``scores`` (n,), ``thresholds`` (K,) -> ``share``, ``low``, ``high``, each (K,).
    """
    above = np.asarray(scores)[:, None] > np.asarray(thresholds)
    draws = above[rng.integers(0, len(above), size=(repetitions, len(above)))]
    low, high = np.quantile(draws.mean(axis=1), ENDS, axis=0)
    return above.mean(axis=0), low, high
