"""Active pre-training (Liu and Abbeel 2021): novelty is the distance to the nearest of what was seen lately.

It estimates the entropy of the observations by particles: each pays log(1 + mean distance to its k nearest others), in
features that are fixed and random (`APT`), or learnt with the dynamics (`LearntAPT`, ELLM's baseline).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bkrl.data.windows import Rollout
from bkrl.rewards.icm import ICM
from bkrl.rewards.novelty import FEATURES, Novelty, RunningMoments, followings, mlp

PARTICLES, NEIGHBOURS = 1024, 12
"""States that new ones are compared with, and how many of the nearest count (published: 12)."""
_CHUNK = 2048


def nearest(features: Tensor, pool: Tensor, own: Tensor, k: int) -> Tensor:
    """(B, k) distances to the k nearest, in increasing order.

    Args:
        features: (B, F).
        pool: (P, F) what they are compared with, P > k.
        own: (P,) int64, which of the B features an entry of the pool is; -1: none of them. It is not its own neighbour.
        k: neighbours.
    """
    distances = torch.cdist(features, pool)
    inside = torch.nonzero(own >= 0).squeeze(1)
    distances[own[inside], inside] = torch.inf
    return distances.topk(k, 1, largest=False).values


class Particles:
    """The states that new ones are compared with: `size` of the newest, at even distances; `k` neighbours count."""

    def __init__(self, obs_shape: Sequence[int], size: int, k: int) -> None:
        self.size, self.k = size, k
        self.rows = np.zeros((0, *obs_shape), np.uint8)
        self.distance = RunningMoments()

    def add(self, rows: NDArray[np.uint8]) -> Tensor:
        """Take in (B, *obs_shape) states; (P,) int64 which of them each of the pool is now, -1 for older ones."""
        joined = np.concatenate([self.rows, rows])
        chosen = np.unique(np.linspace(0, len(joined) - 1, min(self.size, len(joined))).round().astype(np.int64))
        own = np.maximum(chosen - len(self.rows), -1)
        self.rows = joined[chosen]
        return torch.from_numpy(own)

    def novelty(self, features: Tensor, pool: Tensor, own: Tensor) -> NDArray[np.floating]:
        """(B,) log(1 + mean distance to the k nearest / running mean of these distances)."""
        k = min(self.k, len(pool) - 1)
        if k < 1:
            return np.zeros(len(features))
        chunks = []
        for first in range(0, len(features), _CHUNK):
            part = features[first : first + _CHUNK]
            here = torch.where((own >= first) & (own < first + len(part)), own - first, -1)
            chunks.append(nearest(part, pool, here, k).mean(1))
        found = torch.cat(chunks).cpu().numpy().astype(np.float64)
        self.distance.update(found)
        return np.log1p(found / max(float(self.distance.mean), 1e-8))

    def state(self) -> dict[str, np.ndarray | Tensor]:
        """The states and the running mean."""
        return {"particles": self.rows, **self.distance.state("distance")}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        self.rows = state["particles"].copy()
        self.distance.restore("distance", state)


class _Pooled(Novelty):
    """Novelty by particles; a subclass has an `encoder` of (B, *obs_shape) float32."""

    name = "apt"
    encoder: nn.Module

    def __init__(self, obs_shape: Sequence[int], num_envs: int, **options: Any) -> None:
        super().__init__(obs_shape, num_envs, **options)
        self.particles = Particles(obs_shape, PARTICLES, NEIGHBOURS)

    @torch.no_grad()
    def scored(self, rollout: Rollout) -> NDArray[np.floating]:
        """(T, N). The whole pool is encoded anew, as encoder and statistics change."""
        rows = followings(rollout)
        own = self.particles.add(rows).to(self.device)
        features, pool = self.encoder(self.normalised(rows)), self.encoder(self.normalised(self.particles.rows))
        return self.particles.novelty(features, pool, own).reshape(rollout.rewards.shape)

    def state(self) -> dict[str, np.ndarray | Tensor]:
        return super().state() | self.particles.state()

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        super().restore(state)
        self.particles.restore(state)


class APT(_Pooled):
    """The novelty stream in fixed random features; arguments as for `Novelty`, and the seed of the encoder."""

    def __init__(self, obs_shape: Sequence[int], num_envs: int, *, seed: int = 0, **options: Any) -> None:
        super().__init__(obs_shape, num_envs, **options)
        generator = torch.Generator().manual_seed(seed)
        self.encoder = mlp(obs_shape, FEATURES, generator).to(self.device).requires_grad_(False)
        self.networks = {"encoder": self.encoder}

    def raw(self, rollout: Rollout) -> NDArray[np.floating]:
        self.observe(followings(rollout))
        return self.scored(rollout)


class LearntAPT(_Pooled, ICM):
    """The novelty stream in the features of `icm.Dynamics`, which learns beside the agent; arguments as for `ICM`."""

    def __init__(self, obs_shape: Sequence[int], num_envs: int, **options: Any) -> None:
        super().__init__(obs_shape, num_envs, **options)
        self.encoder = self.model.encoder

    def raw(self, rollout: Rollout) -> NDArray[np.floating]:
        self.take(rollout)
        return self.scored(rollout)
