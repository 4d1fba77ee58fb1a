"""A few episodes of a dataset, or all of several, are a dataset: byte for byte what they were."""

import errno
from importlib.util import find_spec

import numpy as np
import pytest

import bkrl.data.writer as writer_module
from bkrl.cli.main import run_command
from bkrl.core.errors import InputError, RunFailed, UsageError
from bkrl.core.reporter import Reporter
from bkrl.data.check import validate
from bkrl.data.dataset import Dataset
from bkrl.data.derive import merge, subset
from bkrl.data.writer import DatasetWriter
from bkrl.report.costs import costs
from bkrl.report.tracing import lines, trace
from bkrl.runs.provenance import follow
from bkrl.runs.record import Run
from tests.experience import Config, write_dataset, write_env


def test_episodes_are_copied_whole_and_half_of_them_are_solved(tmp_path):
    write_dataset(tmp_path / "all", lengths=(3, 1, 5, 4, 2))  # episode 0 alone is solved
    made = subset(tmp_path / "all", tmp_path / "some", 2)
    assert made.facts["subset_of"] == "all"
    whole, some = Dataset.open(tmp_path / "all"), Dataset.open(tmp_path / "some")
    assert some.success.tolist() == [True, False]
    validate(tmp_path / "some")
    for episode, was in enumerate([0, 1]):
        first, last = some.first_row[episode], whole.first_row[was]
        rows, old = np.arange(some.lengths[episode] + 1) + first, np.arange(whole.lengths[was] + 1) + last
        for name in ("observations", "actions", "rewards", "ages"):
            np.testing.assert_array_equal(getattr(some, name)[rows], getattr(whole, name)[old])
        assert [some.caption(row) for row in rows] == [whole.caption(row) for row in old]
        assert some.missions[episode] == whole.missions[was]
    assert some.checkpoint_step.tolist() == whole.checkpoint_step[[0, 1]].tolist()
    assert subset(tmp_path / "all", tmp_path / "some", 2).complete


@pytest.mark.parametrize(
    ("problem", "kept"),
    [
        (InputError("It is damaged."), False),
        (RuntimeError("a bug"), False),
        (OSError(errno.EIO, "a broken disk"), False),
        (OSError(errno.ENOSPC, "a full disk"), True),
    ],
)
def test_a_copy_that_ends_is_gone_on_with_where_the_disk_was_full(tmp_path, monkeypatch, problem, kept):
    def recorded(self, numbers):
        raise problem

    write_dataset(tmp_path / "all")
    monkeypatch.setattr(Dataset, "recorded", recorded)
    with pytest.raises(type(problem)):
        subset(tmp_path / "all", tmp_path / "some", 2)
    assert (tmp_path / "some").exists() == kept


def test_explorers_are_named_once_and_those_that_nobody_names_are_not(tmp_path):
    write_dataset(tmp_path / "all")
    data = Dataset.open(tmp_path / "all")
    assert data.explorer == ""
    data.explorers = ["rnd", "", "bot", "rnd"]
    assert data.explorer == "rnd, bot"


def test_too_many_episodes_are_refused(tmp_path):
    write_dataset(tmp_path / "all")
    with pytest.raises(UsageError, match="has 3 episodes"):
        subset(tmp_path / "all", tmp_path / "some", 4)
    assert not (tmp_path / "some").exists()


@pytest.mark.parametrize(
    ("solved", "wanted", "kept"),
    [
        ((True, True, True, False), 3, [True, True, False]),  # where too few have failed, more solved ones
        ((True, True), 1, [True]),
        ((False, False), 2, [False, False]),
        ((True, False), 1, [False]),
    ],
)
def test_there_are_as_many_episodes_as_were_asked_for(tmp_path, solved, wanted, kept):
    run = Run.create(tmp_path / "all", stage="collect", config=Config())
    writer = DatasetWriter(run, env_id="Toy", obs_shape=(1,), action_names=("a",))
    for number, success in enumerate(solved):
        writer.add_episode(
            np.full((2, 1), number, np.uint8), np.zeros(1, int), np.zeros(1), ["", ""],
            mission="", terminated=True, truncated=False, success=success, seed=number, checkpoint_step=0,
        )  # fmt: skip
    writer.close()
    run.finish(writer.outputs)
    subset(tmp_path / "all", tmp_path / "some", wanted)
    some = Dataset.open(tmp_path / "some")
    assert some.success.tolist() == kept
    taken = some.observations[some.first_row, 0].tolist()
    assert len(set(taken)) == wanted
    assert some.episodes.column("seed").to_pylist() == taken


