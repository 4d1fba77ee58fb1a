"""The shaped reward as a reward stream: the env's reward plus exact potential-based shaping."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bkrl.data.windows import Rollout, Transitions, Windows
from bkrl.potentials.protocol import Potential, Scaled, finite_values
from bkrl.rewards.shaping import shaping_rewards
from bkrl.rewards.streams import RewardStream


class PotentialOfRollout:
    """Φ + shift of every window of one rollout after another.

    Args:
        potential: Φ, of any horizon.
        shift: added to Φ.
        terminal: whether final windows of terminated episodes are evaluated too. Shaping takes 0 for them, whatever Φ
            says, so reward streams leave them out, and their values are 0 here.
    """

    def __init__(self, potential: Potential, shift: float = 0.0, *, terminal: bool = True) -> None:
        self.potential = potential
        self.shift = np.float32(shift)
        self.terminal = terminal
        self.reads = potential.reads
        self._bootstrap: tuple[Windows, NDArray[np.float32]] | None = None

    def __call__(self, rollout: Rollout) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Φ at rows 0..T, (T+1, N), and of the final windows, (K,), one batch for the potential.

        Row 0 is the row the last rollout bootstrapped from: its Φ is kept, once the windows are seen to be the same.
        """
        steps, envs = rollout.rewards.shape
        kept = self._kept(rollout)
        first = 0 if kept is None else 1
        wanted = np.ones(len(rollout.final_index), bool)
        if not self.terminal:
            wanted = ~rollout.terminated.ravel()[rollout.final_index]
            rollout = replace(rollout, final_index=rollout.final_index[wanted], final_views=rollout.final_views[wanted])
        values = self._evaluate(rollout, first) + self.shift
        rows = (steps + 1 - first) * envs
        phi = np.empty((steps + 1, envs), np.float32)
        if kept is not None:
            phi[0] = kept
        phi[first:] = values[:rows].reshape(-1, envs)
        self._bootstrap = (rollout.windows(self.reads.horizon, steps, steps), phi[-1].copy())
        final = np.zeros(len(wanted), np.float32)
        final[wanted] = values[rows:]
        return phi, final

    def state(self) -> dict[str, NDArray[Any]]:
        """The last row's windows and what they were given: arrays by name, none before the first rollout."""
        if self._bootstrap is None:
            return {}
        windows, values = self._bootstrap
        return {**windows.arrays(), "values": values}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        arrays = {name: array for name, array in state.items() if name != "values"}
        self._bootstrap = (Windows.of(**arrays), state["values"]) if state else None

    def of_windows(self, windows: Windows) -> NDArray[np.floating]:
        """(B,) Φ + shift of single windows."""
        if isinstance(self.potential, Scaled):
            return self.potential(windows) + self.shift
        return finite_values(self.potential(windows), len(windows), type(self.potential).__name__) + self.shift

    def _evaluate(self, rollout: Rollout, first: int) -> NDArray[np.float32]:
        """Φ at rows `first`..T and of the final windows, in one batch."""
        if isinstance(self.potential, Scaled):
            return self.potential.of_rollout(rollout, first)
        parts = [rollout.windows(self.reads.horizon, first), rollout.final_windows(self.reads.horizon)]
        name = type(self.potential).__name__  # of one's own, so its values are looked at
        values = [finite_values(self.potential(part), len(part), name) for part in parts if len(part)]
        return np.concatenate(values).astype(np.float32)

    def _kept(self, rollout: Rollout) -> NDArray[np.float32] | None:
        if self._bootstrap is None:
            return None
        then, values = self._bootstrap
        before, now = then.arrays(), rollout.windows(self.reads.horizon, 0, 0).arrays()
        same = before.keys() == now.keys() and all(np.array_equal(before[name], now[name]) for name in now)
        return values if same else None


class ShapedReward(RewardStream):
    """reward_scale · r_t + shaping_coef · (γ Φ(h_{t+1}) - Φ(h_t)), with Φ(terminal) = 0, as a reward stream.

    One stream and not two: the shaped reward has one value function, which learns V(s) - Φ(h).

    Args:
        potential: Φ, of any horizon.
        gamma: the learner's discount; shaping keeps optimal policies only with the same one.
        reward_scale: factor of the env's reward.
        shaping_coef: factor of Φ (a scaled potential is a potential, so optimal policies stay).
        shift: added to Φ of all but terminal states (a shifted potential is one, too, but not as quick to learn with).
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
        shaping_coef: float = 1.0,
        shift: float = 0.0,
    ) -> None:
        self.values = PotentialOfRollout(potential, shift, terminal=False)
        self.gamma, self.reward_scale, self.shaping_coef = gamma, reward_scale, shaping_coef
        self.reads = potential.reads
        self._metrics: dict[str, float] = {}

    def rewards(self, rollout: Rollout) -> NDArray[np.float32]:
        phi, phi_final = self.potentials(rollout)
        paid = self.paid(rollout, phi, phi_final)
        self._metrics = {
            "shaping/phi_mean": float(phi.mean()),
            "shaping/phi_std": float(phi.std()),
            "shaping/reward_mean": float(paid.mean()),
            "shaping/reward_std": float(paid.std()),
            "shaping/reward_max_abs": float(np.abs(paid).max()),
        }
        return (self.reward_scale * rollout.rewards + paid).astype(np.float32)

    def transition_rewards(self, transitions: Transitions) -> NDArray[np.float32]:
        if self.whole:
            return super().transition_rewards(transitions)
        before = self.values.of_windows(transitions.before).astype(np.float64)
        after = np.where(transitions.terminated, 0.0, self.values.of_windows(transitions.after))
        return (self.reward_scale * transitions.rewards + self.paid_once(before, after)).astype(np.float32)

    def potentials(self, rollout: Rollout) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Φ at rows 0..T, (T+1, N), and of the final windows, (K,)."""
        return self.values(rollout)

    def paid(self, rollout: Rollout, phi: NDArray[np.float32], phi_final: NDArray[np.float32]) -> NDArray[np.floating]:
        """(T, N) what is added to the rewards; arguments as in `shaping_rewards`."""
        return shaping_rewards(rollout, self.shaping_coef * phi, self.shaping_coef * phi_final, self.gamma)

    def paid_once(self, before: NDArray[np.float64], after: NDArray[np.float64]) -> NDArray[np.float64]:
        """(B,) what is added to the rewards of transitions, where `after` is 0 if they terminate."""
        return self.shaping_coef * (self.gamma * after - before)

    def metrics(self) -> dict[str, float]:
        return dict(self._metrics)
