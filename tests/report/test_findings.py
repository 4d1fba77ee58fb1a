"""Verdicts: what may be called faster, and what has to be said instead."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bkrl.core.errors import UsageError
from bkrl.report.comparison import Comparison, compare, origins_text
from bkrl.report.findings import Finding, findings, headline
from bkrl.report.groups import SUCCESS, Trained, group_runs, titled
from bkrl.report.model import Difference
from bkrl.report.pages.report import _glance
from bkrl.report.runs import _flat
from bkrl.stats import intervals as st
from bkrl.stats.crossings import StepsRatio

STEPS = np.arange(0.0, 1001.0, 50.0)


def run(alg: str, seed: int, reaches: float, env: str = "World", **more: Any) -> Trained:
    """A run whose success jumps to 1 at `reaches` steps (never, if beyond the end)."""
    reaches += 10 * (seed % 3)
    values = (reaches <= STEPS).astype(float)
    more.setdefault("key", f"{alg}-{env}-{seed}-{more.get('control', '')}{more.get('potential', '')}")
    more.setdefault("form", "pbrs" if alg.startswith("bk-") else "none")
    return Trained(env=env, alg=alg, seed=seed, settings={}, series={SUCCESS: (STEPS, values)}, **more)


def runs(alg: str, reaches: float, n: int = 10, **more: Any) -> list[Trained]:
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
    half = said(runs("ppo", 600) + runs("bk-code", 200), "for")
    assert "bk-code reached 80 % in at most half the steps of plain PPO: 0.37 of PPO’s steps" in half
    faster = said(runs("ppo", 600) + runs("bk-code", 400), "for")
    assert "bk-code reached 80 % significantly faster than plain PPO: 0.6" in faster
    slower = said(runs("ppo", 200) + runs("bk-code", 600), "against")
    assert "bk-code was significantly slower to reach 80 % than plain PPO" in slower
    assert "bk-code is not shown to differ from plain PPO" in said(runs("ppo", 400) + runs("bk-code", 400), "open")


def test_what_stands_beside_plain_ppo_is_held_against_it_and_not_taken_for_it():
    """DQN, which comes first in the alphabet, was what all ratios to PPO were of; PQN's ratio was 1."""
    (comparison,), found = judged(runs("dqn", 100) + runs("ppo", 600) + runs("pqn", 300) + runs("bk-code", 200))
    assert comparison.baseline is not None
    assert comparison.baseline.label == "ppo"
    assert [row.label for row in comparison.rows if row.baseline] == ["ppo"]
    ratios = {row.label: round(row.ratio.estimate, 1) for row in comparison.rows if row.ratio is not None}
    assert ratios == {"dqn": 0.2, "pqn": 0.5, "bk-code": 0.4}
    assert any("bk-code reached 80 % in at most half the steps of plain PPO: 0.37 of" in one.text for one in found)
    assert "no plain PPO" not in " ".join(one.text for one in found)
    alone = said(runs("pqn", 600) + runs("bk-code", 200), "caution")
    assert "There is no plain PPO here: pqn stands in its place, also where PPO is named." in alone


def test_an_interval_without_width_is_called_the_grid_of_the_evaluations():
    """All runs of a method cross at the same evaluation, those of the other too: the spread is not none."""
    (comparison,), found = judged(
        [replace(one, seed=i) for i, one in enumerate(same("ppo", 600) + same("bk-code", 200))]
    )
    row = comparison.rows[1]
    assert row.ratio is not None
    assert row.ratio.low == row.ratio.high == row.ratio.estimate
    assert str(row.ratio) == "0.33 (grid of 50 steps)"
    assert row.steps_interval.spread(str, row.grid) == " (grid of 50 steps)"
    assert any(
        "0.33 of PPO’s steps, no finer than the grid of 50 steps between evaluations" in one.text for one in found
    )
    (comparison,), _ = judged(runs("ppo", 600) + runs("bk-code", 200))
    assert "grid" not in str(comparison.rows[1].ratio)


