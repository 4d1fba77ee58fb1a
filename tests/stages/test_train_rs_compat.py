"""train-rs --compat: the manifest says what is wrong with the run, and a stopped run goes on exactly."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bkrl.core.errors import UsageError
from bkrl.core.reporter import Reporter
from bkrl.envs import env_spec
from bkrl.report.groups import SUCCESS, Trained, group_runs
from bkrl.rewards.upstream import DEFECTS, parse
from bkrl.runs.record import Run
from bkrl.stages.train_rs import run
from bkrl.studies.study import load_study
from tests.stages.interrupted import the_same_when_killed
from tests.stages.test_train_rs import potential_run, settings

POLICY = "policy.safetensors"


def test_the_manifest_says_which_defects_are_on_and_that_nothing_is_guaranteed(tmp_path: Path) -> None:
    potential = potential_run(tmp_path / "rm")
    shaped = settings(tmp_path / "a", alg="bk-code", potential=potential, steps=2_000)
    run(replace(shaped, compat="upstream"), Reporter())
    facts = Run.open(tmp_path / "a", "train-rs").facts
    assert facts["compat"] == ["b2", "b3", "b6", "b7", "b8", "b9", "b10"]  # b1 divides what only BabyAI shows
    assert facts["guarantee"] == "none: published defects b2, b3, b6, b7, b8, b9, b10"
    assert any("shaping/spread" in row for row in Run.open(tmp_path / "a", "train-rs").metrics())

    run(settings(tmp_path / "b", alg="ppo", steps=2_000, compat="b10"), Reporter())
    assert Run.open(tmp_path / "b", "train-rs").facts["guarantee"] == "none: published defects b10"

    run(replace(shaped, out=tmp_path / "c"), Reporter())
    facts = Run.open(tmp_path / "c", "train-rs").facts
    assert "compat" not in facts
    assert "none" not in facts.get("guarantee", "")


def test_defects_change_what_is_learnt_and_b9_is_how_it_is_anyway(tmp_path: Path) -> None:
    everywhere = "def potential(observations, actions, valid):\n    return -1.0 - observations[:, -1, 0]\n"
    base = settings(
        tmp_path / "run", alg="bk-code", potential=potential_run(tmp_path / "rm", source=everywhere), steps=512
    )
    policies = {}
    for compat in ("", "b2", "b3", "b6", "b7", "b8", "b9", "b10"):
        out = tmp_path / f"run-{compat}"
        run(replace(base, out=out, eval_every=1_500, eval_episodes=1, compat=compat), Reporter())
        policies[compat] = (out / POLICY).read_bytes()
    # the program looks at the present alone and no episode has met its time limit, so b8 and b10 change nothing here
    same = {compat for compat, policy in policies.items() if policy == policies[""]}
    assert same == {"", "b8", "b9", "b10"}


@pytest.mark.slow
def test_interrupted_with_defects_is_byte_for_byte_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    potential = potential_run(tmp_path / "rm")
    whole = settings(
        tmp_path / "whole", alg="bk-code", potential=potential, steps=6_000, eval_every=1_500, compat="upstream"
    )
    the_same_when_killed(whole, monkeypatch)


def test_unknown_and_foreign_defects_leave_no_folder_behind(tmp_path: Path) -> None:
    code = potential_run(tmp_path / "rm")
    with pytest.raises(UsageError, match="Did you mean 'upstream'"):
        run(settings(tmp_path / "a", alg="bk-code", potential=code, compat="upstraem"), Reporter())
    with pytest.raises(UsageError, match="b2 .* concerns potentials of code, pref or goal labels"):
        run(settings(tmp_path / "b", alg="ppo", compat="b2"), Reporter())
    with pytest.raises(UsageError, match="b4 .* concerns potentials of pref labels"):
        run(settings(tmp_path / "c", alg="bk-code", potential=code, compat="b4"), Reporter())
    assert [path.name for path in tmp_path.iterdir()] == ["rm"]


def test_the_defects_study_has_every_defect_of_its_potentials_alone(tmp_path: Path) -> None:
    alone = set()
    for cell in load_study("defects", tmp_path).training:
        config = cell.config
        variant = config.alg.removeprefix("bk-") if config.alg.startswith("bk-") else None
        chosen = parse(config.compat, variant, env_spec(config.env).family)
        alone |= chosen if len(chosen) == 1 else set()
    # b9 is the default; b30 needs goals, which the study leaves out, and others agents that read
    assert alone == {name for name, one in DEFECTS.items() if "pref" in one.variants or "code" in one.variants} - {"b9"}


def test_a_report_names_the_defects_even_where_all_runs_have_them() -> None:
    def trained(alg: str, compat: str, seed: int) -> Trained:
        series = {SUCCESS: (np.array([0.0, 1.0]), np.array([0.0, 1.0]))}
        none = "none: published defects"
        return Trained(f"{alg}{compat}{seed}", "W", alg, seed, {"compat": compat}, series, form="pbrs", guarantee=none)

    groups, _ = group_runs([trained("ppo", "b10", 1), *(trained("bk-pref", "b2,b3", seed) for seed in (1, 2))])
    assert [group.label for group in groups] == ["bk-pref (defects b2,b3)", "ppo (defects b10)"]
    assert not any(group.is_baseline for group in groups)  # a baseline has no defects
    assert groups[0].legend.endswith("no guarantee")
