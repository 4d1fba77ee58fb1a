"""Shaping on random episode structures: it telescopes exactly, and nothing crosses an episode's start."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bkrl.data.windows import Rollout, Windows
from bkrl.rewards.shaped import PotentialOfRollout, ShapedReward
from bkrl.rewards.shaping import shaping_rewards
from tests.potentials.rollouts import HashPotential, history, random_rollouts

STRUCTURES = given(
    seed=st.integers(0, 2**31),
    horizon=st.integers(0, 4),
    steps=st.integers(1, 9),
    num_envs=st.integers(1, 4),
    end_rate=st.floats(0, 0.9),
    gamma=st.sampled_from([0.9, 0.99, 1.0]),
)


def naive_phi(potential: HashPotential, rollout: Rollout, t: int, n: int, final: np.ndarray | None = None) -> float:
    """Φ of one window, put together by hand from the definition."""
    H = potential.reads.horizon
    rows = []
    age = int(rollout.ages[t, n])
    for back in range(age, -1, -1):
        rows.append((history(rollout)[0][len(rollout.past) + t - back, n], rollout.actions, back))
    observations = [row for row, _, back in rows if back <= H]
    actions = [int(history(rollout)[1][len(rollout.past) + t - back, n]) for back in range(min(age, H), 0, -1)]
    if final is not None:
        observations.append(final)
        actions.append(int(rollout.actions[t, n]))
    observations, actions = observations[-(H + 1) :], actions[len(actions) - min(H, len(actions)) :]
    missing = H + 1 - len(observations)
    window = Windows.of(
        np.stack([np.zeros_like(observations[0])] * missing + observations)[None],
        np.array([[0] * missing + actions], np.int64).reshape(1, H),
        np.array([[False] * missing + [True] * len(observations)]),
    )
    return float(potential(window)[0])


@STRUCTURES
def test_shaping_is_the_definition_step_by_step(seed, horizon, steps, num_envs, end_rate, gamma):
    potential = HashPotential(horizon)
    for rollout in _known_history(random_rollouts(seed, horizon, steps, num_envs, end_rate)):
        stream = ShapedReward(potential, gamma)
        got = stream.rewards(rollout) - rollout.rewards
        finals = dict(zip(rollout.final_index.tolist(), rollout.final_views.symbols, strict=True))
        for t in range(steps):
            for n in range(num_envs):
                here = naive_phi(potential, rollout, t, n)
                if rollout.terminated[t, n]:
                    there = 0.0
                elif rollout.truncated[t, n]:
                    there = naive_phi(potential, rollout, t, n, finals[t * num_envs + n])
                else:
                    there = naive_phi(potential, rollout, t + 1, n)
                assert got[t, n] == pytest.approx(gamma * there - here, abs=1e-6)


@STRUCTURES
def test_shaping_telescopes_over_every_episode_across_rollouts(seed, horizon, steps, num_envs, end_rate, gamma):
    rollouts = random_rollouts(seed, horizon, steps, num_envs, end_rate, count=3)
    stream = ShapedReward(HashPotential(horizon), gamma)
    phis = [stream.values(rollout) for rollout in rollouts]
    total, discount = np.zeros(num_envs), np.ones(num_envs)
    start = phis[0][0][0].astype(np.float64)
    for rollout, (phi, phi_final) in zip(rollouts, phis, strict=True):
        finals = dict(zip(rollout.final_index.tolist(), phi_final.astype(np.float64), strict=True))
        shaping = shaping_rewards(rollout, phi, phi_final, gamma).astype(np.float64)
        for t in range(steps):
            total += discount * shaping[t]
            discount *= gamma
            for n in np.flatnonzero(rollout.terminated[t] | rollout.truncated[t]):
                end = 0.0 if rollout.terminated[t, n] else finals[t * num_envs + int(n)]
                assert total[n] == pytest.approx(discount[n] * end - start[n], abs=1e-5)
                total[n], discount[n], start[n] = 0.0, 1.0, phi[t + 1, n]
    # the episodes still running: γ^T Φ(h_T) - Φ(h_0)
    np.testing.assert_allclose(total, discount * phis[-1][0][-1] - start, atol=1e-5)


@STRUCTURES
def test_the_kept_bootstrap_row_changes_nothing_and_saves_its_evaluation(
    seed, horizon, steps, num_envs, end_rate, gamma
):
    rollouts = random_rollouts(seed, horizon, steps, num_envs, end_rate)
    potential = HashPotential(horizon)
    running = ShapedReward(potential, gamma)
    running.rewards(rollouts[0])
    potential.evaluated = 0
    second = running.rewards(rollouts[1])
    cut_off = ~rollouts[1].terminated.ravel()[rollouts[1].final_index]  # Φ of terminal states counts as 0: not asked
    assert potential.evaluated == steps * num_envs + cut_off.sum()
    np.testing.assert_array_equal(second, ShapedReward(HashPotential(horizon), gamma).rewards(rollouts[1]))


def test_a_rollout_that_does_not_follow_is_evaluated_whole():
    first, second = random_rollouts(3, 2, 5, 2, 0.2)
    potential = HashPotential(2)
    running = ShapedReward(potential, 0.99)
    running.rewards(second)
    np.testing.assert_array_equal(running.rewards(first), ShapedReward(HashPotential(2), 0.99).rewards(first))


def test_constant_potential_makes_no_spike_at_rollout_boundaries():
    class Constant(HashPotential):
        def __call__(self, windows: Windows) -> np.ndarray:
            return np.full(len(windows), -0.5, np.float32)

    stream = ShapedReward(Constant(2), 0.99)
    for rollout in random_rollouts(1, 2, 16, 3, 0.0, count=4):
        np.testing.assert_allclose(stream.rewards(rollout) - rollout.rewards, 0.01 * 0.5, atol=1e-6)


def test_scales_apply_to_reward_and_shaping_apart():
    (rollout, _) = random_rollouts(5, 1, 6, 2, 0.3)
    potential = HashPotential(1)
    plain = ShapedReward(potential, 0.9).rewards(rollout) - rollout.rewards
    scaled = ShapedReward(potential, 0.9, reward_scale=10.0, shaping_coef=0.5).rewards(rollout)
    np.testing.assert_allclose(scaled, 10 * rollout.rewards + 0.5 * plain, atol=1e-5)
    metrics = ShapedReward(potential, 0.9)
    metrics.rewards(rollout)
    assert set(metrics.metrics()) >= {"shaping/phi_mean", "shaping/reward_mean"}


def test_an_infinite_potential_and_a_wrong_shape_are_refused():
    (rollout, _) = random_rollouts(5, 0, 4, 2, 0.0)
    phi = np.zeros((5, 2), np.float32)
    with pytest.raises(ValueError, match="phi must be"):
        shaping_rewards(rollout, phi[:-1], np.zeros(0), 0.9)
    phi[2, 1] = np.nan
    with pytest.raises(ValueError, match="finite"):
        shaping_rewards(rollout, phi, np.zeros(0), 0.9)


def test_exact_shaping_under_gae_is_a_critic_started_at_phi():
    """Wiewiora 2003: with baseline V - Φ every TD error of the shaped reward is the unshaped one."""
    rng = np.random.default_rng(0)
    (rollout, _) = random_rollouts(9, 2, 12, 3, 0.2)
    gamma = 0.97
    stream = ShapedReward(HashPotential(2), gamma)
    phi, phi_final = (part.astype(np.float64) for part in stream.values(rollout))
    shaped = stream.rewards(rollout).astype(np.float64)
    values = rng.normal(size=phi.shape)
    final_values = rng.normal(size=phi_final.shape)

    def td(rewards, v, v_final):
        after = v[1:].copy()
        ended = np.where(rollout.terminated.ravel()[rollout.final_index], 0.0, v_final)
        after.reshape(-1)[rollout.final_index] = ended
        return rewards + gamma * after - v[:-1]

    plain = td(rollout.rewards.astype(np.float64), values, final_values)
    np.testing.assert_allclose(td(shaped, values - phi, final_values - phi_final), plain, atol=1e-5)


def _known_history(rollouts: list[Rollout]) -> list[Rollout]:
    """Only rollouts whose history rows reach back to every running episode's window."""
    return [rollout for rollout in rollouts if (rollout.ages[0] <= len(rollout.past)).all()] or rollouts[:1]


def test_streams_pay_the_same_as_with_every_final_window_evaluated():
    for rollout in random_rollouts(3, 1, 12, 3, 0.5, count=3):
        assert 0 < rollout.terminated.sum() < len(rollout.final_index)
        phi, phi_final = PotentialOfRollout(HashPotential(1))(rollout)
        assert phi_final.any()
        paid = ShapedReward(HashPotential(1), 0.99).rewards(rollout)
        np.testing.assert_array_equal(paid, rollout.rewards + shaping_rewards(rollout, phi, phi_final, 0.99))
