"""Datasets: what is written comes back exactly, in every reader the README promises."""

import json

import numpy as np
import pytest

import bkrl.dataset as dataset_module
from bkrl.dataset import Dataset, DatasetWriter, Segment
from bkrl.errors import InputError
from bkrl.files import read_table, to_json
from bkrl.run import Run
from tests.experience import Config, write_dataset


@pytest.mark.parametrize("part_bytes", [1, 10**6])
def test_what_is_written_comes_back(tmp_path, monkeypatch, part_bytes):
    monkeypatch.setattr(dataset_module, "PART_BYTES", part_bytes)
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


def test_readers_promised_in_the_readme(tmp_path, monkeypatch):
    pd, pl = pytest.importorskip("pandas"), pytest.importorskip("polars")
    duckdb, datasets = pytest.importorskip("duckdb"), pytest.importorskip("datasets")
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    episodes = write_dataset(tmp_path / "d")
    steps = f"{tmp_path / 'd' / 'steps'}/*.parquet"
    frames = [
        pd.read_parquet(tmp_path / "d" / "steps"),
        pl.read_parquet(steps),
        duckdb.sql(f"select * from '{steps}' order by episode_id, step").df(),
        datasets.load_dataset("parquet", data_files=steps, split="train", cache_dir=str(tmp_path / "hf")).to_pandas(),
    ]
    for frame in frames:
        assert len(frame) == 12
        raw = b"".join(bytes(x) for x in frame["observation"])
        observations = np.frombuffer(raw, np.uint8).reshape(-1, 2, 3)
        np.testing.assert_array_equal(observations[:4], episodes[0]["observations"])
        assert str(frame["caption"][1]) == "caption 1"


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
def test_each_episode_says_where_it_lies_and_how_its_world_was_seeded(tmp_path, monkeypatch, part_bytes):
    monkeypatch.setattr(dataset_module, "PART_BYTES", part_bytes)
    write_dataset(tmp_path / "d")
    for row in Dataset.open(tmp_path / "d").episodes.to_pylist():
        part = read_table(tmp_path / "d" / "steps" / f"part-{row['part']:05d}.parquet").slice(row["row_start"])
        assert part.column("episode_id").to_pylist()[: row["length"] + 1] == [row["episode_id"]] * (row["length"] + 1)
        assert part.column("step")[0].as_py() == 0
        assert row["seed"] == 7
