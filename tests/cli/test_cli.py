"""The command line as a person meets it: help, names, exit codes, one sentence on stderr."""

import errno
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args, get_origin

import pytest

from bkrl import __version__
from bkrl.cli.main import run_command
from bkrl.core.flags import flags_of, option_name
from bkrl.core.reporter import duration
from bkrl.data.dataset import Dataset
from bkrl.methods.goals import _HOUSE_ONLY, PLAIN
from bkrl.runs.record import Run
from bkrl.runs.samples import SAMPLES
from bkrl.studies.study import presets, shipped
from bkrl.verbs import MANY, VERBS


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


@pytest.mark.parametrize("words", ["collect", "label", "train-rs", "sweep", "label view", "cache info", "list"])
def test_help_fits_a_narrow_terminal_with_nothing_cut(words, capsys, monkeypatch):
    """Names, choices and defaults are what one reads a help page for; no Python types, and arguments in one case."""
    monkeypatch.setenv("COLUMNS", "80")
    assert run_command([*words.split(), "--help"]) == 0
    text = capsys.readouterr().out
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    assert not re.search(r"<(bool|path|str|int|float|list)", text)
    assert not re.search(r"Usage: .*\{[a-z]", text)
    for path, kind, _, default in flags_of((VERBS | MANY)[words]) if words in VERBS | MANY else ():
        assert {option_name(path), path[-1].upper()} & set(re.findall(r"[\w-]+", text))
        for word in get_args(kind) if get_origin(kind) is Literal else ():
            assert word in text
        if isinstance(default, str):
            assert default in text


@pytest.mark.parametrize(
    ("words", "default"),
    [
        ("check-potential", "the one it was built on"),
        ("potential report", "logs/potential-report-NAME"),
        ("label view", "LABELS/labels.html"),
        ("train-rs", "logs/ALG-ENV-sSEED"),
    ],
)
def test_a_default_in_words_is_not_lost_as_markup(words, default, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert run_command([*words.split(), "--help"]) == 0
    assert f"[default: {default}]" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["colect"], 2, "Did you mean 'collect'"),
        (["train-rs", "--sed", "1"], 2, "--seed"),
        (["train-rs", "--alg", "bkcode"], 2, "bk-code"),
        (["train-rs", "--steps", "64", "--alg"], 2, "'--alg' requires an argument"),
        (["train-rs", "--alg=", "--dry-run"], 2, "'--alg' requires an argument"),
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
        (["collect", "--env", "BabyAI-Text-GoToLocal-RedBall"], 2, "mean 'BabyAI-Text-GoToLocal-RedBall-S20'"),
        (["prompt", "code", "Crafter"], 2, "no env 'Crafter'"),
    ],
)  # fmt: skip
def test_wrong_input_gets_one_sentence_and_its_exit_code(arguments, code, sentence, refused):
    assert sentence in refused(arguments, code)


@dataclass(frozen=True)
class Config:
    seed: int = 1


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["show", "nowhere", "--json"], 3),
        (["collect", "--steps", "0", "--json"], 2),
        (["prompt", "code", "nowhere", "--json"], 2),
        (["data", "validate", "nowhere", "--json"], 3),
        (["version", "--json"], 2),
    ],
)
def test_errors_are_json_too_where_that_was_asked_for(arguments, code, capsys):
    assert run_command(arguments) == code
    told = capsys.readouterr()
    answer = json.loads(told.out)
    assert answer["exit_code"] == code
    assert told.err == f"bkrl: {answer['error']}\n"


def test_what_was_printed_before_an_error_stays_the_only_document(tmp_path, capsys):
    run = Run.create(tmp_path / "r", stage="collect", config={})
    run.log(1, x=1.0)
    run.finish([])
    run.file("metrics.jsonl").unlink()
    assert run_command(["trace", str(run.path), "--json"]) == 3
    told = capsys.readouterr()
    assert json.loads(told.out)["problems"][0] in told.err


