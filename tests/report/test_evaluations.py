"""Frozen policies on the page: a policy is one observation, however often it was evaluated."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from bkrl.report.evaluations import Played, evaluated, evaluations
from bkrl.report.runs import training_runs
from bkrl.runs.provenance import Chain, Node
from bkrl.runs.record import Run
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


def test_a_share_that_is_no_success_is_called_what_it_is():
    """Crafter's score stood under "success"."""
    one = {"env": "Crafter-Text-Reward", "condition": "score", "mode": "sampled", "success": 0.1}
    nodes = [
        Node("a", "evaluate", cast(Run, SimpleNamespace(facts={"conditions": [one], **measure})), "")
        for measure in ({}, {"measure": "success"}, {"measure": "score"})
    ]
    assert [played.row["env"] for played in evaluations(Chain(), nodes, {}, [])] == [
        "Crafter-Text-Reward: score",
        "Crafter-Text-Reward: score",
        "Crafter-Text-Reward: score (score, not success)",
    ]


def test_a_run_without_the_measure_at_its_end_does_not_cut_the_others_short():
    """The last evaluation that had it was taken for the end of training, for all runs of the env."""
    share = "eval/path_efficiency"
    rows = [{"step": step, "eval/success_rate": 0.0, share: 0.1} for step in (0, 50, 100)]
    metrics = {"whole": rows, "gap": [rows[0], {"step": 50, "eval/success_rate": 0.0}, rows[2]], "cut": [*rows[:2]]}
    metrics["cut"].append({"step": 100, "eval/success_rate": 0.0})
    nodes = [
        Node(key, "train-rs", cast(Run, SimpleNamespace(metrics=partial(list, found), facts={}, manifest={})), key)
        for key, found in metrics.items()
    ]
    found, problems = training_runs(Chain(), nodes, "path_efficiency")
    assert [run.key for run in found] == ["whole", "gap"]
    assert problems == ["cut has no path_efficiency in its last evaluation and is left out of every number here."]


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
