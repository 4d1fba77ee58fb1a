"""The distance to success, against every action tried on the engine."""

from __future__ import annotations

import numpy as np
import pytest

from bkrl.core.errors import UsageError
from bkrl.envs import make_vec
from bkrl.envs.babyai.constants import DROP, FORWARD, LEFT, PICKUP, RIGHT
from bkrl.envs.babyai.engine import Engine
from bkrl.envs.babyai.levels import LEVELS
from bkrl.inspect.optimal import Explorer, Moment, distances

GO_TO, PICK_UP, SEQUENCE = (
    "BabyAI-Text-GoToLocal-RedBall-S20", "BabyAI-Text-PickUp-PurpleKey-S20", "BabyAI-Text-GoTo-RedBallBlueBox-S20",
)  # fmt: skip
CARRIED = "BabyAI-Text-PickUp-RedBall-S20"


def tried(env_id: str, moment: Moment) -> float:
    """The distance of a moment by trying every action from it."""
    actions = [LEFT, RIGHT, FORWARD] + ([PICKUP] if LEVELS[env_id].task == "pick up" else [])
    states = Explorer(env_id).explore(moment, actions, still=True)
    assert states is not None
    return float(distances(states)[0])


def moment_of(envs, n: int) -> Moment:
    state = envs.engine.snapshot()
    return Moment(state["grids"][n], envs.engine.worlds[n : n + 1].copy(), state["observations"][n])


@pytest.mark.parametrize("env_id", [GO_TO, PICK_UP, SEQUENCE, "BabyAI-Text-GoToLocal-Pretraining-S20"])
def test_first_moments_are_as_far_as_trying_every_action_says(env_id):
    envs = make_vec(env_id, 3, distances=True)
    envs.reset(seed=40)
    found = envs.distances()
    assert found.dtype == np.float32
    assert found.tolist() == [tried(env_id, moment_of(envs, n)) for n in range(3)]


@pytest.mark.parametrize("env_id", [GO_TO, SEQUENCE])
def test_moments_of_play_in_which_objects_were_moved(env_id):
    """Random actions that often pick up and drop: wherever things lie, the distance is that of trying."""
    envs = make_vec(env_id, 8, distances=True)
    envs.reset(seed=7)
    rng = np.random.default_rng(0)
    moved = 0
    for _ in range(3):
        first = envs.engine.snapshot()["grids"]
        for _ in range(80):
            envs.step(rng.choice([LEFT, RIGHT, FORWARD, FORWARD, FORWARD, PICKUP, DROP], 8))
        found = envs.distances()
        for n in range(2):
            assert found[n] == tried(env_id, moment_of(envs, n))
        moved += int((envs.engine.snapshot()["grids"] != first).any(axis=1).sum())
    assert moved > 5


@pytest.mark.parametrize("env_id", [GO_TO, PICK_UP, SEQUENCE])
def test_walking_down_the_distance_ends_in_success(env_id):
    """Some action always brings success one action nearer, and the last one brings it."""
    envs = make_vec(env_id, 1, distances=True)
    envs.reset(seed=3)
    left = int(envs.distances()[0])
    for away in range(left, 0, -1):
        assert envs.distances()[0] == away
        before, found = envs.snapshot(), []
        for action in (LEFT, RIGHT, FORWARD, PICKUP):
            envs.restore(before)
            _, _, terminated, _, infos = envs.step([action])
            found.append(bool(infos["success"][0]) if away == 1 else not terminated[0] and envs.distances()[0] < away)
        envs.restore(before)
        assert any(found)
        _, _, _, _, infos = envs.step([(LEFT, RIGHT, FORWARD, PICKUP)[found.index(True)]])
    assert infos["success"][0]


def test_full_hands_must_be_emptied_first():
    """One action more where the cell in front is free, three where the agent has to turn away and back."""
    engine = Engine(CARRIED, 1)
    engine.seed([5], np.ones(1, bool))
    engine.begin(np.ones(1, bool))
    free = float(engine.distances()[0])
    engine.worlds["carrying"] = 6 | 1 << 4  # a green ball
    assert engine.distances()[0] == free + 1
    engine.worlds["carrying"] = 0
    for _ in range(int(free) - 1):  # walk until the ball is in front
        before = engine.snapshot()
        for action in (FORWARD, LEFT, RIGHT):
            now = float(engine.distances()[0])
            engine.step(np.array([action]))
            if engine.distances()[0] == now - 1:
                break
            engine.restore(before)
    assert engine.distances()[0] == 1
    engine.worlds["carrying"] = 6 | 1 << 4
    assert engine.distances()[0] == 4  # turn, drop, turn back, pick up


def test_no_way_is_infinitely_far():
    engine = Engine(GO_TO, 2)
    engine.seed([1, 2], np.ones(2, bool))
    engine.begin(np.ones(2, bool))
    state = engine.snapshot()
    state["grids"][0] &= 0xFFFFFF  # nothing is tracked
    engine.restore(state)
    assert engine.distances()[0] == np.inf
    assert np.isfinite(engine.distances()[1])


def test_ends_show_the_distance_before_the_reset_and_the_one_after():
    envs = make_vec(GO_TO, 4, distances=True)
    plain = make_vec(GO_TO, 4)
    assert plain.distances() is None
    envs.reset(seed=11)
    plain.reset(seed=11)
    rng = np.random.default_rng(1)
    ends = 0
    for t in range(401):
        actions = rng.integers(0, 3, 4)
        shown, _, _, _, infos = envs.step(actions)
        expected, _, _, _, other = plain.step(actions)
        np.testing.assert_array_equal(shown, expected)  # to know is not to change
        assert "final_distance" not in other
        if "_final_obs" in infos:
            ended = infos["_final_obs"]
            ends += int(ended.sum())
            assert infos["final_distance"].shape == (4,)
            solved = ended & infos["success"]
            assert (infos["final_distance"][solved] == 1).all()  # still in front of it: any action would do
            assert t == 399 or not (ended & ~infos["success"]).any()
    assert ends >= 4


def test_more_threads_find_the_same():
    one, two = (make_vec(GO_TO, 160, distances=True, threads=threads) for threads in (1, 2))
    for envs in (one, two):
        envs.reset(seed=5)
    np.testing.assert_array_equal(one.distances(), two.distances())


def test_levels_without_a_known_distance_are_refused():
    with pytest.raises(UsageError, match="published levels alone"):
        make_vec("BabyAI-GoToObj-v0", 1, distances=True)
