"""Answers that were given before, asked for again: from a run's responses, a run's failures, and the store. Nothing is
sent.

So a batch that came back becomes tables, a run is read again with today's parsers, and shards are joined. What a run
recorded comes back exactly as it was (key, text, tokens, cost).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from bkrl.core.errors import InputError
from bkrl.core.reporter import Reporter
from bkrl.llm.budget import Budget
from bkrl.llm.prices import Price
from bkrl.llm.protocol import NOT_ASKED, Backend, Exchange, Message, Reply, Request, address
from bkrl.llm.session import AskSession
from bkrl.llm.store import Store

Row = Mapping[str, Any]
"""Of responses.parquet."""


@dataclass
class Speaker:
    """Stands where a backend would: who gave recorded answers, as their manifest says."""

    name: str
    said: dict[str, str]
    identity: None = None

    async def complete(self, request: Request) -> Reply:
        raise NotImplementedError

    def facts(self) -> dict[str, str]:
        return dict(self.said)

    async def close(self) -> None:
        return None


class KeptAnswers(AskSession):
    """A session that sends nothing. What is not kept comes back as an exchange with the reason NOT_ASKED, is counted in
    `absent` and, where there is a store, listed in `missing` by its key.

    Args:
        rows: of responses.parquet, which come before the store.
        failures: reason and detail, by key, of requests to which no answer will ever come.
        exact: every question must be among the rows to the letter, InputError otherwise. Without it a follow-up whose
            last turn was worded differently (a parser says otherwise what it misses) is found by the conversation
            before it.
    """

    def __init__(
        self,
        backend: Backend,
        store: Store | None = None,
        rows: Iterable[Row] = (),
        failures: Mapping[str, tuple[str, str]] | None = None,
        exact: bool = False,
        reporter: Reporter | None = None,
        budget: Budget | None = None,
        price: Price | None = None,
    ) -> None:
        super().__init__(backend, store, None, reporter, budget, price)
        self.absent = 0
        self.missing: dict[str, Request] = {}
        self._failures = failures or {}
        self._exact = exact
        self._rows: dict[str, Row] = {}
        self._follow_ups: dict[str, Row] = {}
        for row in rows:
            turns = [(turn["role"], turn["content"]) for turn in json.loads(row["prompt"])]
            self._rows.setdefault(address(turns, row["sample"]), row)
            if len(turns) > 2:
                self._follow_ups.setdefault(address(turns[:-1], row["sample"]), row)

    async def answer(self, request: Request) -> Exchange:
        row = self._find(request)
        if row is None and self.store is not None:
            return await super().answer(request)
        await asyncio.sleep(0)
        self.usage.asked += 1
        exchange = self._absent(request) if row is None else _exchange(row, request)
        if exchange.status != "ok" and exchange.reason != NOT_ASKED:
            self.usage.count_failure(exchange)
        return exchange

    async def _obtain(self, key: str, request: Request) -> Exchange:
        if key not in self._failures:
            self.missing[key] = request
            return self._absent(request, key)
        reason, detail = self._failures[key]
        refusal = self.store.rejected(key, reason) if self.store is not None else None
        if refusal is None:
            return Exchange(request, key, None, reason, detail)
        self.usage.count(key, refusal)
        return self._exchange(key, request, refusal)

    def _find(self, request: Request) -> Row | None:
        turns = [(message.role, message.text) for message in request.messages]
        row = self._rows.get(address(turns, request.sample))
        if row is None and not self._exact and len(turns) > 2:
            row = self._follow_ups.get(address(turns[:-1], request.sample))
        return row

    def _absent(self, request: Request, key: str = "") -> Exchange:
        if self._exact:
            words = request.messages[-1].text.strip().splitlines()[-1][:60]
            raise InputError(
                f"No shard holds an answer to one of the questions (it ends {words!r}); they were labelled by another "
                "version of bkrl, or their tables were changed."
            )
        self.absent += 1
        return Exchange(request, key, None, NOT_ASKED)


def _exchange(row: Row, request: Request) -> Exchange:
    reply = None if row["reply"] is None else Reply.of_row(row)
    asked = tuple(Message(turn["role"], turn["content"]) for turn in json.loads(row["prompt"]))
    kept = replace(request, messages=asked)
    return Exchange(kept, row["key"], reply, row["reason"], cached=True, cost_usd=row["cost_usd"])
