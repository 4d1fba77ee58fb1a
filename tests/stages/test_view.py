"""`--view`: a policy that sees Crafter as pictures, through every verb that has to do with one."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bkrl.agents import load_agent
from bkrl.core.config import CollectConfig, EvaluateConfig, PPOConfig
from bkrl.core.errors import InputError, UsageError
from bkrl.core.files import read_json, to_json
from bkrl.core.reporter import Reporter
from bkrl.data.dataset import Dataset
from bkrl.envs import make_vec
from bkrl.methods import TrainRsConfig
from bkrl.runs.record import Run
from bkrl.stages import collect, evaluate, train_rs
from bkrl.studies.executors import shell
from bkrl.studies.study import plan
from tests.stages.interrupted import the_same_when_killed

CRAFTER = "Crafter-Text-PlaceCraftingTable"
TINY = PPOConfig(num_envs=4, num_steps=16, num_minibatches=2, update_epochs=1)


@pytest.fixture(autouse=True)
def short_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    for stage in (collect, train_rs, evaluate):
        monkeypatch.setattr(stage, "make_vec", partial(make_vec, length=12))


def settings(out: Path, **changes: Any) -> TrainRsConfig:
    base = {"env": CRAFTER, "steps": 128, "eval_every": 64, "eval_episodes": 2, "view": "image", "ppo": TINY}
    return TrainRsConfig(**{**base, "out": out, **changes})


def test_a_policy_that_sees_pictures_is_trained_and_judged(tmp_path: Path) -> None:
    result = train_rs.run(settings(tmp_path / "run"), Reporter())
    policy = load_agent(result.path)
    assert policy.view == result.facts["view"] == result.manifest["config"]["view"] == "image"
    assert policy.spec["name"] == "compact"
    assert policy.spec["obs_shape"] == [64, 64, 3]
    judged = evaluate.run(EvaluateConfig(result.path, out=tmp_path / "e", episodes=2, gifs=1), Reporter())
    assert judged.facts["episode_length"] <= 12


@pytest.mark.parametrize("form", ["rnd", "bk-code pbrs", pytest.param("bk-code pbim", marks=pytest.mark.slow)])
def test_novelty_and_potentials_read_the_symbols(tmp_path: Path, form: str) -> None:
    alg, _, shaping = form.partition(" ")
    shaped = {"potential": Path("sample:bk-code-crafter"), "shaping": shaping} if shaping else {}
    rows = []
    for view in ("image", "symbolic"):
        config = settings(tmp_path / view, alg=alg, view=view, **shaped)
        train_rs.run(config, Reporter())
        lines = [json.loads(line) for line in (config.run_dir / "metrics.jsonl").open()]
        rows.append(next(line for line in lines if "shaping/phi_mean" in line or "rnd/novelty" in line))
    assert rows[0].keys() == rows[1].keys()


def test_the_explorer_sees_pictures_and_the_dataset_holds_symbols(tmp_path: Path) -> None:
    config = CollectConfig(
        env=CRAFTER, out=tmp_path / "d", steps=128, checkpoints=2, episodes_per_checkpoint=2, view="image", ppo=TINY
    )
    result = collect.run(config, Reporter())
    assert result.facts["view"] == "image"
    assert Dataset.open(result.path).observations.shape[1:] == (82,)
    assert load_agent(result.path / "policies", "step-000000000128").view == "image"


@pytest.mark.parametrize("network", ["compact", pytest.param("residual", marks=pytest.mark.slow)])
def test_interrupted_is_byte_for_byte_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, network: str) -> None:
    whole = settings(tmp_path / "whole", steps=320, checkpoint_every=64, network=network)
    the_same_when_killed(whole, monkeypatch)


def test_another_view_is_another_run(tmp_path: Path) -> None:
    train_rs.run(settings(tmp_path / "image"), Reporter())
    with pytest.raises(UsageError, match="holds a run that differs in view"):
        train_rs.run(settings(tmp_path / "image", view=None), Reporter())
    with pytest.raises(
        InputError, match=r"those of another network: .* choose the same --network \(compact there\), --view,"
    ):
        train_rs.run(settings(tmp_path / "new", view=None, init_from=tmp_path / "image"), Reporter())
    again = train_rs.run(settings(tmp_path / "more", init_from=tmp_path / "image"), Reporter())
    assert again.manifest["inputs"]["init_from"]["path"] == (tmp_path / "image").as_posix()
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["image", "more"]


@pytest.mark.parametrize("stage", ["train-rs", "collect"])
def test_a_run_of_before_there_were_views_goes_on(tmp_path: Path, stage: str) -> None:
    config = TrainRsConfig(env=CRAFTER) if stage == "train-rs" else CollectConfig(env=CRAFTER)
    path = tmp_path / "run"
    made = Run.create(path, stage=stage, config=config)
    made.log(0, loss=1.0)
    made.close()
    made.release()
    document = read_json(path / "config.json")
    assert document["config"].pop("view", "missing") is None
    (path / "config.json").write_text(to_json(document))
    going_on = Run.create(path, stage=stage, config=config)
    assert going_on.metrics() == [{"step": 0, "loss": 1.0}]
    going_on.release()
    with pytest.raises(UsageError, match="differs in view"):
        Run.create(path, stage=stage, config=replace(config, view="image"))
    going_on = Run.create(path, stage=stage, config=config)
    going_on.finish([])
    assert Run.open(path).complete
    assert Run.create(path, stage=stage, config=config).complete


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("train-rs --env Toy-Grid --view image", "Toy-Grid does not come as pictures"),
        ("collect --view image", "BabyAI-Text-GoToLocal-Pretraining-S20 does not come as pictures"),
        (f"train-rs --env {CRAFTER} --network paper --view symbolic", "use --network compact, or leave --view out."),
        (f"collect --env {CRAFTER} --network paper --view symbolic", "use --network compact, or leave --view out."),
        (
            f"train-rs --env {CRAFTER} --alg bk-code --potential sample:bk-code-crafter --shaping advice --view image",
            "use --network compact without --view image, or --shaping pbrs.",
        ),
        ("train-rs --view picture", "'picture' is not one of 'symbolic', 'image'"),
    ],
)
def test_what_cannot_be_seen_is_refused(
    arguments: str, sentence: str, refused: Callable[[Sequence[str], int], str]
) -> None:
    assert sentence in refused(arguments.split(), 2)


STUDY = """
title = ""
minutes = 1
[[world]]
name = "w"
algs = ["ppo"]
seeds = [1]
collect = { view = "image" }
train_rs = { env = "A", view = "%s" }
"""


def test_a_study_chooses_the_view(tmp_path: Path) -> None:
    found = plan(tomllib.loads(STUDY % "image"), tmp_path)
    seeing = [cell for cell in found.cells if cell.stage in ("collect", "train_rs")]
    assert [cell.config.view for cell in seeing] == ["image", "image"]
    assert all("--view image" in shell.command(cell) for cell in seeing)
    with pytest.raises(UsageError, match="'view' in train-rs"):
        plan(tomllib.loads(STUDY % "imag"), tmp_path)
