"""Φ paid as a plain bonus: the forms of shaping that are not potential-based, and one that is made so.

`additive` pays c · Φ(h_{t+1}) for action t, always. `decay` pays the same with a weight that falls to 0. `progress`
pays what Φ has grown by, with such a weight. `pbim` pays what `additive` does and takes it back where the episode
terminates (potential-based intrinsic motivation, Forbes et al. 2024), so that every finished episode's discounted sum
of bonuses is 0, whatever was done in it.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from bkrl.data.windows import Rollout, Transitions
from bkrl.potentials.protocol import Potential
from bkrl.rewards.shaped import ShapedReward
from bkrl.rewards.shaping import next_potentials


class Bonus(ShapedReward):
    """reward_scale · r_t + weight · Φ(h_{t+1}), with Φ(terminal) = 0, as a reward stream.

    A learner of single transitions sets `steps` itself.

    Args:
        potential, gamma, reward_scale, shift: as in `ShapedReward`.
        shaping_coef: the weight at first.
        until: environment steps after which the weight has fallen linearly to 0; 0: it stays.
    """

    def __init__(self, potential: Potential, gamma: float, *, until: int = 0, **factors: Any) -> None:
        super().__init__(potential, gamma, **factors)
        self.until, self.steps = until, 0

    @property
    def weight(self) -> float:
        """The factor of Φ after `steps` steps."""
        return self.shaping_coef * (max(0.0, 1.0 - self.steps / self.until) if self.until else 1.0)

    def rewards(self, rollout: Rollout) -> NDArray[np.float32]:
        weight, rewards = self.weight, super().rewards(rollout)
        self.steps += rewards.size
        self._metrics["shaping/weight"] = weight
        return rewards

    def paid(self, rollout: Rollout, phi: NDArray[np.float32], phi_final: NDArray[np.float32]) -> NDArray[np.floating]:
        return self.weight * next_potentials(rollout, phi, phi_final)

    def paid_once(self, before: NDArray[np.float64], after: NDArray[np.float64]) -> NDArray[np.float64]:
        return self.weight * after

    def state(self) -> dict[str, np.ndarray | Tensor]:
        return {"steps": np.array(self.steps, np.int64)}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        self.steps = int(state["steps"])


class Progress(Bonus):
    """reward_scale · r_t + weight · (Φ(h_{t+1}) - Φ(h_t)), as a reward stream: what is won for Φ is kept at the end.

    Undiscounted, and with Φ of the true last history where an episode terminates, too. So an episode is paid Φ(end) -
    Φ(start) for whatever it did, nothing for waiting, and, since Φ lies in [-1, 0], never more than the weight.
    """

    def __init__(self, potential: Potential, gamma: float, **factors: Any) -> None:
        super().__init__(potential, gamma, **factors)
        self.values.terminal = True

    def transition_rewards(self, transitions: Transitions) -> NDArray[np.float32]:
        before = self.values.of_windows(transitions.before).astype(np.float64)
        paid = self.weight * (self.values.of_windows(transitions.after) - before)
        return (self.reward_scale * transitions.rewards + paid).astype(np.float32)

    def paid(self, rollout: Rollout, phi: NDArray[np.float32], phi_final: NDArray[np.float32]) -> NDArray[np.floating]:
        after = phi[1:].astype(np.float64)
        after.reshape(-1)[rollout.final_index] = phi_final
        return self.weight * (after - phi[:-1])


MAX_DEBT = 1e15
"""Above this the debt is paid back at once, so that float32 losses, which sum squares, stay finite."""


class InvariantBonus(Bonus):
    """A bonus that each terminated episode gives back with its last action: Σ γ^t F_t = 0.

    What an episode owes grows by 1/γ a step: where it would outgrow `MAX_DEBT`, the action pays it back and earns no
    bonus. The sum is 0 all the same, for it does not matter when a debt is paid. A time limit is not an end: the debt
    stays with the bootstrapped value, as the rest of the episode does.
    """

    whole = "pbim takes bonuses back where their episode ends"

    def __init__(self, potential: Potential, gamma: float, *, num_envs: int, **factors: Any) -> None:
        super().__init__(potential, gamma, **factors)
        self.owed = np.zeros(num_envs)

    def paid(self, rollout: Rollout, phi: NDArray[np.float32], phi_final: NDArray[np.float32]) -> NDArray[np.floating]:
        """(T, N): the bonus, and minus all that is owed where an episode terminates or the debt would be too large."""
        bonus = super().paid(rollout, phi, phi_final)
        paid = bonus.copy()
        self.owed[rollout.ages[0] == 0] = 0.0  # envs that a checkpoint could not put back begin anew
        for t in range(rollout.num_steps):
            owed = (self.owed + bonus[t]) / self.gamma
            settled = rollout.terminated[t] | (np.abs(owed) > MAX_DEBT)
            paid[t] = np.where(settled, -self.owed, bonus[t])
            self.owed = np.where(settled | rollout.truncated[t], 0.0, owed)
        return paid

    def state(self) -> dict[str, np.ndarray | Tensor]:
        return {**super().state(), "owed": self.owed}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        super().restore(state)
        self.owed = np.array(state["owed"], np.float64)
