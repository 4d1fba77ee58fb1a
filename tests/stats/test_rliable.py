"""Against the formulas of Agarwal et al. 2021 written out, and against their package where it can be imported.

rliable 1.2.0 installs, but its `library` module imports arch, which does not import with pandas 3; its `metrics`
module needs scipy alone. It is therefore no development dependency; `pip install --no-deps rliable` runs the last test.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from bkrl.stats import intervals as st

SCORES = np.random.default_rng(4).gamma(2.0, 0.3, size=(11, 5))  # (runs, tasks)
OTHERS = np.round(np.random.default_rng(5).gamma(2.5, 0.3, size=(9, 5)), 1)  # rounded: ties occur
SCORES = np.round(SCORES, 1)


def tasks(scores: np.ndarray) -> list[np.ndarray]:
    return list(scores.T)


def test_interquartile_mean_over_runs_and_tasks() -> None:
    # Section 4.2: discard the bottom and top 25 % of all N M scores, take the mean of the rest.
    ordered = sorted(SCORES.ravel().tolist())
    cut = math.floor(0.25 * len(ordered))
    middle = ordered[cut : len(ordered) - cut]
    assert float(st.pooled_iqm(tasks(SCORES))) == pytest.approx(sum(middle) / len(middle))


def test_performance_profile() -> None:
    # Equation 1: F(τ) = (1/M) Σ_m (1/N) Σ_n 1[x_mn > τ].
    tau = np.linspace(0, 2, 9)
    share, _, _ = st.performance_profile(tasks(SCORES), tau, np.random.default_rng(0), repetitions=10)
    runs, count = SCORES.shape
    for i, limit in enumerate(tau):
        expected = sum(sum(float(x > limit) for x in SCORES[:, m]) / runs for m in range(count)) / count
        assert share[i] == pytest.approx(expected)


def test_probability_of_improvement() -> None:
    # Equation 2: P(X > Y) = (1/M) Σ_m (1/(N K)) Σ_i Σ_j S(x_mi, y_mj), S = 1, 1/2 or 0 for more, equal or less.
    total = 0.0
    for m in range(SCORES.shape[1]):
        inner = 0.0
        for x in SCORES[:, m]:
            for y in OTHERS[:, m]:
                inner += 1.0 if x > y else 0.5 if x == y else 0.0
        total += inner / (len(SCORES) * len(OTHERS))
    ours = st.probability_of_improvement(tasks(SCORES), tasks(OTHERS), np.random.default_rng(0), repetitions=10)
    assert ours.estimate == pytest.approx(total / SCORES.shape[1])


def test_stratified_bootstrap_is_percentiles_over_resampled_runs_of_each_task() -> None:
    # Section 4.1: for each task draw N runs with replacement; the interval is the 2.5 and 97.5 % points.
    interval = st.stratified_bootstrap(tasks(SCORES), np.random.default_rng(7), repetitions=500)
    rng = np.random.default_rng(7)
    index = [rng.integers(0, len(SCORES), size=(500, len(SCORES))) for _ in range(SCORES.shape[1])]
    values = [
        float(st.interquartile_mean(np.stack([SCORES[index[m][r], m] for m in range(SCORES.shape[1])])))
        for r in range(500)
    ]
    assert (interval.low, interval.high) == pytest.approx(tuple(np.quantile(values, [0.025, 0.975])))


def test_the_package_agrees() -> None:
    metrics = pytest.importorskip("rliable.metrics", reason="rliable is not installed")
    assert float(st.pooled_iqm(tasks(SCORES))) == pytest.approx(metrics.aggregate_iqm(SCORES))
    ours = st.probability_of_improvement(tasks(SCORES), tasks(OTHERS), np.random.default_rng(0), repetitions=10)
    assert ours.estimate == pytest.approx(metrics.probability_of_improvement(SCORES, OTHERS))
    assert float(st.mean_of_means(tasks(SCORES))) == pytest.approx(metrics.aggregate_mean(SCORES))
