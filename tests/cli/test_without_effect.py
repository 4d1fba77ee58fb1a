"""Flags without effect are refused on the command line, and only there: studies share settings between methods."""

import importlib
import shlex
from pathlib import Path

import pytest

from bkrl.cli.main import run_command
from bkrl.core.flags import changed, without_effect
from bkrl.inspect.report import doubts
from bkrl.labelers.config import LabelConfig
from bkrl.methods import TrainRsConfig
from bkrl.rewards.upstream import DEFECTS
from bkrl.runs.record import Run
from bkrl.studies.executors import shell
from bkrl.studies.study import plan

STUDY = {
    "world": [
        {
            "name": "w",
            "algs": ["ppo", "rnd", "bk-code", "bk-pref"],
            "seeds": [1],
            "train_rm": {"epochs": 7, "min_agreement": 0.6},
            "train_rs": {"int_coef": 0.3, "shaping_coef": 0.5},
        }
    ]
}


def labels(path: Path, variant: str) -> Path:
    data = Run.create(path / "data", stage="collect", config={})
    data.finish([])
    run = Run.create(
        path / variant,
        stage="label",
        config=LabelConfig(data.path, variant=variant),  # type: ignore[arg-type]
        inputs={"dataset": data.path},
    )
    run.finish([], variant=variant)
    return run.path


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("train-rs --shaping advice", "bk-own, bk-evolve, glam or glam-published;"),
        ("train-rs --shaping-shift 1 --advice-coef 1", "--shaping-shift and --advice-coef have no effect here, only"),
        ("train-rs --int-coef 0.1", "only with --alg rnd, noveld, icm, apt, deir, pqn or dqn;"),
        ("train-rs --alg rnd --shaping-until 9", "--shaping-until has no effect here, only with --alg bk-code"),
        ("train-rs --alg bk-code --potential p --advice-coef 2", "only with --shaping advice, pbrs+advice, start or"),
        ("train-rs --alg bk-code --potential p --shaping pbim --shaping-until 9", "decay, progress or progress+start;"),
        ("train-rs --alg bk-code --potential p --shaping advice --shaping-coef 2", "every --shaping but advice"),
        ("train-rs --alg bk-code --potential p --compat b2 --shaping-shift 1", "only with training without --compat"),
        ("collect --int-coef 0 --ext-coef 1 --int-gamma 0.9", "--int-gamma has no effect here, only with an"),
        ("label d --variant code --length 3", "--length has no effect here, only with --variant pref or goal"),
        ("label d --llm random --votes 3", "--votes has no effect here, only with an --llm that is asked"),
        ("label d --llm local:x --temperature 1", "--temperature has no effect here, only with --ask open"),
        ("label d --llm gguf:x --votes 3", "--votes has no effect here, only with --ask open, or an --llm that may"),
        ("label d --llm equal --variant code --num 3", "--num has no effect here, only with --variant pref or goal, "),
        ("label d --llm equal --variant code --calibrate rules", "--calibrate has no effect here, only with --ask cl"),
        ("train ellm --suggester local:x --temperature 1", "has no effect here, only with --goal-ask open"),
        ("evolve d --train-shaping-coef 2", "only with a --train-shaping other than advice; leave it out"),
        ("play sample:qwen --policy p --seed 3", "--policy and --seed have no effect here, only with an env to play;"),
        ("play Crafter-Text-EatCow --gamma 0.9", "--gamma has no effect here, only with --potential;"),
        ("serve openenv --env Crafter-Text-EatCow --gamma 0.9", "--gamma has no effect here, only with --potential;"),
        ("play Toy-Grid --episode 3 --out p", "--episode and --out have no effect here, only with a collect run;"),
        ("sweep smoke --mem 3", "--mem has no effect here, only with --executor slurm"),
        ("sweep smoke --dry-run --report --retry-failed", "--retry-failed and --report have no effect here, only with"),
        ("sweep smoke --executor print --jobs 2 --retry-failed", "--jobs and --retry-failed have no effect here, only"),
        ("train bk-code --potential p --shaping progress --shaping-shift 1", "every --shaping but advice, start, pro"),
        ("train ellm --suggester task --goal-coef 2 --no-see-goals", "--goal-coef and --see-goals have no effect here"),
        ("train ellm --suggester task --goal-success eval", "only with a --suggester other than task"),
        ("train ellm --suggester uniform --goal-pay damped", "only with a --suggester other than uniform and task"),
        ("train rnd --env-coef 0 --reward-scale 10", "--reward-scale has no effect here, only with an --env-coef"),
        ("train rnd --env-coef 0 --gamma 0.9", "--gamma has no effect here, only with an --env-coef"),
        ("collect --gamma 0.9", "--gamma has no effect here, only with an --env-coef (of collect: --ext-coef) above 0"),
        ("train glam --vf-coef 1 --clip-vloss", "--vf-coef and --clip-vloss have no effect here, only with --critic"),
        ("train glam --compat g7 --critic-first 9", "--critic-first has no effect here, only with --critic own, with"),
        ("train ppo --recurrence 16", "--recurrence has no effect here, only with --network recurrent"),
        ("train glam --recurrence 4", "--recurrence has no effect here, only with --network recurrent"),
    ],
)  # fmt: skip
def test_a_flag_without_effect_is_refused_with_what_it_belongs_to(arguments, sentence, refused):
    assert sentence in refused(arguments.split(), 2)


