"""random and bot as runs: judged on the episodes of the others, flat in reports, the same again and after a kill."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bkrl.agents.play import play
from bkrl.agents.protocol import Agent
from bkrl.agents.random import RandomAgent
from bkrl.core.config import EvaluateConfig, HardwareConfig
from bkrl.core.reporter import Reporter
from bkrl.envs import env_spec, make_vec
from bkrl.learn import loop
from bkrl.learn.settings import ReplayConfig
from bkrl.methods import TrainRsConfig, find_method
from bkrl.methods.babyai_ppo import PUBLISHED
from bkrl.report.comparison import compare
from bkrl.report.groups import Group, Trained
from bkrl.stages import evaluate, train_rs

ENV = "BabyAI-MixedTrainLocal-v0@task_kinds=goto"


def trained(folder: Path, alg: str, **settings: Any) -> Path:
    config = TrainRsConfig(alg=alg, env=ENV, out=folder, steps=3000, eval_every=1000, eval_episodes=40, **settings)
    return train_rs.run(config, Reporter()).path


def lines(run: Path) -> list[str]:
    return [line for line in (run / "metrics.jsonl").read_text().splitlines() if "time/" not in line]


def test_runs_are_judged_at_both_ends_and_evaluated_like_any_other(tmp_path: Path) -> None:
    scores = {}
    for alg in ("random", "bot"):
        run = trained(tmp_path / alg, alg)
        first, last = (json.loads(line) for line in lines(run) if "eval/" in line)
        assert {**first, "step": 3000} == last
        facts = json.loads((run / "manifest.json").read_text())["facts"]
        assert (facts["steps"], facts["learns"], facts.get("warnings")) == (3000, False, None)
        again = evaluate.run(
            EvaluateConfig(policy=str(run), out=tmp_path / f"{alg}-e", episodes=20, gifs=1), Reporter()
        )
        assert (again.path / "gifs" / "sampled-0.gif").stat().st_size > 1000
        scores[alg] = last["eval/success_rate"], again.facts["success_rate"]
    assert scores["bot"] == (1.0, 1.0)
    assert max(scores["random"]) < 0.7


@pytest.mark.slow
@pytest.mark.parametrize("alg", ["drrn", "babyai-ppo"])
def test_published_agents_beat_chance_by_a_fifth_of_the_episodes(alg: str) -> None:
    """On the smallest "go to" level, where random actions succeed in 70 % of 500 episodes."""
    env = "BabyAI-GoToObjS4-v0@actions=restricted"
    replay = ReplayConfig(
        num_envs=16, num_steps=32, learning_rate=1e-3, train_every=2, batch_size=64, target_every=20, n_step=3
    )
    ppo = replace(PUBLISHED, num_envs=32, num_steps=20, learning_rate=5e-4)
    how: dict[str, Any] = {"form": "lamorel", "observations": 1, "replay": replay} if alg == "drrn" else {"ppo": ppo}
    config = TrainRsConfig(alg=alg, env=env, steps=40_000, hardware=HardwareConfig(precision="fp32"), **how)
    learner = find_method(alg).build(config).learner

    def success(agent: Agent) -> float:
        return float(np.mean([one.success for one in play(agent, make_vec(env, 100), 500, seed=1000)]))

    facts = env_spec(env)
    chance = success(RandomAgent(facts.env_id, facts.family, facts.action_names))
    recent: deque[float] = deque(maxlen=5)  # one good rollout may be luck, or an update may spoil what came of it
    while not learner.done and not (len(recent) == 5 and np.mean(recent) > 0.95):
        recent.append(learner.iterate().get("rollout/success_rate", 0))
    assert success(learner.agent) > chance + 0.2


def test_a_run_that_was_killed_goes_on_to_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, policy = trained(tmp_path / "whole", "bot", epsilon=0.5), "policy.json"
    save, calls = loop._save, iter(range(9))

    def dies_at_the_second(*how: Any) -> None:
        if next(calls) == 1:
            raise KeyboardInterrupt
        save(*how)

    monkeypatch.setattr(loop, "_save", dies_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "killed", "bot", epsilon=0.5)
    killed = trained(tmp_path / "killed", "bot", epsilon=0.5)
    assert lines(whole) == lines(killed)
    assert (whole / policy).read_bytes() == (killed / policy).read_bytes()
    assert json.loads((killed / policy).read_text())["epsilon"] == 0.5


def test_in_reports_its_line_goes_as_far_as_that_of_the_others() -> None:
    def group(alg: str, steps: list[int], success: list[float]) -> Group:
        curve = np.array(steps, float), np.array(success)
        return Group("E", alg, alg, "none", (Trained(alg, "E", alg, 1, {}, {"eval/success_rate": curve}),))

    found = compare("E", [group("ppo", [0, 50, 110], [0.0, 0.5, 1.0]), group("bot", [0, 100], [0.9, 0.9])], 0.8)
    assert found.horizon == 110
    assert found.notes == ()
    bot = next(row for row in found.rows if row.group.alg == "bot")
    assert (bot.final.estimate, bot.average.estimate) == pytest.approx((0.9, 0.9))
    assert bot.steps == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--alg", "bot", "--env", "CrafterReward-v1"], "has no bot"),
        (["--alg", "bot", "--env", ENV, "--backend", "reference"], "native engine"),
        (["--alg", "random", "--epsilon", "0.1"], "epsilon has no effect here"),
    ],
)
def test_what_cannot_be_is_refused(arguments: list[str], words: str, refused: Any) -> None:
    assert words in refused(["train-rs", *arguments], 2)
