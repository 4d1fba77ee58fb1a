"""results/tables.py: tables of runs that no report makes."""

from __future__ import annotations

import shutil
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from bkrl.core.config import EvaluateConfig
from bkrl.core.errors import InputError
from bkrl.labelers.config import LabelConfig
from bkrl.potentials.config import TrainRmConfig
from bkrl.runs.record import Run

_SPEC = spec_from_file_location("result_tables", Path(__file__).parents[1] / "results" / "tables.py")
assert _SPEC is not None
assert _SPEC.loader is not None
tables = module_from_spec(_SPEC)
_SPEC.loader.exec_module(tables)


def trained(root: Path, seed: int, curve: list[tuple[int, float]], **settings: object) -> Run:
    config = {"alg": "ppo", "network": "recurrent", "seed": seed} | settings
    run = Run.create(root / f"{config['alg']}-s{seed}", stage="train-rs", config=config)
    for step, rate in curve:
        run.log(step, **{"eval/success_rate": rate})
        run.log(step, **{"time/update": 2.0, "time/sps": 9000.0})
    run.finish([], env_id="E", alg=config["alg"])
    return Run.open(run.path, "train-rs")


def test_the_first_evaluation_that_succeeds_often_enough_counts(tmp_path: Path):
    quick = trained(tmp_path, 1, [(0, 0.1), (10, 0.92), (20, 0.88)])
    slow = trained(tmp_path, 2, [(0, 0.1), (10, 0.5), (20, 0.96)])
    random = trained(tmp_path, 1, [(20, 0.2)], alg="random", network="compact")
    rows = tables.times([quick, slow, random], 0.9)[2:]
    assert rows[0] == "| `E` | `ppo --network recurrent` | 2 | 20 | 6 | 15 (10 to 20) | 2 of 2 | 92 % (41 to 100) |"
    assert rows[1] == "| `E` | `random` | 1 | 20 | 2 | not reached | 0 of 1 | 20 % |"


def test_levels_have_a_column_for_each_agent_and_success_after_so_many_steps(tmp_path: Path):
    runs = [trained(tmp_path, seed, [(0, 0.0), (9, 0.2 * seed), (12, 0.6), (20, 1.0)]) for seed in (1, 2)]
    runs.append(trained(tmp_path, 1, [(10, 0.2), (12, 0.3)], alg="random", network="compact"))
    assert tables.levels(runs, [11, 20]) == [
        "| level | `ppo --network recurrent` | `random` |",
        "|---|---|---|",
        "| `E` | 30 % (0 to 100), n = 2; 100 %, n = 2 | 20 %; – |",
    ]


def test_a_median_is_known_where_more_than_half_get_there(tmp_path: Path):
    runs = [trained(tmp_path, seed, [(0, 0.0), (10 * seed, 0.95 if seed < 3 else 0.5)]) for seed in (1, 2, 3)]
    assert "| 20 | 2 of 3 |" in tables.times(runs, 0.9)[2]
    assert "| not reached | 1 of 2 |" in tables.times(runs[1:], 0.9)[2]


def test_rows_that_two_evaluations_share_stand_there_once(tmp_path: Path):
    header, bot, runs = ["agent", "success"], ["bot", "100 %"], []
    for name in ("a", "b"):
        config = EvaluateConfig(policy=tmp_path, out=tmp_path / name)
        run = Run.create(tmp_path / name, stage="evaluate", config=config)
        run.finish([], conditions=[], table={"header": header, "rows": [[name, "50 %"], bot]})
        runs.append(Run.open(run.path, "evaluate"))
    assert tables.conditions(runs) == [
        "| agent | success |", "|---|---|", "| a | 50 % |", "| bot | 100 % |", "| b | 50 % |",
    ]  # fmt: skip


def test_answers_and_what_came_of_them_have_a_row_for_each_run(tmp_path: Path):
    """Rates that were not measured are no figures."""
    labels = Run.create(tmp_path / "label", stage="label", config=LabelConfig(dataset=tmp_path))
    rate = {"rate": 0.4, "low": 0.31, "high": 0.5, "n": 90}
    usage = {"requests": 1400, "prompt_tokens": 2000, "completion_tokens": 5}
    labels.finish([], env_id="E", variant="pref", llm="local:m", usage=usage, quality={"agreement_with_rules": rate})
    opened = Run.open(labels.path, "label")
    assert tables.answers([opened])[2] == "| `E` | pref | `m` | 1,400 | 2,005 | 40 % (31 to 50), n = 90 | – |"
    made = Run.create(tmp_path / "rm", stage="train-rm", config=TrainRmConfig(labels=tmp_path))
    trained = {
        "labels_kept": 0.8,
        "pairs_train": 8,
        "pairs_test": 2,
        "accuracy": 0.7,
        "accuracy_low": 0.6,
        "accuracy_high": 0.75,
    }
    made.finish([], env_id="E", llm="rules", control="shuffled", training=trained)
    row = tables.potentials([Run.open(made.path, "train-rm")])[2]
    assert row == "| `rules` | shuffled | 80 % | 10 | 70 % (60 to 75) | – | – | `E` |"


