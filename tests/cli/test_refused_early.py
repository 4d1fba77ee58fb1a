"""What cannot work is refused in one sentence that names it, before a folder is made and before anybody is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from bkrl.cli.main import run_command
from bkrl.core.config import CollectConfig
from bkrl.core.reporter import Reporter
from bkrl.llm import KNOWN_FAMILIES
from bkrl.llm.rules import KNOWLEDGE
from bkrl.stages import collect

CORRIDOR = "MiniGrid-KeyCorridorS3R2-v0"
GOTO = "BabyAI-GoToLocal-v0"


@pytest.fixture(scope="module")
def experience(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a dataset of a family that nobody knows anything of, and one of missions and a memory."""
    root = tmp_path_factory.mktemp("experience")
    for name, env, language in (("toy", "Toy-Chain", "en"), ("corridor", CORRIDOR, "en"), ("fr", GOTO, "fr")):
        config = CollectConfig(env=env, language=language, explorer="random", episodes=2, out=root / name)
        collect.run(config, Reporter())
    return root


@pytest.mark.parametrize(
    ("command", "code", "sentence"),
    [
        ("label {data}/toy --num 3", 2, "The rules annotator knows envs of babyai, crafter, housekeep"),
        ("label {data}/toy --llm equal --variant goal --calibrate rules", 2, "The rules annotator knows envs of"),
        ("label {data}/toy --llm equal --variant code", 2, "No sub-goals are named for Toy-Chain; pass --ask open"),
        ("label {data}/corridor --llm equal --criteria beauty --num 3", 2, "--criteria are of overall, progress"),
        ("label {data}/corridor --llm votes --num 3", 2, "The votes annotator knows envs of housekeep"),
        ("label {data}/fr --num 3", 2, "The rules annotator reads English captions alone"),
        ("label {data}/fr --llm random --ask closed --variant goal --calibrate rules", 2, "reads English captions"),
        ("label {data}/corridor --variant code --with-mission --with-memory", 2, "leave out --with-mission or"),
        ("train-rs --alg bk-online --llm rulez --steps 1000", 2, "There is no annotator 'rulez'. Did you mean 'rules'"),
        ("train-rs --alg bk-online --env Toy-Chain", 2, "The rules annotator knows"),
        ("train-rs --alg ellm --suggester zs_mlm", 2, "is asked in Housekeep alone"),
        ("train-rs --alg ellm --env Housekeep-Symbolic-Task1 --suggester words", 2, "which no text says"),
        ("train-rs --alg zero-shot --lm tiny-t6 --env BabyAI-GoToLocal-v0", 3, "Did you mean 'tiny-t5'"),
        ("train-rs --alg bk-code --potential sample:bk-goal-minigrit", 3, "Did you mean 'sample:bk-goal-minigrid'"),
        ("train-rs --alg bk-code --potential sample:nope", 3, "'sample:nope'. There are sample:bk-code-crafter"),
        ("train-rs --env MiniGrid-WFC-MazeSimple-v0 --steps 2000", 2, "lacks SimpleMaze.png"),
    ],
)
def test_a_command_that_cannot_work(
    experience: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, code: int, sentence: str
) -> None:
    out = tmp_path / "out"
    words = [word.format(data=experience) for word in command.split()]
    assert run_command([*words, "--out", str(out)]) == code
    said = capsys.readouterr().err
    assert sentence in said
    assert "Errno" not in said
    assert not out.exists()


def test_samples_of_another_stage_are_not_offered(capsys: pytest.CaptureFixture[str]) -> None:
    run_command(["train-rs", "--alg", "bk-code", "--potential", "sample:nope"])
    assert "lm-t5" not in capsys.readouterr().err


def test_the_families_that_are_refused_early_are_those_that_are_not_known() -> None:
    assert {name.lower() for name in KNOWLEDGE} == set(KNOWN_FAMILIES["rules"])
