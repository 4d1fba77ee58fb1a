"""One native world as an ordinary `gymnasium.Env`, for people, GIFs and libraries that want one."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from bkrl.core.errors import UsageError
from bkrl.envs.babyai.constants import OBS_SHAPE
from bkrl.envs.babyai.engine import Engine
from bkrl.envs.family import World
from bkrl.envs.single import WorldEnv
from bkrl.envs.vector import checked_actions


class NativeBabyAI(WorldEnv):
    """A world on the native engine with the interface and the dynamics of `ReferenceBabyAI`."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 - Gymnasium's own declaration

    def __init__(self, world: World, render_mode: str | None = None, max_steps: int | None = None) -> None:
        if render_mode not in (None, "rgb_array"):
            raise UsageError(f"'{render_mode}' is not a render mode of '{world.env_id}'; use 'rgb_array' or none.")
        self.world = world
        self.render_mode = render_mode
        self.observation_space = gym.spaces.Box(0, 255, OBS_SHAPE, np.uint8)
        self.action_space = gym.spaces.Discrete(len(world.action_names))
        self.engine = Engine(world.env_id, 1, max_steps=max_steps)

    @property
    def mission(self) -> str:
        """What the running episode asks for."""
        return self.engine.missions(np.zeros(1, np.int64))[0]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Start an episode; a seed restarts the stream of random numbers. No options are known."""
        self._check_open("reset")
        if options:
            raise UsageError(f"'{self.world.env_id}' knows no reset option '{next(iter(options))}'; leave options out.")
        if seed is not None and seed < 0:
            raise UsageError("A seed must not be negative; choose another.")
        if seed is None and not self.engine.begun:
            seed = self.np_random_seed
        everything = np.ones(1, np.bool_)
        self.engine.seed([seed], everything)
        self.engine.begin(everything)
        self._np_random = self.engine.generator(0)
        self._np_random_seed = seed if seed is not None else self._np_random_seed
        return self._view(), {}

    def step(self, action: int) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """One step. Raises UsageError, and changes nothing, for an invalid action or before `reset`."""
        self._check_open("step")
        if not self.engine.begun:
            raise UsageError(f"'{self.world.env_id}' was stepped before its first episode; call reset() first.")
        try:
            checked = checked_actions([action], 1, len(self.world.action_names))
        except ValueError as error:
            last = len(self.world.action_names) - 1
            raise UsageError(
                f"Action {action!r} is not one of '{self.world.env_id}'; use an integer from 0 to {last}."
            ) from error
        before = float(self.engine.worlds["episode_return"][0])
        _, _, terminated, truncated, success = self.engine.step(checked)
        # The reward in full precision, as minigrid gives it, not the vector environment's float32.
        reward = float(self.engine.worlds["episode_return"][0]) - before
        return self._view(), reward, bool(terminated[0]), bool(truncated[0]), {"success": bool(success[0])}

    def render(self) -> NDArray[np.uint8] | None:  # type: ignore[override]
        """The whole world as (H, W, 3) uint8, the agent's view lighter; None without a render mode."""
        if self.render_mode is None or not self.engine.begun:
            return None
        return self.engine.frame(0)

    def _view(self) -> NDArray[np.uint8]:
        return self.engine.observations[0].reshape(OBS_SHAPE).copy()
