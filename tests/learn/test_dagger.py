"""DAgger: the labels are the bot's, the bot fades, a stopped run goes on to the same bytes, and it learns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bkrl.agents.bot import BotAgent
from bkrl.agents.viewer import Viewer
from bkrl.core.errors import UsageError
from bkrl.core.reporter import Reporter
from bkrl.data.dataset import Dataset
from bkrl.envs import make_vec
from bkrl.methods import TrainRsConfig
from bkrl.methods.bc import ClonedLM
from bkrl.stages import train_rs
from tests.stages.interrupted import the_same_when_killed

ENV = "BabyAI-MixedTrainLocal-v0@num_dists=1,room_size=5,task_kinds=goto"


def settings(out: Path, alg: str = "dagger", **changes: Any) -> TrainRsConfig:
    given = {"env": ENV, "steps": 300, "eval_every": 100, "eval_episodes": 4, "checkpoint_every": 50, "seed": 1}
    given |= {"episodes_per_round": 6} if alg == "dagger" else {}
    return TrainRsConfig(alg=alg, out=out, **{**given, **changes})


def test_labels_are_what_the_bot_does_in_each_state_and_it_acts_less_and_less(tmp_path: Path) -> None:
    run = train_rs.run(settings(tmp_path / "run"), Reporter())
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


@pytest.mark.parametrize("network", ["compact", "recurrent"])
def test_a_stopped_run_goes_on_to_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, network: str) -> None:
    the_same_when_killed(settings(tmp_path / "whole", network=network), monkeypatch)
    files = [path.relative_to(tmp_path / "whole") for path in (tmp_path / "whole").rglob("*.parquet")]
    assert len(files) > 4
    for file in [*files, Path("policy.safetensors")]:
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "stopped" / file).read_bytes()


def test_its_datasets_can_be_cloned_and_hold_the_labels(tmp_path: Path) -> None:
    data = train_rs.run(settings(tmp_path / "run"), Reporter()).path / "data" / "round-0002"
    how = {"steps": 64, "eval_every": 64, "batch_size": 16}
    clone = train_rs.run(settings(tmp_path / "clone", alg="bc", data=data, **how), Reporter())
    assert clone.facts["samples_train"] > 10


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