@pytest.mark.parametrize(
    ("variant", "flags", "sentence"),
    [
        ("code", "--epochs 3 --ensemble 2", "--epochs and --ensemble have no effect here, only with preference labels"),
        ("goal", "--min-agreement 0.5", "--min-agreement has no effect here, only with preference labels"),
        ("pref", "--encoder minilm", "--encoder has no effect here, only with goal labels"),
        ("pref", "--control zero --epochs 3", "only with --control none, shuffled or constant"),
    ],
)
def test_train_rm_knows_which_labels_a_flag_is_for(variant, flags, sentence, capsys, tmp_path):
    path, out = labels(tmp_path, variant), tmp_path / "rm"
    assert run_command(["train-rm", str(path), "--out", str(out), *flags.split()]) == 2
    assert sentence in capsys.readouterr().err
    assert not out.exists()
    assert run_command(["train-rm", str(path), "--out", str(out), *flags.split(), "--lenient"]) != 2


@pytest.mark.parametrize("flags", ["--epochs 3", "--encoder hash", "--play-steps 64", "--dataset other"])
def test_a_dataset_in_the_place_of_labels_has_no_flags_of_labels(flags, refused):
    assert f"{flags.split()[0]} has no effect here, only with" in refused(
        ["train-rm", "sample:data-crafter", "--advice", "random", *flags.split()], 2
    )


def test_labels_that_are_not_there_are_what_is_told(capsys, tmp_path):
    assert run_command(["train-rm", str(tmp_path / "none"), "--epochs", "3"]) == 3
    assert "There is no run at" in capsys.readouterr().err


