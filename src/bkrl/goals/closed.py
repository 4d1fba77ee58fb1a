"""Closed questions to a language model, yes or no: does this thing belong in this place (Du et al. 2023, appendix), and
can this deed be done right now, and is it sensible?

Each question is asked once. Where the endpoint tells how likely "Yes" and "No" were, that is the answer:
P(yes) / (P(yes) + P(no)). Otherwise the words of several samples vote. `--goal-wait` says whether training waits.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bkrl.envs.family import GoalSpace
from bkrl.goals.asked import in_words
from bkrl.goals.judges import Question
from bkrl.goals.protocol import Goals
from bkrl.labelers.closed import goal_question
from bkrl.labelers.material import EnvCard
from bkrl.llm.choose import Chooser, ClosedAnswer, ClosedQuestion, Phrasing
from bkrl.llm.protocol import Message, Request
from bkrl.stats.ranks import area_with_interval
from bkrl.text.prompts import Prompts

CHOICES: Final = ("Yes", "No")
MOST_SCORED: Final = 500
"""Situations that answers are scored on."""
_IDLE: Final = ("do nothing", "move ")


class AskedJudge:
    """A judge (`goals.judges.Judge`) whose answers a language model gives: `name` as in `--suggester`, `chooser` asks
    it, and of the templates in `prompts` `belongs` is filled in.
    """

    knows = True

    def __init__(self, name: str, chooser: Chooser, prompts: Prompts) -> None:
        self.name, self.session, self.prompts = name, chooser.session, prompts
        self.chooser = self.account = chooser
        self._questions: dict[ClosedQuestion, Question] = {}

    def question(self, question: Question) -> ClosedQuestion:
        """What is asked about a thing and a place."""
        turns = self.prompts.render("belongs", thing=question[0], place=question[1])
        messages = tuple(Message(role, words) for role, words in turns)
        closed = ClosedQuestion((Phrasing(messages, CHOICES, (0, 1)),))
        self._questions[closed] = question
        return closed

    def judge(self, questions: Sequence[Question]) -> list[float | None]:
        answers = self.chooser.ask([self.question(one) for one in questions])
        return [None if answer is None else _yes(answer) for answer in answers]

    def poll(self) -> Mapping[Question, float]:
        return {self._questions[one]: _yes(answer) for one, answer in self.chooser.poll().items()}

    def facts(self) -> dict[str, Any]:
        """What was asked, and what came of it."""
        return self.chooser.facts()


def _yes(answer: ClosedAnswer) -> float:
    """The probability of yes; NaN for no opinion."""
    return float(np.exp(answer.scores[0, 0]))


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
        self.chooser = self.account = chooser
        self.goals = tuple(deed for deed in situations.possible if not deed.startswith(_IDLE))
        self._odds: dict[int, NDArray[np.float64]] = {}
        self._left: dict[int, int] = {}  # questions without an answer; one that failed leaves it above 0
        self._of: dict[ClosedQuestion, list[tuple[int, int]]] = {}

    def questions(self, key: int) -> list[ClosedQuestion]:
        """(G) what is asked about a situation."""
        return [goal_question(self.card, in_words(self.situations, key), goal) for goal in self.goals]

    def requests(self, key: int) -> list[Request]:
        """What is sent about a situation."""
        return self.chooser.requests(self.questions(key))

    def suggest(self, keys: Sequence[int]) -> list[Goals | None]:
        asked = [(key, k, one) for key in dict.fromkeys(keys) for k, one in enumerate(self.questions(key))]
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
        if all(exchanges[0].answer is not None for exchanges in answer.exchanges):
            scores = np.maximum(answer.scores, -99.0)
            self._odds[key][k] = (scores[:, 0] - scores[:, 1]).mean()
            self._left[key] -= 1

    def _goals(self, key: int) -> Goals | None:
        """Likeliest first; () where no answer was clear, None where one is missing."""
        odds = self._odds[key]
        if self._left[key]:
            return None
        if np.isnan(odds).all():
            return ()
        chosen = np.flatnonzero(odds >= np.nanmean(odds) - 1e-9)
        return tuple(self.goals[k] for k in chosen[np.argsort(-odds[chosen], kind="stable")])

    def score(self, keys: Sequence[int]) -> dict[str, Any]:
        """Area under the curve of the log-odds, deeds that are sensible by the env's rules against others, over
        situations that have answers.
        """
        keys = keys[:: max(1, -(-len(keys) // MOST_SCORED))]
        told = [self._odds[key] for key in keys]
        right = [np.isin(self.goals, self.situations.sensible(key)) for key in keys]
        return area_with_interval(np.array(told), np.array(right)) if keys else {}

    def facts(self) -> dict[str, Any]:
        """Who answers, and how many deeds are asked about; the book counts situations, the session questions."""
        return {**self.session.backend.facts(), "deeds": len(self.goals)}
