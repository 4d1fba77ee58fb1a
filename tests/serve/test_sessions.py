"""Sessions are rows: what one does is the same whoever plays beside it, and a saved state is a seed and actions."""

from pathlib import Path

import numpy as np
import pytest

from bkrl.core.errors import InputError, UsageError
from bkrl.data.windows import gather
from bkrl.envs import captioner, make_vec
from bkrl.potentials import load_potential
from bkrl.serve.sessions import SavedState, Sessions

ROOM = "BabyAI-Text-GoToLocal-RedBall-S20"


@pytest.mark.parametrize("env", ["Toy-Chain", ROOM, "CrafterReward-v1", "Crafter-Typed-Full"])
def test_a_row_plays_what_the_env_alone_plays(env):
    sessions = Sessions(env, 4)
    rows = sessions.open(3)
    sessions.reset(rows[:2], [SavedState(5), SavedState(6)])
    sessions.reset(rows[2:], [SavedState(7)])
    alone = make_vec(env, 1, autoreset_mode="Disabled")
    seen, _ = alone.reset(seed=7)
    actions = np.random.default_rng(0).integers(0, len(alone.env_spec.action_names), 12).tolist()
    actions[1] = len(alone.env_spec.action_names) - 1  # 259 where actions are typed
    for at, action in enumerate(actions):
        playing = [row for row in (rows if at % 2 else rows[2:]) if not sessions.over[row]]
        if rows[2] not in playing:
            break
        moved = sessions.step(playing, [action if row == rows[2] else 0 for row in playing])
        seen, reward, terminated, _, _ = alone.step(np.array([action]))
        assert moved.rewards[-1] == reward[0]
        assert moved.terminated[-1] == terminated[0]
        shown = seen["symbolic"] if isinstance(seen, dict) else seen
        assert sessions.captions[rows[2]] == captioner(env)(shown)[0]
    assert list(sessions.taken[rows[2]]) == actions[: len(sessions.taken[rows[2]])]


@pytest.mark.parametrize("env", ["Toy-Grid", ROOM, "CrafterReward-v1"])
def test_a_saved_state_is_the_same_place_with_the_same_future(env):
    sessions = Sessions(env, 3)
    rows = sessions.open(3)
    sessions.reset(rows[:1], [SavedState(3)])
    rng = np.random.default_rng(1)
    for action in rng.integers(0, 2, 5).tolist():
        sessions.step(rows[:1], [action])
    saved = SavedState(sessions.seeds[rows[0]], list(sessions.taken[rows[0]]))
    sessions.reset(rows[1:], [saved, saved])
    for action in rng.integers(0, 2, 10).tolist():
        assert len({sessions.captions[row] for row in rows}) == 1
        if sessions.over[rows].any():
            break
        moved = sessions.step(rows, [action] * 3)
        assert len(set(moved.rewards.tolist())) == 1
    assert len({sessions.missions[row] for row in rows}) == 1


def test_a_mission_that_names_the_sub_goal_at_hand_is_that_of_the_present():
    sessions = Sessions("Crafter-Typed-Gardening@subgoals=shown", 2)
    rows = sessions.open(2)
    sessions.reset(rows, [SavedState(4), SavedState(4)])
    for _ in range(2):  # the second chop gives a sapling
        sessions.step(rows[:1], [sessions.action("chop grass")])
    assert [sessions.missions[row] for row in rows] == ["chop tree", "chop grass"]


def test_shaping_is_the_difference_of_potentials_and_telescopes():
    run = Path("sample:bk-pref-minigrid")
    sessions = Sessions(ROOM, 2, run, gamma=0.9)
    potential, alone = load_potential(run), make_vec(ROOM, 1, autoreset_mode="Disabled")
    rows = sessions.open(2)
    sessions.reset(rows, [SavedState(1), SavedState(2)])
    seen = [alone.reset(seed=2)[0][0]]
    actions = [2, 2, 1, 2, 0, 2, 2, 2]
    paid = [sessions.step(rows, [0, action]) for action in actions]
    seen += [alone.step(np.array([action]))[0][0] for action in actions]
    steps = np.arange(len(seen))
    windows = gather(np.array(seen), np.array([*actions, 0]), steps, steps, potential.reads.horizon)
    phi = potential(windows).astype(float)
    assert np.ptp(phi) > 0
    np.testing.assert_allclose([one.shaping[1] for one in paid], 0.9 * phi[1:] - phi[:-1], atol=1e-6)
    assert all(one.rewards[1] == one.shaping[1] for one in paid)
    assert "γ = 0.9" in sessions.guarantee
    potential.close()
    sessions.end()


def test_a_terminal_state_has_no_potential():
    sessions = Sessions(ROOM, 1, Path("sample:bk-pref-minigrid"), gamma=0.9)
    [row] = sessions.open()
    sessions.reset([row], [SavedState(1)])
    before = sessions.phi.now[row]
    nothing = sessions.envs.step_rows
    sessions.envs.step_rows = lambda rows, actions: (
        *nothing(rows, actions)[:2],
        np.ones(1, bool),
        *nothing(rows, actions)[3:],
    )
    assert sessions.step([row], [0]).shaping[0] == pytest.approx(-before)
    sessions.end()


def test_a_potential_of_other_observations_is_refused():
    with pytest.raises(InputError, match="other observations"):
        Sessions("Toy-Chain", 1, Path("sample:bk-pref-minigrid"))
    with pytest.raises(InputError, match="has other observations or actions"):  # it knows seven, and there are nine
        Sessions("BabyAI-GoToLocal-v0@actions=augmented", 1, Path("sample:bk-pref-minigrid"))


def test_what_is_no_seed_no_action_or_too_much_is_refused():
    sessions = Sessions("Toy-Chain", 2)
    assert sessions.action("right") == sessions.action(1) == 1
    for wrong in ("rigth", 2, -1, True, 1.0, None, [1], "x" * 10_000):
        with pytest.raises(UsageError, match="0 left, 1 right"):
            sessions.action(wrong)
    for wrong in (-1, 2**63, "1", True, 1.5):
        with pytest.raises(UsageError, match="seed"):
            sessions.start(wrong)
    for wrong in ("ab", {"a": 1}, [0] * 10_001):
        with pytest.raises(UsageError, match="saved state"):
            sessions.start(1, wrong)
    with pytest.raises(UsageError, match="after its episode's end"):
        sessions.reset(sessions.open(1), [SavedState(1, [1] * 9)])
    with pytest.raises(UsageError, match="2 more were asked for"):
        sessions.open(2)


def test_seeds_that_nobody_asks_for_follow_from_the_servers_own():
    drawn = [[Sessions("Toy-Chain", 1, seed=seed).start().seed for _ in range(2)] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
