"""Single environments: what all of them check, and one env of a native engine as an ordinary `gymnasium.Env`."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from bkrl.core.errors import UsageError
from bkrl.envs.family import EnvSpec
from bkrl.envs.vector import BaseVectorEnv, Lifetime, checked_actions


class BaseEnv(Lifetime, gymnasium.Env[Any, Any]):
    """One env; `info["success"]` of a step says whether it was solved just now.

    After `reset()` without a seed the next episode comes from the same stream of random numbers.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 (Gymnasium types it so)
    mission = ""

    def __init__(self, env_spec: EnvSpec, space: spaces.Space[Any], render_mode: str | None) -> None:
        if render_mode not in (None, "rgb_array"):
            raise UsageError(f"'{render_mode}' is not a render mode of '{env_spec.env_id}'; use 'rgb_array' or none.")
        self.env_spec, self.render_mode = env_spec, render_mode
        self.observation_space, self.action_space = space, spaces.Discrete(len(env_spec.action_names))
        self._over = False

    def render(self) -> NDArray[np.uint8] | None:  # type: ignore[override]
        """The picture of the env as it stands, (H, W, 3); None without a render mode."""
        if self.render_mode is None:
            return None
        self._check_begun("render")
        return self._picture()

    def _picture(self) -> NDArray[np.uint8]:
        raise NotImplementedError

    def close(self) -> None:
        """No reset and no step from now on."""
        self.closed = True

    def _check_reset(self, seed: int | None, options: dict[str, Any] | None) -> None:
        self._check_open("reset")
        if options:
            raise ValueError(f"unknown reset option {sorted(options)[0]!r}; '{self.env_spec.env_id}' knows none")
        if seed is not None and seed < 0:
            raise ValueError("a seed must not be negative")
        super().reset(seed=seed)
        self._begun, self._over = True, False

    def _check_step(self, action: Any) -> NDArray[np.int64]:
        """(1,) the action; an error, and nothing changed, where no step is possible."""
        self._check_begun("step")
        if self._over:
            raise RuntimeError("the episode is over: call reset() first")
        return checked_actions([action], 1, len(self.env_spec.action_names))


class SingleEnv(BaseEnv):
    """A vector environment of one env as an ordinary environment, with rewards in full precision.

    Args:
        envs: of one env.
        render_mode: None or "rgb_array".
    """

    def __init__(self, envs: BaseVectorEnv, render_mode: str | None) -> None:
        super().__init__(envs.env_spec, envs.single_observation_space, render_mode)
        self.envs = envs

    @property
    def mission(self) -> str:  # type: ignore[override]
        """What the running episode asks for."""
        return str(self.envs.missions()[0])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode; a seed restarts the stream of random numbers. No options are known."""
        if seed is None and not self._begun:
            seed = self.envs.np_random_seed[0]
        self._check_reset(seed, options)
        observations, _ = self.envs.reset(seed=seed)
        return _only(observations), {"success": False, **self.envs._details(0)}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        moved = self.envs._act(self._check_step(action), np.zeros(1, bool))
        terminated, truncated, success = (bool(flags[0]) for flags in moved[2:])
        self._over = terminated or truncated
        info = {"success": success, **self.envs._details(0)}
        return _only(moved[0]), self.envs._exact(0, float(moved[1][0])), terminated, truncated, info

    def _picture(self) -> NDArray[np.uint8]:
        return self.envs.frame(0)

    def close(self) -> None:
        super().close()
        self.envs.close()


def _only(observations: Any) -> Any:
    """The observation of the only env."""
    if isinstance(observations, dict):
        return {key: one[0] for key, one in observations.items()}
    return observations[0]
