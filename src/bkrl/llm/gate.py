"""How many requests may be out at once: it finds the rate a server gives, and keeps to it.

As in TCP: each round of good replies triples the number until the server first objects, then adds one; a "too many
requests" takes a fifth, once for each burst. A pause (Retry-After) holds the whole pool, not one request.
"""

import asyncio
import random
import time
from collections import deque

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0
CUT = 0.8
GROWTH = 2.0
"""More places for each good reply while the server has never objected: 20, 60, and the usual 64 in the third round."""


class Gate:
    """Bounded, adaptive concurrency with optional requests and tokens per minute. Used from one event loop."""

    def __init__(self, start: int, most: int, rpm: float | None = None, tpm: float | None = None) -> None:
        self.limit = float(max(1, min(start, most)))
        self.active = 0
        self.refusals = 0
        self.last_success = time.monotonic()
        self._most = float(max(1, most))
        self._paused_until = 0.0
        self._last_cut = 0.0
        self._objected = False
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._rpm, self._tpm = rpm, tpm
        self._next_by_requests = self._next_by_tokens = 0.0

    async def enter(self, tokens: int = 0) -> float:
        """Wait for a place and return the time it was given (monotonic seconds). `tokens` is the request's estimated
        size.
        """
        while True:
            now = time.monotonic()
            if now < self._paused_until:
                await asyncio.sleep(self._paused_until - now)
            elif self.active >= int(self.limit):
                turn = asyncio.get_running_loop().create_future()
                self._waiting.append(turn)
                try:
                    await turn
                except asyncio.CancelledError:
                    if turn.done() and not turn.cancelled():
                        self._wake()
                    raise
            else:
                self.active += 1
                break
        try:
            await self._keep_pace(tokens)
        except asyncio.CancelledError:
            self.leave()
            raise
        return time.monotonic()

    def leave(self) -> None:
        self.active -= 1
        self._wake()

    def succeeded(self) -> None:
        """A reply came: the next round may be larger."""
        self.last_success = time.monotonic()
        self.refusals = 0
        self.limit = min(self._most, self.limit + (1.0 / self.limit if self._objected else GROWTH))

    def refused(self, entered: float, retry_after: float | None) -> float:
        """The server asked for less. Returns the pause of the whole pool in seconds (full jitter when it named
        none).
        """
        now = time.monotonic()
        if entered >= self._last_cut:
            self.limit = max(1.0, self.limit * CUT)
            self._last_cut = now
            self.refusals += 1
            self._objected = True
        if retry_after is None:
            longest = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** (self.refusals - 1))
            pause = random.uniform(0.1 * longest, longest)
        else:
            pause = max(0.0, retry_after) + random.uniform(0.0, 0.25)
        self._paused_until = max(self._paused_until, now + pause)
        return pause

    def _wake(self) -> None:
        free = int(self.limit) - self.active
        while free > 0 and self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                free -= 1

    async def _keep_pace(self, tokens: int) -> None:
        now = time.monotonic()
        start = now
        if self._rpm:
            start = max(start, self._next_by_requests)
            self._next_by_requests = start + 60.0 / self._rpm
        if self._tpm:
            start = max(start, self._next_by_tokens)
            self._next_by_tokens = start + 60.0 * tokens / self._tpm
        if start > now:
            await asyncio.sleep(start - now)
