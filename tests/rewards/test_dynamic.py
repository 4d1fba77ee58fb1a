"""Dynamic potential-based shaping: whatever Φ turns into on the way, an episode's pay telescopes, and what is optimal
stays so (Devlin & Kudenko 2012)."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from bkrl.core.config import PPOConfig
from bkrl.core.errors import UsageError
from bkrl.data.windows import Reads, Rollout, Windows
from bkrl.envs import make_vec
from bkrl.methods import TrainRsConfig, find_method
from bkrl.rewards.dynamic import DynamicReward
from tests.potentials.rollouts import rollout_of

GAMMA = 0.9
COEF = 1.5


class OfThePlace:
    reads = Reads(0)

    def __init__(self, values: np.ndarray) -> None:
        self.values = values.astype(np.float32)

    def __call__(self, windows: Windows) -> np.ndarray:
        return self.values[windows.observations[:, -1, 0]]


class Moods:
    """A potential of the place that is another one after each rollout."""

    def __init__(self, places: int, seed: int) -> None:
        self.rng, self.places = np.random.default_rng(seed), places
        self.potential = OfThePlace(-self.rng.random(places))

    def saw(self, rollout: Rollout) -> None:
        self.potential = OfThePlace(-self.rng.random(self.places))

    def metrics(self) -> dict[str, float]:
        return {}

    def state(self):
        return {"values": self.potential.values.copy()}

    def restore(self, state) -> None:
        self.potential = OfThePlace(state["values"])


def rollouts(env_id: str, policy, count: int, num_steps: int = 1, num_envs: int = 1):
    """`count` rollouts of a policy (place, rng) → action, one after another."""
    envs, rng = make_vec(env_id, num_envs), np.random.default_rng(0)
    now, _ = envs.reset(seed=1)
    ages = np.zeros(num_envs, np.int32)
    for _ in range(count):
        seen, done, ages_of = [now.copy()], [], [ages.copy()]
        rewards, terminated, truncated, index, finals = [], [], [], [], []
        for t in range(num_steps):
            done.append(np.array([policy(int(place), rng) for place in now[:, 0]], np.int64))
            now, reward, over, cut, infos = envs.step(done[-1])
            ages = np.where(over | cut, 0, ages + 1).astype(np.int32)
            for env in np.flatnonzero(over | cut):
                index.append(t * num_envs + env)
                finals.append(infos["final_obs"][env].copy())
            for rows, row in ((seen, now), (ages_of, ages), (rewards, reward), (terminated, over), (truncated, cut)):
                rows.append(row.copy())
        yield rollout_of(
            0, np.stack(seen), np.stack(done), np.stack(ages_of), np.stack(rewards).astype(np.float32),
            np.stack(terminated), np.stack(truncated), np.array(index, np.int64),
            np.array(finals, np.uint8).reshape(-1, 1),
        )  # fmt: skip


def sums(env_id: str, stream: DynamicReward, forget: bool = False):
    """Of each whole episode: the discounted sum of what was paid beside the env's reward, and what it should be."""
    envs = make_vec(env_id, 3)
    actions = int(envs.single_action_space.n)
    running = [[0.0, 1.0, None] for _ in range(3)]
    found, wanted = [], []
    for rollout in rollouts(env_id, lambda place, rng: rng.integers(actions), 60, num_steps=7, num_envs=3):
        before = stream.changing.potential.values
        if forget:
            stream.values.restore({})
        paid = stream.rewards(rollout) - rollout.rewards
        finals = dict(zip(rollout.final_index.tolist(), rollout.final_views.symbols[:, 0].tolist(), strict=True))
        for t, env in product(range(7), range(3)):
            if rollout.ages[t, env] == 0 and t > 0:
                running[env] = [0.0, 1.0, float(before[rollout.views.symbols[t, env, 0]])]
            total, discount, first = running[env]
            running[env] = [total + discount * paid[t, env], discount * GAMMA, first]
            if t * 3 + env in finals:
                last = 0.0 if rollout.terminated[t, env] or stream.cut_ends else before[finals[t * 3 + env]]
                total, discount, first = running[env]
                if first is not None:
                    found.append(total)
                    wanted.append(COEF * (discount * last - first))
                running[env] = [0.0, 1.0, None]
    return np.array(found), np.array(wanted)


