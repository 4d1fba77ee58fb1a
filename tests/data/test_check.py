"""`bkrl data validate` finds broken rules."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bkrl.core.errors import InputError
from bkrl.core.files import write_table
from bkrl.data.check import validate
from bkrl.runs.record import Run
from tests.experience import write_dataset


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
