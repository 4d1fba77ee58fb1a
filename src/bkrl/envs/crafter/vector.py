"""Crafter as a `gymnasium.vector.VectorEnv` and as a `gymnasium.Env`, on the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from bkrl.envs.crafter.engine import Engine
from bkrl.envs.crafter.options import FRAME_SCALE, checked_length, observation_space, refuse_options
from bkrl.envs.crafter.rules import ACHIEVEMENTS, ITEMS, MAX_STEPS
from bkrl.envs.crafter.state import HEALTH
from bkrl.envs.family import World
from bkrl.envs.single import WorldEnv
from bkrl.envs.vector import Moved, Obs, WorldVectorEnv, checked_actions


def _enlarged(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return image.repeat(FRAME_SCALE, 0).repeat(FRAME_SCALE, 1)


class CrafterVectorEnv(WorldVectorEnv):
    """N Crafter worlds.

    Args:
        world: the id's facts.
        num_envs: N.
        observation: "symbolic" (N, 82), "image" (N, 64, 64, 3), or "both": a dict with these two keys; all uint8.
        length: actions after which an episode is truncated.
        threads: worlds are split among this many threads; the results do not depend on it.
        kwargs: see `WorldVectorEnv`.

    On steps that end an episode `infos` also holds `achievements` (N, 22) int32, how often each was unlocked in the
    episodes that ended, with the mask `_achievements`.
    """

    def __init__(
        self,
        world: World,
        num_envs: int,
        observation: str = "symbolic",
        length: int = MAX_STEPS,
        threads: int = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            replace(world, max_steps=checked_length(length)), num_envs, observation_space(observation), **kwargs
        )
        self.engine = Engine(world.env_id, num_envs, observation, length, threads)
        self._observation = observation

    def frame(self, index: int) -> NDArray[np.uint8]:
        """(256, 256, 3): the picture of world `index` as it stands."""
        self._check_begun("frame")
        return _enlarged(self.engine.picture(range(self.num_envs)[index]))

    def close_extras(self, **kwargs: Any) -> None:
        """Let the threads go."""
        del kwargs
        self.engine.close()

    def _begin(self, worlds: NDArray[np.bool_], seeds: Sequence[int | None] | None) -> None:
        for i, seed in enumerate(seeds or ()):
            if worlds[i] and seed is not None:
                self.engine.seed(i, seed)
        self.engine.begin(worlds)

    def _act(self, actions: NDArray[np.int64], still: NDArray[np.bool_]) -> Moved:
        self.engine.step(actions, still)
        out = self.engine.out
        flags = out.terminated.copy(), out.truncated.copy(), out.success.copy()
        return self._views(), out.rewards.astype(np.float32), *flags

    def _views(self, worlds: Any = ...) -> Obs:
        symbolic, images = self.engine.out.symbolic, self.engine.out.images
        if self._observation == "symbolic":
            return symbolic[worlds].copy()
        if self._observation == "image":
            return images[worlds].copy()
        return {"symbolic": symbolic[worlds].copy(), "image": images[worlds].copy()}

    def _scores(self, worlds: Any = ...) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        return self.engine.worlds["episode_return"][worlds], self.engine.worlds["steps"][worlds]

    def _at_end(self, done: NDArray[np.bool_]) -> dict[str, Any]:
        unlocked = self.engine.worlds["achievements"].astype(np.int32)
        return {"achievements": np.where(done[:, None], unlocked, 0), "_achievements": done.copy()}

    def _state(self) -> dict[str, NDArray[Any]]:
        return self.engine.snapshot()

    def _set_state(self, state: dict[str, NDArray[Any]]) -> None:
        self.engine.restore(state)


class CrafterEnv(WorldEnv):
    """One Crafter world on the engine: the interface and the trajectories of `reference.CrafterEnv`."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012  (Gymnasium types it so)
    mission = ""

    def __init__(
        self,
        world: World,
        observation: str = "symbolic",
        length: int = MAX_STEPS,
        render_mode: str | None = "rgb_array",
    ) -> None:
        self.observation_space = observation_space(observation)
        self.action_space = spaces.Discrete(len(world.action_names))
        self.engine = Engine(world.env_id, 1, observation, length)
        self.world, self.render_mode = world, render_mode
        self._observation = observation
        self._over = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode; without a seed, the next one of the seed given last."""
        self._check_open("reset")
        refuse_options(options)
        super().reset(seed=seed, options=options)
        if seed is not None:
            self.engine.seed(0, seed)
        elif not self.engine.begun:
            self.engine.seed(0, int(self.np_random.integers(2**31 - 1)))
        self.engine.begin(np.ones(1, bool))
        self._over = False
        return self._obs(), self._info(False)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take one action."""
        self._check_open("step")
        if not self.engine.begun:
            raise RuntimeError("step before reset: call reset() first")
        if self._over:
            raise RuntimeError("the episode is over: call reset() first")
        self.engine.step(checked_actions([action], 1, len(self.world.action_names)))
        out = self.engine.out
        self._over = bool(out.terminated[0] | out.truncated[0])
        return (
            self._obs(),
            float(out.rewards[0]),
            bool(out.terminated[0]),
            bool(out.truncated[0]),
            self._info(bool(out.success[0])),
        )

    def render(self) -> NDArray[np.uint8]:  # type: ignore[override]
        """(256, 256, 3): the picture of the last observation."""
        if not self.engine.begun:
            raise RuntimeError("render before reset: call reset() first")
        return _enlarged(self.engine.picture(0))

    def _obs(self) -> Any:
        symbolic, image = self.engine.out.symbolic[0].copy(), self.engine.out.images[0].copy()
        if self._observation == "both":
            return {"symbolic": symbolic, "image": image}
        return symbolic if self._observation == "symbolic" else image

    def _info(self, success: bool) -> dict[str, Any]:
        me = self.engine.worlds[0]
        return {
            "success": success,
            "inventory": dict(zip(ITEMS, me["inventory"].tolist(), strict=True)),
            "achievements": dict(zip(ACHIEVEMENTS, me["achievements"].tolist(), strict=True)),
            "player_pos": self.engine.player_position(0),
            "semantic": self.engine.semantic(0),
            "discount": 0.0 if me["inventory"][HEALTH] <= 0 else 1.0,
        }
