"""Crafter as a `gymnasium.vector.VectorEnv` and as a `gymnasium.Env`, on the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from bkrl.envs.crafter.engine import Engine
from bkrl.envs.crafter.options import FRAME_SCALE, observation_space, refuse_options
from bkrl.envs.crafter.rules import ACHIEVEMENTS, ITEMS, MAX_STEPS
from bkrl.envs.crafter.state import HEALTH
from bkrl.envs.vector import Obs, WorldVectorEnv, checked_actions, reset_mask_of, seeds_of
from bkrl.envs.world import World


def _enlarged(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return image.repeat(FRAME_SCALE, 0).repeat(FRAME_SCALE, 1)


def _fresh_seed() -> int:
    return int(np.random.default_rng().integers(2**31 - 1))


class CrafterVectorEnv(WorldVectorEnv):
    """N Crafter worlds.

    Args:
        world: the id's facts.
        num_envs: N.
        observation: "symbolic" (N, 82), "image" (N, 64, 64, 3), or "both": a dict with these two keys; all uint8.
        length: actions after which an episode is truncated.
        threads: worlds are split among this many threads; the results do not depend on it.

    On steps that end an episode `infos` also holds `achievements` (N, 22) int32, how often each was unlocked in the
    episodes that ended, with the mask `_achievements`.
    """

    def __init__(
        self, world: World, num_envs: int, observation: str = "symbolic", length: int = MAX_STEPS, threads: int = 1
    ) -> None:
        self.single_observation_space = observation_space(observation)
        self.single_action_space = spaces.Discrete(len(world.action_names))
        self.engine = Engine(world.env_id, num_envs, observation, length, autoreset=True, threads=threads)
        self.world = world
        self.num_envs = num_envs
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._observation = observation

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Obs, dict[str, Any]]:
        """Start new episodes in all worlds, or in those of `options["reset_mask"]`."""
        mask = reset_mask_of(options, self.num_envs)
        seeds = seeds_of(seed, self.num_envs)
        if any(one is not None and one < 0 for one in seeds):
            raise ValueError("seeds must not be negative")
        begun = self.engine.begun
        if not begun and not mask.all():
            raise ValueError("the first reset must be of all worlds")
        for i in map(int, np.flatnonzero(mask)):
            one = seeds[i]
            if one is None and not begun:
                one = _fresh_seed()
            if one is not None:
                self.engine.seed(i, one)
        self.engine.begin(mask)
        return self._obs(self.engine.out.symbolic, self.engine.out.images), {"success": np.zeros(self.num_envs, bool)}

    def step(
        self, actions: Any
    ) -> tuple[Obs, NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """One action in every world; worlds whose episode ends start the next one in the same step."""
        if not self.engine.begun:
            raise RuntimeError("step before reset: call reset() first")
        ended = self.engine.step(checked_actions(actions, self.num_envs, len(self.world.action_names)))
        out = self.engine.out
        infos: dict[str, Any] = {"success": out.success.copy()}
        if ended:
            done = out.terminated | out.truncated
            infos["final_obs"] = self._obs(out.symbolic, out.images)
            finals = self._obs(out.final_symbolic, out.final_images, done)
            if self._observation == "both":
                for key, final in finals.items():
                    infos["final_obs"][key][done] = final
            else:
                infos["final_obs"][done] = finals
            infos["episode"] = {"r": np.where(done, out.returns, 0.0), "l": np.where(done, out.lengths, 0)}
            infos["achievements"] = np.where(done[:, None], out.achievements, 0)
            for key in ("final_obs", "episode", "achievements"):
                infos[f"_{key}"] = done.copy()
        return (
            self._obs(out.symbolic, out.images),
            out.rewards.copy(),
            out.terminated.copy(),
            out.truncated.copy(),
            infos,
        )

    def rest(self, worlds: NDArray[np.bool_]) -> None:
        """No episode follows the running ones of these worlds (N,) until they are reset: laying a world takes long."""
        self.engine.resting.ends[worlds] = True

    def missions(self) -> list[str]:
        """Crafter gives none."""
        return [""] * self.num_envs

    def frame(self, index: int) -> NDArray[np.uint8]:
        """(256, 256, 3): the picture of world `index` as it stands."""
        if not self.engine.begun:
            raise RuntimeError("frame before reset: call reset() first")
        return _enlarged(self.engine.look(range(self.num_envs)[index]).image)

    def snapshot(self) -> dict[str, NDArray[Any]]:
        """The full state of all worlds, random streams included, as uint8 arrays."""
        return self.engine.snapshot()

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Go back to a snapshot: what follows is what followed it."""
        self.engine.restore(state)

    def close_extras(self, **kwargs: Any) -> None:
        """Let the threads go."""
        del kwargs
        self.engine.close()

    def _obs(self, symbolic: NDArray[np.uint8], images: NDArray[np.uint8], chosen: Any = ...) -> Obs:
        """Copies of the chosen worlds' observations, so that what was handed out stays as it was."""
        if self._observation == "symbolic":
            return symbolic[chosen].copy()
        if self._observation == "image":
            return images[chosen].copy()
        return {"symbolic": symbolic[chosen].copy(), "image": images[chosen].copy()}


class CrafterEnv(gymnasium.Env[Any, Any]):
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
        self.engine = Engine(world.env_id, 1, observation, length, autoreset=False)
        self.world, self.render_mode = world, render_mode
        self._observation = observation
        self._over = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode; without a seed, the next one of the seed given last."""
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
        if not self.engine.begun:
            raise RuntimeError("step before reset: call reset() first")
        if self._over:
            raise RuntimeError("the episode is over: call reset() first")
        self._over = self.engine.step(checked_actions([action], 1, len(self.world.action_names)))
        out = self.engine.out
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
        return _enlarged(self.engine.look(0).image)

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
            "semantic": self.engine.look(0).semantic,
            "discount": 0.0 if me["inventory"][HEALTH] <= 0 else 1.0,
        }