def test_the_entries_of_a_study_stand_by_their_names_and_envs_side_by_side(tmp_path: Path):
    runs = []
    for env, seed, end in (("E", 1, 0.2), ("E", 2, 0.4), ("F", 1, 0.5)):
        run = Run.create(tmp_path / env / f"votes-s{seed}", stage="train-rs", config={"alg": "ellm-ppo", "seed": seed})
        run.log(0, **{"eval/object_success": 0.9})
        run.log(10, **{"eval/object_success": end})
        run.finish([], env_id=env, goals={"answers": {"balanced": 0.5 + seed / 10}})
        runs.append(Run.open(run.path, "train-rs"))
    assert tables.ends(runs, "object_success") == [
        "| entry | `E` | `F` | answers, balanced |",
        "|---|---|---|---|",
        "| votes | 30 % (0 to 100), n = 2 | 50 %, n = 1 | 0.63 |",
    ]
    with pytest.raises(InputError, match="no success_rate of an evaluation"):
        tables.ends(runs, "success_rate")


def test_the_score_of_training_weighs_rollouts_by_their_episodes(tmp_path: Path):
    """60 % and 10 % of the episodes are √(61 · 11) − 1 = 24.9 %; of the last steps alone it is 100 % and 0 %."""
    runs = []
    for seed in (1, 2):
        run = Run.create(tmp_path / f"s{seed}", stage="train-rs", config={"alg": "ppo", "network": "residual"})
        for step, episodes, rates in ((10, 4, (0.0, 0.25)), (20, 6, (1.0, 0.0)), (30, 0, None)):
            names = () if rates is None else zip(("collect_coal", "wake_up"), rates, strict=True)
            run.log(step, **{"rollout/episodes": episodes, **{f"rollout/unlocked/{name}": one for name, one in names}})
            run.log(step, **{"time/update": 60.0, "time/sps": 9000.0})
        run.finish([], env_id="E")
        runs.append(Run.open(run.path, "train-rs"))
    [row] = tables.score(runs, 0)[2:]
    told = "24.9, 24.9 | 24.9 % | 3, 3 | collect_coal 60.0, wake_up 10.0 |"
    assert row == f"| `ppo --network residual` | 2 | {told}"
    assert "| 9.0, 9.0 |" in tables.score(runs, 5)[2]
    with pytest.raises(InputError, match="records no achievements"):
        tables.score([trained(tmp_path, 1, [(0, 0.1)])], 0)


def test_a_run_without_evaluations_is_refused(tmp_path: Path):
    run = trained(tmp_path, 1, [])
    with pytest.raises(InputError, match="no success_rate of an evaluation"):
        tables.times([run], 0.9)
    with pytest.raises(InputError, match="no evaluation in conditions"):
        tables.conditions([run])


def test_goals_of_each_entry_stand_beside_what_was_achieved(tmp_path: Path):
    def evaluated(entry: str, seed: int, achievements: float, **of_goals: object) -> Run:
        train = Run.create(tmp_path / f"{entry}-s{seed}", stage="train-rs", config={"seed": seed})
        train.finish([], **({"goals": of_goals} if of_goals else {}))
        run = Run.create(tmp_path / f"eval-{entry}-s{seed}", stage="evaluate", config={})
        names = ("make_wood_pickaxe", "make_wood_sword", "collect_stone", "collect_drink")
        unlocked = dict(zip(names, (0.5, 0.25, 0.0, 1.0), strict=True))
        modes = {"unlocked": unlocked, "achievements": {"mean": achievements}, "length": {"mean": 200.0}}
        run.finish([], policy=str(train.path), modes={"sampled": modes})
        return Run.open(run.path, "evaluate")

    told = {"quality": {"suggested": {"good": 0.6, "bad_timing": 0.4}}, "goal_auc": {"value": 0.9}}
    runs = [evaluated("asked", seed, 5.0 + seed, **told) for seed in (1, 2)]
    runs += [evaluated("alone", 1, 5.0), evaluated("alone", 2, 5.0)]
    rows = tables.goals(runs, "alone")[2:]
    assert rows[0] == "| asked | 2 | 60 % | 40 % | 0.90 | 6.50 ± 6.35 | 1.50 ± 6.35 | 200 | 50 % | 25 % | 0 % | 100 % |"
    assert rows[1] == "| alone | 2 | – | – | – | 5.00 | – | 200 | 50 % | 25 % | 0 % | 100 % |"
    with pytest.raises(InputError, match="No run is of the entry nobody; name one of asked, alone"):
        tables.goals(runs, "nobody")
    for name, said in (("other/eval-asked-s1", "are of one entry and seed"), ("mine", "has no name of a study's run")):
        shutil.copytree(runs[0].path, tmp_path / name)  # as of another section, or named otherwise
        with pytest.raises(InputError, match=said):
            tables.goals([*runs, Run.open(tmp_path / name)], "")
