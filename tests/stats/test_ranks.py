"""Rank statistics, against their definitions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bkrl.stats.ranks import area_under_curve, rank_correlation, rank_correlation_with_interval

scipy_stats = pytest.importorskip("scipy.stats")
VALUES = st.lists(st.integers(-5, 5), min_size=3, max_size=40)


@given(VALUES, st.randoms())
def test_spearman(values, random):
    other = [value + random.randint(-3, 3) for value in values]
    if len(set(values)) > 1 and len(set(other)) > 1:
        expected = np.corrcoef(*map(scipy_stats.rankdata, (values, other)))[0, 1]
        assert rank_correlation(np.array(values), np.array(other)) == pytest.approx(expected, abs=1e-9)


def test_a_constant_side_correlates_with_nothing():
    assert rank_correlation(np.zeros(5), np.arange(5)) == 0.0


@given(VALUES, VALUES)
def test_area_under_the_curve_is_the_share_of_pairs(high, low):
    a, b = np.array(high)[:, None], np.array(low)[None]
    assert area_under_curve(np.array(high), np.array(low)) == pytest.approx(((a > b) + 0.5 * (a == b)).mean())


def test_the_interval_of_a_rank_correlation_covers_it_in_about_95_of_100_samples():
    rng, covered = np.random.default_rng(3), 0
    for _ in range(400):
        a, b = rng.multivariate_normal([0, 0], [[1, 0.6], [0.6, 1]], 20).T
        found = rank_correlation_with_interval(a, b)
        covered += found["low"] <= 6 / np.pi * np.arcsin(0.3) <= found["high"]
    assert 0.91 < covered / 400 < 0.985
    few, many = (rank_correlation_with_interval(np.arange(n), np.arange(n)) for n in (4, 40))
    assert few["value"] == few["high"] == 1
    assert -0.6 < few["low"] < 0 < 0.99 < many["low"] < 1
    assert rank_correlation_with_interval(np.arange(1), np.arange(1))["low"] < -0.9
    assert rank_correlation_with_interval(np.arange(0), np.arange(0))["n"] == 0  # not one sub-goal was rated
