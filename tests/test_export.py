"""`bkrl data`: validate finds broken rules, head shows steps, Minari reads what is exported."""

import errno
import json
import os
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bkrl.cli import run_command
from bkrl.dataset import Dataset, DatasetWriter
from bkrl.errors import InputError, UsageError
from bkrl.export import head, to_minari, validate
from bkrl.files import write_table
from bkrl.run import Run
from tests.experience import Config, write_dataset


def reseal(path):
    """Write the manifest anew, as a buggy writer would have."""
    outputs = list(json.loads((path / "manifest.json").read_text())["outputs"])
    Run(path, json.loads((path / "config.json").read_text()), None).finish(outputs)


def change(path, file="steps/part-00000.parquet", **columns):
    file = path / file
    table = pq.read_table(file)
    for name, values in columns.items():
        place = table.schema.get_field_index(name)
        table = table.set_column(
            place,
            table.schema.field(name),
            [pa.array(values(table.column(name).to_pylist()), table.schema.field(name).type)],
        )
    write_table(file, table)
    reseal(path)


def test_a_good_dataset_is_described(tmp_path):
    write_dataset(tmp_path / "d")
    facts = validate(tmp_path / "d")
    assert (facts["episodes"], facts["steps"], facts["distinct_captions"]) == (3, 9, 2)


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"action": lambda a: [9, *a[1:]]}, "out of range"),
        ({"action": lambda a: [None, *a[1:]]}, "not the last has no action"),
        ({"action": lambda a: [*a[:-1], 0]}, "a last row has an action"),
        ({"reward": lambda r: [float("nan"), *r[1:]]}, "not finite"),
        ({"file": "episodes.parquet", "terminated": lambda t: [False, *t[1:]]}, "neither terminated nor was truncated"),
        ({"file": "episodes.parquet", "episode_id": lambda e: [1, *e[1:]]}, "ids are not 0, 1, 2"),
        (
            {"file": "episodes.parquet", "length": lambda n: [n[0] + 1, *n[1:]]},
            "has 12 step rows, its episodes need 13",
        ),
        ({"reward": lambda r: [5.0, *r[1:]]}, "sum of its rewards"),
        ({"step": lambda s: [1, *s[1:]]}, "count up from 0"),
        ({"episode_id": lambda e: [1, *e[1:]]}, "stand together"),
    ],
)
def test_a_broken_rule_is_named(tmp_path, columns, sentence):
    write_dataset(tmp_path / "d")
    change(tmp_path / "d", **columns)
    with pytest.raises(InputError, match=sentence):
        validate(tmp_path / "d")


def test_head_shows_an_episode(tmp_path, capsys):
    episodes = write_dataset(tmp_path / "d")
    _, rows = head(tmp_path / "d", 2, 3)
    assert [row[0] for row in rows] == [0, 1, 2]
    assert rows[0][1] == "ab"[episodes[2]["actions"][0]]
    assert len(head(tmp_path / "d", 1, 99)[1]) == 2
    with pytest.raises(UsageError, match="no episode 3"):
        head(tmp_path / "d", 3, 1)
    assert run_command(["data", "head", str(tmp_path / "d"), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 4


def test_an_episode_that_succeeded_in_its_last_step_is_exported_as_both(tmp_path):
    minari = pytest.importorskip("minari")
    run = Run.create(tmp_path / "d", stage="collect", config=Config())
    writer = DatasetWriter(run, env_id="Toy", obs_shape=(1,), action_names=("a",))
    for both in (True, False):
        writer.add_episode(
            np.zeros((2, 1), np.uint8), np.zeros(1, int), np.ones(1), ["", ""],
            mission="", terminated=True, truncated=both, success=True, seed=0, checkpoint_step=0,
        )  # fmt: skip
    writer.close()
    run.finish(writer.outputs)
    to_minari(tmp_path / "d", tmp_path / "exported")
    read = list(minari.MinariDataset(tmp_path / "exported" / "data").iterate_episodes())
    assert [bool(e.terminations[-1]) for e in read] == [True, True]
    assert [bool(e.truncations[-1]) for e in read] == [True, False]


def test_minari_reads_an_export(tmp_path, monkeypatch):
    minari = pytest.importorskip("minari")
    episodes = write_dataset(tmp_path / "d")
    before = dict(os.environ)
    to_minari(tmp_path / "d", tmp_path / "exported")
    assert dict(os.environ) == before
    read = list(minari.MinariDataset(tmp_path / "exported" / "data").iterate_episodes())
    assert len(read) == 3
    for got, want in zip(read, episodes, strict=True):
        np.testing.assert_array_equal(got.observations, want["observations"])
        np.testing.assert_array_equal(got.actions, want["actions"])
        np.testing.assert_allclose(got.rewards, want["rewards"], rtol=1e-6)
    assert [bool(e.terminations[-1]) for e in read] == Dataset.open(tmp_path / "d").terminated.tolist()
    assert [bool(e.truncations[-1]) for e in read] == [False, True, False]
    with pytest.raises(UsageError, match="exists"):
        to_minari(tmp_path / "d", tmp_path / "exported")
    monkeypatch.chdir(tmp_path)
    to_minari(Path("d"), Path("new/relative"))
    assert (tmp_path / "new" / "relative" / "data").is_dir()


def test_a_place_where_nothing_can_be_made_is_named_as_it_was_given(tmp_path, monkeypatch):
    pytest.importorskip("minari")
    write_dataset(tmp_path / "d")

    def refused(suffix, prefix, folder):
        raise PermissionError(errno.EACCES, "Permission denied", f"{folder}/{prefix}abcdef")

    monkeypatch.setattr(tempfile, "mkdtemp", refused)
    with pytest.raises(UsageError, match=r"exported cannot be made \(Permission denied\); choose another --out\.$"):
        to_minari(tmp_path / "d", tmp_path / "exported")
