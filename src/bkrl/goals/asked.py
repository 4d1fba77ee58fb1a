"""Goals from a language model, asked about each situation once, beside training.

A situation without an answer has no goals yet: training goes on meanwhile. Replies go through the same store, budget
and faults as labels (`llm.session`), so a situation whose reply is kept costs nothing and has its goals at once.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, Final

from bkrl.envs.family import Situations
from bkrl.goals.protocol import Goals
from bkrl.llm.protocol import Exchange, Message, Request, request_key
from bkrl.llm.session import AskSession
from bkrl.text.prompts import Prompts

MOST_GOALS: Final = 20
LONGEST_GOAL: Final = 80
_BULLET = re.compile(r"[ \t]*(?:[-*•]|\d{1,3}[.)])[ \t]*(\S.*)")
_FENCE = re.compile(r"(?:```\w*|\"\"\"|''')")


def parse_goals(reply: str, strict: bool = False) -> Goals | None:
    """The goals of a reply: its lines that begin with a bullet or a number, in small letters, each once.

    Args:
        reply: what the model wrote.
        strict: as published: every line must begin with "-", otherwise the reply says nothing, and a hyphen inside a
            goal divides it.

    Returns:
        At most `MOST_GOALS` goals of at most `LONGEST_GOAL` characters; None where the reply has none.
    """
    text = _FENCE.sub("", reply).strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if strict:
        if not lines or any(not line.startswith("-") for line in lines):
            return None
        found = [part for line in lines for part in line.split("-")]
    else:
        found = [match[1] for line in lines if (match := _BULLET.fullmatch(line))]
    goals = dict.fromkeys(filter(None, map(_cleaned, found)))
    return tuple(list(goals)[:MOST_GOALS]) or None


def _cleaned(goal: str) -> str:
    """Small letters without control characters, marks of Markdown and the full stop; "" for what is too long."""
    plain = "".join(c if unicodedata.category(c)[0] != "C" else " " for c in unicodedata.normalize("NFKC", goal))
    plain = re.sub(r"\s+", " ", plain).strip(" .*_`\"'").lower()
    return plain if len(plain) <= LONGEST_GOAL else ""


def in_words(situations: Situations, key: int) -> str:
    """A situation as sentences."""
    sentences = [sentence[:1].upper() + sentence[1:] for sentence in situations.text(key)]
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
        strict: see `parse_goals`.
        wait: wait for each answer, so that a run without kept replies has the same bytes as one with them.
    """

    def __init__(
        self,
        name: str,
        session: AskSession,
        situations: Situations,
        prompts: Prompts,
        family: str,
        *,
        temperature: float = 0.1,
        max_tokens: int = 200,
        strict: bool = False,
        wait: bool = False,
    ) -> None:
        self.name, self.session, self.situations, self.prompts, self.family = name, session, situations, prompts, family
        self.temperature, self.max_tokens, self.strict, self.wait = temperature, max_tokens, strict, wait
        self._asked: dict[str, list[int]] = {}  # request → situations

    def requests(self, key: int) -> list[Request]:
        """What is sent about a situation."""
        return [self.request(key)]

    def request(self, key: int) -> Request:
        """The question about a situation."""
        turns = self.prompts.render("explore", family=self.family, situation=in_words(self.situations, key))
        return Request(
            tuple(Message(role, words) for role, words in turns),
            temperature=self.temperature,
            max_tokens=self.max_tokens,
        )

    def suggest(self, keys: Sequence[int]) -> list[Goals | None]:
        requests = [self.request(key) for key in keys]
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
        return None if exchange.answer is None else parse_goals(exchange.answer, self.strict) or ()

    def facts(self) -> dict[str, Any]:
        """Who is asked, and how many questions have no answer yet; what came of the others is the book's to say."""
        return {**self.session.backend.facts(), "waiting": len(self._asked)}
