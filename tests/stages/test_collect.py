"""collect: a valid dataset of the explorer's own episodes, the same whenever and however often it was stopped."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from bkrl.agents import record
from bkrl.agents.build import new_agent
from bkrl.core.config import CollectConfig, HardwareConfig, PPOConfig
from bkrl.core.errors import InputError, UsageError
from bkrl.core.flags import without_effect
from bkrl.core.reporter import Reporter
from bkrl.data.check import validate
from bkrl.data.dataset import Dataset
from bkrl.data.derive import merge, subset
from bkrl.envs import make_vec
from bkrl.learn.bc import demonstrations
from bkrl.methods import TrainRsConfig
from bkrl.runs.record import Run
from bkrl.stages import train_rs
from bkrl.stages.collect import recording_points, run

SMALL = PPOConfig(num_envs=8, num_steps=32, num_minibatches=4)


def settings(out: Path, **changes) -> CollectConfig:
    base = CollectConfig(env="Toy-Grid", out=out, steps=2_048, checkpoints=3, episodes_per_checkpoint=5, ppo=SMALL)
    return replace(base, **changes)


@pytest.mark.parametrize("ext_coef", [0.0, 2.0])
def test_collects_a_valid_dataset(tmp_path: Path, ext_coef: float) -> None:
    result = run(settings(tmp_path / "d", ext_coef=ext_coef), Reporter())
    assert result.facts["reward_free"] == (ext_coef == 0)
    validate(result.path)
    data = Dataset.open(result.path)
    assert data.num_episodes == 15
    assert np.unique(data.checkpoint_step).tolist() == [0, 1_024, 2_048]
    assert data.action_names == ("up", "down", "left", "right")
    for episode in range(data.num_episodes):
        first, length = data.first_row[episode], data.lengths[episode]
        places = data.observations[first : first + length + 1, 0].astype(int)
        assert (places[-1] == 24) == data.success[episode] == data.terminated[episode]
        assert set(np.abs(np.diff(places))) <= {0, 1, 5}
        assert data.caption(first) == f"You are in place {places[0]}."
        assert data.rewards[first : first + length].sum() == data.returns[episode]


def test_exploration_that_is_stopped_goes_on_to_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run(settings(tmp_path / "whole"), Reporter())
    play, calls = record.play, iter(range(100))

    def dies(*arguments, **options):
        if next(calls) == 1:
            raise RuntimeError("killed")
        return play(*arguments, **options)

    class Dies(Reporter):
        def progress(self, title, total, unit="steps"):
            from contextlib import contextmanager

            @contextmanager
            def block():
                def update(completed: float, note: str = "") -> None:
                    if completed > 1_300:
                        raise RuntimeError("killed")

                yield update

            return block()

    config = settings(tmp_path / "stopped")
    with pytest.raises(RuntimeError):
        run(config, Dies())
    monkeypatch.setattr(record, "play", dies)
    with pytest.raises(RuntimeError):
        run(config, Reporter())
    (tmp_path / "stopped" / "steps" / "part-00007.parquet").write_bytes(b"half")
    stopped = run(config, Reporter())
    for name in whole.manifest["outputs"]:
        if name != "metrics.jsonl":
            assert whole.file(name).read_bytes() == stopped.file(name).read_bytes(), name
    assert not (stopped.path / "steps" / "part-00007.parquet").exists()


def test_recording_points() -> None:
    size = 8 * 32
    assert recording_points(settings(Path("x"))) == [0, 1_024, 2_048]
    assert recording_points(settings(Path("x"), checkpoints=1)) == [2_048]
    assert recording_points(settings(Path("x"), steps=300, checkpoints=6)) == [0, size, 2 * size]


@pytest.mark.parametrize(("language", "caption"), [(None, "Tu vois"), ("en", "You see")])
def test_captions_are_in_the_language_of_the_env_unless_another_is_wanted(
    tmp_path: Path, language: str | None, caption: str
) -> None:
    config = CollectConfig("BabyAI-GoToFrench-v0", out=tmp_path / "d", explorer="random", episodes=2, language=language)
    result = run(config, Reporter())
    assert Dataset.open(result.path).language == ("fr" if language is None else "en")
    assert caption in str(next(result.file("steps").glob("*.parquet")).read_bytes())
    assert run(config, Reporter()).complete


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="paid for nothing"):
        run(settings(tmp_path / "a", int_coef=0.0), Reporter())
    with pytest.raises(UsageError, match="English only"):
        run(settings(tmp_path / "b", language="fr"), Reporter())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--device cuda: torch finds no GPU here"):
        run(settings(tmp_path / "a", hardware=HardwareConfig(device="cuda")), Reporter())
    assert list(tmp_path.iterdir()) == []


def test_a_complete_run_is_left_alone(tmp_path: Path) -> None:
    config = settings(tmp_path / "d", steps=256, checkpoints=1)
    run(config, Reporter())
    before = Run.open(tmp_path / "d").manifest
    assert run(config, Reporter()).manifest == before


class Said(Reporter):
    def __init__(self) -> None:
        self.said: list[str] = []
        self.warned: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def warn(self, text: str) -> None:
        self.warned.append(text)


def test_missions_that_change_matter_to_an_explorer_that_is_paid_for_them(tmp_path: Path) -> None:
    small = replace(
        settings(tmp_path),
        env="BabyAI-Text-GoToLocal-Pretraining-S20",
        steps=64,
        checkpoints=1,
        episodes_per_checkpoint=1,
    )
    for coef, paid in ((0.0, False), (1.0, True)):
        told = Said()
        run(replace(small, out=tmp_path / f"d{paid}", ext_coef=coef), told)
        assert any("and the explorer does not see them: it can learn only" in one for one in told.warned) == paid
        assert any("missions" in one for one in [*told.warned, *told.said]) == paid  # no word where it does no harm


# ------------------------------------------------------------------------------------------- explorers that only act


def test_a_random_explorer_needs_no_training(tmp_path: Path) -> None:
    config = CollectConfig(env="Toy-Grid", explorer="random", episodes=12, out=tmp_path / "d")
    result = run(config, Reporter())
    data = Dataset.open(result.path)
    assert (data.num_episodes, set(data.explorers), result.facts["explorer"]) == (12, {"random"}, "random")
    assert np.bincount(data.actions[data.actions >= 0]).min() > 0.15 * data.num_steps
    assert "12 episodes, played by random, recorded" in (result.path / "README.md").read_text()
    assert not (result.path / "policies").exists()
    assert validate(result.path)["explorer"] == "random"
    again = run(replace(config, out=tmp_path / "again"), Reporter())
    for name in result.manifest["outputs"]:
        assert result.file(name).read_bytes() == again.file(name).read_bytes(), name


def test_missions_that_change_within_an_episode_are_those_of_each_moment(tmp_path: Path) -> None:
    """Every row had the first mission, so that clones and labels never met another sub-goal."""
    env_id = "Crafter-Typed-PlacePlant@subgoals=shown,length=250"
    data = Dataset.open(
        run(CollectConfig(env=env_id, explorer="random", episodes=24, out=tmp_path / "d"), Reporter()).path
    )
    envs = make_vec(env_id, 1)
    changed = []
    for episode, first in enumerate(data.first_row.tolist()):
        envs.reset(seed=int(data.episodes["seed"][episode].as_py()))
        said = []
        for row in range(first, first + int(data.lengths[episode])):
            said += envs.missions().tolist()
            envs.step(data.actions[row : row + 1])
        assert data.row_missions[first : first + len(said) + 1].tolist() == [*said, said[-1]]
        changed += [episode] * (said[0] != said[-1])
    assert changed
    assert set(data.missions) == {"chop grass"}
    assert validate(data.path)["distinct_missions"] == 2

    rows = np.arange(len(data.ages))
    assert data.windows(rows, 2).missions.tolist() == data.row_missions.tolist()
    agent = new_agent("compact", envs, "symbolic", 1, 0, missions=True)
    shown, _ = demonstrations(data, agent, only_successes=False, held_out=0, seed=1)
    assert shown.views.mission.tolist() == data.row_missions[data.actions >= 0].tolist()
    copy = Dataset.open(subset(data.path, tmp_path / "copy", 24).path)
    assert copy.row_missions.tolist() == data.row_missions.tolist()


def test_the_policy_of_a_run_explores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = train_rs.run(
        TrainRsConfig(env="Toy-Grid", steps=256, eval_episodes=2, ppo=SMALL, out=tmp_path / "ppo"), Reporter()
    )
    config = CollectConfig(env="Toy-Grid", explorer=str(trained.path), episodes=6, out=tmp_path / "d")
    result = run(config, Reporter())
    data = Dataset.open(result.path)
    assert set(data.explorers) == {"ppo"}
    assert data.checkpoint_step.tolist() == [256] * 6
    idle = TrainRsConfig(env="Toy-Grid", alg="random", steps=256, eval_episodes=2, out=tmp_path / "idle")
    played = run(replace(config, explorer=str(train_rs.run(idle, Reporter()).path), out=tmp_path / "i"), Reporter())
    assert Dataset.open(played.path).checkpoint_step.tolist() == [0] * 6  # it was 256: nobody had trained
    assert result.config["inputs"]["explorer"]["manifest_sha256"]
    other = run(replace(config, explorer="random", seed=2, out=tmp_path / "r"), Reporter())
    monkeypatch.chdir(trained.path)  # "." had no name
    here = run(replace(config, explorer=".", out=tmp_path / "here"), Reporter())
    assert set(Dataset.open(here.path).explorers) == {"ppo"}
    both = merge([result.path, other.path], tmp_path / "b")
    joined = Dataset.open(both.path)
    assert joined.explorers == ["ppo"] * 6 + ["random"] * 6
    assert both.facts["explorer"] == "ppo, random"
    validate(both.path)
    part = subset(both.path, tmp_path / "s", 4)
    assert set(Dataset.open(part.path).explorers) == {"ppo", "random"}
    with pytest.raises(InputError, match="another kind of env"):
        run(replace(config, env="CrafterReward-v1", out=tmp_path / "x"), Reporter())
    assert not (tmp_path / "x").exists()


def test_a_bot_explores(tmp_path: Path) -> None:
    env = "BabyAI-MixedTrainLocal-v0@num_dists=0,task_kinds=goto+pickup"
    config = CollectConfig(env=env, explorer="bot", episodes=10, out=tmp_path / "d")
    data = Dataset.open(run(config, Reporter()).path)
    assert data.success.all()
    assert (set(data.explorers), set(data.task_kinds)) == ({"bot"}, {"goto", "pickup"})
    noisy = Dataset.open(run(replace(config, epsilon=0.5, out=tmp_path / "n"), Reporter()).path)
    assert noisy.lengths.mean() > 1.3 * data.lengths.mean()


def test_the_kind_of_task_is_recorded_where_the_env_says_it(tmp_path: Path) -> None:
    env = "BabyAI-MixedTrainLocal-v0@num_dists=0,max_steps=8,task_mix=balanced"
    result = run(CollectConfig(env=env, explorer="random", episodes=10, out=tmp_path / "d"), Reporter())
    data = Dataset.open(result.path)
    assert data.env_id == "BabyAI-MixedTrainLocal-v0@num_dists=0,task_mix=balanced,max_steps=8"
    kinds = {"goto": "go to", "pickup": "pick up", "open": "open", "putnext": "put", "seq": ""}
    assert {kind: data.task_kinds.count(kind) for kind in kinds} == dict.fromkeys(kinds, 2)
    assert all(mission.startswith(kinds[kind]) for mission, kind in zip(data.missions, data.task_kinds, strict=True))
    assert validate(result.path)["task_kinds"] == dict.fromkeys(sorted(kinds), 2)
    assert set(Dataset.open(subset(result.path, tmp_path / "s", 3).path).task_kinds) <= set(kinds)


def test_explorers_that_cannot_be_are_refused(tmp_path: Path) -> None:
    config = CollectConfig(env="Toy-Grid", explorer="bot", out=tmp_path / "d")
    with pytest.raises(UsageError, match="Toy-Grid has no bot"):
        run(config, Reporter())
    with pytest.raises(InputError, match="nobody"):
        run(replace(config, explorer=str(tmp_path / "nobody")), Reporter())
    with pytest.raises(
        UsageError, match="There is no explorer 'robot'. Did you mean 'bot'\\? Known: rnd, random, bot,"
    ):
        run(replace(config, explorer="robot"), Reporter())
    for one in ({"ppo": SMALL}, {"network": "recurrent"}, {"view": "image"}, {"hardware": HardwareConfig("cuda")}):
        with pytest.raises(UsageError, match=r"--[a-z-]+ has no effect with --explorer random; leave it out"):
            run(replace(config, explorer="random", **one), Reporter())  # type: ignore[arg-type]
    assert without_effect(config, ["steps"]) == {"steps": "--explorer rnd, which learns"}
    assert list(tmp_path.iterdir()) == []
