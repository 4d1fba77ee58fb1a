"""Against the formulas of Agarwal et al. 2021 written out, of one task, and their package where it can be imported.

rliable 1.2.0 installs, but its `library` module imports arch, which does not import with pandas 3; its `metrics`
module needs scipy alone. It is therefore no development dependency; `pip install --no-deps rliable` runs the last test.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from bkrl.stats import intervals as st

SCORES = np.round(np.random.default_rng(4).gamma(2.0, 0.3, size=11), 1)  # rounded: ties occur
OTHERS = np.round(np.random.default_rng(5).gamma(2.5, 0.3, size=9), 1)


def test_interquartile_mean() -> None:
    # Section 4.2: discard the bottom and top 25 % of all scores, take the mean of the rest.
    ordered = sorted(SCORES.tolist())
    cut = math.floor(0.25 * len(ordered))
    middle = ordered[cut : len(ordered) - cut]
    assert float(st.interquartile_mean(SCORES)) == pytest.approx(sum(middle) / len(middle))


def test_performance_profile() -> None:
    # Equation 1: F(τ) = (1/N) Σ_n 1[x_n > τ].
    tau = np.linspace(0, 2, 9)
    share, _, _ = st.performance_profile(SCORES, tau, np.random.default_rng(0), repetitions=10)
    assert share.tolist() == pytest.approx([sum(float(x > limit) for x in SCORES) / len(SCORES) for limit in tau])


def test_probability_of_improvement() -> None:
    # Equation 2: P(X > Y) = (1/(N K)) Σ_i Σ_j S(x_i, y_j), S = 1, 1/2 or 0 for more, equal or less.
    wins = [1.0 if x > y else 0.5 if x == y else 0.0 for x in SCORES for y in OTHERS]
    assert float(st.improvement(SCORES, OTHERS)) == pytest.approx(sum(wins) / len(wins))


def test_the_bootstrap_is_percentiles_over_resampled_runs() -> None:
    # Section 4.1: draw N runs with replacement; the interval is the 2.5 and 97.5 % points.
    interval = st.bootstrap([SCORES], np.random.default_rng(7), repetitions=500)
    index = np.random.default_rng(7).integers(0, len(SCORES), size=(500, len(SCORES)))
    values = [float(st.interquartile_mean(SCORES[row])) for row in index]
    assert (interval.low, interval.high) == pytest.approx(tuple(np.quantile(values, [0.025, 0.975])))


def test_the_package_agrees() -> None:
    metrics = pytest.importorskip("rliable.metrics", reason="rliable is not installed")
    assert float(st.interquartile_mean(SCORES)) == pytest.approx(metrics.aggregate_iqm(SCORES[:, None]))
    theirs = metrics.probability_of_improvement(SCORES[:, None], OTHERS[:, None])
    assert float(st.improvement(SCORES, OTHERS)) == pytest.approx(theirs)
