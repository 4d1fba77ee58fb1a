"""The contract of a family of envs: what everything outside `envs` may ask of one.

A new family is a module or folder of `envs` that ends in `FAMILY = MyFamily("name")`, and its name in `envs.FAMILIES`.
Its words for prompts lie beside it in `prompts/`: `world_NAME.md`, and `layout_NAME.md` for BK-Code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, TypedDict

import numpy as np
from numpy.typing import NDArray

from bkrl.core.errors import UsageError
from bkrl.core.flags import Setting
from bkrl.envs.symbols import Symbols

if TYPE_CHECKING:
    from gymnasium import Env
    from gymnasium.vector import AutoresetMode

    from bkrl.envs.memory import EpisodeMemory
    from bkrl.envs.vector import BaseVectorEnv


@dataclass(frozen=True)
class EnvSpec:
    """One environment id.

    Attributes:
        env_id: the name, as registered with Gymnasium.
        family: the name of its `Family`; potentials and policies are made for a family.
        obs_shape: shape of the symbolic uint8 observation.
        action_names: in the order of the action indices.
        max_steps: an episode is truncated after this many actions.
        rules: one sentence: whose rules this id follows, with every deviation.
        solved: one sentence: what counts as success.
        language: of its captions where none is asked for.
    """

    env_id: str
    family: str
    obs_shape: tuple[int, ...]
    action_names: tuple[str, ...]
    max_steps: int
    rules: str
    solved: str
    language: str = "en"


class ClauseReader(Protocol):
    """Which clauses the captions of observations have, known without making the captions.

    Attributes:
        texts: the clauses; may grow at its end as observations are read.
    """

    texts: list[str]

    def __call__(self, views: NDArray[np.uint8]) -> NDArray[np.int32]:
        """(M, *obs_shape) → (M, most) numbers of `texts` in the caption's order, -1 after the last."""


class Bot(Protocol):
    """An expert that plans from the state of envs; what it may know of that state, it says itself."""

    def begin(self, num_envs: int) -> dict[str, NDArray[Any]]:
        """What the bots of N envs remember before their first step: arrays with a leading axis N."""

    def act(
        self,
        env_states: NDArray[Any],
        symbols: NDArray[np.uint8],
        memory: dict[str, NDArray[Any]],
        started: NDArray[np.bool_],
    ) -> NDArray[np.int64]:
        """(N,) the next actions; the same for the same arguments.

        Args:
            env_states: (N,) from `BaseVectorEnv.env_states`.
            symbols: (N, *obs_shape) what the agents see.
            memory: from `begin`, or as the last call left it: changed in place.
            started: (N,) True where an episode begins: what was before is forgotten there.
        """


class GoalSpace(Protocol):
    """The goals that an env offers. A goal is the name of a deed; a deed is what an action that
    succeeds does.

    Attributes:
        deeds: (A,) what each action does, in words.
        possible: the deeds that can be done at all.
        same: (A,) the names of each deed, its own first.
        parts: (P,) what a situation can tell of one thing, each a sentence.
        wording: the wording of captions ("language") that `text` is in.
    """

    deeds: tuple[str, ...]
    possible: tuple[str, ...]
    same: tuple[tuple[str, ...], ...]
    parts: tuple[str, ...]
    wording: str

    def keys(self, symbols: NDArray[np.uint8]) -> NDArray[np.int64]:
        """(B, *obs_shape) → (B,) numbers of situations; what follows depends on the number only."""

    def text(self, key: int) -> tuple[str, ...]:
        """The sentences that tell a situation."""

    def parts_of(self, key: int) -> tuple[int, ...]:
        """The places in `parts` of what a situation tells."""

    def sensible(self, key: int) -> tuple[str, ...]:
        """The deeds that make sense in a situation, by the rules of the env."""

    def composition(self, deeds: Sequence[str]) -> tuple[str, ...]:
        """Possible deeds and all that they need, each as often as what it yields is used."""