def write(path, episodes, info=None, shape=(1,), actions=("a", "b"), config=None, stage="collect", facts=None):
    """A dataset of episodes given as (seed, what is seen): as many moments as bytes, the last of them the end."""
    run = Run.create(path, stage=stage, config=config or Config())
    info = {"family": "toy", "rules": "Its own.", **(info or {})}
    writer = DatasetWriter(run, env_id="Toy", obs_shape=shape, action_names=actions, info=info)
    for seed, seen in episodes:
        views = np.frombuffer(seen, np.uint8)
        writer.add_episode(
            np.broadcast_to(views.reshape(-1, *[1] * len(shape)), (len(seen), *shape)),
            views[1:] % len(actions),
            views[1:] / 4,
            [f"sees {view}" for view in views],
            mission=f"go {seed}", terminated=seen[-1] > 9, truncated=seen[-1] < 10, success=seen[-1] > 9, seed=seed,
            checkpoint_step=len(seen),
        )  # fmt: skip
    writer.close()
    run.finish(writer.outputs, **(facts or {}))
    return path


ONE, TWO, THREE = [(5, b"\1\2\3"), (6, b"\4\20")], [(5, b"\1\2\4"), (8, b"\7\7\7\30")], [(9, b"\1\2")]


@pytest.mark.parametrize("part_bytes", [1, pytest.param(20, marks=pytest.mark.slow), 10**6])
def test_merged_datasets_are_what_one_writer_would_have_written(tmp_path, monkeypatch, part_bytes):
    one, two = write(tmp_path / "one", ONE), write(tmp_path / "two", TWO)
    monkeypatch.setattr(writer_module, "PART_BYTES", part_bytes)
    three, whole = write(tmp_path / "three", THREE), write(tmp_path / "whole", ONE + TWO + THREE)
    with monkeypatch.context() as patched:
        patched.setattr(Dataset, "_steps", property(lambda self: pytest.fail("a whole dataset was read into memory")))
        made = merge([one, two, three], tmp_path / "made", Reporter())
        nested = merge([merge([one, two], tmp_path / "pair").path, three], tmp_path / "nested")
    names = [name for name in made.manifest["outputs"] if name != "info.json"]
    assert names
    for name in [*names, "info.json"]:
        assert made.file(name).read_bytes() == nested.file(name).read_bytes() == (whole / name).read_bytes(), name
    assert validate(made.path)["episodes"] == 5
    assert Dataset.open(made.path).episodes.column("seed").to_pylist() == [5, 6, 5, 8, 9]
    assert made.facts["merged"] == ["one", "two", "three"]
    assert (made.facts["recorded_episodes"], made.facts["recorded_steps"]) == (5, 9)
    assert made.facts["success_rate"] == pytest.approx(0.4)
    assert merge([one, two, three], tmp_path / "made").complete


def test_a_merge_that_was_cut_short_continues(tmp_path, monkeypatch):
    monkeypatch.setattr(writer_module, "PART_BYTES", 1)
    one, two, whole = (write(tmp_path / f"{len(e)}", e) for e in (ONE + THREE, TWO, ONE + THREE + TWO))
    with monkeypatch.context() as patched:

        def full(self):
            raise RunFailed("The disk is full.")

        patched.setattr(DatasetWriter, "close", full)
        with pytest.raises(RunFailed):
            merge([one, two], tmp_path / "made")
    assert list((tmp_path / "made" / "steps").iterdir())
    with pytest.raises(InputError, match="unfinished"):
        Dataset.open(tmp_path / "made")
    with pytest.raises(UsageError, match="differs in .*; choose another --out.$"):  # there is no --fresh
        merge([two, one], tmp_path / "made")
    made = merge([one, two], tmp_path / "made")
    assert {name: o["sha256"] for name, o in made.manifest["outputs"].items()} == {
        name: o["sha256"] for name, o in Run.open(whole).manifest["outputs"].items()
    }


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        ({"info": {"family": "babyai"}}, "the family of envs"),
        ({"info": {"rules": "Others."}}, "the rules"),
        ({"shape": (1, 1)}, "the shape of observations"),
        ({"actions": ("a", "c")}, "the actions"),
        ({"config": {"language": "fr"}}, "the language of captions"),
        ({"stage": "label"}, "a 'collect' run is needed"),
        ({"episodes": ONE}, "hold the same episodes"),
        ({"episodes": [*THREE, ONE[1]]}, "hold the same episodes"),
    ],
)
def test_what_does_not_fit_together_is_refused_before_there_is_a_folder(tmp_path, other, sentence):
    one = write(tmp_path / "one", ONE)
    write(tmp_path / "two", **{"episodes": TWO, **other})
    for given in ([one, tmp_path / "two"], [tmp_path / "two", one]):
        with pytest.raises(InputError, match=sentence):
            merge(given, tmp_path / "made")
    assert not (tmp_path / "made").exists()


