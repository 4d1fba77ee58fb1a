"""Crafter's score against its definition."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bkrl.stats.scores import geometric_score, score_interval


def test_the_score_by_its_definition():
    rates = np.array([1.0, 0.0, 0.25])
    by_hand = math.exp((math.log(101) + math.log(1) + math.log(26)) / 3) - 1
    assert geometric_score(rates) == pytest.approx(by_hand / 100)
    assert geometric_score(np.array([1.0, 0.0])) == pytest.approx((math.sqrt(101) - 1) / 100)
    assert geometric_score(np.zeros(22)) == 0
    assert geometric_score(np.ones(22)) == pytest.approx(1)


def test_its_interval_holds_the_score_of_many_more_episodes():
    rng = np.random.default_rng(1)
    rates = rng.random(22)
    inside = 0
    for trial in range(40):
        found = score_interval(rng.random((200, 22)) < rates, trial)
        inside += found.low <= geometric_score(rates) <= found.high
    assert inside >= 30
    assert not score_interval(np.ones((1, 22), bool)).known
