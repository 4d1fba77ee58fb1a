"""Crafter: an open-ended survival env with a tech tree, under its original and its text rules.

`rules` holds the rules as data, `layout` the symbolic observation, `captions` its sentences, `reference` the envs on
PyPI crafter. The engine: `state`, `worldgen` (on `noise` and `mt19937`), `player`, `creatures`, `balance`, `render`;
`kernels` loops over envs, `vector` is what Gymnasium sees. ELLM's typed-verb Crafter: `typed_actions`, `tasks`, and
`sentences`, its wording of captions. `balrog` words them as that benchmark does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import gymnasium
import numpy as np
from numpy.typing import NDArray

from bkrl.core.flags import Flag, Setting
from bkrl.envs.crafter import layout
from bkrl.envs.crafter.options import checked_length
from bkrl.envs.crafter.rules import ACHIEVEMENTS, GAMES, ITEMS, ORIGINAL, TYPED_ORIGINAL, Game
from bkrl.envs.family import ClauseReader, EnvSpec, Episodes, Family, GoalSpace
from bkrl.envs.symbols import Symbols

if TYPE_CHECKING:
    from bkrl.envs.crafter.memory import SurvivalMemory
    from bkrl.envs.vector import BaseVectorEnv

_ORIGINAL_RULES = "The original rules of PyPI crafter 1.8.3, with chunks kept in order of insertion."
_TEXT_RULES = (
    "The text-Crafter of the published BK code: the original rules, but eat, drink, attack and collect all act as do, "
    "the bare hand deals 5 damage, collecting beyond 9 of an item counts for nothing, and success ends the episode."
)
_TYPED_RULES = (
    "The typed-verb Crafter of ELLM: an action is a verb and a noun that must fit what is faced, a table costs 1 wood, "
    "every creature dies in one hit, collecting beyond 9 of an item fails, an episode has 400 steps."
)
_TYPED_ORIGINAL_RULES = (
    "The original rules of PyPI crafter 1.8.3, but an action is a verb and a noun that must fit what is faced, as in "
    "ELLM's Crafter."
)


class Crafter(Family):
    """The games of `rules.GAMES`."""

    languages: ClassVar = ("en", "ellm", "balrog", "balrog-precise")
    images = True
    grid = (layout.VIEW_COLUMNS, layout.VIEW_ROWS)
    layout = layout
    achievements = ACHIEVEMENTS
    knowledge = "Crafter"

    @property
    def inexact(self) -> str:
        return (
            "not computed for Crafter: its worlds are too large to be solved and it has no single goal to measure a "
            "distance to"
        )

    def specs(self) -> list[EnvSpec]:
        return [_spec_of(env_id, game) for env_id, game in GAMES.items()]

    def options(self, env_spec: EnvSpec) -> list[Setting]:
        """The length of an episode; of typed tasks also what is said and paid of their sub-goals."""
        shown = "how sub-goals count: hidden | shown (the mission is the one at hand) | paid (each pays 1)"
        has_subgoals = GAMES[env_spec.env_id].task not in ("", "survival")
        own = [Setting(("subgoals",), str, Flag(shown), "hidden")] if has_subgoals else []
        length = Flag("actions after which an episode is truncated")
        return [*own, Setting(("length",), int, length, env_spec.max_steps)]

    def changed(self, env_spec: EnvSpec, options: Mapping[str, Any]) -> EnvSpec:
        from bkrl.envs.crafter.tasks import tracker_of

        tracker_of(env_spec.env_id, 1, options.get("subgoals", "hidden"))
        length = options.get("length")
        return env_spec if length is None else replace(env_spec, max_steps=checked_length(length))

    def mission_is_hidden(self, env_spec: EnvSpec, options: Mapping[str, Any]) -> bool:
        """The mission of a typed task names the sub-goal at hand where these are not hidden."""
        return options.get("subgoals", "hidden") != "hidden"

    def later_missions(self, env_spec: EnvSpec, options: Mapping[str, Any]) -> tuple[str, ...]:
        """The sub-goals of a typed task where these are not hidden."""
        from bkrl.envs.crafter.tasks import TASKS

        return TASKS[GAMES[env_spec.env_id].task].subgoals if self.mission_is_hidden(env_spec, options) else ()

    def make_reference(self, env_spec: EnvSpec, **options: Any) -> gymnasium.Env[Any, Any]:
        from bkrl.envs.crafter.reference import CrafterEnv

        return CrafterEnv(env_spec, **options)

    def make(self, env_spec: EnvSpec, render_mode: str | None = "rgb_array", **options: Any) -> gymnasium.Env[Any, Any]:
        """One env on the engine; options: observation, length, subgoals (see `vector.CrafterVectorEnv`)."""
        from bkrl.envs.crafter.vector import CrafterVectorEnv
        from bkrl.envs.single import SingleEnv

        return SingleEnv(CrafterVectorEnv(env_spec, 1, **options), render_mode)

    def make_vec(self, env_spec: EnvSpec, num_envs: int, episodes: Episodes, **options: Any) -> BaseVectorEnv:
        from bkrl.envs.crafter.vector import CrafterVectorEnv

        return CrafterVectorEnv(env_spec, num_envs, **episodes, **options)

    def caption(self, observations: NDArray[np.uint8], language: str = "en", compat: bool = False) -> list[str]:
        """Captions of symbolic observations (B, 82): bkrl's ("en"), ELLM's text observation, or BALROG's."""
        from bkrl.envs.crafter import balrog, captions, sentences

        if language == "en":
            return captions.caption_batch(observations)
        if language == "ellm":
            return sentences.caption_batch(captions.checked(observations))
        return balrog.caption_batch(captions.checked(observations), language == "balrog-precise")

    def situations(self, env_spec: EnvSpec) -> GoalSpace | None:
        from bkrl.envs.crafter.situations import TypedSituations

        rules = GAMES[env_spec.env_id.partition("@")[0]].rules
        return TypedSituations(rules) if rules.typed else None

    def memory(self, env_spec: EnvSpec) -> SurvivalMemory | None:
        from bkrl.envs.crafter.memory import SurvivalMemory

        rules = GAMES[env_spec.env_id].rules
        return None if rules.typed else SurvivalMemory(rules)

    def relations(self, env_spec: EnvSpec) -> dict[str, tuple[str, str]]:
        ahead = f"np.array({list(layout.FACED_CELL)})[np.minimum(now[:, {layout.FACING}], 3)]"
        faced = ("tree", "water", "stone", "coal", "iron", "diamond", "table", "furnace", "cow", "zombie", "ripe_plant")
        found = {
            f"facing_{name}": (
                f"go to {name.replace('_', ' ')}",
                f"now[np.arange(len(now)), {ahead}] == {layout.CELL[name]}",
            )
            for name in faced
        }
        held = ("sapling", "wood", "stone", "coal", "iron", "diamond", *(n for n in ITEMS if n[-3:] in ("axe", "ord")))
        return found | {
            f"holding_{name}": (f"have {name.replace('_', ' ')}", f"now[:, {layout.INDEX[name]}] > 0") for name in held
        }

    def clause_reader(self) -> ClauseReader:
        from bkrl.envs.crafter import captions

        return captions.CrafterClauses()

    def symbols(self, obs_shape: Sequence[int], high: NDArray[Any] | None = None) -> Symbols:
        """Of the 82 bytes: grass, and having none of an item, are the ordinary case; what is faced is read too."""
        sizes, reference = [0] * layout.SIZE, [-1] * layout.SIZE
        for entry in range(layout.VIEW.start or 0, layout.VIEW.stop):
            sizes[entry], reference[entry] = len(layout.CELL_NAMES), layout.CELL["grass"]
        sizes[layout.FACING] = len(layout.FACINGS)
        for entry in range(layout.INVENTORY.start, layout.INVENTORY.stop):
            sizes[entry], reference[entry] = 10, 0
        sizes[layout.SLEEPING], reference[layout.SLEEPING] = 2, 0
        return Symbols(tuple(sizes), tuple(reference), (-1,) * layout.SIZE, (layout.FACING, tuple(layout.FACED_CELL)))

    def tile_maps(self, observations: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
        from bkrl.envs.crafter.pictures import tile_maps

        return tile_maps(observations)


FAMILY = Crafter("crafter")


def _spec_of(env_id: str, game: Game) -> EnvSpec:
    if game.task:
        solved = f"The task '{game.task}' was done." if game.task != "survival" else "Never: each step alive pays."
    elif len(game.tasks) > 1:
        solved = "All 22 achievements were unlocked in one episode."
    else:
        solved = f"The achievement {game.tasks[0]} was unlocked."
    typed = _TYPED_ORIGINAL_RULES if game.rules is TYPED_ORIGINAL else _TYPED_RULES
    rules = typed if game.rules.typed else _ORIGINAL_RULES if game.rules is ORIGINAL else _TEXT_RULES
    if game.task:
        rules += " Doing the task pays 1 and ends the episode."
    elif not game.pays:
        rules += " Nothing is rewarded."
    return EnvSpec(env_id, "crafter", layout.OBS_SHAPE, game.rules.actions, game.max_steps, rules, solved)
