"""Toy envs: their closed forms, Gymnasium's rules, and agreement of the single and the vector environment."""

from __future__ import annotations

from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from bkrl.core.errors import InputError, UsageError
from bkrl.envs import env_spec, make, make_vec, toy

IDS = [facts.env_id for facts in toy.FAMILY.specs()]
GAMMA = 0.99


def shaping(table: toy.Table, phi: np.ndarray) -> np.ndarray:
    """γΦ(s') - Φ(s) of every transition, with Φ = 0 after termination."""
    return GAMMA * np.where(table.terminated, 0.0, phi[table.next_state]) - phi[:, None]


@pytest.mark.parametrize("env_id", IDS)
def test_gymnasium_checker(env_id: str) -> None:
    check_env(make(env_id), skip_render_check=True)
    assert gym.make(f"bkrl.envs:{env_id}").reset(seed=0)[0].dtype == np.uint8


def test_chain_values_are_powers_of_gamma() -> None:
    table = toy.table("Toy-Chain")
    values = toy.optimal_values(table, GAMMA).max(1)
    places = np.arange(table.num_states - 1)
    assert np.allclose(values[:-1], GAMMA ** (table.num_states - 2 - places), atol=1e-12)


def test_two_exits_prefer_the_far_one() -> None:
    q = toy.optimal_values(toy.table("Toy-TwoExits"), GAMMA)
    assert q[0, 0] == pytest.approx(0.6)
    assert q[0, 1] == pytest.approx(GAMMA**2)
    impatient = toy.optimal_values(toy.table("Toy-TwoExits"), 0.7)
    assert impatient[0, 0] > impatient[0, 1]


def test_grid_values_count_steps_to_the_corner() -> None:
    values = toy.optimal_values(toy.table("Toy-Grid"), GAMMA).max(1)
    row, column = np.divmod(np.arange(24), 5)
    assert np.allclose(values[:24], GAMMA ** (8 - row - column - 1), atol=1e-12)


def test_endless_is_worth_a_geometric_series() -> None:
    q = toy.optimal_values(toy.table("Toy-Endless"), GAMMA)
    assert q[0, 1] == pytest.approx(1 / (1 - GAMMA))
    assert q[0, 0] == pytest.approx(GAMMA / (1 - GAMMA))


@pytest.mark.parametrize(
    "env_id", [pytest.param(one, marks=pytest.mark.slow) if one == "Toy-TwoExits" else one for one in IDS]
)
def test_shaping_moves_values_by_the_potential_and_keeps_the_best_actions(env_id: str) -> None:
    """Q'(s, a) = Q(s, a) - Φ(s) (Ng et al., 1999), so the set of best actions is the same."""
    table, rng = toy.table(env_id), np.random.default_rng(3)
    plain = toy.optimal_values(table, GAMMA)
    reached = ~np.isin(np.arange(table.num_states), table.next_state[table.terminated])
    for _ in range(20):
        phi = rng.normal(0, 5, table.num_states)
        shaped = toy.optimal_values(table, GAMMA, shaping(table, phi))
        assert np.allclose(shaped[reached], (plain - phi[:, None])[reached], atol=1e-8)
        best = np.isclose(plain, plain.max(1, keepdims=True), atol=1e-9)
        assert np.array_equal(best[reached], np.isclose(shaped, shaped.max(1, keepdims=True), atol=1e-7)[reached])


def test_a_potential_that_pays_for_ending_flips_the_choice() -> None:
    """The published form never evaluates the terminal state: its bonus of the last potential decides (`spec` B3)."""
    table = toy.table("Toy-TwoExits")
    phi = np.array([10.0, 0.0, 0.0, 0.0, 0.0])
    exact = toy.optimal_values(table, GAMMA, shaping(table, phi))
    assert exact[0, 1] > exact[0, 0]
    leaky = GAMMA * phi[table.next_state] - phi[:, None]
    leaky[table.terminated] += GAMMA * np.broadcast_to(phi[:, None], leaky.shape)[table.terminated]
    q = toy.optimal_values(table, GAMMA, leaky)
    assert q[0, 0] > q[0, 1]


@pytest.mark.parametrize("env_id", IDS)
def test_optimal_values_are_those_of_value_iteration(env_id: str) -> None:
    table = toy.table(env_id)
    extra = np.random.default_rng(5).normal(size=table.reward.shape)
    q = np.zeros_like(extra)
    for _ in range(3000):
        q = table.reward + extra + GAMMA * np.where(table.terminated, 0.0, q.max(1)[table.next_state])
    assert np.allclose(toy.optimal_values(table, GAMMA, extra), q, atol=1e-6)


