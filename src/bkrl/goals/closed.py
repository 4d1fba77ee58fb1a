"""Closed questions to a language model: does this thing belong in this place, yes or no? (Du et al. 2023, appendix.)

One question for each pair of words, asked once. Where the endpoint tells how likely "Yes" and "No" were, that is the
answer: P(yes) / (P(yes) + P(no)). Otherwise the words of several samples vote. Training does not wait for either.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from bkrl.goals.judges import Question
from bkrl.llm.protocol import Message, Request, request_key
from bkrl.llm.session import AskSession
from bkrl.text.prompts import Prompts

CHOICES: Final = ("Yes", "No")
_WORD: Final = re.compile(r"[a-z]+")
NO_OPINION: Final = math.nan


def read_answer(reply: str) -> tuple[float, bool]:
    """The probability of yes that a reply gives, and whether it rests on log-probabilities; NaN for no clear answer.

    A choice whose log-probability is not among those given counts as impossible. Words are clear where the first or
    the last of them is yes or no, and not the one this and the other that.
    """
    try:
        found = json.loads(reply)["logprobs"]
        yes, no = (float(found.get(choice, -math.inf)) for choice in CHOICES)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        words = _WORD.findall(reply.lower())
        ends = {word for word in (words[:1] + words[-1:]) if word in ("yes", "no")}
        return (float("yes" in ends) if len(ends) == 1 else NO_OPINION), False
    if not math.isfinite(max(yes, no)) or math.isnan(yes) or math.isnan(no):
        return NO_OPINION, True
    return 1.0 / (1.0 + math.exp(min(700.0, no - yes))), True


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
        free = session.backend.identity is None
        self.votes, self.temperature, self.max_tokens = 1 if free else votes, temperature, max_tokens
        self.wait = wait or free
        self.kept = self.failed = self.unclear = self.with_logprobs = 0
        self._answers: dict[Question, float] = {}
        self._heard: dict[Question, list[float]] = {}
        self._waiting: dict[str, Question] = {}  # request → question
        self._came: dict[Question, float] = {}

    def request(self, question: Question, sample: int = 0) -> Request:
        """The `sample`-th request about a question; the first one asks for log-probabilities."""
        thing, place = question
        turns = self.prompts.render("belongs", thing=thing, place=place)
        return Request(
            tuple(Message(role, words) for role, words in turns),
            temperature=self.temperature if sample else 0.0,
            max_tokens=self.max_tokens,
            sample=sample,
            choices=() if sample else CHOICES,
        )

    def judge(self, questions: Sequence[Question]) -> list[float | None]:
        """See `Judge.judge`."""
        new = [question for question in dict.fromkeys(questions) if question not in self._heard]
        self._heard |= {question: [] for question in new}
        self._send([(question, 0) for question in new])
        found = [self._answers.get(question) for question in questions]
        self._came.clear()
        return found

    def poll(self) -> Mapping[Question, float]:
        """See `Judge.poll`."""
        if self._waiting:
            again: list[tuple[Question, int]] = []
            for exchange in self.session.poll():
                again += self._hear(self._waiting.pop(exchange.key), exchange.answer)
            self._send(again)
        came = dict(self._came)
        self._came.clear()
        return came

    def _send(self, wanted: Sequence[tuple[Question, int]]) -> None:
        """Ask, wait or not, until nothing is left that can be sent now."""
        while wanted:
            again: list[tuple[Question, int]] = []
            requests = [self.request(*one) for one in wanted]
            if self.wait:
                for (question, _), exchange in zip(wanted, self.session.ask(requests), strict=True):
                    again += self._hear(question, exchange.answer)
            else:
                for (question, _), request in zip(wanted, requests, strict=True):
                    again += self._look_up(question, request)
            wanted = again

    def _look_up(self, question: Question, request: Request) -> list[tuple[Question, int]]:
        """Take a kept reply, or send the request."""
        kept = self.session.kept(request)
        if kept is None:
            self._waiting[request_key(self.session.backend.identity or {}, request)] = question
            self.session.submit([request])
            return []
        self.kept += 1
        return self._hear(question, kept.answer)

    def _hear(self, question: Question, answer: str | None) -> list[tuple[Question, int]]:
        """Take in one answer; the samples that are still to be asked for."""
        heard = self._heard[question]
        yes, exact = (NO_OPINION, False) if answer is None else read_answer(answer)
        exact &= not heard  # only the first request asks for log-probabilities
        self.failed += answer is None
        self.unclear += answer is not None and math.isnan(yes)
        self.with_logprobs += exact
        heard.append(yes)
        if len(heard) == 1 and not exact and answer is not None and self.votes > 1:
            return [(question, sample) for sample in range(1, self.votes)]
        if exact or (answer is None and len(heard) == 1) or len(heard) == self.votes:
            clear = [one for one in heard if not math.isnan(one)]
            mean = sum(clear) / len(clear) if clear else NO_OPINION
            self._answers[question] = self._came[question] = mean
        return []

    def facts(self) -> dict[str, Any]:
        """What was asked, and what came of it."""
        return {
            **self.session.backend.facts(),
            "questions": len(self._heard),
            "kept": self.kept,
            "with_logprobs": self.with_logprobs,
            "unclear": self.unclear,
            "failed": self.failed,
            "waiting": len(self._waiting),
        }
