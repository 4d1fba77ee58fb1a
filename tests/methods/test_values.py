"""pqn, dqn and PPO with each kind of novelty: what they are made of, that they run on, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from bkrl.core.config import PPOConfig
from bkrl.core.errors import UsageError
from bkrl.core.reporter import Reporter
from bkrl.learn.settings import DQNConfig, PQNConfig
from bkrl.methods import TrainRsConfig, find_method
from bkrl.runs.record import Run
from bkrl.stages import train_rs
from tests.stages.interrupted import the_same_when_killed

ENV = "Crafter-Typed-Easier@length=60"
SMALL = {
    "pqn": PQNConfig(num_envs=8, num_steps=16, num_minibatches=2),
    "dqn": DQNConfig(num_envs=8, learning_starts=100, batch_size=16, update_every=16),
    "ppo": PPOConfig(num_envs=8, num_steps=16, num_minibatches=2),
}


def settings(alg, **changes):
    given = {"env": ENV, "steps": 640, "eval_every": 256, "eval_episodes": 2, "checkpoint_every": 256, **changes}
    learner = alg if alg in SMALL else "ppo"
    return TrainRsConfig(alg, **{learner: SMALL[learner]}, **given)


@pytest.mark.parametrize("kind", ["rnd", "noveld", "icm", "apt", "apt-learnt"])
@pytest.mark.parametrize("alg", ["pqn", "dqn"])
def test_models_of_novelty_learn_beside_action_values(alg, kind):
    learner = find_method(alg).build(settings(alg, env_coef=0.0, curiosity=kind)).learner
    assert [stream.name for stream in learner.streams] == [kind.removesuffix("-learnt")]
    before = [one.clone() for owner in learner.owners for one in owner]
    for _ in range(4):
        metrics = learner.iterate()
    after = [one for owner in learner.owners for one in owner]
    changed = [not torch.equal(*pair) for pair in zip(before, after, strict=True)]
    assert len(after) > len(learner.owners[0]) or kind == "apt"
    assert all(changed[len(learner.owners[0]) :])
    assert metrics[f"{learner.streams[0].name}/novelty"] > 0


def test_the_env_and_novelty_are_one_reward():
    learner = find_method("pqn").build(settings("pqn", curiosity="rnd", int_coef=0.5)).learner
    learner.iterate()
    next_values, ended = learner.next_values(True)
    assert next_values.shape == ended.shape == (16, 8, 1)
    assert torch.isfinite(learner.targets()).all()


@pytest.mark.parametrize("alg", ["noveld", "icm", "apt"])
def test_ppo_takes_each_kind(alg):
    learner = find_method(alg).build(settings(alg)).learner
    assert [stream.name for stream in learner.streams] == ["env", alg]
    learner.iterate()
    assert find_method(alg).form == "novelty"
    assert find_method(alg).colour is not None
    learnt = find_method("apt").build(settings("apt", apt_features="learnt")).learner
    assert "apt" in learnt.own


def test_ppo_explores_for_novelty_alone():
    learner = find_method("deir").build(settings("deir", env_coef=0.0)).learner
    assert [stream.name for stream in learner.streams] == ["deir"]
    learner.iterate()
    half = find_method("rnd").build(settings("rnd", env_coef=0.5)).learner
    assert [stream.coef for stream in half.streams] == [0.5, 0.1]


@pytest.mark.parametrize(
    ("alg", "kind", "weight"),
    [
        ("rnd", {}, "int_coef"),
        ("pqn", {"curiosity": "rnd"}, "int_coef"),
        ("dqn", {"curiosity": "apt"}, "int_coef"),
        ("ellm", {}, "goal_coef"),
        ("ellm-dqn", {}, "goal_coef"),
        ("ellm-ppo", {}, "goal_coef"),
    ],
)
def test_an_agent_that_is_paid_for_nothing_is_refused(alg, kind, weight):
    """Only rnd and the like refused; pqn, dqn and the methods with goals trained on rewards of 0."""

    def build(**coefs):
        return find_method(alg).build(TrainRsConfig(alg, env=ENV, steps=10_000, **kind, **coefs))

    flag = weight.replace("_", "-")
    with pytest.raises(UsageError, match=f"^With --env-coef 0 and --{flag} 0 the agent is paid for nothing; raise one"):
        build(env_coef=0.0, **{weight: 0.0})
    for paid in ({"env_coef": 0.5, weight: 0.0}, {"env_coef": 0.0, weight: 0.5}):
        build(**paid).close()


@pytest.mark.parametrize(("alg", "kind"), [("pqn", {"curiosity": "noveld"}), ("noveld", {})])
def test_what_noveld_pays_is_chosen(alg, kind):
    for given, alpha, first in (({}, 0.5, True), ({"noveld_alpha": 1.0, "noveld_first_visit": False}, 1.0, False)):
        stream = find_method(alg).build(settings(alg, **kind, **given)).learner.streams[-1]
        assert (stream.alpha, stream.first_visit) == (alpha, first)


@pytest.mark.parametrize(
    ("alg", "kind"), [("pqn", "noveld"), pytest.param("dqn", "apt-learnt", marks=pytest.mark.slow)]
)
def test_a_killed_run_goes_on_to_the_same_bytes(tmp_path, monkeypatch, alg, kind):
    lines = the_same_when_killed(settings(alg, out=tmp_path / "whole", curiosity=kind), monkeypatch)
    assert any(f"{kind.removesuffix('-learnt')}/novelty" in line for line in lines)


def test_published_defects_are_had_one_by_one():
    both = settings("dqn", curiosity="apt-learnt", compat="upstream")
    training = find_method("dqn").build(both)
    assert training.facts["compat"] == ["b10", "e1", "e7"]
    assert training.facts["guarantee"].startswith("none: published defects")
    far = training.learner.agent.module.head.weight
    near = find_method("dqn").build(settings("dqn")).learner.agent.module.head.weight
    torch.testing.assert_close(far, 100 * near)
    with pytest.raises(UsageError, match="concerns --sees published"):
        find_method("pqn").build(settings("pqn", compat="e6"))


@pytest.mark.parametrize("alg", ["pqn", "dqn"])
def test_without_the_defect_a_time_limit_is_bootstrapped(alg):
    for compat, cut in (("", False), ("b10", True)):
        learner = find_method(alg).build(settings(alg, compat=compat, env="Crafter-Typed-Easier@length=12")).learner
        with torch.no_grad():
            learner.agent.module.head.bias += 5
        for _ in range(4):
            learner.iterate()
        r = learner.collector.rollout
        ends = r.truncated & ~r.terminated
        if alg == "pqn":
            values = learner.next_values(learner.bootstrap_truncated)[0][:, :, 0].numpy()
            assert ends.any()
            assert ((values[ends] == 0) == cut).all()
        else:
            column = learner.replay._columns
            assert column["truncated"].any()
            assert column["terminated"][column["truncated"]].any() == cut


def test_what_was_learnt_without_a_reward_is_carried_on(tmp_path):
    first = train_rs.run(settings("pqn", out=tmp_path / "a", env_coef=0.0, curiosity="icm"), Reporter())
    assert Run.open(first.path, "train-rs").facts["guarantee"].startswith("none")
    later = settings("pqn", out=tmp_path / "b", init_from=first.path, guide=first.path, trains="last")
    with pytest.raises(UsageError, match="leaves nothing"):
        train_rs.run(replace(later, env_coef=0.0), Reporter())
    run = train_rs.run(later, Reporter())
    assert Run.open(run.path, "train-rs").facts["form"] == "none"
