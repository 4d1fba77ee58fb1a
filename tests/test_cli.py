"""The command line as a person meets it: help, names, exit codes, one sentence on stderr."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from bkrl.cli import run_command
from bkrl.config import VERBS
from bkrl.options import flags_of, option_name
from bkrl.run import Run


def test_help_lists_the_pipeline_in_order(capsys):
    assert run_command(["--help"]) == 0
    text = capsys.readouterr().out
    places = [text.index(f"│ {verb} ") for verb in VERBS]
    assert places == sorted(places)


@pytest.mark.parametrize("verb", VERBS)
def test_every_flag_is_explained_with_its_default(verb, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert run_command([verb, "--help"]) == 0
    text = capsys.readouterr().out
    for path, _, flag, _ in flags_of(VERBS[verb]):
        if not flag.positional:
            assert option_name(path) in text
        assert flag.help.split(";")[0].split("[")[0].strip()[:40] in text


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["colect"], 2, "Did you mean 'collect'"),
        (["train-rs", "--sed", "1"], 2, "--seed"),
        (["train-rs", "--alg", "bkcode"], 2, "bk-code"),
        (["train-rs", "--steps", "0"], 2, "--steps"),
        (["train-rs", "--steps", "many"], 2, "--steps"),
        (["train-rm"], 2, "LABELS"),
        (["show", "nowhere"], 3, "no run at nowhere"),
        (["data", "validate", "nowhere"], 3, "no run at nowhere"),
        (["label", "nowhere"], 3, "no run at nowhere"),
        (["train-rm", "nowhere"], 3, "no run at nowhere"),
        (["evaluate", "nowhere"], 3, "no run at nowhere"),
        (["report", "nowhere"], 3, "no run at nowhere"),
        (["train-rs", "--env", "BabyAI-Text-GoToLocal-RedBal-S20"], 2, "mean 'BabyAI-Text-GoToLocal-RedBall-S20'"),
        (["collect", "--env", "Crafter-Text-Rewards"], 2, "Did you mean 'Crafter-Text-Reward'"),
        (["prompt", "code", "Crafter"], 2, "no world 'Crafter'"),
    ],
)  # fmt: skip
def test_wrong_input_gets_one_sentence_and_its_exit_code(arguments, code, sentence, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_command(arguments) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert sentence in captured.err
    assert captured.err.startswith("bkrl: ")
    assert "Traceback" not in captured.err
    assert captured.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@dataclass(frozen=True)
class Config:
    seed: int = 1


def test_show_prints_a_run_as_a_table_and_as_json(tmp_path, capsys):
    run = Run.create(tmp_path / "r", stage="label", config=Config())
    run.finish([], answer=42, markup="[bold]not markup[/bold]")
    assert run_command(["show", str(tmp_path / "r")]) == 0
    text = capsys.readouterr().out
    assert "42" in text
    assert "[bold]not markup[/bold]" in text
    assert run_command(["show", str(tmp_path / "r"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["facts"]["answer"] == 42


@pytest.mark.parametrize("what", ["envs", "algs", "llms", "potentials"])
def test_list_names_what_flags_take(what, capsys):
    assert run_command(["list", what, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) >= 3
    if what == "envs":
        assert "BabyAI-Text-GoTo-PurpleBallGreenKey-S20" in {row["env"] for row in rows}


def test_a_closed_pipe_is_no_error():
    code = f"{sys.executable} -m bkrl.cli list envs | head -1"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {code}"], capture_output=True, text=True)
    assert "Traceback" not in done.stderr


def test_completion_is_offered():
    done = subprocess.run(
        [Path(sys.executable).parent / "bkrl", "--show-completion", "bash"], capture_output=True, text=True
    )
    assert "bkrl" in done.stdout


def test_settings_that_cannot_work_leave_nothing_behind(tmp_path, capsys):
    out = tmp_path / "run"
    assert run_command(["train-rs", "--num-envs", "3", "--num-steps", "5", "--out", str(out)]) == 2
    assert "--num-minibatches" in capsys.readouterr().err
    assert not out.exists()
