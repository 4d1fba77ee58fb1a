"""BabyAI and MiniGrid envs: the published single-room levels and every id of PyPI minigrid.

Nothing heavy is imported here; the family asks for what it needs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from bkrl.core.errors import UsageError
from bkrl.core.flags import Flag, Setting
from bkrl.core.registry import did_you_mean
from bkrl.envs.babyai import glam
from bkrl.envs.babyai.constants import (
    ACTION_NAMES,
    ACTION_SETS,
    AGENT_X,
    AGENT_Y,
    BALL,
    BOX,
    DONE_ENDS,
    DOOR,
    GOAL,
    KEY,
    MATCH,
    OBS_SHAPE,
    PICKUP,
)
from bkrl.envs.babyai.levels import LEVELS, Level
from bkrl.envs.babyai.recipes import RECIPES
from bkrl.envs.family import EnvSpec, Episodes, Family
from bkrl.envs.options import split, unknown

if TYPE_CHECKING:
    import numpy as np
    from gymnasium import Env
    from numpy.typing import NDArray

    from bkrl.envs.babyai.bot import BabyAIBot
    from bkrl.envs.babyai.memory import RoomMemory
    from bkrl.envs.babyai.reference import ReferenceBabyAI
    from bkrl.envs.vector import BaseVectorEnv

MINIGRID_RULES = "The rules of PyPI minigrid."
_SOLVED = {
    "go to": "The agent stands before the named object and faces it.",
    "pick up": "The agent picks up the named object with empty hands.",
    "go to, then go to": "The agent has faced the first named object and then faces the second.",
}
_GLAM_RULES = (
    f"{MINIGRID_RULES} An episode's kind of task comes from the world's own stream of random numbers, where the "
    "published code draws one for each environment, without a seed. Missions name or avoid the held-out objects."
)
_CARRIED_OUT = "The mission is carried out."
REWARDED = "The episode ends with a reward above 0: the mission is carried out, or the goal reached."
_ALL = "all"
_ACTIONS = Flag(
    f"names of its actions: {', '.join(ACTION_SETS)} or {_ALL}; fewer leave out the last ones, further ones do nothing"
)
_MAX_STEPS = Flag("actions after which an episode is cut off; its reward shrinks by them  [default: the level's]")
_ARTICLES = re.compile(r"\b(a|the) ")  # they say how many such objects there are, not which are meant
_EPISODES = 16  # of two missions that are equally likely, one is missing in one case of 32,768
_PREFIXES = ("BabyAI-", "MiniGrid-")
_AHEAD, _HAND = (AGENT_X, AGENT_Y - 1), (AGENT_X, AGENT_Y)
RELATIONS = {
    **{
        f"facing_{name}": (f"go to {'the' if name == 'goal' else 'a'} {name}", _AHEAD, kind)
        for name, kind in {"door": DOOR, "key": KEY, "ball": BALL, "box": BOX, "goal": GOAL}.items()
    },
    **{
        f"carrying_{name}": (f"carry a {name}", _HAND, kind)
        for name, kind in {"key": KEY, "ball": BALL, "box": BOX}.items()
    },
}
"""What a view tells, by name: said as a goal, the cell of the view, and the kind of thing that is there."""


class BabyAI(Family):
    """The published levels are listed; other ids of PyPI minigrid are found by name."""

    languages: ClassVar = ("en", "fr")
    published_captions = True
    knowledge = "BabyAI"
    exact: ClassVar[Literal["rooms"]] = "rooms"

    def specs(self) -> list[EnvSpec]:
        return [_spec_of(level) for level in LEVELS.values()] + [*map(_glam_spec, glam.LEVELS.values())]

    def find(self, env_id: str) -> EnvSpec | None:
        """The facts of any BabyAI or MiniGrid id of PyPI minigrid; None for names of another kind.

        Raises UsageError with a near miss for a name that looks like one of minigrid's but is not.
        """
        if not env_id.startswith(_PREFIXES):
            return None
        if env_id in RECIPES:
            return _recipe_spec(env_id)
        from bkrl.envs.babyai.reference import describe

        return describe(env_id)

    def other_ids(self) -> list[str]:
        """Every BabyAI and MiniGrid id that PyPI minigrid registers with Gymnasium, sorted."""
        import minigrid  # noqa: F401 - registers them
        from gymnasium import registry

        return sorted(
            env_id
            for env_id, spec in registry.items()
            if env_id.startswith(_PREFIXES) and str(spec.entry_point).startswith("minigrid.")
        )

    def options(self, env_spec: EnvSpec) -> list[Setting]:
        """Actions and the step limit; of GLAM's levels also what `glam.GlamLevel` has flags for."""
        level = glam.LEVELS.get(env_spec.env_id)
        own = [] if level is None else [s._replace(default=vars(level)[s.name]) for s in glam.OPTIONS.values()]
        return [*own, Setting(("actions",), str, _ACTIONS, _ALL), Setting(("max_steps",), int, _MAX_STEPS, None)]

    def changed(self, env_spec: EnvSpec, options: Mapping[str, Any]) -> EnvSpec:
        rest = dict(options)
        limit = _checked(rest.pop("max_steps", None))
        env_spec, _ = _chosen(env_spec, rest, "max_steps")
        return env_spec if limit is None else replace(env_spec, max_steps=limit)

    def make_reference(
        self, env_spec: EnvSpec, render_mode: str | None = None, max_steps: int | None = None, **options: Any
    ) -> ReferenceBabyAI:
        """One environment on PyPI minigrid: a `gymnasium.Env` with observation uint8 (7, 7, 3)."""
        env_spec, level = _chosen(env_spec, options, "render_mode and max_steps")
        from bkrl.envs.babyai.reference import ReferenceBabyAI

        return ReferenceBabyAI(env_spec, render_mode, _checked(max_steps), level)

    def make(
        self, env_spec: EnvSpec, render_mode: str | None = None, max_steps: int | None = None, **options: Any
    ) -> Env[NDArray[np.uint8], int]:
        """One environment on the native engine; on minigrid where the level has rules of its own."""
        if not runs_natively(env_spec.env_id):
            return self.make_reference(env_spec, render_mode, max_steps, **options)
        env_spec, level = _chosen(env_spec, options, "render_mode and max_steps")
        from bkrl.envs.babyai.vector import BabyAIVectorEnv
        from bkrl.envs.single import SingleEnv

        return SingleEnv(BabyAIVectorEnv(env_spec, 1, max_steps=_checked(max_steps), glam=level), render_mode)

    def make_vec(
        self,
        env_spec: EnvSpec,
        num_envs: int,
        episodes: Episodes,
        *,
        threads: int = 1,
        render_mode: str | None = None,
        max_steps: int | None = None,
        **options: Any,
    ) -> BaseVectorEnv:
        """N envs on the native engine (`vector.BabyAIVectorEnv`); `options` are those of `BabyAI.options`.

        What the engine does not know runs on minigrid behind the same interface; its `EnvSpec.rules` says so. `frame`
        and `render` work with both render modes.
        """
        changed, level = _chosen(env_spec, options, "threads, render_mode and max_steps")
        if render_mode not in (None, "rgb_array"):
            raise UsageError(f"'{render_mode}' is not a render mode of '{env_spec.env_id}'; use 'rgb_array' or none.")
        if not runs_natively(env_spec.env_id):
            return super().make_vec(
                env_spec, num_envs, episodes, render_mode="rgb_array", max_steps=max_steps, **options
            )
        from bkrl.envs.babyai.vector import BabyAIVectorEnv

        return BabyAIVectorEnv(
            changed, num_envs, threads=threads, max_steps=_checked(max_steps), glam=level, **episodes
        )

    def mission_is_hidden(self, env_spec: EnvSpec, options: Mapping[str, Any]) -> bool:
        """Of a published level its targets tell; of other ids, whether a few episodes have different missions."""
        if env_spec.env_id in glam.LEVELS:
            return True
        if env_spec.env_id in LEVELS:
            return any(len(target.colors) * len(target.kinds) > 1 for target in LEVELS[env_spec.env_id].targets)
        episodes: Episodes = {"autoreset_mode": "SameStep", "max_episode_steps": None, "episode_statistics": False}
        envs = self.make_vec(env_spec, _EPISODES, episodes)
        envs.reset(seed=0)
        return len({_ARTICLES.sub("", mission) for mission in envs.missions()}) > 1

    def mission_language(self, env_spec: EnvSpec) -> str:
        bare, options = split(env_spec.env_id)
        return options.get("language", glam.LEVELS[bare].language) if bare in glam.LEVELS else "en"

    def caption(self, observations: NDArray[np.uint8], language: str = "en", compat: bool = False) -> list[str]:
        from bkrl.envs.babyai.captions import caption

        return caption(observations, language, compat)

    def bot(self, env_spec: EnvSpec) -> BabyAIBot | None:
        """One for all that runs natively, but for what moves by itself (Dynamic-Obstacles) or is to be remembered
        (Memory)."""
        from bkrl.envs.babyai.bot import BabyAIBot
        from bkrl.envs.babyai.constants import AVOID
        from bkrl.envs.babyai.minigrid.levels import MINIGRID_LEVELS

        no_plan = env_spec.env_id in MINIGRID_LEVELS and MINIGRID_LEVELS[env_spec.env_id].task in (AVOID, MATCH)
        return BabyAIBot(len(env_spec.action_names)) if not no_plan and runs_natively(env_spec.env_id) else None

    def memory(self, env_spec: EnvSpec) -> RoomMemory | None:
        from bkrl.envs.babyai.memory import RoomMemory

        return RoomMemory() if env_spec.obs_shape == OBS_SHAPE else None  # kernels do not check indices

    def never_counted(self, env_id: str) -> tuple[str, ...]:
        """What its actions and the things of 64 layouts do not allow; nothing is known of envs that run on minigrid."""
        from bkrl.envs import make_vec
        from bkrl.envs.babyai.memory import HANDLING, never_counted
        from bkrl.envs.babyai.minigrid.levels import MINIGRID_LEVELS

        bare = split(env_id)[0]
        if not runs_natively(bare):
            return ()
        envs = make_vec(env_id, _LAYOUTS)
        if len(envs.env_spec.action_names) <= PICKUP or (
            bare in MINIGRID_LEVELS and MINIGRID_LEVELS[bare].task == MATCH  # there to pick up is to toggle
        ):
            return HANDLING
        envs.reset(seed=0)
        return never_counted(envs.env_states()["grid"])

    def relations(self, env_spec: EnvSpec) -> dict[str, tuple[str, str]]:
        known = RELATIONS if env_spec.obs_shape == OBS_SHAPE else {}
        return {name: (said, f"now[:, {x}, {y}, 0] == {kind}") for name, (said, (x, y), kind) in known.items()}

    def tile_maps(self, observations: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
        from bkrl.envs.babyai.pictures import tile_maps

        return tile_maps(observations)


FAMILY = BabyAI("babyai")
_LAYOUTS = 64
_DONE_ACTIONS = "BABYAI_DONE_ACTIONS"  # minigrid's switch for another kind of verifier


def _spec_of(level: Level) -> EnvSpec:
    rules = f"{MINIGRID_RULES} {level.deviation}".strip()
    return EnvSpec(level.env_id, "babyai", OBS_SHAPE, ACTION_NAMES, level.max_steps, rules, _SOLVED[level.task])


def _recipe_spec(env_id: str) -> EnvSpec:
    recipe = RECIPES[env_id]
    exception = "" if runs_natively(env_id) else f"; because {_DONE_ACTIONS} is set, it runs on minigrid"
    rules = f"The rules of PyPI minigrid, class {recipe.family}{exception}."
    return EnvSpec(env_id, "babyai", OBS_SHAPE, ACTION_NAMES, recipe.longest, rules, REWARDED)


def _glam_spec(level: glam.GlamLevel) -> EnvSpec:
    return EnvSpec(
        level.env_id, "babyai", OBS_SHAPE, ACTION_NAMES, level.max_steps, _GLAM_RULES, _CARRIED_OUT, level.captions
    )


def runs_natively(env_id: str) -> bool:
    """Whether the native engine knows all the rules of an id."""
    if env_id in LEVELS or env_id in glam.LEVELS or env_id in RECIPES:
        return not os.environ.get(_DONE_ACTIONS)
    from bkrl.envs.babyai.minigrid.levels import MINIGRID_LEVELS

    if env_id in MINIGRID_LEVELS:
        return True
    from bkrl.envs.babyai.loading import why_not
    from bkrl.envs.babyai.reference import make_minigrid

    return why_not(make_minigrid(env_id)) is None


def _checked(max_steps: int | None) -> int | None:
    from bkrl.envs.vector import checked_steps

    return None if max_steps is None else checked_steps("max_steps", max_steps)


def _chosen(env_spec: EnvSpec, options: dict[str, Any], known: str) -> tuple[EnvSpec, glam.GlamLevel | None]:
    """The env with these options, and its level where it is one of GLAM's. UsageError for unknown options."""
    options, level = dict(options), glam.LEVELS.get(env_spec.env_id)
    actions = options.pop("actions", _ALL)
    if actions != _ALL:
        if actions not in ACTION_SETS:
            near, sets = did_you_mean(str(actions), ACTION_SETS), ", ".join(ACTION_SETS)
            raise UsageError(f"There are no actions '{actions}'.{near} There are: {sets} and {_ALL}.")
        if env_spec.action_names != ACTION_NAMES:
            raise UsageError(f"'{env_spec.env_id}' has actions of its own; leave the option actions out.")
        if env_spec.env_id.startswith(DONE_ENDS):
            raise UsageError(f"The action done ends an episode of '{env_spec.env_id}'; leave the option actions out.")
        env_spec = replace(env_spec, action_names=ACTION_SETS[actions])
    own = () if level is None else tuple(glam.OPTIONS)
    for name in options:
        if name not in own:
            raise unknown(env_spec.env_id, name, (*own, "actions", known))
    if level is None:
        return env_spec, None
    level = level.chosen(options)
    return replace(env_spec, max_steps=level.max_steps), level
