"""Reward streams: what a learner is paid in. The only thing about rewards that a learner knows.

A stream turns a rollout into rewards (T, N), and single transitions, for learners that keep no rollouts, into rewards
(B,). PPO gives each stream a discount, a value head and a coefficient, and adds the advantages up: Â = Σ_k coef_k Â_k.
Plain PPO is `[EnvReward()]`; collection adds `RND`; shaped training replaces the first by a stream that returns
reward + γΦ(h') − Φ(h).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
from torch import Tensor, nn

from bkrl.core.errors import UsageError
from bkrl.data.windows import Rollout, Transitions


class RewardStream(Protocol):
    """The contract of a stream. One that reads missions, or the memory of episodes, has a further attribute,
    `reads_missions` or `reads_memory`, which is True.
    """

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
        """(T, N) float32: the reward of action t in env n."""
        ...

    def transition_rewards(self, transitions: Transitions) -> np.ndarray:
        """(B,) float32: the reward of each transition; nothing of the stream's state changes.

        Raises:
            UsageError: the stream needs whole rollouts.
        """
        ...


class RolloutsOnly:
    """A stream that cannot pay single transitions.

    Attributes:
        why: a clause that says what it needs whole rollouts for.
    """

    why: ClassVar[str]

    def transition_rewards(self, transitions: Transitions) -> np.ndarray:
        """UsageError."""
        raise UsageError(f"{self.why}, so it needs whole rollouts; choose a learner that takes them, such as PPO.")


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
    """The env's own reward, times `scale` (the published runs multiply the task reward by 10)."""

    gamma: float = 0.99
    coef: float = 1.0
    scale: float = 1.0
    name: str = "env"
    episodic: bool = True
    horizon: int = 0

    def rewards(self, rollout: Rollout) -> np.ndarray:
        """(T, N) float32."""
        return rollout.rewards * np.float32(self.scale)

    def transition_rewards(self, transitions: Transitions) -> np.ndarray:
        """(B,) float32."""
        return transitions.rewards * np.float32(self.scale)
