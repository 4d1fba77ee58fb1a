"""The vector environment every world speaks: arrays in, arrays out, SAME_STEP autoreset, dense `final_obs`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from bkrl.envs.world import World

Obs = Any  # a uint8 array (N, *shape), or a dict of such arrays


class WorldVectorEnv(VectorEnv[Any, Any, Any]):
    """A `gymnasium.vector.VectorEnv` with SAME_STEP autoreset over N copies of one world.

    A step that ends world i's episode returns the first observation of its next episode; the true last one stands
    in `infos["final_obs"][i]`, with the mask `infos["_final_obs"]`. Both keys, and `infos["episode"]` (`r`, `l`)
    with `infos["_episode"]`, are there only when some episode ended. `infos["success"]` is always there.

    Seeds: `reset(seed=s)` seeds world i with s + i; a list gives each its own. Without a seed a world goes on drawing
    from its own stream, also when it resets itself.
    """

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.SAME_STEP, "render_modes": ["rgb_array"]}  # noqa: RUF012
    world: World

    def missions(self) -> list[str]:
        """The mission of each running episode, "" where the world has none."""
        raise NotImplementedError

    def distances(self) -> NDArray[np.float32] | None:
        """(N,) the fewest actions to success from the full state of each world, infinite where there is no way.

        None unless the worlds were made with `distances=True`. If they were, `infos["final_distance"]` (N,) holds, on
        steps that ended an episode, the distances before any world was reset.
        """
        return None

    def rest(self, worlds: NDArray[np.bool_]) -> None:
        """The running episodes of these worlds (N,) are their last: what comes after them nobody looks at.

        Such a world may stand still from the end of its episode to its next reset, where that saves time. What it
        shows and reports meanwhile means nothing.
        """

    def frame(self, index: int) -> NDArray[np.uint8]:
        """An (H, W, 3) picture of world `index`."""
        raise NotImplementedError

    def snapshot(self) -> dict[str, NDArray[Any]]:
        """The full state of all worlds, random streams included, as plain arrays."""
        raise NotImplementedError(f"{type(self).__name__} cannot be saved; use the native backend")

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Go back to a snapshot: what follows is what followed it."""
        raise NotImplementedError(f"{type(self).__name__} cannot be restored; use the native backend")


def seeds_of(seed: int | Sequence[int | None] | None, num_envs: int) -> list[int | None]:
    """One seed (or None) for each world, by Gymnasium's convention."""
    if seed is None:
        return [None] * num_envs
    if isinstance(seed, (int, np.integer)):
        return [int(seed) + i for i in range(num_envs)]
    if len(seed) != num_envs:
        raise ValueError(f"{len(seed)} seeds were given for {num_envs} worlds")
    return [None if s is None else int(s) for s in seed]


def reset_mask_of(options: dict[str, Any] | None, num_envs: int) -> NDArray[np.bool_]:
    """Which worlds `reset(options={"reset_mask": …})` is about: all of them unless it says otherwise."""
    unknown = set(options or {}) - {"reset_mask"}
    if unknown:
        raise ValueError(f"unknown reset option {sorted(unknown)[0]!r}; only 'reset_mask' is known")
    mask = (options or {}).get("reset_mask")
    if mask is None:
        return np.ones(num_envs, bool)
    mask = np.asarray(mask)
    if mask.shape != (num_envs,) or mask.dtype != bool:
        raise ValueError(f"reset_mask must be ({num_envs},) bool, not {mask.shape} {mask.dtype}")
    if not mask.any():
        raise ValueError("reset_mask chooses no world")
    return mask


def checked_actions(actions: Any, num_envs: int, num_actions: int) -> NDArray[np.int64]:
    """(N,) int64 actions; ValueError for a wrong shape, dtype or range, before anything has moved."""
    actions = np.asarray(actions)
    if actions.shape != (num_envs,):
        raise ValueError(f"actions must have shape ({num_envs},), not {actions.shape}")
    if not np.issubdtype(actions.dtype, np.integer):
        raise ValueError(f"actions must be integers, not {actions.dtype}")
    if actions.size and (actions.min() < 0 or actions.max() >= num_actions):
        raise ValueError(f"actions must lie in 0..{num_actions - 1}")
    return actions.astype(np.int64, copy=False)


