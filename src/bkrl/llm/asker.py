"""What becomes of one request: it is looked up, sent, sent again after a fault, given up, and what came is kept.

`AskSession` runs any number of these at a time. What happens to a fault is decided here and nowhere else (`policy`;
backends only sort them, see `protocol.Fault`).
"""

import asyncio
import contextlib
import random
import threading
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Mapping
from concurrent import futures
from dataclasses import replace
from pathlib import Path
from typing import Any

from bkrl.core.reporter import Reporter
from bkrl.llm.budget import FILE, KEY, Budget, Exhausted
from bkrl.llm.gate import Gate
from bkrl.llm.policy import (
    BAD,
    EARLY_ATTEMPTS,
    EARLY_FAILURES,
    EMPTY,
    EMPTY_ANSWERS,
    LATEST,
    LONGER_REPLY,
    MOST_ADAPTATIONS,
    NEVER_ANSWERED,
    OTHERS_SECONDS,
    UNLIKELY,
    AskPolicy,
)
from bkrl.llm.prices import Price
from bkrl.llm.protocol import REFUSED, Backend, Exchange, Fault, Reply, Request, cleaned, request_content, request_key
from bkrl.llm.store import PROCESS, Store
from bkrl.llm.usage import Usage


class Stop(Exception):
    """Nothing further is sent; carries the sentence for the user."""


