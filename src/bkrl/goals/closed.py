"""Closed questions to a language model: does this thing belong in this place, yes or no? (Du et al. 2023, appendix.)

One question for each pair of words, asked once. Where the endpoint tells how likely "Yes" and "No" were, that is the
answer: P(yes) / (P(yes) + P(no)). Otherwise the words of several samples vote. Training does not wait for either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bkrl.goals.judges import Question
from bkrl.llm.choose import Chooser, ClosedAnswer, ClosedQuestion, Phrasing
from bkrl.llm.protocol import Message
from bkrl.llm.session import AskSession
from bkrl.text.prompts import Prompts

CHOICES: Final = ("Yes", "No")


class AskedJudge:
    """A judge (`goals.judges.Judge`) whose answers the annotator of a session gives.

    Args:
        name: as in `--suggester`.
        session: who is asked; closed by whoever opened it.
        prompts: the templates; `belongs` is filled in.
        votes: samples that vote where there are no log-probabilities.
        temperature: of the votes; a single answer, and one with log-probabilities, is taken at temperature 0.
        max_tokens: of a reply.
        wait: wait for each answer, so that a run without kept replies has the same bytes as one with them.
    """

    knows = True

    def __init__(
        self,
        name: str,
        session: AskSession,
        prompts: Prompts,
        *,
        votes: int = 1,
        temperature: float = 1.0,
        max_tokens: int = 200,
        wait: bool = False,
    ) -> None:
        self.name, self.session, self.prompts = name, session, prompts
        self.chooser = Chooser(session, votes=votes, temperature=temperature, max_tokens=max_tokens, wait=wait)
        self._questions: dict[ClosedQuestion, Question] = {}

    def question(self, question: Question) -> ClosedQuestion:
        """What is asked about a thing and a place."""
        turns = self.prompts.render("belongs", thing=question[0], place=question[1])
        messages = tuple(Message(role, words) for role, words in turns)
        closed = ClosedQuestion((Phrasing(messages, CHOICES, (0, 1)),))
        self._questions[closed] = question
        return closed

    def judge(self, questions: Sequence[Question]) -> list[float | None]:
        return [_yes(answer) for answer in self.chooser.ask([self.question(one) for one in questions])]

    def poll(self) -> Mapping[Question, float]:
        return {self._questions[one]: float(np.exp(answer.scores[0, 0])) for one, answer in self.chooser.poll().items()}

    def facts(self) -> dict[str, Any]:
        """What was asked, and what came of it."""
        return self.chooser.facts()

    def state(self) -> dict[str, NDArray[Any]]:
        return self.chooser.state()

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        self.chooser.restore(state)


def _yes(answer: ClosedAnswer | None) -> float | None:
    """The probability of yes; NaN for no opinion, None where no answer has come."""
    return None if answer is None else float(np.exp(answer.scores[0, 0]))