def same(alg: str, reaches: float) -> list[Trained]:
    """Six runs that cross at the same evaluation, 50 steps after the one before."""
    return [replace(run(alg, 0, reaches), key=f"{alg}{i}") for i in range(6)]


def test_evaluations_far_apart_count_to_where_the_comparison_ends():
    """Evaluated at 0, 600 and 1200, and looked at up to 1000, where all others end."""
    rare = [
        replace(one, series={SUCCESS: (np.array([0.0, 600.0, 1200.0]), np.array([0.0, 0.6, 0.9]))})
        for one in runs("bk-code", 0)
    ]
    (comparison,), found = judged(runs("ppo", 200) + rare)
    row = comparison.rows[1]
    assert comparison.horizon == 1000
    assert row.final.estimate == pytest.approx(0.6)  # the last evaluation that was made by then
    assert row.average.estimate == pytest.approx((600 * 0.3 + 400 * 0.7) / 1000)  # the curve, cut at 1000
    assert "success at the end 60 % against 100 %" in " ".join(one.text for one in found)


def test_a_threshold_that_plain_ppo_reaches_untrained_says_nothing():
    (comparison,), found = judged(runs("ppo", -50) + runs("bk-code", 200))
    assert comparison.rows[1].ratio is None
    told = " ".join(one.text for one in found)
    assert "plain PPO was at 80 % before it was trained" in told
    assert "Neither" not in told


def test_nobody_gets_there():
    trained = runs("ppo", 9000) + runs("bk-pref", 9000)
    assert "bk-pref and plain PPO both never reached 80 %" in said(trained, "open")
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
    assert "3 of its runs never got there and 3 of PPO’s never got there" in told


def test_a_sentence_and_its_table_say_the_same_of_what_was_seen():
    trained = [*runs("bk-pref", 200, 9), run("bk-pref", 9, 9000), *runs("ppo", 900, 9), run("ppo", 9, 9000)]
    comparisons, _ = judged(trained)
    (row,) = [row for row in comparisons[0].rows if row.group.alg == "bk-pref"]
    assert row.against is not None
    assert row.against.verdict.words == "significantly more success"
    assert "bk-pref had significantly more success in training than plain PPO" in said(trained, "for")
    (comparison,), found = judged([one for one in trained if one.seed > 4])  # five seeds: too few for the test
    assert [row.against.verdict.words for row in comparison.rows if row.against] == ["faster as far as seen"]
    assert any("bk-pref was faster as far as seen than plain PPO" in one.text for one in found if one.tone == "open")


def test_envs_without_a_method_do_not_count_for_the_headline():
    trained = (
        runs("ppo", 600) + runs("bk-code", 200) + runs("ppo", 600, 2, env="Other") + runs("rnd", 200, 2, env="Other")
    )
    assert "hint" not in headline(judged(trained)[0])
    assert "with 2 seeds per method this is a hint" in headline(judged(trained[:2] + trained[10:12])[0])


@pytest.mark.parametrize(("others", "said"), [(0, "; the method was"), (1, "; 1 of 2 methods was")])
def test_a_headline_counts_in_grammar(others: int, said: str):
    trained = runs("ppo", 200) + runs("bk-code", 600) + runs("bk-goal", 200, 10 * others)
    assert headline(judged(trained)[0]) == f"No gain over plain PPO is shown{said} significantly worse."


def test_too_few_seeds_are_said_of_those_who_have_them():
    trained = runs("ppo", 600) + runs("bk-code", 200) + runs("rnd", 200, 2)
    assert "rnd: There are only 2 seeds" in said(trained, "caution")


def test_what_censoring_does_to_a_ratio_it_does_to_that_with_collection():
    base = [*runs("ppo", 900, 5), run("ppo", 5, 9000)]
    told = said(base + runs("bk-code", 200, collect_steps=500), "for")
    assert "of PPO’s never got there" in told
    assert "for this one task, it is at most 0.7" in told


