"""Φ as a bonus: what is paid, how it decays, and that the invariant one gives everything back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bkrl.data.windows import Reads, Rollout, Windows
from bkrl.rewards.bonus import Bonus, InvariantBonus
from bkrl.rewards.shaped import PotentialOfRollout
from bkrl.rewards.shaping import next_potentials
from tests.potentials.rollouts import HashPotential, random_rollouts, rollout_of


class OfTheCell:
    """Φ = -cell / 10."""

    reads = Reads(0)

    def __call__(self, windows: Windows) -> np.ndarray:
        return (windows.observations[:, -1, 0] / np.float32(-10)).astype(np.float32)


def one_env(cells: list[int], terminated: list[int], truncated: list[int], finals: list[int]) -> Rollout:
    """An env that shows `cells` one after another; the true last ones of episodes that end are `finals`."""
    steps = len(cells) - 1
    ended = sorted([*terminated, *truncated])
    ages = np.zeros((steps + 1, 1), np.int32)
    for t in range(steps):
        ages[t + 1] = 0 if t in ended else ages[t] + 1
    return rollout_of(
        horizon=0,
        observations=np.array(cells, np.uint8).reshape(-1, 1, 1),
        actions=np.zeros((steps, 1), np.int64),
        ages=ages,
        rewards=np.arange(steps, dtype=np.float32)[:, None],
        terminated=np.isin(np.arange(steps), terminated)[:, None],
        truncated=np.isin(np.arange(steps), truncated)[:, None],
        final_index=np.array(ended, np.int64),
        final_observations=np.array(finals, np.uint8).reshape(-1, 1),
    )


def test_the_additive_bonus_is_the_potential_of_what_an_action_led_to():
    # actions 0..4 lead to cells 2, [terminal], 4, [cut off at 9], 6
    rollout = one_env([1, 2, 3, 4, 5, 6], terminated=[1], truncated=[3], finals=[7, 9])
    paid = Bonus(OfTheCell(), 0.9, shaping_coef=0.5, reward_scale=2.0).rewards(rollout)[:, 0]
    assert paid == pytest.approx([0 - 0.1, 2 + 0.0, 4 - 0.2, 6 - 0.45, 8 - 0.3])


def test_the_decaying_bonus_falls_with_the_steps_taken_and_ends_at_nothing():
    rollout = one_env([1, 2, 3, 4], terminated=[], truncated=[], finals=[])
    stream = Bonus(OfTheCell(), 0.9, shaping_coef=1.0, until=6)
    weights = []
    for _ in range(4):
        paid = stream.rewards(rollout)[:, 0] - rollout.rewards[:, 0]
        weights.append(float(paid[0] / -0.2))
    assert weights == pytest.approx([1.0, 0.5, 0.0, 0.0])
    continued = Bonus(OfTheCell(), 0.9, shaping_coef=1.0, until=6)
    continued.restore({"steps": np.array(3)})
    assert continued.rewards(rollout)[0, 0] == pytest.approx(-0.1)


def test_the_invariant_bonus_gives_back_what_it_paid():
    # Φ of what the actions lead to: -0.2, -0.3, then the end.  γ = 0.5: owed after them -0.2/0.25 - 0.3/0.5 = -1.4
    rollout = one_env([1, 2, 3, 4], terminated=[2], truncated=[], finals=[9])
    stream = InvariantBonus(OfTheCell(), 0.5, num_envs=1, shaping_coef=1.0)
    paid = stream.rewards(rollout)[:, 0] - rollout.rewards[:, 0]
    assert paid == pytest.approx([-0.2, -0.3, 1.4])


STRUCTURES = given(
    seed=st.integers(0, 2**31),
    steps=st.integers(1, 12),
    num_envs=st.integers(1, 4),
    end_rate=st.floats(0, 0.6),
    gamma=st.sampled_from([0.5, 0.9, 0.99]),
)


@STRUCTURES
def test_the_bonuses_of_every_terminated_episode_sum_to_nothing(seed, steps, num_envs, end_rate, gamma):
    stream = InvariantBonus(HashPotential(1), gamma, num_envs=num_envs, shaping_coef=0.3)
    total, discount = np.zeros(num_envs), np.ones(num_envs)
    for rollout in random_rollouts(seed, 1, steps, num_envs, end_rate, count=3):
        paid = stream.rewards(rollout).astype(np.float64) - rollout.rewards
        for t in range(steps):
            total += discount * paid[t]
            discount *= gamma
            for n in np.flatnonzero(rollout.terminated[t] | rollout.truncated[t]):
                if rollout.terminated[t, n]:
                    assert total[n] == pytest.approx(0.0, abs=1e-4)
                total[n], discount[n] = 0.0, 1.0


def test_a_debt_that_would_be_too_large_is_paid_back_at_once():
    # Φ of what the actions lead to: -0.2, -0.3, -0.4, -0.5.  γ = 1e-8: owed after two, -2e15, is too much, so the
    # second action pays the first one's debt, 2e7; the fourth that of the third.
    rollout = one_env([1, 2, 3, 4, 5], terminated=[], truncated=[], finals=[])
    stream = InvariantBonus(OfTheCell(), 1e-8, num_envs=1, shaping_coef=1.0)
    paid = stream.rewards(rollout)[:, 0] - rollout.rewards[:, 0]
    assert paid == pytest.approx([-0.2, 0.2 / 1e-8, -0.4, 0.4 / 1e-8])
    assert stream.owed == 0.0


@STRUCTURES
def test_what_is_owed_goes_through_a_checkpoint(seed, steps, num_envs, end_rate, gamma):
    first, second = random_rollouts(seed, 1, steps, num_envs, end_rate)
    running = InvariantBonus(HashPotential(1), gamma, num_envs=num_envs, shaping_coef=0.3)
    running.rewards(first)
    continued = InvariantBonus(HashPotential(1), gamma, num_envs=num_envs, shaping_coef=0.3)
    continued.restore({name: np.asarray(value).copy() for name, value in running.state().items()})
    np.testing.assert_array_equal(running.rewards(second), continued.rewards(second))


def test_envs_that_begin_anew_owe_nothing():
    # a checkpoint came in the middle of an episode, and the envs could not be put back: they show first moments
    running = InvariantBonus(OfTheCell(), 0.5, num_envs=1, shaping_coef=1.0)
    running.rewards(one_env([1, 2, 3], terminated=[], truncated=[], finals=[]))
    assert running.state()["owed"] != 0
    fresh = one_env([1, 2, 3, 4], terminated=[2], truncated=[], finals=[9])
    paid = running.rewards(fresh)[:, 0] - fresh.rewards[:, 0]
    assert paid == pytest.approx([-0.2, -0.3, 1.4])


def test_bonuses_and_shaping_evaluate_the_same_windows():
    (rollout,) = random_rollouts(5, 2, 8, 3, 0.3, count=1)
    potential = HashPotential(2)
    paid = Bonus(potential, 0.9, shaping_coef=1.0).rewards(rollout) - rollout.rewards
    phi, phi_final = PotentialOfRollout(potential)(rollout)
    np.testing.assert_allclose(paid, next_potentials(rollout, phi, phi_final), atol=1e-6)
