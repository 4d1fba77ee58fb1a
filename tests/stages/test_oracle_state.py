"""The full-state oracle from labels to a trained policy: built, certified, resumed exactly, and refused elsewhere."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bkrl.cli.main import run_command
from bkrl.core.config import LabelConfig, PPOConfig, TrainRmConfig, TrainRsConfig
from bkrl.core.errors import UsageError
from bkrl.core.reporter import Reporter
from bkrl.runs.record import Run
from bkrl.stages import label, train_rm, train_rs
from tests.stages.interrupted import the_same_when_killed

TASK = "BabyAI-Text-GoToLocal-RedBall-S20"
SMALL = PPOConfig(num_envs=8, num_steps=128, num_minibatches=4)


@pytest.fixture(scope="module")
def labels(tmp_path_factory: Any) -> Path:
    root = tmp_path_factory.mktemp("labels")
    config = LabelConfig(
        dataset=Path("sample:data-minigrid"),
        variant="goal",
        llm="rules",
        num=20,
        cache=root / "cache",
        out=root / "run",
    )
    return label.run(config, Reporter()).path


@pytest.fixture(scope="module")
def made(labels: Path, tmp_path_factory: Any) -> Path:
    out = tmp_path_factory.mktemp("rm") / "run"
    return train_rm.run(TrainRmConfig(labels=labels, control="oracle-state", task=TASK, out=out), Reporter()).path


def settings(out: Path, potential: Path, **changes: Any) -> TrainRsConfig:
    base = TrainRsConfig(
        alg="bk-goal", potential=potential, env=TASK, out=out, steps=6_000, eval_every=1_500, eval_episodes=4,
        checkpoint_every=2_000, ppo=SMALL,
    )  # fmt: skip
    return replace(base, **changes)


def test_it_is_a_control_with_a_certificate_and_can_be_checked_again(made: Path, capsys: Any) -> None:
    facts = Run.open(made, "train-rm").facts
    assert (facts["control"], facts["kind"], facts["env_id"]) == ("oracle-state", "state", TASK)
    assert "not applicable: batches, present, units" in facts["certificate"]
    assert run_command(["check-potential", str(made), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again == json.loads((made / "certificate.json").read_text())
    assert run_command(["check-potential", str(made)]) == 0
    assert capsys.readouterr().out.count("not applicable") == 3
    assert run_command(["potential", "report", str(made), "--out", str(made.parent / "report")]) == 3
    assert "cannot judge what was recorded" in capsys.readouterr().err


def test_the_same_command_gives_the_same_oracle(labels: Path, made: Path, tmp_path: Path) -> None:
    config = TrainRmConfig(labels=labels, control="oracle-state", task=TASK, out=tmp_path / "again")
    again = train_rm.run(config, Reporter()).path
    for name in ("potential.json", "certificate.json", "potential_report.json"):
        assert (again / name).read_bytes() == (made / name).read_bytes()


@pytest.mark.parametrize("form", ["pbrs", "pbim"])
def test_interrupted_is_byte_for_byte_the_same(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    whole = settings(tmp_path / "whole", made, shaping=form)
    lines = the_same_when_killed(whole, monkeypatch)
    assert any('"shaping/phi_mean"' in line for line in lines)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"env": "BabyAI-Text-GoToLocal-PurpleKey-S20"}, "an oracle of BabyAI-Text-GoToLocal-RedBall-S20 and knows"),
        ({"backend": "reference"}, "native engine"),
        ({"compat": "b2"}, "no windows"),
        ({"shaping": "advice"}, "nothing about actions"),
        ({"shaping": "pbrs+advice"}, "nothing about actions"),
    ],
)
def test_what_it_cannot_do_is_refused(made: Path, tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        train_rs.run(settings(tmp_path / "run", made, **changes), Reporter())
    assert not (tmp_path / "run").exists()


def test_a_task_is_asked_for(labels: Path, tmp_path: Path) -> None:
    for task in ("", "Crafter-Text-EatCow"):
        with pytest.raises(UsageError, match="No full-state oracle"):
            train_rm.run(
                TrainRmConfig(labels=labels, control="oracle-state", task=task, out=tmp_path / "a"), Reporter()
            )
    with pytest.raises(UsageError, match="oracle or oracle-state"):
        train_rm.run(TrainRmConfig(labels=labels, control="zero", task=TASK, out=tmp_path / "b"), Reporter())
    assert not list(tmp_path.iterdir())