def test_steps_and_mean_success_that_contradict_each_other_are_no_verdict():
    """There at once, and lost again: fewer steps than the control, and less success on the whole."""

    def lost(one: Trained) -> Trained:
        return replace(one, series={SUCCESS: (STEPS, np.where(STEPS == 50, 0.9, 0.01 * one.seed))})

    trained = runs("ppo", 950) + [lost(one) for one in runs("bk-pref", 0)] + runs("bk-pref", 300, control="zero")
    (comparison,), found = judged(trained)
    (one,) = next(row for row in comparison.rows if row.versus).versus
    assert one.difference.ratio is not None
    assert one.difference.ratio.side == 1
    assert one.difference.p is not None
    assert one.difference.p.difference.high < 0
    assert one.difference.verdict.words == "steps and mean success contradict each other"
    told = [one.text for one in found if one.tone == "against"]
    assert any("steps to 80 % and mean success in training contradict each other" in text for text in told)
    assert headline([comparison]).startswith("Where a method is better than plain PPO, it does not beat a control")


def test_the_headline_hints_at_no_gain_of_what_has_less_success_or_was_not_tested():
    """Each whose interval of steps lay below 1 was "faster, not significantly", whatever the test had said of it."""
    lost = [
        replace(one, series={SUCCESS: (STEPS, np.where(50 * (1 + one.seed % 2) == STEPS, 0.9, 0.001 * one.seed))})
        for one in runs("bk-pref", 0)
    ]
    for methods, words in (
        (lost, "steps and mean success contradict each other"),
        ([replace(one, seed=10 + one.seed) for one in runs("bk-code", 200)], "faster, not tested"),
    ):
        (comparison,), _ = judged(runs("ppo", 500) + methods)
        assert comparison.rows[1].verdict == words
        assert headline([comparison]) == "No gain over plain PPO is shown."
    hint = headline(judged(runs("ppo", 600, 5) + runs("bk-code", 200, 5))[0])
    assert hint == "No gain over plain PPO is shown; the method was faster, not significantly."


def test_without_plain_ppo_nothing_is_claimed():
    trained = runs("bk-code", 200)
    assert "There is no plain PPO run here" in said(trained, "caution")
    assert said(trained, "for") == ""
    assert headline(judged(trained)[0]).startswith("No shaped method is compared")


def test_a_control_that_gains_too_speaks_against():
    trained = runs("ppo", 600) + runs("bk-pref", 200) + runs("bk-pref", 250, control="shuffled")
    assert "The control bk-pref (shuffled) is better than plain PPO as well" in said(trained, "against")
    assert "No control potential" not in said(trained, "caution")
    assert "No control potential" in said(runs("ppo", 600) + runs("bk-pref", 200), "caution")


@pytest.mark.parametrize(("n", "word"), [(1, "only one seed"), (3, "only 3 seeds"), (5, "")])
def test_few_seeds(n: int, word: str):
    trained = runs("ppo", 600, n) + runs("bk-code", 200, n)
    assert ("only" in said(trained, "caution")) == bool(word)
    assert word in said(trained, "caution")
    assert ("a hint, not a result" in headline(judged(trained)[0])) == bool(word)


def test_what_holds_of_two_envs_is_said_once():
    trained = [one for env in ("A", "B") for one in runs("ppo", 600, 2, env=env) + runs("rnd", 200, 2, env=env)]
    seeds = [one for one in judged(trained)[1] if "only 2 seeds" in one.text]
    assert [one.envs for one in seeds] == [("A", "B")]


