"""Rank statistics, against their definitions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bkrl.stats.ranks import area_under_curve, rank_correlation

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
