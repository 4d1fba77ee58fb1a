"""Finding distinct rows: exact, also when hashes collide."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bkrl.data.distinct import distinct_rows
from bkrl.data.windows import Windows
from tests.potentials.rollouts import random_rollouts


@given(st.integers(0, 2**31), st.integers(0, 40), st.integers(1, 20), st.integers(1, 3))
def test_rows_come_back_and_representatives_are_distinct(seed, count, width, levels):
    rows = np.random.default_rng(seed).integers(0, levels, (count, width)).astype(np.uint8)
    first, inverse = distinct_rows(rows)
    np.testing.assert_array_equal(rows[first][inverse], rows)
    assert len({row.tobytes() for row in rows}) == len(first)


def test_rows_are_numbered_as_they_come():
    first, inverse = distinct_rows(np.array([[7, 7], [3, 1], [7, 7], [0, 0], [3, 1]], np.uint8))
    np.testing.assert_array_equal(first, [0, 1, 3])
    np.testing.assert_array_equal(inverse, [0, 1, 0, 2, 1])
    assert [len(part) for part in distinct_rows(np.zeros((0, 5), np.uint8))] == [0, 0]


def test_rows_of_one_hash_are_told_apart():
    def mixed(word: int) -> int:
        word = word * 0x9E3779B97F4A7C15 % 2**64
        return word ^ word >> 32

    # the second word undoes what the first one did to the hash
    rows = np.array([[word, mixed(word) ^ 12345] for word in range(50)] * 2, np.uint64)
    first, inverse = distinct_rows(rows)
    np.testing.assert_array_equal(first, np.arange(50))
    np.testing.assert_array_equal(inverse, np.tile(np.arange(50), 2))


def test_structured_rows_do_not_collide_by_the_hundred():
    # single bytes at every place of a row: the pattern that a plain weighted sum confuses
    rows = np.zeros((147 * 8, 147), np.uint8)
    rows[np.arange(147 * 8), np.arange(147 * 8) % 147] = 1 + np.arange(147 * 8) // 147
    first, _ = distinct_rows(rows)
    assert len(first) == len(rows)


def test_views_of_windows_are_numbered():
    rng = np.random.default_rng(1)
    windows = Windows.of(
        rng.integers(0, 2, (30, 4, 3)).astype(np.uint8), np.zeros((30, 3), np.int64), np.ones((30, 4), bool)
    )
    numbered = windows.numbered()
    np.testing.assert_array_equal(numbered.observations, windows.observations)
    assert len(numbered.symbols) == 8
    distinct, inverse = numbered.distinct()
    assert len(distinct) == len(np.unique(windows.observations, axis=0)) < len(windows)
    np.testing.assert_array_equal(distinct[inverse].observations, windows.observations)


def test_an_empty_view_is_not_taken_for_a_missing_one():
    windows = Windows.of(
        np.zeros((2, 2, 1), np.uint8), np.zeros((2, 1), np.int64), np.array([[False, True], [True, True]])
    )
    distinct, inverse = windows.numbered().distinct()
    assert len(distinct) == 2
    np.testing.assert_array_equal(distinct[inverse].valid, windows.valid)


@given(
    st.integers(0, 2**31), st.integers(0, 4), st.integers(0, 2), st.integers(1, 7), st.integers(1, 3), st.floats(0, 0.9)
)
def test_a_numbered_rollout_is_its_windows(seed, horizon, more, steps, num_envs, end_rate):
    for rollout in random_rollouts(seed, horizon + more, steps, num_envs, end_rate):
        for first in {0, 1, steps}:
            numbered = rollout.numbered_windows(horizon, first)
            rows, final = rollout.windows(horizon, first), rollout.final_windows(horizon)
            for name in ("observations", "actions", "valid"):
                expected = np.concatenate([getattr(rows, name), getattr(final, name)])
                np.testing.assert_array_equal(getattr(numbered, name), expected)
