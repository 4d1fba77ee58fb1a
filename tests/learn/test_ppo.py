"""PPO as a whole: it solves envs whose answer is known, and its parts keep their promises."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bkrl.agents.build import new_agent
from bkrl.core.config import PPOConfig
from bkrl.core.errors import UsageError
from bkrl.data.windows import Reads
from bkrl.envs import make_vec, toy
from bkrl.learn.hardware import Hardware
from bkrl.learn.ppo import PPO, Diverged
from bkrl.learn.rollout import Clock
from bkrl.rewards.streams import EnvReward

SMALL = PPOConfig(num_envs=16, num_steps=64, num_minibatches=4, learning_rate=3e-3)


def make_ppo(env_id: str, seed: int = 0, steps: int = 40_000, streams=None, config=SMALL, **options) -> PPO:
    envs = make_vec(env_id, config.num_envs)
    streams = streams or [EnvReward(gamma=config.gamma)]
    agent = new_agent("compact", envs, "symbolic", len(streams), seed)
    return PPO(envs, agent, streams, config, total_steps=steps, seed=seed, **options)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
@pytest.mark.parametrize(
    "env_id",
    [*(pytest.param(one, marks=pytest.mark.slow) for one in ("Toy-Chain", "Toy-Grid")), "Toy-TwoExits", "Toy-Endless"],
)
def test_solves_toy_envs(env_id: str, seed: int) -> None:
    torch.set_num_threads(1)
    ppo = make_ppo(env_id, seed, steps=30_000 if env_id == "Toy-Grid" else 20_000)
    while not ppo.done:
        ppo.iterate()
    table = toy.table(env_id)
    q = toy.optimal_values(table, 0.99)
    acted = ~np.isin(np.arange(table.num_states), table.next_state[table.terminated])
    with torch.no_grad():
        logits, values = ppo.agent.module(torch.arange(table.num_states, dtype=torch.uint8)[:, None])
    greedy = logits.argmax(1).numpy()
    assert np.isclose(q[np.arange(len(q)), greedy], q.max(1))[acted].all()
    if env_id == "Toy-Endless":  # 18.2 would be the value of 20 steps with nothing after them
        assert values[0, 0] > 40
    else:
        assert np.abs(values[:, 0].numpy() - q.max(1))[acted].max() < 0.1


def test_first_minibatch_ratio_is_1(device: torch.device) -> None:
    """Before the first gradient step the new policy is the old one: the ratio is 1, the KL 0, nothing is clipped."""
    config = PPOConfig(num_envs=16, num_steps=64, num_minibatches=1, update_epochs=1)
    ppo = make_ppo("Toy-Grid", config=config, hardware=Hardware(device))
    metrics = ppo.iterate()
    assert abs(metrics["ppo/approx_kl"]) < 1e-6
    assert metrics["ppo/clip_fraction"] == 0.0
    assert abs(metrics["ppo/policy_loss"]) < 1e-5  # mean of normalised advantages


def test_sampled_actions_follow_the_logits() -> None:
    ppo = make_ppo("Toy-Endless", config=PPOConfig(num_envs=64, num_steps=128, learning_rate=0.0))
    with torch.no_grad():
        ppo.agent.module.head.weight.zero_()
        ppo.agent.module.head.bias[:2] = torch.tensor([0.0, np.log(3.0)])
    ppo.iterate()
    assert ppo.collector.rollout.actions.mean() == pytest.approx(0.75, abs=0.02)


def test_history_reaches_across_rollouts() -> None:
    class Remembering(EnvReward):
        pass

    stream = Remembering()
    stream.reads = Reads(3)
    config = PPOConfig(num_envs=2, num_steps=8, num_minibatches=1)
    ppo = make_ppo("Toy-Chain", streams=[stream], config=config)
    ppo.iterate()
    r = ppo.collector.rollout
    tail, actions, age = r.views.symbols[5:9].copy(), r.actions[5:].copy(), r.ages[8].copy()
    ppo.iterate()
    assert np.array_equal(np.concatenate([r.past, r.views.symbols[:1]]), tail)
    assert np.array_equal(r.past_actions, actions)
    assert np.array_equal(r.ages[0], age)
    windows = r.windows(3, 0, 0)
    assert np.array_equal(windows.observations[:, -1], tail[-1])


def test_stored_observations_are_what_the_policy_saw(device: torch.device) -> None:
    """Without history, with it, and over autoresets, row t of storage and the logits of row t belong together."""
    for horizon in (0, 4):
        stream = EnvReward()
        stream.reads = Reads(horizon)
        ppo = make_ppo("Toy-Grid", streams=[stream], hardware=Hardware(device))
        ppo.iterate()
        ppo.collector.collect(Clock())
        r = ppo.collector.rollout
        with torch.no_grad():
            seen = torch.from_numpy(r.views.symbols[:64]).flatten(0, 1)
            logits, values = ppo.agent.module(seen.to(device))
        assert torch.allclose(logits.view(64, 16, -1), ppo.collector.logits, atol=1e-5)
        assert torch.allclose(values.view(64, 16, -1), ppo.collector.values, atol=1e-5)


def test_losses_that_are_not_finite_stop_the_run() -> None:
    class Broken(EnvReward):
        def rewards(self, rollout):
            return np.full_like(rollout.rewards, np.nan)

    with pytest.raises(Diverged, match="not finite"):
        make_ppo("Toy-Chain", streams=[Broken()]).iterate()


def test_options() -> None:
    annealed = make_ppo("Toy-Chain", steps=2048, config=PPOConfig(num_envs=16, num_steps=64, anneal_lr=True))
    assert annealed.iterate()["ppo/learning_rate"] == pytest.approx(1e-3)
    assert annealed.iterate()["ppo/learning_rate"] == pytest.approx(5e-4)
    held = make_ppo("Toy-Chain", config=PPOConfig(num_envs=16, num_steps=64, target_kl=1e-9))
    assert held.iterate()["ppo/epochs"] == 0  # its second minibatch is not learnt from any more
    with pytest.raises(UsageError, match="do not divide into 7"):
        PPOConfig(num_minibatches=7)
    with pytest.raises(UsageError, match="nothing to compare with"):
        PPOConfig(num_envs=1, num_steps=1, num_minibatches=1)
    envs = make_vec("Toy-Chain", 8)  # else the minibatches that the settings promise would not come out even
    with pytest.raises(ValueError, match="8 envs for a configuration of 16"):
        PPO(envs, new_agent("compact", envs, "symbolic", 1, 0), [EnvReward()], SMALL, total_steps=1)


def test_two_streams_add_up_their_advantages() -> None:
    """Two copies of the reward with half the weight each are the reward."""
    one = make_ppo("Toy-TwoExits", streams=[EnvReward()])
    two = make_ppo("Toy-TwoExits", streams=[EnvReward(coef=0.5), EnvReward(coef=0.5)])
    one.iterate()
    two.collector.collect(Clock())
    two.rewards[:] = one.rewards
    two.collector.values[:] = one.collector.values
    for ppo in (one, two):
        for parameter in ppo.agent.module.head.parameters():
            parameter.data.zero_()
    (a, _), (b, _) = one.advantages(), two.advantages()
    assert torch.allclose((a * one.coef).sum(-1), (b * two.coef).sum(-1), atol=1e-6)
