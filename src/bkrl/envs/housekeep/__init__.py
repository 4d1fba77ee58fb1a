"""Symbolic Housekeep: tidying a house by what people said belongs where. Symbols only: it has no 3D worlds.

Data: `tables` (on `data/`), `labels` (where things belong), `episodes`, `sampling` (new ones). The house: `floors`
(walking, lines of sight, ways), `houses` (all as arrays), `packer` (room on receptacles). The engine: `state`, `sight`,
`acting`, `kernels`, `engine`; `vector` is what Gymnasium sees. `layout` is the symbolic observation, `captions` its
sentences, `options` and `catalogue` what an id stands for, `metrics` how an episode is judged, `bot` an expert,
`drawing` pictures.

Sources: Kant et al. 2022 (Housekeep, ECCV) for data and rules, Du et al. 2023 (arXiv 2302.06692) for the env as ELLM
has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import gymnasium
import numpy as np
from numpy.typing import NDArray

from bkrl.core.flags import Setting
from bkrl.envs.family import Bot, EnvSpec, Episodes, Family
from bkrl.envs.housekeep import layout
from bkrl.envs.housekeep.placing import Described, Places
from bkrl.envs.symbols import Symbols

if TYPE_CHECKING:
    from bkrl.envs.vector import BaseVectorEnv

_RULES = (
    "Housekeep as in ELLM, without its 3D worlds: floor plans, receptacles and people's votes of Housekeep, lines of "
    "sight on the floor plan, "
)
_ORIGINAL = _RULES + "its original episodes."
_TASK = _RULES + "the things of ELLM's task {} in Rs_int, which lie where bkrl sampled them: the paper's are lost."
_SOLVED = "All misplaced things lie where at least six of ten people would put them, and the hand is empty."


class Housekeep(Family):
    """The envs of `options`."""

    languages: ClassVar = ("en", "ellm")
    grid = (layout.COLUMNS, layout.ROWS)
    layout = Described()
    knowledge = "Housekeep"

    @property
    def inexact(self) -> str:
        return "not computed for Housekeep: positions are numbers, and there are too many of them"

    def specs(self) -> list[EnvSpec]:
        from bkrl.envs.housekeep.options import LENGTH, ORIGINAL, TASKS

        rules = {ORIGINAL: _ORIGINAL, **{name: _TASK.format(i) for i, name in enumerate(TASKS, 1)}}
        return [
            EnvSpec(name, self.name, layout.OBS_SHAPE, layout.LOW_LEVEL, LENGTH, text, _SOLVED)
            for name, text in rules.items()
        ]

    def options(self, env_spec: EnvSpec) -> list[Setting]:
        from bkrl.envs.housekeep.options import settings

        return settings(env_spec.env_id)

    def changed(self, env_spec: EnvSpec, options: Mapping[str, Any]) -> EnvSpec:
        from bkrl.envs.housekeep.catalogue import action_names, episodes_of
        from bkrl.envs.housekeep.options import chosen

        found = chosen(env_spec.env_id, **options)
        episodes_of(env_spec.env_id, found)
        return replace(env_spec, action_names=action_names(env_spec.env_id, found), max_steps=found.length)

    def make_reference(self, env_spec: EnvSpec, **options: Any) -> gymnasium.Env[Any, Any]:
        return self.make(env_spec, **options)

    def make(self, env_spec: EnvSpec, render_mode: str | None = "rgb_array", **options: Any) -> gymnasium.Env[Any, Any]:
        from bkrl.envs.housekeep.vector import HousekeepVectorEnv
        from bkrl.envs.single import SingleEnv

        return SingleEnv(HousekeepVectorEnv(env_spec, 1, **options), render_mode)

    def make_vec(self, env_spec: EnvSpec, num_envs: int, episodes: Episodes, **options: Any) -> BaseVectorEnv:
        from bkrl.envs.housekeep.vector import HousekeepVectorEnv

        return HousekeepVectorEnv(env_spec, num_envs, **episodes, **options)

    def caption(self, observations: NDArray[np.uint8], language: str = "en", compat: bool = False) -> list[str]:
        """Captions of symbolic observations (B, 294), in bkrl's wording ("en") or ELLM's text observation."""
        from bkrl.envs.housekeep.captions import caption_batch

        return caption_batch(observations, language)

    def placing(self, env_spec: EnvSpec, options: Mapping[str, Any]) -> Places:
        from bkrl.envs.housekeep.options import chosen

        return Places(chosen(env_spec.env_id, **options).scene)

    def bot(self, env_spec: EnvSpec) -> Bot:
        from bkrl.envs.housekeep.bot import HousekeepBot

        return HousekeepBot(env_spec.action_names != layout.LOW_LEVEL)

    def tile_maps(self, observations: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
        from bkrl.envs.housekeep.drawing import tile_maps

        return tile_maps(observations)

    def symbols(self, obs_shape: Sequence[int], high: NDArray[Any] | None = None) -> Symbols:
        sizes, reference, gate = [256] * layout.SIZE, [0] * layout.SIZE, [-1] * layout.SIZE
        sizes[layout.MAP] = [len(layout.SQUARE_NAMES)] * layout.MAP.stop
        sizes[layout.SCENE], sizes[layout.TILT], sizes[layout.YAW] = 15, layout.TILTS, layout.YAWS
        sizes[layout.HELD] = layout.SLOTS + 1
        for slot in range(layout.SLOTS):
            first = layout.THINGS + slot * layout.SLOT_BYTES
            sizes[first + layout.CLASS_HIGH], sizes[first + layout.STATUS] = 2, 4
        sizes[layout.RECEPTACLES :] = [3] * layout.MOST_RECEPTACLES
        return Symbols(tuple(sizes), tuple(reference), tuple(gate))


FAMILY = Housekeep("housekeep")
