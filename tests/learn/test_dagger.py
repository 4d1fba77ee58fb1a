"""DAgger: the labels are the bot's, the bot fades, a stopped run goes on to the same bytes, and it learns."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bkrl.agents import load_agent
from bkrl.agents.bot import BotAgent
from bkrl.agents.language.adapters import Trainable
from bkrl.agents.language.agent import LanguageAgent, LanguageSettings
from bkrl.agents.language.catalogue import open_language_model
from bkrl.agents.mixture import Mixture
from bkrl.agents.play import play
from bkrl.agents.viewer import Viewer
from bkrl.core.config import CollectConfig
from bkrl.core.errors import InputError, UsageError
from bkrl.core.flags import without_effect
from bkrl.core.reporter import Reporter
from bkrl.data.dataset import Dataset
from bkrl.data.derive import merge
from bkrl.envs import make_vec
from bkrl.learn.bc import Cloning, demonstrations
from bkrl.learn.protocol import Saved
from bkrl.methods import TrainRsConfig, find_method
from bkrl.methods.bc import ClonedLM
from bkrl.report.runs import training_runs
from bkrl.runs.provenance import follow
from bkrl.runs.record import Run
from bkrl.stages import collect, train_rs
from tests.stages.interrupted import the_same_when_killed

ENV = "BabyAI-MixedTrainLocal-v0@num_dists=1,room_size=5,task_kinds=goto"


def settings(out: Path, alg: str = "dagger", **changes: Any) -> TrainRsConfig:
    given = {"env": ENV, "steps": 300, "eval_every": 100, "eval_episodes": 4, "checkpoint_every": 50, "seed": 1}
    given |= {"episodes_per_round": 6} if alg == "dagger" else {}
    return TrainRsConfig(alg=alg, out=out, **{**given, **changes})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train_rs.run(settings(tmp_path_factory.mktemp("dagger") / "run"), Reporter())


def test_labels_are_what_the_bot_does_in_each_state_and_it_acts_less_and_less(run: Run) -> None:
    rounds = [Dataset.open(path) for path in sorted((run.path / "data").iterdir())]
    assert len(rounds) == run.facts["rounds"] > 2
    assert sum(one.num_steps for one in rounds) == run.facts["steps"] >= 300
    assert (rounds[0].actions == rounds[0].labels).all()
    assert not (rounds[2].actions == rounds[2].labels).all()
    rows = [json.loads(line) for line in run.file("metrics.jsonl").read_text().splitlines()]
    assert [row["dagger/bot_share"] for row in rows if "dagger/bot_share" in row][:3] == [1, 0.5, 0.25]
    bot, envs = BotAgent.of(ENV), make_vec(ENV, 1)
    for data in rounds[:3]:
        for episode in range(data.num_episodes):
            first, length = data.first_row[episode], data.lengths[episode]
            seen, state = Viewer(envs, bot), bot.begin(1)
            observations, _ = envs.reset(seed=int(data.episodes.column("seed")[episode].as_py()))
            for age in range(length):
                said = bot.act(seen(observations, np.array([age == 0])), state, np.array([age == 0]), None)
                assert said.actions[0] == data.labels[first + age]
                state = said.state
                observations = envs.step(data.actions[[first + age]])[0]
            assert data.labels[first + length] == -1


@pytest.mark.parametrize("network", ["compact", pytest.param("recurrent", marks=pytest.mark.slow)])
def test_a_stopped_run_goes_on_to_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, network: str) -> None:
    the_same_when_killed(settings(tmp_path / "whole", network=network), monkeypatch)
    files = [path.relative_to(tmp_path / "whole") for path in (tmp_path / "whole").rglob("*.parquet")]
    assert len(files) > 4
    for file in [*files, Path("policy.safetensors")]:
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "stopped" / file).read_bytes()


@pytest.mark.parametrize("lm", [ClonedLM(), ClonedLM("tiny-t5", window=2)], ids=["network", "language model"])
def test_it_goes_on_from_a_clone_and_the_learner_plays_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lm: ClonedLM
) -> None:
    source = train_rs.run(settings(tmp_path / "clone", lm=lm, steps=60, eval_every=30), Reporter())
    the_same_when_killed(settings(tmp_path / "whole", init_from=source.path, batch_size=32), monkeypatch)
    run = Run.open(tmp_path / "whole", "train-rs")
    before, after = ([row for row in one.metrics() if "eval/return" in row] for one in (source, run))
    assert {**after[0], "step": 0} == {**before[-1], "step": 0}
    assert [row["dagger/bot_share"] for row in run.metrics() if "dagger/bot_share" in row][:2] == [0.5, 0.25]
    assert run.facts.get("lm") == source.facts.get("lm")
    if lm.lm:
        assert load_agent(run.path).settings.observations == 2
    rounds = [Run.open(path, "collect") for path in sorted((run.path / "data").iterdir())[:2]]
    assert [list(one.manifest["inputs"]) for one in rounds] == [["init_from"], ["earlier round"]]
    assert len(follow([run.path]).of("train-rs")) == 2


def test_what_is_of_another_kind_than_its_source_is_refused(run: Run, tmp_path: Path) -> None:
    reader = train_rs.run(
        settings(tmp_path / "reader", lm=ClonedLM("tiny-t5", window=1), steps=20, eval_every=20), Reporter()
    )
    with pytest.raises(InputError, match="is no language model; choose a run of glam, or of bc or dagger --lm"):
        train_rs.run(settings(tmp_path / "no", init_from=run.path, lm=ClonedLM("tiny-t5")), Reporter())
    with pytest.raises(InputError, match="are those of another network"):
        train_rs.run(settings(tmp_path / "no", init_from=run.path, network="recurrent"), Reporter())
    given = {"init_from": reader.path, "network": "recurrent"}
    assert without_effect(settings(tmp_path / "no", **given), ["network"])
    assert not (tmp_path / "no").exists()


def test_frozen_layers_read_a_round_anew_as_in_a_run_that_goes_on(tmp_path: Path) -> None:
    """Samples held states from the batches in which their prompts were played; a resumed run read them in one batch."""
    lm = ClonedLM("tiny-causal", window=1, frozen=2)
    how = settings(tmp_path / "one", lm=lm, steps=1000, batch_size=64, episodes_per_round=16, passes=1)
    method: Any = find_method("dagger")
    one, other = (method.build(how).learner for _ in range(2))
    one.folder, other.folder = tmp_path / "one", tmp_path / "other"
    one.iterate()
    one.iterate()
    saved = one.state()
    shutil.copytree(one.folder, other.folder)
    other.restore(Saved({name: np.asarray(tensor) for name, tensor in saved.tensors.items()}, saved.counters, True))
    for name, tensor in one.cloning.data.inputs.items():
        assert torch.equal(tensor, other.cloning.data.inputs[name]), name
    one.close()
    other.close()


def test_its_datasets_can_be_cloned_and_hold_the_labels(run: Run, tmp_path: Path) -> None:
    data = run.path / "data" / "round-0002"
    how = {"steps": 64, "eval_every": 64, "batch_size": 16}
    clone = train_rs.run(settings(tmp_path / "clone", alg="bc", data=data, **how), Reporter())
    assert clone.facts["samples_train"] > 10


def test_a_clone_of_its_datasets_is_charged_for_them_and_the_rounds_before_them_once(run: Run, tmp_path: Path) -> None:
    """They cost nothing in reports, so that a clone of them did not, either."""
    rounds = sorted((run.path / "data").iterdir())[:3]
    lengths = [Dataset.open(path).num_steps for path in rounds]
    first, last = follow(rounds[:1]), follow(rounds[2:])
    assert [sum(node.steps for node in chain.nodes.values()) for chain in (first, last)] == [lengths[0], sum(lengths)]
    together = merge(rounds, tmp_path / "together", Reporter()).path
    how = {"steps": 64, "eval_every": 64, "batch_size": 16}
    clone = train_rs.run(settings(tmp_path / "clone", alg="bc", data=together, **how), Reporter())
    chain = follow([clone.path])
    (trained,), _ = training_runs(chain, chain.of("train-rs"))
    assert trained.collect_steps == sum(lengths)
    assert chain.problems == []


def test_a_round_is_read_once_and_what_was_read_stays_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = "BabyAI-MixedTrainLocal-v0@task_kinds=goto+putnext,room_size=5,num_dists=1"
    training = Trainable("all", frozen=1)  # prompts of unlike lengths, with the states of a frozen layer
    agent = LanguageAgent(open_language_model("tiny-causal"), told, 1, LanguageSettings(training=training))
    envs = [f"{ENV},language=fr", told]
    data = [
        collect.run(CollectConfig(env=env, explorer="bot", episodes=4, out=tmp_path / env[-3:]), Reporter()).path
        for env in envs
    ]
    parts = [demonstrations(Dataset.open(path), agent, only_successes=False, held_out=0.3, seed=1) for path in data]
    read: list[int] = []
    inputs = agent.inputs
    monkeypatch.setattr(agent, "inputs", lambda views: (read.append(len(views)), inputs(views))[1])
    how = {"batch_size": 8, "learning_rate": 1e-3, "max_grad_norm": 1.0, "total_steps": 100, "seed": 1}
    both = Cloning(agent, None, **how)
    for part in parts:
        both.add(*part)
    assert len(read) == 4
    assert sum(read) <= sum(len(one) for part in parts for one in part)
    assert both.data.inputs["tokens"].shape[1] > both.data.inputs["lengths"].min()
    with torch.no_grad():
        logits, actions = both.data.look(torch.arange(both.data.units))
        alone = [Cloning(agent, part, **how) for part in parts]
        looks = [one.data.look(torch.arange(one.data.units)) for one in alone]
    torch.testing.assert_close(logits, torch.cat([one for one, _ in looks]), rtol=1e-4, atol=1e-4)
    assert torch.equal(actions, torch.cat([one for _, one in looks]))


def test_the_learner_is_not_asked_where_the_bot_always_acts(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = LanguageAgent(open_language_model("tiny-t5"), ENV, 1)
    asked: list[int] = []
    act = agent.act
    monkeypatch.setattr(agent, "act", lambda *given: (asked.append(1), act(*given))[1])
    for share, often in ((1.0, False), (0.5, True)):
        found = list(play(Mixture(agent, BotAgent.of(ENV), share, 1), make_vec(ENV, 2), 2, seed=1))
        assert len(found) == 2
        assert bool(asked) is often


def test_a_round_that_passes_several_milestones_is_evaluated_once(tmp_path: Path) -> None:
    run = train_rs.run(settings(tmp_path / "run", steps=60, eval_every=4), Reporter())
    steps = [row["step"] for row in run.metrics() if "eval/return" in row]
    assert len(steps) == run.facts["rounds"] + 1
    assert steps == sorted(set(steps))


def test_it_needs_a_bot(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no bot"):
        train_rs.run(settings(tmp_path / "no", env="Crafter-Text-Reward"), Reporter())
    assert not (tmp_path / "no").exists()


@pytest.mark.slow
def test_a_language_model_learns_from_the_bot_what_it_meets_itself(tmp_path: Path) -> None:
    lm = ClonedLM("tiny-t5", window=1)
    env = "BabyAI-MixedTrainLocal-v0@num_dists=0,room_size=5,task_kinds=goto,actions=restricted"
    how = {"env": env, "episodes_per_round": 50, "steps": 4000, "eval_every": 4000, "eval_episodes": 50}
    run = train_rs.run(settings(tmp_path / "run", **how, lm=lm, batch_size=64), Reporter())
    assert run.facts["success_rate"] >= 0.9