class Placed(NamedTuple):
    """Where the things of N episodes are: K slots for things, P places.

    Attributes:
        things: (N, K) which thing each slot holds; -1: none.
        visible: (N, K) bool, whether it is in view.
        place: (N, K) where it lies, as far as the agent knows; -1: in the hand, or nowhere known.
        held: (N,) the slot of the thing in the hand; -1: the hand is empty.
        seen: (N, P) bool, the places that were in view in this episode.
        good: (N, K + P) bool, the deeds that make sense by the env's own labels: picking up what is known to be out
            of place, putting what is held where it belongs.
        house: (N,) which house it is.
    """

    things: NDArray[np.int64]
    visible: NDArray[np.bool_]
    place: NDArray[np.int64]
    held: NDArray[np.int64]
    seen: NDArray[np.bool_]
    good: NDArray[np.bool_]
    house: NDArray[np.int64]


class TidyGoalSpace(Protocol):
    """The goals of an env in which things are put away. A deed is picking up the thing of a
    slot, or putting what is in the hand into a place: K + P deeds.

    Attributes:
        house: which house it is, "" where that differs from episode to episode.
        things: names of the things, in the words of captions.
        places: (P,) names of the places.
        slots: K, the most things in an episode.
    """

    house: str
    things: tuple[str, ...]
    places: tuple[str, ...]
    slots: int

    def read(self, symbols: NDArray[np.uint8]) -> Placed:
        """(N, *obs_shape) → where things are."""

    def done(self, infos: Mapping[str, Any], before: Placed) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """(N,) the deed that the last action was, -1 for none; (N,) whether it tried to grab or release, and failed.

        `before`: where things were when it was taken.
        """


class Episodes(TypedDict):
    """How a vector env ends and begins episodes; see `BaseVectorEnv`."""

    autoreset_mode: AutoresetMode | str
    max_episode_steps: int | None
    episode_statistics: bool


