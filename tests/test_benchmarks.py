"""Scripts beside the package run for whoever starts them, from wherever."""

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.machinery import PathFinder
from importlib.metadata import distributions
from pathlib import Path

import pytest

from tests.commands import bkrl

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"
MEASURING = [path.name for path in sorted(BENCHMARKS.glob("*.py")) if "import parser_of" in path.read_text()]
LONG = {
    "agents.py", "envs.py", "explored_views.py", "first_use.py", "goals.py", "gpu.py", "housekeep.py", "judges.py",
    "labelling.py", "lm.py", "potentials.py", "program_acts.py", "serving.py", "training.py", "versions.py",
}  # fmt: skip
"""They train, ask models or lay out many scenes, even with --quick; that they start is tested with the others."""


def make(*arguments, folder=ROOT):
    # The tests may have been started by `make test` itself: its flags and its level are not for this one.
    env = {name: value for name, value in os.environ.items() if name not in {"MAKEFLAGS", "MAKELEVEL", "MFLAGS"}}
    done = subprocess.run(["make", *arguments], cwd=folder, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("folder", ["benchmarks", "tests", "docs"])
def test_no_script_hides_a_package(folder):
    """Python looks for modules in a script's own folder first: there, `coverage.py` would be what numba imports.

    What an installed package may require counts too: numba asks for `coverage` though it is seldom installed.
    """
    names = {path.stem for path in (ROOT / folder).glob("*.py")} - {"__init__"}
    required = {
        re.split(r"[^\w.-]", each)[0].lower().replace("-", "_")
        for one in distributions()
        for each in one.requires or ()
    }
    elsewhere = [entry for entry in sys.path if entry and Path(entry).resolve() not in {ROOT, ROOT / folder}]
    taken = {name for name in names if name in sys.stdlib_module_names or PathFinder.find_spec(name, elsewhere)}
    assert taken | names & required == set()


@pytest.mark.parametrize(
    "script", [pytest.param(name, marks=pytest.mark.slow) if name in LONG else name for name in MEASURING]
)
def test_every_script_measures_something(script):
    """So little that its figures mean nothing: `make bench` measures."""
    [line] = bkrl(script, "--quick", "--json", cwd=BENCHMARKS).stdout.splitlines()
    assert json.loads(line)


@pytest.mark.parametrize(
    "script",  # those that the fast run starts to measure something are slow here
    [
        pytest.param(path.name, marks=pytest.mark.slow) if path.name in {*MEASURING} - {*LONG} else path.name
        for path in sorted(BENCHMARKS.glob("*.py"))
    ],
)
def test_every_script_starts_from_the_root_of_the_project(script):
    shown = bkrl(f"benchmarks/{script}", "--help", cwd=ROOT).stdout
    assert ("--quick" in shown) == (script in MEASURING)


def test_times_of_a_folder_without_runs_are_refused(tmp_path):
    for script, folder in (("time_to_success.py", BENCHMARKS), ("benchmarks/time_to_success.py", ROOT)):
        assert "no finished train-rs run" in bkrl(script, tmp_path, cwd=folder, code=3).stderr


def test_make_knows_what_to_do_for_every_target():
    targets = re.search(r"\.PHONY: (.*)", (ROOT / "Makefile").read_text())[1].split()
    told = {target: make("-n", target) for target in targets}
    assert all(told.values())
    assert "--preset laptop" in told["reproduce"]
    assert "--preset smoke" in make("-n", "reproduce", "PRESET=smoke")
    assert "--quick" in make("-n", "bench", "QUICK=--quick")


def test_make_bench_measures_with_every_script(tmp_path):
    """With a Python that only names what it is given; the scripts themselves are run above."""
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$@"\n')
    python.chmod(0o755)
    told = make("-o", ".venv/.ready", "bench", f"BIN={tmp_path}", "QUICK=--quick")
    assert told.splitlines() == [f"benchmarks/{script} --json --quick" for script in MEASURING]


def test_make_help_and_clean_work_in_a_fresh_copy(tmp_path):
    shutil.copy(ROOT / "Makefile", tmp_path)
    for folder in (".venv", "build", "logs/run", "src/bkrl/__pycache__"):
        (tmp_path / folder).mkdir(parents=True)
    assert "make reproduce" in make("help", folder=tmp_path)
    make("clean", folder=tmp_path)
    assert {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")} == {
        "Makefile",
        "logs",
        "logs/run",
        "src",
        "src/bkrl",
    }
