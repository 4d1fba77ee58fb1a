"""The native vector environment of BabyAI and MiniGrid worlds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from bkrl.envs.babyai.constants import OBS_SHAPE
from bkrl.envs.babyai.engine import Engine
from bkrl.envs.vector import WorldVectorEnv, checked_actions, reset_mask_of, seeds_of
from bkrl.envs.world import World


class BabyAIVectorEnv(WorldVectorEnv):
    """N worlds on the native engine, equal step for step to as many `ReferenceBabyAI`; see `WorldVectorEnv`.

    Args:
        world: the facts of the id.
        num_envs: N.
        threads: threads to step with; more than one pays from a few hundred worlds on.
        distances: know the distance to success, see `WorldVectorEnv.distances` (published levels alone).
    """

    def __init__(self, world: World, num_envs: int, threads: int = 1, distances: bool = False) -> None:
        if num_envs < 1 or threads < 1:
            raise ValueError("num_envs and threads must be at least 1")
        self.world = world
        self.num_envs = num_envs
        self.render_mode = "rgb_array"
        self.single_observation_space = gym.spaces.Box(0, 255, OBS_SHAPE, np.uint8)
        self.single_action_space = gym.spaces.Discrete(len(world.action_names))
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.engine = Engine(world.env_id, num_envs, threads)
        self._knows_distances = distances

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Start new episodes in all worlds, or in those of `options["reset_mask"]` (N,) bool."""
        chosen = reset_mask_of(options, self.num_envs)
        seeds = seeds_of(seed, self.num_envs)
        if any(one is not None and one < 0 for one in seeds):
            raise ValueError("seeds must not be negative")
        if not self.engine.begun and not chosen.all():
            raise ValueError("the first reset must be of all worlds")
        self.engine.seed(seeds, chosen)
        self.engine.begin(chosen)
        return self._views(), {"success": np.zeros(self.num_envs, np.bool_)}

    def step(
        self, actions: Any
    ) -> tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """One action in every world; worlds whose episode ends start the next one in the same step."""
        if not self.engine.begun:
            raise RuntimeError("step before reset: call reset() first")
        checked = checked_actions(actions, self.num_envs, len(self.world.action_names))
        shown, rewards, terminated, truncated, ended = self.engine.step(checked)
        infos: dict[str, Any] = {"success": terminated & (rewards > 0)}
        if ended:
            done = terminated | truncated
            which = np.flatnonzero(done)
            final = np.zeros_like(shown)  # the other worlds have none
            final[which] = shown[which]
            infos["final_obs"], infos["_final_obs"] = final.reshape(self.num_envs, *OBS_SHAPE), done
            worlds = self.engine.worlds
            returns, lengths = np.zeros(self.num_envs), np.zeros(self.num_envs, np.int64)
            returns[which], lengths[which] = worlds["episode_return"][which], worlds["steps"][which]
            infos["episode"], infos["_episode"] = {"r": returns, "l": lengths}, done.copy()
            if self._knows_distances:
                infos["final_distance"] = self.engine.distances()
            self.engine.begin(done)
            shown[which] = self.engine.observations[which]
        return shown.reshape(self.num_envs, *OBS_SHAPE), rewards, terminated, truncated, infos

    def missions(self) -> list[str]:
        """The mission of each running episode."""
        return self.engine.missions()

    def distances(self) -> NDArray[np.float32] | None:
        """(N,) the fewest actions to success, objects left where they lie; None unless asked for."""
        return self.engine.distances() if self._knows_distances else None

    def frame(self, index: int) -> NDArray[np.uint8]:
        """A picture of world `index`, (H, W, 3) uint8."""
        if not self.engine.begun:
            raise RuntimeError("frame before reset: call reset() first")
        return self.engine.frame(index)

    def render(self) -> tuple[NDArray[np.uint8], ...]:
        """A picture of every world."""
        return tuple(self.frame(i) for i in range(self.num_envs))

    def snapshot(self) -> dict[str, NDArray[Any]]:
        """The full state of all worlds, random streams included, as plain arrays."""
        if not self.engine.begun:
            raise RuntimeError("there is nothing to save before the first reset")
        return self.engine.snapshot()

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Go back to a snapshot of the same id and number of worlds; InputError, and no change, for any other."""
        self.engine.restore(state)

    def close_extras(self, **kwargs: Any) -> None:
        """Let the threads go."""
        del kwargs
        self.engine.close()

    def _views(self) -> NDArray[np.uint8]:
        """The views as an array of the caller's own."""
        return self.engine.observations.reshape(self.num_envs, *OBS_SHAPE).copy()
