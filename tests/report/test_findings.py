"""Verdicts: what may be called faster, and what has to be said instead."""

from __future__ import annotations

import numpy as np
import pytest

from bkrl.report.comparison import SUCCESS, Comparison, Trained, compare, group_runs
from bkrl.report.findings import Finding, findings, headline

STEPS = np.arange(0.0, 1001.0, 50.0)


def run(alg: str, seed: int, reaches: float, env: str = "World", **more: str) -> Trained:
    """A run whose success jumps to 1 at `reaches` steps (never, if beyond the end)."""
    reaches += 10 * (seed % 3)
    values = (reaches <= STEPS).astype(float)
    more.setdefault("key", f"{alg}-{env}-{seed}-{more.get('control', '')}{more.get('potential', '')}")
    return Trained(env=env, alg=alg, seed=seed, settings={}, series={SUCCESS: (STEPS, values)}, **more)


def runs(alg: str, reaches: float, n: int = 6, **more: str) -> list[Trained]:
    return [run(alg, seed, reaches, **more) for seed in range(n)]


def judged(trained: list[Trained]) -> tuple[list[Comparison], list[Finding]]:
    groups, _ = group_runs(trained)
    comparisons = [
        compare(env, [group for group in groups if group.env == env], 0.8)
        for env in dict.fromkeys(group.env for group in groups)
    ]
    return comparisons, findings(comparisons, 0.8, False, [])


def said(trained: list[Trained], tone: str) -> str:
    return " ".join(one.text for one in judged(trained)[1] if one.tone == tone)


def test_faster_and_slower():
    assert "bk-code reached 80 % faster than plain PPO" in said(runs("ppo", 600) + runs("bk-code", 200), "for")
    assert "bk-code was slower than plain PPO" in said(runs("ppo", 200) + runs("bk-code", 600), "against")
    assert "No difference between bk-code and plain PPO" in said(runs("ppo", 400) + runs("bk-code", 400), "open")


def test_nobody_gets_there():
    trained = runs("ppo", 9000) + runs("bk-pref", 9000)
    assert "Neither bk-pref nor plain PPO reached 80 %" in said(trained, "open")
    comparisons, _ = judged(trained)
    assert comparisons[0].rows[1].ratio is None
    assert headline(comparisons) == "No gain over plain PPO is shown."


def test_a_method_that_never_gets_there_is_never_called_faster():
    trained = runs("ppo", 900) + runs("bk-goal", 9000)
    told = said(trained, "against")
    assert "bk-goal" in told
    assert "never" in told or "slower" in told
    assert said(trained, "for") == ""


def test_censoring_on_both_sides_leaves_the_ratio_unknown():
    half = [*runs("bk-pref", 100, 3), *(run("bk-pref", seed, 9000) for seed in range(3, 6))]
    base = [*runs("ppo", 900, 3), *(run("ppo", seed, 9000) for seed in range(3, 6))]
    told = said(half + base, "open")
    assert "the ratio of steps is not known" in told
    assert "3 of its runs never got there and 3 of PPO's never got there" in told


def test_without_plain_ppo_nothing_is_claimed():
    trained = runs("bk-code", 200)
    assert "There is no plain PPO run here" in said(trained, "caution")
    assert said(trained, "for") == ""
    assert headline(judged(trained)[0]).startswith("Nothing is compared here")


def test_a_control_that_gains_too_speaks_against():
    trained = runs("ppo", 600) + runs("bk-pref", 200) + runs("bk-pref", 250, control="shuffled")
    assert "The control bk-pref (shuffled) is faster than plain PPO as well" in said(trained, "against")
    assert "No control potential" not in said(trained, "caution")
    assert "No control potential" in said(runs("ppo", 600) + runs("bk-pref", 200), "caution")


@pytest.mark.parametrize(("n", "word"), [(1, "only one seed"), (3, "only 3 seeds"), (5, "")])
def test_few_seeds(n: int, word: str):
    trained = runs("ppo", 600, n) + runs("bk-code", 200, n)
    assert ("seed" in said(trained, "caution")) == bool(word)
    assert word in said(trained, "caution")
    assert ("a hint, not a result" in headline(judged(trained)[0])) == bool(word)


def test_what_holds_of_two_worlds_is_said_once():
    trained = [one for env in ("A", "B") for one in runs("ppo", 600, 2, env=env) + runs("rnd", 200, 2, env=env)]
    seeds = [one for one in judged(trained)[1] if "only 2 seeds" in one.text]
    assert [one.worlds for one in seeds] == [("A", "B")]


def test_several_draws_of_labels_are_pooled_but_not_paired():
    draws = [run("bk-pref", seed, 200, potential=name) for seed in range(3) for name in ("x", "y")]
    (comparison,), _ = judged(runs("ppo", 600, 6) + draws)
    row = comparison.rows[1]
    assert row.n == 6
    assert row.paired is None
    assert row.ratio is not None


def test_annotators_are_told_apart():
    trained = runs("bk-code", 200, annotator="rules") + runs("bk-code", 300, annotator="openai:m", potential="o")
    groups, _ = group_runs(trained)
    assert [group.label for group in groups] == ["bk-code (openai:m)", "bk-code (rules)"]
