"""Learning from a teacher: the loss in closed form, its weight, who is asked, and what a checkpoint holds of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from bkrl.agents.bot import BotAgent
from bkrl.agents.build import new_agent
from bkrl.agents.protocol import Acted
from bkrl.agents.random import RandomAgent
from bkrl.agents.viewer import Viewer
from bkrl.core.config import PPOConfig
from bkrl.core.errors import InputError
from bkrl.core.seeds import derive_seed
from bkrl.data.views import Views
from bkrl.envs import env_spec, make_vec
from bkrl.learn.imitation import Imitation
from bkrl.learn.ppo import PPO
from bkrl.learn.protocol import Saved
from bkrl.rewards.streams import EnvReward

ENV = "BabyAI-GoToLocal-v0"
ROOM = "BabyAI-MixedTrainLocal-v0@task_kinds=goto,room_size=5,num_dists=0,actions=restricted"
CONFIG = PPOConfig(num_envs=8, num_steps=16, num_minibatches=2, update_epochs=2)


def learner(teacher: Any, weight: float = 0.5, until: int = 512, env: str = ENV, **changes: Any) -> PPO:
    envs = make_vec(env, changes.get("num_envs", 8))
    agent = new_agent("compact", envs, "symbolic", 1, 0, missions=True)
    config = CONFIG if not changes else PPOConfig(**{**CONFIG.__dict__, **changes})
    return PPO(
        envs, agent, [EnvReward()], config, total_steps=10**6, seed=1,
        teacher=teacher, imitation=teacher and Imitation(weight, until),
    )  # fmt: skip


def test_the_loss_is_the_divergence_from_the_teacher_and_its_weight_falls() -> None:
    ppo = learner(BotAgent.of(ENV))
    imitation: Any = ppo.imitation
    ppo.iterate()
    assert imitation.now == 0.5
    imitation.begin(ppo.collector)
    logits = torch.randn(128, 7, generator=torch.Generator().manual_seed(0))
    chosen = ppo.collector.taught.flatten(0, 1).argmax(-1)
    index = torch.arange(128)
    wanted = torch.nn.functional.cross_entropy(logits, chosen)
    torch.testing.assert_close(imitation.loss(index, logits), 0.5 * wanted)
    ppo.collector.taught.copy_(torch.randn(ppo.collector.taught.shape, generator=torch.Generator().manual_seed(1)))
    imitation.begin(ppo.collector)
    other = torch.distributions.Categorical(logits=ppo.collector.taught.flatten(0, 1))
    kl = torch.distributions.kl_divergence(other, torch.distributions.Categorical(logits=logits)).mean()
    torch.testing.assert_close(imitation.loss(index, logits), 0.5 * kl)
    ppo.iterate()
    assert imitation.now == pytest.approx(0.5 * (1 - 128 / 512))
    for _ in range(3):
        figures = ppo.iterate()
    assert figures["imitate/weight"] == 0
    assert 0 <= figures["imitate/agreement"] <= 1


def test_the_bot_is_asked_in_each_state_and_does_not_act() -> None:
    ppo = learner(BotAgent.of(ENV))
    ppo.iterate()
    bot, envs, rollout = BotAgent.of(ENV), make_vec(ENV, 8), ppo.collector.rollout
    seen, state = Viewer(envs, bot), bot.begin(8)
    observations, _ = envs.reset(seed=derive_seed(1, "worlds"))
    for t, actions in enumerate(rollout.actions):
        started = rollout.ages[t] == 0
        said = bot.act(seen(observations, started), state, started, None)
        np.testing.assert_array_equal(ppo.collector.taught[t], said.logits)
        state, observations = said.state, envs.step(actions)[0]
    assert (ppo.collector.taught.argmax(-1).numpy() != rollout.actions).mean() > 0.3


@pytest.mark.parametrize("teacher", ["bot", "recurrent"])
def test_a_checkpoint_holds_what_the_teacher_remembers(teacher: str) -> None:
    def made() -> PPO:
        if teacher == "bot":
            return learner(BotAgent.of(ENV))
        return learner(new_agent("recurrent", make_vec(ENV, 1), "symbolic", 1, 5, missions=True))

    one, other = made(), made()
    one.iterate()
    saved = one.state()
    kept = {name: np.asarray(tensor) for name, tensor in saved.tensors.items()}
    other.restore(Saved(kept, saved.counters, True))
    figures, again = one.iterate(), other.iterate()
    assert torch.equal(one.collector.taught, other.collector.taught)
    for name in ("ppo/loss", "imitate/kl", "rollout/reward"):
        assert figures[name] == again[name]


def test_what_a_teacher_said_before_a_checkpoint_has_no_part_in_what_it_says_later() -> None:
    """The last digits of a network hang on how many rows it is given; a run that goes on has asked about none yet.

    A language model keeps what its frozen layers made of prompts until it begins, and nobody told a teacher to begin.
    """

    class Counting(RandomAgent):
        wants = ("symbols",)

        def begin(self, num_envs: int) -> Any:
            self.acts = 0
            return super().begin(num_envs)

        def act(self, views: Views, state: Any, started: Any, noise: Any) -> Acted:
            self.acts += 1
            logits = np.full((len(views), 7), 1000 * self.acts + len(views), "f4")
            return replace(super().act(views, state, started, noise), logits=logits)

    facts = env_spec(ENV)
    one, other = (learner(Counting(ENV, facts.family, facts.action_names), num_envs=32) for _ in range(2))
    one.iterate()
    saved = one.state()
    other.restore(Saved({name: np.asarray(tensor) for name, tensor in saved.tensors.items()}, saved.counters, True))
    one.iterate()
    other.iterate()
    assert torch.equal(one.collector.taught, other.collector.taught)


def test_it_learns_from_the_bot_alone_what_rewards_would_take_long_to_teach() -> None:
    ppo = learner(BotAgent.of(ROOM), weight=1.0, until=10**6, env=ROOM, num_steps=64, update_epochs=4)
    agreed = [ppo.iterate()["imitate/agreement"] for _ in range(12)]
    assert np.mean(agreed[-3:]) > agreed[0] + 0.2


def test_an_update_ends_before_the_target_is_passed() -> None:
    how: Any = {"learning_rate": 1e-3, "update_epochs": 8, "num_minibatches": 4}
    far, near = learner(None, **how), learner(None, **how, target_kl=0.01)
    before = [parameter.detach().clone() for parameter in near.parameters]
    assert far.iterate()["ppo/epochs"] == 8
    assert near.iterate()["ppo/epochs"] < 8
    moved = [(one - other).norm() for one, other in zip(near.parameters, before, strict=True)]
    assert 0 < sum(moved) < sum((one - other).norm() for one, other in zip(far.parameters, before, strict=True))


@pytest.mark.parametrize("rate", [1e-2, 1e-1])
def test_a_step_that_passes_the_target_by_far_is_taken_back(rate: float) -> None:
    """Steps of Adam have a length of their own: its first one alone moves every weight by the learning rate."""
    ppo = learner(None, update_epochs=2, num_minibatches=2, learning_rate=rate, target_kl=0.01)
    start = [parameter.detach().clone() for parameter in ppo.parameters]
    passed = []
    for _ in range(12):
        figures = ppo.iterate()
        views, before = ppo.collector.views[: ppo.collector.num_steps].flat(), ppo.collector.logits.flatten(0, 1)
        with torch.no_grad():
            now, _, _ = ppo.agent.forward(ppo.agent.inputs(views), {}, None)
        apart = (before.softmax(-1) * (before.log_softmax(-1) - now.log_softmax(-1))).sum(-1).mean()
        passed.append(float(apart))
    assert max(passed) < 0.03  # one minibatch of two shows it; without, the largest is above 1
    assert figures["ppo/caution"] < 1
    assert not all(map(torch.equal, start, ppo.parameters))
    assert make_again(ppo).caution == ppo.caution


def test_the_target_holds_ppo_and_not_what_a_teacher_teaches() -> None:
    """PPO alone would end its first update here; with a teacher it does so once the teacher's weight is 0."""
    how: Any = {"learning_rate": 5e-3, "update_epochs": 8, "num_minibatches": 4, "target_kl": 0.01}
    ppo, alone = learner(BotAgent.of(ENV), 1.0, 256, **how), learner(None, **how)
    assert alone.iterate()["ppo/epochs"] < 8
    assert alone.caution < 1
    for _ in range(2):
        figures = ppo.iterate()
        assert figures["ppo/epochs"] == 8
        assert figures["ppo/caution"] == 1
        assert figures["ppo/approx_kl"] > 0.01
    assert "kl" not in ppo.warnings({**figures, "ppo/approx_kl": 1.0})
    last = ppo.iterate()
    assert last["imitate/weight"] == 0
    assert last["ppo/epochs"] < 8
    assert "kl" in ppo.warnings({**last, "ppo/approx_kl": 1.0})


def make_again(ppo: PPO) -> PPO:
    saved, other = ppo.state(), learner(None, target_kl=0.01)
    other.restore(Saved({name: np.asarray(one) for name, one in saved.tensors.items()}, saved.counters, True))
    return other


def test_a_checkpoint_of_an_earlier_record_of_rollouts_is_refused_in_a_sentence() -> None:
    ppo = learner(BotAgent.of(ENV))
    ppo.iterate()
    saved = ppo.state()
    tensors = {name: np.asarray(one) for name, one in saved.tensors.items() if name != "rollout.past"}
    with pytest.raises(InputError, match="of an earlier bkrl, which this one cannot continue; pass --fresh"):
        learner(BotAgent.of(ENV)).restore(Saved(tensors, saved.counters, True))
