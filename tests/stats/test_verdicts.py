"""One rule for every verdict: significance follows the adjusted test, words about steps the interval beside them."""

from __future__ import annotations

from typing import Any

import pytest

from bkrl.report.comparison import Difference
from bkrl.report.findings import headline
from bkrl.report.results import results_in, text_table
from bkrl.stats import intervals as st
from bkrl.stats.crossings import StepsRatio
from bkrl.stats.verdicts import verdict
from tests.report.test_findings import judged, runs


def ratio(low: float, high: float, bound: Any = "") -> StepsRatio:
    return StepsRatio.of(st.interval((low * high) ** 0.5, low, high, 5, "bootstrap"), bound, (0, 0))


def difference(low: float, high: float, p: float, points: float) -> Difference:
    shift = st.interval(points, points - 0.1, points + 0.1, 5, "t")
    test = st.PairedTest(value=p, holm=p, smallest=2 / 2**5, n=5, difference=shift)
    return Difference(ratio(low, high), None, test)


@pytest.mark.parametrize(
    ("low", "high", "p", "points", "words", "sign"),
    [
        (0.30, 0.48, 0.02, 0.2, "at most half the steps", 1),
        (0.32, 0.52, 0.02, 0.2, "significantly faster", 1),  # the estimate is below one half, its interval is not
        (0.61, 0.88, 0.38, 0.2, "faster, not significant", 0),
        (0.34, 0.54, 0.062, 0.3, "faster, not significant", 0),
        (0.20, 0.30, 0.05, 0.3, "faster, not significant", 0),  # 0.05 is not below 0.05
        (0.80, 1.10, 0.02, 0.2, "significantly more success", 1),
        (0.80, 1.10, 0.30, 0.2, "no difference shown", 0),
        (0.60, 0.80, 0.02, -0.2, "steps and mean success contradict each other", 0),
        (1.20, 1.50, 0.02, 0.2, "steps and mean success contradict each other", 0),
        (0.90, 1.30, 0.02, -0.2, "significantly less success", -1),
        (1.20, 1.50, 0.31, -0.2, "slower, not significant", 0),
        (1.20, 1.50, 0.01, -0.2, "significantly slower", -1),
    ],
)
def test_interval_and_test_together(low: float, high: float, p: float, points: float, words: str, sign: int):
    found = difference(low, high, p, points).verdict
    assert (found.words, found.sign) == (words, sign)


def test_what_was_not_tested_is_not_significant():
    assert verdict(ratio(0.2, 0.3), None).words == "faster, not tested"
    assert verdict(None, None).words == "nothing can be said"
    assert verdict(None, 0.0).words == "no difference shown"
    assert verdict(None, -0.1).words == "significantly less success"  # nobody got there, and one did worse all along


def test_an_interval_that_censoring_may_have_moved_says_nothing_of_steps():
    words = [verdict(ratio(0.2, 0.4, bound), 0.1).words for bound in ("at most", "at least", "unknown")]
    assert words == ["at most half the steps", "significantly more success", "significantly more success"]


def test_five_seeds_far_apart_are_not_called_significant_anywhere():
    """What no interval hides and no test of five pairs can show: the table, the sentences and the headline agree."""
    trained = runs("ppo", 800, 5) + runs("bk-pref", 200, 5) + runs("bk-pref", 800, 5, control="shuffled", potential="s")
    (comparison,), found = judged(trained)
    row = next(row for row in comparison.rows if row.group.is_method)
    assert row.ratio is not None
    assert row.ratio.high < 0.5
    section = results_in(comparison, [])
    assert section.rows[1].verdict == "faster, not significant"
    assert [one.verdict for one in section.rows[1].versus] == ["faster, not significant"]
    assert text_table([section], 0.8)["rows"][1][-1] == "faster, not significant"
    told = " ".join(one.text for one in found)
    assert "bk-pref reached 80 % faster than plain PPO, but the test does not confirm it" in told
    assert not [one for one in found if one.tone == "for"]
    assert "significantly faster" not in told
    assert headline([comparison]) == "No gain over plain PPO is shown; the method was faster, not significantly."
    assert (
        "With 5 shared seeds and 2 tests (Holm) no p can fall below 0.12, so nothing can be called "
        "significant; with 7 seeds it could." in told
    )


def test_seven_seeds_are_enough_for_two_tests():
    trained = runs("ppo", 800, 7) + runs("bk-pref", 200, 7) + runs("bk-pref", 800, 7, control="shuffled", potential="s")
    (comparison,), found = judged(trained)
    assert not any("nothing can be called significant" in one.text for one in found)
    assert headline([comparison]) == "Background knowledge helped in the only case compared."
