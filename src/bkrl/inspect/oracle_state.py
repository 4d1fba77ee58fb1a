"""The full-state oracle: minus the actions that are left to success in the true state of the world.

A control for reference, never for claims. It knows the whole map and the task; neither a policy nor any other potential
does. What it says comes with the rollout (`Rollout.distances`), which only worlds that were asked to know it fill in,
so that nobody else pays for it. Shaping with it is exact all the same: Φ is a fixed function of the state.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bkrl.core.errors import InputError, UsageError
from bkrl.core.registry import did_you_mean
from bkrl.core.seeds import derive_seed, generator
from bkrl.data.windows import Rollout, Windows
from bkrl.envs import make_vec
from bkrl.envs.babyai.levels import LEVELS
from bkrl.inspect.certificate import Certificate, Check, constant_potential, in_range, policies, telescoping
from bkrl.potentials.protocol import Artefact, Scale, Scaled
from bkrl.rewards.shaped import PotentialOfRollout
from bkrl.rewards.shaping import shaping_rewards

KIND = "state"
NEAREST = -1.0
"""Success takes one action at least, so no state is worth more."""
_WORLDS = 32
_STEPS = 500
_NO_WINDOWS = "it is a function of the world's full state and sees no windows"


class StateOracle(Scaled):
    """Φ of rollouts alone: a recorded window does not hold the state."""

    def __init__(self, artefact: Artefact) -> None:
        self.artefact = artefact
        self.horizon = 0

    def __call__(self, windows: Windows) -> NDArray[np.float32]:
        del windows
        raise InputError(
            f"A full-state oracle ({self.artefact.folder}) cannot judge what was recorded, which does not hold the "
            "state: train with it (`bkrl train-rs`), check it (`bkrl check-potential`), or use --control oracle."
        )

    def of_rollout(self, rollout: Rollout, first: int = 0) -> NDArray[np.float32]:
        """Φ at rows `first`..T of every world and then in the last states, in one flat array."""
        if rollout.distances is None or rollout.final_distances is None:
            raise InputError("A full-state oracle needs worlds that know how far success is: distances=True.")
        steps = np.concatenate([rollout.distances[first:].ravel(), rollout.final_distances])
        return self.artefact.scale(-steps.astype(np.float64))

    def close(self) -> None:
        """Nothing runs beside it."""


def load(artefact: Artefact) -> StateOracle:
    """The oracle that an artefact of kind "state" describes."""
    return StateOracle(artefact)


def check_task(env_id: str) -> None:
    """Refuse, with a UsageError, a task whose distance to success is not known."""
    if env_id not in LEVELS:
        nearest = did_you_mean(env_id, LEVELS)
        raise UsageError(
            f"No full-state oracle is known for '{env_id}': name a BabyAI-Text level with --task.{nearest}"
        )


def measured_scale(rollouts: list[Rollout]) -> Scale:
    """From the 1st percentile of minus the steps left in play to the state in which one action is left."""
    steps = np.concatenate([rollout.distances[:-1].ravel() for rollout in rollouts if rollout.distances is not None])
    known = -steps[np.isfinite(steps)].astype(np.float64)
    if not len(known) or known.min() == NEAREST:
        raise InputError("In play success was one action away, or out of reach, in every state: there is no scale.")
    return Scale(min(float(np.percentile(known, 1, method="closest_observation")), NEAREST - 1), NEAREST)


def play(env_id: str, seed: int, order: NDArray[np.int64] | None = None) -> list[Rollout]:
    """Two consecutive rollouts in which episodes succeed and run out of time, without a policy.

    Half of the worlds act at random; the others repeat an action for as long as it brings success nearer.

    Args:
        env_id: a task whose worlds know the distance; UsageError for any other.
        seed: of worlds and actions.
        order: (32,) a permutation: which world stands in each place.
    """
    T, N = 2 * _STEPS, _WORLDS
    envs = make_vec(env_id, N, distances=True)
    order = np.arange(N) if order is None else order
    drawn = generator(seed, "oracle-state", env_id).integers(len(envs.world.action_names), size=(T, N))[:, order]
    seeds = derive_seed(seed, "oracle-state", "worlds")
    first, _ = envs.reset(seed=[seeds + int(n) for n in order])  # type: ignore[arg-type]
    observations = np.zeros((T + 1, *first.shape), np.uint8)
    ages, distances = np.zeros((T + 1, N), np.int32), np.zeros((T + 1, N), np.float32)
    actions, rewards = np.zeros((T, N), np.int64), np.zeros((T, N), np.float32)
    terminated, truncated = np.zeros((T, N), bool), np.zeros((T, N), bool)
    finals, final_distances = [first[:0]], [distances[0, :0]]
    observations[0], distances[0] = first, envs.distances()
    for t in range(T):
        nearer = (order % 2 == 1) & (distances[t] < distances[t - 1])
        actions[t] = np.where(nearer, actions[t - 1], drawn[t])
        observations[t + 1], rewards[t], terminated[t], truncated[t], infos = envs.step(actions[t])
        distances[t + 1] = envs.distances()
        ended = terminated[t] | truncated[t]
        ages[t + 1] = np.where(ended, 0, ages[t] + 1)
        if ended.any():
            finals.append(infos["final_obs"][ended])
            final_distances.append(infos["final_distance"][ended])
    envs.close()
    index = np.flatnonzero(terminated | truncated)
    rollouts = []
    for start in (0, _STEPS):
        now, rows = slice(start, start + _STEPS), slice(start, start + _STEPS + 1)
        here = index // N // _STEPS == start // _STEPS
        rollouts.append(
            Rollout(
                horizon=0,
                observations=observations[rows],
                actions=actions[now],
                ages=ages[rows],
                rewards=rewards[now],
                terminated=terminated[now],
                truncated=truncated[now],
                final_index=index[here] - start * N,
                final_observations=np.concatenate(finals)[here],
                distances=distances[rows],
                final_distances=np.concatenate(final_distances)[here],
            )
        )
    return rollouts


def certify(potential: StateOracle, seed: int = 0) -> Certificate:
    """The checks of `bkrl.inspect.certificate` that a function of the state can be put to, on `play`."""
    env_id = potential.artefact.env_id
    rollouts = play(env_id, seed)
    values = [PotentialOfRollout(potential)(rollout) for rollout in rollouts]
    order = generator(seed, "oracle-state", "order").permutation(_WORLDS)
    moved = [PotentialOfRollout(potential)(rollout)[0] for rollout in play(env_id, seed, order)]
    same = all(np.array_equal(phi[:, order], other) for (phi, _), other in zip(values, moved, strict=True))
    everything = np.concatenate([part.ravel() for pair in values for part in pair])
    checks = [
        telescoping(potential, rollouts, shaping_rewards),
        policies(shaping_rewards),
        constant_potential(rollouts, shaping_rewards),
        Check("worlds", same, "exchanging worlds exchanges their Φ" if same else "a world's Φ depends on other worlds"),
        in_range(everything, len(everything), "states"),
    ]
    return Certificate(checks, dict.fromkeys(("batches", "present", "units"), _NO_WINDOWS))
