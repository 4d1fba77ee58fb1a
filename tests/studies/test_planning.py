"""How long a study takes on several machines, reckoned from runs that were measured."""

import pytest

from bkrl.cli.main import run_command
from bkrl.core.files import to_json
from bkrl.runs.record import Run
from bkrl.studies.planning import makespan, outlook
from bkrl.studies.study import load_study, plan
from tests.studies.toy_study import toy


def test_cells_begin_when_what_they_need_has_ended_and_a_slot_is_free():
    seconds = [4.0, 1.0, 1.0, 2.0]
    nothing = [[], [], [], []]
    assert makespan(seconds, nothing, 1) == 8
    assert makespan(seconds, nothing, 2) == 4
    assert makespan(seconds, nothing, 64) == 4
    assert makespan(seconds, [[], [0], [0], [1, 2]], 64) == 7
    assert makespan(seconds, [[], [0], [0, 0], [1, 2]], 1) == 8
    assert makespan([], [], 8) == 0


def finished(folder, stage, settings, seconds):
    run = Run.create(folder, stage=stage, config=settings)
    if seconds:
        run.log(0, **{"time/env": seconds / 4, "time/sps": 1e9})
        run.log(100, **{"time/update": 3 * seconds / 4})
    run.finish([])


def test_times_are_those_of_the_runs_that_are_most_alike(tmp_path, capsys):
    study = load_study(str(toy(tmp_path)), tmp_path / "out")
    made, out = tmp_path / "made", tmp_path / "out"
    assert outlook(study.cells, out, made, 2) == ""
    finished(made / "chain" / "a", "train-rs", {"alg": "ppo", "steps": 1024}, 1000)
    finished(made / "other" / "b", "train-rs", {"alg": "bk-pref", "steps": 1024}, 9000)
    finished(made / "chain" / "c", "collect", {"steps": 128}, 25)
    finished(made / "chain" / "d", "evaluate", {"episodes": 2}, 0)
    # a run that was interrupted has no time yet, though its checkpoint has a manifest
    Run.create(made / "chain" / "e", stage="train-rs", config={"alg": "ppo", "steps": 1024}).close()
    finished(checkpoint := made / "chain" / "e" / "checkpoints" / "step-000000000512", "train-rs", {}, 0)
    (checkpoint / "config.json").unlink()
    (made / "sweep").mkdir()
    (made / "sweep" / "state.json").write_text(to_json({"seconds": {"chain/d": 50.0}}))
    # data 100 s, then ppo 4,000 s and bk-pref as long (this section is more alike), then 100 s of each evaluation
    said = outlook(study.cells, out, made, 2)
    assert "70 min on 1, 70 min on 8, 70 min on 64" in said
    assert said.endswith("; not measured, and left out: label, train-rm.")
    assert "2.3 h on 1, 70 min on 8" in outlook(study.cells, out, made, 1)
    assert run_command(["sweep", str(tmp_path / "toy.toml"), "--dry-run", "--measured", str(made), "--jobs", "1"]) == 0
    assert "2.3 h on 1" in capsys.readouterr().err
    capsys.readouterr()
    assert run_command(["sweep", str(tmp_path / "toy.toml"), "--dry-run", "--measured", str(tmp_path / "none")]) == 3
    assert capsys.readouterr().out == ""  # refused before anything is printed


def test_kinds_of_labels_are_measured_apart_and_by_how_many_are_asked(tmp_path):
    label = {"pref": {"num": 3000}, "code": {"num": 0}}
    world = {"name": "w", "seeds": [1], "variants": ["pref", "code"], "algs": ["ppo"], "label": label}
    made, cells = tmp_path / "made", plan({"world": [world]}, tmp_path).cells
    finished(made / "w" / "a", "label", {"variant": "pref", "num": 0}, 1000)  # 5,000 pairs
    finished(made / "w" / "b", "label", {"variant": "code", "num": 5}, 60)
    assert outlook(cells, tmp_path, made, 1).startswith(f"As fast as the runs in {made}, with 1 cells at once")
    assert " 11 min on 1" in outlook(cells, tmp_path, made, 1)


def test_what_a_stage_records_is_how_it_is_measured(tmp_path):
    """A model is made by the stage lm-make and recorded as lm; a bot plays episodes, and steps say nothing of it."""
    world = {"name": "w", "seeds": [1], "algs": ["ppo"], "collect": {"explorer": "bot", "episodes": 600}}
    cells = plan({"world": [world | {"models": [{"name": "P0"}]}]}, tmp_path).cells[:2]
    made = tmp_path / "made"
    finished(made / "w" / "a", "collect", {"explorer": "random", "episodes": 60, "steps": 500_000}, 30)
    finished(made / "w" / "b", "lm", {"steps": 9}, 100)
    assert outlook(cells, tmp_path, made, 1).endswith("7 min on 1, 7 min on 8, 7 min on 64.")
    rnd = plan({"world": [world | {"collect": {"steps": 1000}}]}, tmp_path).cells[:1]
    assert outlook(rnd, tmp_path, made, 1).endswith("; not measured, and left out: collect.")


def test_a_run_that_was_stopped_took_longer_than_its_rest(tmp_path):
    cells = plan({"world": [{"name": "w", "seeds": [1], "algs": ["ppo"]}]}, tmp_path).training
    made = tmp_path / "made"
    finished(made / "w" / "a", "train-rs", {"alg": "ppo", "steps": cells[0].steps}, 3600)
    (made / "sweep").mkdir()
    (made / "sweep" / "state.json").write_text(to_json({"seconds": {"w/a": 4.0}}))
    assert " 60 min on 1" in outlook(cells, tmp_path, made, 1)


def test_times_that_are_damaged_are_named_in_a_sentence(tmp_path, capsys):
    (tmp_path / "made" / "sweep").mkdir(parents=True)
    (tmp_path / "made" / "sweep" / "state.json").write_text('{"seconds": 3}')
    assert run_command(["sweep", str(toy(tmp_path)), "--dry-run", "--measured", str(tmp_path / "made")]) == 3
    assert "state.json is damaged" in capsys.readouterr().err


def test_a_measure_without_a_plan_is_refused(tmp_path, capsys):
    assert run_command(["sweep", str(toy(tmp_path)), "--measured", str(tmp_path)]) == 2
    assert "--dry-run" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["laptop", "hard"])
def test_every_cell_of_a_shipped_study_has_its_place(name, tmp_path):
    study = load_study(name, tmp_path / "out")
    finished(tmp_path / "made" / "babyai" / "a", "train-rs", {"alg": "ppo", "steps": 1000}, 1)
    assert " on 64; " in outlook(study.cells, tmp_path / "out", tmp_path / "made", 2)
