"""Finding distinct rows: exact, also when hashes collide."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bkrl.potentials import distinct
from bkrl.potentials.distinct import distinct_rows, distinct_views
from bkrl.windows import Windows


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**31), st.integers(0, 40), st.integers(1, 20), st.integers(1, 3))
def test_rows_come_back_and_representatives_are_distinct(seed, count, width, levels):
    rows = np.random.default_rng(seed).integers(0, levels, (count, width)).astype(np.uint8)
    first, inverse = distinct_rows(rows)
    np.testing.assert_array_equal(rows[first][inverse], rows)
    assert len({row.tobytes() for row in rows}) == len(first)


def test_colliding_hashes_change_nothing(monkeypatch):
    monkeypatch.setattr(distinct, "_MULTIPLIERS", np.zeros(4096, np.uint64))
    rows = np.random.default_rng(0).integers(0, 3, (50, 4)).astype(np.uint8)
    first, inverse = distinct_rows(rows)
    np.testing.assert_array_equal(rows[first][inverse], rows)
    assert len({row.tobytes() for row in rows}) == len(first)


def test_structured_rows_do_not_collide_by_the_hundred():
    # single bytes at every place of a row: the pattern that a plain weighted sum confuses
    rows = np.zeros((147 * 8, 147), np.uint8)
    rows[np.arange(147 * 8), np.arange(147 * 8) % 147] = 1 + np.arange(147 * 8) // 147
    first, _ = distinct_rows(rows)
    assert len(first) == len(rows)


def test_views_of_windows_are_numbered():
    rng = np.random.default_rng(1)
    windows = Windows(
        rng.integers(0, 2, (30, 4, 3)).astype(np.uint8), np.zeros((30, 3), np.int64), np.ones((30, 4), bool)
    )
    views, index = distinct_views(windows)
    np.testing.assert_array_equal(views[index], windows.observations)
    assert len(views) == 8
