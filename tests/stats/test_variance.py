"""Variance between datasets, draws of labels and seeds: against hand arithmetic, scipy and data of known variance."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy

from bkrl.stats.crossings import Crossing, steps_ratio
from bkrl.stats.intervals import improvement, interquartile_mean
from bkrl.stats.variance import (
    both_resampled,
    compare_over_datasets,
    nested_improvement,
    nested_interval,
    ratio_over_datasets,
    resampled,
    split_variance,
)


def test_anova_by_hand() -> None:
    # Draws (1, 3), (4, 6), (7, 9): means 2, 5, 8, grand mean 5.
    # SSB = 2 (9 + 0 + 9) = 36 on 2 degrees of freedom, MSB = 18; SSW = 6 · 1 = 6 on 3, MSW = 2.
    # n0 = 2, so the variance between is (18 − 2) / 2 = 8 and its share 8 / 10; F = 9.
    split = split_variance({"a": [1, 3], "b": [4, 6], "c": [7, 9]})
    assert split is not None
    assert (split.draws, split.n) == (3, 6)
    assert (split.between_sd**2, split.within_sd**2, split.share) == pytest.approx((8, 2, 0.8))
    assert split.p == pytest.approx(scipy.stats.f.sf(9, 2, 3))
    # The interval rests on three draws: 5 ± t(0.975, 2) · 3 / √3.
    assert (split.over_draws.estimate, split.over_draws.n) == (5, 3)
    assert split.over_draws.high - 5 == pytest.approx(4.302653 * 3 / math.sqrt(3), abs=1e-5)


def test_unbalanced_draws_by_hand() -> None:
    # (0, 2) and (4, 4, 7): means 1 and 5, grand mean 3.4; SSB = 2 · 2.4² + 3 · 1.6² = 19.2; SSW = 2 + 6 = 8 on 3.
    # n0 = 5 − (4 + 9) / 5 = 2.4, so between = (19.2 − 8/3) / 2.4.
    split = split_variance({"x": [0, 2], "y": [4, 4, 7]})
    assert split is not None
    assert split.within_sd**2 == pytest.approx(8 / 3)
    assert split.between_sd**2 == pytest.approx((19.2 - 8 / 3) / 2.4)
    assert split.p == pytest.approx(scipy.stats.f_oneway([0, 2], [4, 4, 7]).pvalue)


def test_draws_that_differ_less_than_seeds_have_no_variance_of_their_own() -> None:
    split = split_variance({"a": [0, 10], "b": [1, 9]})
    assert split is not None
    assert (split.between_sd, split.share) == (0, 0)
    assert split.p == pytest.approx(1.0)
    same = split_variance({"a": [1, 1], "b": [1, 1]})
    assert same is not None
    assert (same.share, same.p) == (0, 1)


@pytest.mark.parametrize("by_draw", [{}, {"a": [1.0, 2.0]}, {"a": [1.0], "b": [2.0]}])
def test_nothing_to_split(by_draw: dict[str, list[float]]) -> None:
    assert split_variance(by_draw) is None


def test_it_finds_the_variances_it_was_made_with() -> None:
    rng = np.random.default_rng(0)
    draws = {str(i): rng.normal(rng.normal(0, 2.0), 1.0, size=12) for i in range(300)}
    split = split_variance(draws)
    assert split is not None
    assert split.between_sd**2 == pytest.approx(4.0, rel=0.2)
    assert split.within_sd**2 == pytest.approx(1.0, rel=0.1)


def nested(
    datasets: int, draws: int, runs: int, sds: tuple[float, float, float], rng: np.random.Generator
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Values of runs within draws within datasets whose standard deviations are known, and each draw's dataset."""
    values, owner = {}, {}
    for i in range(datasets):
        dataset = rng.normal(0.0, sds[0])
        for j in range(draws):
            owner[f"{i}/{j}"] = f"data {i}"
            values[f"{i}/{j}"] = list(dataset + rng.normal(0.0, sds[1]) + rng.normal(0.0, sds[2], runs))
    return values, owner


