"""The exit test of the house: methods of other kinds move in from outside, each by entries in registries alone.

Each file in tests/tenants/ is a plugin with one method: an agent with a memory of its own, a learner that is not PPO, a
method whose goals are in the views. Each is run by the real commands, stopped on the way, continued, and evaluated.
"""

import json
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests import commands

TENANTS = Path(__file__).parent / "tenants"
COMMANDS = {
    "recall": "--env Recall-3 --steps 16_000 --hidden 24 --ent-coef 0.02",
    "table-q": "--env Toy-Grid --steps 16_000 --epsilon 0.3",
    "doors": "--env Doors-7 --steps 16_000 --num-envs 8",
}
EVALUATIONS = "--eval-every 8_000 --eval-episodes 40 --checkpoint-every 1_000"


PLUGINS = {"PYTHONPATH": str(TENANTS), "BKRL_PLUGINS": "recall,table_q,doors"}


def bkrl(*words: object, cwd: Path, code: int = 0, **more: str) -> subprocess.CompletedProcess[str]:
    return commands.bkrl(*words, cwd=cwd, code=code, **PLUGINS | more)


def train(alg: str, out: str) -> list[str]:
    return ["train-rs", "--alg", alg, *f"{COMMANDS[alg]} {EVALUATIONS}".replace("_", "").split(), "--out", out]


def stop_on_the_way(words: list[str], cwd: Path, out: str) -> None:
    """Ctrl-C as soon as there is a checkpoint."""
    process = commands.Started(words, cwd, **PLUGINS)
    process.wait_for("checkpoints/step-*", cwd / out)
    process.send_signal(signal.SIGINT)
    ended = process.done()
    assert ended.returncode == 130, ended.stderr
    assert "run the same command again to continue" in ended.stderr
    assert not (cwd / out / "manifest.json").exists()


def test_that_missions_change_is_found_in_an_environment_from_outside(tmp_path):
    told = "import doors, recall; from bkrl.envs import mission_is_hidden as f; print(f('Doors-7'), f('Recall-3'))"
    (tmp_path / "ask.py").write_text(told)
    assert bkrl("ask.py", cwd=tmp_path).stdout.split() == ["True", "False"]


@pytest.mark.parametrize(
    "alg", [one if one == "doors" else pytest.param(one, marks=pytest.mark.slow) for one in COMMANDS]
)
def test_a_method_from_outside_learns_continues_and_is_evaluated(alg, tmp_path):
    stop_on_the_way(train(alg, "run"), tmp_path, "run")
    play = ("evaluate", "run", "--gifs", "0", "--episodes", "40", "--json")
    continued, played = commands.together([*train(alg, "run"), "--json"], play, cwd=tmp_path, **PLUGINS)
    assert "continuing at step" in continued.stderr, continued
    found = json.loads(continued.stdout)
    assert found["facts"]["alg"] == alg
    assert found["facts"]["success_rate"] > 0.9, "chance is at most a half"
    assert found["facts"]["steps"] >= 16_000
    scores = json.loads(played.stdout)
    assert scores["facts"]["modes"]["sampled"]["success_rate"]["mean"] > 0.9
    if alg == "table-q":  # its envs can be saved, so a run that was stopped ends with the same bytes
        bkrl(*train(alg, "whole"), cwd=tmp_path)
        assert (tmp_path / "whole/policy.json").read_bytes() == (tmp_path / "run/policy.json").read_bytes()


def test_a_method_from_outside_that_does_not_fit_an_env_fails_in_one_sentence(tmp_path):
    short = ("--env", "BabyAI-GoToObj-v0", "--steps", "256", "--out", "run")
    said = bkrl("train", "--alg", "recall", *short, cwd=tmp_path, code=1).stderr.splitlines()
    line = "at line [0-9]+ of recall.py. Choose an env that it was made for, or mend it"
    assert re.match(f"bkrl: --alg recall, a plugin, fails in BabyAI-GoToObj-v0: RuntimeError .*{line}", said[-1])
    assert not any("Traceback" in one for one in said)


def test_what_a_method_says_of_itself_is_known_to_lists_help_refusals_and_reports(tmp_path):
    short = ("--env", "Toy-Grid", "--steps", "256", "--eval-every", "128", "--eval-episodes", "2", "--out", "run")
    study = '[[world]]\nname = "w"\nalgs = ["table-q"]\nseeds = [1]\ntrain_rs = { env = "Toy-Grid", epsilon = 0.1 }\n'
    (tmp_path / "own.toml").write_text(study)
    done = commands.together(
        ("list", "algs", "--json"),
        ("train", "--alg", "table-q", "--help"),
        ("train", "--alg", "table-q", *short),
        ("sweep", "own.toml", "--executor", "print"),
        ("report", "run", "--out", "report"),
        ("train", "--alg", "recall", "--epsilon", "0.1"),
        ("train", "--alg", "doors", "--int-coef", "1"),
        cwd=tmp_path,
        **PLUGINS,
    )
    assert [one.returncode for one in done] == [0] * 5 + [2] * 2, done
    listed, shown, _, printed, _, *refused = done
    assert {"recall", "table-q", "doors"} < {row["alg"] for row in json.loads(listed.stdout)}
    assert "--step-size" in shown.stdout
    assert "--alg table-q" in printed.stdout
    assert "--epsilon 0.1" in printed.stdout
    assert "table-q" in (tmp_path / "report/report.html").read_text()
    assert "--epsilon has no effect here, only with --alg bot or table-q" in refused[0].stderr
    assert "--int-coef has no effect" in refused[1].stderr


def test_a_method_that_no_plugin_brings_is_refused(refused):
    assert "There is no method 'recall'" in refused(["train", "--alg", "recall"], 2)


@pytest.mark.parametrize("path", sorted(TENANTS.glob("*.py")), ids=lambda path: path.stem)
def test_a_method_from_outside_is_short(path):
    assert len(path.read_text().splitlines()) < 150