def test_several_draws_of_labels_are_pooled_and_paired_only_where_they_are_crossed_with_seeds():
    draws = [run("bk-pref", seed, 200, potential=name) for seed in range(3) for name in ("x", "y")]
    (comparison,), found = judged(runs("ppo", 600, 6) + draws)
    row = comparison.rows[1]
    assert row.n == 6
    assert row.ratio is not None
    assert row.against is not None
    assert row.against.p is not None
    assert row.against.p.n == 3  # three seeds, each with both draws
    assert row.split is not None
    assert (row.split.draws, row.split.n) == (2, 6)
    assert not any("draws of labels" in one.text for one in found)  # they do not differ: the table alone says so
    (comparison,), _ = judged(runs("ppo", 600, 6) + draws[:-1])
    assert comparison.rows[1].against is not None
    assert comparison.rows[1].against.p is None


def test_seeds_of_one_run_each_are_pairs_whatever_their_draws():
    """ "There are no shared seeds" was said where one of eight had another draw of labels."""
    mixed = [run("bk-pref", seed, 200 + 10 * seed, potential="x" if seed else "y") for seed in range(8)]
    (comparison,), _ = judged(runs("ppo", 600, 8) + mixed)
    assert comparison.rows[1].against is not None
    assert comparison.rows[1].against.p is not None
    assert comparison.rows[1].against.p.n == 8


def test_draws_that_differ_are_said():
    good = [run("bk-pref", seed, 200, potential="x") for seed in range(4)]
    bad = [run("bk-pref", seed, 700, potential="y") for seed in range(4)]
    (comparison,), found = judged(runs("ppo", 600, 4) + good + bad)
    split = comparison.rows[1].split
    assert split is not None
    assert split.share > 0.9
    assert any(one.tone == "caution" and "lies between draws" in one.text for one in found)


def test_datasets_that_differ_are_said_and_intervals_speak_of_another_one():
    good, bad = 200, 700

    def over(datasets: dict[str, int], **more: Any) -> list[Trained]:
        return [
            run("bk-pref", seed, reaches, dataset=name, potential=f"{name}{more}", **more)
            for name, reaches in datasets.items()
            for seed in range(5)
        ]

    mixed = over({"x": good, "y": good, "z": bad})
    (comparison,), found = judged(runs("ppo", 600) + mixed)
    row = comparison.rows[1]
    assert row.group.label == "bk-pref"
    assert (row.n, row.average.n, row.steps_interval.n) == (15, 3, 3)
    assert row.split is not None
    assert [part.name for part in row.split.parts] == ["datasets", "seeds"]
    assert row.ratio is not None
    assert row.ratio.side == 0  # over seeds alone it would be
    assert origins_text(row.group) == "3 datasets"
    [caution] = [one.text for one in found if "rests on 3 datasets" in one.text]
    assert "lies between datasets" in caution
    alone = [replace(one, dataset="x") for one in mixed]
    (comparison,), _ = judged(runs("ppo", 600) + alone)
    assert comparison.rows[1].ratio is not None
    assert comparison.rows[1].ratio.side == 1
    assert origins_text(comparison.rows[1].group) == "3 draws of labels"
    # A control on the same datasets: what a dataset does to both cancels.
    controls = over({"x": 2 * good, "y": 2 * good, "z": bad + good}, control="shuffled")
    (comparison,), _ = judged(runs("ppo", 600) + mixed + controls)
    (versus,) = comparison.rows[1].versus
    assert versus.difference.ratio is not None
    assert versus.difference.ratio.n == 3


def test_empty_advice_is_plain_ppo_and_no_method():
    empty = runs("bk-code", 600, form="advice", potential="c", empty=True)
    both = runs("bk-goal", 300, form="pbrs+advice", potential="g", empty=True)
    zero = runs("bk-pref", 600, form="advice", potential="z", control="zero", empty=True)
    (comparison,), found = judged(runs("ppo", 600) + empty + both + zero)
    rows = {row.group.label: row for row in comparison.rows}
    assert set(rows) == {"ppo", "bk-code (advice, empty)", "bk-goal (pbrs+advice, empty)", "bk-pref (advice, zero)"}
    cautions = " ".join(one.text for one in found if one.tone == "caution")
    assert "bk-code (advice, empty) is plain PPO under another name" in cautions
    assert "bk-goal (pbrs+advice, empty) is exact shaping alone under another name" in cautions
    assert "zero) is" not in cautions
    assert not rows["bk-code (advice, empty)"].group.is_method
    assert not any("bk-code" in one.text for one in found if one.tone != "caution")
    assert headline([comparison]).startswith("Background knowledge helped in the only case compared")


