"""Rollouts of many envs, and the windows of recent history that a potential sees.

Φ is a function of a short history h_t = (s_{t-H}, a_{t-H}, …, a_{t-1}, s_t) that never reaches across an
episode's start. Axes are named at allocation: T steps, N envs, H history, B windows, M symbols that windows share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bkrl.data.distinct import distinct_rows, numbered
from bkrl.data.views import Views

UInt8 = NDArray[np.uint8]
Int64 = NDArray[np.int64]
Bool = NDArray[np.bool_]


class Reads(NamedTuple):
    """What a potential, or a stream of rewards, reads beside the present symbols; collectors and checkpoints obey.

    Attributes:
        horizon: H, past actions and the observations before them.
        views: the further views of the present.
    """

    horizon: int = 0
    views: tuple[Literal["mission", "memory"], ...] = ()

    @property
    def mission(self) -> bool:
        """Whether missions are read."""
        return "mission" in self.views

    @property
    def memory(self) -> bool:
        """Whether the memory of episodes is read."""
        return "memory" in self.views

    @staticmethod
    def of(horizon: int, mission: bool = False, memory: bool = False) -> Reads:
        """The same from two truths."""
        return Reads(horizon, (*(("mission",) if mission else ()), *(("memory",) if memory else ())))  # type: ignore[arg-type]

    @staticmethod
    def joined(parts: Sequence[Reads]) -> Reads:
        """What several read together."""
        horizon = max((part.horizon for part in parts), default=0)
        return Reads.of(horizon, any(part.mission for part in parts), any(part.memory for part in parts))


@dataclass(frozen=True)
class Windows:
    """A batch of B histories of H actions and H + 1 observations, oldest first.

    Attributes:
        symbols: (M, *obs_shape) uint8, the raw integers the env emits.
        index: (B, H+1) which of the symbols stands where; of a row that is not valid, symbols that are all 0.
        actions: (B, H) int64; action i was taken at observation i. 0 where that observation is not valid.
        valid: (B, H+1) bool; False for rows before the episode began.
        missions: (B,) objects, the sentence that each episode asks the agent to fulfil; None where nothing reads it.
        memory: (B, M) uint8, what happened in each episode so far (`envs.memory`); None where nothing reads it.
    """

    symbols: UInt8
    index: Int64
    actions: Int64
    valid: Bool
    missions: NDArray[np.object_] | None = None
    memory: UInt8 | None = None

    @staticmethod
    def of(
        observations: UInt8,
        actions: Int64,
        valid: Bool,
        missions: NDArray[Any] | None = None,
        memory: UInt8 | None = None,
    ) -> Windows:
        """Windows of (B, H+1, *obs_shape) observations, each with a number of its own."""
        index = np.arange(valid.size).reshape(valid.shape)
        return Windows(
            observations.reshape(valid.size, *observations.shape[2:]), index, actions, valid, missions, memory
        )

    def __len__(self) -> int:
        return len(self.index)

    @cached_property
    def observations(self) -> UInt8:
        """(B, H+1, *obs_shape) uint8; `[:, -1]` is the current one. All 0 where it is not valid."""
        return self.symbols[self.index]

    @property
    def horizon(self) -> int:
        """H, the number of past actions."""
        return self.actions.shape[1]

    def __getitem__(self, rows: slice | NDArray[np.integer] | Bool) -> Windows:
        """The windows chosen by a slice, an index array or a mask over the batch; all of the symbols."""
        missions = None if self.missions is None else self.missions[rows]
        memory = None if self.memory is None else self.memory[rows]
        return Windows(self.symbols, self.index[rows], self.actions[rows], self.valid[rows], missions, memory)

    def showing(self, observations: UInt8) -> Windows:
        """The same with other observations."""
        return Windows.of(observations, self.actions, self.valid, self.missions, self.memory)

    @staticmethod
    def joined(parts: Sequence[Windows]) -> Windows:
        """The windows of several batches, one after another, without missions and memory."""
        columns = ([part.observations, part.actions, part.valid] for part in parts)
        return Windows.of(*(np.concatenate(column) for column in zip(*columns, strict=True)))

    def last(self, horizon: int) -> Windows:
        """The same moments with fewer past actions."""
        if horizon > self.horizon:
            raise ValueError(f"windows of horizon {self.horizon} cannot be lengthened to {horizon}")
        first = self.horizon - horizon
        return replace(self, index=self.index[:, first:], actions=self.actions[:, first:], valid=self.valid[:, first:])

    def numbered(self) -> Windows:
        """The same windows, whose symbols are distinct: in the order in which they are first met."""
        symbols = self.symbols[self.index.ravel()]
        first, index = distinct_rows(symbols)
        return replace(self, symbols=symbols[first], index=index.reshape(self.index.shape))

    def distinct(self) -> tuple[Windows, Int64]:
        """Of windows whose symbols are distinct, the distinct windows, and for each of the B its place among them."""
        told: list[NDArray[Any]] = [] if self.missions is None else [numbered(self.missions)[0][:, None]]
        told += [] if self.memory is None else [self.memory]
        key = np.concatenate([self.index, self.actions, self.valid, *told], axis=1, dtype=np.int32)
        first, inverse = distinct_rows(key)
        return self[first], inverse

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What a checkpoint holds; `Windows.of(**arrays)` makes the windows of it."""
        told: dict[str, NDArray[Any]] = {} if self.missions is None else {"missions": self.missions.astype(str)}
        told |= {} if self.memory is None else {"memory": self.memory}
        return {"observations": self.observations, "actions": self.actions, "valid": self.valid, **told}


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
    seen = observations[index]
    seen[~valid] = 0
    return Windows.of(seen, np.where(valid[:, :-1], actions[index[:, :-1]], 0).astype(np.int64), valid)


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
    """T steps of N envs with SAME_STEP autoreset, and the H rows of history before them.

    Attributes:
        views: (T+1, N) rows of what was seen before each action; row T is what the value is bootstrapped from. Missions
            are as the env says them, and memory is there, where a stream reads it.
        final_views: (K,) rows, the true last views of the episodes that ended.
        final_index: (K,) int64, t * N + n of every step that ended an episode, increasing.
        actions: (T, N) int64.
        ages: (T+1, N) int32, actions already taken in the running episode at row t (0 at its first observation).
        rewards: (T, N) float32, the env's own reward.
        terminated, truncated: (T, N) bool.
        past, past_actions: (H, N, *obs_shape) uint8 and (H, N) int64, the symbols and actions before row 0.
    """

    views: Views
    final_views: Views
    final_index: Int64
    actions: Int64
    ages: NDArray[np.int32]
    rewards: NDArray[np.float32]
    terminated: Bool
    truncated: Bool
    past: UInt8
    past_actions: Int64

    @property
    def num_steps(self) -> int:
        """T."""
        return self.rewards.shape[0]

    @property
    def num_envs(self) -> int:
        """N."""
        return self.rewards.shape[1]

    def ends(self, cut: bool) -> Bool:
        """(T, N) whether an episode ended: where it terminated, or with `cut` also where a time limit cut it off."""
        return self.terminated | self.truncated if cut else self.terminated

    def following(self) -> UInt8:
        """(T, N, *obs_shape): s_{t+1}, the true last symbols where the episode ended, not the next one's first."""
        following = self.views.symbols[1:].copy()
        following.reshape(-1, *following.shape[2:])[self.final_index] = self.final_views.symbols
        return following

    def windows(self, horizon: int, first: int = 0, last: int | None = None) -> Windows:
        """Windows at rows `first`..`last` (both included, default 0..T) of every env, in (row, env) order."""
        last = self.num_steps if last is None else last
        t, n = np.divmod(np.arange(first * self.num_envs, (last + 1) * self.num_envs), self.num_envs)
        return replace(self._ending(t, n, self.ages[t, n], horizon), **self._told(t, n))

    def final_windows(self, horizon: int) -> Windows:
        """The (K,) windows that end in the final observations, in the order of `final_index`."""
        t, n = np.divmod(self.final_index, self.num_envs)
        windows = self._ending(t + 1, n, self.ages[t, n] + 1, horizon)
        windows.index[:, -1] = len(windows.symbols) - 1 - len(t) + np.arange(len(t))
        return replace(windows, **{**self._told(t, n), "memory": self.final_views.memory})

    def numbered_windows(self, horizon: int, first: int = 0) -> Windows:
        """`windows` from row `first` on and then `final_windows`, with distinct symbols; no history is copied."""
        parts = self.windows(horizon, first), self.final_windows(horizon)
        seen, places = distinct_rows(parts[0].symbols)
        columns = ([part.index, part.actions, part.valid, part.missions, part.memory] for part in parts)
        index, *others = (None if a is None else np.concatenate([a, b]) for a, b in zip(*columns, strict=True))
        return Windows(parts[0].symbols[seen], places[index], *others)  # type: ignore[arg-type]

    def _told(self, t: Int64, n: Int64) -> dict[str, Any]:
        told = {"missions": self.views.mission, "memory": self.views.memory}
        return {name: None if column is None else column[t, n] for name, column in told.items()}

    def _ending(self, t: Int64, n: Int64, ages: NDArray[np.integer], horizon: int) -> Windows:
        """Windows whose last rows are row t of env n, in the symbols of all rows, finals, and one that is all 0."""
        kept, N = len(self.past), self.num_envs
        if horizon > kept:
            raise ValueError(f"the rollout keeps {kept} rows of history, {horizon} were asked for")
        shown = self.past[kept - horizon :], self.views.symbols, self.final_views.symbols
        shape = self.past.shape[2:]
        symbols = np.concatenate([*(one.reshape(-1, *shape) for one in shown), np.zeros((1, *shape), np.uint8)])
        offsets = np.arange(-horizon, 1)
        valid = ages[:, None] >= -offsets
        index = np.where(valid, (horizon + t[:, None] + offsets) * N + n[:, None], len(symbols) - 1)
        steps = np.where(valid[:, :-1], horizon + t[:, None] + offsets[:-1], 0)
        done = np.concatenate([self.past_actions[kept - horizon :], self.actions])
        return Windows(symbols, index, np.where(valid[:, :-1], done[steps, n[:, None]], 0), valid)
