"""The one ask loop: thousands of requests to one backend, each answer kept, nothing paid for twice.

What happens to a fault is decided here and nowhere else (backends only sort them, see `protocol.Fault`):

=====  =====================================================================================================
stop   the run ends at once with one sentence; what was answered is in the store
wait   the whole pool pauses (as long as the server asks) and asks for less; costs the request no attempt
retry  this request again after a pause with full jitter, within `attempts` and `patience`
item   this request is recorded as failed; the others go on
again  the backend has learnt how to ask: this request at once again; costs it no attempt
=====  =====================================================================================================
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from bkrl.core.errors import RunFailed
from bkrl.core.reporter import Reporter
from bkrl.llm.budget import Budget, Exhausted
from bkrl.llm.gate import Gate
from bkrl.llm.interrupts import deferred, run_in_loop
from bkrl.llm.prices import Price
from bkrl.llm.protocol import Backend, Fault, Reply, Request, Usage, cleaned, request_content, request_key
from bkrl.llm.store import Store

T = TypeVar("T")

_EMPTY = ("empty", "no choices")
NEVER_ANSWERED = ("unreachable", "not an API", *_EMPTY)
"""Reasons that end the run when not one reply has come yet: the address or model is wrong, and patience is no help."""
EARLY_ATTEMPTS = 4
EARLY_FAILURES = 20
EMPTY_ANSWERS = 6
"""A request is given up after so many empty answers, since each is paid for."""
_BAD = (*_EMPTY, "unreadable", "error")
UNLIKELY = 1e-5
"""A request is given up when its bad answers in a row are less likely than this by chance. The chance of one is the
share of bad answers among the latest ones to all requests. Then the request is at fault, not the server.
"""
LATEST = 50
"""That share is of about so many answers."""
MOST_ADAPTATIONS = 8
NOT_ASKED = "not asked yet"
"""The reason of an exchange that nobody was asked for: askers that only read what is kept use it."""
OTHERS_SECONDS = 0.2
"""How often it is looked whether another process has got the answer that it waits for."""
LONGER_REPLY = 4
"""A reply cut off by its token limit is asked for once more with this many times the limit."""


@dataclass(frozen=True)
class AskPolicy:
    """How hard to try. Times in seconds; `deadline` bounds one attempt as a whole (None: no bound), `patience` one
    request. `stall`: so long without any reply, and the run ends; where the server itself names the pauses, only after
    `refusals` of them. `first_alone`: nothing else is sent before the first reply has come, so that a wrong key or
    address costs one request.
    """

    concurrency: int = 20
    max_concurrency: int = 64
    deadline: float | None = 120.0
    patience: float = 600.0
    attempts: int = 12
    first_pause: float = 0.5
    longest_pause: float = 30.0
    stall: float = 600.0
    refusals: int = 100
    grace: float = 5.0
    rpm: float | None = None
    tpm: float | None = None
    first_alone: bool = True


@dataclass(frozen=True)
class Exchange:
    """One question and what came of it: a reply, or a failure (`reason`, `detail`). `cached`: read from the store.

    `cost_usd` is what the reply cost when it was bought, None when that is not known.
    """

    request: Request
    key: str
    reply: Reply | None
    reason: str = ""
    detail: str = ""
    cached: bool = False
    cost_usd: float | None = None

    @property
    def status(self) -> str:
        """ok, truncated, filtered, refused or failed."""
        return "failed" if self.reply is None else self.reply.status

    @property
    def answer(self) -> str | None:
        """The text to be parsed: only of a good reply."""
        return self.reply.text if self.reply is not None and self.reply.status == "ok" else None


class _Stop(Exception):
    """Nothing further is sent; carries the sentence for the user."""


class Asker:
    """Asks one backend through one store. `run` drives a whole set of jobs; jobs call `ask` as often as they need.

    `budget` bounds what is sent; `price` says what it costs (None: not known).
    """

    def __init__(
        self,
        backend: Backend,
        store: Store | None,
        policy: AskPolicy,
        reporter: Reporter,
        budget: Budget | None = None,
        price: Price | None = None,
    ) -> None:
        self.backend = backend
        self.budget = budget or Budget()
        self.price = price
        self.usage = Usage()
        self.keys: set[str] = set()
        self.store = store if backend.identity is not None else None
        self.policy = policy
        self.reporter = reporter
        self._gate = Gate(policy.concurrency, policy.max_concurrency, policy.rpm, policy.tpm)
        self._flying: dict[str, asyncio.Future[Exchange]] = {}
        self._hopeless: dict[str, Exchange] = {}
        """Refusals that this run has paid for: the same question in another place gets the same one."""
        self._bad_share = 0.0
        self._answered = 0
        self._first = asyncio.Lock()
        self._stop: str | None = None
        self._interrupted_by: signal.Signals | None = None
        self._told_of_others = False

    def run(self, jobs: Sequence[Callable[[], Awaitable[T]]], title: str) -> list[T]:
        """Run every job and return their results in order.

        Raises RunFailed when a final fault ends the run, KeyboardInterrupt after Ctrl-C; in both cases every reply that
        arrived is in the store, so the same command goes on from there.
        """
        if not jobs:
            return []
        results = run_in_loop(self._run(jobs, title))
        if self._interrupted_by is not None:
            signal.raise_signal(self._interrupted_by)
            raise KeyboardInterrupt
        return results

    async def ask(self, request: Request) -> Exchange:
        """One answer: from the store if it is there, otherwise sent, retried and kept. A question being asked is not
        asked twice.
        """
        self.usage.asked += 1
        if self.backend.identity is None:
            await asyncio.sleep(0)
            self._check()
            exchange = await self._answer_freely(request)
        else:
            exchange = await self._ask_stored(request)
            if exchange.status == "truncated":
                exchange = await self._ask_stored(replace(request, max_tokens=request.max_tokens * LONGER_REPLY))
        if exchange.status != "ok":
            reason = exchange.reason or exchange.status
            self.usage.failed += 1
            self.usage.reasons[reason] = self.usage.reasons.get(reason, 0) + 1
        return exchange

    def interrupted(self) -> int:
        """Sends of this run's questions, by processes before this one, whose end nobody saw: each may have been
        billed.
        """
        return 0 if self.store is None else self.store.interrupted(self.keys)

    def cost_facts(self) -> dict[str, Any]:
        """What the replies cost, and what this run has spent; null where a price is not known, which is not nothing."""
        if self.price is None:
            return {"price": "unknown", "cost_usd": None, "replies_without_cost": self.usage.unpriced}
        return {
            "price": self.price.source,
            "cost_usd": round(self.usage.cost_usd, 9),
            "replies_without_cost": self.usage.unpriced,
            "spent_usd": round(self.budget.paid, 9),
            "possibly_spent_usd": round(self.budget.doubtful, 9),
        }

    def cost_in_words(self) -> str:
        """What these replies cost, and what of it this run has paid."""
        if self.price is None:
            return "their price is not known (--prices FILE gives it)"
        unknown = f", {self.usage.unpriced:,} more of unknown cost" if self.usage.unpriced else ""
        doubtful = (
            f", up to ${self.budget.doubtful:,.4f} more if lost replies were billed" if self.budget.doubtful else ""
        )
        return f"cost ${self.usage.cost_usd:,.4f}{unknown}, ${self.budget.paid:,.4f} of it paid by this run{doubtful}"

    async def _answer_freely(self, request: Request) -> Exchange:
        try:
            reply = cleaned(await self.backend.complete(request))
        except Fault as fault:
            if fault.kind == "stop":
                raise self._halt(str(fault)) from None
            return Exchange(request, "", None, fault.reason, str(fault))
        return Exchange(request, "", reply)

    async def _ask_stored(self, request: Request) -> Exchange:
        key = request_key(self.backend.identity or {}, request)
        if self.store is not None:
            kept = self.store.known(key)
            if kept is not None:
                return self._found(key, request, kept)
        if key in self._hopeless:
            return self._hopeless[key]
        flying = self._flying.get(key)
        if flying is not None:
            return await asyncio.shield(flying)
        future: asyncio.Future[Exchange] = asyncio.get_running_loop().create_future()
        self._flying[key] = future
        try:
            exchange = await self._obtain(key, request)
        except BaseException as error:
            future.set_exception(error if isinstance(error, _Stop) else _Stop(""))
            future.exception()
            raise
        else:
            if exchange.status in ("refused", "filtered"):
                self._hopeless[key] = exchange
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
            theirs = await self._from_others(key)
            if theirs is not None:
                return self._found(key, request, theirs)
            await self._gate.enter(size)
            alone = False
            try:
                alone = await self._wait_for_first()
                self._check()
                reserved = await self._reserve(request)
                entered = time.monotonic()
                paused += entered - waited
                outcome = await self._send_once(key, replace(request, redraw=bad), reserved)
            finally:
                if alone:
                    self._first.release()
                self._gate.leave()
            if outcome is None:
                theirs = self.store.known(key) if self.store is not None else None
                if theirs is None:
                    continue
                return self._found(key, request, theirs)
            if isinstance(outcome, Reply):
                self._gate.succeeded()
                self._bad_share -= self._bad_share / LATEST
                self._count(key, outcome)
                return self._exchange(key, request, outcome)
            if outcome.billed:
                self.usage.possibly_billed += 1
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
            if outcome.reason in _BAD or outcome.reason.startswith("status "):
                bad += 1
                failing_since = failing_since or time.monotonic()
                self._bad_share += (1.0 - self._bad_share) / LATEST
            others_answered = self._gate.last_success > failing_since
            hopeless = bad > 0 and others_answered and self._bad_share**bad < UNLIKELY
            hopeless = hopeless or (outcome.reason in _EMPTY and bad >= EMPTY_ANSWERS)
            if outcome.kind in ("item", "again") or used_up or hopeless:
                return self._failed(key, request, outcome)
            if self._answered == 0 and outcome.reason in NEVER_ANSWERED and attempt >= EARLY_ATTEMPTS:
                raise self._halt(str(outcome))
            pause = random.uniform(0.0, min(policy.longest_pause, policy.first_pause * 2.0 ** (attempt - 1)))
            await asyncio.sleep(max(pause, outcome.retry_after or 0.0))
            paused += outcome.retry_after or 0.0

    async def _from_others(self, key: str) -> Reply | None:
        """What another process gets that waits for the same answer; None at once if there is none."""
        if self.store is None or not self.store.elsewhere(key):
            return None
        if not self._told_of_others:
            self._told_of_others = True
            self.reporter.say("Another process asks some of the same questions; its answers are waited for.")
        while self.store.elsewhere(key):
            await asyncio.sleep(OTHERS_SECONDS)
            self._check()
        return self.store.known(key)

    def _found(self, key: str, request: Request, kept: Reply) -> Exchange:
        if key not in self.keys:
            self.usage.cached += 1
            self._count(key, kept)
        return self._exchange(key, request, kept, cached=True)

    async def _wait_for_first(self) -> bool:
        """Until the first answer there is one request at a time. Returns whether this one holds that place."""
        if self._answered or not self.policy.first_alone:
            return False
        await self._first.acquire()
        if self._answered:
            self._first.release()
            return False
        return True

    async def _reserve(self, request: Request) -> str:
        most = 0.0 if self.price is None else self.price.bound(request)
        try:
            return await self.budget.reserve(most)
        except Exhausted as limit:
            raise self._halt(str(limit)) from None

    async def _send_once(self, key: str, request: Request, reserved: str) -> Reply | Fault | None:
        """A reply or a fault; None when another process has asked, or got the answer, a moment before."""
        attempt = self.store.begin(key) if self.store is not None else 0
        if attempt is None:
            self.budget.withdraw(reserved)
            return None
        self.usage.sent += 1
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
            outcome = result.reason
        except Fault as fault:
            result, outcome = fault, fault.reason
            if not fault.billed:
                self.budget.settle(reserved, 0.0)
        finally:
            # Whatever is not settled by now may have been billed.
            self.budget.lose(reserved)
        if self.store is not None:
            self.store.end(attempt, outcome)
        return result

    def _failed(self, key: str, request: Request, fault: Fault) -> Exchange:
        reasons = self.usage.reasons
        if self._answered == 0 and reasons.get(fault.reason, 0) + 1 >= EARLY_FAILURES:
            raise self._halt(f"The first {EARLY_FAILURES} requests all failed: {fault}")
        return Exchange(request, key, None, fault.reason, str(fault))

    def _pause_pool(self, entered: float, fault: Fault) -> None:
        pause = self._gate.refused(entered, fault.retry_after)
        stalled = time.monotonic() - self._gate.last_success > self.policy.stall
        if stalled and (fault.retry_after is None or self._gate.refusals >= self.policy.refusals):
            raise self._halt(f"No reply for {self.policy.stall:.0f} s: {fault}")
        if pause >= 30.0:
            self.reporter.warn(f"The server asks for a pause of {pause:.0f} s ({fault.reason}); waiting.")

    def _count(self, key: str, reply: Reply) -> None:
        self.keys.add(key)
        if reply.prompt_tokens is None and reply.completion_tokens is None:
            self.usage.unreported += 1
        self.usage.prompt_tokens += reply.prompt_tokens or 0
        self.usage.completion_tokens += reply.completion_tokens or 0
        self.usage.reasoning_tokens += reply.reasoning_tokens or 0
        self.usage.cached_prompt_tokens += reply.cached_tokens or 0
        cost = self._cost(reply)
        self.usage.cost_usd += cost or 0.0
        self.usage.unpriced += cost is None

    def _cost(self, reply: Reply) -> float | None:
        return None if self.price is None else self.price.of(reply)

    def _exchange(self, key: str, request: Request, reply: Reply, cached: bool = False) -> Exchange:
        reason = "" if reply.status == "ok" else reply.status
        return Exchange(request, key, reply, reason, cached=cached, cost_usd=self._cost(reply))

    def _check(self) -> None:
        if self._stop is not None:
            raise _Stop(self._stop)

    def _halt(self, sentence: str) -> _Stop:
        if self._stop is None:
            self._stop = sentence
        return _Stop(self._stop)

    async def _run(self, jobs: Sequence[Callable[[], Awaitable[T]]], title: str) -> list[T]:
        results: dict[int, T] = {}
        pending = iter(enumerate(jobs))
        stopping = asyncio.Event()
        with self.reporter.progress(title, total=len(jobs), unit="answers") as update:

            async def work() -> None:
                try:
                    for index, job in pending:
                        results[index] = await job()
                        update(len(results), self._note())
                except _Stop:
                    stopping.set()

            workers = [asyncio.create_task(work()) for _ in range(min(len(jobs), 2 * self.policy.max_concurrency))]
            everyone = asyncio.create_task(asyncio.wait(workers, return_when=asyncio.FIRST_EXCEPTION))
            watcher = asyncio.create_task(stopping.wait())

            def interrupt(number: signal.Signals) -> None:
                self._interrupted_by = number
                self._halt("interrupted")
                stopping.set()

            try:
                with deferred(interrupt):
                    try:
                        await asyncio.wait((everyone, watcher), return_when=asyncio.FIRST_COMPLETED)
                    except asyncio.CancelledError:  # Ctrl-C where no signal reaches this loop
                        interrupt(signal.SIGINT)
                    if stopping.is_set():
                        await asyncio.wait(workers, timeout=self.policy.grace)
            finally:
                for task in (*workers, everyone, watcher):
                    task.cancel()
                ended = await asyncio.gather(*workers, everyone, watcher, return_exceptions=True)
                await self.backend.close()
        if self._interrupted_by is not None:
            return []
        if self._stop is not None:
            kept = "answers so far are kept, and the same command goes on from there"
            raise RunFailed(f"{self._stop.rstrip('.')} ({len(results)} of {len(jobs)} done; {kept}).")
        for error in ended:
            if isinstance(error, Exception):
                raise error
        return [results[index] for index in range(len(jobs))]

    def _note(self) -> str:
        failed = f", {self.usage.failed} failed" if self.usage.failed else ""
        return "" if self.backend.identity is None else f"{self._gate.active} in flight{failed}"
