"""Random network distillation (Burda et al. 2018): novelty is how badly a network predicts a fixed random one. NovelD
(Zhang et al. 2021) pays where that grows.

What is scored is what is trained on, normalised and clipped in the same way. The observation statistics take in a
rollout before it is scored, so the first rewards are not judged by the statistics of nothing.
"""

import math
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bkrl.data.distinct import distinct_rows
from bkrl.data.windows import Rollout
from bkrl.rewards.novelty import FEATURES, Novelty, followings, mlp

_CHUNK = 4096


class RND(Novelty):
    """The novelty stream.

    Args:
        obs_shape, num_envs, options: as for `Novelty`.
        seed: of both networks' weights.
        update_proportion: share of each minibatch that trains the predictor (so that it does not learn too fast).
    """

    name = "rnd"

    def __init__(
        self, obs_shape: Sequence[int], num_envs: int, *, seed: int = 0, update_proportion: float = 0.25, **options: Any
    ) -> None:
        super().__init__(obs_shape, num_envs, **options)
        self.update_proportion = update_proportion
        generator = torch.Generator().manual_seed(seed)
        self.target = mlp(obs_shape, FEATURES, generator).to(self.device).requires_grad_(False)
        # The predictor is deeper than what it predicts, so that what remains of its error is novelty, not incapacity.
        self.predictor = mlp(obs_shape, FEATURES, generator, depth=2).to(self.device)
        self.networks = {"target": self.target, "predictor": self.predictor}
        # Of the last rollout: its distinct observations, normalised; their random features; which of them came when.
        self._inputs = self._targets = torch.zeros(0)
        self._places = torch.zeros(0, dtype=torch.int64)

    def raw(self, rollout: Rollout) -> NDArray[np.floating]:
        flat = followings(rollout)
        first, places = distinct_rows(flat)
        distinct = flat[first]
        self.observe(distinct, np.bincount(places))
        self._inputs, self._targets, errors = self._errors(distinct)
        self._places = torch.from_numpy(places).to(self.device)
        return errors[places].reshape(rollout.rewards.shape)

    @torch.no_grad()
    def _errors(self, rows: NDArray[np.uint8]) -> tuple[Tensor, Tensor, NDArray[np.float32]]:
        """Of (B, *obs_shape) observations: inputs, targets, and the mean squared error of each (B,)."""
        inputs = self.normalised(rows)
        targets = torch.cat([self.target(chunk) for chunk in inputs.split(_CHUNK)])
        predictions = torch.cat([self.predictor(chunk) for chunk in inputs.split(_CHUNK)])
        return inputs, targets, (predictions - targets).square().mean(1).cpu().numpy()

    def loss(self, index: Tensor) -> Tensor:
        """Mean squared error on a part of the minibatch. `index` comes shuffled, so its first part is a random part."""
        places = self._places[index[: math.ceil(self.update_proportion * len(index))]]
        if self.device.type != "cpu":  # on a GPU, predicting duplicates is cheaper than finding them
            return (self.predictor(self._inputs[places]) - self._targets[places]).square().mean()
        which, times = places.unique(return_counts=True)
        inputs, targets = self._inputs.index_select(0, which), self._targets.index_select(0, which)
        errors = (self.predictor(inputs) - targets).square().mean(1)
        return errors @ times.to(errors.dtype) / len(places)


class NovelD(RND):
    """max(novelty(s′) − α novelty(s), 0), where the episode visits s′ for the first time; 0 elsewhere.

    Args:
        obs_shape, num_envs, options: as for `RND`.
        alpha: α; 0.5 as published, where novelty is the root of this error. ELLM's baseline takes 1.
        first_visit: whether only first visits pay; ELLM's baseline left that out.
    """

    name = "noveld"

    def __init__(
        self, obs_shape: Sequence[int], num_envs: int, *, alpha: float = 0.5, first_visit: bool = True, **options: Any
    ) -> None:
        super().__init__(obs_shape, num_envs, **options)
        self.alpha, self.first_visit = alpha, first_visit
        # Observations of the running episodes; a number of 64 bits stands for each, as there may be 10,000 of them
        self._visited: list[set[int]] = [set() for _ in range(num_envs)]

    def raw(self, rollout: Rollout) -> NDArray[np.floating]:
        after = super().raw(rollout)
        before = np.empty_like(after)
        before[1:] = after[:-1]
        began = rollout.ages[:-1] == 0
        fresh = began.copy()
        fresh[0] = True  # these rows follow nothing that was scored in this rollout
        before[fresh] = self._errors(rollout.views.symbols[:-1][fresh])[2]
        found = np.maximum(after - self.alpha * before, 0)
        return found * self._first(rollout, began) if self.first_visit else found

    def _first(self, rollout: Rollout, began: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """(T, N) whether the running episode had not seen what followed the action."""
        seen, following = rollout.views.symbols[:-1], rollout.following()
        first = np.zeros(began.shape, bool)
        for t, n in np.ndindex(*first.shape):
            visited = self._visited[n]
            if began[t, n] or not visited:
                visited.clear()
                visited.add(_number(seen[t, n]))
            number = _number(following[t, n])
            first[t, n] = number not in visited
            visited.add(number)
        return first

    def state(self) -> dict[str, np.ndarray | Tensor]:
        numbers = [sorted(visited) for visited in self._visited]
        flat = np.array([one for row in numbers for one in row], np.uint64)
        return super().state() | {"visited": flat, "visits": np.array([len(row) for row in numbers])}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        super().restore(state)
        rows = np.split(state["visited"], np.cumsum(state["visits"])[:-1])
        self._visited = [set(row.tolist()) for row in rows]


def _number(row: NDArray[np.uint8]) -> int:
    return int.from_bytes(blake2b(row.tobytes(), digest_size=8).digest(), "little")
