"""How pairs are drawn: inside one part of the dataset, evenly over checkpoints, episodes and moments."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bkrl.data.dataset import Dataset
from bkrl.data.partition import partition
from bkrl.labelers import preferences
from tests.experience import write_dataset


def test_pairs_stay_inside_one_part_and_cover_everything_evenly(tmp_path: Path) -> None:
    write_dataset(tmp_path / "d", lengths=[12 + number % 9 for number in range(60)], shape=(4,), checkpoints=3)
    dataset = Dataset.open(tmp_path / "d")
    drawn = preferences.draw_pairs(dataset, 3001, 5, seed=2)
    assert len(drawn) == 3001
    assert drawn == preferences.draw_pairs(dataset, 3001, 5, seed=2) != preferences.draw_pairs(dataset, 3001, 5, seed=3)
    episodes = np.array([(pair.a.episode_id, pair.b.episode_id) for pair in drawn])
    parts = partition(episodes)
    assert (parts[:, 0] == parts[:, 1]).all(), "train-rm can use every pair"
    counts = np.bincount(episodes.ravel(), minlength=60)
    assert counts.max() - counts.min() <= 2, "6,002 segments over 60 episodes: 100 each, give or take one"
    index = dataset.checkpoint_step[episodes]
    per_checkpoint = np.bincount(index.ravel())
    assert per_checkpoint.max() - per_checkpoint.min() <= 2
    met = np.zeros((3, 3))
    np.add.at(met, (index[:, 0], index[:, 1]), 1)
    assert chi_square(met.ravel(), len(drawn) / 9) < 26.1, "checkpoints meet independently (8 degrees, p = 0.001)"
    segments = [segment for pair in drawn for segment in (pair.a, pair.b)]
    starts = [segment.start for segment in segments if dataset.lengths[segment.episode_id] == 12]
    assert chi_square(np.bincount(starts, minlength=8), len(starts) / 8) < 24.3, "starts are uniform (7 degrees)"
    assert np.bincount(parts[:, 0]) / len(drawn) == pytest.approx([0.8, 0.1, 0.1], abs=0.001)


def test_more_pairs_are_of_the_same_segments_and_more_and_other_pairs(tmp_path: Path) -> None:
    write_dataset(tmp_path / "d", lengths=[12 + number % 9 for number in range(60)], shape=(4,), checkpoints=3)
    dataset = Dataset.open(tmp_path / "d")
    few, many = (set(preferences.draw_pairs(dataset, count, 5, seed=2)) for count in (30, 100))
    segments = [{segment for pair in pairs for segment in (pair.a, pair.b)} for pairs in (few, many)]
    assert len(segments[0] - segments[1]) <= 1, "the last one makes a pair whole"
    assert len(few & many) < 3


def chi_square(counts: np.ndarray, expected: float) -> float:
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_a_few_pairs_from_a_few_episodes_stay_inside_one_part_too(tmp_path: Path, count: int) -> None:
    write_dataset(tmp_path / "d", lengths=(30, 3, 8, 20, 6, 12, 9, 11), shape=(4,))
    dataset = Dataset.open(tmp_path / "d")
    for seed in range(20):
        drawn = preferences.draw_pairs(dataset, count, 5, seed)
        parts = partition(np.array([(pair.a.episode_id, pair.b.episode_id) for pair in drawn]))
        assert len(drawn) == count
        assert (parts[:, 0] == parts[:, 1]).all()
        assert all(dataset.rows(segment).size == 6 for pair in drawn for segment in (pair.a, pair.b))
