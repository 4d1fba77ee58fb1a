"""Answers that were given before, asked for again: from a run's responses, a run's failures, and the store. Nothing is
sent.

So a batch that came back becomes tables, and shards are joined. What a run recorded comes back exactly as it was (key,
text, tokens, cost).
"""

from __future__ import annotations

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
    """A session that sends nothing. What is not in its store comes back as an exchange with the reason NOT_ASKED and is
    listed in `missing` by its key.

    Args:
        rows: of responses.parquet, in the place of a store; every question must be among them, InputError otherwise.
        failures: reason and detail, by key, of requests to which no answer will ever come.
    """

    def __init__(
        self,
        backend: Backend,
        store: Store | None = None,
        rows: Iterable[Row] = (),
        failures: Mapping[str, tuple[str, str]] | None = None,
        reporter: Reporter | None = None,
        budget: Budget | None = None,
        price: Price | None = None,
    ) -> None:
        super().__init__(backend, store, None, reporter, budget, price)
        self.missing: dict[str, Request] = {}
        self._failures = failures or {}
        self._rows: dict[str, Row] = {}
        for row in rows:
            turns = [(turn["role"], turn["content"]) for turn in json.loads(row["prompt"])]
            self._rows.setdefault(address(turns, row["sample"]), row)

    async def _answer(self, request: Request) -> Exchange:
        if self.store is not None:
            return await super()._answer(request)
        row = self._rows.get(address([(message.role, message.text) for message in request.messages], request.sample))
        if row is None:
            words = request.messages[-1].text.strip().splitlines()[-1][:60]
            raise InputError(
                f"No shard holds an answer to one of the questions (it ends {words!r}); they were labelled by another "
                "version of bkrl, or their tables were changed."
            )
        return _exchange(row, request)

    async def _obtain(self, key: str, request: Request) -> Exchange:
        if key not in self._failures:
            self.missing[key] = request
            return Exchange(request, key, None, NOT_ASKED)
        reason, detail = self._failures[key]
        refusal = self.store.rejected(key, reason) if self.store is not None else None
        if refusal is None:
            return Exchange(request, key, None, reason, detail)
        self.usage.count(key, refusal)
        return self._exchange(key, request, refusal)


def _exchange(row: Row, request: Request) -> Exchange:
    reply = None if row["reply"] is None else Reply.of_row(row)
    asked = tuple(Message(turn["role"], turn["content"]) for turn in json.loads(row["prompt"]))
    kept = replace(request, messages=asked)
    return Exchange(kept, row["key"], reply, row["reason"], cached=True, cost_usd=row["cost_usd"])
