"""Episodes of symbolic Housekeep that are drawn, written, read and played; and those that cannot be, in a sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bkrl.cli.main import run_command
from bkrl.core.config import CollectConfig, EvaluateConfig, ReportConfig
from bkrl.core.errors import InputError, UsageError
from bkrl.core.files import write_table
from bkrl.core.reporter import Reporter
from bkrl.envs import env_spec, make, make_vec
from bkrl.envs.housekeep import tables
from bkrl.envs.housekeep.episodes import read_episodes, to_columns
from bkrl.envs.housekeep.sampling import draw_episodes
from bkrl.envs.housekeep.tables import models, scene, votes
from bkrl.labelers.config import LabelConfig
from bkrl.methods import TrainRsConfig
from bkrl.potentials.config import TrainRmConfig
from bkrl.stages import collect, evaluate, label, report, train_rm, train_rs
from tests.envs.solved_housekeep import solved
from tests.report import synthetic

ORIGINAL = "Housekeep-Symbolic-Original"


def test_what_cannot_be_is_refused_in_a_sentence(tmp_path: Path) -> None:
    for options, says in (
        ("scene=Rs_ent", r"no scene 'Rs_ent'. Did you mean 'Rs_int'\?"),
        ("scene=Rs_int", "does not hold the episodes of Rs_int"),
        ("scene=Merom_1_int,episode=200", "has the episodes 0 to 199, not 200"),
        ("scene=Merom_1_int,split=test", "is of the split 'val', not 'test'"),
        ("control=high", "give scene=NAME"),
        ("episode=3", "give scene=NAME too"),
        ("reward=dense", "has no reward 'dense'"),
        ("picture=photo", "has no picture 'photo'. Use none, raster"),
    ):
        with pytest.raises(UsageError, match=says):
            env_spec(f"{ORIGINAL}@{options}")
    (one,) = draw_episodes("Rs_int", "train", 1, 0)
    known = scene("Rs_int")
    loudspeaker = next(r for r, key in enumerate(known.keys) if "loudspeaker" in key)
    toilet = next(r for r, key in enumerate(known.keys) if "toilet" in key)
    of_a_class = {int(models().object[model]): int(model) for model in np.argsort(models().long)}
    largest = tuple(list(of_a_class.values())[-len(one.models) :])
    for name, changed, says in (
        ("none", {"receptacles": (loudspeaker, *one.receptacles[1:])}, "nothing can lie on living_room_0 loudspeaker"),
        ("full", {"receptacles": (toilet,) * len(largest), "models": largest}, "has no room for the"),
        ("twice", {"models": one.models[:1] * len(one.models)}, "has two things of the class"),
    ):
        path = tmp_path / f"{name}.parquet"
        write_table(path, pa.table(to_columns([one._replace(**changed)])))
        with pytest.raises(InputError, match=says):
            make(f"{ORIGINAL}@file={path}")


@pytest.mark.parametrize(
    ("objects", "says"),
    [
        (("lamp", "lamp"), "lamp is named twice"),
        (("guitar",), "guitar has no model"),
        (("lampp",), "Did you mean 'lamp'"),
        (tuple(f"thing {i}" for i in range(11)), "11 objects are too many"),
    ],
)
def test_objects_that_cannot_be_laid_out_are_refused_in_a_sentence(objects: tuple[str, ...], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        draw_episodes("Rs_int", "train", 1, 0, objects)


def test_sampled_episodes_can_be_written_read_and_tidied(tmp_path: Path) -> None:
    episodes = draw_episodes("Rs_int", "train", 6, 0)
    assert draw_episodes("Rs_int", "train", 3, 0) == episodes[:3]
    path = tmp_path / "own.parquet"
    write_table(path, pa.table(to_columns(episodes)))
    assert list(read_episodes(path)) == episodes
    for one in episodes:
        assert 7 <= len(one.models) <= 10
        assert 3 <= one.misplaced <= 5
    found = solved(f"{ORIGINAL}@file={path},scene=Rs_int,control=high", 6)
    assert found.solved.all()


def made(capsys: Any, *flags: str) -> dict[str, Any]:
    assert run_command(["data", "make-episodes", *flags, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_command_writes_episodes_that_can_be_played(tmp_path: Path, capsys: Any) -> None:
    path, again, other = (tmp_path / "new" / f"{name}.parquet" for name in ("one", "again", "other"))
    asked = ("--scene", "Pomaria_0_int", "--split", "test", "--episodes", "4")
    facts = made(capsys, "--out", str(path), *asked, "--seed", "3")
    found = read_episodes(path)
    things = sum(len(one.models) for one in found)
    assert {"scene": "Pomaria_0_int", "episodes": 4, "objects": things}.items() <= facts.items()
    assert facts["misplaced"] == sum(one.misplaced for one in found)
    kinds = {int(models().object[model]) for one in found for model in one.models}
    assert {votes().splits[kind] for kind in kinds} == {"test"}
    made(capsys, "--out", str(again), *asked, "--seed", "3")
    made(capsys, "--out", str(other), *asked, "--seed", "4")
    assert path.read_bytes() == again.read_bytes() != other.read_bytes()
    assert solved(f"{ORIGINAL}@file={path},scene=Pomaria_0_int,control=high", 4).solved.all()


def test_the_command_misplaces_the_objects_that_it_is_given(tmp_path: Path, capsys: Any) -> None:
    facts = made(capsys, "--out", str(tmp_path / "own.parquet"), "--episodes", "2", "--objects", "lamp, golf ball")
    assert {"scene": "Rs_int", "episodes": 2, "objects": 4, "misplaced": 4}.items() <= facts.items()
    for one in read_episodes(tmp_path / "own.parquet"):
        assert [votes().objects[models().object[model]] for model in one.models] == ["lamp", "golf_ball"]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--scene", "Rs_ent"), "Housekeep has no scene 'Rs_ent'. Did you mean 'Rs_int'?"),
        (("--objects", "lampp"), "Housekeep has no object 'lampp'. Did you mean 'lamp'?"),
        (("--objects", ","), "--objects ',' names no class"),
        (("--out", "x.csv"), "x.csv is no .parquet file; name one, such as x.parquet."),
        (("--out", "is.parquet"), "is.parquet exists already; choose another --out."),
        (("--episodes", "0"), "episodes"),
        (("--episodes", "1000001"), "it must be at most 1000000"),
    ],
)
def test_the_command_refuses_in_a_sentence(
    flags: tuple[str, ...], says: str, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "is.parquet").write_bytes(b"kept")
    named = () if "--out" in flags else ("--out", "new.parquet")
    assert run_command(["data", "make-episodes", *named, *flags]) == 2
    assert says in " ".join(capsys.readouterr().err.split())
    assert [one.name for one in tmp_path.iterdir()] == ["is.parquet"]
    assert (tmp_path / "is.parquet").read_bytes() == b"kept"


@pytest.mark.parametrize(
    ("option", "code", "says"),
    [
        ("scene=Rs_ent", 2, "Housekeep has no scene 'Rs_ent'. Did you mean 'Rs_int'?"),
        ("scene=Merom_1_int,episode=200", 2, "Merom_1_int has the episodes 0 to 199, not 200."),
        ("file=none.parquet", 3, "none.parquet is missing"),
        ("file=cut.parquet", 3, "cut.parquet is damaged"),
        ("file=whole.parquet,split=val", 2, "All episodes of whole.parquet are played, of any split; leave split out."),
    ],
)
def test_training_in_what_is_not_there_ends_with_one_sentence(
    option: str, code: int, says: str, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    whole = tmp_path / "whole.parquet"
    write_table(whole, pa.table(to_columns(draw_episodes("Rs_int", "train", 1, 0))))
    (tmp_path / "cut.parquet").write_bytes(whole.read_bytes()[:-100])
    assert run_command(["train-rs", "--env", f"{ORIGINAL}@{option}", "--out", "run"]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line
    assert not (tmp_path / "run").exists()


def test_a_damaged_file_of_the_package_ends_the_command_with_one_sentence(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = tables.table
    (tmp_path / "sha256.json").write_text((tables.DATA / "sha256.json").read_text())
    (tmp_path / "scenes.parquet").write_bytes(b"PAR1")
    monkeypatch.setattr(tables, "table", lambda name: read(name, tmp_path))
    tables._scenes.cache_clear()
    assert run_command(["data", "make-episodes", "--out", str(tmp_path / "own.parquet")]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "bkrl: Housekeep's scenes.parquet is damaged: it is not as it was shipped; install bkrl again."


COLUMNS: dict[str, tuple[tuple[Any, str], ...]] = {
    "scene": ((None, "scene must be of type str"), ("Rs_ent", "Did you mean 'Rs_int'")),
    "split": (("exam", "split is 'exam'. Known: train, val, test"),),
    "dropout": ((None, "dropout must be of type bool"),),
    "start_x": (
        (None, "start_x must be of type float"),
        (float("nan"), "must be a finite number"),
        (1e6, "beside the floor"),
    ),
    "start_yaw_deg": ((360, "at most 359"),),
    "model_id": (([None] * 7, r"model_id\[0\] must be of type int"), ([], "has 0 things"), ([10**6] * 7, "known ones")),
    "start_receptacle": (([None] * 7, "must be of type int"), ([-1] * 7, "nothing can lie on number -1")),
    "misplaced_count": ((None, "must be of type int"), (8, "8 of them misplaced")),
    "oracle_steps_solve": ((-1, "at least 0"),),
}


@pytest.mark.parametrize(
    ("column", "value", "says"), [(name, *one) for name, listed in COLUMNS.items() for one in listed]
)
def test_a_file_with_a_wrong_value_is_refused_in_a_sentence(column: str, value: Any, says: str, tmp_path: Path) -> None:
    """Nulls and not-a-numbers were tracebacks, or played from nowhere."""
    good = to_columns(draw_episodes("Rs_int", "train", 1, 0))
    path = tmp_path / "wrong.parquet"
    write_table(path, pa.table({**good, column: [value]}))
    with pytest.raises(InputError, match=says) as caught:
        make(f"{ORIGINAL}@file={path}")
    assert "Episode 0 of" in str(caught.value)
    assert "\n" not in str(caught.value)
    without = tmp_path / "without.parquet"
    write_table(without, pa.table({name: values for name, values in good.items() if name != column}))
    with pytest.raises(InputError, match=column if column != "scene" else "holds no episodes"):
        make(f"{ORIGINAL}@file={without}")


def test_runs_in_episodes_of_ones_own_can_be_reported_on(tmp_path: Path) -> None:
    """The env's id has the path of its file, and the report's pictures have the env's id."""
    path = tmp_path / "own.parquet"
    write_table(path, pa.table(to_columns(draw_episodes("Rs_int", "train", 1, 0))))
    trained = synthetic.train_rs(tmp_path, "ppo", 1, env=f"{ORIGINAL}@file={path}", name="ppo-s1")
    made = report.run(ReportConfig(runs=(trained,), out=tmp_path / "report"), Reporter())
    pictures = [name for name in made.manifest["outputs"] if name.endswith(".png")]
    assert len(pictures) == 2
    assert all(made.file(name).parent == made.path for name in pictures)


