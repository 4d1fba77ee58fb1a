"""evaluate: the same numbers for the same seed, intervals that hold, GIFs that move."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from bkrl.agents import load_agent
from bkrl.agents.build import new_agent
from bkrl.agents.play import Start, play
from bkrl.core.config import EvaluateConfig, PPOConfig
from bkrl.core.errors import InputError
from bkrl.core.reporter import Reporter
from bkrl.envs import make_vec
from bkrl.methods import TrainRsConfig
from bkrl.stages import train_rs
from bkrl.stages.evaluate import run
from bkrl.stats.intervals import wilson_interval


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = TrainRsConfig(
        env="Toy-Grid",
        out=tmp_path_factory.mktemp("run") / "policy",
        steps=12_000,
        eval_every=12_000,
        eval_episodes=4,
        ppo=PPOConfig(num_envs=16, num_steps=32, num_minibatches=4, learning_rate=3e-3),
    )
    return train_rs.run(config, Reporter()).path


def test_measures_both_modes_and_draws(tmp_path: Path, policy: Path) -> None:
    config = EvaluateConfig(policy=policy, out=tmp_path / "a", episodes=12, gifs=2)
    result = run(config, Reporter())
    document = json.loads(result.file("evaluation.json").read_text())
    for mode in ("sampled", "greedy"):
        scores = document["modes"][mode]
        rate = scores["success_rate"]
        assert rate["low"] <= rate["mean"] <= rate["high"]
        assert [row["seed"] for row in scores["episodes"]] == list(range(1_000_003, 1_000_015))
        assert scores["return"]["mean"] == pytest.approx(sum(row["return"] for row in scores["episodes"]) / 12)
        for number, row in enumerate(scores["episodes"][:2]):
            with Image.open(result.file(f"gifs/{mode}-{number}.gif")) as picture:
                assert 1 <= picture.n_frames <= row["length"]  # Pillow joins frames that are alike
    again = run(replace(config, out=tmp_path / "b"), Reporter())
    assert again.file("evaluation.json").read_bytes() == result.file("evaluation.json").read_bytes()
    assert result.facts["success_rate"] == document["modes"]["sampled"]["success_rate"]["mean"]
    assert result.facts["counts"].startswith("sampled: that policy was trained")


@pytest.mark.parametrize("greedy", [True, False])
def test_every_episode_counts_whatever_the_number_of_envs(policy: Path, greedy: bool) -> None:
    """Envs and noise belong to the episode, so five envs or twelve play the same episodes, in the same order."""
    agent = load_agent(policy)
    ended: list[int] = []
    few = list(play(agent, make_vec("Toy-Grid", 5), 12, seed=3, greedy=greedy, tick=ended.append))
    many = list(play(agent, make_vec("Toy-Grid", 12), 12, seed=3, greedy=greedy))
    assert [(e.seed, e.length, e.success) for e in few] == [(e.seed, e.length, e.success) for e in many]
    assert [e.seed for e in few] == list(range(3, 15))
    assert ended == sorted(ended)
    assert ended[-1] == 12


@pytest.mark.parametrize("greedy", [True, False])
def test_views_seen_before_are_not_looked_at_again(policy: Path, greedy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = load_agent(policy)
    asked: list[int] = []
    act = agent.act
    monkeypatch.setattr(agent, "act", lambda views, *how: (asked.append(len(views)), act(views, *how))[1])

    def played() -> list[tuple[int, int, bool, float]]:
        asked.clear()
        episodes = play(agent, make_vec("Toy-Grid", 40), 60, seed=3, greedy=greedy)
        return [(e.seed, e.length, e.success, e.episode_return) for e in episodes]

    once, looked = played(), sum(asked)
    monkeypatch.setattr("bkrl.agents.play._KEPT_BYTES", 0)  # room for what a few steps show: forgotten again and again
    assert played() == once
    monkeypatch.setattr("bkrl.agents.play._FEW", 1000)  # every view of every step
    assert played() == once
    assert looked < sum(asked) / 2


@pytest.mark.parametrize(
    "env_id",
    [
        "BabyAI-Text-GoToLocal-RedBall-S20@max_steps=12",
        pytest.param("Crafter-Text-PlaceCraftingTable", marks=pytest.mark.slow),
        "Toy-Grid",
    ],
)
def test_envs_laid_out_once_begin_the_same_episodes_again(env_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    envs = make_vec(env_id, 6)
    laid_out: list[object] = []
    reset = envs.reset
    monkeypatch.setattr(envs, "reset", lambda **how: (laid_out.append(how["seed"]), reset(**how))[1])
    agent = new_agent("compact", envs, "symbolic", 1, seed=1)
    start = Start(envs)

    def played(seed: int, start: Start | None) -> list[bytes]:
        episodes = play(agent, envs, 9, seed=seed, keep=True, start=start)
        return [e.observations.tobytes() + e.actions.tobytes() + e.mission.encode() for e in episodes]

    plain = [played(seed, None) for seed in (3, 50)]
    laid_out.clear()
    assert [played(seed, start) for seed in (3, 3, 50, 3, 3)] == [plain[0], plain[0], plain[1], plain[0], plain[0]]
    assert [seed for seed in laid_out if isinstance(seed, int)] == [3, 50, 3]


def test_kept_episodes_are_whole(policy: Path) -> None:
    for episode in play(load_agent(policy), make_vec("Toy-Grid", 4), 6, seed=0, keep=True):
        assert len(episode.observations) == episode.length + 1 == len(episode.actions) + 1
        assert episode.rewards.sum() == episode.episode_return
        assert episode.terminated != episode.truncated
        assert (episode.observations[-1, 0] == 24) == episode.success


def test_refusals(tmp_path: Path, policy: Path) -> None:
    with pytest.raises(InputError, match="another kind of env"):
        run(EvaluateConfig(policy=policy, out=tmp_path / "a", env="Toy-Chain"), Reporter())
    with pytest.raises(InputError):
        run(EvaluateConfig(policy=tmp_path / "none", out=tmp_path / "b"), Reporter())


def test_wilson_interval() -> None:
    assert wilson_interval(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-3)
    assert wilson_interval(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-3)
    assert wilson_interval(10, 10) == pytest.approx((0.7225, 1.0), abs=1e-3)
