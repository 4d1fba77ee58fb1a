"""Crafter as a `gymnasium.vector.VectorEnv`, on the engine."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bkrl.core.errors import InputError
from bkrl.envs.crafter.engine import CrafterEngine
from bkrl.envs.crafter.options import FRAME_SCALE, checked_length, observation_space
from bkrl.envs.crafter.rules import ACHIEVEMENTS, ITEMS
from bkrl.envs.crafter.state import HEALTH
from bkrl.envs.crafter.tasks import TaskTracker, tracker_of
from bkrl.envs.family import EnvSpec
from bkrl.envs.vector import EngineVectorEnv, Moved, Obs, rows_of


class CrafterVectorEnv(EngineVectorEnv):
    """N Crafter envs; see `BaseVectorEnv`.

    Args:
        observation: "symbolic" (N, 82), "image" (N, 64, 64, 3), or "both": a dict with these two keys; all uint8.
        length: actions after which an episode is truncated; without it, the id's own limit.
        subgoals: for a typed task, one of `tasks.SUBGOALS`.
        threads: envs are split among this many threads; the results do not depend on it.

    In typed envs `infos` always holds `action_success` and `eval_success`, (N,) bool: see `rules`. On steps that end
    an episode `infos` also holds `achievements` (N, 22) int32, how often each was unlocked in the
    episodes that ended, with the mask `_achievements`.
    """

    def __init__(
        self,
        env_spec: EnvSpec,
        num_envs: int,
        observation: str = "symbolic",
        length: int | None = None,
        subgoals: str = "hidden",
        threads: int = 1,
        **kwargs: Any,
    ) -> None:
        length = checked_length(env_spec.max_steps if length is None else length)
        super().__init__(replace(env_spec, max_steps=length), num_envs, observation_space(observation), **kwargs)
        self.engine = CrafterEngine(env_spec.env_id, num_envs, observation, length, threads)
        self._observation = observation
        self._tracker = tracker_of(env_spec.env_id, num_envs, subgoals)

    def frame(self, index: int) -> NDArray[np.uint8]:
        self._check_begun("frame")
        return self.engine.picture(range(self.num_envs)[index]).repeat(FRAME_SCALE, 0).repeat(FRAME_SCALE, 1)

    def _begin(self, chosen: NDArray[np.bool_], seeds: Sequence[int | None] | None) -> None:
        super()._begin(chosen, seeds)
        if self._tracker:
            self._tracker.begin(chosen)

    def _act(self, actions: NDArray[np.int64], idle: NDArray[np.bool_]) -> Moved:
        self.engine.step(actions, idle)
        out = self.engine.out
        if self._tracker:
            self._judge(self._tracker, actions, ~idle)
        flags = out.terminated.copy(), out.truncated.copy(), out.success.copy()
        return self._views(), out.rewards.astype(np.float32), *flags

    def _judge(self, tracker: TaskTracker, actions: NDArray[np.int64], moving: NDArray[np.bool_]) -> None:
        """Let the task decide what this step pays and whether it ends the episode."""
        engine, out = self.engine, self.engine.out
        acting = moving & ~out.terminated
        rewards, success, advanced = tracker.update(actions, out.eval_success, acting, engine.around, engine.holds)
        out.rewards[:], out.success[:] = rewards, success
        out.terminated[success], out.truncated[success] = True, False
        engine.envs["episode_return"] += rewards
        self._unread |= advanced

    def _missions_of(self, which: NDArray[np.int64]) -> list[str]:
        return [self._tracker.mission(i) if self._tracker else "" for i in which.tolist()]

    def about(self) -> dict[str, Any]:
        if not self.engine.typed:
            return {}
        out = self.engine.out
        return {"action_success": out.action_success.copy(), "eval_success": out.eval_success.copy()}

    def _views(self, which: Any = ...) -> Obs:
        symbolic, images = self.engine.out.symbolic, self.engine.out.images
        if self._observation == "symbolic":
            return rows_of(symbolic, which)
        if self._observation == "image":
            return rows_of(images, which)
        return {"symbolic": rows_of(symbolic, which), "image": rows_of(images, which)}

    def _details(self, index: int) -> dict[str, Any]:
        """Counts of items and achievements, position, crafter's map indexed [x, y], and 0 as discount after death."""
        me = self.engine.envs[index]
        successes = {key: bool(values[index]) for key, values in self.about().items()}
        return {
            **successes,
            "inventory": dict(zip(ITEMS, me["inventory"].tolist(), strict=True)),
            "achievements": dict(zip(ACHIEVEMENTS, me["achievements"].tolist(), strict=True)),
            "player_pos": self.engine.player_position(index),
            "semantic": self.engine.semantic(index),
            "discount": 0.0 if me["inventory"][HEALTH] <= 0 else 1.0,
        }

    def _at_end(self, done: NDArray[np.bool_]) -> dict[str, Any]:
        unlocked = self.engine.envs["achievements"].astype(np.int32)
        return {"achievements": np.where(done[:, None], unlocked, 0), "_achievements": done.copy()}

    def _state(self) -> dict[str, NDArray[Any]]:
        reached = {"reached": self._tracker.reached.copy()} if self._tracker else {}
        return self.engine.snapshot() | reached

    def _set_state(self, state: dict[str, NDArray[Any]]) -> None:
        reached = None
        if self._tracker:
            reached = np.asarray(state.get("reached"))
            if reached.shape != (self.num_envs,) or reached.dtype != np.int64:
                raise InputError("The snapshot says nothing of the task's sub-goals; take it with snapshot().")
        self.engine.restore(state)
        if self._tracker and reached is not None:
            self._tracker.reached[:] = reached
