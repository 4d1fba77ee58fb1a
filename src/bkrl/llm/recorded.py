"""Answers that were given before, asked for again: from the store, and a run's failures. Nothing is sent.

So a batch that came back becomes tables.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from bkrl.llm.protocol import NOT_ASKED, Exchange, FreeBackend, Reply, Request
from bkrl.llm.session import AskSession


@dataclass
class RecordedBackend(FreeBackend):
    """The backend of recorded answers: whoever gave them, by their manifest."""

    name: str
    said: dict[str, str]

    async def complete(self, request: Request) -> Reply:
        raise NotImplementedError

    def facts(self) -> dict[str, str]:
        return dict(self.said)


class RecordedAnswers(AskSession):
    """A session that sends nothing. What is not in its store comes back as an exchange with the reason NOT_ASKED and is
    listed in `missing` by its key.

    Args:
        session: whose answers they are.
        failures: reason and detail, by key, of requests to which no answer will ever come.
    """

    def __init__(self, session: AskSession, failures: Mapping[str, tuple[str, str]]) -> None:
        super().__init__(session.backend, session.store, None, None, session.budget, session.price)
        self.missing: dict[str, Request] = {}
        self._failures = failures

    async def _obtain(self, key: str, request: Request) -> Exchange:
        if key not in self._failures:
            self.missing[key] = request
            return Exchange(request, key, None, NOT_ASKED)
        reason, detail = self._failures[key]
        refusal = self.store.refusal(key) if self.store is not None else None
        if refusal is None:
            return Exchange(request, key, None, reason, detail)
        self.usage.count(key, refusal)
        return self._exchange(key, request, refusal)
