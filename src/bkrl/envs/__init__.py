"""Worlds by name. Importing this registers every id with Gymnasium; `gym.make("bkrl.envs:ID")` imports it for you.

A family (a subpackage or module named in `_FAMILIES`) exports `worlds()`, `make_reference(env_id, **options)`,
`make_native_vec(env_id, num_envs, **options)` and `caption(observations, …)`. Optional are `find(env_id)`, which
recognises ids that are not listed (any other level of PyPI minigrid), `other_ids()`, which names these, and
`clause_reader()` (see below).

Gymnasium knows every id as `bkrl/ID`; the listed ones also without `bkrl/`. `BabyAI-GoToLocal-v0` alone stays what
minigrid registers under this name, slow and with other observations, whatever module stands before it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from typing import Any, Literal, TypeVar, cast

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from bkrl.core.errors import UsageError
from bkrl.core.registry import did_you_mean, load_plugins
from bkrl.envs.vector import ReferenceVectorEnv, WorldVectorEnv
from bkrl.envs.world import ClauseReader, World

__all__ = ["World", "WorldVectorEnv", "captioner", "clause_reader", "env_ids", "make", "make_vec", "world"]

Backend = Literal["native", "reference"]
F = TypeVar("F")

_FAMILIES = ("babyai", "crafter", "toy")
_OWN: dict[str, Any] = {}


def register_family(name: str, env_id: str, make: Callable[[], F]) -> F:
    """The family from outside bkrl that `env_id` is to belong to, made when it is new.

    Raises:
        UsageError: bkrl has a family of this name itself, or the id stands in another family.
    """
    if name in _FAMILIES:
        raise UsageError(f"'{name}' is a family of bkrl's own; choose another name.")
    try:
        taken = world(env_id).family
    except UsageError:  # nobody has it yet
        taken = name
    if taken != name:
        raise UsageError(f"'{env_id}' is an environment of the family '{taken}' already; choose another id.")
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


def make_vec(
    env_id: str,
    num_envs: int,
    *,
    backend: Backend = "native",
    autoreset_mode: AutoresetMode | str = AutoresetMode.SAME_STEP,
    max_episode_steps: int | None = None,
    episode_statistics: bool = True,
    **options: Any,
) -> WorldVectorEnv:
    """N copies of a world as one vector environment.

    Args:
        env_id: see `env_ids()`.
        num_envs: N.
        backend: "native" (our engine) or "reference" (PyPI minigrid or crafter, one Python object a world).
        autoreset_mode: what follows the end of an episode; bkrl's own code needs the default (see `WorldVectorEnv`).
        max_episode_steps: actions after which an episode is truncated, if the world does not end it before.
        episode_statistics: have `infos["episode"]`, which bkrl's own code needs.
        options: of the family, e.g. `observation="image"` for Crafter or `max_steps=100` for BabyAI.
    """
    facts = world(env_id)
    family = _family(facts.family)
    common: dict[str, Any] = {
        "autoreset_mode": autoreset_mode,
        "episode_statistics": episode_statistics,
        "max_episode_steps": max_episode_steps,
    }
    if _native(backend) and hasattr(family, "make_native_vec"):
        return cast(WorldVectorEnv, family.make_native_vec(env_id, num_envs, **common, **options))
    return ReferenceVectorEnv(facts, partial(family.make_reference, env_id, **options), num_envs, **common)


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
    _warn_of_limit(env_id, options)
    return make(env_id, **options)


def _vector_entry(
    env_id: str,
    num_envs: int = 1,
    *,
    render_mode: str | None = None,
    autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    episode_statistics: bool = False,
    max_episode_steps: int | None = None,
    **options: Any,
) -> WorldVectorEnv:
    """What `gymnasium.make_vec` calls: Gymnasium's defaults instead of ours."""
    if render_mode not in (None, "rgb_array"):
        raise UsageError(f"'{render_mode}' is not a render mode of '{env_id}'; use 'rgb_array' or none.")
    limit = None if max_episode_steps == _NO_LIMIT else max_episode_steps
    if limit is not None:
        _warn_of_limit(env_id, options, limit)
    common: dict[str, Any] = {"autoreset_mode": autoreset_mode, "episode_statistics": episode_statistics}
    envs = make_vec(env_id, num_envs, max_episode_steps=limit, **common, **options)
    if isinstance(envs, ReferenceVectorEnv) and options.get("backend") != "reference":
        gymnasium.logger.warn(f"{env_id} has no native engine, so it is slow. {envs.world.rules}")
    return envs


_NAMESPACE = "bkrl/"
_NO_LIMIT = -1  # Gymnasium's word for it


def _warn_of_limit(env_id: str, options: dict[str, Any], limit: int | None = None) -> None:
    """Say so when a world is made longer than Gymnasium lets its episodes be."""
    for name in ("max_steps", "length"):
        wanted = options.get(name)
        registered = limit or world(env_id).max_steps
        if isinstance(wanted, int) and wanted > registered:
            gymnasium.logger.warn(
                f"{name}={wanted} is beyond the {registered} steps registered for {env_id}, after which Gymnasium cuts "
                f"episodes off: give max_episode_steps={wanted} as well, unless you have."
            )


class _Spec(EnvSpec):
    """Finds out the step limit when it is asked for: some worlds must be built to know it."""

    @property
    def max_episode_steps(self) -> int | None:  # type: ignore[override]
        return self.__dict__["max_episode_steps"] or world(self.id.removeprefix(_NAMESPACE)).max_steps

    @max_episode_steps.setter
    def max_episode_steps(self, steps: int | None) -> None:
        self.__dict__["max_episode_steps"] = steps


def _register() -> None:
    """Enter every id as `bkrl/ID`, and those that nobody else registers as `ID` too."""
    listed = list(_worlds())
    others = [other for family in _FAMILIES for other in getattr(_family(family), "other_ids", list)()]
    for name, env_id in [*((env_id, env_id) for env_id in listed), *((_NAMESPACE + i, i) for i in [*listed, *others])]:
        if name not in gymnasium.registry:
            gymnasium.registry[name] = _Spec(
                id=name,
                entry_point="bkrl.envs:_entry",
                vector_entry_point="bkrl.envs:_vector_entry",
                kwargs={"env_id": env_id},
                disable_env_checker=True,
                order_enforce=False,
            )


_register()
