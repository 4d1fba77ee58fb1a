"""A critic of its own: whitening, fitting against ridge regression, and that the model learns nothing from it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bkrl.agents.bot import BotAgent
from bkrl.agents.build import new_agent
from bkrl.agents.language.agent import LanguageAgent, LanguageSettings
from bkrl.agents.language.catalogue import open_language_model
from bkrl.agents.language.heads import Critic
from bkrl.core.config import PPOConfig
from bkrl.envs import make_vec
from bkrl.learn.critic import CriticLearner
from bkrl.learn.hardware import Hardware
from bkrl.learn.imitation import Imitation
from bkrl.learn.losses import explained_variance
from bkrl.learn.ppo import PPO
from bkrl.rewards.streams import EnvReward

ENV = "BabyAI-MixedTrainLocal-v0@task_kinds=goto,room_size=5,num_dists=0,actions=restricted"


def agent_of(own: bool = True) -> LanguageAgent:
    settings = LanguageSettings(head_sizes=(16, 16), head_activation="relu", own_critic=own, observations=1)
    return LanguageAgent(open_language_model("tiny-t5", seed=0), ENV, 1, settings)


def situations(count: int, seed: int, width: int = 24) -> tuple[Tensor, Tensor]:
    """States whose variance spans six orders, and returns that hang on those that vary least; a third of them noise."""
    draw = torch.Generator().manual_seed(seed)
    free = torch.randn(count, width, generator=draw)
    turned = torch.linalg.qr(torch.randn(width, width, generator=torch.Generator().manual_seed(7))).Q
    states = 5 + (free * torch.logspace(1, -2, width)) @ turned
    returns = free[:, -6:].sum(1, keepdim=True) / 6**0.5 + 0.7 * torch.randn(count, 1, generator=draw)
    return states, 3 + 0.2 * returns


def critic_of(width: int) -> Any:
    class Owner:
        module = torch.nn.Module()

    owner: Any = Owner()
    critic = Critic(width, 1, (64, 64), "relu", torch.Generator().manual_seed(1))
    owner.module.heads = torch.nn.ModuleDict({"value": critic})
    return CriticLearner(owner, learning_rate=1e-3)


def test_whitened_states_are_uncorrelated_and_of_one_size() -> None:
    states, returns = situations(5_000, 0)
    critic = Critic(states.shape[1], 1, (4,), "relu", torch.Generator())
    assert not critic.prepared
    critic.prepare(states, returns)
    made = (states - critic.mean) @ critic.whitening
    covariance = np.cov(made.numpy().T)
    assert np.abs(covariance - np.diag(np.diag(covariance))).max() < 1e-2
    assert np.diag(covariance).max() == pytest.approx(1, abs=0.01)
    assert critic.prepared
    assert (float(critic.offset), float(critic.scale)) == pytest.approx(
        (float(returns.mean()), float(returns.std())), rel=1e-3
    )


def test_it_explains_as_much_of_unseen_rollouts_as_ridge_regression() -> None:
    learner = critic_of(24)
    seen = []
    for rollout in range(12):
        states, returns = situations(1_280, rollout)
        seen.append((states, returns))
        learner.fit(states, returns, torch.arange(1_280) % 4 == rollout % 4)
        learner.rollouts += 1
    states, returns = situations(4_000, 99)
    x, y = (torch.cat(part).double() for part in zip(*seen, strict=True))
    centred = x - x.mean(0)
    weights = torch.linalg.solve(centred.T @ centred + torch.eye(24), centred.T @ (y - y.mean(0)))
    ridge = explained_variance((states.double() - x.mean(0)) @ weights + y.mean(0), returns.double())
    with torch.no_grad():
        own = explained_variance(learner.critic(states), returns)
    assert ridge > 0.6
    assert own > ridge - 0.05
    assert learner.updates > 100


def test_it_stops_where_the_held_out_error_no_longer_falls_and_keeps_the_best() -> None:
    learner = critic_of(24)
    states, _ = situations(256, 0)
    noise = torch.randn(256, 1, generator=torch.Generator().manual_seed(3))
    held = torch.arange(256) % 4 == 0
    _, least = learner.fit(states, noise, held)
    with torch.no_grad():
        now = ((learner.critic(states[held]) - noise[held]) / learner.critic.scale).square().mean()
    assert float(now) == pytest.approx(least)
    assert least < 1.3  # nothing can be learnt, and nothing is made of it


def test_what_it_says_is_drawn_to_its_mean_by_the_slope_of_regression() -> None:
    states, returns = situations(400, 0)
    two = torch.cat([returns, -returns, 3 * returns], 1) + 100
    critic = Critic(24, 3, (8,), "relu", torch.Generator().manual_seed(1))
    critic.prepare(states, two)
    with torch.no_grad():
        said = critic(states)
        critic.shrink(states, two)
        now = critic(states)
    for k in range(3):
        slope = min(1.0, max(0.0, float(np.polyfit(said[:, k].numpy(), two[:, k].numpy(), 1)[0])))
        mean = said[:, k].mean()
        assert torch.allclose(now[:, k], mean + slope * (said[:, k] - mean), atol=1e-5)
    assert (now.std(0) < 1e-5).tolist().count(True) >= 1  # one of opposite returns falls where the other rises
    one = critic(states[:1])
    critic.shrink(states[:1], two[:1])  # of one state alone there is no slope
    assert torch.allclose(critic(states[:1]), one)


def test_once_there_is_nothing_left_to_explain_it_says_nothing() -> None:
    """What it had learnt before went on, and it explained -.07 to -.53 of rollouts in which all returns were alike."""
    learner = critic_of(24)
    explained = []
    for rollout in range(5):
        states, returns = situations(256, rollout)
        if rollout >= 2:
            returns = 3 + 0.05 * torch.randn(256, 1, generator=torch.Generator().manual_seed(100 + rollout))
        with torch.no_grad():
            explained.append(float(explained_variance(learner.critic(states), returns)))
        learner.fit(states, returns, torch.arange(256) % 4 == rollout % 4)
        learner.rollouts += 1
    assert min(explained[3:]) > -0.03


@pytest.mark.parametrize(("T", "N"), [(2, 1), (3, 1), (1, 2), (2, 2), (1, 3)])
def test_of_the_smallest_rollouts_too_something_is_held_out(T: int, N: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was, of one in two or more of them, and training ended as if the critic had diverged."""
    learner = critic_of(24)
    states, returns = situations(T * N, 0)
    monkeypatch.setattr(learner, "_states", lambda collector: (states, torch.arange(T * N)))
    for _ in range(5):
        found = learner.learn(None, torch.zeros(T, N, 1), returns.view(T, N, 1), torch.ones(T, N, dtype=torch.bool))
        assert np.isfinite(found["critic/held_out_loss"])


