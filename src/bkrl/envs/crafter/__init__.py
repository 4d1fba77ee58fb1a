"""Crafter: an open-ended survival world with a tech tree, under its original and its text-world rules.

`rules` holds the rules as data, `layout` the symbolic observation, `captions` its sentences, `reference` the worlds on
PyPI crafter. The engine: `state`, `worldgen` (on `noise` and `mt19937`), `player`, `creatures`, `balance`, `render`;
`kernels` loops over worlds, `vector` is what Gymnasium sees.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from bkrl.core.errors import UsageError
from bkrl.core.registry import did_you_mean
from bkrl.envs.crafter.layout import OBS_SHAPE
from bkrl.envs.crafter.rules import GAMES, MAX_STEPS, ORIGINAL
from bkrl.envs.vector import WorldVectorEnv
from bkrl.envs.world import ClauseReader, World

__all__ = ["caption", "clause_reader", "make_native", "make_native_vec", "make_reference", "worlds"]

_ORIGINAL_RULES = "The original rules of PyPI crafter 1.8.3, with chunks kept in order of insertion."
_TEXT_RULES = (
    "The text-Crafter of the published BK code: the original rules, but eat, drink, attack and collect all act as do, "
    "the bare hand deals 5 damage, collecting beyond 9 of an item counts for nothing, and success ends the episode."
)


def worlds() -> list[World]:
    """The Crafter ids."""
    return [_world(env_id) for env_id in GAMES]


def _world(env_id: str) -> World:
    if env_id not in GAMES:
        raise UsageError(f"There is no Crafter world '{env_id}'.{did_you_mean(env_id, GAMES)}")
    game = GAMES[env_id]
    if len(game.tasks) > 1:
        solved = "All 22 achievements were unlocked in one episode."
    else:
        solved = f"The achievement {game.tasks[0]} was unlocked."
    rules = _ORIGINAL_RULES if game.rules is ORIGINAL else _TEXT_RULES
    if not game.pays:
        rules += " Nothing is rewarded."
    return World(env_id, "crafter", OBS_SHAPE, game.rules.actions, MAX_STEPS, rules, solved)


def make_reference(env_id: str, **options: Any) -> gymnasium.Env[Any, Any]:
    """One world on PyPI crafter; options: observation, length, render_mode (see `reference.CrafterEnv`)."""
    from bkrl.envs.crafter.reference import CrafterEnv

    return CrafterEnv(_world(env_id), **options)


def make_native(env_id: str, **options: Any) -> gymnasium.Env[Any, Any]:
    """One world on the engine; options: observation, length, render_mode (see `vector.CrafterEnv`)."""
    from bkrl.envs.crafter.vector import CrafterEnv

    return CrafterEnv(_world(env_id), **options)


def make_native_vec(env_id: str, num_envs: int, **options: Any) -> WorldVectorEnv:
    """N worlds on the engine; options: observation, length, threads (see `vector.CrafterVectorEnv`)."""
    from bkrl.envs.crafter.vector import CrafterVectorEnv

    return CrafterVectorEnv(_world(env_id), num_envs, **options)


def caption(observations: NDArray[np.uint8]) -> list[str]:
    """(B, 82) symbolic observations → B captions."""
    from bkrl.envs.crafter.captions import caption_batch

    return caption_batch(observations)


def clause_reader() -> ClauseReader:
    """What reads the clauses of captions off symbolic observations."""
    from bkrl.envs.crafter import captions

    return captions.ClauseReader()
