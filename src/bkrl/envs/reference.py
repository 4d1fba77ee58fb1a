"""The reference backend: ordinary environments behind the interface of the native engines."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import Env
from numpy.typing import NDArray

from bkrl.envs.family import EnvSpec
from bkrl.envs.single import BaseEnv
from bkrl.envs.vector import BaseVectorEnv, Moved, Obs

Make = Callable[[], Env[Any, Any]]
_TOLD = ("action_success", "eval_success", "deed", "deed_thing", "deed_place")
"""What the infos of engines hold at every step, where those of single environments do."""


class ReferenceVectorEnv(BaseVectorEnv):
    """N ordinary environments stepped one after the other: slow, obvious, and the ground truth of the engines.

    Each environment reports `info["success"]` and has a `mission` attribute on its unwrapped self.

    Args:
        make: makes one environment; `achievements` are its family's, the others are those of `BaseVectorEnv`.
    """

    def __init__(
        self, env_spec: EnvSpec, make: Make, num_envs: int, achievements: Sequence[str] = (), **kwargs: Any
    ) -> None:
        self.envs = [make() for _ in range(max(num_envs, 1))]
        made = self.envs[0].unwrapped
        if isinstance(made, BaseEnv) and made.env_spec.env_id == env_spec.env_id:  # not one that one's own env wraps
            env_spec = made.env_spec  # with the options that it was made with
        super().__init__(env_spec, num_envs, self.envs[0].observation_space, **kwargs)
        self._achievements = achievements
        self._shown: list[Any] = [None] * num_envs
        self._infos: list[dict[str, Any]] = [{} for _ in range(num_envs)]
        self._returns = np.zeros(num_envs, np.float64)
        self._lengths = np.zeros(num_envs, np.int64)

    def about(self) -> dict[str, Any]:
        kinds = [getattr(env.unwrapped, "task_kind", None) for env in self.envs]
        about: dict[str, Any] = {} if kinds[0] is None else {"task_kind": np.array(kinds, object)}
        told = [key for key in _TOLD if all(key in info for info in self._infos)]
        return about | {key: np.array([info[key] for info in self._infos]) for key in told}

    def _at_end(self, done: NDArray[np.bool_]) -> dict[str, Any]:
        told = [info.get("metrics", {}) if ended else {} for info, ended in zip(self._infos, done, strict=True)]
        if names := dict.fromkeys(name for one in told for name in one):
            metrics = {name: np.array([one.get(name, np.nan) for one in told]) for name in names}
            return {"metrics": metrics, "_metrics": done.copy()}
        if not self._achievements:
            return {}
        unlocked = [[info["achievements"][name] for name in self._achievements] for info in self._infos]
        return {"achievements": np.where(done[:, None], np.array(unlocked, np.int32), 0), "_achievements": done.copy()}

    def _missions_of(self, which: NDArray[np.int64]) -> list[str]:
        return [str(getattr(self.envs[i].unwrapped, "mission", "") or "") for i in which.tolist()]

    def frame(self, index: int) -> NDArray[np.uint8]:
        """A picture of env `index`; NotImplementedError where its `render` gives none."""
        self._check_begun("frame")
        if not isinstance(shown := self.envs[index].render(), np.ndarray):
            raise NotImplementedError(f"{self.env_spec.env_id} gives no pictures")
        return shown.astype(np.uint8)

    def close_extras(self, **kwargs: Any) -> None:
        """Close the environments."""
        for env in self.envs:
            env.close()

    def _begin(self, chosen: NDArray[np.bool_], seeds: Sequence[int | None] | None) -> None:
        for i in np.flatnonzero(chosen).tolist():
            self._shown[i], self._infos[i] = self.envs[i].reset(seed=None if seeds is None else seeds[i])
            self._returns[i] = self._lengths[i] = 0

    def _act(self, actions: NDArray[np.int64], idle: NDArray[np.bool_]) -> Moved:
        rewards = np.zeros(self.num_envs, np.float32)
        terminated, truncated, success = (np.zeros(self.num_envs, bool) for _ in range(3))
        for i in np.flatnonzero(~idle).tolist():
            self._shown[i], reward, terminated[i], truncated[i], info = self.envs[i].step(int(actions[i]))
            self._infos[i] = info
            rewards[i] = reward
            self._returns[i] += float(reward)
            self._lengths[i] += 1
            success[i] = info.get("success", False)
            self._unread[i] |= self._missions[i] != self._missions_of(np.array([i]))[0]
        return self._views(), rewards, terminated, truncated, success

    def _views(self, which: Any = ...) -> Obs:
        shown = self._shown if which is ... else [self._shown[i] for i in which]
        if isinstance(shown[0], dict):
            return {key: np.stack([obs[key] for obs in shown]) for key in shown[0]}
        return np.stack(shown)

    def _scores(self, which: Any = ...) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        return self._returns[which], self._lengths[which]
