"""Language and vocabulary of everything that an agent reads.

Most agents have the env's own wording. An agent is trained in one wording and evaluated in others, which is how far it
has understood words rather than learnt sentences by heart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bkrl.core.errors import UsageError
from bkrl.envs import family, sentences
from bkrl.envs.babyai.constants import ACTION_NAMES, ACTION_SETS, DONE_ENDS
from bkrl.envs.babyai.french import french_mission
from bkrl.envs.family import EnvSpec
from bkrl.text.language import LANGUAGES, Substitution, french_actions, words
from bkrl.text.policy_prompts import GOAL_LABELS, LABELS, Labels

_SAID = dict(zip(ACTION_NAMES, (*ACTION_SETS["canonical"], "do nothing"), strict=True))
"""Names of BabyAI's actions as they are said."""


@dataclass(frozen=True)
class Wording:
    """The wording of captions, missions, action names and labels.

    Attributes:
        language: "en" or "fr"; "" for the env's own. English missions and action names are translated.
        words: the name of a list of `language.WORDS`, or words with what stands for them.
        actions: names of the env's actions, in their order, or the name of one of `ACTION_SETS`; () for the
            env's own.
        goal_label: what stands for the label of the goal in prompts, or its name in `GOAL_LABELS`; "" for the usual.
        compat: "g4" for the published captioner.
    """

    language: str = ""
    words: str | Mapping[str, str] = ""
    actions: str | tuple[str, ...] = ()
    goal_label: str = ""
    compat: frozenset[str] = field(default_factory=frozenset)

    def __post_init__(self) -> None:
        """UsageError for a language or a list of words that is none."""
        if self.language not in ("", *LANGUAGES):
            raise UsageError(f"There is no language '{self.language}' here; use {' or '.join(LANGUAGES)}.")
        if isinstance(self.words, str) and self.words:
            words(self.words)

    @property
    def rewords(self) -> bool:
        """Whether missions are told in other words than the env's."""
        return bool(self.words) or self.language == "fr"

    def of(self, env_spec: EnvSpec) -> Worded:
        """This wording of what agents read in an env; UsageError where it cannot have it."""
        return Worded(env_spec, self)

    def to_json(self) -> dict[str, Any]:
        """Plain values, from which `Wording(**…)` makes it again."""
        plain = {"language": self.language, "words": self.words, "goal_label": self.goal_label}
        return {**plain, "actions": self.actions, "compat": sorted(self.compat)}

    @classmethod
    def of_json(cls, values: Mapping[str, Any]) -> Wording:
        """What `to_json` was called on."""
        actions = values["actions"]
        actions = actions if isinstance(actions, str) else tuple(actions)
        return cls(**{**values, "actions": actions, "compat": frozenset(values["compat"])})


class Worded:
    """A wording in one env.

    Attributes:
        texts: (B, *obs_shape) uint8 → (B,) objects, captions as tuples of sentences.
        action_names: in the order of the env's actions.
        labels: of prompts.
        words: what replaces words, for who does it in whole prompts.
    """

    def __init__(self, env_spec: EnvSpec, wording: Wording) -> None:
        if wording.language == "en" and family(env_spec.family).mission_language(env_spec) == "fr":
            raise UsageError(
                f"The missions of {env_spec.env_id} are French, and nothing translates them into English; leave the "
                "language out, or choose fr."
            )
        self.wording, self.language = wording, wording.language or env_spec.language
        self._done_ends = env_spec.env_id.startswith(DONE_ENDS)
        chosen = wording.words
        chosen = words(chosen, self.language) if isinstance(chosen, str) and chosen else chosen or {}
        self.words = Substitution(chosen, self.language)
        self._each = bool(chosen)
        self.action_names = self._names(env_spec)
        self._env_id, self._family = env_spec.env_id, env_spec.family
        self._other = lru_cache(1 << 16)(lambda text: tuple(map(self.words, text)))
        self._missions = self._reworded = np.zeros(0, object)

    @cached_property
    def _plain(self) -> Callable[[NDArray[np.uint8]], NDArray[np.object_]]:
        """Captions as the env words them; made when the first is wanted, since some envs have missions only."""
        return sentences(self._env_id, self.language, compat="g4" in self.wording.compat)

    @cached_property
    def labels(self) -> Labels:
        """Of prompts."""
        labels, label = LABELS[self.language], self.wording.goal_label
        labels = labels if family(self._family).exact == "rooms" else replace(labels, meanings=(), idle="")
        labels = replace(labels, idle="") if self._done_ends else labels
        return replace(labels, goal=GOAL_LABELS.get(label, {}).get(self.language, label)) if label else labels

    def texts(self, observations: NDArray[np.uint8]) -> NDArray[np.object_]:
        """(B, *obs_shape) uint8 → (B,) captions as tuples of sentences."""
        plain = self._plain(observations)
        return np.fromiter(map(self._other, plain), object, len(plain)) if self._each else plain

    def missions(self, missions: NDArray[np.object_]) -> NDArray[np.object_]:
        """(N,) missions of the envs, in these words. An array that was given before is not read again."""
        if not self.wording.rewords:
            return missions
        if missions is not self._missions:
            self._missions = missions
            self._reworded = np.fromiter(map(self.mission, missions), object, len(missions))
        return self._reworded

    def mission(self, mission: str) -> str:
        """A mission in these words; InputError for one that cannot be translated."""
        if self.wording.language == "fr":
            mission = french_mission(mission)
        return self.words(mission) if self._each else mission

    def _names(self, env_spec: EnvSpec) -> tuple[str, ...]:
        said = _SAID if "forward" in env_spec.action_names else {}  # elsewhere left may be a step, and no turn
        said = {**said, "done": "done"} if self._done_ends else said
        plain = [said.get(name, name.replace("_", " ")) for name in env_spec.action_names]
        names: Sequence[str] = self.wording.actions or plain
        names = ACTION_SETS[names] if isinstance(names, str) and names in ACTION_SETS else names
        if isinstance(names, str):
            raise UsageError(f"There are no names of actions '{names}'. There are: {', '.join(ACTION_SETS)}.")
        if len(names) != len(env_spec.action_names):
            raise UsageError(
                f"{env_spec.env_id} has {len(env_spec.action_names)} actions here, and {len(names)} names are given: "
                f"{', '.join(names)}."
            )
        if self.wording.language == "fr" and not self.wording.actions:
            return french_actions(names)
        return tuple(names)
