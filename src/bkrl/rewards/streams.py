"""Reward streams: what a learner is paid in. The only thing about rewards that a learner knows.

A stream turns a rollout into rewards (T, N), and single transitions, for learners that keep no rollouts, into rewards
(B,). PPO gives each stream a discount, a value head and a coefficient, and adds the advantages up: Â = Σ_k coef_k Â_k.
Plain PPO is `[EnvReward()]`; collection adds `RND`; shaped training replaces the first by a stream that returns
reward + γΦ(h') − Φ(h).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, nn

from bkrl.core.errors import UsageError
from bkrl.data.windows import Reads, Rollout, Transitions


class RewardStream:
    """The contract of a stream: four fields and `rewards`; the other members have defaults.

    Attributes:
        name: short name for metrics.
        gamma: discount of this stream's returns.
        coef: weight of this stream's advantage.
        episodic: whether returns stop where an episode terminates; if not, they run on into the next episode.
        reads: what rollouts must hold for it.
        whole: a clause that says what it needs whole rollouts for; "": it can pay single transitions.
    """

    name: str
    gamma: float
    coef: float
    episodic: bool
    reads = Reads()
    whole = ""

    def rewards(self, rollout: Rollout) -> np.ndarray:
        """(T, N) float32: the reward of action t in env n."""
        raise NotImplementedError

    def transition_rewards(self, transitions: Transitions) -> np.ndarray:
        """(B,) float32: the reward of each transition; nothing of the stream's state changes.

        Raises:
            UsageError: the stream needs whole rollouts.
        """
        raise UsageError(f"{self.whole}, so it needs whole rollouts; choose a learner that takes them, such as PPO.")

    def metrics(self) -> dict[str, float]:
        """Figures about the last rollout, with keys like `rnd/novelty`."""
        return {}

    def parameters(self) -> Iterable[nn.Parameter]:
        """Of a model of its own: what is trained in the same minibatches as the policy."""
        return ()

    def loss(self, index: Tensor) -> Tensor:
        """That model's loss on the steps `index` (flat t * N + n) of the rollout that `rewards` saw last."""
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Take back what `state` returned."""


@dataclass
class EnvReward(RewardStream):
    """The env's own reward, times `scale` (the published runs multiply the task reward by 10)."""

    gamma: float = 0.99
    coef: float = 1.0
    scale: float = 1.0
    name: str = "env"
    episodic: bool = True

    def rewards(self, rollout: Rollout) -> np.ndarray:
        return rollout.rewards * np.float32(self.scale)

    def transition_rewards(self, transitions: Transitions) -> np.ndarray:
        return transitions.rewards * np.float32(self.scale)
