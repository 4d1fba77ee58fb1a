"""Captioners: what a transition is said to be, and what that pays."""

from __future__ import annotations

import numpy as np
import pytest

from bkrl import envs
from bkrl.agents import captioner
from bkrl.agents.captioner import LearntCaptioner
from bkrl.data.views import Views
from bkrl.goals.book import GoalBook
from bkrl.goals.captions import NOTHING, NoisyCaptioner, TrueCaptioner
from bkrl.goals.match import Matcher
from bkrl.goals.source import Source
from bkrl.goals.suggesters import Oracle
from bkrl.goals.tracker import GoalTracker
from bkrl.learn.settings import PQNConfig
from bkrl.methods import TrainRsConfig
from tests.envs.test_crafter_typed import observation
from tests.goals.test_goals import NEW, SITUATIONS
from tests.stages.interrupted import the_same_when_killed

TREE = observation(["tree"])
DONE = {"action_success": np.ones(1, bool), "eval_success": np.ones(1, bool)}


def said(captioner, actions, success):
    nothing = np.zeros((len(actions), 1), np.uint8)
    return captioner(nothing, actions, nothing, {"action_success": success, "eval_success": ~success})


def test_the_truth_is_the_action_where_it_succeeded():
    actions, success = np.array([3, 7, 9]), np.array([True, False, True])
    np.testing.assert_array_equal(said(TrueCaptioner(), actions, success), [3, NOTHING, 9])
    np.testing.assert_array_equal(said(TrueCaptioner("eval"), actions, success), [NOTHING, 7, NOTHING])
    np.testing.assert_array_equal(said(TrueCaptioner("tried"), actions, success), actions)


@pytest.mark.parametrize(
    ("env", "deed"),
    [("Easier", "sleep"), ("Harder", "attack cow"), ("Harder", "eat cow"), ("Full", "sleep"), ("Full", "chop tree")],
)
def test_so_many_captions_are_true_and_the_others_are_spread_evenly(env, deed):
    """Of 260 actions, 120 are waiting, moving and sleeping: most errors named those, or were the truth by another name.

    "eat cow" and "attack cow" are one deed."""
    situations = envs.situations(f"Crafter-Typed-{env}")
    once = {name: "attack cow" if name == "eat cow" else name for name in situations.deeds}
    once["make crafting table"] = "place crafting table"
    noisy, acted = NoisyCaptioner(TrueCaptioner(), situations, 0.7, seed=1), situations.deeds.index(deed)
    found = np.stack([said(noisy, np.array([acted, acted]), np.array([True, False])) for _ in range(6000)])
    for column, true in zip(found.T, (once[deed], ""), strict=True):
        names = np.array(["" if number == NOTHING else once[situations.deeds[number]] for number in column])
        assert np.mean(names == true) == pytest.approx(0.7, abs=0.03)
        others, counts = np.unique(names[names != true], return_counts=True)
        assert set(others.tolist()) == {"", *map(once.get, situations.possible)} - {true}
        chi2 = ((counts - counts.mean()) ** 2 / counts.mean()).sum()
        assert chi2 < len(counts) + 4 * np.sqrt(2 * len(counts))


def test_noise_is_the_same_wherever_a_run_goes_on():
    whole, later = (
        NoisyCaptioner(TrueCaptioner(), SITUATIONS, 0.5, seed=1),
        NoisyCaptioner(TrueCaptioner(), SITUATIONS, 0.5, seed=1),
    )
    actions, success = np.full(64, 66), np.ones(64, bool)
    found = [said(whole, actions, success) for _ in range(5)]
    later.steps = 3
    np.testing.assert_array_equal(said(later, actions, success), found[3])
    assert (found[3] != found[4]).any()


class Says:
    """Always the same deed."""

    def __init__(self, deed: str) -> None:
        self.deed = SITUATIONS.deeds.index(deed) if deed else NOTHING

    def __call__(self, before, actions, after, infos):
        return np.full(len(actions), self.deed)


@pytest.mark.parametrize(("deed", "paid"), [("chop tree", 1), ("drink water", 0), ("", 0)])
def test_what_is_said_is_what_pays(deed, paid):
    tracker = GoalTracker(GoalBook(SITUATIONS, Oracle(SITUATIONS), Matcher(SITUATIONS)), 1, "once", Says(deed))
    tracker(Views(TREE[None]), NEW)
    tracker.happened(np.array([SITUATIONS.deeds.index("chop tree")]), DONE, TREE[None])
    assert tracker.paid[0] == paid


def test_goals_that_are_not_shown_pay_all_the_same():
    tracker = GoalTracker(GoalBook(SITUATIONS, Oracle(SITUATIONS), Matcher(SITUATIONS)), 1, shown=False)
    assert not tracker(Views(TREE[None]), NEW).any()
    tracker.happened(np.array([SITUATIONS.deeds.index("chop tree")]), DONE, TREE[None])
    assert tracker.paid[0] == 1


def test_quality_is_counted_where_it_is_learnt_and_not_in_evaluations():
    source = Source(
        "Crafter-Typed-Harder", GoalBook(SITUATIONS, Oracle(SITUATIONS), Matcher(SITUATIONS)), "once", "action"
    )
    for tracker, counted in ((source.to_learn(1), True), (source.of(1), False)):
        tracker(Views(TREE[None]), NEW)
        tracker.happened(np.array([SITUATIONS.deeds.index("chop tree")]), DONE, TREE[None])
        assert [bool(counts.any()) for counts in tracker.quality.values()] == [counted] * 2


def test_a_network_learns_to_tell_deeds_apart_and_is_tested_on_other_episodes(monkeypatch):
    monkeypatch.setattr(captioner, "TRAIN_STEPS", 12_000)
    monkeypatch.setattr(captioner, "TEST_STEPS", 4_000)
    monkeypatch.setattr(captioner, "BATCH", 128)
    learnt = LearntCaptioner("Crafter-Typed-Easier", seed=1)
    assert learnt.figures["accuracy"] > 0.9
    assert learnt.figures["balanced_accuracy"] > 0.35  # always the same answer: one in ten
    assert 5 <= learnt.figures["deeds_met"] < 27


def test_to_be_right_about_nothing_is_no_deed_told(monkeypatch):
    """What was no deed counted as one of those whose shares are averaged."""
    monkeypatch.setattr(captioner, "TRAIN_STEPS", 400)
    monkeypatch.setattr(captioner, "TEST_STEPS", 400)
    monkeypatch.setattr(LearntCaptioner, "_said", lambda self, rows: np.full(len(rows), NOTHING))
    figures = LearntCaptioner("Crafter-Typed-Easier", seed=1).figures
    assert figures["balanced_accuracy"] == 0 < figures["accuracy"]


def test_a_killed_run_with_captions_that_err_goes_on_to_the_same_bytes(tmp_path, monkeypatch):
    settings = TrainRsConfig(
        "ellm", out=tmp_path / "whole", steps=768, eval_every=256, eval_episodes=2, checkpoint_every=256,
        env="Crafter-Typed-Easier@length=60", captioner="noisy", caption_accuracy=0.6,
        pqn=PQNConfig(num_envs=8, num_steps=16, num_minibatches=2),
    )  # fmt: skip
    the_same_when_killed(settings, monkeypatch)
