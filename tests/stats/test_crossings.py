"""Steps to a threshold against scipy and values computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bkrl.stats.crossings import Crossing, steps_ratio, steps_to_threshold, summarise_steps


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_steps_to_threshold() -> None:
    steps, values = np.array([10, 20, 30, 40, 50]), np.array([0.1, 0.9, 0.5, 0.8, 0.9])
    assert steps_to_threshold(steps, values, 0.8) == Crossing(20, False)
    assert steps_to_threshold(steps, values, 0.95) == Crossing(50, True)
    assert steps_to_threshold(steps[:1], values[:1], 0.2) == Crossing(10, True)
    assert steps_to_threshold(np.array([]), np.array([]), 0.5) == Crossing(0.0, True)
    assert steps_to_threshold(np.array([1, 2]), np.array([math.nan, 1.0]), 0.5) == Crossing(2, False)


def test_steps_summary_counts_censored_runs() -> None:
    crossings = [Crossing(100, False), Crossing(300, False), Crossing(900, False), Crossing(500, True)]
    summary = summarise_steps(crossings, 500, rng())
    assert summary.restricted.estimate == pytest.approx((100 + 300 + 500 + 500) / 4)
    assert (summary.censored, summary.n) == (2, 4)  # the run that crossed at 900 had not by 500


def test_ratio_of_steps() -> None:
    fast = [Crossing(float(s), False) for s in (100, 110, 120, 130, 140)]
    slow = [Crossing(float(s), False) for s in (400, 420, 440, 460, 480)]
    ratio = steps_ratio(fast, slow, 500, rng())
    assert ratio.estimate == pytest.approx(120 / 440)
    assert ratio.method == "bootstrap"
    assert ratio.bound == ""
    assert ratio.low < 120 / 440 < ratio.high < 0.5
    assert ratio.side == 1
    assert steps_ratio(slow, fast, 500, rng()).side == -1


@pytest.mark.parametrize(
    ("gone_a", "gone_b", "bound"), [(1, 0, "at least"), (0, 1, "at most"), (1, 1, "unknown"), (0, 0, "")]
)
def test_ratio_says_what_censoring_does(gone_a: int, gone_b: int, bound: str) -> None:
    def runs(steps: float, gone: int) -> list[Crossing]:
        return [Crossing(steps + i, False) for i in range(5)] + [Crossing(500, True)] * gone

    ratio = steps_ratio(runs(50, gone_a), runs(400, gone_b), 500, rng())
    assert (ratio.bound, ratio.censored) == (bound, (gone_a, gone_b))
    assert ratio.side == (bound in ("", "at most"))  # "at least" and "unknown" may hide a slow run


def test_ratio_with_few_seeds_is_wide_and_with_one_has_no_interval() -> None:
    a = [Crossing(s, False) for s in (100.0, 120.0)]
    b = [Crossing(s, False) for s in (200.0, 230.0)]
    two = steps_ratio(a, b, 500, rng())
    # Delta method by hand: se of the log ratio, t(0.975, 1) = 12.706.
    se = math.sqrt((200 / 2) / 110**2 + (450 / 2) / 215**2)
    assert two.method == "t"
    assert math.log(two.high / two.estimate) == pytest.approx(12.7062 * se, rel=1e-4)
    assert not steps_ratio(a[:1], b, 500, rng()).known


def test_few_runs_that_took_equally_long_leave_their_spread_unknown() -> None:
    """Evaluations are far apart, so that runs often cross at the same one; two such runs are no certainty."""
    a, b = [Crossing(200.0, False)] * 3, [Crossing(400.0, False)] * 3
    ratio = steps_ratio(a, b, 500, rng())
    assert ratio.estimate == 0.5
    assert not ratio.known
    assert ratio.side == 0
    assert steps_ratio(a + a, b + b, 500, rng()).side == 1  # six against six that never meet are no accident


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("own", [0.0, 300.0])
def test_a_baseline_that_is_mostly_there_before_its_first_step_leaves_the_ratio_open(own: float) -> None:
    base = [Crossing(0.0, False)] * 5 + [Crossing(400.0, False)]
    ratio = steps_ratio([Crossing(own, False)] * 5, base, 500, rng())
    assert ratio.estimate == pytest.approx(own / (400 / 6))
    assert not ratio.known
