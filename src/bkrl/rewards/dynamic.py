"""Potential-based shaping with a potential that changes while a policy learns (Devlin & Kudenko 2012).

F = γ Φ_{t'}(h') - Φ_t(h) is paid for the action that leads from h, visited at time t, to h', visited at t'. A visit is
evaluated once, with the potential of its time, and both terms that use it take that value, however often Φ has changed
in between. So the sum over an episode telescopes to -Φ_t(h_0), which no action of the episode has a part in.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bkrl.core.prefixes import under
from bkrl.data.windows import Rollout
from bkrl.potentials.protocol import Potential
from bkrl.rewards.shaped import ShapedReward


class Changing(Protocol):
    """Where a potential comes from that changes."""

    @property
    def potential(self) -> Potential:
        """Φ as it is now. Its horizon never changes."""

    def saw(self, rollout: Rollout) -> None:
        """A rollout was paid for; Φ may be another one after this."""

    def metrics(self) -> dict[str, float]:
        """Figures about what Φ is made from."""

    def state(self) -> dict[str, Any]:
        """Everything that changes: arrays and tensors by name."""

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Take back what `state` returned."""


class DynamicReward(ShapedReward):
    """reward_scale · r_t + shaping_coef · (γ Φ_{t'}(h_{t+1}) - Φ_t(h_t)), with Φ(terminal) = 0, as a reward stream.

    Φ changes between rollouts alone. A rollout's first row was the last one of the rollout before: it keeps the value
    that it had there, in checkpoints too.

    Args:
        changing: where Φ comes from.
        gamma, options: as for `ShapedReward`.
        cut_ends: Φ = 0 where a time limit ends an episode, too (published defect b10).
    """

    whole = "a potential that changes is evaluated when a state is visited"

    def __init__(self, changing: Changing, gamma: float, *, cut_ends: bool = False, **options: Any) -> None:
        super().__init__(changing.potential, gamma, **options)
        self.changing, self.cut_ends = changing, cut_ends

    def rewards(self, rollout: Rollout) -> NDArray[np.float32]:
        paid = super().rewards(replace(rollout, terminated=rollout.ends(self.cut_ends)))
        self.changing.saw(rollout)
        self.values.potential = self.changing.potential
        return paid

    def metrics(self) -> dict[str, float]:
        return super().metrics() | self.changing.metrics()

    def state(self) -> dict[str, Any]:
        visited = {f"visited.{name}": array for name, array in self.values.state().items()}
        return visited | {f"changing.{name}": array for name, array in self.changing.state().items()}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        self.values.restore(under(state, "visited."))
        self.changing.restore(under(state, "changing."))
        self.values.potential = self.changing.potential