def test_a_gain_that_constant_advice_has_too_is_said_to_be_that():
    trained = runs("ppo", 600) + runs("bk-pref", 200, form="advice", potential="p")
    trained += runs("bk-pref", 200, form="advice", control="constant", potential="c")
    (comparison,), found = judged(trained)
    rows = {row.group.label: row for row in comparison.rows}
    assert [one.control for one in rows["bk-pref (advice)"].versus] == ["bk-pref (advice, constant)"]
    against = " ".join(one.text for one in found if one.tone == "against")
    assert "due to advice that is the same in every state, and not to what is known of states" in against


def test_a_method_is_held_against_its_own_controls():
    shuffled = runs("bk-pref", 600, control="shuffled", potential="s")
    trained = runs("ppo", 600) + runs("bk-pref", 200, potential="p") + runs("bk-code", 200, potential="c") + shuffled
    (comparison,), found = judged(trained)
    rows = {row.group.label: row for row in comparison.rows}
    assert [one.control for one in rows["bk-pref"].versus] == ["bk-pref (shuffled)"]
    assert rows["bk-code"].versus == ()  # another method's labels, shuffled, are no control of its own
    texts = [one.text for one in found if one.tone == "for"]
    assert "bk-pref reached 80 % in at most half the steps of its control bk-pref (shuffled): 0.3" in " ".join(texts)
    zero = runs("bk-pref", 200, control="zero", potential="z")
    (comparison,), found = judged([*trained, *zero])
    rows = {row.group.label: row for row in comparison.rows}
    assert [(one.control, one.borrowed) for one in rows["bk-code"].versus] == [("bk-pref (zero)", True)]
    against = [one.text for one in found if one.tone == "against"]
    assert found[0].tone == "against"  # a control that does as well comes before everything else
    assert any(text.startswith("bk-code is not shown to differ from its control bk-pref (zero)") for text in against)
    assert headline([comparison]) == "Where a method is better than plain PPO, it does not beat a control."


def test_labels_of_another_annotator_dealt_out_or_averaged_are_no_control():
    trained = runs("ppo", 600)
    for who in ("qwen", "rules"):
        trained += runs("bk-pref", 200, annotator=who, potential=who)
    for control, who in (("constant", "qwen"), ("shuffled", "rules"), ("random", "rules"), ("words labels", "words")):
        trained += runs("bk-pref", 600, annotator=who, control=control, potential=f"{control} {who}")
    (comparison,), _ = judged(trained)
    found = {row.group.label: [one.control for one in row.versus] for row in comparison.rows if row.versus}
    for_all = ["bk-pref (random, rules)", "bk-pref (words labels)"]
    assert found == {
        "bk-pref (qwen)": ["bk-pref (constant, qwen)", *for_all],
        "bk-pref (rules)": [for_all[0], "bk-pref (shuffled, rules)", for_all[1]],
    }


def test_a_setting_that_has_no_effect_on_most_runs_does_not_name_the_others():
    """Equal labels were "bk-code (equal labels, label.calibrate=none)" beside open questions."""
    rest = {"label.calibrate": "–"}
    trained = [replace(one, settings=rest) for one in runs("bk-code", 200) + runs("bk-code", 300, control="shuffled")]
    trained += [
        replace(one, settings={"label.calibrate": calibrate})
        for calibrate in ("none", "empty")
        for one in runs("bk-code", 400, n=10 if calibrate == "none" else 2, control="equal labels", potential=calibrate)
    ]
    assert {group.label for group in group_runs(trained)[0]} == {
        "bk-code",
        "bk-code (shuffled)",
        "bk-code (equal labels)",
        "bk-code (equal labels, label.calibrate=empty)",
    }