def test_a_file_that_was_written_anew_is_read_anew(tmp_path: Path) -> None:
    """Its first episodes were remembered by its name."""
    path = tmp_path / "own.parquet"
    first, second = (draw_episodes("Rs_int", "train", 1, seed) for seed in (0, 1))
    for episodes in (first, second):
        path.unlink(missing_ok=True)
        write_table(path, pa.table(to_columns(episodes)))
        envs: Any = make_vec(f"{ORIGINAL}@file={path}", 1)
        envs.reset(seed=0)
        np.testing.assert_array_equal(envs.engine.things["model"][0][:3], episodes[0].models[:3])


def test_things_that_find_no_room_are_drawn_again():
    """The defaults of `data make-episodes` failed: an episode of seed 0 in Rs_int drew things that did not fit."""
    drawn = draw_episodes("Rs_int", "train", 100, 0)
    assert [one.number for one in drawn] == list(range(100))
    assert all(7 <= len(one.models) <= 10 for one in drawn)


def test_other_episodes_under_the_same_name_are_another_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file was hashed nowhere: with another one at its path, collect said "already complete"."""
    path, out = tmp_path / "own.parquet", str(tmp_path / "d")
    command = ["collect", "--env", f"{ORIGINAL}@file={path}", "--explorer", "random", "--episodes", "2", "--out", out]
    write_table(path, pa.table(to_columns(draw_episodes("Rs_int", "train", 2, 1))))
    assert [run_command(command), run_command(command)] == [0, 0]
    write_table(path, pa.table(to_columns(draw_episodes("Rs_int", "train", 2, 2))))
    capsys.readouterr()
    assert run_command(command) == 2
    assert "holds a run that differs in input 'env file'" in capsys.readouterr().err


def test_an_evaluation_records_the_episodes_of_the_env_that_its_policy_brings(tmp_path: Path) -> None:
    """Without --env it recorded none, and took its figures of other episodes for those of the file."""
    path, env = tmp_path / "own.parquet", f"{ORIGINAL}@file={tmp_path / 'own.parquet'}"
    write_table(path, pa.table(to_columns(draw_episodes("Rs_int", "train", 2, 1))))
    how: dict[str, Any] = {"env": env, "steps": 64, "eval_every": 64, "eval_episodes": 1}
    policy = train_rs.run(TrainRsConfig("random", **how, out=tmp_path / "p"), Reporter()).path
    (tmp_path / "own.toml").write_text('title = "one"\n[[condition]]\nname = "as it was"\n')
    for name, conditions in (("plain", None), ("under", str(tmp_path / "own.toml"))):
        config = EvaluateConfig(policy, out=tmp_path / name, episodes=1, gifs=0, conditions=conditions)
        assert "env file" in evaluate.run(config, Reporter()).config["inputs"]


def test_a_potential_whose_program_plays_records_the_episodes_of_its_dataset(tmp_path: Path) -> None:
    """With other episodes at the path, the same command said that it was complete."""
    path, env = tmp_path / "own.parquet", f"{ORIGINAL}@file={tmp_path / 'own.parquet'}"
    write_table(path, pa.table(to_columns(draw_episodes("Rs_int", "train", 2, 1))))
    data = collect.run(CollectConfig(env=env, explorer="random", episodes=3, out=tmp_path / "d"), Reporter()).path
    labels = label.run(LabelConfig(data, "code", llm="rules", out=tmp_path / "l"), Reporter()).path
    made = train_rm.run(TrainRmConfig(labels, play_steps=64, out=tmp_path / "phi"), Reporter())
    assert sorted(made.config["inputs"]) == ["dataset", "env file", "labels"]
    before = train_rm.run(TrainRmConfig(labels, out=tmp_path / "other"), Reporter())
    assert sorted(before.config["inputs"]) == ["dataset", "labels"]