def test_only_what_was_given_is_looked_at(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_command(["train-rs", "--env", "Toy-Gird"]) == 2
    assert "Did you mean 'Toy-Grid'" in capsys.readouterr().err
    assert run_command(["train-rs", "--env", "Toy-Gird", "--int-coef", "1", "--lenient"]) == 2
    assert "Did you mean 'Toy-Grid'" in capsys.readouterr().err


@pytest.mark.parametrize(("alg", "variant"), [("ppo", ""), ("rnd", ""), ("bk-code", "code"), ("bk-goal", "goal")])
def test_a_published_defect_that_concerns_an_algorithm_has_an_effect(alg, variant):
    for name in ("upstream", *(name for name, defect in DEFECTS.items() if variant in defect.variants)):
        assert without_effect(TrainRsConfig(alg=alg, compat=name), ["compat"]) == {}


def test_the_printed_commands_of_a_study_with_shared_settings_are_accepted(tmp_path, monkeypatch):
    """They make the runs that the sweep would make, with the same settings, so nothing may be left out."""
    seen = []
    for cell in plan(STUDY, tmp_path / "out").cells:
        stage = importlib.import_module(f"bkrl.stages.{cell.stage}")
        monkeypatch.setattr(stage, "run", lambda config, reporter: seen.append(config))
        assert run_command(shlex.split(shell.command(cell))[1:]) == 0, shell.command(cell)
        assert seen[-1] == cell.config
    trained = [shell.command(cell) for cell in plan(STUDY, tmp_path / "out").training]
    assert ["--int-coef" in command for command in trained] == [False, True, False, False]
    assert ["--shaping-coef" in command for command in trained] == [False, False, True, True]
    assert not any("--lenient" in command for command in trained)
    assert "--lenient" not in shell.command(plan(STUDY, tmp_path / "out").preparation[0])


@pytest.mark.parametrize(
    "arguments",
    [
        "babyai-ppo --recurrence 10",  # whose network has a memory, and no flag
        "ellm-ppo --network recurrent --recurrence 16",
        "rnd --env-coef 0.5 --reward-scale 10",
        "bk-code --potential p --shaping decay --shaping-shift 1",
        "ellm --goal-coef 2 --no-see-goals",
        "rnd --env-coef 0.5 --gamma 0.9",
        "ellm-ppo --gamma 0.9",
        "glam --critic shared --vf-coef 1",
        "glam --init-from RUN --vf-coef 1",  # whose critic may be shared
    ],
)
def test_the_same_flags_are_taken_where_they_have_an_effect(arguments, refused):
    assert "nowhere" in refused(["train", *arguments.split(), "--env", "nowhere"], 2)


def test_a_switch_that_a_method_turns_on_can_be_turned_off(refused):
    assert "nowhere" in refused(["train-rs", "--alg", "babyai-ppo", "--no-clip-vloss", "--env", "nowhere"], 2)


@pytest.mark.parametrize(("suggester", "name"), [("progress:noisy", "bad_timing"), ("openai:m", "temperature")])
def test_what_a_suggester_of_deeds_heeds_has_an_effect(suggester, name):
    assert without_effect(TrainRsConfig(alg="ellm", suggester=suggester), [name]) == {}


def test_goals_have_the_settings_that_do_something():
    """Open questions never vote, novelty pays what is tried, and a potential has no costs: all were taken unsaid."""
    house = {"env": "Housekeep-Symbolic-Task1@control=high", "suggester": "rules"}
    for how, name, works in (
        ({"suggester": "rules", "goal_votes": 9}, "goal_votes", False),
        ({"suggester": "openai:m", "goal_votes": 9}, "goal_votes", False),
        ({"suggester": "openai:m", "goal_ask": "closed", "goal_votes": 9}, "goal_votes", True),
        ({**house, "goal_votes": 9}, "goal_votes", True),
        ({"suggester": "novelty", "goal_success": "eval"}, "goal_success", False),
        ({"suggester": "progress:novelty", "goal_success": "eval"}, "goal_success", False),
        ({"suggester": "uniform", "goal_success": "eval"}, "goal_success", False),
        ({"suggester": "progress:", "goal_success": "eval"}, "goal_success", True),
        ({**house, "goal_costs": "none"}, "goal_costs", True),
        ({**house, "goal_form": "potential", "env_coef": 1.0, "goal_costs": "none"}, "goal_costs", False),
    ):
        config = TrainRsConfig("ellm", **how)
        assert (without_effect(config, [name]) == {}) == works, how
        assert works == (without_effect(config, changed(config)) == {}), how
    for how in ({**house, "goal_form": "potential", "goal_costs": "scaled"}, {"suggester": "novelty"}):
        config = TrainRsConfig("ellm", **how)  # a default is nobody's choice
        assert without_effect(config, changed(config)) == {}


def test_the_labels_that_ship_with_bkrl_say_of_which_variant_they_are(capsys):
    assert run_command(["train-rm", "sample:labels-qwen1.5b-minigrid", "--epochs", "3"]) == 2
    assert "--epochs has no effect here, only with preference labels" in capsys.readouterr().err


def test_an_accuracy_of_nothing_is_no_doubt():
    training = {"accuracy": float("nan"), "accuracy_low": 0.0, "accuracy_high": 1.0}
    assert doubts({"training": training}) == []  # type: ignore[typeddict-item]
    assert len(doubts({"training": training | {"accuracy": 0.5}})) == 1  # type: ignore[typeddict-item]
    of_whole = training | {"accuracy": 0.5, "part": "state"}  # says nothing of the part
    assert doubts({"training": of_whole}) == []  # type: ignore[typeddict-item]
