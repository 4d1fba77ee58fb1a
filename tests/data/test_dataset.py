"""Datasets: what is written comes back exactly, in every reader the README promises."""

import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import bkrl.data.writer as writer_module
from bkrl.core.errors import InputError
from bkrl.core.files import read_table, to_json
from bkrl.data.check import validate
from bkrl.data.dataset import Dataset, Segment
from bkrl.data.derive import merge, subset
from bkrl.data.writer import DatasetWriter
from bkrl.labelers.material import env_card, rows_text
from bkrl.runs.record import Run
from bkrl.text.mission_words import MissionWords
from tests.experience import Config, write_dataset, write_env


def test_text_that_no_file_can_hold_is_refused_in_a_sentence(tmp_path):
    run = Run.create(tmp_path / "d", stage="collect", config=Config())
    writer = DatasetWriter(run, env_id="Toy", obs_shape=(1,), action_names=("a",))
    seen, done = np.zeros((2, 1), np.uint8), {"terminated": True, "truncated": False, "success": False}
    captions = ["fine", "\ud800"]
    writer.add_episode(seen, np.zeros(1, int), np.zeros(1), captions, mission="", seed=0, checkpoint_step=0, **done)
    with pytest.raises(InputError, match="A caption of the env holds half a surrogate pair"):
        writer.close()


DOCS = Path(__file__).parents[2] / "docs" / "data.md"
OLD = Path(__file__).with_name("dataset-v1")  # what `write_dataset` wrote before schema version 2


@pytest.mark.parametrize("part_bytes", [1, 10**6])
def test_what_is_written_comes_back(tmp_path, monkeypatch, part_bytes):
    monkeypatch.setattr(writer_module, "PART_BYTES", part_bytes)
    episodes = write_dataset(tmp_path / "d")
    data = Dataset.open(tmp_path / "d")
    assert len(list((tmp_path / "d" / "steps").glob("*.parquet"))) == (3 if part_bytes == 1 else 1)
    assert (data.env_id, data.obs_shape, data.num_episodes, data.num_steps) == ("Toy", (2, 3), 3, 9)
    assert data.lengths.tolist() == [3, 1, 5]
    assert data.first_row.tolist() == [0, 4, 6]
    assert data.missions == ["go 0", "go 1", "go 2"]
    assert data.success.tolist() == [True, False, False]
    assert data.terminated.tolist() == [True, False, True]
    for e, episode in enumerate(episodes):
        rows = np.arange(len(episode["actions"]) + 1) + data.first_row[e]
        np.testing.assert_array_equal(data.observations[rows], episode["observations"])
        np.testing.assert_array_equal(data.actions[rows], [*episode["actions"], -1])
        np.testing.assert_array_equal(data.rewards[rows[:-1]], episode["rewards"])
        assert [data.caption(r) for r in rows] == episode["captions"]
        assert (data.episode_of_row[rows] == e).all()


def test_a_mission_may_be_another_at_each_row(tmp_path):
    run = Run.create(tmp_path / "d", stage="collect", config=Config())
    writer = DatasetWriter(run, env_id="Toy", obs_shape=(1,), action_names=("a",))
    seen, done = np.zeros((3, 1), np.uint8), {"terminated": True, "truncated": False, "success": False}
    more = {"seed": 0, "checkpoint_step": 0, **done}
    for mission in (["first", "then", "then"], "one"):
        writer.add_episode(seen, np.zeros(2, int), np.zeros(2), [""] * 3, mission=mission, **more)
    with pytest.raises(ValueError, match="captions and missions one an observation"):
        writer.add_episode(seen, np.zeros(2, int), np.zeros(2), [""] * 3, mission=["too", "few"], **more)
    writer.close()
    run.finish(writer.outputs)
    data = Dataset.open(tmp_path / "d")
    assert data.missions == ["first", "one"]
    assert data.row_missions.tolist() == ["first", "then", "then", "one", "one", "one"]
    assert data.windows(np.array([1, 3]), 1).missions.tolist() == ["then", "one"]
    assert data.beginning(1)[0].endswith("whose mission is: first")
    card = env_card("Toy-Grid", words=MissionWords.of(data.text("mission")[1]))
    assert card.mission_words.words == ("first", "one", "then")
    assert rows_text(data, np.array([0, 1]), card).mission == "then", "what potentials of the segment read"


def test_a_folder_may_have_a_colon_in_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_dataset(Path("random:1"))  # pyarrow reads such a path as an address
    assert Dataset.open(Path("random:1")).num_steps == 9


