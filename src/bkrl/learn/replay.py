"""A memory of steps, from which learners that are off-policy draw at random.

What agents see is kept as rows of bytes (`ViewKeys`), so that a text that is seen a thousand times is kept once.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Batch:
    """B steps, each with what followed it n steps later, or at the end of its episode.

    Attributes:
        seen: (B, W) uint8, what was seen before the action.
        actions: (B,) int64.
        returns: (B,) float32, the discounted sum of the rewards of the n steps, fewer where the episode ended.
        after: (B, W) uint8, what was seen then: the true last view where the episode ended.
        discounts: (B,) float32, by which the value of `after` counts: γⁿ, fewer powers where the episode was cut off
            before, and 0 where it terminated.
    """

    seen: NDArray[np.uint8]
    actions: NDArray[np.int64]
    returns: NDArray[np.float32]
    after: NDArray[np.uint8]
    discounts: NDArray[np.float32]


def drawable(rows: int, num_envs: int, num_steps: int) -> int:
    """Of rows of steps of so many envs the steps that the next `num_steps` - 1 follow."""
    return max(rows - num_steps + 1, 0) * num_envs


class Replay:
    """The newest steps of N envs. An older step makes room for a newer one.

    Args:
        capacity: steps of all envs together; at least one of each.
        num_envs: N.
        picture_bytes, pictures: where rows begin with a picture of so many bytes, those that are drawn begin with so
            many: the latest of the episode, the newest last; its first or oldest kept one again where it is shorter.
    """

    def __init__(self, capacity: int, num_envs: int, picture_bytes: int = 0, pictures: int = 1) -> None:
        self.picture_bytes, self.pictures = picture_bytes, pictures
        self.rows = max(capacity // num_envs, 1)
        self.num_envs = num_envs
        self.head = self.count = 0  # the row to write next, and how many are there
        self._columns: dict[str, NDArray[Any]] = {}

    def __len__(self) -> int:
        return self.count * self.num_envs

    def ready(self, num_steps: int = 1) -> int:
        """How many steps `sample` draws from."""
        return drawable(self.count, self.num_envs, num_steps)

    def cut(self) -> None:
        """The newest steps end their episodes: what comes next is of others."""
        if self.count:
            self._columns["truncated"][self.head - 1] = True

    def add(
        self,
        seen: NDArray[np.uint8],
        actions: NDArray[np.int64],
        rewards: NDArray[np.float32],
        after: NDArray[np.uint8],
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
    ) -> None:
        """One step of each env; `after` (N, W) has the true last views of episodes that ended."""
        new: dict[str, NDArray[Any]] = {
            "seen": seen, "actions": actions.astype(np.int16), "rewards": rewards, "after": after,
            "terminated": terminated, "truncated": truncated,
        }  # fmt: skip
        if not self._columns:
            self._columns = {name: np.zeros((self.rows, *one.shape), one.dtype) for name, one in new.items()}
        for name, one in new.items():
            self._columns[name][self.head] = one
        self.head = (self.head + 1) % self.rows
        self.count = min(self.count + 1, self.rows)

    def sample(self, size: int, rng: np.random.Generator, *, gamma: float, num_steps: int = 1) -> Batch:
        """`size` different steps, all equally likely, of those that the next `num_steps` - 1 follow.

        Raises:
            ValueError: there are not so many.
        """
        places = rng.choice(self.ready(num_steps), size, replace=False, shuffle=False)
        age, env = np.divmod(places, self.num_envs)
        first = (self.head - self.count + age) % self.rows
        column = self._columns
        returns, discounts = np.zeros(size, np.float32), np.ones(size, np.float32)
        going, last = np.ones(size, bool), first.copy()
        for step in range(num_steps):
            row = (first + step) % self.rows
            last[going] = row[going]
            returns += np.where(going, discounts * column["rewards"][row, env], 0)
            terminated = column["terminated"][row, env]
            discounts[going] *= gamma
            discounts[going & terminated] = 0
            going &= ~(terminated | column["truncated"][row, env])
        actions = column["actions"][first, env].astype(np.int64)
        seen, after = column["seen"][first, env], column["after"][last, env]
        if self.pictures > 1:
            before = self._before(first, env, self.pictures)
            seen = np.concatenate([*before[:-1], seen], axis=1)
            after = np.concatenate([*self._before(last, env, self.pictures - 1), after], axis=1)
        return Batch(seen, actions, returns, after, discounts)

    def _before(self, row: NDArray[np.int64], env: NDArray[np.int64], count: int) -> list[NDArray[np.uint8]]:
        """`count` pictures (B, P) of the episodes of rows (B,), the last of them that of the row itself."""
        column, found = self._columns, [self._columns["seen"][row, env, : self.picture_bytes]]
        for _ in range(count - 1):
            previous = (row - 1) % self.rows
            oldest = row == (self.head - self.count) % self.rows
            begins = oldest | column["terminated"][previous, env] | column["truncated"][previous, env]
            row = np.where(begins, row, previous)
            found.append(column["seen"][row, env, : self.picture_bytes])
        return found[::-1]

    def state(self) -> dict[str, NDArray[Any]]:
        """All of it, as arrays; rows that were never written are left out."""
        kept = {name: one[: self.count] for name, one in self._columns.items()}
        return {**kept, "place": np.array([self.head, self.count])}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take back what `state` returned in a memory of the same size."""
        self.head, self.count = map(int, state["place"])
        self._columns = {}
        for name in state.keys() - {"place"}:
            whole = np.zeros((self.rows, *state[name].shape[1:]), state[name].dtype)
            whole[: self.count] = state[name]
            self._columns[name] = whole
