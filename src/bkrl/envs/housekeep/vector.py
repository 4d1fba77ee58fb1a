"""Symbolic Housekeep as a `gymnasium.vector.VectorEnv`, on the engine."""

from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from bkrl.envs.family import EnvSpec
from bkrl.envs.housekeep import layout
from bkrl.envs.housekeep.bot import STATE
from bkrl.envs.housekeep.catalogue import action_names
from bkrl.envs.housekeep.drawing import draw
from bkrl.envs.housekeep.engine import HousekeepEngine
from bkrl.envs.housekeep.metrics import METRICS
from bkrl.envs.housekeep.options import chosen
from bkrl.envs.housekeep.state import FAILED
from bkrl.envs.vector import EngineVectorEnv, Moved, Obs


class HousekeepVectorEnv(EngineVectorEnv):
    """N Housekeep envs; see `BaseVectorEnv`.

    Args:
        threads: envs are split among this many threads; the results do not depend on it.
        options: the env's own, see `options.settings`; and those of `BaseVectorEnv`.

    `infos` always hold what the last action did, (N,) each: `deed` (0 nothing, 1 picked, 2 placed, 3 failed),
    `deed_thing` (number of the class, -1), `deed_place` (the receptacle that the thing was taken from or put on, -1),
    and `action_success` (not failed). On steps that end an episode they hold `metrics`, a dict of (N,) float64 by the
    names of `metrics.METRICS` (NaN for envs that go on, and for what has no value), with the mask `_metrics`.
    """

    clock = "decisions"

    def __init__(self, env_spec: EnvSpec, num_envs: int, threads: int = 1, **options: Any) -> None:
        common = {key: options.pop(key) for key in _COMMON if key in options}
        self.options = chosen(env_spec.env_id, **options)
        names = action_names(env_spec.env_id, self.options)
        space = spaces.Box(0, 255, layout.OBS_SHAPE, np.uint8)
        super().__init__(
            replace(env_spec, action_names=names, max_steps=self.options.length), num_envs, space, **common
        )
        self.engine = HousekeepEngine(env_spec.env_id, self.options, num_envs, threads)

    def env_states(self) -> NDArray[Any]:
        engine, numbers = self.engine, np.array([one.number for one in self.engine.houses], np.int16)
        states = np.zeros(self.num_envs, STATE)
        states["scene"] = numbers[engine.envs["house"]]
        states["world"], states["things"], states["rows"] = engine.envs, engine.things, engine.rows
        return states

    def frame(self, index: int) -> NDArray[np.uint8]:
        self._check_begun("frame")
        engine, index = self.engine, range(self.num_envs)[index]
        env_spec = engine.envs[index]
        return draw(engine.houses[env_spec["house"]], env_spec, engine.things[index], engine.squares[index])

    def _act(self, actions: NDArray[np.int64], idle: NDArray[np.bool_]) -> Moved:
        self.engine.step(actions, idle)
        out = self.engine.out
        return (
            out.symbolic.copy(),
            out.rewards.astype(np.float32),
            out.terminated.copy(),
            out.truncated.copy(),
            out.terminated.copy(),
        )

    def about(self) -> dict[str, Any]:
        deed, kind, place = self.engine.deeds()
        return {"deed": deed, "deed_thing": kind, "deed_place": place, "action_success": deed != FAILED}

    def _details(self, index: int) -> dict[str, Any]:
        facts = {name: values[index].item() for name, values in self.about().items()}
        if self.engine.out.terminated[index] or self.engine.out.truncated[index]:
            found = self.engine.measure(np.arange(self.num_envs) == index)[index]
            facts["metrics"] = dict(zip(METRICS, found.tolist(), strict=True))
        return facts

    def _at_end(self, done: NDArray[np.bool_]) -> dict[str, Any]:
        found = self.engine.measure(done)
        return {"metrics": dict(zip(METRICS, found.T, strict=True)), "_metrics": done.copy()}

    def _views(self, which: Any = ...) -> Obs:
        return self.engine.out.symbolic[which].copy()


_COMMON = ("autoreset_mode", "max_episode_steps", "episode_statistics")
