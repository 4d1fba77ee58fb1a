"""Curves: one grid, and bands over seeds."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bkrl.stats import curves, intervals
from bkrl.stats.curves import Series


def curve(steps: list[float], values: list[float]) -> Series:
    return np.array(steps, float), np.array(values, float)


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_series_are_sorted_and_the_later_line_of_a_step_holds():
    rows = [
        {"step": 10, "eval/success_rate": 0.1, "ppo/loss": 1},
        {"step": 20, "eval/success_rate": 0.9},
        {"step": 20, "eval/success_rate": 0.4},  # the run went on from a checkpoint before 20
        {"step": 5, "eval/success_rate": 0.0, "note": "text", "flag": True},
        {"step": 30, "eval/success_rate": None},
        {"step": 35, "eval/success_rate": math.nan, "ppo/loss": math.inf},
    ]
    series = curves.series_of(rows)
    assert set(series) == {"eval/success_rate", "ppo/loss"}
    steps, values = series["eval/success_rate"]
    assert steps.tolist() == [5, 10, 20]
    assert values.tolist() == [0.0, 0.1, 0.4]


def test_equal_grids_are_taken_as_they_are():
    grid, values = curves.on_grid([curve([0, 10, 20], [0, 0.5, 1]), curve([0, 10, 20], [0, 0, 0.2])])
    assert grid.tolist() == [0, 10, 20]
    assert values.tolist() == [[0, 0.5, 1], [0, 0, 0.2]]


def test_other_grids_are_interpolated_and_never_extrapolated():
    grid, values = curves.on_grid([curve([0, 100], [0, 1]), curve([20, 60, 80], [0.2, 0.6, 0.8])])
    assert (grid[0], grid[-1]) == (20, 80)
    np.testing.assert_allclose(values[0], grid / 100)
    np.testing.assert_allclose(values[1], grid / 100)
    assert len(curves.on_grid([curve(list(range(900)), [0.0] * 900)], points=50)[0]) == 50
    with pytest.raises(ValueError, match="share no range"):
        curves.on_grid([curve([0, 1], [0, 0]), curve([5, 6], [0, 0])])


def test_a_missing_evaluation_is_bridged():
    grid, values = curves.on_grid([curve([0, 10, 20], [0, np.nan, 1]), curve([0, 10, 20], [0, 0, 0])])
    assert np.isfinite(values).all()
    assert values[0, np.searchsorted(grid, 20)] == 1


def test_a_curve_that_begins_after_the_horizon_counts_with_its_first_value():
    assert curves.final_and_average(*curve([100, 200], [0.25, 1.0]), horizon=50) == (0.25, 0.25)


def test_bands_by_number_of_seeds():
    one = curves.band("a", [curve([0, 1], [0, 1])], rng())
    assert (one.n, one.method) == (1, "none")
    assert np.isnan(one.low).all()
    three = curves.band("a", [curve([0, 1], [0, s]) for s in (1, 2, 3)], rng())
    assert (three.n, three.method) == (3, "t")
    assert three.centre.tolist() == [0, 2]
    assert three.high[1] - 2 == pytest.approx(4.302653 / np.sqrt(3), abs=1e-5)
    outlier = curves.band("a", [curve([0, 1], [0, v]) for v in [1, 1, 1, 1, 100]], rng())
    assert outlier.method == "bootstrap"
    assert outlier.centre[1] == 1  # the interquartile mean leaves the outlier out
    assert outlier.low[1] <= 1 <= outlier.high[1]


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        (0, "0"),
        (950, "950"),
        (20_000, "20k"),
        (1_250_000, "1.25M"),
        (999_700, "1M"),
        (999.6, "1k"),
        (float("inf"), "∞"),
    ],
)
def test_step_labels(steps: float, text: str):
    assert intervals.step_label(steps) == text
