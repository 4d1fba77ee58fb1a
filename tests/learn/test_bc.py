"""Cloning: the gradient of the cross-entropy, exact resume, and clones that do what was shown."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bkrl.agents import load_agent
from bkrl.agents.build import new_agent
from bkrl.agents.language.agent import LanguageAgent, LanguageSettings
from bkrl.agents.language.catalogue import open_language_model
from bkrl.agents.language.scorer import Scoring
from bkrl.core.config import CollectConfig, EvaluateConfig, PPOConfig
from bkrl.core.errors import InputError, UsageError
from bkrl.core.reporter import Reporter
from bkrl.data.dataset import Dataset
from bkrl.envs import make_vec
from bkrl.learn.bc import Cloning, demonstrations
from bkrl.learn.on_rollouts import Diverged
from bkrl.methods import TrainRsConfig
from bkrl.runs.record import Run
from bkrl.stages import collect, evaluate, train_rs
from bkrl.text.mission_words import words_of

ENV = "BabyAI-MixedTrainLocal-v0@num_dists=0,room_size=5,task_kinds=goto"


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("bc") / "bot"
    return collect.run(CollectConfig(env=ENV, explorer="bot", episodes=300, out=out), Reporter()).path


def learner(path: Path, network: str = "compact", **changes: Any) -> Cloning:
    envs = make_vec(ENV, 1)
    agent = new_agent(network, envs, "symbolic", 1, 7)
    parts = demonstrations(Dataset.open(path), agent, only_successes=False, held_out=0.1, seed=1)
    settings = {"batch_size": 64, "learning_rate": 1e-3, "max_grad_norm": 1e9, "total_steps": 10_000, "seed": 1}
    return Cloning(agent, parts, **settings | changes)


@pytest.mark.parametrize("network", ["compact", "recurrent"])
def test_the_gradient_is_that_of_the_cross_entropy_of_each_action(shown: Path, network: str) -> None:
    cloning = learner(shown, network)
    chosen = cloning._next()
    loss, _, count = cloning._figures(cloning.data, chosen)
    loss.backward()
    found = [p.grad.clone() for p in cloning.parameters if p.grad is not None]

    # Step by step, one episode after another, nothing shared and nothing filled up.
    agent = cloning.agent
    data, _ = demonstrations(Dataset.open(shown), agent, only_successes=False, held_out=0.1, seed=1)
    for parameter in cloning.parameters:
        parameter.grad = None
    losses = []
    if network == "compact":
        for i in chosen.tolist():
            logits = agent.forward(agent.inputs(data.views[i : i + 1]), {}, None)[0][0]
            losses.append(-logits.log_softmax(0)[data.actions[i]])
    else:
        for episode in chosen.tolist():
            state = agent.begin(1)
            for i in range(data.starts[episode], data.starts[episode + 1]):
                inputs = {name: one[None] for name, one in agent.inputs(data.views[i : i + 1]).items()}
                started = torch.tensor([[i == data.starts[episode]]])
                logits, _, state = agent.forward(inputs, state, started)
                losses.append(-logits[0, 0].log_softmax(0)[data.actions[i]])
    assert count == len(losses) >= 64
    naive = torch.stack(losses).mean()
    naive.backward()
    assert float(naive.detach()) == pytest.approx(float(loss.detach()), rel=1e-5)
    wanted = [p.grad for p in cloning.parameters if p.grad is not None]
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_the_held_out_part_is_of_other_episodes_and_all_samples_come_once_in_an_epoch(shown: Path) -> None:
    dataset = Dataset.open(shown)
    cloning = learner(shown)
    train, held_out = demonstrations(dataset, cloning.agent, only_successes=True, held_out=0.1, seed=1)
    assert (len(train.starts) - 1, len(held_out.starts) - 1) == (270, 30)
    assert len(train) + len(held_out) == dataset.num_steps
    seen = torch.cat([cloning._next() for _ in range(-(-len(train) // 64))])
    assert sorted(seen.tolist()) == list(range(len(train)))
    assert cloning.epoch == 0
    cloning._next()
    assert cloning.epoch == 1


def test_weights_that_are_not_finite_end_it_in_a_sentence_with_a_flag_of_its_own(shown: Path) -> None:
    with pytest.raises(Diverged, match="a smaller --clone-learning-rate"):
        learner(shown, learning_rate=1e38).iterate()


@pytest.mark.parametrize("network", ["compact", pytest.param("recurrent", marks=pytest.mark.slow)])
def test_a_stopped_run_goes_on_to_the_same_bytes(shown: Path, tmp_path: Path, network: str) -> None:
    class Dies(Reporter):
        def progress(self, title: str, total: int, unit: str = "steps") -> Any:
            @contextmanager
            def block() -> Iterator[Any]:
                def update(completed: float, note: str = "") -> None:
                    if completed > 1_250:
                        raise RuntimeError("killed")

                yield update

            return block()

    half = {"steps": 2_000, "eval_every": 1_000, "checkpoint_every": 500}
    whole = settings(shown, tmp_path / "whole", network, **half)
    train_rs.run(whole, Reporter())
    stopped = replace(whole, out=tmp_path / "stopped")
    with pytest.raises(RuntimeError):
        train_rs.run(stopped, Dies())
    result = train_rs.run(stopped, Reporter())
    for name in ("policy.safetensors", "policy.json"):
        assert result.file(name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def settings(data: Path, out: Path, network: str = "compact", **changes: Any) -> Any:
    base = {"steps": 4_000, "eval_every": 2_000, "eval_episodes": 4, "batch_size": 64, "checkpoint_every": 1_000}
    return TrainRsConfig(alg="bc", data=data, out=out, network=network, **base | {"env": ENV} | changes)


@pytest.mark.slow
def test_a_clone_of_the_bot_succeeds_where_the_bot_does(shown: Path, tmp_path: Path) -> None:
    config = settings(shown, tmp_path / "clone", steps=100_000, eval_every=100_000, eval_episodes=100, batch_size=256)
    result = train_rs.run(config, Reporter())
    assert result.facts["success_rate"] >= 0.9
    assert result.facts["explorer"] == "bot"
    assert result.facts["mission"] is True
    assert {"ball", "purple"} < load_agent(result.path).vocabulary.known.numbers.keys()
    unseen = [row["bc/held_out_loss"] for row in result.metrics() if "bc/held_out_loss" in row]
    assert unseen[-1] < 0.7 * unseen[0], unseen
    judged = evaluate.run(EvaluateConfig(result.path, out=tmp_path / "eval", episodes=50, gifs=0), Reporter())
    assert judged.facts["success_rate"] >= 0.9


@pytest.mark.slow
def test_a_clone_that_reads_missions_does_what_they_say_and_ppo_goes_on_from_it(tmp_path: Path) -> None:
    env = "BabyAI-GoToLocal-v0@max_steps=40"
    data = collect.run(CollectConfig(env=env, explorer="bot", episodes=2500, out=tmp_path / "bot"), Reporter()).path
    common = {"steps": 70_000, "eval_every": 70_000, "eval_episodes": 150, "batch_size": 128, "env": env}
    told, blind = (
        train_rs.run(settings(data, tmp_path / mission, mission=mission, **common), Reporter())
        for mission in ("auto", "off")
    )
    assert (told.facts["mission"], blind.facts["mission"]) == (True, False)
    evaluated = [row["step"] for row in told.metrics() if "eval/success_rate" in row]
    assert evaluated == [0, told.facts["steps"]], "the last minibatch of an epoch is smaller, so iterations are unequal"
    assert told.facts["success_rate"] > max(0.85, blind.facts["success_rate"] + 0.15)
    clone = load_agent(told.path)
    assert clone.vocabulary.known.numbers.keys() >= {w for m in Dataset.open(data).missions for w in words_of(m)}
    ppo = PPOConfig(num_envs=8, num_steps=16)
    config = TrainRsConfig(alg="ppo", env=env, steps=128, eval_episodes=150, init_from=told.path, ppo=ppo)
    went_on = train_rs.run(replace(config, out=tmp_path / "ppo"), Reporter())
    assert went_on.facts["success_rate"] > blind.facts["success_rate"] + 0.1


def test_it_learns_from_no_more_samples_than_it_was_asked_to(shown: Path, tmp_path: Path) -> None:
    config = settings(shown, tmp_path / "short", steps=1_000, eval_every=1_000, batch_size=64)
    assert 1_000 <= train_rs.run(config, Reporter()).facts["steps"] < 1_064


def test_a_clone_of_random_play_in_another_env_is_warned_of(tmp_path: Path) -> None:
    data = collect.run(CollectConfig(env=ENV, explorer="random", episodes=4, out=tmp_path / "random"), Reporter()).path
    elsewhere = f"{ENV},max_steps=9"
    made = train_rs.run(settings(data, tmp_path / "x", steps=64, env=elsewhere), Reporter())
    assert "is cloned, and evaluated in" in made.facts["warnings"][0]
    assert "holds random play, and a clone learns to play like it" in made.facts["warnings"][1]


def test_what_cannot_be_cloned_is_refused_in_a_sentence(shown: Path, tmp_path: Path) -> None:
    out = tmp_path / "x"
    with pytest.raises(UsageError, match="--alg bc needs --data"):
        train_rs.run(TrainRsConfig(alg="bc", env=ENV, out=out), Reporter())
    with pytest.raises(InputError, match="nowhere"):
        train_rs.run(settings(tmp_path / "nowhere", out), Reporter())
    with pytest.raises(InputError, match="others than those of"):
        train_rs.run(replace(settings(shown, out), env="Toy-Grid"), Reporter())
    lost = collect.run(
        CollectConfig(env=f"{ENV},max_steps=1", explorer="random", episodes=3, out=tmp_path / "lost"), Reporter()
    )
    with pytest.raises(InputError, match="leave --only-successes out"):
        train_rs.run(settings(lost.path, out, only_successes=True), Reporter())
    broken = Run.open(shown).file("steps/part-00000.parquet")
    whole = broken.read_bytes()
    broken.write_bytes(whole[:-100])
    try:
        with pytest.raises(InputError, match="the manifest says"):
            train_rs.run(settings(shown, out), Reporter())
    finally:
        broken.write_bytes(whole)
    assert not out.exists()


def test_a_large_model_clones_from_few_tokens_at_once_what_it_clones_from_all(shown: Path, monkeypatch: Any) -> None:
    def cloning() -> Cloning:
        how = LanguageSettings(Scoring(normalise="token"), observations=1, most_tokens=32 * 250)
        agent = LanguageAgent(open_language_model("tiny-t5", seed=0), ENV, 1, how)
        parts = demonstrations(Dataset.open(shown), agent, only_successes=False, held_out=0.8, seed=1)
        return Cloning(agent, parts, batch_size=32, learning_rate=1e-3, max_grad_norm=0.5, total_steps=64, seed=1)

    whole = cloning()
    said = whole.iterate()
    monkeypatch.setattr("bkrl.agents.language.models.LARGE", 0)
    parted = cloning()
    assert len(parted.data.parted(torch.arange(32))) > 1
    in_parts = parted.iterate()
    names = ("bc/loss", "bc/accuracy", "bc/grad_norm", "bc/held_out_loss")
    assert [in_parts[name] for name in names] == pytest.approx([said[name] for name in names], rel=1e-3, abs=1e-5)
    for one, other in zip(whole.parameters, parted.parameters, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)
    assert whole.step == parted.step == 64


def test_a_minibatch_of_all_samples_is_told(shown: Path, tmp_path: Path) -> None:
    for size, told in ((64, 0), (10**6, 1)):
        made = train_rs.run(settings(shown, tmp_path / str(size), steps=64, eval_every=64, batch_size=size), Reporter())
        assert sum("an epoch is one update" in one for one in made.facts.get("warnings", ())) == told