def test_explained_variance() -> None:
    returns = torch.tensor([[0.0], [1.0], [2.0], [3.0]])
    assert explained_variance(returns, returns) == 1
    assert explained_variance(returns * 0, returns) == 0
    assert explained_variance(returns + 5, returns) == pytest.approx(1)
    assert explained_variance(-returns, returns) == pytest.approx(-3)
    assert explained_variance(returns, returns * 0) == 0


def test_ppo_trains_the_policy_and_leaves_the_critic_to_its_learner() -> None:
    agent = agent_of()
    critic = CriticLearner(agent, learning_rate=1e-3, first=30)
    config = PPOConfig(num_envs=8, num_steps=16, num_minibatches=2, update_epochs=1)
    ppo = PPO(make_vec(ENV, 8), agent, [EnvReward()], config, total_steps=10**6, seed=1, critic=critic)
    own = set(map(id, agent.module.heads["value"].parameters()))
    assert not own & set(map(id, ppo.parameters))

    def body() -> list[Tensor]:
        return [parameter.detach().clone() for parameter in ppo.parameters]

    waited, first = 0, body()
    while not critic.ready:
        figures = ppo.iterate()
        assert "ppo/loss" not in figures
        assert ppo.warnings(figures) == {}
        assert all(map(torch.equal, first, body()))
        waited += 1
    assert 1 <= waited < 30
    before = [parameter.detach().clone() for parameter in agent.module.heads["value"].parameters()]
    ppo.update(*ppo.advantages())
    assert not all(map(torch.equal, first, body()))
    assert all(map(torch.equal, before, agent.module.heads["value"].parameters()))
    figures = ppo.iterate()
    assert {"ppo/loss", "critic/explained_variance", "critic/held_out_loss", "critic/updates"} <= figures.keys()


def test_a_return_that_the_critic_has_a_part_in_says_nothing_of_how_much_it_explains() -> None:
    """Where a time limit ends an episode, its return holds what the critic says of the last view."""
    envs = make_vec("Toy-Grid", 8)
    config = PPOConfig(num_envs=8, num_steps=64)
    ppo = PPO(envs, new_agent("compact", envs, "symbolic", 1, 0), [EnvReward()], config, total_steps=10**6, seed=3)
    told: list[Tensor] = []
    ppo.critic = SimpleNamespace(ready=True, learn=lambda *given: told.append(given[3]) or {})  # type: ignore[assignment]
    ppo.iterate()
    r = ppo.collector.rollout
    known, running = np.zeros((64, 8), bool), np.zeros(8, bool)
    for t in range(63, -1, -1):
        known[t] = running = np.where(r.terminated[t] | r.truncated[t], r.terminated[t], running)
    assert r.truncated.any()
    assert np.array_equal(told[0].numpy(), known)


