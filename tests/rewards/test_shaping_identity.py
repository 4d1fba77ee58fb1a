"""Exact shaping and PPO together: every advantage is the unshaped one when the critic starts at -Φ.

With rewards r + γΦ(h') - Φ(h) and values V(s) - Φ(h) each TD error is that of r and V (Wiewiora, 2003), also where an
episode terminates (Φ = 0) or is cut off (Φ of the true last observation, V bootstrapped there).
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bkrl.agents.networks import ActorCritic
from bkrl.core.config import PPOConfig
from bkrl.data.windows import Reads, Windows
from bkrl.envs import make_vec
from bkrl.learn.hardware import CPU, Hardware
from bkrl.learn.ppo import PPO
from bkrl.rewards.shaped import ShapedReward
from tests.learn.agents import agent_of

GAMMA = 0.9


class Places(ActorCritic):
    """Uniformly random actions, and a table of values."""

    def __init__(self, values: np.ndarray, num_actions: int) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.as_tensor(values, dtype=torch.float32))
        self.num_actions = num_actions

    def forward(self, observations):
        logits = torch.zeros(len(observations), self.num_actions, device=observations.device)
        return logits, self.table[observations[:, 0].long()].unsqueeze(1)


class OfThePlace:
    reads = Reads(0)

    def __init__(self, values: np.ndarray) -> None:
        self.values = values.astype(np.float32)

    def __call__(self, windows: Windows) -> np.ndarray:
        return self.values[windows.observations[:, -1, 0]]


def advantages(
    env_id: str, values: np.ndarray, phi: np.ndarray, device: torch.device = CPU.device
) -> tuple[np.ndarray, PPO]:
    config = PPOConfig(num_envs=4, num_steps=60, num_minibatches=1, gamma=GAMMA, learning_rate=0.0)
    envs = make_vec(env_id, 4)
    stream = ShapedReward(OfThePlace(phi), GAMMA)
    network = Places(values - phi, int(envs.single_action_space.n))
    ppo = PPO(envs, agent_of(network, env_id), [stream], config, total_steps=10**6, seed=1, hardware=Hardware(device))
    ppo.iterate()
    return ppo.advantages()[0].cpu().numpy(), ppo


@pytest.mark.parametrize("env_id", ["Toy-TwoExits", "Toy-Grid", "Toy-Endless"])
def test_advantages_are_the_unshaped_ones(env_id: str, device: torch.device) -> None:
    rng = np.random.default_rng(0)
    places = make_vec(env_id, 1).single_observation_space.high[0] + 1
    values, phi = rng.normal(size=places), -rng.random(places)
    plain, ppo = advantages(env_id, values, np.zeros(places), device)
    shaped, _ = advantages(env_id, values, phi, device)
    assert ppo.collector.rollout.truncated.any() or ppo.collector.rollout.terminated.any()
    assert np.allclose(plain, shaped, atol=1e-4)


def test_a_critic_that_does_not_know_the_potential_sees_other_advantages() -> None:
    """The equality above is no accident: with one critic for both it does not hold."""
    values, phi = np.zeros(25), -np.random.default_rng(0).random(25)
    plain, _ = advantages("Toy-Grid", values, np.zeros(25))
    config = PPOConfig(num_envs=4, num_steps=60, num_minibatches=1, gamma=GAMMA, learning_rate=0.0)
    ppo = PPO(
        make_vec("Toy-Grid", 4),
        agent_of(Places(values, 4), "Toy-Grid"),
        [ShapedReward(OfThePlace(phi), GAMMA)],
        config,
        total_steps=1,
        seed=1,
    )
    ppo.iterate()
    assert not np.allclose(plain, ppo.advantages()[0].numpy(), atol=1e-2)
