"""Goals from a language model, asked about each situation once, beside training.

A situation without an answer has no goals yet: training goes on meanwhile. Replies go through the same store, budget
and faults as labels (`llm.session`), so a situation whose reply is kept costs nothing and has its goals at once.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from bkrl.envs.family import GoalSpace
from bkrl.goals.protocol import Goals
from bkrl.labelers.answers import MOST_GOALS, Unparsed, clean_goal, parse_goals
from bkrl.llm.protocol import Exchange, Message, Request, request_key
from bkrl.llm.session import AskSession
from bkrl.text.prompts import PromptTemplates

_FENCE = re.compile(r"(?:```\w*|\"\"\"|''')")


def read_goals(reply: str, strict: bool = False) -> Goals:
    """The goals of a reply (`parse_goals`); () where it has none.

    Args:
        reply: what the model wrote.
        strict: as published: every line must begin with "-", otherwise the reply says nothing, and a hyphen inside a
            goal divides it.
    """
    if not strict:
        found = parse_goals(reply)
        return () if isinstance(found, Unparsed) else tuple(found)
    lines = [line.strip() for line in _FENCE.sub("", reply).splitlines() if line.strip()]
    parts = [clean_goal(part) for line in lines if line.startswith("-") for part in line.split("-")]
    goals = tuple(dict.fromkeys(filter(None, parts)))[:MOST_GOALS]
    return goals if all(line.startswith("-") for line in lines) else ()


def in_words(sentences: Sequence[str]) -> str:
    """The sentences of a situation, or of a part of it, as one text."""
    sentences = [sentence[:1].upper() + sentence[1:] for sentence in sentences]
    # "You see grass. you are targeting grass." is one sentence of the wording with two full stops
    return re.sub(r"\. (\w)", lambda found: f". {found[1].upper()}", " ".join(sentences))


class AskedSuggester:
    """Goals that the annotator of a session suggests.

    Args:
        name: as in `--suggester`.
        session: who is asked; closed by whoever opened it.
        situations: of the env.
        prompts: the templates; `explore` is filled in.
        family: the family's name, which chooses the examples.
        temperature, max_tokens: of the requests (published: .1 and 200).
        strict: see `read_goals`.
        wait: wait for each answer, so that a run without kept replies has the same bytes as one with them.
    """

    def __init__(
        self,
        name: str,
        session: AskSession,
        situations: GoalSpace,
        prompts: PromptTemplates,
        family: str,
        *,
        temperature: float = 0.1,
        max_tokens: int = 200,
        strict: bool = False,
        wait: bool = False,
    ) -> None:
        self.account = session
        self.name, self.session, self.situations, self.prompts, self.family = name, session, situations, prompts, family
        self.temperature, self.max_tokens, self.strict, self.wait = temperature, max_tokens, strict, wait
        self._asked: dict[str, list[int]] = {}  # request → situations

    def requests(self, key: int) -> list[Request]:
        """What is sent about a situation: one question."""
        turns = self.prompts.render("explore", family=self.family, situation=in_words(self.situations.text(key)))
        messages = tuple(Message(role, words) for role, words in turns)
        return [Request(messages, temperature=self.temperature, max_tokens=self.max_tokens)]

    def suggest(self, keys: Sequence[int]) -> list[Goals | None]:
        requests = [request for key in keys for request in self.requests(key)]
        if self.session.backend.identity is None or self.wait:
            return [self._read(exchange) for exchange in self.session.ask(requests)]
        found: list[Goals | None] = []
        for key, request in zip(keys, requests, strict=True):
            kept = self.session.kept(request)
            if kept is not None:
                found.append(self._read(kept))
            else:
                found.append(None)
                self._asked.setdefault(request_key(self.session.backend.identity, request), []).append(key)
                self.session.submit([request])
        return found

    def poll(self) -> Mapping[int, Goals]:
        if not self._asked:
            return {}
        came: dict[int, Goals] = {}
        for exchange in self.session.poll():
            goals = self._read(exchange)
            for key in self._asked.pop(exchange.key, []):
                if goals is not None:
                    came[key] = goals
        return came

    def _read(self, exchange: Exchange) -> Goals | None:
        """The goals of an answer; none where it cannot be read, None where there is no answer."""
        return None if exchange.answer is None else read_goals(exchange.answer, self.strict)

    def facts(self) -> dict[str, Any]:
        """Who is asked, and how many questions have no answer yet; what came of the others is the book's to say."""
        return {**self.session.backend.facts(), "waiting": len(self._asked)}
