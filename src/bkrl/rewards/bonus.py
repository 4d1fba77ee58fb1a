"""Φ paid as a plain bonus: the forms of shaping that are not potential-based, and one that is made so.

`additive` pays c · Φ(h_{t+1}) for action t, for ever. `decay` pays the same with a weight that falls to 0. `pbim` pays
the same and takes it back where the episode terminates (potential-based intrinsic motivation, Forbes et al. 2024), so
that every finished episode's discounted sum of bonuses is 0, whatever was done in it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from bkrl.data.windows import Rollout
from bkrl.potentials.protocol import Potential
from bkrl.rewards.shaped import PotentialOfRollout, shaping_metrics
from bkrl.rewards.shaping import next_potentials


class Bonus:
    """reward_scale · r_t + coef_t · Φ(h_{t+1}), with Φ(terminal) = 0, as a reward stream.

    Args:
        potential: Φ, of any horizon.
        gamma: the discount PPO learns with.
        reward_scale: factor of the world's reward.
        bonus_coef: factor of Φ.
        shift: added to Φ of all but terminal states.
        until: environment steps after which the bonus has fallen linearly to 0; 0: it stays.
    """

    name = "shaped"
    episodic = True
    coef = 1.0

    def __init__(
        self,
        potential: Potential,
        gamma: float,
        *,
        reward_scale: float = 1.0,
        bonus_coef: float,
        shift: float = 0.0,
        until: int = 0,
    ) -> None:
        self.values = PotentialOfRollout(potential, shift, terminal=False)
        self.gamma, self.reward_scale, self.bonus_coef, self.until = gamma, reward_scale, bonus_coef, until
        self.horizon = potential.horizon
        self.steps = 0
        self._metrics: dict[str, float] = {}

    def rewards(self, rollout: Rollout) -> NDArray[np.float32]:
        """(T, N) float32."""
        phi, phi_final = self.values(rollout)
        weight = self.bonus_coef * (max(0.0, 1.0 - self.steps / self.until) if self.until else 1.0)
        bonus = self.paid(rollout, weight * next_potentials(rollout, phi, phi_final))
        self.steps += bonus.size
        self._metrics = {**shaping_metrics(phi, bonus), "shaping/weight": weight}
        return (self.reward_scale * rollout.rewards + bonus).astype(np.float32)

    def paid(self, rollout: Rollout, bonus: NDArray[np.float64]) -> NDArray[np.float64]:
        """(T, N) what is paid when (T, N) `bonus` has been earned."""
        del rollout
        return bonus

    def metrics(self) -> dict[str, float]:
        """Mean and spread of Φ and of the bonus in the last rollout."""
        return dict(self._metrics)

    def state(self) -> dict[str, np.ndarray | Tensor]:
        """Steps taken, for the decay."""
        return {"steps": np.array(self.steps, np.int64)}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Take back what `state` returned."""
        self.steps = int(state["steps"])


MOST_OWED = 1e15
"""Larger debts are settled at once: the squares of many of them still have a sum in float32, which losses need."""


class InvariantBonus(Bonus):
    """A bonus that each terminated episode gives back with its last action: Σ γ^t F_t = 0.

    What an episode owes grows by 1/γ a step: where it would outgrow `MOST_OWED`, the action pays it back and earns no
    bonus. The sum is 0 all the same, for it does not matter when a debt is paid. A time limit is not an end: the debt
    stays with the bootstrapped value, as the rest of the episode does.
    """

    def __init__(
        self,
        potential: Potential,
        gamma: float,
        *,
        num_envs: int,
        reward_scale: float = 1.0,
        bonus_coef: float,
        shift: float = 0.0,
    ) -> None:
        super().__init__(potential, gamma, reward_scale=reward_scale, bonus_coef=bonus_coef, shift=shift)
        self.owed = np.zeros(num_envs)

    def paid(self, rollout: Rollout, bonus: NDArray[np.float64]) -> NDArray[np.float64]:
        """(T, N): the bonus, and minus all that is owed where an episode terminates or the debt would be too large."""
        paid = bonus.copy()
        self.owed[rollout.ages[0] == 0] = 0.0  # worlds that a checkpoint could not put back begin anew
        for t in range(rollout.num_steps):
            owed = (self.owed + bonus[t]) / self.gamma
            settled = rollout.terminated[t] | (np.abs(owed) > MOST_OWED)
            paid[t] = np.where(settled, -self.owed, bonus[t])
            self.owed = np.where(settled | rollout.truncated[t], 0.0, owed)
        return paid

    def state(self) -> dict[str, np.ndarray | Tensor]:
        """Steps taken, and what each world's episode owes."""
        return {**super().state(), "owed": self.owed}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Take back what `state` returned."""
        super().restore(state)
        self.owed = np.array(state["owed"], np.float64)