@pytest.mark.parametrize("env_id", IDS)
def test_vector_and_single_envs_follow_the_table(env_id: str) -> None:
    table = toy.table(env_id)
    envs = make_vec(env_id, 3)
    singles = [make(env_id) for _ in range(3)]
    observations, _ = envs.reset(seed=7)
    firsts = [env.reset(seed=7 + i)[0] for i, env in enumerate(singles)]
    assert np.array_equal(observations, np.stack(firsts))
    rng = np.random.default_rng(0)
    for _ in range(120):
        actions = rng.integers(0, envs.single_action_space.n, 3)
        observations, rewards, terminated, truncated, infos = envs.step(actions)
        for i, env in enumerate(singles):
            place, action = int(firsts[i][0]), actions[i]
            obs, reward, term, trunc, info = env.step(action)
            assert obs == table.next_state[place, action]
            assert (reward, term) == (table.reward[place, action], table.terminated[place, action])
            assert (reward, term, trunc, info["success"]) == (
                rewards[i],
                terminated[i],
                truncated[i],
                infos["success"][i],
            )
            if term or trunc:
                assert np.array_equal(infos["final_obs"][i], obs)
                obs, _ = env.reset()
            assert np.array_equal(observations[i], obs)
            firsts[i] = obs


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_success_at_the_last_moment_is_an_end_and_each_episode_is_counted_for_itself(backend: str) -> None:
    envs = make_vec("Toy-Chain", 1, backend=backend)
    envs.reset(seed=0)
    for lefts in (42, 3, 0):  # 8 steps to the right leave the corridor; the clock ends an episode after 50
        for action in [0] * lefts + [1] * 8:
            _, _, terminated, truncated, infos = envs.step(np.array([action]))
        assert (terminated.tolist(), truncated.tolist(), infos["success"].tolist()) == ([True], [False], [True])
        assert (infos["episode"]["r"].tolist(), infos["episode"]["l"].tolist()) == ([1.0], [lefts + 8])


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_threads_change_nothing(backend: str) -> None:
    alone, two = (make_vec("Toy-Grid", 3, backend=backend, threads=count).reset(seed=0)[0] for count in (1, 2))
    np.testing.assert_array_equal(alone, two)


def test_snapshot_goes_back_in_time() -> None:
    envs = make_vec("Toy-Grid", 4)
    envs.reset(seed=1)
    actions = np.random.default_rng(0).integers(0, 4, (90, 4))
    for row in actions[:30]:
        envs.step(row)
    state = envs.snapshot()
    after = [envs.step(row)[0] for row in actions[30:]]
    envs.restore(state)
    again = [envs.step(row)[0] for row in actions[30:]]
    other = make_vec("Toy-Grid", 4)
    other.restore(state)
    elsewhere = [other.step(row)[0] for row in actions[30:]]
    assert np.array_equal(after, again)
    assert np.array_equal(after, elsewhere)


def test_a_snapshot_of_other_envs_is_refused_and_changes_nothing() -> None:
    """It was taken, and the next step ended in an IndexError."""
    envs, other, fewer = make_vec("Toy-Chain", 4), make_vec("Toy-Grid", 4), make_vec("Toy-Chain", 3)
    for one in (envs, other, fewer):
        one.reset(seed=1)
    before = envs.snapshot()
    lacking = {name: array for name, array in before.items() if name != "age"}
    for state in (other.snapshot(), fewer.snapshot(), lacking):
        with pytest.raises(InputError, match=r"is not that of 4 envs of 'Toy-Chain'; restore it into"):
            envs.restore(state)
    after = envs.snapshot()
    assert all(np.array_equal(after[name], before[name]) for name in before)
    envs.restore({name: array for name, array in before.items() if name != "env_id"})  # as in older checkpoints


def test_captions_frames_and_bad_actions() -> None:
    assert toy.FAMILY.caption(np.array([[3], [0]], np.uint8)) == ["You are in place 3.", "You are in place 0."]
    envs = make_vec("Toy-Grid", 2)
    with pytest.raises(RuntimeError, match="reset"):
        envs.step(np.zeros(2, int))
    envs.reset(seed=0)
    assert envs.frame(0).shape == (160, 160, 3)
    with pytest.raises(ValueError, match="actions must lie"):
        envs.step(np.array([0, 4]))
    single = make("Toy-Chain")
    single.reset(seed=0)
    with pytest.raises(ValueError, match=r"0\.\.1"):
        single.step(2)
    assert env_spec("Toy-Chain").family == "toy"
    for maker in (make, partial(make_vec, num_envs=2)):
        with pytest.raises(UsageError, match="no backend 'natve'"):
            maker("Toy-Chain", backend="natve")
