"""Variance between draws of labels and between seeds: against hand arithmetic and scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from bkrl.report.variance import f_survival, split_variance


def test_anova_by_hand() -> None:
    # Draws (1, 3), (4, 6), (7, 9): means 2, 5, 8, grand mean 5.
    # SSB = 2 (9 + 0 + 9) = 36 on 2 degrees of freedom, MSB = 18; SSW = 6 · 1 = 6 on 3, MSW = 2.
    # n0 = 2, so the variance between is (18 − 2) / 2 = 8 and its share 8 / 10; F = 9.
    split = split_variance({"a": [1, 3], "b": [4, 6], "c": [7, 9]})
    assert split is not None
    assert (split.draws, split.n) == (3, 6)
    assert (split.between, split.within, split.share, split.f) == (8, 2, 0.8, 9)
    assert split.p == pytest.approx(stats.f.sf(9, 2, 3))
    # The interval rests on three draws: 5 ± t(0.975, 2) · 3 / √3.
    assert (split.over_draws.estimate, split.over_draws.n) == (5, 3)
    assert split.over_draws.high - 5 == pytest.approx(4.302653 * 3 / math.sqrt(3), abs=1e-5)


def test_unbalanced_draws_by_hand() -> None:
    # (0, 2) and (4, 4, 7): means 1 and 5, grand mean 3.4; SSB = 2 · 2.4² + 3 · 1.6² = 19.2; SSW = 2 + 6 = 8 on 3.
    # n0 = 5 − (4 + 9) / 5 = 2.4, so between = (19.2 − 8/3) / 2.4.
    split = split_variance({"x": [0, 2], "y": [4, 4, 7]})
    assert split is not None
    assert split.within == pytest.approx(8 / 3)
    assert split.between == pytest.approx((19.2 - 8 / 3) / 2.4)
    assert split.p == pytest.approx(stats.f_oneway([0, 2], [4, 4, 7]).pvalue)


def test_draws_that_differ_less_than_seeds_have_no_variance_of_their_own() -> None:
    split = split_variance({"a": [0, 10], "b": [1, 9]})
    assert split is not None
    assert (split.between, split.share) == (0, 0)
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
    assert split.between == pytest.approx(4.0, rel=0.2)
    assert split.within == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize(("df1", "df2"), [(1, 1), (1, 12), (2, 3), (4, 45), (9, 10), (30, 200)])
def test_f_distribution_against_scipy(df1: int, df2: int) -> None:
    for f in (0.0, 0.05, 0.7, 1.0, 2.5, 11.0, 90.0):
        assert f_survival(f, df1, df2) == pytest.approx(stats.f.sf(f, df1, df2), rel=1e-9, abs=1e-14)
