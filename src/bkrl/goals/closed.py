"""Closed questions to a language model, yes or no: does this thing belong in this place (Du et al. 2023, appendix), and
can this deed be done right now, and is it sensible?

Each question is asked once. Where the endpoint tells how likely "Yes" and "No" were, that is the answer:
P(yes) / (P(yes) + P(no)). Otherwise the words of several samples vote. `--goal-wait` says whether training waits.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bkrl.envs.family import GoalSpace
from bkrl.goals.asked import in_words
from bkrl.goals.judges import Question
from bkrl.goals.protocol import Goals
from bkrl.goals.suggesters import deeds_to_suggest
from bkrl.labelers.closed import goal_question
from bkrl.labelers.material import EnvCard
from bkrl.llm.choose import FLOOR, Chooser, ClosedAnswer, ClosedQuestion, Phrasing
from bkrl.llm.protocol import Message, Request
from bkrl.stats.ranks import area_with_interval
from bkrl.text.prompts import PromptTemplates

CHOICES: Final = ("Yes", "No")
MOST_SCORED: Final = 500
"""Situations that answers are scored on."""


class AskedJudge:
    """A judge (`goals.judges.Judge`) whose answers a language model gives: `name` as in `--suggester`, `chooser` asks
    it, and of the templates in `prompts` `belongs` is filled in.
    """

    knows = True

    def __init__(self, name: str, chooser: Chooser, prompts: PromptTemplates) -> None:
        self.name, self.session, self.prompts = name, chooser.session, prompts
        self.chooser = self.account = chooser
        self.failed: set[Question] = set()  # that no answer came to
        self._questions: dict[ClosedQuestion, Question] = {}

    def question(self, question: Question) -> ClosedQuestion:
        """What is asked about a thing and a place."""
        turns = self.prompts.render("belongs", thing=question[0], place=question[1])
        messages = tuple(Message(role, words) for role, words in turns)
        closed = ClosedQuestion((Phrasing(messages, CHOICES, (0, 1)),))
        self._questions[closed] = question
        return closed

    def judge(self, questions: Sequence[Question]) -> list[float | None]:
        answers = zip(questions, self.chooser.ask([self.question(one) for one in questions]), strict=True)
        return [None if answer is None else self._yes(one, answer) for one, answer in answers]

    def poll(self) -> Mapping[Question, float]:
        came = [(self._questions[one], answer) for one, answer in self.chooser.poll().items()]
        return {one: self._yes(one, answer) for one, answer in came}

    def _yes(self, question: Question, answer: ClosedAnswer) -> float:
        """The probability of yes; NaN for no opinion, and for no answer."""
        if not _answered(answer):
            self.failed.add(question)
        return float(np.exp(answer.scores[0, 0]))

    def facts(self) -> dict[str, Any]:
        """What was asked, and what came of it."""
        return self.chooser.facts()


def _answered(answer: ClosedAnswer) -> bool:
    """Whether each phrasing was answered, or refused, as it would be again."""
    first = [exchanges[0] for exchanges in answer.exchanges]
    return all(one.answer is not None or one.reason in ("filtered", "refused") for one in first)


class ClosedSuggester:
    """A suggester whose goals are chosen among the deeds of the env: each is a question of its own in each situation,
    worded with yes and no in either order.

    The goals of a situation are the deeds whose log-odds are not below the mean of that situation: small models say yes
    to nearly all, and order them.

    Args:
        name: as in `--suggester`.
        chooser: asks.
        situations: of the env; the vocabulary is what can be done there at all, but for moving and waiting.
        card: the env as prompts know it.
    """

    def __init__(self, name: str, chooser: Chooser, situations: GoalSpace, card: EnvCard) -> None:
        self.name, self.session, self.situations, self.card = name, chooser.session, situations, card
        self.chooser, self.account = chooser, self
        self.goals = deeds_to_suggest(situations)
        self._odds: dict[int, NDArray[np.float64]] = {}
        self._left: dict[int, int] = {}  # questions without an answer; one that failed leaves it above 0
        self._open: dict[int, list[ClosedQuestion]] = {}  # those of situations with some left
        self._of: dict[ClosedQuestion, list[tuple[int, int]]] = {}

    def questions(self, key: int) -> list[ClosedQuestion]:
        """(G) what is asked about a situation."""
        words = in_words(self._text(key))
        return [goal_question(self.card, words, goal) for goal in self.goals]

    def _text(self, key: int) -> tuple[str, ...]:
        return self.situations.text(key)

    def requests(self, key: int) -> list[Request]:
        """What is sent about a situation."""
        return self.chooser.requests(self.questions(key))

    def suggest(self, keys: Sequence[int]) -> list[Goals | None]:
        new = {key: self.questions(key) for key in keys}
        asked = [(key, k, one) for key, questions in new.items() for k, one in enumerate(questions)]
        self._open |= new
        for key in keys:
            self._odds[key], self._left[key] = np.full(len(self.goals), np.nan), len(self.goals)
        answers = self.chooser.ask([one for _, _, one in asked], "judge goals")
        for (key, k, question), answer in zip(asked, answers, strict=True):
            if answer is None:
                self._of.setdefault(question, []).append((key, k))
            else:
                self._hear(key, k, answer)
        return [self._goals(key) for key in keys]

    def poll(self) -> Mapping[int, Goals]:
        came: dict[int, None] = {}
        for question, answer in self.chooser.poll().items():
            for key, k in self._of.pop(question, []):
                self._hear(key, k, answer)
                came[key] = None
        return {key: goals for key in came if (goals := self._goals(key)) is not None}

    def _hear(self, key: int, k: int, answer: ClosedAnswer) -> None:
        if _answered(answer):
            scores = np.where(np.isinf(answer.scores), FLOOR, answer.scores)
            self._odds[key][k] = (scores[:, 0] - scores[:, 1]).mean()
            self._left[key] -= 1
            if not self._left[key]:
                del self._open[key]

    def _goals(self, key: int) -> Goals | None:
        """Likeliest first; () where no answer was clear, None where one is missing."""
        return None if self._left[key] else self._above(self._odds[key], np.nanmean)

    def _above(self, scores: NDArray[np.float64], limit: Callable[[NDArray[np.float64]], Any]) -> Goals:
        """The goals whose score is not below a limit, best first."""
        if np.isnan(scores).all():
            return ()
        chosen = np.flatnonzero(scores >= limit(scores) - 1e-9)
        return tuple(self.goals[k] for k in chosen[np.argsort(-scores[chosen], kind="stable")])

    def _scores(self, key: int) -> NDArray[np.float64]:
        """(G,) how much speaks for each goal; NaN: no clear answer."""
        return self._odds[key]

    def score(self, keys: Sequence[int]) -> dict[str, Any]:
        """Area under the curve of the log-odds, deeds that are sensible by the env's rules against others, over
        situations that have answers.
        """
        keys = keys[:: max(1, -(-len(keys) // MOST_SCORED))]
        told = [self._scores(key) for key in keys]
        right = [np.isin(self.goals, self.situations.sensible(key)) for key in keys]
        return area_with_interval(np.array(told), np.array(right)) if keys else {}

    def state(self) -> dict[str, NDArray[Any]]:
        """What asking took, for a checkpoint."""
        return self.chooser.state(self._again())

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take back what `state` returned."""
        self.chooser.restore(state)

    def _again(self) -> Iterable[ClosedQuestion]:
        """What is asked again after `restore`: all about a situation where an answer is missing."""
        return chain.from_iterable(self._open.values())

    def facts(self) -> dict[str, Any]:
        """Who answers, and how many deeds are asked about; the book counts situations, the session questions."""
        return {**self.session.backend.facts(), "deeds": len(self.goals)}