class Family:
    """A family of envs: environments that share observations, captions and, mostly, actions.

    A subclass implements `specs`, `make_reference` and `caption`; everything else has a default. The base class by
    itself stands for a family that bkrl does not know (any more): it has a name and nothing else.

    Attributes:
        name: its name, which datasets, policies and potentials record.
        languages: of its captions, or other wordings of them; the first is the default.
        published_captions: whether its captioner also knows the defects of the published one (`compat`).
        images: whether `make(…, observation="both")` adds pictures under "image" to the symbols under "symbolic".
        grid: (columns, rows) of a map that stands first in a flat observation; (0, 0) where there is none.
        layout: what `layout_NAME.md`, which says what the integers mean, is filled in with as `layout`.
        achievements: the names of what an episode can unlock, in the order of `infos["achievements"]`.
        knowledge: the name of what the rules annotator knows of it, "" where it knows nothing.
        exact: how exact values are found for it: "tables" (its envs are `toy.Table`s), "rooms" (minigrid's rules,
            searched), or "" with the reason in `inexact`.
    """

    languages: ClassVar[tuple[str, ...]] = ("en",)
    published_captions: ClassVar[bool] = False
    images: ClassVar[bool] = False
    grid: ClassVar[tuple[int, int]] = (0, 0)
    layout: Any = None
    achievements: ClassVar[tuple[str, ...]] = ()
    knowledge: ClassVar[str] = ""
    exact: ClassVar[Literal["", "tables", "rooms"]] = ""

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def inexact(self) -> str:
        """Why exact values cannot be computed, one clause."""
        return f"not computed for {self.name}"

    def specs(self) -> list[EnvSpec]:
        """The envs that are listed, without making one."""
        return []

    def find(self, env_id: str) -> EnvSpec | None:
        """The env of an id that is not listed; None for what is none of the family's."""
        return None

    def other_ids(self) -> list[str]:
        """The ids that `find` knows."""
        return []

    def options(self, env_spec: EnvSpec) -> list[Setting]:
        """What can be chosen of an env that changes it, as in `ID@NAME=VALUE`: name, type, help and default.

        `make`, `make_reference` and `make_vec` take each by its name. What changes only how an env is computed or
        shown is none of them.
        """
        return []

    def changed(self, env_spec: EnvSpec, options: Mapping[str, Any]) -> EnvSpec:
        """The facts of an env with these of its options; UsageError for values that it cannot have."""
        raise UsageError(f"'{env_spec.env_id}' has no options.")

    def make_reference(self, env_spec: EnvSpec, **options: Any) -> Env[Any, Any]:
        """One environment on the library that the rules are of: slow, and the ground truth."""
        raise NotImplementedError

    def make(self, env_spec: EnvSpec, **options: Any) -> Env[Any, Any]:
        """One environment, on the native engine where there is one."""
        return self.make_reference(env_spec, **options)

    def make_vec(
        self, env_spec: EnvSpec, num_envs: int, episodes: Episodes, *, threads: int = 1, **options: Any
    ) -> BaseVectorEnv:
        """`num_envs` of them as one vector environment; those that are stepped one by one pass `threads` over."""
        from bkrl.envs.reference import ReferenceVectorEnv

        make = partial(self.make_reference, env_spec, **options)
        return ReferenceVectorEnv(env_spec, make, num_envs, self.achievements, **episodes)

    def mission_is_hidden(self, env_spec: EnvSpec, options: Mapping[str, Any]) -> bool:
        """Whether episodes with these options have different missions, which the observations do not show."""
        return False

    def later_missions(self, env_spec: EnvSpec, options: Mapping[str, Any]) -> tuple[str, ...]:
        """What missions can change to within an episode with these options."""
        return ()

    def mission_language(self, env_spec: EnvSpec) -> str:
        """The language of an env's missions."""
        return "en"

    def caption(self, observations: NDArray[np.uint8], language: str = "en", compat: bool = False) -> list[str]:
        """(B, *obs_shape) uint8 → B captions: sentences divided by ", " or ". "."""
        raise NotImplementedError

    def situations(self, env_spec: EnvSpec) -> GoalSpace | None:
        """What goals can be set by in this env; None where its actions are no deeds."""
        return None

    def placing(self, env_spec: EnvSpec, options: Mapping[str, Any]) -> TidyGoalSpace | None:
        """What goals can be set by in an env where things are put away; None in any other."""
        return None

    def memory(self, env_spec: EnvSpec) -> EpisodeMemory | None:
        """What can be remembered of episodes in this env; None where nothing says it.

        The id of `env_spec` is without options, the other facts with them.
        """
        return None

    def never_counted(self, env_id: str) -> tuple[str, ...]:
        """Fields of its memory that stay 0 in every episode of this env, whose id may have options, as far as is known:
        doors opened, where no door is.
        """
        return ()

    def relations(self, env_spec: EnvSpec) -> dict[str, tuple[str, str]]:
        """What the present view tells of an agent and the things around it, by a name that programs can use: said as a
        goal, and as a NumPy expression (B,) of `now`, the present observations (B, *obs_shape).
        """
        return {}

    def clause_reader(self) -> ClauseReader | None:
        """What reads off observations which clauses their English captions have; None: captions must be split."""
        return None

    def symbols(self, obs_shape: Sequence[int], high: NDArray[Any] | None = None) -> Symbols:
        """What the entries of an observation mean; `high` are its space's upper bounds, where these are known."""
        return Symbols.of_shape(obs_shape, high)

    def bot(self, env_spec: EnvSpec) -> Bot | None:
        """What plans its way in this env; None where there is none. `agents.bot` makes an agent of it.

        The id of `env_spec` is without options, the other facts with them.
        """
        return None

    def tile_maps(self, observations: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.uint8]] | None:
        """(N, *obs_shape) → tile numbers (N, rows, columns) and the T tiles, (T, side, side, 4) RGBA.

        None where there is no way to draw an observation.
        """
        return None
