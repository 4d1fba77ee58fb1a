"""AskSession: the one place from which a backend is asked, open as long as its owner lives.

    with AskSession(open_backend("openai:MODEL"), store) as session:
        exchanges = session.ask(requests)     # waits for all of them
        session.submit(requests)              # returns at once; poll() gives the replies that have come

Ten thousand labels and three new captions of a learner's step go through the same store, budget, gate and faults
(`asker.Asker`).
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent import futures
from dataclasses import replace
from functools import partial
from typing import Any, Self, TypeVar

from numpy.typing import NDArray

from bkrl.core.errors import BkrlError, RunFailed
from bkrl.core.reporter import Reporter, Update
from bkrl.llm.asker import Asker, Stop
from bkrl.llm.protocol import Exchange, Request, request_key

T = TypeVar("T")
Job = Callable[[], Awaitable[T]]

_SIGNAL_SECONDS = 0.2
"""A waiting main thread looks this often whether Ctrl-C was pressed: a lock does not always let signals through."""
_INTERRUPTED = "interrupted"
STOPPED = "stopped"
"""The reason of a submitted request that was not answered before the session stopped."""


class AskSession(Asker):
    """Asks a backend: nothing twice, within a budget. Use as a context manager, from one thread.

    Its event loop lives in a thread of its own from the first question until `close`. So a session works in scripts, in
    notebooks and below a running event loop alike, and goes on sending while its owner computes.

    Args: see `Asker`.
    """

    def ask(self, requests: Sequence[Request], title: str = "") -> list[Exchange]:
        """Ask and wait; the exchanges in the order of `requests`. With a title the reporter shows progress.

        Raises what `run` raises.
        """
        return self.run([partial(self.answer, request) for request in requests], title)

    def run(self, jobs: Sequence[Job[T]], title: str = "") -> list[T]:
        """Run jobs, which call `answer` as often as they need, and wait; their results in order.

        Raises RunFailed when a final fault ends the session, KeyboardInterrupt after Ctrl-C. In both cases every reply
        that arrived is in the store, so the same questions go on from there. The first Ctrl-C lets replies in flight
        arrive (`grace`), the second does not.
        """
        if not jobs:
            return []
        with (self.reporter if title else Reporter()).progress(title, total=len(jobs), unit="answers") as update:
            running = self._start(self._run(jobs, update))
            try:
                return _result(running)
            except KeyboardInterrupt:
                self._loop.call_soon_threadsafe(self._halt, _INTERRUPTED)
                try:
                    with contextlib.suppress(Exception):
                        _result(running)
                finally:
                    running.cancel()
                raise

    def submit(self, requests: Sequence[Request], send: bool = True) -> None:
        """Ask without waiting. A request that is submitted already and was not polled yet is not submitted again. One
        whose reply is kept is answered at once, so that when it can be polled is no question of time.

        Args:
            requests: what is asked.
            send: False leaves those out whose reply is not kept.
        """
        keys = {request_key(self.backend.identity or {}, request): request for request in requests}
        new = {key: request for key, request in keys.items() if key not in self._submitted}
        there = [None] * len(new) if self.store is None or not new else self.call(self._all_kept(new.values()))
        for (key, request), kept in zip(new.items(), there, strict=True):
            if kept is None and not send:
                continue
            self._count += 1
            if kept is None:
                self._submitted[key] = self._start(self._answer_or_why(request, key))
            else:
                self._submitted[key] = futures.Future()
                self._submitted[key].set_result(replace(kept, key=key))
            mark = self._count, key
            self._submitted[key].add_done_callback(lambda _, mark=mark: self._came.append(mark))  # type: ignore[misc]

    def kept(self, request: Request) -> Exchange | None:
        """The answer to a request if it is kept; nothing is sent, and no answer is waited for."""
        found = self.call(self._kept(request))
        if found is not None:
            self.usage.count_request(found)
        return found

    def count_again(self, requests: Sequence[Request]) -> None:
        """Count requests whose answers an earlier process had, and noted elsewhere, as it counted them itself."""
        for request in requests:
            if self.store is None or self.kept(request) is None:
                self.usage.asked += 1

    def poll(self, seconds: float = 0.0) -> list[Exchange]:
        """What submitted requests have brought since the last call, in the order of submission, failures included.

        Waits up to `seconds` for all of them to come. After a final fault (`stopped`) each remaining request comes back
        without a reply, with the sentence in `detail`.
        """
        if seconds > 0:
            done, _ = futures.wait(self._submitted.values(), timeout=seconds)
            while len(self._came) < len(done):  # who waits is woken before the callback is called
                time.sleep(0)
        if not self._came:
            return []
        came = sorted(self._came.popleft() for _ in range(len(self._came)))
        found = [self._submitted.pop(key) for _, key in came]
        exchanges = [future.result() for future in found if not future.cancelled()]
        for exchange in exchanges:
            if exchange.reason != STOPPED:  # otherwise it is still to be asked
                self.usage.count_request(exchange)
        return exchanges

    def state(self, again: Iterable[Exchange] = ()) -> dict[str, NDArray[Any]]:
        """The state of a session that asks while a policy trains, for a checkpoint; see `Usage.state`."""
        repeated = [exchange for exchange in again if exchange.reason != STOPPED]  # which was not counted

        async def counted() -> dict[str, NDArray[Any]]:
            return self.usage.state(repeated)  # where nothing else counts meanwhile

        return self.usage.state(repeated) if self._thread is None else self.call(counted())

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take back what `state` returned, before anything is asked."""
        self.usage.restore(state)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run other work of the backend on the session's event loop and wait; Ctrl-C cancels it."""
        running = self._start(work)
        try:
            return _result(running)
        except KeyboardInterrupt:
            running.cancel()
            raise

    def close(self) -> None:
        """Send nothing further, let what is in flight arrive (`grace`), and close the backend."""
        if self._thread is None:
            return
        self._loop.call_soon_threadsafe(self._halt, "The session is closed")
        try:
            futures.wait(self._submitted.values(), timeout=self.policy.grace)
        finally:
            self._loop.call_soon_threadsafe(self._leaving.set)
            self._thread.join()
            self._thread = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, work: Coroutine[Any, Any, T]) -> futures.Future[T]:
        if self._thread is None:
            begun: futures.Future[None] = futures.Future()
            self._thread = threading.Thread(target=asyncio.run, args=(self._live(begun),), name="ask", daemon=True)
            self._thread.start()
            begun.result()
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _live(self, begun: futures.Future[None]) -> None:
        """The life of the event loop."""
        self._loop = asyncio.get_running_loop()
        self._leaving = asyncio.Event()
        begun.set_result(None)
        await self._leaving.wait()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.backend.close()

    async def _run(self, jobs: Sequence[Job[T]], update: Update) -> list[T]:
        results: dict[int, T] = {}
        pending = iter(enumerate(jobs))

        async def work() -> None:
            with contextlib.suppress(Stop):
                for index, job in pending:
                    results[index] = await job()
                    update(len(results), self._note())

        workers = [asyncio.create_task(work()) for _ in range(min(len(jobs), 2 * self.policy.max_concurrency))]
        everyone = asyncio.create_task(asyncio.wait(workers, return_when=asyncio.FIRST_EXCEPTION))
        halted = asyncio.create_task(self._halted.wait())
        try:
            await asyncio.wait((everyone, halted), return_when=asyncio.FIRST_COMPLETED)
            if self._halted.is_set():
                await asyncio.wait(workers, timeout=self.policy.grace)
        finally:
            for task in (*workers, everyone, halted):
                task.cancel()
            ended = await asyncio.gather(*workers, everyone, halted, return_exceptions=True)
        stopped = self.stopped
        if stopped == _INTERRUPTED:  # after Ctrl-C the session can be used again
            self.stopped = None
            self._halted.clear()
        for error in ended:
            if isinstance(error, BaseException) and not isinstance(error, asyncio.CancelledError):
                raise error
        if stopped is not None and len(results) < len(jobs):
            kept = "answers so far are kept, and the same command goes on from there"
            raise RunFailed(f"{stopped.rstrip('.')} ({len(results)} of {len(jobs)} done; {kept}).")
        return [results[index] for index in range(len(jobs))]

    async def _answer_or_why(self, request: Request, key: str) -> Exchange:
        """An answer to a submitted request, whatever happens, under the key of what was submitted: where the reply was
        truncated the answer is to a longer one.
        """
        try:
            return replace(await self._answer(request), key=key)
        except Stop as stop:
            return Exchange(request, key, None, STOPPED, str(stop))
        except BkrlError as error:
            return Exchange(request, key, None, STOPPED, str(self._halt(str(error))))

    async def _all_kept(self, requests: Iterable[Request]) -> list[Exchange | None]:
        return [await self._kept(request) for request in requests]

    def _note(self) -> str:
        failed = f", {self.usage.failed} failed" if self.usage.failed else ""
        return "" if self.backend.identity is None else f"{self._gate.active} in flight{failed}"


def _result(running: futures.Future[T]) -> T:
    """What comes of work on the event loop; waits for it, and lets Ctrl-C through."""
    while not running.done():
        futures.wait((running,), timeout=_SIGNAL_SECONDS)
    return running.result()
