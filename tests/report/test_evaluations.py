"""Frozen policies on the page: a policy is one observation, however often it was evaluated."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bkrl.report.evaluations import Played, evaluated
from bkrl.stats.intervals import t_interval


def row(policy: str, success: float, mode: str = "sampled") -> Played:
    found: Any = {"env": "World", "alg": "ppo", "mode": mode, "elsewhere": "", "success": success}
    return Played(f"eval-{policy}", policy, found)


def test_a_policy_that_was_evaluated_again_counts_once():
    (shown,) = evaluated([row("a", 0.2), row("a", 0.4), row("b", 0.9), row("a", 0.5, "greedy")])
    assert shown["n"] == 2
    assert shown["sampled"].n == 2
    assert shown["sampled"].estimate == pytest.approx((0.3 + 0.9) / 2)
    assert shown["greedy"].estimate == pytest.approx(0.5)


def test_policies_of_several_datasets_say_what_another_dataset_would_give():
    """Their interval was one over all runs, as if those of a dataset had nothing in common."""
    rates = np.array([[0.1, 0.12, 0.11], [0.5, 0.52, 0.51], [0.9, 0.92, 0.91]])
    played = [
        replace(row(f"{dataset}-{seed}", float(rate)), origin=(f"d{dataset}", f"p{dataset}"))
        for dataset, own in enumerate(rates)
        for seed, rate in enumerate(own)
    ]
    (shown,) = evaluated(played)
    assert shown["n"] == 9
    expected = t_interval(rates.mean(1)).clipped()
    assert (shown["sampled"].n, shown["sampled"].low, shown["sampled"].high) == (3, expected.low, expected.high)
