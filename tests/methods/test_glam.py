"""glam: a language model learns by PPO, with and without a potential, goes on exactly, and begins from a clone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bkrl.agents import load_agent
from bkrl.agents.language.agent import LanguageAgent
from bkrl.core.config import CollectConfig, EvaluateConfig
from bkrl.core.errors import InputError, UsageError
from bkrl.core.reporter import Reporter
from bkrl.data.dataset import Dataset
from bkrl.learn.bc import demonstrations
from bkrl.methods import TrainRsConfig
from bkrl.methods.bc import ClonedLM
from bkrl.methods.glam import GlamPPO, LMConfig, language_agent
from bkrl.runs.samples import locate
from bkrl.stages import collect, evaluate, train_rs
from tests.stages.interrupted import the_same_when_killed

ENV = "BabyAI-MixedTrainLocal-v0@task_kinds=goto,room_size=5,num_dists=0,actions=restricted"
PPO = GlamPPO(num_envs=4, num_steps=8, num_minibatches=2, update_epochs=1)
TINY = LMConfig("tiny-t5", window=2, head_size=16)


def settings(out: Path, **changes: Any) -> TrainRsConfig:
    given = {"env": ENV, "steps": 160, "eval_every": 32, "eval_episodes": 4, "checkpoint_every": 32, "seed": 1}
    return TrainRsConfig(**{"alg": "glam", **given, "lm": TINY, "ppo": PPO, "out": out, **changes})


def facts(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "manifest.json").read_text())["facts"]
    return found


def test_a_run_that_was_killed_goes_on_to_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = the_same_when_killed(settings(tmp_path / "whole"), monkeypatch)
    files = sorted(file.name for file in (tmp_path / "whole" / "policy").iterdir())
    for name in files:
        one, other = (tmp_path / run / "policy" / name for run in ("whole", "stopped"))
        assert one.read_bytes() == other.read_bytes()
    rollouts = [row for row in map(json.loads, lines) if "ppo/loss" in row]
    assert all(0 < row["rollout/prompts"] <= 32 for row in rollouts)
    assert all(row["rollout/tokens"] > 10 * row["rollout/prompts"] for row in rollouts)
    assert rollouts[0]["ppo/learning_rate"] == 3e-4
    said = facts(tmp_path / "whole")
    assert (said["lm"], said["level"], said["form"], said["view"]) == ("tiny-t5", "P0", "none", "text")
    assert said["lm_is"].startswith("random weights")
    agent = load_agent(tmp_path / "stopped")
    assert isinstance(agent, LanguageAgent)
    assert agent.observations == 2
    judged = evaluate.run(
        EvaluateConfig(policy=str(tmp_path / "stopped"), out=tmp_path / "judged", episodes=4), Reporter()
    )
    assert judged.facts["episodes"] == 4


def test_a_potential_shapes_it(tmp_path: Path) -> None:
    env = "BabyAI-Text-GoToLocal-RedBall-S20"
    how = {"env": env, "steps": 32, "potential": locate(Path("sample:bk-code-minigrid")), "eval_every": 32}
    lm = replace(TINY, train="heads", action_head=True)
    run = train_rs.run(settings(tmp_path / "run", **how, lm=lm), Reporter()).path
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert any("shaping/reward" in key for row in rows for key in row)
    assert facts(run)["form"] == "pbrs"
    assert not facts(run)["guarantee"].startswith("none")
    with pytest.raises(UsageError, match="takes no advice"):
        train_rs.run(settings(tmp_path / "advised", **how, shaping="advice"), Reporter())
    assert not (tmp_path / "advised").exists()


def test_it_clones_a_bot_and_goes_on_from_there(tmp_path: Path) -> None:
    shown = collect.run(CollectConfig(env=ENV, explorer="bot", episodes=80, out=tmp_path / "bot"), Reporter()).path
    lm = ClonedLM("tiny-t5", window=1, head_size=16)
    how = {"alg": "bc", "env": ENV, "data": shown, "lm": lm, "steps": 2400, "eval_every": 2400, "eval_episodes": 8}
    clone = train_rs.run(TrainRsConfig(**how, batch_size=50, out=tmp_path / "clone"), Reporter())
    rows = [row for row in clone.metrics() if "bc/loss" in row]
    actions = Dataset.open(shown).actions
    shares = np.bincount(actions[actions >= 0]) / np.count_nonzero(actions >= 0)
    frequencies = -(shares * np.log(shares)).sum()  # the loss of a clone that sees nothing
    assert rows[-1]["bc/loss"] < 0.6 * frequencies
    assert clone.facts["lm_is"].startswith("random weights")

    agent = language_agent(settings(tmp_path), ENV, 1)  # which sees two observations
    data, _ = demonstrations(Dataset.open(shown), agent, only_successes=False, held_out=0.0, seed=1)
    history: Any = data.views.history
    text: Any = data.views.text
    for first, last in zip(data.starts[:3].tolist(), data.starts[1:4].tolist(), strict=True):
        names = [agent.scorer.names[action] for action in data.actions[first:last].tolist()]
        wanted = [None, *zip(text[first:last].tolist(), names, strict=True)][:-1]
        assert history[first:last, 0].tolist() == wanted

    before: Any = load_agent(clone.path)
    ppo = replace(PPO, learning_rate=1e-9, num_envs=2, num_steps=2, num_minibatches=1)
    small = {"ppo": ppo, "steps": 4, "eval_every": 4}
    run = train_rs.run(settings(tmp_path / "on", **small, init_from=clone.path), Reporter())
    after: Any = load_agent(run.path)
    for (name, one), other in zip(after.module.named_parameters(), before.module.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-6), name
    other_lm = replace(TINY, head_size=8)
    with pytest.raises(InputError, match="another than this one"):
        train_rs.run(settings(tmp_path / "no", **small, init_from=clone.path, lm=other_lm), Reporter())
    assert not (tmp_path / "no").exists()