class PartSuggester(ClosedSuggester):
    """A suggester that is asked about each thing that can be seen or held by itself, once for all situations.

    Of the log-odds of G deeds beside P things what a deed and what a thing add everywhere is taken off, so that what
    is left says which deed goes with which thing: a small model finds some deeds good and agrees beside some things,
    whatever it is asked. Of the things, those in the upper group (`upper_group`) of a deed's scores go with it, and
    its score in a situation is that of the thing there that speaks most for it. The goals of a situation are the deeds
    that something there goes with: so no deed is left out everywhere, since one that is never a goal is not learnt,
    while one out of place costs nothing.
    """

    def __init__(self, name: str, chooser: Chooser, situations: GoalSpace, card: EnvCard) -> None:
        super().__init__(name, chooser, situations, card)
        self._parts = range(-len(situations.parts), 0)  # numbers below 0 stand for things
        self._speaks, self._limits = np.zeros((0, len(self.goals))), np.zeros(0)
        self._later: dict[int, None] = {}

    def _text(self, key: int) -> tuple[str, ...]:
        return (self.situations.parts[key],)

    def requests(self, key: int) -> list[Request]:
        """All that is ever sent, whatever the situation."""
        return self.chooser.requests([question for part in self._parts for question in self.questions(part)])

    def suggest(self, keys: Sequence[int]) -> list[Goals | None]:
        if not self._odds:
            super().suggest(self._parts)
        found = [self._goals(key) for key in keys]
        self._later |= {key: None for key, goals in zip(keys, found, strict=True) if goals is None}
        return found

    def poll(self) -> Mapping[int, Goals]:
        super().poll()
        came = {key: goals for key in self._later if (goals := self._goals(key)) is not None}
        self._later = {} if came else self._later
        return came

    def _goals(self, key: int) -> Goals | None:
        if key in self._parts or not self._complete():
            return None
        return self._above(self._scores(key), lambda _: self._limits)

    def _again(self) -> Iterable[ClosedQuestion]:
        """All, where one is missing."""
        return [question for part in self._parts if self._open for question in self.questions(part)]

    def _complete(self) -> bool:
        """Whether each question has its answer; the first time, what speaks for each deed is worked out."""
        if not len(self._speaks) and not any(self._left.values()):
            odds = np.stack([self._odds[part] for part in self._parts])
            odds = odds if np.isnan(odds).all() else np.nan_to_num(odds)  # one that is not clear speaks for nothing
            self._speaks = odds - odds.mean(0) - odds.mean(1, keepdims=True) + odds.mean()
            self._limits = np.array([upper_group(scores) for scores in self._speaks.T.round(9)])
        return len(self._speaks) > 0

    def _scores(self, key: int) -> NDArray[np.float64]:
        here = list(self.situations.parts_of(key)) if self._complete() else []
        return self._speaks[here].max(0) if here else np.full(len(self.goals), np.nan)


def upper_group(scores: NDArray[np.float64]) -> float:
    """The least of the scores that lie above the limit by which two groups differ most (Otsu 1979): with n₀ and n₁
    below and above it and means m₀ and m₁, n₀ n₁ (m₀ − m₁)² is largest.

    Args:
        scores: (G,) without NaN. Equal ones are one group: their value.
    """
    low = np.sort(scores)
    counts, sums = np.arange(1, len(low)), np.cumsum(low)
    if not np.ptp(scores):
        return float(low[0])
    apart = sums[:-1] / counts - (sums[-1] - sums[:-1]) / counts[::-1]
    return float(low[1:][np.argmax(counts * counts[::-1] * apart**2)])
