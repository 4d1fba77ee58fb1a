"""Envs by name. Importing this registers every id with Gymnasium; `gym.make("bkrl.envs:bkrl/ID")` imports it for you.

Every env belongs to a `Family` (`family.py`): what differs between kinds of envs is asked of it. An id may have
options, `ID@NAME=VALUE,NAME=VALUE` (`options.py`).

Each id is registered as `bkrl/ID`, and the listed ones without `bkrl/` too. An id of minigrid without `bkrl/`
(`BabyAI-GoToLocal-v0`) is minigrid's own environment, slow and with other observations, even after `bkrl.envs:`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache, partial
from importlib import import_module
from typing import Any, Literal, TypeVar

import gymnasium
import numpy as np
from gymnasium.envs import registration
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from bkrl.core.errors import UsageError
from bkrl.core.registry import did_you_mean, load_plugins
from bkrl.envs import options as env_options
from bkrl.envs.family import Bot, ClauseReader, EnvSpec, Episodes, Family, GoalSpace, TidyGoalSpace
from bkrl.envs.memory import EpisodeMemory
from bkrl.envs.reference import ReferenceVectorEnv
from bkrl.envs.vector import BaseVectorEnv

__all__ = ["BaseVectorEnv", "EnvSpec", "Family", "captioner", "env_ids", "env_spec", "family", "make", "make_vec"]

Backend = Literal["native", "reference"]
F = TypeVar("F", bound=Family)

FAMILIES = ("babyai", "crafter", "housekeep", "toy")
"""The modules and folders here whose `FAMILY` is one."""
_OWN: dict[str, Any] = {}


def register_family(new: F, env_id: str) -> F:
    """The family from outside bkrl that `env_id` is to belong to: the one of this name, or `new` if there is none.

    Raises:
        UsageError: bkrl has a family of this name itself, or the id stands in another family.
    """
    name = new.name
    if name in FAMILIES:
        raise UsageError(f"'{name}' is a family of bkrl's own; choose another name.")
    try:
        taken = env_spec(env_id).family
    except UsageError:  # the id is new
        taken = name
    if taken != name:
        raise UsageError(f"'{env_id}' is an environment of the family '{taken}' already; choose another id.")
    for remembered in (_specs, _bare_spec, env_spec, mission_is_hidden):
        remembered.cache_clear()
    kept: F = _OWN.setdefault(name, new)
    return kept


def family(name: str) -> Family:
    """The family of a name; one without any knowledge where bkrl does not know the name (any more)."""
    if name in FAMILIES:
        known: Family = import_module(f"bkrl.envs.{name}").FAMILY
        return known
    load_plugins()
    return _OWN.get(name) or Family(name)


def family_of(env_id: str) -> Family:
    """The family of an env; UsageError where there is no such env."""
    return family(env_spec(env_id).family)


@cache
def _specs() -> dict[str, EnvSpec]:
    load_plugins()
    return {w.env_id: w for name in (*FAMILIES, *_OWN) for w in family(name).specs()}


def env_ids() -> list[str]:
    """Every id bkrl registers; other `BabyAI-*` and `MiniGrid-*` ids of PyPI minigrid work as well."""
    return list(_specs())


@cache
def env_spec(env_id: str) -> EnvSpec:
    """The facts about an id, its options in order and without those that change nothing.

    UsageError with the nearest name when there is no such env, and for options that it does not have.
    """
    bare, options = _read(env_id)
    return _with_options(bare, options) if options else bare


def spec_with(env_id: str, options: Mapping[str, Any]) -> EnvSpec:
    """The facts about an id with further options, which go before its own; see `env_spec`."""
    return env_spec(_with_options(*_chosen(env_id, options)).env_id)


def _read(env_id: str) -> tuple[EnvSpec, dict[str, Any]]:
    """The env of an id without its options, and these."""
    bare, written = env_options.split(env_id)
    facts = _bare_spec(bare)
    return facts, env_options.read(bare, written, family(facts.family).options(facts)) if written else {}


def _with_options(bare: EnvSpec, options: Mapping[str, Any]) -> EnvSpec:
    """The env with these of its options; others, which change no facts, are left alone."""
    known = family(bare.family)
    settings = known.options(bare)
    own = {one.name: options[one.name] for one in settings if one.name in options}
    if not own:
        return bare
    return replace(known.changed(bare, own), env_id=env_options.joined(bare.env_id, own, settings))


@cache
def _bare_spec(env_id: str) -> EnvSpec:
    known = _specs()
    if env_id in known:
        return known[env_id]
    for name in FAMILIES:
        found = family(name).find(env_id)
        if found is not None:
            return found
    raise UsageError(f"There is no env '{env_id}'.{did_you_mean(env_id, known)} `bkrl list envs` shows them all.")


def make_vec(
    env_id: str,
    num_envs: int,
    *,
    backend: Backend = "native",
    autoreset_mode: AutoresetMode | str = AutoresetMode.SAME_STEP,
    max_episode_steps: int | None = None,
    episode_statistics: bool = True,
    **options: Any,
) -> BaseVectorEnv:
    """N copies of an env as one vector environment.

    Args:
        env_id: see `env_ids()`.
        num_envs: N.
        backend: "native" (our engine) or "reference" (PyPI minigrid or crafter, one Python object an env).
        autoreset_mode: what follows the end of an episode; bkrl's own code needs the default (see `BaseVectorEnv`).
        max_episode_steps: actions after which an episode is truncated, if the env does not end it before.
        episode_statistics: have `infos["episode"]`, which bkrl's own code needs.
        options: of the family, e.g. `observation="image"` for Crafter or `max_steps=100` for BabyAI; they go before
            those in the id.
    """
    facts, options = _chosen(env_id, options)
    known = family(facts.family)
    episodes: Episodes = {
        "autoreset_mode": autoreset_mode,
        "max_episode_steps": max_episode_steps,
        "episode_statistics": episode_statistics,
    }
    make = known.make_vec if _native(backend) else partial(Family.make_vec, known)
    made = make(facts, num_envs, episodes, **options)
    made.env_spec = _with_options(facts, options)
    return made


def make(env_id: str, *, backend: Backend = "native", **options: Any) -> gymnasium.Env[Any, Any]:
    """One env as an ordinary `gymnasium.Env` with the same dynamics."""
    facts, options = _chosen(env_id, options)
    known = family(facts.family)
    made: Any = (known.make if _native(backend) else known.make_reference)(facts, **options)
    if (changed := _with_options(facts, options)) is not facts:  # environments of one's own have no `env`
        made.env_spec = changed
    return made


def _chosen(env_id: str, options: Mapping[str, Any]) -> tuple[EnvSpec, dict[str, Any]]:
    """The env of an id without its options, and these with further ones, which go before them."""
    facts, written = _read(env_id)
    return facts, {**written, **options}


def _native(backend: str) -> bool:
    if backend not in ("native", "reference"):
        raise UsageError(f"There is no backend '{backend}'; use native or reference.")
    return backend == "native"


def captioner(
    env_id: str, language: str | None = None, compat: bool = False
) -> Callable[[NDArray[np.uint8]], list[str]]:
    """The caption function of an env: (B, *obs_shape) uint8 → B captions.

    Args:
        env_id: the env.
        language: "en", "fr" for BabyAI, "ellm" or "balrog" for Crafter in their wording; None: the env's own.
        compat: keep the known defects of the published captioner.
    """
    known = family_of(env_id)
    language = language or env_spec(env_id).language
    if language not in known.languages:
        if known.languages == ("en",):
            raise UsageError(f"Captions of {env_id} are in English only; leave --language out.")
        raise UsageError(f"Captions of {env_id} are in {' or '.join(known.languages)}, not in '{language}'.")
    if compat and not known.published_captions:
        raise UsageError(f"{env_id} has no upstream caption mode; leave the switch out.")
    return partial(known.caption, language=language, compat=compat)


def sentences(
    env_id: str, language: str | None = None, compat: bool = False
) -> Callable[[NDArray[np.uint8]], NDArray[np.object_]]:
    """What makes texts of an env's observations: (B, *obs_shape) uint8 → (B,) tuples of each caption's sentences."""
    caption = captioner(env_id, language, compat)
    return lambda observations: np.fromiter(map(sentences_of, caption(observations)), object, len(observations))


@lru_cache(1 << 16)
def sentences_of(caption: str) -> tuple[str, ...]:
    """The sentences of a caption, each with its full stop."""
    return tuple(re.split(r"(?<=\.) ", caption)) if caption else ()


@cache
def mission_is_hidden(env_id: str) -> bool:
    """Whether episodes of an env have different missions, which the observations do not show."""
    bare, options = _read(env_id)
    return family(bare.family).mission_is_hidden(bare, options)


def later_missions(env_id: str) -> tuple[str, ...]:
    """What missions can change to within an episode of an env."""
    bare, options = _read(env_id)
    return family(bare.family).later_missions(bare, options)


def bot_of(env_id: str) -> Bot | None:
    """What plans its way in an env; None where there is none."""
    known = env_spec(env_id)
    return family(known.family).bot(replace(known, env_id=_read(env_id)[0].env_id))


@cache
def memory_of(env_id: str) -> EpisodeMemory | None:
    """What can be remembered of episodes in an env; None where nothing says it."""
    known = env_spec(env_id)
    return family(known.family).memory(replace(known, env_id=_read(env_id)[0].env_id))


def clause_reader(env_id: str) -> ClauseReader | None:
    """What reads off observations which clauses their English captions have; None where captions must be split."""
    return family_of(env_id).clause_reader()


def situations(env_id: str) -> GoalSpace:
    """What goals can be set by in an env; UsageError where there is nothing."""
    known = family_of(env_id).situations(env_spec(env_id))
    if known is None:
        raise UsageError(
            f"No goals can be suggested in {env_id}: its actions are no deeds. Crafter-Typed-Harder has them; see "
            "`bkrl list envs`."
        )
    return known


def placing(env_id: str) -> TidyGoalSpace:
    """What goals can be set by in an env where things are put away; UsageError in any other."""
    known = find_placing(env_id)
    if known is None:
        raise UsageError(f"Nothing is put away in {env_id}; see `bkrl list envs` for an env of Housekeep.")
    return known


def find_placing(env_id: str) -> TidyGoalSpace | None:
    """The same; None in any other env."""
    bare, options = _read(env_id)
    return family(bare.family).placing(bare, options)


def _entry(env_id: str, **options: Any) -> gymnasium.Env[Any, Any]:
    _warn_of_limit(env_id, options)
    env = make(env_id, **options)
    _warn_of_longer(env_id, options, env_spec(env_id).max_steps)
    return env


def _vector_entry(
    env_id: str,
    num_envs: int = 1,
    *,
    render_mode: str | None = None,
    autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    episode_statistics: bool = False,
    max_episode_steps: int | None = None,
    **options: Any,
) -> BaseVectorEnv:
    """What `gymnasium.make_vec` calls: Gymnasium's defaults instead of ours."""
    if render_mode not in (None, "rgb_array"):
        raise UsageError(f"'{render_mode}' is not a render mode of '{env_id}'; use 'rgb_array' or none.")
    limit = None if max_episode_steps == _NO_LIMIT else max_episode_steps
    if limit is not None:
        _warn_of_limit(env_id, options, limit)
    common: dict[str, Any] = {"autoreset_mode": autoreset_mode, "episode_statistics": episode_statistics}
    envs = make_vec(env_id, num_envs, max_episode_steps=limit, **common, **options)
    if limit is not None:
        _warn_of_longer(env_id, options, limit)
    if isinstance(envs, ReferenceVectorEnv) and options.get("backend") != "reference":
        gymnasium.logger.warn(f"{env_id} has no native engine, so it is slow. {envs.env_spec.rules}")
    return envs


