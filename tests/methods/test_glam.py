"""glam: a language model learns by PPO, with and without a potential, goes on exactly, and begins from a clone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bkrl.agents import load_agent
from bkrl.agents.language.agent import LanguageAgent
from bkrl.core.config import EvaluateConfig
from bkrl.core.errors import UsageError
from bkrl.core.reporter import Reporter
from bkrl.methods import TrainRsConfig
from bkrl.methods.glam import GlamPPO, LMConfig
from bkrl.runs.samples import locate
from bkrl.stages import evaluate, train_rs
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
    assert rollouts[0]["ppo/learning_rate"] == 1e-3
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