def test_control_tests_are_adjusted_together():
    trained = runs("ppo", 600) + runs("bk-pref", 200, potential="p")
    for control in ("shuffled", "zero", "random"):
        trained += runs("bk-pref", 600, control=control, potential=control)
    (comparison,), _ = judged(trained)
    (row,) = [row for row in comparison.rows if row.group.label == "bk-pref"]
    raw = 2 / 2**10
    assert [one.difference.p and one.difference.p.value for one in row.versus] == [raw] * 3
    assert [one.difference.p.holm for one in row.versus] == pytest.approx([3 * raw] * 3)


def test_a_form_without_guarantee_is_said_wherever_its_result_is():
    none = {"form": "additive", "guarantee": "none: what is optimal may change"}
    (comparison,), found = judged(runs("ppo", 600) + runs("bk-pref", 200, **none))
    row = comparison.rows[1]
    assert row.group.label == "bk-pref (additive)"
    assert row.group.legend == "bk-pref (additive) · no guarantee"
    assert any(one.tone == "caution" and "has no guarantee" in one.text for one in found)
    assert "a form of shaping that guarantees nothing" in headline([comparison])


def test_one_run_without_a_guarantee_leaves_its_method_none():
    """What the run of the lowest seed said was said of all, though others ended while they were still shaped."""
    kept, none = ({"form": "decay", "guarantee": one} for one in ("kept once the weight is 0", "none: 40 % is left"))
    long, short = runs("bk-pref", 200, n=5, **kept), runs("bk-pref", 200, **none)[5:]
    (comparison,), found = judged(runs("ppo", 600) + long + short)
    row = comparison.rows[1]
    assert (row.n, row.unguarded, row.guarantee) == (10, True, "none: 40 % is left")
    assert any("has no guarantee (none: 40 % is left)" in one.text for one in found)


def test_forms_of_one_method_are_told_apart_and_have_controls_of_their_own():
    trained = runs("ppo", 600)
    for form in ("pbrs", "advice"):
        trained += runs("bk-pref", 200, form=form, potential=form)
        trained += runs("bk-pref", 600, form=form, control="zero", potential=f"{form}0")
    (comparison,), _ = judged(trained)
    rows = {row.group.label: row for row in comparison.rows}
    assert set(rows) == {"ppo", "bk-pref", "bk-pref (advice)", "bk-pref (zero)", "bk-pref (advice, zero)"}
    assert [one.control for one in rows["bk-pref (advice)"].versus] == ["bk-pref (advice, zero)"]
    assert rows["bk-pref"].group.legend == "bk-pref · pbrs"


def test_parts_of_a_potential_are_lines_of_their_own_and_the_whole_needs_no_mention():
    made = [replace(one, settings={"rm.part": "state"}) for one in runs("bk-pref", 50_000)]
    made += [replace(one, settings={"rm.part": "whole"}, key=f"w{one.key}") for one in runs("bk-pref", 60_000, n=3)]
    made += [replace(one, seed=one.seed + 20, key=f"old{one.key}") for one in runs("bk-pref", 60_000, n=2)]
    groups, _ = group_runs(made)  # those of before there were parts are pooled with the whole
    assert {group.label: len(group.runs) for group in groups} == {"bk-pref": 5, "bk-pref (state)": 10}


def test_missing_seeds_are_said():
    trained = [*runs("ppo", 600), *runs("bk-pref", 200)]
    assert "Not all methods have the same seeds" not in said(trained, "caution")
    assert "missing: bk-pref (seed 9)" in said(trained[:-1], "caution")


def test_other_settings_of_ppo_are_said():
    trained = runs("ppo", 600) + [replace(one, settings={"ppo.learning_rate": "0.1"}) for one in runs("bk-pref", 200)]
    trained = [replace(one, settings={"ppo.learning_rate": "0.001"}) if one.alg == "ppo" else one for one in trained]
    assert "bk-pref differs from plain PPO in ppo.learning_rate" in said(trained, "caution")