_NAMESPACE = "bkrl/"
_NO_LIMIT = -1  # Gymnasium's word for it


def _warn_of_limit(env_id: str, options: dict[str, Any], limit: int | None = None) -> None:
    """Say so when an env is made longer than Gymnasium lets its episodes be."""
    for name in ("max_steps", "length"):
        wanted = options.get(name)
        registered = limit or env_spec(env_id).max_steps
        if isinstance(wanted, int) and wanted > registered:
            gymnasium.logger.warn(
                f"{name}={wanted} is beyond the {registered} steps registered for {env_id}, after which Gymnasium cuts "
                f"episodes off: give max_episode_steps={wanted} as well, unless you have."
            )


def _warn_of_longer(env_id: str, options: dict[str, Any], limit: int) -> None:
    """Say so when other options, like a larger room, let episodes last longer than Gymnasium does."""
    facts, given = _chosen(env_id, options)
    made = _with_options(facts, given)
    if made.max_steps > max(limit, facts.max_steps) and not {"max_steps", "length"} & set(options):
        gymnasium.logger.warn(
            f"With these options an episode of {made.env_id} has up to {made.max_steps} steps, and Gymnasium cuts it "
            f"off after {limit}: give max_episode_steps={made.max_steps} as well, unless you have."
        )


class _Spec(registration.EnvSpec):
    """Finds out the step limit when it is asked for: some envs must be built to know it."""

    @property
    def max_episode_steps(self) -> int | None:  # type: ignore[override]
        return self.__dict__["max_episode_steps"] or env_spec(self.id.removeprefix(_NAMESPACE)).max_steps

    @max_episode_steps.setter
    def max_episode_steps(self, steps: int | None) -> None:
        self.__dict__["max_episode_steps"] = steps


def enter(listed: Sequence[str], others: Sequence[str] = ()) -> None:
    """Enter ids in Gymnasium's registry: all as `bkrl/ID`, and those `listed`, where nobody else has them, as `ID`."""
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


# Those of plugins are entered when they are registered: importing this module imports no plugin.
enter(
    [w.env_id for name in FAMILIES for w in family(name).specs()],
    [other for name in FAMILIES for other in family(name).other_ids()],
)
