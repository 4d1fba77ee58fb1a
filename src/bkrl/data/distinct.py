"""Windows whose views are numbered, each distinct view once.

A rollout of T steps shows about T views a world, but its windows repeat each of them H + 1 times.  Numbering the views
first means that a view is embedded, captioned or copied once, and that two windows are compared by a few numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bkrl.data.repeats import distinct_rows
from bkrl.data.windows import Rollout, Windows


@dataclass(frozen=True)
class NumberedWindows:
    """B windows as numbers of M distinct views.

    Attributes:
        views: (M, *obs_shape) uint8, distinct.
        index: (B, H+1) which view stands where (an all-zero view where not valid).
        actions: (B, H) int64.
        valid: (B, H+1) bool.
    """

    views: NDArray[np.uint8]
    index: NDArray[np.int64]
    actions: NDArray[np.int64]
    valid: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.index)

    def distinct(self) -> tuple[NumberedWindows, NDArray[np.int64]]:
        """The distinct windows, and for each of the B its place among them."""
        key = np.concatenate([self.index, self.actions, self.valid], axis=1, dtype=np.int32)
        first, inverse = distinct_rows(key)
        return self[first], inverse

    def __getitem__(self, rows: Any) -> NumberedWindows:
        """Some of the windows, all of the views."""
        return NumberedWindows(self.views, self.index[rows], self.actions[rows], self.valid[rows])

    def windows(self) -> Windows:
        """The same as plain windows."""
        return Windows(self.views[self.index], self.actions, self.valid)


def number(windows: Windows) -> NumberedWindows:
    """Number the views of plain windows."""
    count, rows = windows.valid.shape
    views = windows.observations.reshape(count * rows, *windows.observations.shape[2:])
    first, inverse = distinct_rows(views)
    return NumberedWindows(views[first], inverse.reshape(count, rows), windows.actions, windows.valid)


def number_rollout(rollout: Rollout, horizon: int, first: int = 0) -> NumberedWindows:
    """The windows at rows `first`..T of every world, in (row, world) order, and then those of the final observations.

    Equal to `rollout.windows(horizon, first)` followed by `rollout.final_windows(horizon)`, without copying a history.
    """
    steps, envs, kept = rollout.num_steps, rollout.num_envs, rollout.horizon
    if horizon > kept:
        raise ValueError(f"the rollout keeps {kept} rows of history, {horizon} were asked for")
    shape = rollout.observations.shape[2:]
    base = kept - horizon
    rows = rollout.observations[base:].reshape(-1, *shape)
    blank = np.zeros((1, *shape), np.uint8)
    everything = np.concatenate([rows, rollout.final_observations.reshape(-1, *shape), blank])
    chosen, numbers = distinct_rows(everything)
    offsets = np.arange(-horizon, 1)
    t, n = np.divmod(np.arange(first * envs, (steps + 1) * envs), envs)
    valid = rollout.ages[t, n][:, None] >= -offsets
    place = np.where(valid, (horizon + t[:, None] + offsets) * envs + n[:, None], len(everything) - 1)
    past = np.where(valid[:, :-1], t[:, None] + offsets[:-1] + kept, 0)
    actions = np.where(valid[:, :-1], rollout.actions[past, n[:, None]], 0)
    if len(rollout.final_index):
        t, n = np.divmod(rollout.final_index, envs)
        # one action further on: what was the present is the last of the past
        was = rollout.ages[t, n][:, None] >= -offsets[1:]
        before = np.where(was, (horizon + t[:, None] + offsets[1:]) * envs + n[:, None], len(everything) - 1)
        last = len(rows) + np.arange(len(t))[:, None]
        place = np.concatenate([place, np.concatenate([before, last], 1)])
        past = np.where(was, t[:, None] + offsets[1:] + kept, 0)
        actions = np.concatenate([actions, np.where(was, rollout.actions[past, n[:, None]], 0)])
        valid = np.concatenate([valid, np.concatenate([was, np.ones((len(t), 1), bool)], 1)])
    return NumberedWindows(everything[chosen], numbers[place], actions, valid)