class Asker:
    """Asks a backend: nothing twice, within a budget. Its coroutines belong to one event loop.

    Args:
        store: where replies are kept and looked up; not used for a backend without identity, whose answers are free.
        budget: bounds what is sent, over all processes that share it (None: no bound).
        price: what a reply costs (None: not known).
    """

    def __init__(
        self,
        backend: Backend,
        store: Store | None = None,
        policy: AskPolicy | None = None,
        reporter: Reporter | None = None,
        budget: Budget | None = None,
        price: Price | None = None,
    ) -> None:
        self.backend = backend
        self.store = store if backend.identity is not None else None
        self.policy = policy = policy or AskPolicy()
        self.reporter = reporter or Reporter()
        self.budget = budget or Budget()
        self.price = price
        self.usage = Usage(self.budget, price)
        self.stopped: str | None = None
        """Why nothing further is sent, once a fault or limit is final."""
        self._halted = asyncio.Event()
        self._gate = Gate(policy.concurrency, policy.max_concurrency, policy.rpm, policy.tpm)
        self._flying: dict[str, asyncio.Future[Exchange]] = {}
        self._refused: dict[str, Exchange] = {}
        """Refusals that were paid for: the same question in another place gets the same one."""
        self._given_up: Counter[str] = Counter()
        self._bad_share = 0.0
        self._answered = 0
        self._first = asyncio.Lock()
        self._flying_since = time.monotonic()
        self._others_named = False
        self._submitted: dict[str, futures.Future[Exchange]] = {}
        self._came: deque[tuple[int, str]] = deque()  # the submitted ones that are done, so that polling is cheap
        self._count = 0
        self._thread: threading.Thread | None = None

    async def answer(self, request: Request) -> Exchange:
        """One answer: from the store if it is there, otherwise sent, retried and kept. A question that is being asked
        is not asked twice.
        """
        exchange = await self._answer(request)
        self.usage.count_request(exchange)
        return exchange

    async def _answer(self, request: Request) -> Exchange:
        if self.backend.identity is None:
            await asyncio.sleep(0)
            self._check()
            return await self._answer_freely(request)
        exchange = await self._ask_stored(request)
        return await self._ask_stored(_longer(request)) if exchange.status == "truncated" else exchange

    def keep_account(self, folder: Path) -> None:
        """Note what is sent and paid in the folder of a run, so that its limits hold over kills and restarts."""
        if self.backend.identity is not None:
            self.budget.open(folder / FILE)

    def interrupted(self) -> int:
        """Sends of this session's questions, by earlier processes, whose end was not recorded: each may have been
        billed.
        """
        return 0 if self.store is None else self.store.interrupted(self.usage.keys)

    @property
    def losses(self) -> list[str]:
        """A sentence, where replies that were paid for were lost or damaged, and asked for again."""
        lost = 0 if self.store is None else self.store.lost
        return [f"{lost:,} kept replies were lost or damaged, and were asked for again."] if lost else []

    def facts(self) -> dict[str, Any]:
        """For the manifest: what asking took; of an annotator that costs nothing only how often it was asked."""
        facts = self.usage.as_facts()
        if self.backend.identity is None:
            return {name: facts[name] for name in ("requests", "failed", "failed_reasons")}
        return {**facts, "interrupted": self.interrupted(), **self.usage.cost_facts()}

    async def _answer_freely(self, request: Request) -> Exchange:
        try:
            reply = cleaned(await self.backend.complete(request))
        except Fault as fault:
            if fault.kind == "stop":
                raise self._halt(str(fault)) from None
            return Exchange(request, "", None, fault.reason, str(fault))
        return Exchange(request, "", reply)

    async def _kept(self, request: Request) -> Exchange | None:
        """What `_answer` would give without sending anything, or None."""
        found = self._known(request)
        return self._known(_longer(request)) if found is not None and found.status == "truncated" else found

    def _known(self, request: Request) -> Exchange | None:
        """What need not be asked: an answer that is kept, or a refusal to what the run sent."""
        key = request_key(self.backend.identity or {}, request)
        kept = self.store.known(key) if self.store is not None else None
        if kept is None and key in self._refused:
            return self._refused[key]
        if kept is None and self.store is not None and key[:KEY] in self.budget.over:
            kept = self.store.refusal(key)
        return None if kept is None else self._found(key, request, kept)

    async def _ask_stored(self, request: Request) -> Exchange:
        key = request_key(self.backend.identity or {}, request)
        if (known := self._known(request)) is not None:
            return known
        if key in self._flying:
            return await asyncio.shield(self._flying[key])
        future: asyncio.Future[Exchange] = asyncio.get_running_loop().create_future()
        if not self._flying:
            self._flying_since = time.monotonic()
        self._flying[key] = future
        try:
            exchange = await self._obtain(key, request)
        except BaseException as error:
            future.set_exception(error if isinstance(error, Stop) else Stop(""))
            future.exception()
            raise
        else:
            if exchange.status in REFUSED:
                self._refused[key] = exchange
                self.budget.over.add(key[:KEY])
            future.set_result(exchange)
            return exchange
        finally:
            del self._flying[key]

    async def _obtain(self, key: str, request: Request) -> Exchange:
        """Send until there is an answer, or a reason why there is none."""
        policy = self.policy
        attempt, adapted, trying_since, paused = 0, 0, time.monotonic(), 0.0
        bad, failing_since = 0, 0.0
        size = sum(len(message.text) for message in request.messages) // 4 + request.max_tokens
        while True:
            self._check()
            waited = time.monotonic()
            await self._gate.enter(size)
            try:
                async with self._one_until_answered():
                    self._check()
                    reserved = await self._reserve(key, request)
                    entered = time.monotonic()
                    paused += entered - waited
                    outcome = await self._send_once(key, replace(request, redraw=bad), reserved)
            finally:
                self._gate.leave()
            if outcome is None:
                waited = time.monotonic()
                theirs = await self._from_others(key)
                paused += time.monotonic() - waited
                if theirs is None:
                    continue
                return self._found(key, request, theirs)
            if isinstance(outcome, Reply):
                self._gate.succeeded()
                self._bad_share -= self._bad_share / LATEST
                self.usage.count(key, outcome)
                return self._exchange(key, request, outcome)
            if outcome.kind == "stop":
                raise self._halt(str(outcome))
            if outcome.kind == "wait":
                self._pause_pool(entered, outcome)
                continue
            if outcome.kind == "again" and adapted < MOST_ADAPTATIONS:
                adapted += 1
                continue
            attempt += 1
            spent = time.monotonic() - trying_since - paused
            used_up = attempt >= policy.attempts or spent > policy.patience
            if outcome.reason in BAD or outcome.reason.startswith("status "):
                bad += 1
                failing_since = failing_since or time.monotonic()
                self._bad_share += (1.0 - self._bad_share) / LATEST
            others_answered = self._gate.last_success > failing_since
            hopeless = bad > 0 and others_answered and self._bad_share**bad < UNLIKELY
            hopeless = hopeless or (outcome.reason in EMPTY and bad >= EMPTY_ANSWERS)
            if outcome.kind in ("item", "again") or used_up or hopeless:
                return self._failed(key, request, outcome)
            came = self.usage.keys if outcome.reason in EMPTY else self._answered
            if not came and outcome.reason in NEVER_ANSWERED and attempt >= EARLY_ATTEMPTS:
                raise self._halt(str(outcome))
            pause = random.uniform(0.0, min(policy.longest_pause, policy.first_pause * 2.0 ** (attempt - 1)))
            await asyncio.sleep(max(pause, outcome.retry_after or 0.0))
            paused += outcome.retry_after or 0.0

    async def _from_others(self, key: str) -> Reply | None:
        """What another process got that asked the same, or gets that waits for the answer now."""
        assert self.store is not None
        while who := self.store.elsewhere(key):
            if who != PROCESS:
                raise self._halt(f"A question is out with {who}; collect it there first, or name another --cache")
            if not self._others_named:
                self._others_named = True
                self.reporter.say("Another process asks some of the same questions; its answers are waited for.")
            await asyncio.sleep(OTHERS_SECONDS)
            self._check()
        return self.store.known(key)

    @contextlib.asynccontextmanager
    async def _one_until_answered(self) -> AsyncIterator[None]:
        """Until the first answer there is one request at a time."""
        if self._answered or not self.policy.first_by_itself:
            yield
            return
        async with self._first:
            if not self._answered:
                yield
                return
        yield

    async def _reserve(self, key: str, request: Request) -> str:
        most = 0.0 if self.price is None else self.price.bound(request)
        try:
            return await self.budget.reserve(most, key)
        except Exhausted as limit:
            raise self._halt(str(limit)) from None

    async def _send_once(self, key: str, request: Request, reserved: str) -> Reply | Fault | None:
        """A reply or a fault; None when another process has asked, or got the answer, a moment before."""
        attempt = self.store.begin(key) if self.store is not None else 0
        if attempt is None:
            self.budget.settle(reserved, 0.0, unsent=1)
            return None
        lost = False
        try:
            async with asyncio.timeout(self.policy.deadline):
                reply = cleaned(await self.backend.complete(request))
            result: Reply | Fault = reply
            if self.store is not None:
                result = self.store.put(key, reply, request_content(self.backend.identity or {}, request))
            outcome = "answered"
            self._answered += 1
            paid = 0.0 if self.price is None else self.price.of(reply)
            if paid is not None:
                self.budget.settle(reserved, paid)
        except TimeoutError:
            result = Fault("retry", "deadline", f"no whole answer within {self.policy.deadline} s", billed=True)
            outcome, lost = result.reason, True
        except Fault as fault:
            result, outcome, lost = fault, fault.reason, fault.billed
            if not lost:
                self.budget.settle(reserved, 0.0)
        finally:
            # Whatever is not settled by now may have been billed.
            self.budget.lose(reserved, int(lost))
        if self.store is not None:
            self.store.end(attempt, outcome)
        return result

    def _found(self, key: str, request: Request, kept: Reply) -> Exchange:
        self.usage.count(key, kept)
        return self._exchange(key, request, kept, cached=True)

    def _exchange(self, key: str, request: Request, reply: Reply, cached: bool = False) -> Exchange:
        reason = "" if reply.status == "ok" else reply.status
        return Exchange(request, key, reply, reason, cached=cached, cost_usd=self.usage.cost(reply))

    def _failed(self, key: str, request: Request, fault: Fault) -> Exchange:
        self._given_up[fault.reason] += 1
        if not self.usage.keys and self._given_up[fault.reason] >= EARLY_FAILURES:
            raise self._halt(f"The first {EARLY_FAILURES} requests all failed: {fault}")
        return Exchange(request, key, None, fault.reason, str(fault))

    def _pause_pool(self, entered: float, fault: Fault) -> None:
        pause = self._gate.refused(entered, fault.retry_after)
        # Time in which no request was in flight does not count as silence of the server.
        silent = time.monotonic() - max(self._gate.last_success, self._flying_since)
        if silent > self.policy.stall and (fault.retry_after is None or self._gate.refusals >= self.policy.refusals):
            raise self._halt(f"No reply for {self.policy.stall:.0f} s: {fault}")
        if pause >= 30.0:
            self.reporter.warn(f"The server asks for a pause of {pause:.0f} s ({fault.reason}); waiting.")

    def _check(self) -> None:
        if self.stopped is not None:
            raise Stop(self.stopped)

    def _halt(self, sentence: str) -> Stop:
        if self.stopped is None:
            self.stopped = sentence
        self._halted.set()
        return Stop(self.stopped)


def kept_in(store: Store, identity: Mapping[str, str], request: Request) -> tuple[str, Request, Reply] | None:
    """The reply to a request that need not be asked, where it is kept, with what it was kept for: where a reply was cut
    off, the request with more room.
    """
    key = request_key(identity, request)
    reply = store.known(key)
    if reply is not None and reply.status == "truncated":
        request = _longer(request)
        key = request_key(identity, request)
        reply = store.known(key)
    return None if reply is None else (key, request, reply)


def _longer(request: Request) -> Request:
    """The question again, with room for a longer reply."""
    return replace(request, max_tokens=request.max_tokens * LONGER_REPLY)