def test_a_setting_that_most_leave_at_its_default_is_said():
    """Runs of before there was the setting have it at its default too: they are pooled with those that record it."""
    old = {"alg": "ppo", "view": None, "seed": 3, "int_coef": 0.1, "advice_coef": 6.0}  # recorded for all methods
    found = _flat(old, "train-rs", "")
    assert found == _flat({"alg": "ppo", "seed": 4, "threads": 2, "ppo": {"gamma": 0.99}}, "train-rs", "")
    assert (found["network"], found["ppo.gamma"], "view" in found, "seed" in found) == ("compact", "0.99", False, False)
    drawn = [replace(one, settings={"view": "image"}) for one in runs("bk-pref", 200)]
    assert "differs from plain PPO in view" in said(runs("ppo", 600) + drawn, "caution")
    plain = [replace(one, settings={"view": "image"}) for one in runs("ppo", 600)[:4]] + runs("ppo", 600)[4:6]
    assert [group.label for group in group_runs(plain)[0]] == ["ppo", "ppo (view=image)"]


def test_annotators_are_told_apart():
    trained = runs("bk-code", 200, annotator="rules") + runs("bk-code", 300, annotator="openai:m", potential="o")
    groups, _ = group_runs(trained)
    assert [group.label for group in groups] == ["bk-code (openai:m)", "bk-code (rules)"]
    for alone, label in (("rules", "bk-code"), ("qwen", "bk-code (qwen)")):
        assert [group.label for group in group_runs(runs("bk-code", 200, annotator=alone))[0]] == [label]


def test_a_ratio_that_censoring_hides_is_called_what_was_seen_of_it():
    def word(low: float, high: float) -> str:
        ratio = StepsRatio.of(st.interval((low + high) / 2, low, high, 6, "bootstrap"), "unknown", (2, 1))
        return Difference(ratio=ratio).verdict.words

    assert word(1.2, 1.5) == "slower as far as seen"
    assert word(0.6, 0.9) == "faster as far as seen"
    assert word(0.9, 1.2) == "no difference shown"


@pytest.mark.parametrize("control", ["oracle", "oracle-state"])
def test_an_oracle_is_shown_but_nothing_has_to_beat_it_and_it_speaks_against_nothing(control):
    trained = runs("ppo", 600) + runs("bk-code", 400) + runs("bk-code", 100, control=control)
    comparisons, found = judged(trained)
    rows = {row.group.control: row for row in comparisons[0].rows if row.group.alg == "bk-code"}
    assert rows[control].group.legend.endswith("not for claims")
    assert rows[control].ratio.side == 1
    assert rows["none"].versus == ()
    assert not [one for one in found if "due to knowledge" in one.text or "its control" in one.text]
    assert any("No control potential" in one.text for one in found)


def test_a_potential_that_may_mislead_is_said_of_its_method_alone():
    why = ("it puts ends in success above other windows in 27 % of cases, where chance is 50 %",)
    bad = [replace(one, doubts=why, potential="p") for one in runs("bk-goal", 400)]
    (comparison,), found = judged(runs("ppo", 600) + runs("bk-pref", 300) + bad)
    told = [one.text for one in found if "may mislead" in one.text]
    assert told == [f"bk-goal: its potential may mislead: {why[0]}."]
    two = [*bad, *(replace(one, potential="q") for one in runs("bk-goal", 400))]
    (comparison,), _ = judged(runs("ppo", 600) + two)
    (doubt,) = [row.group.doubt for row in comparison.rows if row.group.doubt]
    assert doubt.startswith("bk-goal: 1 of its 2 potentials may mislead: it puts ends")


