"""What a learner is to the loop that carries it to its end (`loop.train`) and to the stages that make one."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from bkrl.agents.protocol import Agent
from bkrl.learn.hardware import Hardware


class Saved(NamedTuple):
    """A learner between two iterations.

    Attributes:
        tensors: arrays and tensors by name.
        counters: plain JSON values by name.
        exact: whether a learner that takes this back goes on byte for byte; not where envs cannot be saved.
    """

    tensors: dict[str, Any]
    counters: dict[str, Any]
    exact: bool


class Learner(Protocol):
    """Something that trains an agent, one iteration after another. Subclasses are given the members with defaults.

    Attributes:
        agent: who is trained; it can be played with between iterations.
        hardware: where it computes.
        step: env steps taken.
        total_steps: env steps to take; the last iteration may go past them.
    """

    agent: Agent
    hardware: Hardware
    step: int
    total_steps: int

    @property
    def done(self) -> bool:
        """Whether training is over."""
        return self.step >= self.total_steps

    def iterate(self) -> dict[str, float]:
        """One iteration; its metrics (`time/…` in seconds).

        Raises:
            Diverged: what was learnt is no longer finite.
        """

    def state(self) -> Saved:
        """Everything that the next iteration depends on, envs and reward streams included."""

    def restore(self, saved: Saved) -> None:
        """Take back what `state` returned in a learner made in the same way; fresh episodes where it is not exact."""

    def warnings(self, metrics: dict[str, float]) -> dict[str, str]:
        """What the metrics of the last iteration warn of: one sentence for each sign, said once in a run."""
        return {}

    def facts(self) -> dict[str, Any]:
        """What a manifest says of the learner: episodes, device, precision, parameters."""

    def close(self) -> None:
        """Close its envs, if it has any."""
        return None


@runtime_checkable
class Stateful(Protocol):
    """A part of a learner whose state belongs in a checkpoint (learned weights, running statistics)."""

    def state(self) -> dict[str, Any]:
        """Everything that changes: arrays and tensors by name."""

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Take back what `state` returned."""