def test_nested_anova_by_hand() -> None:
    # Two datasets of two draws of two runs: draws' means 1, 3 | 7, 9; datasets' means 2, 8; grand mean 5.
    # SSA = 4 (9 + 9) = 72 on 1; SSB = 2 · 4 · 1 = 8 on 2, MSB = 4; SSE = 8 · 1 = 8 on 4, MSE = 2.
    # var B = (4 − 2) / 2 = 1, var A = (72 − 4) / 4 = 17; F = 72 / 4 on 1 and 2 degrees of freedom.
    values = {"p": [0, 2], "q": [2, 4], "r": [6, 8], "s": [8, 10]}
    split = split_variance(values, {"p": "x", "q": "x", "r": "y", "s": "y"})
    assert split is not None
    assert [(one.name, one.count) for one in split.parts] == [("datasets", 2), ("draws of labels", 4), ("seeds", 8)]
    assert [one.sd**2 for one in split.parts] == pytest.approx([17, 1, 2])
    assert [one.share for one in split.parts] == pytest.approx([0.85, 0.05, 0.1])
    assert (split.datasets, split.draws, split.n) == (2, 4, 8)
    assert split.p == pytest.approx(scipy.stats.f.sf(18, 1, 2))
    assert (split.over_draws.estimate, split.over_draws.n) == (5, 2)


def test_known_components_are_found_again() -> None:
    rng = np.random.default_rng(1)
    split = split_variance(*nested(200, 4, 5, (3.0, 2.0, 1.0), rng))
    assert split is not None
    assert [one.sd for one in split.parts] == pytest.approx([3.0, 2.0, 1.0], rel=0.1)
    split = split_variance(*nested(300, 1, 5, (2.0, 0.0, 1.0), rng))
    assert split is not None
    assert [(one.name, pytest.approx(one.sd, rel=0.1)) for one in split.parts] == [("datasets", 2.0), ("seeds", 1.0)]


def test_known_components_are_found_without_bias_when_cells_are_missing() -> None:
    """Unequal numbers of draws and of runs, and few datasets: right on average over many studies."""
    rng = np.random.default_rng(2)
    found = []
    for _ in range(400):
        values, owner = nested(5, 3, 4, (2.0, 2.0, 1.0), rng)
        del values["0/0"], values["1/0"]
        values["2/1"], values["3/2"] = values["2/1"][:2], values["3/2"][:1]
        split = split_variance(values, owner)
        assert split is not None
        found.append([one.sd**2 for one in split.parts])
    means = np.mean(found, axis=0)
    assert means[0] == pytest.approx(4.0, rel=0.25)  # none is below 0, which lifts the mean a little
    assert means[1:] == pytest.approx([4.0, 1.0], rel=0.1)


def test_a_dataset_that_makes_no_difference_is_seldom_said_to() -> None:
    rng = np.random.default_rng(3)
    splits = [split_variance(*nested(3, 1, 5, (0.0, 0.0, 1.0), rng)) for _ in range(400)]
    assert np.mean([one is not None and one.p < 0.05 for one in splits]) == pytest.approx(0.05, abs=0.03)


def test_a_bootstrap_takes_whole_datasets_and_runs_within_them() -> None:
    origins = [(f"d{i}", f"p{i}{j}") for i in range(4) for j in range(2) for _ in range(3)]
    taken = resampled(origins, np.random.default_rng(0), 500)
    assert taken.shape == (500, 24)
    seen = [{origins[run][0] for run in row} for row in taken]
    assert {len(one) for one in seen} == {1, 2, 3, 4}  # never a bit of each
    assert np.mean([len(one) for one in seen]) == pytest.approx(4 * (1 - 0.75**4), rel=0.05)
    for row in taken[:50].reshape(50, 4, 2, 3):
        for dataset in row:
            assert len({origins[run][0] for run in dataset.ravel()}) == 1
            assert all(len({origins[run] for run in draw}) == 1 for draw in dataset)
    a, b = both_resampled(origins, origins[::3], np.random.default_rng(0), 50)
    for ours, theirs in zip(a, b, strict=True):
        assert [origins[run][0] for run in ours[::3]] == [origins[::3][run][0] for run in theirs]
    uneven = [("d", "p"), ("d", "p"), ("e", "q")]
    shares = np.bincount(resampled(uneven, np.random.default_rng(0), 4000).ravel(), minlength=3)
    assert shares / shares.sum() == pytest.approx([0.25, 0.25, 0.5], abs=0.02)


