"""Worlds by name. Importing this registers every id with Gymnasium; `gym.make("bkrl.envs:ID")` imports it for you.

A family (a subpackage or module named in `_FAMILIES`) exports `worlds()`, `make_reference(env_id, **options)`,
`make_native_vec(env_id, num_envs, **options)` and `caption(observations, …)`. Optional are `find(env_id)`, which
recognises ids that are not listed (any other level of PyPI minigrid), and `clause_reader()` (see below).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from typing import Any, Literal, TypeVar, cast

import gymnasium
import numpy as np
from numpy.typing import NDArray

from bkrl.envs.vector import ReferenceVectorEnv, WorldVectorEnv
from bkrl.envs.world import ClauseReader, World
from bkrl.errors import UsageError
from bkrl.registry import did_you_mean, load_plugins

__all__ = ["World", "WorldVectorEnv", "captioner", "clause_reader", "env_ids", "make", "make_vec", "world"]

Backend = Literal["native", "reference"]
F = TypeVar("F")

_FAMILIES = ("babyai", "crafter", "toy")
_OWN: dict[str, Any] = {}


def register_family(name: str, make: Callable[[], F]) -> F:
    """The family of this name from outside bkrl, made when it is new; UsageError for one of bkrl's own names."""
    if name in _FAMILIES:
        raise UsageError(f"'{name}' is a family of bkrl's own; choose another name.")
    for remembered in (_worlds, world):
        remembered.cache_clear()
    return cast("F", _OWN.setdefault(name, make()))


def _family(name: str) -> Any:
    return _OWN[name] if name in _OWN else import_module(f"bkrl.envs.{name}")


@cache
def _worlds() -> dict[str, World]:
    load_plugins()
    return {w.env_id: w for family in (*_FAMILIES, *_OWN) for w in _family(family).worlds()}


def env_ids() -> list[str]:
    """Every id bkrl registers; other `BabyAI-*` and `MiniGrid-*` ids of PyPI minigrid work as well."""
    return list(_worlds())


@cache
def world(env_id: str) -> World:
    """The facts about an id; UsageError with the nearest name when there is no such world."""
    known = _worlds()
    if env_id in known:
        return known[env_id]
    for family in _FAMILIES:
        find = getattr(_family(family), "find", None)
        found = find(env_id) if find else None
        if found is not None:
            return cast(World, found)
    raise UsageError(f"There is no world '{env_id}'.{did_you_mean(env_id, known)} `bkrl list envs` shows them all.")


def make_vec(env_id: str, num_envs: int, *, backend: Backend = "native", **options: Any) -> WorldVectorEnv:
    """N copies of a world as one vector environment.

    Args:
        env_id: see `env_ids()`.
        num_envs: N.
        backend: "native" (our engine) or "reference" (PyPI minigrid or crafter, one Python object a world).
        options: of the family, e.g. `observation="image"` for Crafter.
    """
    facts = world(env_id)
    family = _family(facts.family)
    if _native(backend) and hasattr(family, "make_native_vec"):
        return cast(WorldVectorEnv, family.make_native_vec(env_id, num_envs, **options))
    return ReferenceVectorEnv(facts, partial(family.make_reference, env_id, **options), num_envs)


def make(env_id: str, *, backend: Backend = "native", **options: Any) -> gymnasium.Env[Any, Any]:
    """One world as an ordinary `gymnasium.Env` with the same dynamics."""
    family = _family(world(env_id).family)
    if _native(backend) and hasattr(family, "make_native"):
        return cast("gymnasium.Env[Any, Any]", family.make_native(env_id, **options))
    return cast("gymnasium.Env[Any, Any]", family.make_reference(env_id, **options))


def _native(backend: str) -> bool:
    if backend not in ("native", "reference"):
        raise UsageError(f"There is no backend '{backend}'; use native or reference.")
    return backend == "native"


def captioner(env_id: str, language: str = "en", compat: bool = False) -> Callable[[NDArray[np.uint8]], list[str]]:
    """The caption function of a world: (B, *obs_shape) uint8 → B captions, memoised.

    Args:
        env_id: the world.
        language: "en", or "fr" for BabyAI.
        compat: keep the known defects of the published captioner.
    """
    family = world(env_id).family
    options: dict[str, Any] = {}
    if language != "en":
        if family != "babyai":
            raise UsageError(f"Captions of {env_id} are in English only; leave --language out.")
        options["language"] = language
    if compat:
        if family != "babyai":
            raise UsageError(f"{env_id} has no upstream caption mode; leave the switch out.")
        options["compat"] = True
    return partial(_family(family).caption, **options)


@cache
def missions_vary(env_id: str) -> bool:
    """Whether episodes of a world ask for different things, of which the observations say nothing."""
    vary = getattr(_family(world(env_id).family), "missions_vary", None)
    return bool(vary(env_id)) if vary else False


def clause_reader(env_id: str) -> ClauseReader | None:
    """What reads off observations which clauses their English captions have; None where captions must be split."""
    make_reader = getattr(_family(world(env_id).family), "clause_reader", None)
    return cast(ClauseReader, make_reader()) if make_reader else None


def _entry(env_id: str, **options: Any) -> gymnasium.Env[Any, Any]:
    return make(env_id, **options)


def _vector_entry(env_id: str, num_envs: int = 1, **options: Any) -> WorldVectorEnv:
    return make_vec(env_id, num_envs, **options)


def _register() -> None:
    for env_id in _worlds():
        if env_id not in gymnasium.registry:
            gymnasium.register(
                id=env_id,
                entry_point="bkrl.envs:_entry",
                vector_entry_point="bkrl.envs:_vector_entry",
                kwargs={"env_id": env_id},
                disable_env_checker=True,
                order_enforce=False,
            )


_register()
