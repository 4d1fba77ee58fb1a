"""Streams pay single transitions what they pay the steps of a rollout."""

from __future__ import annotations

import numpy as np
import pytest

from bkrl.core.errors import UsageError
from bkrl.data.windows import Rollout, Transitions, Windows
from bkrl.rewards.bonus import Bonus, InvariantBonus
from bkrl.rewards.rnd import RND
from bkrl.rewards.shaped import ShapedReward
from bkrl.rewards.streams import EnvReward
from bkrl.rewards.upstream import PublishedReward
from tests.potentials.rollouts import HashPotential, random_rollouts


def transitions_of(rollout: Rollout, horizon: int) -> Transitions:
    """The steps of a rollout in (step, env) order; what follows the end of an episode is its true last window."""
    T = rollout.num_steps
    after, finals = rollout.windows(horizon, 1, T), rollout.final_windows(horizon)
    views, actions, valid = after.observations.copy(), after.actions.copy(), after.valid.copy()
    at = rollout.final_index
    views[at], actions[at], valid[at] = finals.observations, finals.actions, finals.valid
    return Transitions(
        rollout.windows(horizon, 0, T - 1),
        rollout.actions.ravel(),
        rollout.rewards.ravel(),
        Windows.of(views, actions, valid),
        rollout.terminated.ravel(),
    )


@pytest.mark.parametrize("horizon", [0, 2])
@pytest.mark.parametrize(
    "stream",
    [
        lambda potential: EnvReward(scale=3.0),
        lambda potential: ShapedReward(potential, 0.9, reward_scale=2.0, shaping_coef=0.5, shift=0.25),
        lambda potential: Bonus(potential, 0.9, shaping_coef=0.5, shift=0.25),
        lambda potential: Bonus(potential, 0.9, shaping_coef=0.5, until=100),
    ],
)
def test_a_transition_is_paid_as_a_step(stream, horizon: int) -> None:
    for seed in range(3):
        (rollout,) = random_rollouts(seed, horizon, 12, 4, 0.3, count=1)
        assert rollout.terminated.any()
        assert rollout.truncated.any()
        made = stream(HashPotential(horizon))
        single = made.transition_rewards(transitions_of(rollout, horizon))
        np.testing.assert_allclose(single, made.rewards(rollout).ravel(), atol=1e-6)
        assert single.dtype == np.float32


def test_a_bonus_of_transitions_falls_with_the_steps_that_the_learner_has_taken() -> None:
    (rollout,) = random_rollouts(0, 0, 12, 4, 0.3, count=1)
    stream, transitions = Bonus(HashPotential(0), 0.9, shaping_coef=1.0, until=100), transitions_of(rollout, 0)
    first = stream.transition_rewards(transitions) - transitions.rewards
    assert np.array_equal(stream.transition_rewards(transitions) - transitions.rewards, first)  # no step was taken
    stream.steps = 50
    np.testing.assert_allclose(stream.transition_rewards(transitions) - transitions.rewards, first / 2, atol=1e-6)


@pytest.mark.parametrize(
    "stream",
    [
        InvariantBonus(HashPotential(0), 0.9, num_envs=4, shaping_coef=1.0),
        PublishedReward(HashPotential(0), 0.9, frozenset({"b2"})),
        RND((2,), 4),
    ],
)
def test_streams_that_need_whole_rollouts_say_so(stream) -> None:
    (rollout,) = random_rollouts(0, 0, 12, 4, 0.3, count=1)
    with pytest.raises(UsageError, match="needs whole rollouts; choose a learner that takes them"):
        stream.transition_rewards(transitions_of(rollout, 0))