class ReferenceVectorEnv(WorldVectorEnv):
    """N ordinary environments stepped one after the other: slow, obvious, and the ground truth of the engines.

    Each environment reports `info["success"]` and has a `mission` attribute on its unwrapped self.
    """

    def __init__(self, world: World, make: Callable[[], gymnasium.Env[Any, Any]], num_envs: int) -> None:
        if num_envs < 1:
            raise ValueError("num_envs must be at least 1")
        self.world = world
        self.num_envs = num_envs
        self.envs = [make() for _ in range(num_envs)]
        self.single_observation_space = self.envs[0].observation_space
        self.single_action_space = self.envs[0].action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._last: list[Any] = [None] * num_envs
        self._returns = np.zeros(num_envs, np.float64)
        self._lengths = np.zeros(num_envs, np.int64)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Obs, dict[str, Any]]:
        """Start new episodes in all worlds, or in those of `options["reset_mask"]`."""
        mask = reset_mask_of(options, self.num_envs)
        for i, one_seed in enumerate(seeds_of(seed, self.num_envs)):
            if mask[i]:
                self._last[i], _ = self.envs[i].reset(seed=one_seed)
                self._returns[i] = self._lengths[i] = 0
        if any(obs is None for obs in self._last):
            raise ValueError("the first reset must be of all worlds")
        return self._stack(self._last), {"success": np.zeros(self.num_envs, bool)}

    def step(
        self, actions: Any
    ) -> tuple[Obs, NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """One action in every world; worlds whose episode ends start the next one in the same step."""
        if self._last[0] is None:
            raise RuntimeError("step before reset: call reset() first")
        actions = checked_actions(actions, self.num_envs, int(self.single_action_space.n))  # type: ignore[attr-defined]
        rewards = np.zeros(self.num_envs, np.float32)
        terminated = np.zeros(self.num_envs, bool)
        truncated = np.zeros(self.num_envs, bool)
        infos: dict[str, Any] = {"success": np.zeros(self.num_envs, bool)}
        final: list[Any] = []
        for i, env in enumerate(self.envs):
            obs, reward, terminated[i], truncated[i], info = env.step(int(actions[i]))
            rewards[i] = reward
            self._returns[i] += float(reward)
            self._lengths[i] += 1
            infos["success"][i] = info.get("success", False)
            final.append(obs)
            self._last[i] = obs
        done = terminated | truncated
        if done.any():
            infos["final_obs"], infos["_final_obs"] = self._stack(final), done.copy()
            infos["episode"] = {"r": np.where(done, self._returns, 0.0), "l": np.where(done, self._lengths, 0)}
            infos["_episode"] = done.copy()
            for i in map(int, np.flatnonzero(done)):
                self._last[i], _ = self.envs[i].reset()
                self._returns[i] = self._lengths[i] = 0
        return self._stack(self._last), rewards, terminated, truncated, infos

    def missions(self) -> list[str]:
        """The mission of each running episode."""
        return [str(getattr(env.unwrapped, "mission", "") or "") for env in self.envs]

    def frame(self, index: int) -> NDArray[np.uint8]:
        """A picture of world `index`; the environments must have been made with render_mode="rgb_array"."""
        return np.asarray(self.envs[index].render(), np.uint8)

    def close_extras(self, **kwargs: Any) -> None:
        """Close the environments."""
        del kwargs
        for env in self.envs:
            env.close()

    def _stack(self, observations: Sequence[Any]) -> Obs:
        if isinstance(observations[0], dict):
            return {key: np.stack([obs[key] for obs in observations]) for key in observations[0]}
        return np.stack(observations)
