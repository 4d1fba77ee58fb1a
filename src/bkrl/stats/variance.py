"""Several datasets × several draws of labels × several seeds: how much of the spread between runs is whose, and
intervals that speak of another dataset.

A method that learns from labels is a random thing three times over: explored again, the dataset is another one; asked
again, the annotator gives other labels; trained again, PPO takes another way. Seeds alone cannot say what another
dataset or another draw of labels would have done.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import special

from bkrl.stats.intervals import (
    FEW_SEEDS,
    REPETITIONS,
    Interval,
    PairedTest,
    bootstrap,
    improvement,
    interval,
    mean,
    middle,
    student_975,
    symmetric,
    t_interval,
    unknown,
    welch,
)

FEW_DATASETS = 6
"""Below so many datasets Student's t over their means: a bootstrap of 5 holds the truth 89 times in 100, not 95."""
Origin = tuple[str, str]
"""What a run rests on: its dataset and its potential; empty where it has none."""


@dataclass(frozen=True)
class Part:
    """One source of variance: how many of it there are, the standard deviation it brings, its share of the variance."""

    name: str
    count: int
    sd: float
    share: float


@dataclass(frozen=True)
class VarianceSplit:
    """Random-effects analysis of variance: runs within draws of labels, these within datasets.

    ``label``: whose. ``parts``: of the variance, for datasets, draws of labels and seeds apart, as far as there are
    several. ``between_sd`` and ``within_sd``: estimated standard deviations of what a run rests on, datasets and labels
    together, and of a run around it; ``share``: the part of the variance that is between (the intraclass correlation).
    ``p``: F test of no difference between what is drawn first (datasets, else draws). ``over_draws``: mean with
    Student's t over the means of those, so its ``n`` is their number: what can be said of another one.
    """

    label: str
    draws: int
    datasets: int
    n: int
    parts: Sequence[Part]
    between_sd: float
    within_sd: float
    share: float
    p: float
    over_draws: Interval


def split_variance(
    by_draw: Mapping[str, Sequence[float]], dataset_of: Mapping[str, str] | None = None
) -> VarianceSplit | None:
    """Variance components by the method of moments; None without two draws, or without two runs of some draw.

    With n_ij runs of draw j of dataset i, n_i of dataset i, N in all, a datasets and b draws, and mean squares MSA
    between datasets, MSB between draws within datasets, MSE within draws (Searle, Casella and McCulloch 1992, section
    5.4):

        E MSB = σ² + n1 σ_B²,                 n1 = (N − Σ_ij n_ij² / n_i) / (b − a)
        E MSA = σ² + n2 σ_B² + n3 σ_A²,       n2 = (Σ_ij n_ij² / n_i − Σ_ij n_ij² / N) / (a − 1)
                                              n3 = (N − Σ_i n_i² / N) / (a − 1)

    solved for the variances, none below 0. With one dataset there is no A, with one draw of each no B.

    Args:
        by_draw: the values of a draw's runs.
        dataset_of: the dataset of each draw; without it all are of one.
    """
    draws = {name: np.asarray(values, dtype=np.float64) for name, values in by_draw.items() if len(values)}
    owner = {name: (dataset_of or {}).get(name, "") for name in draws}
    datasets = {one: [draws[name] for name in draws if owner[name] == one] for one in dict.fromkeys(owner.values())}
    a, b, total = len(datasets), len(draws), sum(map(len, draws.values()))
    if b < 2 or total <= b:
        return None
    grand = float(np.concatenate(list(draws.values())).mean())
    wholes = [np.concatenate(own) for own in datasets.values()]
    ss_a = sum(len(whole) * (whole.mean() - grand) ** 2 for whole in wholes)
    pairs = [(one, whole) for own, whole in zip(datasets.values(), wholes, strict=True) for one in own]
    ss_b = sum(len(one) * (one.mean() - whole.mean()) ** 2 for one, whole in pairs)
    ms_e = float(sum(((one - one.mean()) ** 2).sum() for one in draws.values())) / (total - b)
    squares = sum(len(one) ** 2 for one in draws.values())
    nested = sum(len(one) ** 2 / len(whole) for one, whole in pairs)
    ms_b = float(ss_b) / (b - a) if b > a else ms_e
    var_b = max(0.0, (ms_b - ms_e) / ((total - nested) / (b - a))) if b > a else 0.0
    var_a, tested, df = 0.0, (ms_b, ms_e), (b - a, total - b)
    if a > 1:
        ms_a = float(ss_a) / (a - 1)
        n2, n3 = (nested - squares / total) / (a - 1), (total - sum(len(w) ** 2 for w in wholes) / total) / (a - 1)
        var_a = max(0.0, (ms_a - ms_e - n2 * var_b) / n3)
        tested, df = (ms_a, ms_b), (a - 1, b - a if b > a else total - b)
    whole_variance = var_a + var_b + ms_e
    sources = [("datasets", a, var_a)] * (a > 1) + [("draws of labels", b, var_b)] * (b > a) + [("seeds", total, ms_e)]
    f = tested[0] / tested[1] if tested[1] > 0 else (math.inf if tested[0] > 0 else 0.0)
    return VarianceSplit(
        label="",
        draws=b,
        datasets=a,
        n=total,
        parts=tuple(
            Part(name, count, math.sqrt(value), value / whole_variance if whole_variance > 0 else 0.0)
            for name, count, value in sources
        ),
        between_sd=math.sqrt(var_a + var_b),
        within_sd=math.sqrt(ms_e),
        share=(var_a + var_b) / whole_variance if whole_variance > 0 else 0.0,
        p=float(special.fdtrc(*df, f)),
        over_draws=t_interval(np.array([one.mean() for one in (wholes if a > 1 else draws.values())])),
    )


