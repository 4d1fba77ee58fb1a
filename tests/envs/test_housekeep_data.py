"""Housekeep's data: the label rule against the source's own sets, the packer, damaged files, the wheel."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from bkrl.core.errors import InputError, UsageError
from bkrl.envs.housekeep import tables
from bkrl.envs.housekeep.episodes import scenes_with_episodes, shipped
from bkrl.envs.housekeep.labels import labels
from bkrl.envs.housekeep.packer import empty_tables, put_down
from bkrl.envs.housekeep.sampling import model_sizes
from bkrl.envs.housekeep.tables import models, scene, table, votes


def test_the_label_rule_gives_every_set_of_the_5000_episodes() -> None:
    columns = table("episodes")
    number = {name: i for i, name in enumerate(votes().objects)}
    cells = mismatches = 0
    for i, name in enumerate(columns["scene"]):
        right = labels(name, columns["dropout"][i]).right
        for thing, sets in zip(columns["object"][i], columns["correct_receptacles"][i], strict=True):
            wanted = np.zeros(len(right), bool)
            wanted[sets] = True
            mismatches += np.count_nonzero(wanted != right[:, number[thing]])
            cells += len(right)
    assert len(columns["scene"]) == 5000
    assert (mismatches, cells) == (0, 2015870)


def test_votes_agree_with_cells_of_the_published_table() -> None:
    said = votes()

    def cell(kind: str, thing: str) -> tuple[int, int]:
        t, o = said.types.index(kind), said.objects.index(thing)
        return int(said.positive[t, o]), int(said.negative[t, o])

    assert cell("living_room-coffee_table", "plant") == (10, 0)
    assert cell("kitchen-fridge", "pepsi_can_pack") == (7, 2)
    assert cell("bedroom-bed", "lamp") == (0, 7)
    assert cell("living_room-table", "electric_heater") == (2, 8)
    assert ((said.positive >= 6) & (said.negative >= 6)).sum() == 0
    assert ((said.positive >= 6).sum(), (said.negative >= 6).sum()) == (3760, 7305)


def test_every_episode_fits_its_receptacles_without_overlap() -> None:
    sizes, count = model_sizes(), 0
    for name in scenes_with_episodes():
        known = scene(name)
        for episode in shipped(name)[::5]:
            rows, things = empty_tables()
            for slot, (model, r) in enumerate(zip(episode.models, episode.receptacles, strict=True)):
                assert put_down(rows, things, slot, model, r, known.base[r], known.half[r], known.top[r], sizes[model])
            used = things[: len(episode.models)]
            count += len(used)
            middle, half = np.stack([used["x"], used["z"]], 1), used["half"][:, [0, 2]]
            where = np.array(episode.receptacles)
            assert (abs(middle - known.base[where]) + half <= known.half[where] + 1e-9).all()
            apart = (abs(middle[:, None] - middle) >= half[:, None] + half - 1e-9).any(-1)
            assert (apart | (where[:, None] != where) | np.eye(len(used), dtype=bool)).all()
            sides = np.sort(2 * half, 1)[:, ::-1]
            np.testing.assert_allclose(sides, sizes[list(episode.models)][:, :2], atol=1e-12)
    assert count > 8000


def test_a_damaged_or_missing_file_is_refused_in_a_sentence(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    shutil.copytree(tables.DATA, folder)
    data = bytearray((folder / "votes.parquet").read_bytes())
    data[1000] ^= 1
    (folder / "votes.parquet").write_bytes(data)
    (folder / "models.parquet").unlink()
    with pytest.raises(InputError, match=r"votes.parquet is damaged.*install bkrl again"):
        table("votes", folder)
    with pytest.raises(InputError, match=r"models.parquet is missing; install bkrl again"):
        table("models", folder)


def test_an_unknown_scene_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UsageError, match=r"no scene 'Rs_ent'. Did you mean 'Rs_int'\?"):
        scene("Rs_ent")


def test_a_wheel_holds_the_data_and_its_licence() -> None:
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert '"envs/housekeep/data/*"' in project
    files = {path.name for path in tables.DATA.iterdir()}
    listed = json.loads((tables.DATA / "sha256.json").read_text())
    assert {"SOURCE.md", "tasks.json", "task_layouts.json", *listed} <= files
    assert "Permission is hereby granted" in (tables.DATA / "SOURCE.md").read_text()


def test_models_have_two_sides_and_the_classes_of_their_episodes() -> None:
    known = models()
    assert (known.long >= known.short).all()
    columns = table("episodes")
    for names, numbers in zip(columns["object"][::50], columns["model_id"][::50], strict=True):
        assert [votes().objects[known.object[i]] for i in numbers] == names
    assert all(a < b for a, b in pairwise(sorted(set(votes().objects))))