def test_what_a_method_records_beside_has_columns_of_its_own(tmp_path):
    write_dataset(tmp_path / "d", texts=("goal", "advice"))
    data = Dataset.open(tmp_path / "d")
    assert data.texts == ("goal", "advice")
    numbers, texts = data.text("goal")
    assert [texts[number] for number in numbers[:6]] == ["goal 0", "goal 1", "goal 0", "goal 1", "goal 1", "goal 0"]
    assert validate(tmp_path / "d")["valid"]
    few = Dataset.open(subset(tmp_path / "d", tmp_path / "few", 2).path)
    numbers, texts = few.text("advice")
    assert [texts[number] for number in numbers[few.first_row]] == ["advice 0", "advice 1"]
    write_dataset(tmp_path / "plain")
    assert Dataset.open(tmp_path / "plain").texts == ()
    with pytest.raises(InputError, match="because of what else was recorded"):
        merge([tmp_path / "d", tmp_path / "plain"], tmp_path / "both")


def test_texts_that_were_not_announced_or_are_too_few_are_refused(tmp_path):
    run = Run.create(tmp_path / "d", stage="collect", config=Config())
    writer = DatasetWriter(run, env_id="Toy", obs_shape=(2,), action_names=("a",), texts=("goal",))
    ends = {"mission": "", "terminated": True, "truncated": False, "success": False, "seed": 0, "checkpoint_step": 0}
    for texts in ({}, {"goal": ["one"]}, {"goal": ["a", "b"], "advice": ["a", "b"]}):
        with pytest.raises(ValueError, match="the texts goal need one entry an observation"):
            writer.add_episode(np.zeros((2, 2), np.uint8), np.zeros(1, int), np.zeros(1), ["", ""], **ends, texts=texts)


def test_segments_point_at_rows_and_foreign_ones_are_refused(tmp_path):
    write_dataset(tmp_path / "d")
    data = Dataset.open(tmp_path / "d")
    assert data.rows(Segment(2, 1, 2)).tolist() == [7, 8, 9]
    for wrong in [Segment(3, 0, 1), Segment(1, 0, 2), Segment(0, -1, 1)]:
        with pytest.raises(InputError, match="another dataset"):
            data.rows(wrong)
    windows = data.windows(np.array([6, 9]), 2)
    assert windows.valid.tolist() == [[False, False, True], [True, True, True]]


def test_the_same_episodes_give_the_same_bytes(tmp_path):
    write_dataset(tmp_path / "a")
    write_dataset(tmp_path / "b")
    for name in ["steps/part-00000.parquet", "episodes.parquet", "info.json"]:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_every_reader_shows_observations_as_the_documented_line_says(tmp_path, monkeypatch):
    names = ("pandas", "polars", "duckdb", "datasets", "pyarrow.parquet")
    pandas, polars, duckdb, datasets, parquet = (pytest.importorskip(name) for name in names)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.chdir(tmp_path)
    written = Dataset.open(write_env(Path("data/explore"), "BabyAI-Text-GoToLocal-Pretraining-S20", 3, 5))
    wanted = written.observations
    assert not wanted[:, -1, -1, -1].any()  # a reader that takes them for text cuts zeros off the end
    known = {"np": np, "pandas": pandas, "polars": polars, "duckdb": duckdb, "parquet": parquet}
    known |= {"load_dataset": datasets.load_dataset}
    lines = DOCS.read_text().partition("```python\n")[2].partition("```")[0].splitlines()
    assert len(lines) == len(names)
    for line in lines:
        np.testing.assert_array_equal(eval(line, known), wanted, err_msg=line)
    card = re.findall(r"```python\n(.*?)```", Path("data/explore/README.md").read_text(), re.DOTALL)[0]
    said = known | {"FOLDER": "data/explore"}
    for name, line in re.findall(r"^(\w+) = (.*)$", card, re.MULTILINE):
        said[name] = eval(line, said)
    np.testing.assert_array_equal(said["observations"], wanted)
    assert said["observations"].dtype == np.uint8
    assert list(said["steps"]["caption"]) == [written.caption(row) for row in range(18)]
    assert list(said["episodes"]["length"]) == [5, 5, 5]


