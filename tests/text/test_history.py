"""The history window against one deque for each env."""

from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bkrl.text.history import NO_ACTION, History


def texts(*captions):
    return np.fromiter(captions, object, len(captions))


def test_a_window_by_hand():
    history = History.begin(2)
    history = history.seen(texts(("a",), ("x", "y")), np.array([True, True])).acted(np.array([4, 5]))
    history = history.seen(texts(("b",), ("z",)), np.array([False, True]))
    assert history.texts.tolist() == [[None, ("a",), ("b",)], [None, None, ("z",)]]
    assert history.actions.tolist() == [[NO_ACTION, 4], [NO_ACTION, NO_ACTION]]


def test_what_was_returned_before_does_not_change():
    first = History.begin(1).seen(texts(("a",)), np.array([True]))
    kept = first.texts.copy(), first.actions.copy()
    first.acted(np.array([2])).seen(texts(("b",)), np.array([False]))
    assert (first.texts == kept[0]).all()
    assert (first.actions == kept[1]).all()


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    num_envs=st.integers(1, 4),
    observations=st.integers(1, 5),
    steps=st.integers(1, 25),
    stop=st.integers(0, 24),
)
def test_it_is_a_deque_for_each_env(seed, num_envs, observations, steps, stop):
    random = np.random.default_rng(seed)
    history = History.begin(num_envs, observations)
    seen = [deque(maxlen=observations) for _ in range(num_envs)]
    done = [deque(maxlen=observations - 1) for _ in range(num_envs)]
    for step in range(steps):
        started = random.random(num_envs) < 0.3 if step else np.ones(num_envs, bool)
        captions = [tuple(f"s{v}" for v in random.integers(0, 99, random.integers(0, 3))) for _ in range(num_envs)]
        history = history.seen(texts(*captions), started)
        for n in range(num_envs):
            if started[n]:
                seen[n].clear()
                done[n].clear()
            seen[n].append(captions[n])
        assert [[one for one in row if one is not None] for row in history.texts.tolist()] == [list(d) for d in seen]
        assert [[a for a in row if a != NO_ACTION] for row in history.actions.tolist()] == [list(d) for d in done]
        actions = random.integers(0, 6, num_envs)
        history = history.acted(actions)
        for n in range(num_envs):
            done[n].append(int(actions[n]))
        if step == stop:
            history = History.of_arrays(history.arrays())


def test_it_comes_back_from_plain_arrays():
    history = History.begin(3, 2).seen(texts(("Tu vois une boîte",), (), ("a", "b")), np.ones(3, bool))
    arrays = history.acted(np.array([0, 1, 2])).arrays()
    assert {name: array.dtype for name, array in arrays.items()} == {"texts": np.uint8, "actions": np.int64}
    again = History.of_arrays(arrays)
    assert again.texts.tolist() == history.texts.tolist()
    assert again.actions.tolist() == [[0], [1], [2]]


@pytest.mark.parametrize("num_envs", [0, 3])
def test_an_empty_window_comes_back(num_envs):
    again = History.of_arrays(History.begin(num_envs).arrays())
    assert again.texts.shape == (num_envs, 3)
    assert again.actions.shape == (num_envs, 2)
