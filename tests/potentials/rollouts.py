"""Random rollouts with every kind of end, and the envs they were cut from."""

from __future__ import annotations

import numpy as np

from bkrl.data.views import Views
from bkrl.data.windows import Reads, Rollout, Windows


def rollout_of(
    horizon: int,
    observations: np.ndarray,
    actions: np.ndarray,
    ages: np.ndarray,
    rewards: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    final_index: np.ndarray,
    final_observations: np.ndarray,
    missions: np.ndarray | None = None,
) -> Rollout:
    """A rollout from (H+T+1, N) observations and (H+T, N) actions, whose first H rows are the history."""
    return Rollout(
        views=Views(observations[horizon:], mission=missions),
        final_views=Views(final_observations),
        final_index=final_index,
        actions=actions[horizon:],
        ages=ages,
        rewards=rewards,
        terminated=terminated,
        truncated=truncated,
        past=observations[:horizon],
        past_actions=actions[:horizon],
    )


def history(rollout: Rollout) -> tuple[np.ndarray, np.ndarray]:
    """(H+T+1, N) observations and (H+T, N) actions, with those before the first row."""
    shown = np.concatenate([rollout.past, rollout.views.symbols])
    return shown, np.concatenate([rollout.past_actions, rollout.actions])


def random_rollouts(
    seed: int, horizon: int, steps: int, num_envs: int, end_rate: float, count: int = 2, shape: tuple[int, ...] = (2,)
) -> list[Rollout]:
    """`count` consecutive rollouts of the same envs, history carried from one into the next."""
    rng = np.random.default_rng(seed)
    total = horizon + count * steps
    observations = rng.integers(1, 6, (total + 1, num_envs, *shape)).astype(np.uint8)
    actions = rng.integers(0, 4, (total, num_envs)).astype(np.int64)
    ended = rng.random((total, num_envs)) < end_rate
    ended[:horizon] = False
    ages = np.zeros((total + 1, num_envs), np.int32)
    for t in range(total):
        ages[t + 1] = np.where(ended[t], 0, ages[t] + 1)
    # nothing is known of what came before the first row, so episodes begin at the latest there
    truncated = ended & (rng.random(ended.shape) < 0.5)
    finals = rng.integers(1, 6, (total, num_envs, *shape)).astype(np.uint8)
    rollouts = []
    for start in range(horizon, total, steps):
        part = slice(start, start + steps)
        index = np.flatnonzero(ended[part].ravel())
        rollouts.append(
            rollout_of(
                horizon,
                observations[start - horizon : start + steps + 1],
                actions[start - horizon : start + steps],
                ages[start : start + steps + 1],
                rng.normal(size=(steps, num_envs)).astype(np.float32),
                (ended & ~truncated)[part],
                truncated[part],
                index.astype(np.int64),
                finals[part].reshape(-1, *shape)[index],
            )
        )
    return rollouts


class HashPotential:
    """Φ(h) = a number in [-1, 0] that depends on every byte of the window."""

    def __init__(self, horizon: int) -> None:
        self.reads = Reads(horizon)
        self.evaluated = 0

    def __call__(self, windows: Windows) -> np.ndarray:
        self.evaluated += len(windows)
        if len(windows) == 0:
            return np.zeros(0, np.float32)
        flat = windows.observations.reshape(len(windows), -1).astype(np.int64)
        weights = np.arange(1, flat.shape[1] + 1) ** 2
        total = (flat * weights).sum(1) + (windows.actions * 31 + 7).sum(1) + windows.valid.sum(1) * 101
        return (-(total % 97) / 97.0).astype(np.float32)
