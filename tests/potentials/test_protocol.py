"""Scale and artefact: fixed, stored, verified."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bkrl.core.errors import InputError, RunFailed
from bkrl.data.windows import Reads, Windows
from bkrl.potentials import dataset_path, load_potential, read_potential
from bkrl.potentials.code import PROGRAM, CodeRaw
from bkrl.potentials.protocol import FILE, Artefact, Potential, Scale, Scaled
from bkrl.rewards.shaped import PotentialOfRollout
from bkrl.runs.record import Run
from bkrl.runs.samples import SAMPLES
from tests.potentials.rollouts import random_rollouts

PROGRAM_TEXT = "def potential(observations, actions, valid):\n    return observations[:, -1, 0] * 2.0\n"


def artefact(**changes: object) -> Artefact:
    values: dict = {
        "kind": "code", "horizon": 1, "env_id": "Toy-Chain", "env_family": "toy", "obs_shape": (1,),
        "action_names": ("left", "right"), "scale": Scale(0.0, 10.0), "files": {PROGRAM: ""},
    }  # fmt: skip
    return Artefact(**{**values, **changes})


def windows(values: list[int]) -> Windows:
    observations = np.array(values, np.uint8)[:, None, None].repeat(2, axis=1)
    return Windows.of(observations, np.zeros((len(values), 1), np.int64), np.ones((len(values), 2), bool))


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=200))
def test_the_scale_maps_into_minus_one_to_zero(values):
    raw = np.array(values)
    if np.ptp(raw) == 0:
        with pytest.raises(InputError):
            Scale.measure(raw)
        return
    phi = Scale.measure(raw)(raw)
    assert phi.dtype == np.float32
    assert phi.min() >= -1
    assert phi.max() <= 0
    assert phi[raw.argmax()] == 0
    assert phi[raw.argmin()] == -1
    order = np.argsort(raw)
    assert (np.diff(phi[order]) >= 0).all()


def test_percentiles_ignore_outliers_and_sparse_values_fall_back_to_the_range():
    assert Scale.measure(np.append(np.linspace(0, 1, 1000), 1e9)).hi < 1.1
    sparse = np.zeros(1000)
    sparse[:3] = 1.0
    assert Scale.measure(sparse) == Scale(0.0, 1.0)


@pytest.mark.parametrize("raw", [np.full(10, 3.0), np.array([1.0, np.nan]), np.array([1.0, np.inf])])
def test_constant_or_infinite_values_are_an_input_error(raw):
    with pytest.raises(InputError):
        Scale.measure(raw)


def test_a_potential_is_written_and_read_back(tmp_path):
    (tmp_path / PROGRAM).write_text(PROGRAM_TEXT)
    artefact(provenance={"seed": 3}).write(tmp_path)
    potential = read_potential(tmp_path)
    assert isinstance(potential, Potential)
    np.testing.assert_allclose(potential(windows([0, 1, 5, 9])), [-1, -0.8, 0, 0], atol=1e-7)
    assert potential.artefact.provenance["seed"] == 3
    assert potential(windows([])).shape == (0,)
    potential.close()


def test_longer_windows_are_shortened_and_other_observations_refused(tmp_path):
    potential = Scaled(CodeRaw(PROGRAM_TEXT, (1,), 1), artefact())
    long = Windows.of(np.full((2, 4, 1), 3, np.uint8), np.zeros((2, 3), np.int64), np.ones((2, 4), bool))
    np.testing.assert_allclose(potential(long), [-0.4, -0.4], atol=1e-7)
    wrong = Windows.of(np.zeros((2, 2, 7), np.uint8), np.zeros((2, 1), np.int64), np.ones((2, 2), bool))
    with pytest.raises(InputError, match="built for observations"):
        potential(wrong)
    unknown = Windows.of(long.observations, np.full((2, 3), len(potential.artefact.action_names)), long.valid)
    with pytest.raises(InputError, match="it got number"):
        potential(unknown)
    potential.close()


@pytest.mark.parametrize("damage", ["program", "json", "field", "format", "kind", "gone"])
def test_a_damaged_artefact_is_refused_in_a_sentence(tmp_path, damage):
    (tmp_path / PROGRAM).write_text(PROGRAM_TEXT)
    artefact(kind="magic" if damage == "kind" else "code").write(tmp_path)
    path = tmp_path / FILE
    document = json.loads(path.read_text())
    if damage == "program":
        (tmp_path / PROGRAM).write_text(PROGRAM_TEXT.replace("2.0", "3.0"))
    elif damage == "json":
        path.write_text("{")
    elif damage == "field":
        del document["scale"]
        path.write_text(json.dumps(document))
    elif damage == "format":
        path.write_text(json.dumps({**document, "format": 99}))
    elif damage == "gone":
        (tmp_path / PROGRAM).unlink()
    with pytest.raises(InputError) as caught:
        read_potential(tmp_path)
    assert str(caught.value).endswith(".")


def test_a_kind_with_a_line_break_is_refused_in_one_line(tmp_path):
    artefact(kind="own\nkind", files={}).write(tmp_path)
    with pytest.raises(InputError, match=r"of kind 'own\\nkind', which nothing here registers"):
        read_potential(tmp_path)


def test_a_full_state_oracle_of_an_earlier_version_is_refused(tmp_path):
    artefact(kind="state", control="oracle-state", files={}, horizon=0).write(tmp_path)
    with pytest.raises(InputError, match=r"full-state oracle, a control that is no longer supported\.$"):
        read_potential(tmp_path)


def test_a_folder_that_is_no_train_rm_run_is_refused(tmp_path):
    with pytest.raises(InputError):
        load_potential(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (lambda n: np.zeros((n, 1)), r"it gave an array of shape \(\d+, 1\)\.$"),
        (lambda n: np.full(n, np.nan), r"it gave an array of shape \(\d+,\) with others in it\.$"),
    ],
)
def test_a_potential_of_ones_own_that_is_none_is_named(values, said):
    class Mine:
        reads = Reads(0)

        def __call__(self, windows: Windows) -> np.ndarray:
            return values(len(windows))

    (rollout,) = random_rollouts(0, 0, 4, 3, 0.3, count=1)
    with pytest.raises(RunFailed, match=f"^The potential 'Mine' must give .*{said}"):
        PotentialOfRollout(Mine())(rollout)


def test_a_dataset_that_is_gone_can_be_named(tmp_path, monkeypatch):
    """A copy of a sample: the dataset it was built on did not ship."""
    monkeypatch.chdir(tmp_path)
    copy = Run.open(Path(shutil.copytree(SAMPLES / "bk-code-minigrid", tmp_path / "phi")))
    with pytest.raises(
        InputError, match=r"phi was made from .*, which is not there; say where it is with --dataset\.$"
    ):
        dataset_path(copy)
    assert dataset_path(copy, Path("here")) == Path("here")
    assert dataset_path(Run.open(Path("sample:bk-code-minigrid"))) == Path("sample:data-minigrid")
