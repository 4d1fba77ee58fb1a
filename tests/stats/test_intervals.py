"""Statistics against scipy, published formulas and values computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy

from bkrl.stats import intervals as st
from bkrl.stats.variance import nested_interval


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8, 10, 13])
def test_iqm_is_the_quarter_trimmed_mean(n: int) -> None:
    x = rng(n).normal(size=n)
    assert float(st.interquartile_mean(x)) == pytest.approx(scipy.stats.trim_mean(x, 0.25))


def test_iqm_by_hand_and_along_an_axis() -> None:
    assert float(st.interquartile_mean(np.array([0, 0, 1, 2, 3, 4, 100, 1000]))) == pytest.approx(2.5)
    x = rng().normal(size=(5, 9))
    np.testing.assert_allclose(st.interquartile_mean(x, axis=1), scipy.stats.trim_mean(x, 0.25, axis=1))


@pytest.mark.parametrize("df", [1, 2, 3, 4, 5, 9, 10, 31, 200])
def test_student_against_scipy(df: int) -> None:
    assert st.student_975(df) == pytest.approx(scipy.stats.t.ppf(0.975, df), rel=1e-12)


def test_t_interval_by_hand() -> None:
    # 1, 2, 3: mean 2, standard error 1/sqrt(3), t(0.975, 2) = 4.302653 from the tables.
    interval = st.t_interval(np.array([1.0, 2.0, 3.0]))
    assert (interval.estimate, interval.n, interval.method) == (2.0, 3, "t")
    assert interval.high - 2 == pytest.approx(4.302653 / math.sqrt(3), abs=1e-5)
    assert not st.t_interval(np.array([1.0])).known


def test_bootstrap_matches_scipy() -> None:
    x = rng(3).gamma(2.0, size=12)
    ours = st.bootstrap([x], rng(1), st.middle, repetitions=20_000)
    theirs = scipy.stats.bootstrap(
        (x,),
        lambda v, axis: scipy.stats.trim_mean(v, 0.25, axis=axis),
        n_resamples=20_000,
        method="percentile",
        rng=np.random.default_rng(5),
    ).confidence_interval
    assert ours.estimate == pytest.approx(scipy.stats.trim_mean(x, 0.25))
    assert ours.low == pytest.approx(theirs.low, abs=0.05)
    assert ours.high == pytest.approx(theirs.high, abs=0.05)
    assert (ours.n, ours.method) == (12, "bootstrap")


def test_bootstrap_is_seeded_and_one_run_has_no_interval() -> None:
    x = rng(4).normal(size=10)
    assert st.bootstrap([x], rng(7)) == st.bootstrap([x], rng(7))
    assert not st.bootstrap([x[:1]], rng(7)).known
    assert nested_interval(x[:4], (), rng()).method == "t"
    assert nested_interval(x[:5], (), rng()).method == "bootstrap"


def test_bootstrap_covers_about_its_level() -> None:
    generator = rng(11)
    hits = 0
    for _ in range(200):
        interval = st.bootstrap([generator.normal(size=20)], generator, st.mean, repetitions=300)
        hits += interval.low <= 0 <= interval.high
    assert 0.86 < hits / 200 < 0.99


def test_probability_of_improvement_is_mann_whitney() -> None:
    x, y = rng(1).integers(0, 6, 9).astype(float), rng(2).integers(0, 6, 7).astype(float)
    u = scipy.stats.mannwhitneyu(x, y).statistic
    assert float(st.improvement(x, y)) == pytest.approx(u / (9 * 7))
    # By hand: pairs (1,0) (1,1) (2,0) (2,1) score 1, 1/2, 1, 1.
    assert float(st.improvement(np.array([1.0, 2.0]), np.array([0.0, 1.0]))) == 3.5 / 4


def test_paired_test_is_the_exact_permutation_test() -> None:
    a = {s: float(v) for s, v in enumerate(rng(5).normal(0.6, 1, size=9))}
    b = {s: float(v) for s, v in enumerate(rng(6).normal(0, 1, size=9))} | {99: 5.0}
    ours = st.paired_test(a, b, rng())
    theirs = scipy.stats.permutation_test(
        ([a[s] for s in range(9)], [b[s] for s in range(9)]),
        lambda x, y, axis: np.mean(x - y, axis=axis),
        permutation_type="samples",
        n_resamples=np.inf,
    )
    assert ours.n == 9  # seed 99 has no partner
    assert ours.value == pytest.approx(theirs.pvalue)
    assert ours.smallest == 2 / 2**9
    reference = scipy.stats.ttest_rel([a[s] for s in range(9)], [b[s] for s in range(9)]).confidence_interval()
    assert (ours.difference.low, ours.difference.high) == pytest.approx((reference.low, reference.high))


def test_paired_test_samples_signs_when_there_are_many_seeds() -> None:
    a = {s: 1.0 + 0.1 * s for s in range(20)}
    p = st.paired_test(a, dict.fromkeys(range(20), 0.0), rng()).value
    assert 0 < p < 1e-3
    assert st.paired_test(a, dict.fromkeys(range(20), 0.0), rng()).smallest == 1 / (st.SAMPLED_FLIPS + 1)
    assert st.paired_test({1: 0.5}, {1: 0.25}, rng()).value == 1.0
    with pytest.raises(ValueError, match="at least one seed"):
        st.paired_test({1: 0.0}, {2: 0.0}, rng())


def test_what_is_not_known_is_no_evidence() -> None:
    known = {1: 0.3, 2: 0.4, 3: 0.5}
    one = st.paired_test(known | {4: math.nan}, dict.fromkeys(range(1, 5), 0.1), rng())
    assert one == st.paired_test(known, dict.fromkeys(range(1, 5), 0.1), rng())
    with pytest.raises(ValueError, match="at least one seed"):
        st.paired_test({1: math.nan}, {1: 0.0}, rng())
    assert math.isnan(st.improvement(np.array([0.1, math.nan]), np.array([0.2, 0.3])))


def test_difference_of_means_is_welch_below_five_runs() -> None:
    x, y = np.array([1.0, 2.0, 4.0, 5.0]), np.array([0.0, 0.5, 0.2, 0.9])
    ours = st.mean_difference(x, y, rng())
    theirs = scipy.stats.ttest_ind(x, y, equal_var=False).confidence_interval()
    assert ours.estimate == pytest.approx(3.0 - 0.4)
    # Degrees of freedom are rounded down (3.24 to 3), so the interval is a little wider.
    assert theirs.low - 0.4 < ours.low < theirs.low < theirs.high < ours.high < theirs.high + 0.4
    assert not st.mean_difference(x[:1], y, rng()).known
    assert st.mean_difference(np.tile(x, 2), np.tile(y, 2), rng()).method == "bootstrap"


def test_few_values_that_do_not_differ_leave_their_spread_unknown() -> None:
    """Three runs that all end at 100 % are no certainty."""
    same, other = np.ones(3), np.full(4, 0.5)
    assert (st.t_interval(same).estimate, st.t_interval(same).n) == (1.0, 3)
    assert not st.t_interval(same).known
    assert not nested_interval(same, (), rng()).known
    assert not st.mean_difference(same, other, rng()).known
    assert st.mean_difference(same, np.array([0.4, 0.5]), rng()).known
    assert st.t_interval(np.ones(st.FEW_SEEDS)).known
    shifted = st.paired_test({1: 0.5, 2: 0.75, 3: 1.0}, {1: 0.25, 2: 0.5, 3: 0.75}, rng())
    assert not shifted.difference.known


@pytest.mark.parametrize("n", [5, 7, pytest.param(12, marks=pytest.mark.slow)])
def test_intervals_against_a_naive_bootstrap(n: int) -> None:
    """Loops over runs drawn one by one, and quantiles by sorting."""
    x, y = rng(n).normal(0.6, 0.2, n), rng(n + 1).normal(0.5, 0.2, n + 1)

    def naive(draw: np.random.Generator) -> tuple[float, float]:
        index = draw.integers(0, n, (2000, n))
        other = draw.integers(0, n + 1, (2000, n + 1))
        found = []
        for mine, theirs in zip(index, other, strict=True):
            wins = [1.0 * (x[i] > y[j]) + 0.5 * (x[i] == y[j]) for i in mine for j in theirs]
            found.append(sum(wins) / len(wins))
        found.sort()
        ends = []
        for level in (0.025, 0.975):
            place = level * (len(found) - 1)
            low = math.floor(place)
            ends.append(found[low] + (place - low) * (found[min(low + 1, len(found) - 1)] - found[low]))
        return ends[0], ends[1]

    ours = st.bootstrap([x, y], rng(3), lambda sides: st.improvement(*sides))
    assert (ours.low, ours.high) == pytest.approx(naive(rng(3)))


def test_holm_against_its_definition() -> None:
    p = [0.04, 0.01, 0.5, 0.01, 0.03]
    ordered = sorted(p)
    expected = {
        value: max(min(1.0, (len(p) - rank) * one) for rank, one in enumerate(ordered) if one <= value) for value in p
    }
    assert st.holm(p) == pytest.approx([expected[value] for value in p])


def test_holm_by_hand() -> None:
    assert st.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert st.holm([]) == []


def test_performance_profile_is_one_minus_the_distribution() -> None:
    x = rng(8).normal(size=30)
    tau = np.linspace(-2, 2, 9)
    share, low, high = st.performance_profile(x, tau, rng())
    np.testing.assert_allclose(share, scipy.stats.ecdf(x).sf.evaluate(tau))
    assert np.all(low <= share)
    assert np.all(share <= high)


def test_warning_below_five_seeds() -> None:
    assert st.few_seeds_warning(5) == ""
    assert "only 3 seeds" in st.few_seeds_warning(3)
    assert "one seed" in st.few_seeds_warning(1)
