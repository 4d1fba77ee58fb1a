"""Steps that wait at the same time are computed together: one of a hundred rows costs little more than one of one."""

import asyncio
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from bkrl.serve.sessions import SavedState, Sessions, Stepped

LINGER = 200e-6
"""Seconds, for each party, that one waits for the others, unless all of them wait."""


class _Waiting(NamedTuple):
    rows: list[int]
    actions: Sequence[int]
    starts: Sequence[SavedState]
    answer: asyncio.Future[Any]


class Turns:
    """Takes turns for several parties, of which each waits for one thing at a time.

    Attributes:
        parties: how many there are.
    """

    def __init__(self, sessions: Sessions) -> None:
        self.sessions, self.parties = sessions, 0
        self._waiting: list[_Waiting] = []
        self._tick: asyncio.Handle | None = None

    async def take(self, rows: list[int], actions: Sequence[int] = (), starts: Sequence[SavedState] = ()) -> Any:
        """What follows these actions (`Stepped`), or None once episodes have begun at these starts."""
        loop = asyncio.get_running_loop()
        waits = _Waiting(rows, actions, starts, loop.create_future())
        self._waiting.append(waits)
        if len(self._waiting) >= self.parties:
            self._all()
        elif self._tick is None:
            self._tick = loop.call_later(LINGER * self.parties, self._all)
        return await waits.answer

    def _all(self) -> None:
        if self._tick is not None:
            self._tick.cancel()
        waiting, self._waiting, self._tick = self._waiting, [], None
        saved = [[one] for one in waiting if any(start.actions for start in one.starts)]  # replayed each by itself
        fresh = [one for one in waiting if one.starts and [one] not in saved]
        for together in filter(None, (*saved, fresh, [one for one in waiting if one.actions])):
            self._answer(together)

    def _answer(self, waiting: list[_Waiting]) -> None:
        rows = [row for one in waiting for row in one.rows]
        answers: list[Any] = [None] * len(waiting)
        try:
            if waiting[0].starts:
                self.sessions.reset(rows, [start for one in waiting for start in one.starts])
            else:
                moved = self.sessions.step(rows, [action for one in waiting for action in one.actions])
                ends = accumulate(len(one.rows) for one in waiting)
                parts = (slice(end - len(one.rows), end) for one, end in zip(waiting, ends, strict=True))
                answers = [Stepped._make(column[part] for column in moved) for part in parts]
        except Exception as problem:  # noqa: BLE001 - nobody may wait for ever; who waits raises it
            answers = [problem] * len(waiting)
        for one, answer in zip(waiting, answers, strict=True):
            if one.answer.done():  # the server is closing
                continue
            if isinstance(answer, Exception):
                one.answer.set_exception(answer)
            else:
                one.answer.set_result(answer)