def test_a_dataset_is_not_merged_with_itself_nor_with_a_part_of_it(tmp_path, capsys):
    """The refusal did not say which episode is there twice, nor how two datasets come to share none."""
    one = write(tmp_path / "one", ONE + TWO)
    subset(one, tmp_path / "few", 2)
    for other in (one, tmp_path / "few"):
        assert run_command(["data", "merge", str(one), str(other), "--out", str(tmp_path / "made")]) == 3
        said = capsys.readouterr().err
        assert "hold the same episodes, as that of seed" in said
        assert "or collect one with another --seed." in said
    assert run_command(["data", "merge", str(one), "--out", str(tmp_path / "made")]) == 2
    assert "at least two" in capsys.readouterr().err
    assert run_command(["data", "merge", str(one), str(tmp_path / "none"), "--out", str(tmp_path / "made")]) == 3
    assert "There is no run" in capsys.readouterr().err
    assert not (tmp_path / "made").exists()


def test_what_was_explored_is_counted_once_however_it_was_merged(tmp_path):
    one = write(tmp_path / "one", ONE, facts={"steps": 100, "reward_free": True})
    two = write(tmp_path / "two", TWO, facts={"steps": 50, "reward_free": False})
    few = subset(two, tmp_path / "few", 1)
    made = merge([one, few.path], tmp_path / "made")
    assert (made.facts["explorer_steps"], made.facts["reward_free"]) == (150, False)
    chain = follow([made.path])
    assert costs(chain)[0].steps == 150
    said = "\n".join(lines(trace(made.path)))
    for name, run in (("dataset 1", one), ("dataset 2", few.path), ("dataset", two)):
        assert f"{name}: collect {run} " in said
    assert not chain.problems


def test_who_does_not_learn_explored_in_the_steps_that_it_recorded(tmp_path):
    """One dataset of random play or of a bot among several, and nothing was known of the steps of the others."""
    one = write(tmp_path / "one", ONE, facts={"steps": 100, "recorded_steps": 4})
    two = write(tmp_path / "two", TWO, facts={"recorded_steps": 5})
    assert merge([one, two], tmp_path / "made").facts["explorer_steps"] == 105
    assert subset(two, tmp_path / "few", 1).facts["explorer_steps"] == 5


def test_every_reader_takes_a_merged_dataset(tmp_path, capsys):
    one = write_env(tmp_path / "one", "BabyAI-Text-GoToLocal-Pretraining-S20")
    two = write_env(tmp_path / "two", "BabyAI-Text-GoToLocal-Pretraining-S20", length=14)
    data, labels, phi = (str(tmp_path / name) for name in ("data", "labels", "phi"))
    for command in (
        ["data", "merge", str(one), str(two), "--out", data],
        ["data", "validate", data],
        ["data", "subset", data, "--episodes", "5", "--out", str(tmp_path / "few")],
        ["label", data, "--num", "30", "--out", labels, "--cache", str(tmp_path / "cache")],
        ["label", "view", labels],
        ["train-rm", labels, "--epochs", "1", "--out", phi],
    ):
        assert run_command(command) == 0, capsys.readouterr().err
    if find_spec("minari"):
        assert run_command(["data", "export", data, "--out", str(tmp_path / "minari-v0"), "--json"]) == 0