# --- intervals that speak of another dataset ------------------------------------------------------


def datasets_of(origins: Sequence[Origin]) -> list[str]:
    """The distinct datasets, in a fixed order; none for runs that rest on none."""
    return sorted({dataset for dataset, _ in origins if dataset})


def several(*sides: Sequence[Origin]) -> int:
    """The fewest datasets among sides that rest on several; 0 where none does: there, seeds alone are resampled."""
    return min((len(found) for found in map(datasets_of, sides) if len(found) > 1), default=0)


def dataset_means(values: NDArray[np.float64], origins: Sequence[Origin]) -> NDArray[np.float64]:
    """(a,) the mean of each dataset's runs, in the order of `datasets_of`."""
    return np.array([values[[one[0] == name for one in origins]].mean() for name in datasets_of(origins)])


def shares(origins: Sequence[Origin]) -> NDArray[np.float64]:
    """(n,) how much each run counts where datasets do alike, in each the draws of labels, in each of those the runs."""
    runs = Counter(origins)
    draws = Counter(dataset for dataset, _ in runs)
    return np.array([1 / (len(draws) * draws[one[0]] * runs[one]) for one in origins])


def trimmed(values: NDArray[np.float64], weights: NDArray[np.float64], cut: float = 0.25) -> float:
    """The mean of what lies between the quantiles `cut` and 1 − `cut` of values that count so much."""
    order = np.argsort(values)
    edges = np.append(0.0, np.cumsum(weights[order]))
    inside = np.diff(np.clip(edges / edges[-1], cut, 1 - cut))
    return float(values[order] @ inside / inside.sum())


def uneven(*sides: Sequence[Origin]) -> list[NDArray[np.float64]]:
    """The `shares` of each side; none where they are alike, or where no side rests on several datasets."""
    found = [shares(side) for side in sides] if several(*sides) else []
    return found if any(np.ptp(one) > 0 for one in found) else []


def resampled(
    origins: Sequence[Origin],
    rng: np.random.Generator,
    repetitions: int = REPETITIONS,
    chosen: NDArray[np.int64] | None = None,
) -> NDArray[np.int64]:
    """Which runs each repetition of a bootstrap takes: datasets with replacement, in each draws of labels, in each of
    those runs.

    Every dataset drawn counts alike, however many runs it has. Where there is one of something, it is always taken.

    Args:
        origins: (n,) what the runs rest on.
        rng: draws.
        repetitions: R.
        chosen: (R, a) places of the datasets taken, to take the same ones for two sides that share them.

    Returns:
        (R, m) numbers of runs.
    """
    tree: dict[str, dict[str, list[int]]] = {}
    for number, (dataset, potential) in sorted(enumerate(origins), key=lambda one: one[1]):
        tree.setdefault(dataset, {}).setdefault(potential, []).append(number)
    a, b = len(tree), max(map(len, tree.values()))
    c = max(len(runs) for own in tree.values() for runs in own.values())
    runs, sizes, counts = np.zeros((a, b, c), np.int64), np.ones((a, b), np.int64), np.ones(a, np.int64)
    for i, own in enumerate(tree.values()):
        counts[i] = len(own)
        for j, members in enumerate(own.values()):
            runs[i, j, : len(members)], sizes[i, j] = members, len(members)
    first = rng.integers(0, a, (repetitions, a)) if chosen is None else chosen
    first = first[:, :, None]
    second = (rng.random((repetitions, a, b)) * counts[first]).astype(np.int64)
    third = (rng.random((repetitions, a, b, c)) * sizes[first, second][..., None]).astype(np.int64)
    return runs[first[..., None], second[..., None], third].reshape(repetitions, -1)


def both_resampled(
    a: Sequence[Origin], b: Sequence[Origin], rng: np.random.Generator, repetitions: int = REPETITIONS
) -> list[NDArray[np.int64]]:
    """`resampled` for two sides to be compared; where they share their datasets, each repetition takes the same."""
    shared = datasets_of(a)
    chosen = None
    if shared and shared == datasets_of(b):
        chosen = rng.integers(0, len(shared), (repetitions, len(shared)))
    return [resampled(side, rng, repetitions, chosen) for side in (a, b)]


