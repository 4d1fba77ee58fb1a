"""One question to a model: ask, read the answer, and once ask again when it cannot be read."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from bkrl.labelers.answers import Unparsed
from bkrl.llm.protocol import NOT_ASKED, Exchange, Message, Request
from bkrl.llm.session import AskSession
from bkrl.text.prompts import PromptTemplates

T = TypeVar("T")


@dataclass(frozen=True)
class Sampling:
    """How answers are drawn; part of every request's key."""

    temperature: float = 0.5
    max_tokens: int = 2048
    effort: str | None = None

    def request(self, messages: tuple[Message, ...], schema: Mapping[str, Any] | None, sample: int) -> Request:
        """A request for one answer drawn so."""
        return Request(messages, schema, self.temperature, self.max_tokens, self.effort, sample)

    def conversations(self, openings: Sequence[tuple[Message, ...]], rounds: int) -> list[Request]:
        """What conversations of so many rounds ask at most; only their first prompts are known."""
        first = [self.request(messages, None, number) for number, messages in enumerate(openings)]
        later = self.request((*openings[0], Message("assistant", "")), None, 0)  # no reply is kept for that
        return first + [later] * (len(first) * (rounds - 1))


@dataclass(frozen=True)
class Asked(Generic[T]):
    """All exchanges of one question (a second one if the answer had to be asked for again) and what came out."""

    exchanges: tuple[Exchange, ...]
    value: T | Unparsed

    @property
    def status(self) -> str:
        """labelled, unparsed, or why the model gave no answer (refused, filtered, truncated, failed)."""
        if not isinstance(self.value, Unparsed):
            return "labelled"
        last = self.exchanges[-1]
        return "unparsed" if last.status == "ok" else last.status


def turns(rendered: Sequence[tuple[str, str]]) -> tuple[Message, ...]:
    """Rendered template turns as messages."""
    return tuple(Message(role, text) for role, text in rendered)


async def ask_parsed(
    session: AskSession, request: Request, parse: Callable[[str], T | Unparsed], wanted: str, prompts: PromptTemplates
) -> Asked[T]:
    """Ask; if the answer cannot be read, show the reason and `wanted` (the form in words) once, and read again."""
    first = await session.answer(request)
    if first.answer is None:
        return Asked((first,), Unparsed(first.reason or first.status))
    value = parse(first.answer)
    if not isinstance(value, Unparsed):
        return Asked((first,), value)
    again = (Message("assistant", first.answer), *turns(prompts.render("repair", reason=value.reason, format=wanted)))
    second = await session.answer(replace(request, messages=(*request.messages, *again)))
    if second.reason == NOT_ASKED:
        return Asked((first,), value)
    return Asked((first, second), value if second.answer is None else parse(second.answer))


class Responses:
    """Collects exchanges as rows of responses.parquet, numbered in the order they are added."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def add(self, exchanges: Sequence[Exchange]) -> list[int]:
        """Append exchanges; returns their request ids."""
        first = len(self.rows)
        for exchange in exchanges:
            self.rows.append(_row(len(self.rows), exchange))
        return list(range(first, len(self.rows)))


def _row(number: int, exchange: Exchange) -> dict[str, Any]:
    reply = exchange.reply
    bad = "" if exchange.status == "ok" else exchange.status
    turns = [{"role": turn.role, "content": turn.text} for turn in exchange.request.messages]
    names = ("finish_reason", "model", "prompt_tokens", "completion_tokens", "reasoning_tokens")
    return {
        "request_id": number,
        "key": exchange.key,
        "prompt": json.dumps(turns, ensure_ascii=False),
        "sample": exchange.request.sample,
        "reply": None if reply is None else reply.text,
        "status": exchange.status,
        "reason": exchange.reason if reply is None else bad,
        **{name: None if reply is None else vars(reply)[name] for name in names},
        "cost_usd": exchange.cost_usd,
        "answered_as": None if reply is None else reply.format,
    }
