"""BabyAI and MiniGrid worlds: the published single-room levels and every id of PyPI minigrid.

Nothing heavy is imported here; `bkrl.envs` asks for what it needs.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from bkrl.core.errors import UsageError
from bkrl.envs.babyai.constants import ACTION_NAMES, OBS_SHAPE
from bkrl.envs.babyai.levels import LEVELS

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from gymnasium import Env
    from gymnasium.vector import AutoresetMode
    from numpy.typing import NDArray

    from bkrl.envs.babyai.reference import ReferenceBabyAI
    from bkrl.envs.vector import WorldVectorEnv
    from bkrl.envs.world import World

MINIGRID_RULES = "The rules of PyPI minigrid."
_ARTICLES = re.compile(r"\b(a|the) ")  # they say how many such objects there are, not which are meant
_EPISODES = 16  # of two missions that are equally likely, one is missing in one case of 32,768


def worlds() -> list[World]:
    """The published BabyAI-Text levels (no heavy import)."""
    from bkrl.envs.world import World

    return [
        World(
            env_id=level.env_id,
            family="babyai",
            obs_shape=OBS_SHAPE,
            action_names=ACTION_NAMES,
            max_steps=level.max_steps,
            rules=f"{MINIGRID_RULES} {level.deviation}".strip(),
            solved=_solved(level.task),
        )
        for level in LEVELS.values()
    ]


def _solved(task: str) -> str:
    return {
        "go to": "The agent stands before the named object and faces it.",
        "pick up": "The agent picks up the named object with empty hands.",
        "go to, then go to": "The agent has faced the first named object and then faces the second.",
    }[task]


def find(env_id: str) -> World | None:
    """The facts of any BabyAI or MiniGrid id of PyPI minigrid; None for names of another kind.

    Raises UsageError with a near miss for a name that looks like one of minigrid's but is not.
    """
    if not env_id.startswith(("BabyAI-", "MiniGrid-")):
        return None
    from bkrl.envs.babyai.reference import describe

    return describe(env_id)


def other_ids() -> list[str]:
    """Every BabyAI and MiniGrid id that PyPI minigrid registers with Gymnasium, sorted."""
    import minigrid  # noqa: F401 - registers them
    from gymnasium import registry

    return sorted(
        env_id
        for env_id, spec in registry.items()
        if env_id.startswith(("BabyAI-", "MiniGrid-")) and str(spec.entry_point).startswith("minigrid.")
    )


def world(env_id: str) -> World:
    """The facts of a published level or of an id of PyPI minigrid. UsageError for any other name."""
    for known in worlds():
        if known.env_id == env_id:
            return known
    from bkrl.envs.babyai.reference import describe

    return describe(env_id)


def missions_vary(env_id: str) -> bool:
    """Whether the mission, which is no part of the view, changes between episodes.

    Of a published level its targets tell; of other ids, whether a few episodes have different missions.
    """
    if env_id in LEVELS:
        return any(len(target.colors) * len(target.kinds) > 1 for target in LEVELS[env_id].targets)
    from bkrl.envs.babyai.reference import make_minigrid

    env = make_minigrid(env_id)
    missions = set()
    for seed in range(_EPISODES):
        env.reset(seed=seed)
        missions.add(_ARTICLES.sub("", env.mission))
        if len(missions) > 1:
            return True
    return False


def make_reference(
    env_id: str, render_mode: str | None = None, max_steps: int | None = None, **unknown: Any
) -> ReferenceBabyAI:
    """One environment on PyPI minigrid: a `gymnasium.Env` with observation uint8 (7, 7, 3). UsageError if unknown."""
    _refuse(env_id, unknown, "render_mode and max_steps")
    from bkrl.envs.babyai.reference import ReferenceBabyAI

    return ReferenceBabyAI(env_id, render_mode, _checked(max_steps))


def make_native_vec(
    env_id: str,
    num_envs: int,
    *,
    threads: int = 1,
    render_mode: str | None = None,
    distances: bool = False,
    max_steps: int | None = None,
    autoreset_mode: AutoresetMode | str = "SameStep",
    max_episode_steps: int | None = None,
    episode_statistics: bool = True,
    **unknown: Any,
) -> WorldVectorEnv:
    """N worlds on the native engine.

    A MiniGrid level with rules of its own (moving obstacles and the like) runs on minigrid behind the same interface;
    its `World.rules` says so.

    Args:
        env_id: a published level or any id of PyPI minigrid.
        num_envs: N.
        threads: threads to step with.
        render_mode: None or "rgb_array"; `frame` and `render` work with both.
        distances: know the distance to success, see `WorldVectorEnv.distances` (published levels alone).
        max_steps: the world's own step limit, by which the reward shrinks too; None: the level's.
        autoreset_mode, max_episode_steps, episode_statistics: see `WorldVectorEnv`.
        unknown: refused with a UsageError.
    """
    _refuse(env_id, unknown, "threads, render_mode, distances and max_steps")
    max_steps = _checked(max_steps)
    common: dict[str, Any] = {
        "autoreset_mode": autoreset_mode,
        "max_episode_steps": max_episode_steps,
        "episode_statistics": episode_statistics,
    }
    if distances and (env_id not in LEVELS or not runs_natively(env_id)):
        raise UsageError(f"The distance to success is known in the published levels alone, not in '{env_id}'.")
    if render_mode not in (None, "rgb_array"):
        raise UsageError(f"'{render_mode}' is not a render mode of '{env_id}'; use 'rgb_array' or none.")
    facts = world(env_id)
    if not runs_natively(env_id):
        from bkrl.envs.vector import ReferenceVectorEnv

        return ReferenceVectorEnv(facts, lambda: make_reference(env_id, "rgb_array", max_steps), num_envs, **common)
    from bkrl.envs.babyai.vector import BabyAIVectorEnv

    return BabyAIVectorEnv(facts, num_envs, threads=threads, distances=distances, max_steps=max_steps, **common)


def make_native(
    env_id: str, render_mode: str | None = None, max_steps: int | None = None, **unknown: Any
) -> Env[NDArray[np.uint8], int]:
    """One world on the native engine as a `gymnasium.Env`; on minigrid where the level has rules of its own."""
    _refuse(env_id, unknown, "render_mode and max_steps")
    facts = world(env_id)
    if not runs_natively(env_id):
        return make_reference(env_id, render_mode, max_steps)
    from bkrl.envs.babyai.single import NativeBabyAI

    return NativeBabyAI(facts, render_mode, _checked(max_steps))


def runs_natively(env_id: str) -> bool:
    """Whether the native engine knows all the rules of an id."""
    if env_id in LEVELS:
        return not os.environ.get("BABYAI_DONE_ACTIONS")  # minigrid's switch for another kind of verifier
    from bkrl.envs.babyai.loading import why_not
    from bkrl.envs.babyai.reference import make_minigrid

    return why_not(make_minigrid(env_id)) is None


def _checked(max_steps: int | None) -> int | None:
    from bkrl.envs.vector import checked_steps

    return None if max_steps is None else checked_steps("max_steps", max_steps)


def _refuse(env_id: str, unknown: dict[str, Any], known: str) -> None:
    if unknown:
        raise UsageError(f"'{env_id}' has no option '{next(iter(unknown))}'; it knows {known}.")


def captioner(language: str = "en", compat: bool = False) -> Callable[[NDArray[np.uint8]], list[str]]:
    """The captioner of a language: (B, 7, 7, 3) uint8 → B texts."""
    from bkrl.envs.babyai import captions

    return captions.captioner(language, compat)


def caption(observations: NDArray[np.uint8], language: str = "en", compat: bool = False) -> list[str]:
    """Caption views (B, 7, 7, 3) uint8."""
    return captioner(language, compat)(observations)
