"""Rollouts of many worlds, and the windows of recent history that a potential sees.

Φ is a function of a short history h_t = (s_{t-H}, a_{t-H}, …, a_{t-1}, s_t) that never reaches across an
episode's start. Axes are named at allocation: T steps, N worlds, H history, B windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bkrl.data.views import Views

UInt8 = NDArray[np.uint8]
Int64 = NDArray[np.int64]
Bool = NDArray[np.bool_]


@dataclass(frozen=True)
class Windows:
    """A batch of B histories of H actions and H + 1 observations, oldest first.

    Attributes:
        observations: (B, H+1, *obs_shape) uint8, the raw integers the world emits; `[:, -1]` is the current one.
        actions: (B, H) int64; action i was taken at observation i. 0 where that observation is not valid.
        valid: (B, H+1) bool; False for rows before the episode began, whose observations are all 0.
        missions: (B,) objects, the sentence that each episode asks the agent to fulfil; None where nothing reads it.
        memory: (B, M) uint8, what happened in each episode so far (`envs.memory`); None where nothing reads it.
    """

    observations: UInt8
    actions: Int64
    valid: Bool
    missions: NDArray[np.object_] | None = None
    memory: UInt8 | None = None

    def __len__(self) -> int:
        return len(self.observations)

    @property
    def horizon(self) -> int:
        """H, the number of past actions."""
        return self.actions.shape[1]

    def __getitem__(self, index: slice | NDArray[np.integer] | Bool) -> Windows:
        """The windows chosen by a slice, an index array or a mask over the batch."""
        missions = None if self.missions is None else self.missions[index]
        memory = None if self.memory is None else self.memory[index]
        return Windows(self.observations[index], self.actions[index], self.valid[index], missions, memory)

    @staticmethod
    def joined(parts: Sequence[Windows]) -> Windows:
        """The windows of several batches, one after another, without missions."""
        return Windows(
            np.concatenate([part.observations for part in parts]),
            np.concatenate([part.actions for part in parts]),
            np.concatenate([part.valid for part in parts]),
        )

    def last(self, horizon: int) -> Windows:
        """The same moments with fewer past actions."""
        if horizon > self.horizon:
            raise ValueError(f"windows of horizon {self.horizon} cannot be lengthened to {horizon}")
        first = self.horizon - horizon
        views, actions, valid = self.observations[:, first:], self.actions[:, first:], self.valid[:, first:]
        return Windows(views, actions, valid, self.missions, self.memory)


def gather(observations: UInt8, actions: Int64, ages: NDArray[np.integer], rows: Int64, horizon: int) -> Windows:
    """Windows that end at `rows` of a single time-ordered record.

    Args:
        observations: (R, *obs_shape) uint8.
        actions: (R,) int64, the action taken at each row (anything on an episode's last row).
        ages: (R,) how many rows of the same episode stand before each row.
        rows: (B,) the current row of each window.
        horizon: H.
    """
    offsets = np.arange(-horizon, 1)
    index = rows[:, None] + offsets
    valid = ages[rows][:, None] >= -offsets
    index = np.where(valid, index, rows[:, None])
    views = observations[index]
    views[~valid] = 0
    return Windows(views, np.where(valid[:, :-1], actions[index[:, :-1]], 0).astype(np.int64), valid)


@dataclass(frozen=True)
class Transitions:
    """B single steps, as a replay memory holds them.

    Attributes:
        before: the windows that end in what was seen before the action.
        actions: (B,) int64.
        rewards: (B,) float32, the env's own.
        after: the windows that end in what the action led to: in the true last observation where the episode ended.
        terminated: (B,) bool; a time limit is no termination.
    """

    before: Windows
    actions: Int64
    rewards: NDArray[np.float32]
    after: Windows
    terminated: Bool


@dataclass
class Rollout:
    """T steps of N worlds with SAME_STEP autoreset, and the H rows of history before them.

    Attributes:
        horizon: H, rows of history kept before the first step.
        observations: (H+T+1, N, *obs_shape) uint8; row H+t is what world n saw before action t; row H+T is the
            observation the value is bootstrapped from.
        actions: (H+T, N) int64.
        ages: (T+1, N) int32, actions already taken in the running episode at row t (0 at its first observation).
        rewards: (T, N) float32, the env's own reward.
        terminated, truncated: (T, N) bool.
        final_index: (K,) int64, t * N + n of every step that ended an episode, increasing.
        final_observations: (K, *obs_shape) uint8, the true last observation of those episodes.
        views: (T+1, N) rows of what the agent saw, missions and goals too if it wants them; None where nobody acted.
        missions: (T+1, N) objects, the mission of the episode that runs at row t; None where nothing reads them.
        memory, final_memory: (T+1, N, M) and (K, M) uint8, what happened in the episode that runs at row t, and in
            those that ended; None where nothing reads it.
    """

    horizon: int
    observations: UInt8
    actions: Int64
    ages: NDArray[np.int32]
    rewards: NDArray[np.float32]
    terminated: Bool
    truncated: Bool
    final_index: Int64
    final_observations: UInt8
    views: Views | None = None
    missions: NDArray[np.object_] | None = None
    memory: UInt8 | None = None
    final_memory: UInt8 | None = None

    @property
    def num_steps(self) -> int:
        """T."""
        return self.rewards.shape[0]

    @property
    def num_envs(self) -> int:
        """N."""
        return self.rewards.shape[1]

    def windows(self, horizon: int, first: int = 0, last: int | None = None) -> Windows:
        """Windows at rows `first`..`last` (both included, default 0..T) of every world, in (row, world) order."""
        last = self.num_steps if last is None else last
        t, n = np.divmod(np.arange(first * self.num_envs, (last + 1) * self.num_envs), self.num_envs)
        return self._ending_at(t, n, horizon)

    def final_windows(self, horizon: int) -> Windows:
        """The (K,) windows that end in the final observations, in the order of `final_index`."""
        t, n = np.divmod(self.final_index, self.num_envs)
        before = self._ending_at(t, n, max(horizon - 1, 0))
        if horizon == 0:
            finals, valid = self.final_observations[:, None], np.ones((len(t), 1), bool)
            return replace(before, observations=finals, valid=valid, memory=self.final_memory)
        return Windows(
            np.concatenate([before.observations, self.final_observations[:, None]], axis=1),
            np.concatenate([before.actions, self.actions[self.horizon + t, n][:, None]], axis=1),
            np.concatenate([before.valid, np.ones((len(t), 1), bool)], axis=1),
            before.missions,
            self.final_memory,
        )

    def _ending_at(self, t: Int64, n: Int64, horizon: int) -> Windows:
        if horizon > self.horizon:
            raise ValueError(f"the rollout keeps {self.horizon} rows of history, {horizon} were asked for")
        offsets = np.arange(-horizon, 1)
        valid = self.ages[t, n][:, None] >= -offsets
        rows = np.where(valid, self.horizon + t[:, None] + offsets, self.horizon + t[:, None])
        views = self.observations[rows, n[:, None]]
        views[~valid] = 0
        past = self.actions[np.minimum(rows[:, :-1], len(self.actions) - 1), n[:, None]]
        missions = None if self.missions is None else self.missions[t, n]
        memory = None if self.memory is None else self.memory[t, n]
        return Windows(views, np.where(valid[:, :-1], past, 0), valid, missions, memory)