def test_a_prompt_as_json(capsys):
    assert run_command(["prompt", "goal", "Toy-Grid"]) == 0
    text = capsys.readouterr().out
    assert run_command(["prompt", "goal", "Toy-Grid", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"variant": "goal", "env": "Toy-Grid", "prompt": text}


def test_show_prints_a_run_as_a_table_and_as_json(tmp_path, capsys):
    run = Run.create(tmp_path / "r", stage="label", config=Config())
    run.finish([], answer=42, markup="[bold]not markup[/bold]")
    assert run_command(["show", str(tmp_path / "r")]) == 0
    text = capsys.readouterr().out
    assert "42" in text
    assert "[bold]not markup[/bold]" in text
    assert run_command(["show", str(tmp_path / "r"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["facts"]["answer"] == 42


@pytest.mark.parametrize("what", ["envs", "options", "algs", "llms", "potentials"])
def test_list_names_what_flags_take(what, capsys):
    assert run_command(["list", what, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) >= 3
    if what == "envs":
        assert "BabyAI-Text-GoTo-PurpleBallGreenKey-S20" in {row["env"] for row in rows}


def test_a_closed_pipe_is_no_error():
    code = f"{sys.executable} -m bkrl list envs | head -1"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {code}"], capture_output=True, text=True)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        "list algs",
        "list algs --json",
        pytest.param("prompt pref BabyAI-Text-GoToLocal-RedBall-S20", marks=pytest.mark.slow),
    ],
)
def test_a_reader_that_leaves_before_the_first_line_is_no_error(arguments):
    code = f"{sys.executable} -m bkrl {arguments} | true"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {code}"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("form", "reader"),
    [
        (" --json", "head -1"),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in (("", "true"), ("", "head -1"), (" --json", "true"))),
    ],
)
def test_a_reader_that_leaves_changes_no_exit_code(reader, form, tmp_path):
    first = Run.create(tmp_path / "data", stage="collect", config={"seed": 1})
    first.finish([])
    second = Run.create(tmp_path / "labels", stage="label", config={"seed": 1}, inputs={"dataset": first.path})
    second.finish([])
    (first.path / "manifest.json").unlink()  # the chain is broken, which is what the exit code says
    code = f"{sys.executable} -m bkrl trace {second.path}{form} | {reader}"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {code}"], capture_output=True, text=True)
    assert done.returncode == 3
    assert done.stderr.startswith("bkrl: ")
    assert done.stderr.count("\n") == 1


def test_a_broken_pipe_inside_the_work_is_a_failure(capsys, monkeypatch):
    def broken(*_):
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr(Run, "open", broken)
    assert run_command(["show", "run"]) == 1
    assert capsys.readouterr().err.startswith("bkrl: A process that this command works with has gone; ")


def test_help_nobody_reads_is_no_error():
    code = f"{sys.executable} -m bkrl collect --help | true"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {code}"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("width", ["-5", *(pytest.param(one, marks=pytest.mark.slow) for one in ("abc", "", "90"))])
def test_any_width_of_the_terminal_is_borne(width):
    environment = os.environ | {"TERMINAL_WIDTH": width}
    done = subprocess.run([sys.executable, "-m", "bkrl", "--help"], capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "next_step"),
    [
        (["label", "nowhere"], "`bkrl collect` makes one."),
        (["evaluate", "nowhere"], "`bkrl train-rs` makes one."),
        (["compare", "nowhere", "neither"], "`bkrl train-rs` makes one."),
        (["show", "nowhere"], "Name the folder that a command was given as --out, or chose."),
    ],
)
def test_where_no_run_is_the_next_step_is_named(arguments, next_step, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_command(arguments) == 3
    assert capsys.readouterr().err.endswith(f"at nowhere. {next_step}\n")
    (tmp_path / "nowhere1").mkdir()
    assert run_command(arguments) == 3
    assert capsys.readouterr().err.endswith("at nowhere. Did you mean 'nowhere1'?\n")


def test_a_seed_may_be_any_number():
    assert run_command(["collect", "--seed", "1" + "0" * 26, "--steps", "0"]) == 2  # for its steps alone


def test_a_terminal_without_greek_is_served(tmp_path):
    environment = dict(os.environ, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    done = subprocess.run(
        [sys.executable, "-m", "bkrl", "list", "algs"], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert "bk-pref" in done.stdout


def test_a_place_that_is_closed_gets_a_sentence(tmp_path, monkeypatch, capsys):
    def closed(*_):
        raise PermissionError(errno.EACCES, "Permission denied", "locked/config.json")

    monkeypatch.setattr(Run, "open", closed)
    assert run_command(["show", "locked"]) == 1
    assert capsys.readouterr().err.startswith("bkrl: locked/config.json: Permission denied; ")


def test_the_first_rows_of_a_dataset_are_shown(capsys):
    assert run_command(["show", "sample:data-minigrid"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    data = Dataset.open(SAMPLES / "data-minigrid")
    assert f"The first of {data.num_episodes} episodes, whose mission is: {data.missions[0]}" in shown
    for row in range(min(6, data.lengths[0])):
        assert data.caption(row) in shown
        assert data.action_names[data.actions[row]] in shown


def test_studies_conditions_and_suggesters_are_listed_with_what_they_are(capsys):
    listed = {}
    for what in ("studies", "conditions", "suggesters"):
        assert run_command(["list", what, "--json"]) == 0
        listed[what] = json.loads(capsys.readouterr().out)
    assert [one["study"] for one in listed["studies"]] == presets()
    confirm = next(one for one in listed["studies"] if one["study"] == "confirm")
    assert {"ppo", "noveld", "bk-code", "bk-goal"} <= set(confirm["trains"].split(", "))
    took = duration(60 * shipped("confirm")["minutes"])
    assert (confirm["command"], confirm["on two cores"]) == ("bkrl sweep confirm", took)
    assert {one["set"]: one["conditions"] for one in listed["conditions"]}["glam"] == 26
    named = {name for one in listed["suggesters"] for name in one["suggester"].split(", ")}
    assert named >= {*PLAIN, *_HOUSE_ONLY} - {"votes"} | {"rules"}  # votes: oracle's other name


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["list"],
            "Missing argument 'what'. Choose from: envs, options, algs, llms, potentials, suggesters, studies, "
            "conditions. Try bkrl list --help.",
        ),
        (
            ["list", "envz"],
            "'envz' is not one of 'envs', 'options', 'algs', 'llms', 'potentials', 'suggesters', 'studies', "
            "'conditions'. Did you mean 'envs'? Try",
        ),
        (["collect", "--steps", "0"], "'--steps': it must be at least 1. Try bkrl collect --help."),
        (["collect", "--steps", "x"], "'--steps': it must be a whole number. Try"),
        (["collect", "--gamma", "2"], "'--gamma': it must be at most 1. Try"),
        (["collect", "--gamma", "x"], "'--gamma': it must be a number. Try"),
        (["collect", "--gamma", "nan"], "'--gamma': it must be a finite number. Try bkrl collect --help."),
        (["train-rs", "--reward-scale", "-inf"], "'--reward-scale': it must be a finite number. Try"),
        (["report", "x", "--threshold", "nan"], "'--threshold': it must be a finite number. Try"),
        (["compare", "a", "b", "--threshold", "inf"], "'--threshold': it must be a finite number. Try"),
        (["collect", "--steps", "1" + "0" * 26], "'--steps': it must be at most 9007199254740992. Try"),
        (["label", "x", "--num", "1" + "0" * 26], "'--num': it must be at most 9007199254740992. Try"),
        (["collect", "--ext-coef", "inf"], "--ext-coef must be a finite number, not inf."),
        (["train-rs", "--stepz", "5"], "No such option: --stepz. Did you mean --num-steps, --seed, --steps?"),
        (["view", "logs/labels"], "No such command 'view'. Did you mean 'label view'? Try bkrl --help."),
        (["collect", "--threads", "100000"], "'--threads': it must be at most 256."),
    ],
)
def test_what_is_wrong_with_a_flag_is_one_sentence(arguments, sentence, capsys):
    assert run_command(arguments) == 2
    text = capsys.readouterr().err
    assert sentence in text
    assert text.count("\n") == 1
    assert "\t" not in text


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_name_that_is_not_utf_8_is_refused_before_anything_is_made(more, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["collect", "--env", "Toy-Grid", "--explorer", "random", "--episodes", "2", "--out", "caf\udce9"]
    assert run_command([*words, *more]) == 2
    said = r"bkrl: 'caf\udce9' is not UTF-8, which all names here must be; choose another."
    assert capsys.readouterr().err == f"{said}\n"
    assert not [*tmp_path.iterdir()]


def test_help_changes_nothing_that_is_said_afterwards(capsys):
    pages = [(run_command(["list", "--help"]), capsys.readouterr().out) for _ in range(2)]
    assert pages[0] == pages[1]
    assert run_command(["list"]) == 2
    assert "Missing argument 'what'." in capsys.readouterr().err


def test_show_says_where_a_run_came_from(tmp_path, capsys):
    first = Run.create(tmp_path / "data", stage="collect", config={"seed": 1})
    first.finish([], env_id="x", share=[0.123456789])
    second = Run.create(tmp_path / "labels", stage="label", config={"seed": 1234}, inputs={"dataset": first.path})
    second.finish([], modes={"a": 1}, table={"header": ["mode"], "rows": [["a"]]})
    assert run_command(["show", str(first.path)]) == 0
    assert "0.123 " in capsys.readouterr().out
    assert run_command(["show", str(second.path)]) == 0
    text = capsys.readouterr().out
    assert f"made from: dataset   {first.path}" in text
    assert "1234" in text
    assert "command" in text
    assert "modes: a" not in text  # its table says it


def test_the_version_needs_no_command(capsys):
    assert run_command(["--version"]) == 0
    assert capsys.readouterr().out == f"bkrl {__version__}\n"


def test_python_m_bkrl_is_bkrl(tmp_path):
    command = [sys.executable, "-m", "bkrl"]
    done = subprocess.run([*command, "colect"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("bkrl: No such command 'colect'. Did you mean 'collect'?")
    made = ["data", "subset", "sample:data-minigrid", "--episodes", "2", "--out", str(tmp_path / "few")]
    assert subprocess.run([*command, *made], capture_output=True).returncode == 0
    assert Run.open(tmp_path / "few").config["argv"] == ["bkrl", *made]


def test_completion_is_offered():
    # Typer else looks for a shell among the parent processes, where a scheduler has none.
    environment = os.environ | {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    command = [Path(sys.executable).parent / "bkrl", "--show-completion", "bash"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert "bkrl" in done.stdout


def test_settings_that_cannot_work_leave_nothing_behind(tmp_path, capsys):
    out = tmp_path / "run"
    assert run_command(["train-rs", "--num-envs", "3", "--num-steps", "5", "--out", str(out)]) == 2
    assert "--num-minibatches" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize("problem", [MemoryError(), OverflowError("Python int too large to convert to C long")])
def test_what_does_not_fit_into_memory_gets_a_sentence(problem, capsys, monkeypatch):
    def too_much(*_):
        raise problem

    monkeypatch.setattr("bkrl.stages.train_rs.run", too_much)
    assert run_command(["train-rs", "--num-envs", "999999999"]) == 1
    text = capsys.readouterr().err
    assert text.startswith(f"bkrl: This does not fit into memory ({str(problem) or 'no memory is left'}); give smaller")
    assert text.count("\n") == 1


def test_a_line_feed_in_a_name_leaves_the_sentence_on_one_line(capsys):
    assert run_command(["train-rs", "--env", "Toy\nGrid"]) == 2
    assert capsys.readouterr().err.startswith("bkrl: There is no env 'Toy Grid'. ")


def test_a_name_that_no_file_can_have_gets_a_sentence(capsys):
    for words in (["show", "a" * 300], ["train-rs", "--env", "Toy-Chain", "--out", "a" * 300]):
        assert run_command(words) == 2
        text = capsys.readouterr().err
        assert text.endswith("File name too long; choose a shorter one.\n")
        assert len(text) < 120


@pytest.mark.parametrize("words", [pytest.param("list algs", marks=pytest.mark.slow), "list algs --json", "--help"])
def test_a_result_that_cannot_be_printed_gets_a_sentence(words):
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m bkrl {words} >/dev/full"], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr.startswith("bkrl: The result cannot be printed (No space left on device); ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("place", ["&-", "/dev/full"])
def test_an_exit_code_does_not_depend_on_who_reads_stderr(place):
    done = subprocess.run(["bash", "-c", f"{sys.executable} -m bkrl show nowhere 2>{place}"], capture_output=True)
    assert done.returncode == 3


COLLECT = "collect --env Toy-Grid --num-envs 4 --num-steps 16 --num-minibatches 2 --steps 128"
LABEL = "label sample:data-minigrid --llm rules --num 20"
TRAIN = "train-rs --env Toy-Grid --num-envs 4 --num-steps 16 --num-minibatches 2 --steps 128 --eval-episodes 2"


@pytest.mark.parametrize(
    ("made", "reader"),
    [
        (COLLECT, "2>/dev/full"),
        pytest.param(LABEL, "2>/dev/full", marks=pytest.mark.slow),
        *(pytest.param(TRAIN, one, marks=pytest.mark.slow) for one in ("2>/dev/full", "2>&1 | true", "2>&1 | head -1")),
    ],
)
def test_work_goes_on_when_nobody_reads_its_progress(made, reader, tmp_path):
    command = f"set -o pipefail; {sys.executable} -m bkrl {made} --out {tmp_path / 'run'} {reader}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.returncode == 0
    assert Run.open(tmp_path / "run").complete


def test_a_closed_stdout_is_no_error():
    done = subprocess.run(["bash", "-c", f"{sys.executable} -m bkrl list algs >&-"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("start", [["-m", "bkrl"], ["-c", "from bkrl.__main__ import main; main()"]])
def test_ctrl_c_while_modules_are_loaded_says_nothing(tmp_path: Path, start: list[str]) -> None:
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt\n")  # among the first to be imported
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, *start, "list", "envs"], capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("bkrl pu", "push"),
        ("bkrl sweep --exec", "--executor"),
        ("bkrl sweep --executor r", "ray"),
        ("bkrl label vi", "view"),
    ],
)
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_commands_flags_and_values(shell, line, found, monkeypatch, capsys):
    asked = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" ")), "_TYPER_COMPLETE_ARGS": line}
    more = {"_BKRL_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    for name, value in {**asked, **more}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit, match="^0$"):
        run_command([])
    assert found in capsys.readouterr().out
