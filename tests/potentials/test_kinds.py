"""Every kind of potential, as train-rm finds it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bkrl.core.errors import InputError
from bkrl.labelers.tables import TABLES
from bkrl.potentials.config import TrainRmConfig
from bkrl.potentials.kinds import LabelledKind, find, kinds, of_labels
from bkrl.runs.record import Run


def labels(variant: str) -> Run:
    return cast(Run, SimpleNamespace(path=Path("labels"), facts={"variant": variant}))


@pytest.mark.parametrize("name", ["code", "preference", "goal", "zero", "random"])
def test_a_kind_is_found_by_its_name_and_names_settings_that_exist(name: str) -> None:
    kind: Any = find(name)
    assert kind.name == name
    assert name in kinds()
    if isinstance(kind, LabelledKind):
        assert set(kind.settings) < {field.name for field in dataclasses.fields(TrainRmConfig)}


def test_every_variant_of_labels_becomes_a_kind_of_its_own() -> None:
    assert len({of_labels(labels(variant)).name for variant in TABLES}) == len(TABLES)
    with pytest.raises(InputError, match="unknown variant 'songs'"):
        of_labels(labels("songs"))


def test_a_kind_that_is_unknown_is_none() -> None:
    assert find("of-nobody") is None
