"""BabyAI and MiniGrid worlds: the published single-room levels and every id of PyPI minigrid.

Nothing heavy is imported here; `bkrl.envs` asks for what it needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bkrl.envs.babyai.constants import ACTION_NAMES, OBS_SHAPE
from bkrl.envs.babyai.levels import LEVELS

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from bkrl.envs.babyai.reference import ReferenceBabyAI
    from bkrl.envs.world import World

MINIGRID_RULES = "The rules of PyPI minigrid."


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
            rules=MINIGRID_RULES,
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


def make_reference(env_id: str, render_mode: str | None = None) -> ReferenceBabyAI:
    """One environment on PyPI minigrid: a `gymnasium.Env` with observation uint8 (7, 7, 3). UsageError if unknown."""
    from bkrl.envs.babyai.reference import ReferenceBabyAI

    return ReferenceBabyAI(env_id, render_mode)


def captioner(language: str = "en", compat: bool = False) -> Callable[[NDArray[np.uint8]], list[str]]:
    """The captioner of a language: (B, 7, 7, 3) uint8 → B texts."""
    from bkrl.envs.babyai import captions

    return captions.captioner(language, compat)


def caption(observations: NDArray[np.uint8], language: str = "en", compat: bool = False) -> list[str]:
    """Caption views (B, 7, 7, 3) uint8."""
    return captioner(language, compat)(observations)
