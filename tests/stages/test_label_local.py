"""A local transformers model labels a dataset from the command line to the tables, and is asked once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bkrl.cli.main import run_command
from bkrl.core.files import read_table
from bkrl.data.schema import PREFERENCES, RESPONSES
from bkrl.labelers.quality import votes_of
from bkrl.runs.record import Run
from tests.experience import write_env
from tests.llm.tiny_model import build


def test_a_tiny_local_model_labels_end_to_end_without_a_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    data = write_env(tmp_path / "data", "BabyAI-Text-GoToLocal-Pretraining-S20")
    model = build(tmp_path / "models" / "tiny", positions=4096)
    command = ["label", str(data), "--llm", f"hf:{model}", "--num", "12", "--swap", "both"]
    command += ["--cache", str(tmp_path / "cache")]
    assert run_command([*command, "--out", str(tmp_path / "first"), "--json"]) == 0
    shown = capsys.readouterr()
    assert "has no chat template, so it reads conversations as plain text." in " ".join(shown.err.split())
    assert "may be at chance: the segment shown first is preferred in 100" in " ".join(shown.err.split())
    facts = json.loads(shown.out)["facts"]
    run = Run.open(tmp_path / "first", "label")
    table = read_table(run.file("preferences.parquet"), PREFERENCES).to_pylist()
    responses = {row["request_id"]: row for row in read_table(run.file("responses.parquet"), RESPONSES).to_pylist()}
    asked = [row for row in table if row["status"] == "labelled"]
    assert len(asked) > 8
    assert len(responses) == 2 * len(asked)
    assert {row["reply"] for row in responses.values()} == {'{"choice": "A"}'}
    assert all(row["model"] == "tiny" and row["completion_tokens"] == 2 for row in responses.values())
    for row in asked:
        assert row["label"] == 0.5, "it always names the first, in whichever order"
        assert [(vote.swapped, vote.value) for vote in votes_of(row, responses)] == [(False, "A"), (True, "B")]
    assert facts["quality"]["position_bias"]["rate"] == 1.0
    assert facts["usage"]["sent"] == len(responses)
    assert facts["usage"]["cost_usd"] == 0.0
    assert not any(str(tmp_path) in value for row in responses.values() for value in (row["key"], row["model"]))
    assert run_command([*command, "--out", str(tmp_path / "second"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["facts"]["usage"]["sent"] == 0
    for name in ("preferences.parquet", "responses.parquet"):
        assert (tmp_path / "second" / name).read_bytes() == run.file(name).read_bytes()


def test_a_model_that_is_nowhere_is_refused_before_there_is_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_env(tmp_path / "data", "BabyAI-Text-GoToLocal-Pretraining-S20")
    command = ["label", str(data), "--llm", "hf:nobody/nothing", "--cache", str(tmp_path / "cache")]
    assert run_command([*command, "--out", str(tmp_path / "out")]) == 3
    assert "hf download nobody/nothing" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out").exists()