def test_a_setting_at_its_default_is_not_named_however_many_runs_have_another():
    """An agent told the truth is `ellm`; one whose captions err says so, though most do."""
    said = {"true": "true", "often": "noisy", "seldom": "noisy"}
    trained = [
        replace(run("ellm", seed, 200, form="goals"), settings={"captioner": said[who], "caption_accuracy": accuracy})
        for seed in range(2)
        for who, accuracy in (("true", "0.9"), ("often", "0.9"), ("seldom", "0.5"))
    ]
    groups, _ = group_runs(trained)
    assert {group.label for group in groups} == {
        "ellm (goals)",
        "ellm (goals, captioner=noisy)",
        "ellm (goals, caption_accuracy=0.5, captioner=noisy)",
    }
    wrong = [one for one in trained if one.settings["captioner"] == "noisy"]
    assert {group.label for group in group_runs(wrong)[0]} == {"ellm (goals)", "ellm (goals, caption_accuracy=0.5)"}
    learnt = [replace(one, settings=dict(one.settings, captioner="learnt")) for one in trained[:1]]
    assert {group.label for group in group_runs(wrong[:1] + learnt)[0]} == {
        "ellm (goals, captioner=noisy)",
        "ellm (goals, captioner=learnt)",
    }


def test_a_title_is_what_tables_sentences_and_legends_call_a_method_and_changes_no_number():
    trained = runs("ppo", 600) + runs("bk-goal", 200, control="shuffled", potential="s")
    trained = [replace(one, key=f"logs/{one.alg}-entry-s{i}") for i, one in enumerate(trained)]
    groups, _ = group_runs(trained)
    named, notes = titled(groups, ["bk-goal-entry=goals drawn at random", "bk-none=x"])
    assert notes == ["No method here is named 'bk-none', so its title is not used."]
    assert titled(groups, ["bk-goal (shuffled)=goals drawn at random"])[0] == named
    before, after = (compare("World", given, 0.8) for given in (groups, named))
    rows = [one.rows[1] for one in (before, after)]
    assert [row.label for row in rows] == ["bk-goal (shuffled)", "goals drawn at random"]
    assert replace(rows[1], label=rows[0].label) == rows[0]
    assert after.rows[1].group.legend == "goals drawn at random"
    assert "The control goals drawn at random is better than plain PPO" in findings([after], 0.8, False, [])[0].text
    twice, notes = titled(groups, ["ppo-entry=same", "bk-goal-entry=same"])
    assert ([group.name for group in twice], len(notes)) == (["ppo", "bk-goal (shuffled)"], 1)
    for given, name in ((" ppo-entry = λ = 0.9 ", "λ = 0.9"), ("ppo=(a) = (b)", "(a) = (b)")):
        assert [one.name for one in titled(groups, [given])[0]] == [name, "bk-goal (shuffled)"]
    other = [replace(one, label="ppo (a=1, b=2)") for one in groups[:1]]
    assert titled(other, ["ppo (a=1, b=2)=c = 3"])[0][0].name == "c = 3"
    for given in ("ppo", "=x", " = x", "ppo= "):
        with pytest.raises(UsageError, match=f"NAME=TITLE, not '{given}'"):
            titled(groups, [given])


def test_a_methods_verdicts_of_several_envs_stand_in_its_own_row():
    """A label leaves out what all runs in an env share, so two methods with titles were one row, or one two rows."""

    def made(env, *rows):
        groups = [SimpleNamespace(label=label, name=title, legend=title, is_control=False) for label, title in rows]
        return SimpleNamespace(env=env, rows=[SimpleNamespace(group=g, baseline=False, against=None) for g in groups])

    alone = made("A", ("bk-code", "weak")), made("B", ("bk-code", "strong"))
    assert [line["legend"] for line in _glance(alone)] == ["strong", "weak"]
    both = made("A", ("bk-code", "weak")), made("B", ("bk-code, 0.5", "weak"), ("bk-code, 2", "strong"))
    assert [line["legend"] for line in _glance(both)] == ["strong", "weak"]