def coverage(datasets: int, sd: float, spoken_of: bool, studies: int = 250) -> float:
    """How often the interval of a ratio holds the true one, ½: a method over datasets against ten runs without."""
    rng, held = np.random.default_rng(4), 0
    for study in range(studies):
        values, owner = nested(datasets, 1, 5, (sd, 0.0, 0.15), rng)
        ours = [Crossing(50_000 * (1 + value), False) for runs in values.values() for value in runs]
        origins = [(owner[draw], draw) for draw, runs in values.items() for _ in runs]
        theirs = [Crossing(100_000 * (1 + value), False) for value in rng.normal(0.0, 0.15, 10)]
        known = (origins, [("", "")] * 10) if spoken_of else ((), ())
        ratio = steps_ratio(ours, theirs, 1e9, np.random.default_rng(study), origins=known)
        held += ratio.low <= 0.5 <= ratio.high
    return held / studies


@pytest.mark.parametrize(
    ("datasets", "sd"), [(3, 0.2), (3, 0.0), (5, 0.2), pytest.param(10, 0.2, marks=pytest.mark.slow)]
)
def test_intervals_of_ratios_hold_for_other_datasets(datasets: int, sd: float) -> None:
    assert coverage(datasets, sd, spoken_of=True) >= 0.9


def test_intervals_over_seeds_alone_do_not() -> None:
    assert coverage(3, 0.2, spoken_of=False) < 0.8


def test_many_datasets_against_few_runs_are_no_independent_runs() -> None:
    """With six datasets and three runs of PPO, the thirty runs of the method were taken for thirty observations."""
    origins = [(f"d{i // 5}", f"p{i // 5}") for i in range(30)]
    times = np.repeat([30_000.0, 40_000, 50_000, 60_000, 70_000, 80_000], 5)
    base = np.array([100_000.0, 100_000, 101_000])
    ours, theirs = ([Crossing(value, False) for value in side] for side in (times, base))
    known = (origins, [("", "")] * 3)
    told = steps_ratio(ours, theirs, 1e9, np.random.default_rng(0), origins=known)
    expected = ratio_over_datasets(times, base, known)
    assert (told.low, told.high, told.n, told.method) == (expected.low, expected.high, 3, "t")
    assert told.high > 0.75  # 0.70 over runs


def test_what_a_dataset_does_to_both_sides_cancels() -> None:
    rng = np.random.default_rng(5)
    luck = np.repeat([0.5, 1.0, 2.0], 5)
    origins = [(f"d{i // 5}", f"p{i // 5}") for i in range(15)]
    ours, theirs = (side * luck * (1 + rng.normal(0, 0.02, 15)) for side in (50_000, 100_000))
    told = ratio_over_datasets(ours, theirs, (origins, origins))
    assert told.n == 3
    assert 0.45 < told.low < 0.5 < told.high < 0.55
    apart = ratio_over_datasets(ours, theirs, (origins, [(f"other {one}", two) for one, two in origins]))
    assert apart.low < 0.2
    assert apart.high > 1.2


def test_the_test_over_datasets_is_students_t() -> None:
    origins = [(f"d{i // 2}", f"p{i // 2}") for i in range(6)]
    ours, theirs = np.array([0.5, 0.7, 0.6, 0.6, 0.8, 1.0]), np.array([0.3, 0.5, 0.4, 0.5, 0.4, 0.4])
    told = compare_over_datasets(ours, theirs, (origins, origins))
    assert told is not None
    assert (told.n, told.units) == (3, "datasets")
    expected = scipy.stats.ttest_rel([0.6, 0.6, 0.9], [0.4, 0.45, 0.4])
    assert told.value == pytest.approx(expected.pvalue)
    assert told.difference.low == pytest.approx(expected.confidence_interval().low)
    runs = [("", "")] * 6
    told = compare_over_datasets(ours, theirs, (origins, runs))
    assert told is not None
    low = scipy.stats.t.ppf(0.975, 2) * math.sqrt(np.var([0.6, 0.6, 0.9], ddof=1) / 3 + np.var(theirs, ddof=1) / 6)
    assert told.difference.low == pytest.approx(told.difference.estimate - low)  # Welch's 2.4, rounded down
    few = compare_over_datasets(ours, theirs[:2], (origins, runs[:2]))
    assert few is not None
    assert (few.n, few.units) == (3, "datasets")  # it was 2, the runs of the other side
    assert compare_over_datasets(np.full(6, 0.5), np.full(6, 0.4), (origins, origins)) is None


def test_a_dataset_that_varies_is_not_taken_for_knowledge() -> None:
    """A method that differs from PPO by its dataset's luck alone: five times in a hundred, not more."""
    rng, found = np.random.default_rng(6), []
    for _ in range(400):
        values, owner = nested(3, 1, 5, (0.1, 0.0, 0.05), rng)
        ours = np.array([value for runs in values.values() for value in runs])
        origins = [(owner[draw], draw) for draw, runs in values.items() for _ in runs]
        told = compare_over_datasets(ours, rng.normal(0.0, 0.05, 10), (origins, [("", "")] * 10))
        found.append(told is not None and told.value < 0.05)
    assert np.mean(found) < 0.09


