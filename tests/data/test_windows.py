"""Windows of rollouts and datasets against a one-at-a-time reading of the definition."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bkrl.data.windows import Rollout, Windows, gather
from tests.potentials.rollouts import history, rollout_of


def synthetic_rollout(rng: np.random.Generator, horizon: int, steps: int, num_envs: int, end_rate: float) -> tuple:
    """A rollout cut from longer random episodes, and for every env the list of its (obs, action) rows."""
    total = horizon + steps
    obs = rng.integers(1, 255, (total + 1, num_envs, 2)).astype(np.uint8)
    actions = rng.integers(0, 7, (total, num_envs)).astype(np.int64)
    ended = rng.random((total, num_envs)) < end_rate
    ages_all = np.zeros((total + 1, num_envs), np.int32)
    for t in range(total):
        ages_all[t + 1] = np.where(ended[t], 0, ages_all[t] + 1)
    cut = ended[horizon:]
    index = np.flatnonzero(cut.ravel())
    final = rng.integers(1, 255, (len(index), 2)).astype(np.uint8)
    truncated = cut & (rng.random(cut.shape) < 0.5)
    rollout = rollout_of(
        horizon,
        obs,
        actions,
        ages_all[horizon:],
        np.zeros((steps, num_envs), np.float32),
        cut & ~truncated,
        truncated,
        index,
        final,
    )
    return rollout, ages_all


def naive(rollout: Rollout, t: int, n: int, h: int, final: np.ndarray | None = None) -> Windows:
    """The window at row t (or, with `final`, the one after action t that ends in the episode's last observation)."""
    rows = [(rollout.views.symbols[t, n], int(rollout.ages[t, n]))]
    observations, actions, valid = [], [], []
    if final is not None:
        observations, actions, valid = [final], [rollout.actions[t, n]], [True]
        observations.insert(0, rows[0][0])
        valid.insert(0, True)
    else:
        observations, valid = [rows[0][0]], [True]
    back = 1
    while len(observations) < h + 1:
        if back <= rollout.ages[t, n]:
            observations.insert(0, history(rollout)[0][len(rollout.past) + t - back, n])
            actions.insert(0, history(rollout)[1][len(rollout.past) + t - back, n])
            valid.insert(0, True)
        else:
            observations.insert(0, np.zeros(2, np.uint8))
            actions.insert(0, 0)
            valid.insert(0, False)
        back += 1
    return Windows.of(
        np.stack(observations[-(h + 1) :])[None], np.array([actions[len(actions) - h :]]), np.array([valid[-(h + 1) :]])
    )


def assert_same(got: Windows, want: Windows) -> None:
    np.testing.assert_array_equal(got.observations, want.observations)
    np.testing.assert_array_equal(got.actions, want.actions)
    np.testing.assert_array_equal(got.valid, want.valid)


@given(st.integers(0, 2**31), st.integers(0, 4), st.integers(1, 7), st.integers(1, 3), st.floats(0, 0.9))
def test_rollout_windows_are_what_the_definition_says(seed, h, steps, num_envs, end_rate):
    rng = np.random.default_rng(seed)
    rollout, _ = synthetic_rollout(rng, h + int(rng.integers(0, 3)), steps, num_envs, end_rate)
    got = rollout.windows(h)
    for t in range(steps + 1):
        for n in range(num_envs):
            assert_same(got[np.array([t * num_envs + n])], naive(rollout, t, n, h))
    finals = rollout.final_windows(h)
    for k, (index, observation) in enumerate(zip(rollout.final_index, rollout.final_views.symbols, strict=True)):
        t, n = divmod(int(index), num_envs)
        assert_same(finals[np.array([k])], naive(rollout, t, n, h, observation))


def test_a_window_never_reaches_across_an_episodes_start():
    ages = np.array([0, 1, 2, 0, 1])
    observations = np.arange(1, 6, dtype=np.uint8)[:, None]
    windows = gather(observations, np.arange(5), ages, np.array([4]), 3)
    assert windows.valid.tolist() == [[False, False, True, True]]
    assert windows.observations[0, :, 0].tolist() == [0, 0, 4, 5]
    assert windows.actions.tolist() == [[0, 0, 3]]


def test_one_env_does_not_see_another():
    rollout, _ = synthetic_rollout(np.random.default_rng(0), 3, 6, 2, 0.3)
    before = rollout.windows(3)
    rollout.views.symbols[:, 1] = rollout.past[:, 1] = 0
    after = rollout.windows(3)
    assert_same(after[np.arange(0, 14, 2)], before[np.arange(0, 14, 2)])


def test_windows_shorten_but_do_not_lengthen():
    windows = Windows.of(np.ones((1, 4, 2), np.uint8), np.array([[1, 2, 3]]), np.ones((1, 4), bool))
    assert windows.last(1).actions.tolist() == [[3]]
    with pytest.raises(ValueError, match="lengthened"):
        windows.last(4)


def test_no_windows_at_all_are_windows_too():
    ages = np.arange(3)
    none = gather(np.zeros((3, 2), np.uint8), np.zeros(3, np.int64), ages, np.zeros(0, np.int64), 2)
    assert (none.observations.shape, none.actions.shape, none.valid.shape) == ((0, 3, 2), (0, 2), (0, 3))