def _observations(
    a: NDArray[np.float64], b: NDArray[np.float64], origins: tuple[Sequence[Origin], Sequence[Origin]]
) -> tuple[list[NDArray[np.float64]], bool]:
    """What counts as one observation on each side, a dataset's mean where there are several, else a run; and whether
    both sides share their datasets.
    """
    names = [datasets_of(side) for side in origins]
    units = [
        dataset_means(values, side) if len(found) > 1 else values
        for values, side, found in zip((a, b), origins, names, strict=True)
    ]
    return units, len(names[0]) > 1 and names[0] == names[1]


def ratio_over_datasets(
    a: NDArray[np.float64], b: NDArray[np.float64], origins: tuple[Sequence[Origin], Sequence[Origin]]
) -> Interval:
    """mean(a) / mean(b), at least one of them over several datasets, by the delta method on the logarithm.

    A dataset's mean counts as one observation, on a side without datasets a run does. Where both sides share their
    datasets, so does the ratio of its means: what a dataset does to both cancels. Student's t with Welch's degrees of
    freedom, rounded down. No interval where nothing varies or a mean is 0.
    """
    units, shared = _observations(a, b, origins)
    sizes = [Counter(dataset for dataset, _ in side).values() for side in origins]
    above, below = units if any(len(set(one)) > 1 for one in sizes) else (a, b)
    n, estimate = min(len(one) for one in units), float(above.mean() / below.mean())
    if n < 2 or not all((one > 0).all() for one in units):
        return unknown(estimate, n)
    if shared:
        units = [np.log(units[0] / units[1])]
        parts = [float(units[0].var(ddof=1)) / n]
    else:
        parts = [float(one.var(ddof=1)) / (len(one) * float(one.mean()) ** 2) for one in units]
    if sum(parts) == 0:
        return unknown(estimate, n)
    half = student_975(welch(parts, [len(one) for one in units])) * math.sqrt(sum(parts))
    return interval(estimate, estimate * math.exp(-half), estimate * math.exp(half), n, "t")


def compare_over_datasets(
    a: NDArray[np.float64], b: NDArray[np.float64], origins: tuple[Sequence[Origin], Sequence[Origin]]
) -> PairedTest | None:
    """Difference mean(a) − mean(b), at least one of them over several datasets, with Student's t and its p.

    What is one observation is as in `ratio_over_datasets`. None where a side has one, or nothing varies.
    """
    units, shared = _observations(a, b, origins)
    n, estimate = min(len(one) for one in units), float(units[0].mean() - units[1].mean())
    if shared:
        units = [units[0] - units[1]]
    parts = [float(one.var(ddof=1)) / len(one) for one in units] if n > 1 else [0.0]
    if sum(parts) == 0:
        return None
    df, error = welch(parts, [len(one) for one in units]), math.sqrt(sum(parts))
    p = 2 * float(special.stdtr(df, -abs(estimate) / error))
    shift = symmetric(estimate, error, df, n)
    return PairedTest(value=p, holm=p, smallest=0.0, n=several(*origins), units="datasets", difference=shift)


def nested_interval(
    values: NDArray[np.float64], origins: Sequence[Origin], rng: np.random.Generator, cut: float = 0.25
) -> Interval:
    """What the tables show of runs. Over seeds the interquartile mean, or the mean where nothing is `cut` from the
    ends, with a bootstrap, and the mean with Student's t below ``FEW_SEEDS``; over datasets where there are several.

    There, from ``FEW_DATASETS`` on, the same with the bootstrap of `resampled`, and counting as that draws; below, the
    mean of the datasets' means with Student's t over those: so few datasets resampled look far too much alike.
    """
    count = several(origins)
    if 0 < count < FEW_DATASETS:
        return t_interval(dataset_means(values, origins))
    if not count and len(values) < FEW_SEEDS:
        return t_interval(values)
    found = bootstrap([values], rng, middle if cut else mean, indices=[resampled(origins, rng)] if count else None)
    return replace(found, estimate=trimmed(values, weights[0], cut)) if (weights := uneven(origins)) else found


def nested_improvement(
    x: NDArray[np.float64],
    y: NDArray[np.float64],
    origins: tuple[Sequence[Origin], Sequence[Origin]],
    rng: np.random.Generator,
) -> Interval | None:
    """P(X better than Y), over datasets where there are several; without an interval where these are too few for a
    bootstrap. None below ``FEW_SEEDS`` runs on a side: a bootstrap of so few looks far too sure.
    """
    if min(len(x), len(y)) < FEW_SEEDS:
        return None
    datasets = several(*origins)
    if 0 < datasets < FEW_DATASETS:
        found = unknown(float(improvement(x, y)), datasets)
    else:
        indices = both_resampled(*origins, rng) if datasets else None
        found = bootstrap([x, y], rng, lambda sides: improvement(*sides), indices=indices)
    if not (weights := uneven(*origins)):
        return found
    wins = improvement(x[:, None, None], y[None, :, None])  # (n, m) of each pair
    return replace(found, estimate=float(weights[0] @ wins @ weights[1]))