def test_intervals_of_shares_speak_of_another_dataset_too() -> None:
    origins = [(f"d{i // 5}", f"p{i // 5}") for i in range(15)]
    values = np.repeat([0.2, 0.5, 0.8], 5) + np.tile([-0.01, 0.0, 0.0, 0.0, 0.01], 3)
    told = nested_interval(values, origins, np.random.default_rng(0))
    assert (told.n, told.method) == (3, "t")
    assert told.high - told.estimate == pytest.approx(4.302653 * 0.3 / math.sqrt(3), rel=1e-4)
    alone = nested_interval(values, [("d", "p")] * 15, np.random.default_rng(0))
    assert (alone.n, alone.method) == (15, "bootstrap")
    many = [(f"d{i}", f"p{i}") for i in range(15)]
    assert nested_interval(values, many, np.random.default_rng(0)).method == "bootstrap"


@pytest.mark.parametrize("datasets", [5, 6])
def test_estimates_count_every_dataset_alike_as_their_intervals_do(datasets: int) -> None:
    """With twelve seeds of one dataset and two of each other the estimate, over runs, lay outside its own interval."""
    origins = [("d0", "p0")] * 12 + [(f"d{i}", f"p{i}") for i in range(1, datasets) for _ in range(2)]
    rng, few = np.random.default_rng(0), len(origins) - 12
    values = np.repeat([0.95, 0.45], [12, few]) + rng.normal(0, 0.02, len(origins))
    each = [values[[one == origin for one in origins]].mean() for origin in dict.fromkeys(origins)]
    found = nested_interval(values, origins, np.random.default_rng(1))
    assert found.low < found.estimate < found.high
    if datasets == 6:  # the middle half of the datasets leaves the one out
        assert found.estimate == pytest.approx(0.45, abs=0.02)
        assert found.estimate == pytest.approx(interquartile_mean(np.repeat(values, [1] * 12 + [6] * few)), rel=0.01)
        evenly = nested_interval(values, origins, np.random.default_rng(1), cut=0.0)
        assert evenly.estimate == pytest.approx(np.mean(each))
    base, none = np.linspace(0.9, 1.1, 8), [("", "")] * 8
    for ours, theirs, known in ((values, base, (origins, none)), (base, values, (none, origins))):
        told = steps_ratio(*([Crossing(x, False) for x in side] for side in (ours, theirs)), 9, rng, origins=known)
        means = [np.mean(each) if side is values else 1.0 for side in (ours, theirs)]
        assert told.estimate == pytest.approx(means[0] / means[1])
        test = compare_over_datasets(ours, theirs, known)
        assert test is not None
        assert test.difference.estimate == pytest.approx(means[0] - means[1])
    better = nested_improvement(values, np.array([0.0, 0.2, 0.3, 0.7, 0.8]), (origins, [("", "")] * 5), rng)
    assert better is not None
    assert better.estimate == pytest.approx((1 + 0.6 * (datasets - 1)) / datasets)


def test_draws_of_labels_count_alike_in_their_dataset() -> None:
    origins = [("d0", "p"), ("d0", "p"), ("d0", "p"), ("d0", "q"), *((f"d{i}", "r") for i in range(1, 6))]
    values = np.array([0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    found = nested_interval(values, origins, np.random.default_rng(0), cut=0.0)
    assert found.estimate == pytest.approx((0.5 + 5) / 6)


def test_where_all_count_alike_an_estimate_is_that_over_runs_to_the_last_bit() -> None:
    rng = np.random.default_rng(0)
    for datasets in (3, 7):
        origins = [(f"d{i % datasets}", f"p{i % datasets}") for i in range(5 * datasets)]
        values, base = rng.random(5 * datasets), rng.random(11)
        known = (origins, [("", "")] * 11)
        told = steps_ratio(*([Crossing(x, False) for x in side] for side in (values, base)), 9, rng, origins=known)
        assert told.estimate == values.mean() / base.mean()
        better = nested_improvement(values, base, known, rng)
        assert better is not None
        assert better.estimate == improvement(values, base)
        if datasets == 7:
            assert nested_interval(values, origins, rng).estimate == interquartile_mean(values)
