"""Tiny envs whose optimal values are known in closed form: for tests, and for watching an algorithm think.

Each is a table: S places, A actions, one successor each. The observation is the number of the place, (1,) uint8.

* `Toy-Chain`: walk right to the end of a corridor. V*(s) = γ^(S-2-s).
* `Toy-TwoExits`: a near exit pays 0.6, a far one 1; the far one is better for γ > 0.78. A shaping bug flips the choice.
* `Toy-Grid`: find the corner of a 5×5 room from anywhere. V* = γ^(distance - 1).
* `Toy-Endless`: "work" pays 1 for ever and only the clock ends an episode. V* = 1 / (1 - γ), and an algorithm that
  mistakes the clock for a true end learns (1 - γ^20) / (1 - γ) at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from gymnasium import spaces
from gymnasium.utils import seeding
from numpy.typing import NDArray

from bkrl.core.errors import InputError
from bkrl.envs.babyai.pcg64 import read_stream, write_stream
from bkrl.envs.family import EnvSpec, Episodes, Family
from bkrl.envs.single import SingleEnv
from bkrl.envs.vector import BaseVectorEnv, Moved

_RULES = "A table of transitions written for bkrl."
_STREAM = ("rng_high", "rng_low", "rng_increment_high", "rng_increment_low", "rng_has_spare", "rng_spare")


@dataclass(frozen=True)
class Table:
    """A deterministic env as arrays. Places that only a terminating action reaches are never acted in.

    Attributes:
        next_state: (S, A) int64.
        reward: (S, A) float32.
        terminated: (S, A) bool.
        success: (S, A) bool.
        start: (S,) float64, probabilities of the first place.
        columns: places in a row of the picture.
    """

    next_state: NDArray[np.int64]
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    success: NDArray[np.bool_]
    start: NDArray[np.float64]
    columns: int

    @property
    def num_states(self) -> int:
        """S."""
        return self.next_state.shape[0]

    @property
    def num_actions(self) -> int:
        """A."""
        return self.next_state.shape[1]

    def first(self, rng: np.random.Generator) -> int:
        """Draw the first place of an episode."""
        place = int(np.searchsorted(np.cumsum(self.start), rng.random(), side="right"))
        return min(place, self.num_states - 1)


def optimal_values(table: Table, gamma: float, extra: NDArray[np.float64] | float = 0.0) -> NDArray[np.float64]:
    """Q*, (S, A), of the env without its clock, by policy iteration, exact to machine precision.

    Args:
        table: the env.
        gamma: discount below 1.
        extra: (S, A), what is paid beside the reward.
    """
    reward = table.reward.astype(np.float64) + extra
    states = np.arange(table.num_states)
    going_on = gamma * ~table.terminated
    policy = np.zeros(table.num_states, np.int64)
    for _ in range(1000):  # far more than it takes; two actions that differ by a rounding may take turns
        transition = np.eye(table.num_states)
        np.subtract.at(transition, (states, table.next_state[states, policy]), going_on[states, policy])
        values = np.linalg.solve(transition, reward[states, policy])
        q = reward + going_on * values[table.next_state]
        better = q.max(1) > q[states, policy] + 1e-11
        if not better.any():
            break
        policy = np.where(better, q.argmax(1), policy)
    return q


def _corridor(length: int, left_pays: float | None, right_pays: float) -> Table:
    """Places 0..length-1 in a row; beyond the right end, and the left one if it pays, lie exits."""
    has_left = left_pays is not None
    S, right_exit, left_exit = length + 1 + has_left, length, length + 1
    places = np.arange(length)
    next_state = np.tile(np.arange(S)[:, None], (1, 2))
    next_state[:length, 0] = np.where(places > 0, places - 1, left_exit if has_left else 0)
    next_state[:length, 1] = np.where(places < length - 1, places + 1, right_exit)
    reward, terminated = np.zeros((S, 2), np.float32), np.zeros((S, 2), bool)
    success = np.zeros((S, 2), bool)
    reward[length - 1, 1], terminated[length - 1, 1], success[length - 1, 1] = right_pays, True, True
    if left_pays is not None:
        reward[0, 0], terminated[0, 0] = left_pays, True
    return Table(next_state, reward, terminated, success, np.eye(S)[0], S)


def _grid(side: int) -> Table:
    """A side×side room; reaching its last corner ends the episode."""
    S, goal = side * side, side * side - 1
    row, column = np.divmod(np.arange(S), side)
    next_state = np.stack(
        [
            np.maximum(row - 1, 0) * side + column,
            np.minimum(row + 1, side - 1) * side + column,
            row * side + np.maximum(column - 1, 0),
            row * side + np.minimum(column + 1, side - 1),
        ],
        axis=1,
    )
    arrives = (next_state == goal) & (np.arange(S) != goal)[:, None]
    start = np.where(np.arange(S) == goal, 0.0, 1.0 / (S - 1))
    return Table(next_state, arrives.astype(np.float32), arrives, arrives.copy(), start, side)


def _endless() -> Table:
    """One place, two actions; the second pays 1 each time, and nothing ever ends."""
    nothing = np.zeros((1, 2), bool)
    reward = np.array([[0.0, 1.0]], np.float32)
    return Table(np.zeros((1, 2), np.int64), reward, nothing, nothing.copy(), np.ones(1), 1)


def _toy(env_id: str, made: Table, actions: tuple[str, ...], steps: int, solved: str) -> tuple[Table, EnvSpec]:
    return made, EnvSpec(env_id, "toy", (1,), actions, steps, _RULES, solved)


_TABLES = {
    facts.env_id: (made, facts)
    for made, facts in (
        _toy("Toy-Chain", _corridor(8, None, 1.0), ("left", "right"), 50, "The right end of the corridor was reached."),
        _toy("Toy-TwoExits", _corridor(3, 0.6, 1.0), ("left", "right"), 50, "The far exit, which pays 1, was taken."),
        _toy("Toy-Grid", _grid(5), ("up", "down", "left", "right"), 40, "The last corner of the room was reached."),
        _toy("Toy-Endless", _endless(), ("rest", "work"), 20, "Nothing: only the clock ends an episode."),
    )
}


def table(env_id: str) -> Table:
    """The transition table of a toy env."""
    return _TABLES[env_id][0]


class Toy(Family):
    """The envs of `_TABLES`."""

    exact: ClassVar[Literal["tables"]] = "tables"

    def specs(self) -> list[EnvSpec]:
        return [facts for _, facts in _TABLES.values()]

    def make_reference(self, env_spec: EnvSpec, render_mode: str | None = "rgb_array") -> SingleEnv:  # type: ignore[override]
        return SingleEnv(ToyVectorEnv(env_spec.env_id, 1), render_mode)

    def make_vec(
        self, env_spec: EnvSpec, num_envs: int, episodes: Episodes, *, threads: int = 1, **options: Any
    ) -> ToyVectorEnv:
        """N copies of a toy env, stepped by table look-up, whatever the `threads`; options: see `ToyVectorEnv`."""
        return ToyVectorEnv(env_spec.env_id, num_envs, **episodes, **options)

    def caption(self, observations: NDArray[np.uint8], language: str = "en", compat: bool = False) -> list[str]:
        return [f"You are in place {int(place)}." for place in np.asarray(observations).reshape(len(observations))]


FAMILY = Toy("toy")


class ToyVectorEnv(BaseVectorEnv):
    """N toy envs, stepped at once; see `BaseVectorEnv`."""

    def __init__(self, env_id: str, num_envs: int, **kwargs: Any) -> None:
        self.table, facts = _TABLES[env_id]
        space = spaces.Box(0, max(self.table.num_states - 1, 1), (1,), np.uint8)
        super().__init__(facts, num_envs, space, **kwargs)
        self._rngs: list[np.random.Generator] = [np.random.default_rng(0)] * num_envs
        self._place = np.zeros(num_envs, np.int64)
        self._age = np.zeros(num_envs, np.int64)
        self._return = np.zeros(num_envs, np.float64)

    def frame(self, index: int) -> NDArray[np.uint8]:
        self._check_begun("frame")
        return _picture(self.table, int(self._place[index]))

    def _state(self) -> dict[str, NDArray[Any]]:
        """The env's name, places, clocks, returns, and the PCG64 state of every env's stream."""
        streams: list[dict[str, int]] = [{} for _ in self._rngs]
        for stream, rng in zip(streams, self._rngs, strict=True):
            write_stream(stream, rng)
        return {
            "env_id": np.frombuffer(self.env_spec.env_id.encode(), np.uint8),
            "place": self._place.copy(),
            "age": self._age.copy(),
            "return": self._return.copy(),
            "rng": np.array([[stream[name] for name in _STREAM] for stream in streams], np.uint64),
        }

    def _set_state(self, state: dict[str, NDArray[Any]]) -> None:
        for name, mine in self._state().items():
            theirs = state.get(name, mine if name == "env_id" else None)  # which older checkpoints lack
            same = theirs is not None and theirs.shape == mine.shape and theirs.dtype == mine.dtype
            if not same or (name == "env_id" and bytes(np.asarray(theirs)) != bytes(mine)):
                raise InputError(
                    f"The snapshot's '{name}' is not that of {self.num_envs} envs of '{self.env_spec.env_id}'; "
                    "restore it into the envs it was taken from."
                )
        self._place, self._age, self._return = (state[name].copy() for name in ("place", "age", "return"))
        self._rngs = [np.random.default_rng(0) for _ in state["rng"]]
        for rng, words in zip(self._rngs, state["rng"], strict=True):
            read_stream(dict(zip(_STREAM, words, strict=True)), rng)

    def _begin(self, chosen: NDArray[np.bool_], seeds: Sequence[int | None] | None) -> None:
        which = np.flatnonzero(chosen)
        for i in which.tolist():
            if seeds is not None and seeds[i] is not None:
                self._rngs[i] = seeding.np_random(seeds[i])[0]
            self._place[i] = self.table.first(self._rngs[i])
        self._age[which] = 0
        self._return[which] = 0.0

    def _act(self, actions: NDArray[np.int64], idle: NDArray[np.bool_]) -> Moved:
        here = self._place
        rewards = np.where(idle, np.float32(0), self.table.reward[here, actions])
        terminated = self.table.terminated[here, actions] & ~idle
        success = self.table.success[here, actions] & ~idle
        self._place = np.where(idle, here, self.table.next_state[here, actions])
        self._age += ~idle
        self._return += rewards
        truncated = (self._age >= self.env_spec.max_steps) & ~terminated & ~idle
        return self._views(), rewards, terminated, truncated, success

    def _views(self, which: Any = ...) -> NDArray[np.uint8]:
        return self._place[which].astype(np.uint8)[:, None]

    def _scores(self, which: Any = ...) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        return self._return[which], self._age[which]


def _picture(table: Table, place: int, square: int = 32) -> NDArray[np.uint8]:
    rows = -(-table.num_states // table.columns)
    colours = np.full((rows, table.columns, 3), 220, np.uint8)
    colours[divmod(place, table.columns)] = (200, 40, 40)
    picture = colours.repeat(square, 0).repeat(square, 1)
    picture[::square], picture[:, ::square] = 120, 120
    return picture