def test_it_learns_from_states_as_they_are_when_the_agent_acts(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = agent_of()
    critic = CriticLearner(agent, learning_rate=1e-3)
    halved: dict[str, bool] = {}

    def noted(name: str, call: Any) -> Any:
        def noting(*given: Any) -> Any:
            halved[name] = torch.is_autocast_enabled("cpu")
            return call(*given)

        return noting

    monkeypatch.setattr(agent, "states", noted("states", agent.states))
    monkeypatch.setattr(critic, "fit", noted("fit", critic.fit))
    config = PPOConfig(num_envs=4, num_steps=4, num_minibatches=1, update_epochs=1)
    ppo = PPO(
        make_vec(ENV, 4), agent, [EnvReward()], config, total_steps=10**6, seed=1, critic=critic,
        hardware=Hardware(precision="bf16"),
    )  # fmt: skip
    ppo.iterate()
    assert halved == {"states": True, "fit": False}


def test_what_it_has_measured_is_saved_with_the_policy(tmp_path: Any) -> None:
    agent = agent_of()
    critic = agent.module.heads["value"]
    critic.prepare(torch.randn(50, agent.lm.width), torch.randn(50, 1))
    assert {"heads.value.mean", "heads.value.whitening", "heads.value.scale"} <= agent.module.state_dict().keys()
    agent.save(tmp_path)
    again = LanguageAgent.load(tmp_path).module.heads["value"]
    state = torch.randn(3, agent.lm.width)
    assert torch.equal(again(state), critic(state))
    critic(state.requires_grad_()).sum().backward()
    assert state.grad is None


def test_the_policy_learns_from_its_teacher_while_the_critic_is_first() -> None:
    agent = agent_of()
    critic = CriticLearner(agent, learning_rate=1e-3, first=10**6)
    config = PPOConfig(num_envs=8, num_steps=16, num_minibatches=2, update_epochs=1, ent_coef=0.0)
    ppo = PPO(
        make_vec(ENV, 8), agent, [EnvReward()], config, total_steps=10**6, seed=1, critic=critic,
        teacher=BotAgent.of(ENV), imitation=Imitation(1.0, 10**6),
    )  # fmt: skip
    before = [parameter.detach().clone() for parameter in ppo.parameters]
    figures = ppo.iterate()
    assert not critic.ready
    assert figures["ppo/policy_loss"] == 0
    assert figures["imitate/kl"] > 0
    assert not all(map(torch.equal, before, ppo.parameters))


def test_the_policy_waits_for_the_critic_once_its_teacher_has_no_weight() -> None:
    """The entropy bonus alone moved it then."""
    agent = agent_of()
    critic = CriticLearner(agent, learning_rate=1e-3, first=10**6)
    config = PPOConfig(num_envs=8, num_steps=16, num_minibatches=2, update_epochs=1, ent_coef=0.1)
    ppo = PPO(
        make_vec(ENV, 8), agent, [EnvReward()], config, total_steps=10**6, seed=1, critic=critic,
        teacher=BotAgent.of(ENV), imitation=Imitation(1.0, 128),
    )  # fmt: skip
    assert "imitate/kl" in ppo.iterate()
    taught = [parameter.detach().clone() for parameter in ppo.parameters]
    figures = ppo.iterate()
    assert not critic.ready
    assert "ppo/loss" not in figures
    assert "critic/updates" in figures
    assert all(map(torch.equal, taught, ppo.parameters))
    assert ppo.iteration == 2


def test_the_critic_is_first_until_it_explains_no_more_of_a_rollout_than_of_the_last() -> None:
    agent = agent_of()
    critic = CriticLearner(agent, learning_rate=0.0, first=10**6)  # it learns nothing, so there is no gain in waiting
    config = PPOConfig(num_envs=8, num_steps=16, num_minibatches=2, update_epochs=1)
    ppo = PPO(make_vec(ENV, 8), agent, [EnvReward()], config, total_steps=10**6, seed=1, critic=critic)
    waited = 0
    while not critic.ready and waited < 20:
        ppo.iterate()
        waited += 1
    assert 3 <= waited < 20
    other = CriticLearner(agent, learning_rate=0.0, first=10**6)
    other.restore({name: np.asarray(one) for name, one in critic.state().items()})
    assert other.ready
    assert other.explained == critic.explained
