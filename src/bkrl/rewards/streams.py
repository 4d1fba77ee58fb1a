"""Reward streams: what PPO is paid in. The only thing about rewards that `ppo.py` knows.

A stream turns a rollout into rewards (T, N). PPO gives each stream a discount, a value head and a coefficient, and
adds the advantages up: Â = Σ_k coef_k Â_k. Plain PPO is `[EnvReward()]`; collection adds `RND`; shaped training
replaces the first by a stream that returns reward + γΦ(h') − Φ(h).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from torch import Tensor, nn

from bkrl.data.windows import Rollout


class RewardStream(Protocol):
    """The contract of a stream."""

    @property
    def name(self) -> str:
        """Short name for metrics."""
        ...

    @property
    def gamma(self) -> float:
        """Discount of this stream's returns."""
        ...

    @property
    def coef(self) -> float:
        """Weight of this stream's advantage."""
        ...

    @property
    def episodic(self) -> bool:
        """Whether returns stop where an episode terminates; if not, they run on into the next episode."""
        ...

    @property
    def horizon(self) -> int:
        """Rows of history that the stream needs before each step."""
        ...

    def rewards(self, rollout: Rollout) -> np.ndarray:
        """(T, N) float32: the reward of action t in world n."""
        ...


@runtime_checkable
class LearningStream(Protocol):
    """A stream with a model of its own, trained in the same minibatches as the policy."""

    def parameters(self) -> Iterable[nn.Parameter]:
        """What the optimiser trains."""
        ...

    def loss(self, index: Tensor) -> Tensor:
        """Loss on the steps `index` (flat t * N + n) of the rollout that `rewards` saw last."""
        ...


@runtime_checkable
class MeasuringStream(Protocol):
    """A stream with something to report."""

    def metrics(self) -> dict[str, float]:
        """Figures about the last rollout, with keys like `rnd/novelty`."""
        ...


@dataclass
class EnvReward:
    """The world's own reward, times `scale` (the published runs multiply the task reward by 10)."""

    gamma: float = 0.99
    coef: float = 1.0
    scale: float = 1.0
    name: str = "env"
    episodic: bool = True
    horizon: int = 0

    def rewards(self, rollout: Rollout) -> np.ndarray:
        """(T, N) float32."""
        return rollout.rewards * np.float32(self.scale)
