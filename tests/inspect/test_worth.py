"""What a potential is worth: the truth scores 1, its opposite -1, and what cannot be computed is said."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import rankdata

from bkrl.data.windows import Reads, Windows
from bkrl.envs import toy
from bkrl.envs.babyai.constants import ACTION_NAMES
from bkrl.inspect import worth
from bkrl.inspect.worth import ceiling, measure
from bkrl.potentials.protocol import Artefact, Raw, Scale, Scaled
from bkrl.stats.ranks import rank_correlation


class Fixed:
    """Φ of the current view alone."""

    def __init__(self, function, horizon: int = 0) -> None:
        self.function, self.reads = function, Reads(horizon)

    def __call__(self, windows: Windows) -> np.ndarray:
        return np.asarray(self.function(windows.observations[:, -1]), np.float32)


def nearness(views: np.ndarray) -> np.ndarray:
    """BabyAI: minus the distance of the nearest key, ball or box in view."""
    x, y = np.meshgrid(np.arange(7), np.arange(7), indexing="ij")
    away = np.abs(x - 3) + 6 - y
    return -np.where(np.isin(views[..., 0], (5, 6, 7)), away, 20).min(axis=(1, 2))


def test_the_true_value_of_a_toy_env_scores_one_and_its_opposite_minus_one():
    values = toy.optimal_values(toy.table("Toy-Grid"), worth.GAMMA).max(1)
    for sign in (1, -1):
        known = sign * values
        found = measure(Fixed(lambda views, known=known: known[views[:, 0]]), "toy")["small"]
        row = next(row for row in found["tasks"] if row["task"] == "Toy-Grid")
        assert row["states_rho"]["rho"] == pytest.approx(sign, abs=1e-3)
        assert row["ceiling"] == pytest.approx(1)


def test_a_constant_potential_has_no_rank_correlation():
    found = measure(Fixed(lambda views: np.zeros(len(views))), "toy")["small"]
    assert all(row["states_rho"]["rho"] is None for row in found["tasks"])
    assert found["mean_states_rho"] is None


def test_a_task_in_which_a_potential_is_constant_counts_as_zero_and_is_named():
    values = toy.optimal_values(toy.table("Toy-Grid"), worth.GAMMA).max(1)

    def known_in_the_grid(views):  # the tables differ in how many states are looked at
        return values[views[:, 0]] if len(views) == grid else np.zeros(len(views))

    everywhere = measure(Fixed(lambda views: views[:, 0].astype(float)), "toy")["small"]
    grid = next(row["states"] for row in everywhere["tasks"] if row["task"] == "Toy-Grid")
    assert [row["states"] for row in everywhere["tasks"]].count(grid) == 1
    assert everywhere["constant_states"] == everywhere["constant_play"] == []
    found = measure(Fixed(known_in_the_grid), "toy")["small"]
    others = [row["task"] for row in found["tasks"] if row["task"] != "Toy-Grid"]
    assert found["constant_states"] == others
    assert found["mean_states_rho"] == pytest.approx(1 / (1 + len(others)), abs=1e-3)


def test_where_nothing_can_be_ranked_nobody_is_charged_for_it():
    one = [np.array([1.0, 2.0], np.float32)]
    same = [np.zeros(2)]
    assert worth._correlation(one, same) == {"rho": None, "low": None, "high": None, "constant": False}
    assert worth._mean([worth._correlation(one, same), worth._correlation(one, one)]) == pytest.approx(1)
    constant = worth._correlation([np.zeros(2, np.float32)], one)
    assert worth._mean([constant, worth._correlation(one, one)]) == pytest.approx(0.5)


def test_nothing_is_faked_for_crafter():
    found = measure(Fixed(lambda views: np.zeros(len(views))), "crafter")
    assert found["small"] is found["paper"] is None
    assert found["note"].startswith("not computed for Crafter")


@pytest.mark.parametrize("turned", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_nearness_to_things_is_knowledge_of_babyai(monkeypatch, turned):
    monkeypatch.setattr(worth, "PAPER", ("BabyAI-Text-PickUp-RedBall-S20",))
    monkeypatch.setattr(worth, "SHARED", "BabyAI-Text-PickUp-RedBall-S20")
    found = measure(Fixed(nearness), "babyai", layouts=2)
    opposite = measure(Fixed(lambda views: -nearness(views)), "babyai", layouts=2) if turned else None
    assert found["small"]["mean_states_rho"] > 0.15
    for part in ("small", "paper"):
        for figure in ("mean_states_rho", "mean_play_rho") if opposite else ():
            assert found[part][figure] == pytest.approx(-opposite[part][figure])
        for row in found[part]["tasks"]:
            assert abs(row["states_rho"]["rho"]) <= row["ceiling"] + 0.02 <= 1.02
    # each has two objects to go to, which counted as two layouts and were drawn as such for the intervals
    assert [row["layouts"] for row in found["small"]["tasks"]] == [2, 2]
    # a task that is not known is likelier to be done where things are near
    assert found["small"]["any_task"]["states_rho"]["rho"] > found["small"]["mean_states_rho"]
    assert [row["task"] for row in found["paper"]["tasks"]] == ["PickUp-RedBall-S20"]


class Near(Raw):
    """Nearness to things, of the current view alone."""

    reads = Reads(1)

    def __call__(self, windows: Windows) -> np.ndarray:
        return nearness(windows.observations[:, -1]).astype(float)


@pytest.mark.parametrize(("actions", "tasks"), [(3, 1), (6, 2)])
def test_a_potential_of_fewer_actions_is_asked_about_those_alone(monkeypatch, actions, tasks):
    """Levels were solved with all seven, and the report ended with an action that the potential does not know."""
    monkeypatch.setattr(worth, "PAPER", ("BabyAI-Text-PickUp-RedBall-S20",))
    env = "MiniGrid-Empty-5x5-v0"
    artefact = Artefact("code", 1, env, "babyai", (7, 7, 3), ACTION_NAMES[:actions], Scale(-20.0, 0.0))
    found = measure(Scaled(Near(), artefact), "babyai", layouts=1)
    assert [row["task"] for row in found["small"]["tasks"]] == ["go to", "pick up"][:tasks]
    assert [row["task"] for row in found["paper"]["tasks"]] == ["PickUp-RedBall-S20"][: tasks - 1]
    assert found["small"]["mean_play_rho"] is not None


def test_the_ceiling_is_the_mean_rank_of_each_view():
    views = np.array([[0], [0], [1], [1]], np.uint8)
    assert ceiling(views, np.array([1.0, 2.0, 3.0, 4.0])) == pytest.approx(2 / np.sqrt(5))
    assert ceiling(views, np.array([1.0, 2.0, 1.0, 2.0])) == 0.0
    assert ceiling(np.arange(4, dtype=np.uint8)[:, None], np.array([3.0, 1.0, 4.0, 2.0])) == pytest.approx(1)


def test_no_function_of_the_view_ranks_better_than_the_ceiling():
    rng = np.random.default_rng(0)
    for _ in range(200):
        views = rng.integers(0, 6, (40, 1)).astype(np.uint8)
        truth = views[:, 0] + 3.0 * rng.standard_normal(40)
        best = ceiling(views, truth)
        means = np.array([rankdata(truth)[views[:, 0] == view].mean() for view in range(6)])
        for levels in range(2, 7):  # views whose mean ranks are nearly equal are one
            cut = np.digitize(means, np.linspace(means.min(), means.max(), levels))
            assert rank_correlation(cut[views[:, 0]], truth) <= best + 1e-9


def test_of_a_potential_that_reads_missions_nothing_is_computed_and_that_is_said():
    told = Fixed(nearness)
    told.reads = Reads(0, ("mission",))
    assert measure(told, "babyai") == {"small": None, "paper": None, "note": worth.MISSIONS}
