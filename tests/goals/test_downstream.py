"""Downstream: what was learnt without a reward serves a task that pays once, when it is done (paper, section 5)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from bkrl.core.errors import UsageError
from bkrl.core.reporter import Reporter
from bkrl.envs import make_vec
from bkrl.learn.settings import DQNConfig, PQNConfig
from bkrl.methods import TrainRsConfig, find_method
from bkrl.methods.values import FINETUNING_EPSILON
from bkrl.stages import train_rs

PQN = PQNConfig(num_envs=8, num_steps=16, num_minibatches=2)
DQN = DQNConfig(num_envs=8, learning_starts=64, batch_size=16, update_every=16)
RECALLED = (
    "PlaceCraftingTable", "AttackCow", "MakeWoodSword", "MineStone", "Deforestation", "Gardening", "PlantRow",
)  # fmt: skip
"""The tasks of the paper, as far as they are recalled."""


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "goals"
    settings = TrainRsConfig(
        "ellm", out=out, env="Crafter-Typed-Harder@length=40", steps=256, eval_every=256, eval_episodes=1, pqn=PQN
    )
    return train_rs.run(settings, Reporter()).path


def built(env, **more):
    return find_method("ellm").build(TrainRsConfig("ellm", env=env, suggester="task", env_coef=1.0, pqn=PQN, **more))


@pytest.mark.parametrize("task", RECALLED)
def test_each_task_begins_with_the_weights_and_pays_only_when_it_is_done(pretrained, task):
    learner = built(f"Crafter-Typed-{task}", init_from=pretrained).learner
    kept = load_file(pretrained / "policy.safetensors")
    for name, tensor in learner.agent.module.state_dict().items():
        np.testing.assert_array_equal(tensor.numpy(), kept[name])
    learner.iterate()
    r = learner.collector.rollout
    np.testing.assert_array_equal(r.rewards > 0, r.rewards == 1)
    assert (r.terminated[r.rewards == 1]).all()


@pytest.mark.parametrize(
    ("trains", "changed"),
    [
        ("all", {"layers.0", "layers.1", "layers.3", "layers.4", "head"}),
        ("heads", {"layers.1", "layers.3", "layers.4", "head"}),
        ("last", {"head"}),
    ],
)
def test_frozen_layers_stay_as_they_were(pretrained, trains, changed):
    learner = built("Crafter-Typed-ChopTree@length=40", init_from=pretrained, trains=trains).learner
    before = {name: one.clone() for name, one in learner.agent.module.state_dict().items()}
    for _ in range(3):
        learner.iterate()
    after = learner.agent.module.state_dict()
    found = {name.rpartition(".")[0] for name, one in after.items() if not torch.equal(one, before[name])}
    assert found == changed


def test_ppo_with_goals_has_the_defects_that_concern_it():
    ppo = {"env": "Crafter-Typed-ChopTree@length=9", "suggester": "task", "env_coef": 1.0, "trains": "last"}
    training = find_method("ellm-ppo").build(TrainRsConfig("ellm-ppo", compat="upstream", **ppo))
    assert training.facts["compat"] == ["b10", "e7"]
    assert training.facts["guarantee"] == "none: published defects b10, e7"
    assert not training.learner.bootstrap_truncated
    plain = find_method("ellm-ppo").build(TrainRsConfig("ellm-ppo", **ppo)).learner
    trained = [
        [one.requires_grad for one in learner.agent.module.parameters()] for learner in (training.learner, plain)
    ]
    assert all(trained[0])
    assert not all(trained[1])
    assert plain.bootstrap_truncated
    with pytest.raises(UsageError, match="^e1 .* concerns agents that value actions"):
        find_method("ellm-ppo").build(TrainRsConfig("ellm-ppo", compat="e1", **ppo))


def test_a_policy_that_knows_something_does_not_begin_at_random(pretrained):
    """With ε = 1 finetuning began by acting at random, and the values were undone: 0 of 20 cows."""
    assert built("Crafter-Typed-AttackCow").learner.agent.epsilon == 1.0
    assert built("Crafter-Typed-AttackCow", init_from=pretrained).learner.agent.epsilon == FINETUNING_EPSILON
    named = find_method("ellm-dqn").build(
        TrainRsConfig("ellm-dqn", env="Crafter-Typed-AttackCow", dqn=replace(DQN, epsilon_first=0.5))
    )
    assert named.learner.agent.epsilon == 0.5


def test_a_pretrained_policy_is_half_of_the_random_actions_(pretrained):
    settings = TrainRsConfig("ellm-dqn", env="Crafter-Typed-AttackCow", suggester="task", env_coef=1.0, dqn=DQN)
    assert find_method("ellm-dqn").build(settings).learner.agent.guide is None
    first = built("Crafter-Typed-AttackCow", guide=pretrained).learner
    agent = first.agent
    agent.epsilon = 1.0
    first.collector.begin()
    inputs = agent.inputs(first.collector.views[first.collector.num_steps])
    chances = agent.forward(inputs, {}, None)[0].exp()
    advised = agent.guide.q_values(inputs).argmax(1, keepdim=True)
    torch.testing.assert_close(chances.gather(1, advised), torch.full((8, 1), 0.5 + 0.5 / 139), atol=2e-3, rtol=0)
    torch.testing.assert_close(chances.sum(1), torch.ones(8))


@pytest.mark.slow
def test_the_oracles_goals_teach_more_than_random_play_knows():
    """Training episodes of the last 20,000 of 120,000 steps against random play; one seed, chosen before (1)."""
    settings = TrainRsConfig("ellm", env="Crafter-Typed-Harder", steps=120_000, seed=1)
    learner = find_method("ellm").build(settings).learner
    late = []
    while not learner.done:
        metrics = learner.iterate()
        if learner.step > 100_000:
            late.append((metrics["rollout/episodes"], metrics.get("rollout/return", 0.0)))
    achievements = sum(n * mean for n, mean in late) / sum(n for n, _ in late)
    envs, rng = make_vec("Crafter-Typed-Harder", 64), np.random.default_rng(0)
    envs.reset(seed=0)
    returns = []
    for _ in range(400):
        infos = envs.step(rng.integers(0, 139, 64))[4]
        if "_final_obs" in infos:
            returns += infos["episode"]["r"][infos["_final_obs"]].tolist()
    assert achievements > 2.5
    assert achievements > np.mean(returns) + 1.0
