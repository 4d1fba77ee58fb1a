"""Frozen policies on the page: a policy is one observation, however often it was evaluated."""

from __future__ import annotations

from typing import Any

import pytest

from bkrl.report.evaluations import Played, evaluated


def row(policy: str, success: float, mode: str = "sampled") -> Played:
    found: Any = {"env": "World", "alg": "ppo", "mode": mode, "elsewhere": "", "success": success}
    return Played(f"eval-{policy}", policy, found)


def test_a_policy_that_was_evaluated_again_counts_once():
    (shown,) = evaluated([row("a", 0.2), row("a", 0.4), row("b", 0.9), row("a", 0.5, "greedy")])
    assert shown["n"] == 2
    assert shown["sampled"].n == 2
    assert shown["sampled"].estimate == pytest.approx((0.3 + 0.9) / 2)
    assert shown["greedy"].estimate == pytest.approx(0.5)
