"""Two sets of tasks and seeds: what belongs where, what a study may not mix, and what manifest and report say of it."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

import bkrl.envs
from bkrl.core.config import PPOConfig, ReportConfig
from bkrl.core.errors import UsageError
from bkrl.core.reporter import Reporter
from bkrl.envs.sets import FIRST, SECOND, set_of, set_of_all
from bkrl.methods import TrainRsConfig
from bkrl.stages import report, train_rs
from bkrl.studies.study import plan
from tests.report import synthetic

DOORS, CORRIDOR = "MiniGrid-DoorKey-6x6-v0", "MiniGrid-KeyCorridorS3R3-v0"

CODE = f'algs = ["bk-code"]\ncollect = {{ env = "{DOORS}" }}\n'


def document(held: str = "first", env: str = DOORS, seeds: str = "[101]", more: str = "") -> dict:
    algs = "" if "algs" in more else 'algs = ["ppo"]\n'
    section = f'name = "w"\n{algs}seeds = {seeds}\ntrain_rs = {{ env = "{env}" }}\n{more}'
    return tomllib.loads(f'set = "{held}"\n[[world]]\n{section}')


def test_the_sets_share_nothing_and_every_task_exists():
    assert not set(FIRST.tasks) & set(SECOND.tasks)
    assert FIRST.least > SECOND.most
    for env in (*FIRST.tasks, *SECOND.tasks):
        assert bkrl.envs.env_spec(env).env_id == env


def test_a_run_belongs_to_a_set_by_task_and_seed():
    assert set_of(DOORS, 101) == set_of(f"{DOORS}@max_steps=9", 500) == "first"
    assert set_of(CORRIDOR, 5) == "second"
    assert set_of(DOORS, 5) == set_of(CORRIDOR, 101) == set_of(DOORS, 50) == set_of("Toy-Chain", 1) == ""
    assert set_of_all([(DOORS, 101), (DOORS, 102)]) == "first"
    assert set_of_all([(DOORS, 101), (CORRIDOR, 1)]) == set_of_all([(DOORS, 101), (DOORS, 1)]) == set_of_all([]) == ""


def test_a_study_within_its_set_is_planned(tmp_path: Path):
    assert plan(document(), tmp_path).training
    assert plan(document("second", CORRIDOR, "[1, 5]"), tmp_path).training
    for explored in (
        f'collect_seeds = [101]\ncollect = {{ env = "{DOORS}" }}',
        f'collect = {{ env = "{DOORS}", seed = 101 }}',
    ):
        assert plan(document(more=explored), tmp_path).preparation


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"env": CORRIDOR}, f"ppo-s101 trains or plays in {CORRIDOR}, which is a task of the second set"),
        ({"held": "second"}, "ppo-s101 trains or plays in MiniGrid-DoorKey-6x6-v0, which is a task of the first set"),
        ({"env": "Toy-Chain"}, "in neither set"),
        ({"seeds": "[101, 5]"}, "ppo-s5 has the seed 5, and the seeds of the first set are 101 and above; write seeds"),
        ({"held": "second", "env": CORRIDOR, "seeds": "[14]"}, "the seeds of the second set are 1 to 13"),
        ({"more": f'evaluate = {{ env = "{CORRIDOR}" }}'}, "second set"),
        ({"more": f'collect = {{ env = "{DOORS}" }}'}, "collect of w has the seed 1, .*write collect_seeds = .101"),
        ({"more": f'collect_seeds = [101]\ncollect = {{ env = "{CORRIDOR}" }}'}, "no annotator, program or potential"),
        (
            {"held": "second", "env": CORRIDOR, "seeds": "[1]", "more": f'collect = {{ env = "{CORRIDOR}" }}'},
            "no annotator, program or potential",
        ),
        ({"more": "label_seeds = [1]"}, "label of w has the seed 1"),
        (  # seeds that a table of settings names were not looked at
            {"held": "second", "env": CORRIDOR, "seeds": "[1]", "more": f'collect = {{ env = "{DOORS}", seed = 101 }}'},
            "collect of w has the seed 101",
        ),
        (
            {"held": "second", "env": CORRIDOR, "seeds": "[1]", "more": f"{CODE}label = {{ seed = 102 }}"},
            "label of w has the seed 102",
        ),
        (  # nor was that of a potential
            {"held": "second", "env": CORRIDOR, "seeds": "[1]", "more": f"{CODE}train_rm = {{ seed = 500 }}"},
            "train_rm of w has the seed 500, and the seeds of the second set are 1 to 13",
        ),
        (  # nor the envs of conditions
            {
                "held": "second",
                "env": "BabyAI-GoToSeq-v0",
                "seeds": "[1]",
                "more": 'evaluate = { conditions = "glam-goto" }',
            },
            "eval-ppo-s1 trains or plays in BabyAI-MixedTrainLocal-v0.*, which is in neither set",
        ),
        ({"held": "third"}, "set"),
    ],
)
def test_what_belongs_to_the_other_set_is_refused(changes: dict, said: str, tmp_path: Path):
    with pytest.raises(UsageError, match=said):
        plan(document(**changes), tmp_path)


def test_no_annotator_is_asked_about_the_second_set_while_a_policy_learns(tmp_path: Path):
    for held, env, seeds in (("first", DOORS, "[101]"), ("second", CORRIDOR, "[1]")):
        asked = document(held, env, seeds)
        asked["world"][0]["algs"] = ["bk-online"]
        if held == "first":
            assert plan(asked, tmp_path).training
            continue
        with pytest.raises(UsageError, match="bk-online-s1 asks an annotator about a task of the second set while it"):
            plan(asked, tmp_path)


def test_conditions_of_the_set_are_planned(tmp_path: Path):
    more = 'evaluate = { conditions = "crafter-score" }'
    assert plan(document("second", "CrafterReward-v1", "[1]", more), tmp_path).evaluation


@pytest.mark.parametrize(
    "asks", ["local:smollm2-135m", "progress:local:smollm2-135m", "openai:m", "rules", "", "equal", "random:1"]
)
def test_no_suggester_is_asked_about_the_second_set(asks: str, tmp_path: Path):
    """Goals of a language model, asked for while the policy learns, were let pass; those of nobody may be, nor
    do controls know anything: they were refused."""
    study = document("second", "CrafterReward-v1", "[1]")
    study["world"][0]["algs"] = [{"name": "e", "alg": "ellm-ppo", "train_rs": {"suggester": asks or "progress:oracle"}}]
    if asks in ("", "equal", "random:1"):
        assert plan(study, tmp_path).training
        return
    with pytest.raises(UsageError, match="e-s1 asks an annotator about a task of the second set while it learns"):
        plan(study, tmp_path)


def test_a_manifest_says_its_set(tmp_path: Path):
    config = TrainRsConfig(
        env=synthetic.RED, seed=101, steps=64, eval_episodes=1, out=tmp_path / "a", ppo=PPOConfig(num_envs=2)
    )
    assert train_rs.run(config, Reporter()).facts["task_set"] == "first"


@pytest.mark.parametrize(("seed", "env", "held"), [(101, synthetic.RED, "first"), (1, synthetic.RED, "")])
def test_a_report_says_its_set(seed: int, env: str, held: str, tmp_path: Path):
    runs = tuple(synthetic.train_rs(tmp_path, "ppo", seed + i, env=env) for i in range(2))
    result = report.run(ReportConfig(runs=runs, out=tmp_path / "report"), Reporter())
    found = json.loads(result.file("results.json").read_text())
    assert found["task_set"] == result.facts.get("task_set", "") == held
    said = "All runs are of the first set of tasks and seeds: settings are chosen here"
    assert any(said in one["text"] for one in found["findings"]) == bool(held)
    assert (said in re.sub(r"\s+", " ", result.file("report.html").read_text())) == bool(held)
