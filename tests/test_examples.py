"""The packages under examples/ are installed and used, as anybody's would be."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import bkrl

EXAMPLES = Path(__file__).parents[1] / "examples"
MOST_LINES = 80


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with the example and its entry points, built from a copy: nothing is left beside the source."""
    where = tmp_path_factory.mktemp("site")
    copy = tmp_path_factory.mktemp("treasure")
    for path in (EXAMPLES / "treasure").iterdir():
        if path.is_file():
            (copy / path.name).write_bytes(path.read_bytes())
    options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check"]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, "--target", where, copy], check=True)
    return where


def test_an_example_is_short():
    for folder in EXAMPLES.iterdir():
        lines = sum(len(path.read_text().splitlines()) for path in folder.iterdir() if path.suffix in (".py", ".toml"))
        assert 0 < lines <= MOST_LINES, folder


def test_its_method_trains_as_a_plugin(tmp_path):
    python_path = os.pathsep.join([str(EXAMPLES / "treasure"), os.environ.get("PYTHONPATH", "")])
    words = ("train", "hasty-ppo", "--env", "Treasure", "--steps", 256, "--out", "run", "--json")
    trained = bkrl(*words, cwd=tmp_path, code=0, BKRL_PLUGINS="treasure", PYTHONPATH=python_path)
    assert json.loads(trained.stdout)["facts"]["alg"] == "hasty-ppo"


@pytest.mark.slow
def test_an_installed_package_brings_an_env_an_annotator_a_method_and_a_suggester(installed, tmp_path):
    def run(*words, code=0):
        done = bkrl(*words, cwd=tmp_path, code=code, PYTHONPATH=str(installed))
        return json.loads(done.stdout) if "--json" in words else done.stdout + done.stderr

    for what, name in (("envs", "Treasure"), ("llms", "near"), ("algs", "hasty-ppo"), ("suggesters", "first")):
        assert name in run("list", what)
    run("collect", "--env", "Treasure", "--steps", 512, "--out", "data")
    labels = run("label", "data", "--variant", "pref", "--llm", "near", "--num", 40, "--out", "labels", "--json")
    assert labels["facts"]["llm"] == "near"
    assert labels["facts"]["quality"]["labelled"] == 40
    run("train-rm", "labels", "--out", "phi")
    trained = run(
        "train", "hasty-ppo", "--env", "Treasure", "--steps", 20_000, "--haste", 0.02, "--out", "run", "--json"
    )
    assert trained["facts"]["alg"] == "hasty-ppo"
    assert trained["facts"]["success_rate"] > 0.9
    assert "at least 0" in run("train", "hasty-ppo", "--env", "Treasure", "--haste", -1, code=2)
    goals = ["--env", "Crafter-Typed-Harder", "--steps", 2_000, "--num-envs", 8]
    told = run("train", "ellm", *goals, "--suggester", "first", "--out", "goals", "--json")
    assert told["facts"]["goals"]["suggester"] == "first"
    scores = run("evaluate", "goals", "--episodes", 2, "--gifs", 0, "--json")
    assert scores["facts"]["modes"]
    assert "no suggester 'last'" in run("train", "ellm", *goals, "--suggester", "last", "--out", "none", code=2)


def test_without_the_package_its_names_are_refused_with_the_way_to_get_them(tmp_path):
    assert "There is no env 'Treasure'" in bkrl("collect", "--env", "Treasure", cwd=tmp_path, code=2).stderr
