"""The native vector environment of BabyAI and MiniGrid envs."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from bkrl.envs.babyai.constants import ACTION_NAMES, DONE, OBS_SHAPE
from bkrl.envs.babyai.engine import BabyAIEngine
from bkrl.envs.babyai.glam import GlamLevel
from bkrl.envs.family import EnvSpec
from bkrl.envs.vector import EngineVectorEnv, Moved, rows_of


class BabyAIVectorEnv(EngineVectorEnv):
    """N envs on the native engine, equal step for step to as many `ReferenceBabyAI`; see `BaseVectorEnv`.

    Args:
        threads: threads to step with; more than one pays from a few hundred envs on.
        max_steps: the env's own step limit, by which the reward shrinks too; None: the level's.
        glam: the level where it is one of `glam`, with the caller's options; infos then have `task_kind`.
    """

    def __init__(
        self,
        env_spec: EnvSpec,
        num_envs: int,
        *,
        threads: int = 1,
        max_steps: int | None = None,
        glam: GlamLevel | None = None,
        **kwargs: Any,
    ) -> None:
        if max_steps is not None:
            env_spec = replace(env_spec, max_steps=max_steps)
        super().__init__(env_spec, num_envs, gym.spaces.Box(0, 255, OBS_SHAPE, np.uint8), **kwargs)
        self.engine = BabyAIEngine(env_spec.env_id, num_envs, threads, max_steps, glam)
        self._kinds = self.engine.task_kinds()
        self._looks = self.engine.observations.reshape(num_envs, *OBS_SHAPE)  # the same memory

    def about(self) -> dict[str, Any]:
        return {} if self._kinds is None else {"task_kind": self._kinds}

    def _details(self, index: int) -> dict[str, Any]:
        return {} if self._kinds is None else {"task_kind": self._kinds[index]}

    def _missions_of(self, which: NDArray[np.int64]) -> list[str]:
        return self.engine.missions(which)

    def frame(self, index: int) -> NDArray[np.uint8]:
        self._check_begun("frame")
        return self.engine.frame(index)

    def env_states(self) -> NDArray[Any]:
        self._check_begun("env_states")
        return self.engine.states()

    def _begin(self, chosen: NDArray[np.bool_], seeds: Sequence[int | None] | None) -> None:
        super()._begin(chosen, seeds)
        self._kinds = self.engine.task_kinds()

    def _act(self, actions: NDArray[np.int64], idle: NDArray[np.bool_]) -> Moved:
        if len(self.env_spec.action_names) > len(ACTION_NAMES):
            actions = np.minimum(actions, DONE)
        shown, rewards, terminated, truncated, success = self.engine.step(actions, idle)
        return shown.reshape(self._looks.shape), rewards, terminated, truncated, success

    def _views(self, which: Any = ...) -> NDArray[np.uint8]:
        return rows_of(self._looks, which)

    def _exact(self, index: int, reward: float) -> float:
        return float(self.engine.envs["episode_return"][index])  # only an episode's last step pays

    def _set_state(self, state: dict[str, NDArray[Any]]) -> None:
        self.engine.restore(state)
        self._kinds = self.engine.task_kinds()
