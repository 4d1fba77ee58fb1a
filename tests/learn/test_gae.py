"""Advantages: closed forms, a naive reference, and what goes wrong without the care for truncation."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bkrl.agents.build import new_agent
from bkrl.agents.networks import ActorCritic
from bkrl.core.config import PPOConfig
from bkrl.data.views import Views
from bkrl.envs import make_vec
from bkrl.learn.ppo import PPO, gae
from bkrl.rewards.streams import EnvReward
from tests.learn.agents import agent_of


def naive_gae(rewards, values, next_values, ended, gamma, lam):
    """Equation 16 of Schulman et al. (2016), as the double sum that it is."""
    T, N, K = rewards.shape
    out = np.zeros((T, N, K))
    for n in range(N):
        for k in range(K):
            for t in range(T):
                weight = 1.0
                for later in range(t, T):
                    delta = rewards[later, n, k] + gamma[k] * next_values[later, n, k] - values[later, n, k]
                    out[t, n, k] += weight * delta
                    if ended[later, n, k]:
                        break
                    weight *= gamma[k] * lam
    return out


def test_against_the_naive_sum() -> None:
    rng = np.random.default_rng(0)
    T, N, K = 17, 3, 2
    rewards, values, next_values = (rng.normal(size=(T, N, K)).astype(np.float32) for _ in range(3))
    ended = rng.random((T, N, K)) < 0.2
    gamma = np.array([0.99, 0.9], np.float32)
    tensors = [torch.from_numpy(a) for a in (rewards, values, next_values, ended, gamma)]
    got = gae(*tensors, 0.95).numpy()
    assert np.allclose(got, naive_gae(rewards, values, next_values, ended, gamma, 0.95), atol=1e-4)


def test_four_steps_by_hand() -> None:
    """γ = λ = 1/2. The second step ends in success; the fourth is cut off before a state worth 4."""
    rewards, values, after = [0.0, 1.0, 0.0, 0.0], [2.0, 4.0, 8.0, 6.0], [4.0, 0.0, 6.0, 4.0]
    # TD errors: 0 + 4/2 - 2 = 0; 1 + 0 - 4 = -3; 0 + 6/2 - 8 = -5; 0 + 4/2 - 6 = -4
    # Advantages, from behind: -4; -5 + (-4)/4 = -6; -3; 0 + (-3)/4 = -0.75
    columns = [torch.tensor(column).reshape(4, 1, 1) for column in (rewards, values, after)]
    ended = torch.tensor([False, True, False, True]).reshape(4, 1, 1)
    got = gae(*columns, ended, torch.tensor([0.5]), 0.5)
    assert got.flatten().tolist() == [-0.75, -3.0, -6.0, -4.0]


def test_lambda_0_is_the_td_error_and_lambda_1_the_return() -> None:
    rng = np.random.default_rng(1)
    T = 12
    rewards, values = (torch.from_numpy(rng.normal(size=(T, 1, 1)).astype(np.float32)) for _ in range(2))
    next_values = torch.cat([values[1:], torch.zeros(1, 1, 1)])
    ended = torch.zeros(T, 1, 1, dtype=torch.bool)
    ended[-1] = True
    gamma = torch.tensor([0.9])
    assert torch.allclose(
        gae(rewards, values, next_values, ended, gamma, 0.0), rewards + 0.9 * next_values - values, atol=1e-6
    )
    returns = [sum(0.9**i * float(r) for i, r in enumerate(rewards[t:, 0, 0])) for t in range(T)]
    full = gae(rewards, values, next_values, ended, gamma, 1.0) + values
    assert np.allclose(full[:, 0, 0].numpy(), returns, atol=1e-5)


class Worth(ActorCritic):
    """A network that always acts alike and knows the value of every place."""

    def __init__(self, values, action: int, num_actions: int) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.as_tensor(values, dtype=torch.float32))
        self.logits = torch.full((num_actions,), -30.0)
        self.logits[action] = 30.0

    def forward(self, observations):
        return self.logits.expand(len(observations), -1), self.table[observations[:, 0].long()].unsqueeze(1)


def ppo_with(network, env_id: str, T: int, gamma: float = 0.9, lam: float = 1.0) -> PPO:
    config = PPOConfig(num_envs=2, num_steps=T, num_minibatches=1, gamma=gamma, gae_lambda=lam)
    ppo = PPO(make_vec(env_id, 2), agent_of(network, env_id), [EnvReward(gamma=gamma)], config, total_steps=10**6)
    metrics = ppo.iterate()
    assert np.isfinite(list(metrics.values())).all()
    return ppo


def test_truncation_bootstraps_and_termination_does_not() -> None:
    """Toy-Endless is cut every 20 steps: with the true value 1 / (1 - γ) the advantage of working is 0 throughout."""
    gamma = 0.9
    ppo = ppo_with(Worth([1 / (1 - gamma)], 1, 2), "Toy-Endless", 50, gamma)
    ppo.agent.module.table.data[:] = 1 / (1 - gamma)
    ppo.rewards[:, :, 0] = 1.0
    ppo.collector.values[:] = 1 / (1 - gamma)
    advantages, returns = ppo.advantages()
    assert ppo.collector.rollout.truncated.sum() == 4
    assert advantages.abs().max() < 1e-4
    assert torch.allclose(returns, torch.full_like(returns, 10.0), atol=1e-4)

    # Wrong without the care: taken for terminations, the same ends make a working agent's last steps look bad.
    ppo.collector.rollout.terminated[:], ppo.collector.rollout.truncated[:] = (
        ppo.collector.rollout.truncated.copy(),
        False,
    )
    advantages, _ = ppo.advantages()
    assert advantages[19].max() == pytest.approx(1 - 10, abs=1e-4)


def test_termination_is_worth_nothing_whatever_the_critic_says() -> None:
    """Walking right in Toy-Chain ends every 8 steps; a critic that raves about all places is not believed there."""
    ppo = ppo_with(Worth(np.full(9, 100.0), 1, 2), "Toy-Chain", 16)
    ppo.agent.module.table.data[:] = 100.0
    ppo.collector.values[:] = 100.0
    advantages, _ = ppo.advantages()
    assert ppo.collector.rollout.terminated[[7, 15]].all()
    assert advantages[7].max() == pytest.approx(1 - 100, abs=1e-3)


def test_truncation_uses_the_true_last_observation() -> None:
    """Toy-Grid going up and staying there is cut in its top row; the next episode begins elsewhere."""
    values = np.linspace(0, 24, 25)
    ppo = ppo_with(Worth(values, 0, 4), "Toy-Grid", 41, gamma=0.9, lam=0.0)
    ppo.agent.module.table.data = torch.as_tensor(values, dtype=torch.float32)
    r = ppo.collector.rollout
    (index,) = np.flatnonzero(r.final_index % 2 == 0)
    assert r.truncated[39, 0]
    assert r.final_views.symbols[index, 0] < 5
    start = r.views.symbols[0, 0, 0]
    assert r.final_views.symbols[index, 0] == start % 5
    ppo.collector.values[:, :, 0] = torch.as_tensor(values, dtype=torch.float32)[
        torch.from_numpy(r.views.symbols[:41, :, 0]).long()
    ]
    advantages, _ = ppo.advantages()
    assert float(advantages[39, 0, 0]) == pytest.approx(0.9 * (start % 5) - start % 5, abs=1e-4)


def test_streams_that_are_not_episodic_run_on() -> None:
    config = PPOConfig(num_envs=2, num_steps=16, num_minibatches=1, gae_lambda=1.0)
    envs = make_vec("Toy-Chain", 2)
    streams = [EnvReward(gamma=0.9), EnvReward(gamma=0.9, episodic=False)]
    ppo = PPO(envs, new_agent("compact", envs, "symbolic", 2, 0), streams, config, total_steps=10**6)
    ppo.iterate()
    ppo.collector.rollout.terminated[:], ppo.collector.rollout.truncated[:] = False, False
    ppo.collector.rollout.terminated[7] = True
    ppo.collector.rollout.final_index = np.array([14, 15])
    ppo.collector.final_views = Views(np.array([[8], [8]], np.uint8))
    ppo.collector.values[:], ppo.rewards[:] = 0.0, 1.0
    with torch.no_grad():
        ppo.agent.module.head.weight.zero_()
        ppo.agent.module.head.bias.zero_()
    _, returns = ppo.advantages()
    assert returns[0, 0, 0] == pytest.approx((1 - 0.9**8) / 0.1, abs=1e-4)
    assert returns[0, 0, 1] == pytest.approx((1 - 0.9**16) / 0.1, abs=1e-4)
