"""Where an agent's goals come from, as a value that a policy file can hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Final, cast

import numpy as np
from numpy.typing import NDArray

from bkrl.core.errors import InputError
from bkrl.data.views import Views
from bkrl.envs import situations
from bkrl.goals.book import GoalBook, told_entries
from bkrl.goals.captions import Captioner, Success, TrueCaptioner
from bkrl.goals.closed import ClosedSuggester
from bkrl.goals.match import Matcher
from bkrl.goals.places import PLACES, PlaceSource
from bkrl.goals.suggesters import plain_suggester
from bkrl.goals.tracker import GoalTracker, PayRule, ProgressTracker
from bkrl.text.encoders import EncoderSettings, open_encoder

TASK: Final = "task"


@dataclass
class Source:
    """Goals of one kind in any number of envs.

    Attributes:
        env_id: the env whose situations they are of.
        book: what each situation brings.
        rule, success: see `GoalTracker`.
        plain: name, rates and seed of a suggester that asks nobody, so that a policy file can name it; {} for others,
            whose book is kept instead.
        encoder: settings of the matcher's encoder, and its threshold; {} for equal words.
        shown: whether agents see their goals.
        captioner: says in training which deed was done; None, and in evaluations: the truth by `success`.
        wanted: see `GoalTracker`.
        progress: the seed of a `ProgressTracker` in training; None: all goals that are suggested are set.
    """

    env_id: str
    book: GoalBook
    rule: PayRule
    success: Success
    plain: dict[str, Any] = field(default_factory=dict)
    encoder: dict[str, Any] = field(default_factory=dict)
    shown: bool = True
    captioner: Captioner | None = None
    wanted: tuple[str, ...] = ()
    progress: int | None = None
    reads_mission: ClassVar[bool] = False

    @property
    def num_deeds(self) -> int:
        """How many deeds can be goals."""
        return len(self.book.situations.deeds)

    @property
    def unanswered(self) -> tuple[int, int]:
        """Of how many situations no answer came, and how many were asked about."""
        return sum(found is None for found in self.book.goals.values()), len(self.book.goals)

    def facts(self, tracker: GoalTracker) -> dict[str, Any]:
        """What a manifest says: who suggested, how many situations were met, how good the goals were."""
        suggester = self.book.suggester
        known = self.book.facts() | ({} if self.progress is None else {"chosen_by": "progress"})
        if self.book.session:
            known |= {"unreadable": sum(found == () for found in self.book.goals.values())}
            known |= {"unanswered": self.unanswered[0]}
        if isinstance(suggester, ClosedSuggester):
            known |= {"goal_auc": suggester.score([key for key, goals in self.book.goals.items() if goals is not None])}
        figures = None if self.captioner is None else self.captioner.figures
        captions = {} if figures is None else {"captions_held_out": figures}
        return {**known, "situations_met": len(self.book.goals), "quality": tracker.shares(), **captions}

    def of(self, num_envs: int) -> GoalTracker:
        told = TrueCaptioner(self.success)
        return GoalTracker(self.book, num_envs, self.rule, told, shown=self.shown, wanted=self.wanted)

    def to_learn(self, num_envs: int) -> Any:
        """The goals of the envs that are learnt in: captioned by `captioner`, and their quality is counted."""
        told = self.captioner or TrueCaptioner(self.success)
        kind: Any = GoalTracker if self.progress is None else partial(ProgressTracker, seed=self.progress)
        return kind(self.book, num_envs, self.rule, told, shown=self.shown, counted=True, wanted=self.wanted)

    def to_json(self) -> dict[str, Any]:
        return {
            "env_id": self.env_id,
            "rule": self.rule,
            "success": self.success,
            "plain": self.plain,
            "encoder": self.encoder,
            "shown": self.shown,
            **({"wanted": self.wanted} if self.wanted else {}),
            "book": [] if self.plain else self.book.entries(),
        }

    @classmethod
    def of_json(cls, document: Mapping[str, Any]) -> Source | TaskSource | PlaceSource:
        """The source that `to_json` described. It asks nothing: situations that are not in its book have no goals."""
        try:
            if document.get("name") == TASK:
                return TaskSource(document["env_id"])
            if document.get("name") == PLACES:
                return PlaceSource.of_json(document)
            known = situations(document["env_id"])
            plain, encoder = dict(document["plain"]), dict(document["encoder"])
            threshold = encoder.pop("threshold", 1.0)
            matcher = Matcher(known, open_encoder(cast(EncoderSettings, encoder)) if encoder else None, threshold)
            suggester = plain_suggester(situations=known, **plain) if plain else None
            shown, wanted = bool(document.get("shown", True)), tuple(document.get("wanted", ()))
            how: dict[str, Any] = {"encoder": dict(document["encoder"]), "shown": shown, "wanted": wanted}
            book = GoalBook(known, suggester, matcher)
            source = cls(document["env_id"], book, document["rule"], document["success"], plain, **how)
            source.book.enter(told_entries(document["book"]))
        except (LookupError, TypeError, ValueError) as error:
            raise InputError(f"The policy's goals cannot be read ({error}); train the policy again.") from None
        return source


class TaskSource:
    """The env's own mission as the goal: for typed tasks, whose missions are deeds. Nothing is paid for it here."""

    reads_mission = True

    def __init__(self, env_id: str) -> None:
        self.env_id = env_id
        known = situations(env_id)
        self.book = GoalBook(known, None, Matcher(known))
        self.num_deeds, self.unanswered = len(known.deeds), (0, 0)

    def of(self, num_envs: int) -> TaskSource:
        return self

    to_learn = of

    def happened(self, actions: NDArray[np.int64], infos: Mapping[str, Any], after: NDArray[np.uint8]) -> None:
        """Nothing is paid."""

    def __call__(self, views: Views, started: NDArray[np.bool_]) -> NDArray[np.uint8]:
        """(N, A) 1 where a deed is the mission."""
        missions = [] if views.mission is None else views.mission.tolist()
        rows = {mission: self.book.matcher([mission])[0] > 0 for mission in set(missions)}
        return np.stack([rows[mission] for mission in missions]).astype(np.uint8)

    def facts(self, tracker: Any) -> dict[str, Any]:
        """What a manifest says."""
        return {"suggester": TASK}

    def to_json(self) -> dict[str, Any]:
        return {"name": TASK, "env_id": self.env_id}
