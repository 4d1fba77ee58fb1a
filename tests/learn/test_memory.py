"""An agent with a memory learns what one without cannot: to do at the end what was shown at the beginning."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

from bkrl.agents.build import new_agent
from bkrl.agents.play import play
from bkrl.core.config import PPOConfig
from bkrl.envs import EnvSpec
from bkrl.envs.reference import ReferenceVectorEnv
from bkrl.learn.ppo import PPO
from bkrl.rewards.streams import EnvReward

DELAY = 3
RECALL = EnvSpec("Recall", "toy", (1,), ("left", "right"), DELAY + 1, "", "the last action is the cue")


class Recall(gym.Env):
    """Shows 1 or 2, then nothing (0) for some steps; pays 1 where the last action is the one that was shown."""

    observation_space = gym.spaces.Box(0, 2, (1,), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.cue, self.age = int(self.np_random.integers(2)), 0
        return np.array([self.cue + 1], np.uint8), {}

    def step(self, action):
        self.age += 1
        over = self.age > DELAY
        right = over and action == self.cue
        return np.zeros(1, np.uint8), float(right), over, False, {"success": right}


def trained(network: str, missions: bool = False, steps: int = 16_000) -> tuple[float, float]:
    """Success in the last five rollouts, and of the greedy agent."""
    torch.set_num_threads(1)
    config = PPOConfig(num_envs=16, num_steps=16, num_minibatches=4, learning_rate=1e-3)
    envs = ReferenceVectorEnv(RECALL, Recall, 16)
    ppo = PPO(
        envs, new_agent(network, envs, "symbolic", 1, 0, missions), [EnvReward()], config, total_steps=steps, seed=1
    )
    rollouts: list[float] = []
    while not (ppo.done or np.mean(rollouts[-5:] or 0) > 0.95):  # once learnt, an update more can unlearn it
        rollouts.append(ppo.iterate()["rollout/success_rate"])
    episodes = list(play(ppo.agent, ReferenceVectorEnv(RECALL, Recall, 8), 100, seed=5, greedy=True))
    return float(np.mean(rollouts[-5:])), float(np.mean([episode.success for episode in episodes]))


@pytest.mark.parametrize("missions", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_recurrent_agent_does_what_it_was_shown(missions: bool) -> None:
    """With missions (here there is none) the unit's gradients are written out."""
    rollouts, success = trained("recurrent", missions)
    assert success == 1.0
    assert rollouts > 0.95


def test_an_agent_without_memory_can_only_guess() -> None:
    assert trained("compact", steps=6_000)[1] == pytest.approx(0.5, abs=0.15)
