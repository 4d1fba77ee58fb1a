"""Quality on a dataset: ordering of segments, sensitivity, disagreement, courses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bkrl.data.dataset import Dataset
from bkrl.data.windows import Reads, Windows
from bkrl.data.writer import DatasetWriter
from bkrl.inspect import quality
from bkrl.inspect.quality import SEGMENT, courses, disagreement, foresight, segments, sensitivity
from bkrl.runs.record import Run
from bkrl.stages.inspect import names_of
from tests.experience import Config


class Of:
    """Φ as a function of windows."""

    def __init__(self, function, horizon: int = 2) -> None:
        self.function, self.reads = function, Reads(horizon)

    def __call__(self, windows: Windows) -> np.ndarray:
        return np.asarray(self.function(windows), np.float32)


def place(windows: Windows) -> np.ndarray:
    return windows.observations[:, -1, 0] / 255.0 - 1.0


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Dataset:
    """Twelve episodes: the even ones climb to 200 and are paid, the odd ones wander low."""
    run = Run.create(tmp_path_factory.mktemp("quality") / "data", stage="collect", config=Config())
    writer = DatasetWriter(run, env_id="Toy-Grid", obs_shape=(1,), action_names=("a", "b"))
    rng = np.random.default_rng(0)
    for episode in range(12):
        solved, length = episode % 2 == 0, 20 + episode
        views = np.linspace(0, 200, length + 1) if solved else rng.integers(0, 60, length + 1)
        rewards = np.zeros(length, np.float32)
        rewards[-1] = float(solved)
        writer.add_episode(
            views.astype(np.uint8)[:, None], rng.integers(0, 2, length), rewards,
            [f"You are at {int(view)}." for view in views], mission="", terminated=solved, truncated=not solved,
            success=solved, seed=0, checkpoint_step=0,
        )  # fmt: skip
    writer.close()
    run.finish(writer.outputs)
    return Dataset.open(run.path)


def test_segments_before_success_lie_above_failed_ones(dataset):
    found = segments(Of(place), dataset)
    assert (found["solved"], found["failed"]) == (6, 6)
    assert found["above"] == found["low"] == found["high"] == 1.0
    assert segments(Of(lambda windows: -place(windows)), dataset)["above"] == 0.0
    even = segments(Of(lambda windows: np.zeros(len(windows))), dataset)
    assert even["above"] == 0.5


def test_the_terminal_moment_does_not_count(dataset):
    # high only where the episode has just ended in success
    assert segments(Of(lambda windows: windows.observations[:, -1, 0] == 200), dataset)["above"] == 0.5


def test_too_few_episodes_are_no_number(dataset, monkeypatch):
    monkeypatch.setattr("bkrl.inspect.quality.SEGMENT", 30)
    assert segments(Of(place), dataset)["above"] is None
    assert SEGMENT == 10


def test_foresight_is_correlation_with_what_followed(dataset):
    assert foresight(Of(place), dataset) > 0.3
    assert foresight(Of(place), dataset) == -foresight(Of(lambda windows: -place(windows)), dataset)


@pytest.mark.parametrize(
    ("function", "parts"),
    [
        (place, {"present"}),
        (lambda windows: windows.observations[:, 0, 0] / 255.0, {"past"}),
        (lambda windows: windows.actions.sum(1) * 1.0, {"actions"}),
        (lambda windows: windows.valid.sum(1) * 1.0, set()),
    ],
)
def test_sensitivity_names_what_is_looked_at(dataset, function, parts):
    found = sensitivity(Of(function), dataset)
    assert {name for name, one in found.items() if one["changed"] > 0} == parts
    assert all((one["mean"] > 0) == (one["changed"] > 0) for one in found.values())


def test_disagreement_is_a_matrix_and_windows_in_words(dataset):
    kinds = {"a": Of(place), "b": Of(lambda windows: -place(windows), 4), "flat": Of(lambda w: np.zeros(len(w)))}
    found = disagreement(kinds, dataset, shown=3)
    a, b, flat = found["matrix"]
    assert (a[0], b[1]) == (pytest.approx(1), pytest.approx(1))
    assert a[1] == b[0] == pytest.approx(-1)
    assert flat == [None] * 3
    assert len(found["windows"]) == 3
    assert len({window["episode"] for window in found["windows"]}) == 3
    for window in found["windows"]:
        assert set(window["between"]) == {"a", "b"}
        assert abs(window["places"]["a"] - window["places"]["b"]) > 0.5
        assert len(window["captions"]) == len(window["actions"]) + 1 <= 5


def test_whole_courses_are_of_early_and_of_late_episodes(dataset, monkeypatch):
    monkeypatch.setattr(quality, "_COURSES", 3)
    found = quality._whole_courses(Of(place), dataset, np.arange(12))
    assert [course.episode for course in found] == [0, 5, 11]
    assert [len(course.phi) for course in found] == [21, 26, 32]
    uneven = [np.arange(one + 2.0, dtype=np.float32) * one for one in (0, 5, 11)]
    assert quality.step_change(uneven) == pytest.approx(16 / 3)  # of each episode alike, however long


def test_courses_show_one_episode_of_each_kind(dataset):
    solved, failed = courses(Of(place), dataset)
    assert (solved.kind, failed.kind) == ("solved", "not solved")
    assert dataset.success[solved.episode]
    assert not dataset.success[failed.episode]
    np.testing.assert_allclose(solved.phi, dataset.observations[solved.rows, 0] / 255.0 - 1.0, atol=1e-6)
    assert len(courses(Of(place), dataset, longest=7)[0].phi) == 8


def test_each_potential_of_a_comparison_has_a_name_of_its_own():
    """x/y/phi and x-y/phi were both called x-y-phi: one took the other's place."""
    paths = [Path("x/y/phi"), Path("x-y/phi"), Path("z/phi")]
    assert len(set(names_of(paths))) == 3
    assert names_of(paths[:1]) == ["phi"]