def test_a_dataset_of_an_older_version_opens_and_goes_with_new_ones(tmp_path):
    episodes = write_dataset(tmp_path / "new")
    old, new = Dataset.open(OLD), Dataset.open(tmp_path / "new")
    assert pa.types.is_fixed_size_binary(read_table(OLD / "steps/part-00000.parquet").schema.field("observation").type)
    assert old.info["schema_version"] == 1
    for name in ("observations", "actions", "rewards", "ages", "caption_ids", "lengths", "success"):
        np.testing.assert_array_equal(getattr(old, name), getattr(new, name))
    copy = subset(OLD, tmp_path / "copy", 3)
    for name in ("steps/part-00000.parquet", "episodes.parquet", "info.json"):
        assert copy.file(name).read_bytes() == (tmp_path / "new" / name).read_bytes()
    write_dataset(tmp_path / "other", lengths=(4, 2))
    for given in ([OLD, tmp_path / "other"], [tmp_path / "other", OLD]):
        merged = Dataset.open(merge(given, tmp_path / f"after {given[0].name}").path)
        assert validate(merged.path)["episodes"] == 5
        start = 0 if given[0] == OLD else 5 + 3
        np.testing.assert_array_equal(merged.observations[start : start + 4], episodes[0]["observations"])


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda p: _rewrite(p / "steps/part-00000.parquet", lambda raw: raw[:-30]), "bytes"),
        (
            lambda p: _rewrite(p / "steps/part-00000.parquet", lambda raw: raw[:99] + bytes([raw[99] ^ 1]) + raw[100:]),
            "changed",
        ),
        (lambda p: (p / "manifest.json").unlink(), "unfinished"),
        (lambda p: (p / "steps/part-00000.parquet").unlink(), "missing"),
    ],
)
def test_damage_is_refused_in_a_sentence(tmp_path, damage, sentence):
    write_dataset(tmp_path / "d")
    damage(tmp_path / "d")
    with pytest.raises(InputError, match=sentence):
        Dataset.open(tmp_path / "d")


def test_another_schema_version_is_refused(tmp_path):
    write_dataset(tmp_path / "d")
    info = json.loads((tmp_path / "d" / "info.json").read_text()) | {"schema_version": 99}
    manifest = json.loads((tmp_path / "d" / "manifest.json").read_text())
    (tmp_path / "d" / "info.json").write_text(to_json(info))
    run = Run(tmp_path / "d", json.loads((tmp_path / "d" / "config.json").read_text()), None)
    run.finish(list(manifest["outputs"]))
    with pytest.raises(InputError, match="schema version 99"):
        Dataset.open(tmp_path / "d")


def test_parts_of_a_recording_that_was_cut_short_are_removed(tmp_path):
    left = tmp_path / "d" / "steps" / "part-00007.parquet"
    Run.create(tmp_path / "d", stage="collect", config=Config()).release()
    left.parent.mkdir()
    left.touch()
    write_dataset(tmp_path / "d")
    assert [file.name for file in left.parent.iterdir()] == ["part-00000.parquet"]


def test_the_writer_refuses_what_is_no_episode(tmp_path):
    run = Run.create(tmp_path / "d", stage="collect", config=Config())
    writer = DatasetWriter(run, env_id="Toy", obs_shape=(2,), action_names=("a",))
    ends = {"mission": "", "terminated": True, "truncated": False, "success": False, "seed": 0, "checkpoint_step": 0}
    with pytest.raises(ValueError, match="at least one action"):
        writer.add_episode(np.zeros((1, 2), np.uint8), np.zeros(0, int), np.zeros(0), [""], **ends)
    with pytest.raises(ValueError, match="uint8 of shape"):
        writer.add_episode(np.zeros((1, 2), np.uint8), np.zeros(1, int), np.zeros(1), ["", ""], **ends)


def _rewrite(path, change):
    path.write_bytes(change(path.read_bytes()))


@pytest.mark.parametrize("part_bytes", [1, 10**6])
def test_each_episode_says_where_it_lies_and_how_its_env_was_seeded(tmp_path, monkeypatch, part_bytes):
    monkeypatch.setattr(writer_module, "PART_BYTES", part_bytes)
    write_dataset(tmp_path / "d")
    for row in Dataset.open(tmp_path / "d").episodes.to_pylist():
        part = read_table(tmp_path / "d" / "steps" / f"part-{row['part']:05d}.parquet").slice(row["row_start"])
        assert part.column("episode_id").to_pylist()[: row["length"] + 1] == [row["episode_id"]] * (row["length"] + 1)
        assert part.column("step")[0].as_py() == 0
        assert row["seed"] == 7
