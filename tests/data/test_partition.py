"""The split of episodes: exact shares, by the id alone, in every corner of a collection."""

from __future__ import annotations

import numpy as np

from bkrl.data.partition import TEST, TRAIN, VALIDATION, partition


def test_every_ten_episodes_give_eight_one_and_one() -> None:
    parts = partition(np.arange(1000)).reshape(100, 10)
    for part, count in ((TRAIN, 8), (VALIDATION, 1), (TEST, 1)):
        assert ((parts == part).sum(axis=1) == count).all()
    places = np.bincount(np.nonzero(parts == TEST)[1], minlength=10)
    assert places.min() > 0, "no fixed place inside the ten"


def test_an_episode_is_where_it_is_whatever_else_is_asked() -> None:
    everything = partition(np.arange(500))
    some = np.array([[499, 3], [3, 77]])
    assert (partition(some) == everything[some]).all()
    assert partition(np.array([], np.int64)).shape == (0,)
    assert (partition(np.arange(500), seed=1) != everything).any()
