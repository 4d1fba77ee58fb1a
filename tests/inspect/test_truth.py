"""Exact answers: values and goals of recorded episodes, the annotator that gives them, and what they score."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bkrl.cli.main import run_command
from bkrl.core.config import CollectConfig
from bkrl.core.errors import InputError, UsageError
from bkrl.core.reporter import Reporter
from bkrl.data.dataset import Dataset
from bkrl.data.windows import Reads
from bkrl.inspect import truth
from bkrl.inspect.optimal import Explorer, optimal_values
from bkrl.labelers import closed
from bkrl.labelers.config import LabelConfig
from bkrl.labelers.material import SegmentText
from bkrl.labelers.plan import Plan
from bkrl.labelers.tables import labels_of
from bkrl.runs.record import Run
from bkrl.stages import collect, label, train_rm
from tests.labelers.runs import babyai

ENV = "MiniGrid-DoorKey-5x5-v0"


def recorded(path, env=ENV, epsilon=0.5, episodes=18) -> Dataset:
    config = CollectConfig(env=env, explorer="bot", epsilon=epsilon, episodes=episodes, out=path)
    return Dataset.open(collect.run(config, Reporter()).path)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Dataset:
    return recorded(tmp_path_factory.mktemp("truth") / "data")


@pytest.fixture(scope="module")
def known(data) -> truth.Truth:
    return truth.solve(data, range(10), Reporter())


def said(known, data, row) -> set[str]:
    return {goal for goal, yes in zip(known.goals, known.sensible[row], strict=True) if yes}


def test_values_of_an_episode_are_optimal_with_the_whole_time_left(known, data):
    assert np.isnan(known.values[data.first_row[10] :]).all()
    explorer = Explorer(ENV)
    states = explorer.explore(explorer.draw(int(data.episodes.column("seed")[3].as_py())))
    best = optimal_values(states, truth.GAMMA)
    place, first = 0, data.first_row[3]
    for t in range(data.lengths[3]):
        assert known.values[first + t] == best[place]
        place = states.next_state[place, data.actions[first + t]]
    for episode in range(10):
        rows = data.first_row[episode] + np.arange(data.lengths[episode] + 1)
        values = known.values[rows]
        assert data.success[episode]
        assert values[-1] == 1.0 > values[:-1].max()


def test_the_earlier_of_two_moments_is_not_the_better_one_for_that(tmp_path):
    # Nobody who compares two moments is shown how late in its episode each is.
    data = recorded(tmp_path / "wasted", epsilon=1.0, episodes=10)
    values = truth.solve(data, range(10), Reporter()).values
    gain, later = np.subtract.outer(values, values), np.subtract.outer(data.ages, data.ages)
    decided = (np.abs(gain) > 1e-9) & (later != 0)
    assert 0.3 < ((gain > 0) == (later < 0))[decided].mean() < 0.7


def test_goals_are_sensible_while_walking_alone_stands_between(tmp_path):
    data = recorded(tmp_path / "best", epsilon=0.0, episodes=10)
    known = truth.solve(data, range(10), Reporter())
    pick, unlock, goal = "pick up a key", "unlock a door", "go to the goal"
    assert data.memory is not None
    for episode in range(10):
        first, last = data.first_row[episode], data.first_row[episode] + data.lengths[episode]
        for row in range(first, last):
            keys, doors = data.memory[row, 4], data.memory[row, 3]
            now = said(known, data, row)
            assert (pick in now) == (keys == 0)
            assert (unlock in now) == (keys == 1 and doors == 0)
            assert not now & {"pick up a ball", "put a thing down", "explore the room"}
            assert goal not in now or doors == 1
        assert not said(known, data, last)
    worth = dict(zip(known.goals, known.importance, strict=True))
    assert worth[pick] == worth[unlock] == worth[goal] == pytest.approx(1.0)
    assert worth["go to a ball"] == worth["open a box"] == 0.0


def labelled(data, path, variant, llm, **settings):
    run = label.run(LabelConfig(data.path, variant, out=path, llm=llm, **settings), Reporter())
    return run, run.facts["quality"]


def test_the_exact_annotator_is_right(data, tmp_path):
    run, facts = labelled(data, tmp_path / "p", "pref", "exact", num=60)
    assert facts["exact_accuracy"]["rate"] == 1.0
    assert facts["exact_accuracy"]["n"] > 40
    assert all(one["rate"] == 1.0 for one in facts["exact_bins"])
    assert {row["status"] for row in labels_of(run)} <= {"labelled", "identical"}
    _, goals = labelled(data, tmp_path / "g", "goal", "exact", num=30)
    assert goals["exact_auc"]["value"] > 0.98
    assert goals["exact_agreement"]["rate"] > 0.97
    _, openly = labelled(data, tmp_path / "o", "goal", "rules", score="exact", num=30)
    assert openly["exact_recall"]["rate"] > 0.3
    assert "exact_auc" not in openly


def test_segments_that_read_the_same_are_ties_of_points_too(data, tmp_path, monkeypatch):
    """No question is asked of them, and the annotator had answers to two: it ended in a traceback."""
    drawn = closed.pairs_of(Plan.of(LabelConfig(data.path, "pref", num=2), data))
    same = [(number, replace(pair, b=pair.a) if number == 0 else pair) for number, pair in drawn]
    monkeypatch.setattr(closed, "pairs_of", lambda plan: same)
    run, _ = labelled(data, tmp_path / "points", "pref", "exact", compare="points", num=2)
    assert [row["status"] for row in labels_of(run)] == ["identical", "labelled"]


def test_questions_that_read_the_same_have_one_answer_in_either_order(data, tmp_path, monkeypatch):
    """The last one asked spoke for all: other pairs got the opposite of what is true of them, and one whose two sides
    read the same looked like a favourite place, for which tied pairs lost their half.
    """
    drawn = [pair for _, pair in closed.pairs_of(Plan.of(LabelConfig(data.path, "pref", num=60), data))]
    values = truth.solve(data, {one.episode_id for pair in drawn for one in (pair.a, pair.b)}, Reporter()).values
    ends = np.array([[data.rows(one)[-1] for one in (pair.a, pair.b)] for pair in drawn])
    gain = values[ends[:, 0]] - values[ends[:, 1]]
    better, worse = (iter([drawn[n] for n in np.flatnonzero(side)]) for side in (gain > 1e-9, gain < -1e-9))
    one, other, near, far = (SegmentText((f"You are {word}.",) * 2, ("left",)) for word in ("a", "b", "near", "far"))
    before, after = (SegmentText((f"You see {word}.", "You see a wall."), ("left",)) for word in ("a key", "a ball"))
    tied = next(better)
    shown = [
        (next(better), (one, other), 0.5),  # of the two of them each is better once
        (next(worse), (one, other), 0.5),
        (next(better), (near, far), 1.0),
        (next(better), (near, far), 1.0),
        (next(worse), (far, near), 0.0),
        (next(better), (before, after), 0.5),  # a question shows of the first moment less than a segment has
        (replace(tied, b=tied.a), (one, far), 0.5),
    ]
    monkeypatch.setattr(closed, "pairs_of", lambda plan: [*enumerate(pair for pair, _, _ in shown)])
    monkeypatch.setattr(closed, "texts_of", lambda plan, asked: next(two for pair, two, _ in shown if pair == asked))
    run, facts = labelled(data, tmp_path / "alike", "pref", "exact", num=len(shown))
    labels = [row["label"] for row in labels_of(run)]
    assert labels == pytest.approx([label for _, _, label in shown], abs=0.001)
    assert [label for label in labels if 0.01 < label < 0.99] == [0.5] * 4
    assert (facts["exact_accuracy"]["rate"], facts["exact_accuracy"]["n"], facts["inconsistent"]) == (1.0, 3, 0)


@pytest.mark.slow  # a program of the exact annotator is used below; another annotator is scored above
def test_a_program_of_the_exact_annotator_is_right_and_chance_is_not(data, tmp_path):
    _, by_chance = labelled(data, tmp_path / "r", "pref", "random", ask="closed", score="exact", num=60)
    assert by_chance["exact_accuracy"]["low"] < 0.5 < by_chance["exact_accuracy"]["high"]
    _, program = labelled(data, tmp_path / "c", "code", "exact", with_memory=True)
    assert program["subgoal_rho"]["value"] == pytest.approx(1.0)
    assert program["ratings"]["doors_unlocked"] == pytest.approx(9, abs=0.05)


def test_what_is_learnt_is_scored_apart_from_its_labels(data, tmp_path):
    class Known:
        """Φ = the truth, or its opposite."""

        reads = Reads(0)

        def __init__(self, sign: float) -> None:
            self.sign = sign

        def __call__(self, windows):
            return self.sign * exact[self.rows]

    run, _ = labelled(data, tmp_path / "c", "code", "exact", with_memory=True)
    exact = truth.solve(data, range(data.num_episodes), Reporter()).values
    for sign, right in ((1.0, 1.0), (-1.0, 0.0), (0.0, 0.5)):
        potential = Known(sign)
        potential.rows = np.flatnonzero(~np.isnan(exact))
        assert truth.learnt(potential, run, data)["rate"] == pytest.approx(right)
    made = train_rm.run(train_rm.TrainRmConfig(run.path, out=tmp_path / "rm"), Reporter())
    assert 0.5 < made.facts["exact_accuracy"]["low"] < made.facts["exact_accuracy"]["rate"] < 1.0
    silent = train_rm.run(train_rm.TrainRmConfig(run.path, out=tmp_path / "same", control="constant"), Reporter())
    # Φ = 0 was scored, which is chance, so `--trust auto` switched the control off and left the method on
    assert silent.facts["exact_accuracy"]["rate"] == pytest.approx(made.facts["exact_accuracy"]["rate"], abs=0.02)
    plain, _ = labelled(data, tmp_path / "plain", "pref", "rules", num=60)
    assert truth.learnt(Known(1.0), plain, data) is None
    assert "truth.parquet" not in Run.open(plain.path, "label").manifest["outputs"]


def test_what_cannot_be_solved_is_refused_in_one_sentence(data, tmp_path_factory, monkeypatch, refused):
    with pytest.raises(InputError, match="does not follow from its seed"):
        truth.solve(babyai(tmp_path_factory.mktemp("noise") / "data"), range(6), Reporter())
    for env, why in (
        ("Crafter-Text-Reward", "small level"),
        ("MiniGrid-DoorKey-5x5-v0@max_steps=30", "without options"),
        ("MiniGrid-Dynamic-Obstacles-5x5-v0", "moves by itself"),
        ("BabyAI-MixedTrainLocal-v0", "small level"),
    ):
        with pytest.raises(UsageError, match=why):
            truth.check(env)
    monkeypatch.setattr(truth, "MOST", 200)
    with pytest.raises(UsageError, match="more than 200 states"):
        truth.solve(data, range(2), Reporter())
    where = str(data.path)
    assert "closed" in refused(["label", where, "--llm", "exact", "--ask", "open"], 2)
    assert "--ask closed" in refused(["label", where, "--variant", "code", "--score", "exact"], 2)
    assert "overall, progress" in refused(["label", where, "--llm", "exact", "--criteria", "safety", "--num", "10"], 2)


def test_it_is_printed(data, tmp_path, capsys):
    assert run_command(["label", str(data.path), "--llm", "exact", "--num", "20", "--out", str(tmp_path / "p")]) == 0
    printed = capsys.readouterr().out
    for words in ("right by exact values", "seconds", "US dollars", "right where 90 % to 100 % sure"):
        assert words in printed
