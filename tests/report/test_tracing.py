"""bkrl trace: from a picture to the dataset, and every kind of damage named."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from bkrl.cli.main import run_command
from bkrl.core.config import ReportConfig
from bkrl.core.errors import InputError
from bkrl.core.files import sha256
from bkrl.core.reporter import Reporter
from bkrl.labelers.tables import dataset_of
from bkrl.report import tracing
from bkrl.report.pages.html import anchor
from bkrl.runs.inputs import check_inputs, dataset_at, input_at
from bkrl.runs.record import Run
from bkrl.stages import report
from tests.report.synthetic import RED, collect, label, train_rm, train_rs


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("study")
    collect(root)
    label(root, "pref")
    train_rm(root, "pref")
    runs = [train_rs(root, "ppo", 1), train_rs(root, "bk-pref", 1, potential=root / "rm-pref", name="shaped")]
    report.run(ReportConfig(runs=tuple(runs), out=root / "report"), Reporter())
    return root


@pytest.fixture
def copy(study: Path, tmp_path: Path) -> Iterator[Path]:
    """The study at another place, which manifests do not know, while the old place is gone: it is followed there."""
    shutil.copytree(study, tmp_path / "copy")
    study.rename(study.with_name("away"))
    yield tmp_path / "copy"
    study.with_name("away").rename(study)


@pytest.mark.parametrize("name", ["report.html", f"curves-{RED}.png", f"curves-{RED}-dark.png"])
def test_a_figure_leads_to_the_dataset(study: Path, tmp_path: Path, name: str):
    elsewhere = tmp_path / name
    shutil.copy(study / "report" / name, elsewhere)
    found = tracing.trace(elsewhere, [study])
    assert found.problems == []
    assert "byte for byte" in found.figure
    told = tracing.lines(found)
    assert told[0].startswith("report ")
    assert any("potential: train-rm" in line for line in told)
    assert sum("collect" in line and "✓" in line for line in told) >= 1
    assert "(above)" in "\n".join(told)  # the dataset is an input of the labels and of the potential


def test_a_run_is_a_root_too(study: Path):
    found = tracing.trace(study / "shaped")
    assert tracing.lines(found)[0].startswith("train-rs ")
    assert len(found.chain.nodes) == 4
    assert found.problems == []


def test_every_kind_of_damage_is_named(copy: Path):
    def problems() -> str:
        return " ".join(tracing.trace(copy / "report").problems)

    assert problems() == ""
    for name in ("shaped/metrics.jsonl", "rm-pref/certificate.json", "label-pref/config.json", "data/episodes.parquet"):
        path = copy / name
        raw = path.read_bytes()
        path.write_bytes(raw[:30] + bytes([raw[30] ^ 1]) + raw[31:])
        assert name in problems()
        path.write_bytes(raw)
    for name in ("shaped", "rm-pref", "label-pref", "data"):
        manifest = copy / name / "manifest.json"
        raw = manifest.read_bytes()
        manifest.write_bytes(raw.replace(b'"python": "3', b'"python": "4'))
        assert "made again since" in problems()
        manifest.write_bytes(raw)
        shutil.move(copy / name, copy / "away")
        assert "no longer there" in problems()
        shutil.move(copy / "away", copy / name)
    assert problems() == ""


def test_a_picture_that_was_changed_or_is_foreign(study: Path, tmp_path: Path):
    changed = tmp_path / "a.png"
    changed.write_bytes((study / "report" / f"curves-{RED}.png").read_bytes() + b" ")
    assert "was changed after" in tracing.trace(changed, [study]).problems[0]
    with pytest.raises(InputError, match="name its place with --under"):
        tracing.trace(changed, [tmp_path])
    (tmp_path / "b.html").write_text("<html></html>")
    with pytest.raises(InputError, match="was not made by bkrl report"):
        tracing.trace(tmp_path / "b.html", [study])
    with pytest.raises(InputError, match="neither a run nor a figure"):
        tracing.trace(tmp_path / "c.png", [study])


def test_the_command(copy: Path, capsys: pytest.CaptureFixture[str]):
    assert run_command(["trace", str(copy / "shaped")]) == 0
    assert "└─ potential: train-rm" in capsys.readouterr().out
    (copy / "data" / "episodes.parquet").unlink()
    assert run_command(["trace", str(copy / "shaped"), "--json"]) == 3
    told = capsys.readouterr()
    assert [run["stage"] for run in json.loads(told.out)["runs"] if not run["sound"]] == ["collect"]
    assert "episodes.parquet is missing" in told.err


def test_the_hash_of_a_file_is_its_own_and_that_of_a_run_its_manifests(study: Path, tmp_path: Path):
    weights = tmp_path / "policy.safetensors"
    weights.write_bytes(b"weights")
    run = Run.create(
        tmp_path / "run", stage="train-rs", config={}, inputs={"init": weights, "potential": study / "data"}
    )
    run.finish([])
    *_, traced = tracing.values(tracing.trace(run.path))["runs"]
    told = {link["name"]: link for link in traced["inputs"]}
    assert (told["init"]["sha256"], "manifest_sha256" in told["init"]) == (sha256(weights), False)
    manifest = sha256(study / "data" / "manifest.json")
    assert (told["potential"]["manifest_sha256"], "sha256" in told["potential"]) == (manifest, False)


def test_a_sample_is_a_run_too(capsys: pytest.CaptureFixture[str]):
    run_command(["trace", "sample:bk-code-minigrid"])
    told = capsys.readouterr()
    assert told.out.startswith("train-rm sample:bk-code-minigrid")
    assert "its dataset experience-minigrid does not ship with bkrl, so" in told.err


def test_what_is_neither_run_nor_figure_is_told_from_them(copy: Path, capsys: pytest.CaptureFixture[str]):
    assert run_command(["trace", str(copy / "shaped" / "manifest.json")]) == 3
    assert "is not a PNG; name a run, or a PNG or HTML file of a report." in capsys.readouterr().err
    assert run_command(["trace", str(copy)]) == 3
    assert "it has no config.json; name the folder of one" in capsys.readouterr().err


def test_a_manifest_of_another_program_is_passed_by(study: Path, tmp_path: Path):
    (tmp_path / "manifest.json").write_text('{"stage": "report", "facts": []}')
    shutil.copy(study / "report" / "report.html", tmp_path / "report.html")
    assert tracing.trace(tmp_path / "report.html", [study]).problems == []


def test_every_run_has_an_anchor_of_its_own():
    keys = ("logs/a_b", "logs/a-b", "logs/a/b", "logs/é", "logs/è", "é", "\udcff")
    assert len({anchor(key) for key in keys}) == len(keys)
    assert all(re.fullmatch(r"run-[A-Za-z0-9-]+", anchor(key)) for key in keys)


def test_a_run_whose_config_is_gone_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    collect(tmp_path)
    label(tmp_path, "pref")
    (tmp_path / "label-pref" / "config.json").write_text("{}")
    assert run_command(["trace", str(tmp_path / "label-pref")]) == 3
    assert "config.json is damaged: it lacks 'argv'; restore it or make its run again." in capsys.readouterr().err


@pytest.mark.parametrize("where", [".", pytest.param("logs", marks=pytest.mark.slow), "../elsewhere"])
def test_inputs_named_by_relative_paths_are_found_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], where: str
) -> None:
    made = tmp_path / "project"
    for folder in (made / "logs", tmp_path / "elsewhere"):
        folder.mkdir(parents=True)
    monkeypatch.chdir(made)
    root = Path("logs/study")
    collect(root)
    label(root, "pref")
    train_rm(root, "pref")
    shaped = train_rs(root, "bk-pref", 1, potential=root / "rm-pref", name="shaped")
    assert json.loads((shaped / "manifest.json").read_text())["inputs"]["potential"]["path"] == "logs/study/rm-pref"
    monkeypatch.chdir(made / where)
    place = Path(os.path.relpath(made / root))
    assert run_command(["trace", str(place / "shaped")]) == 0
    assert capsys.readouterr().out.count("✓") == 5  # the labels and the potential name the dataset, each
    assert check_inputs(Run.open(place / "shaped")) == []
    labels = Run.open(place / "label-pref")
    assert dataset_of(labels, dataset_at(labels)).path.resolve() == made / root / "data"
    for user in ("label-pref", "rm-pref"):
        assert dataset_at(Run.open(place / user)).resolve() == made / root / "data"
    report.run(ReportConfig(runs=(place / "shaped",), out=tmp_path / "report"), Reporter())
    assert "no longer there" not in (tmp_path / "report" / "report.html").read_text()


def test_the_run_of_a_task_finds_its_potential_after_the_study_was_moved(tmp_path: Path):
    root = tmp_path / "study"
    collect(root)
    label(root, "pref")
    potential = train_rm(root, "pref")
    name = train_rs(root / "task", "bk-pref", 1, potential=potential).name
    root.rename(tmp_path / "moved")
    found = input_at(Run.open(tmp_path / "moved" / "task" / name), "potential")
    assert found is not None
    assert found.resolve() == tmp_path / "moved" / "rm-pref"