@pytest.mark.parametrize("env_id", ["Toy-Grid", "Toy-TwoExits", "Toy-Endless"])
def test_the_pay_of_an_episode_telescopes_whatever_becomes_of_the_potential(env_id):
    places = int(make_vec(env_id, 1).single_observation_space.high[0]) + 1
    found, wanted = sums(env_id, DynamicReward(Moods(places, 3), GAMMA, shaping_coef=COEF))
    assert len(found) > 10
    np.testing.assert_allclose(found, wanted, atol=1e-4)


def test_the_published_defect_takes_a_time_limit_for_an_end():
    """--compat b10 left the bootstrap out, and Φ stayed where an episode was cut off."""
    places = int(make_vec("Toy-Endless", 1).single_observation_space.high[0]) + 1
    found, wanted = sums("Toy-Endless", DynamicReward(Moods(places, 3), GAMMA, shaping_coef=COEF, cut_ends=True))
    assert len(found) > 10
    np.testing.assert_allclose(found, wanted, atol=1e-4)
    small = PPOConfig(num_envs=16, num_steps=16)
    for compat in ("", "b10"):
        config = TrainRsConfig("bk-online", env="BabyAI-GoToRedBall-v0", ppo=small, steps=99_999, compat=compat)
        training = find_method("bk-online").build(config)
        assert training.learner.streams[0].cut_ends == (not training.learner.bootstrap_truncated) == bool(compat)
        training.close()


def test_it_does_not_where_a_visit_is_evaluated_again_after_the_change():
    found, wanted = sums("Toy-Grid", DynamicReward(Moods(25, 3), GAMMA, shaping_coef=COEF), forget=True)
    assert np.abs(found - wanted).max() > 0.1


def value(env_id: str, policy: tuple[int, ...], forget: bool) -> tuple[float, float]:
    """Discounted return of one episode of at most 30 steps, without and with shaping whose Φ changes every step."""
    stream, plain, shaped = DynamicReward(Moods(len(policy), 8), GAMMA, shaping_coef=5.0), 0.0, 0.0
    for t, rollout in enumerate(rollouts(env_id, lambda place, rng: policy[place], 30)):
        if forget:
            stream.values.restore({})
        plain += GAMMA**t * float(rollout.rewards[0, 0])
        shaped += GAMMA**t * float(stream.rewards(rollout)[0, 0])
        if rollout.terminated.any():
            return plain, shaped
    return -1.0, -1.0


def test_what_is_optimal_stays_optimal():
    """All policies of a corridor with two exits that leave it: one constant apart, so in the same order."""
    env_id = "Toy-TwoExits"
    envs = make_vec(env_id, 1)
    places, actions = int(envs.single_observation_space.high[0]) + 1, int(envs.single_action_space.n)
    policies = list(product(range(actions), repeat=places))
    for forget in (False, True):
        values = np.array([value(env_id, policy, forget) for policy in policies])
        values = values[values[:, 0] >= 0]
        assert len(np.unique(values[:, 0].round(6))) > 1
        apart = values[:, 1] - values[:, 0]
        assert (np.ptp(apart) < 1e-4) == (not forget)
        best = np.isclose(values[:, 0], values[:, 0].max())
        if not forget:
            np.testing.assert_array_equal(np.isclose(values[:, 1], values[:, 1].max(), atol=1e-4), best)


def test_the_stored_value_goes_through_a_checkpoint():
    played = list(rollouts("Toy-Grid", lambda place, rng: rng.integers(4), 4, num_steps=5, num_envs=2))
    whole = DynamicReward(Moods(25, 5), GAMMA)
    for rollout in played[:2]:
        whole.rewards(rollout)
    other = DynamicReward(Moods(25, 77), GAMMA)
    other.restore({name: np.array(array) for name, array in whole.state().items()})
    without = DynamicReward(Moods(25, 77), GAMMA)
    without.changing.restore(whole.changing.state())
    without.values.potential = without.changing.potential
    paid = whole.rewards(played[2])
    np.testing.assert_array_equal(other.rewards(played[2]), paid)
    assert not np.array_equal(without.rewards(played[2]), paid)


def test_single_transitions_have_no_time():
    with pytest.raises(UsageError, match="evaluated when a state is visited, so it needs whole rollouts"):
        DynamicReward(Moods(25, 1), GAMMA).transition_rewards(None)  # type: ignore[arg-type]
