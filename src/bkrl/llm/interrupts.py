"""Event loops, and Ctrl-C and SIGTERM while requests are in flight: the first is a wish, the second an order."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

T = TypeVar("T")

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run_in_loop(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run`, also where this thread has a running event loop already, as in a notebook: then in a thread of its
    own, which is waited for. Ctrl-C while waiting cancels `main` and lets it put its things away.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(main)
    begun: Future[Callable[[], object]] = Future()

    async def whole() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        begun.set_result(lambda: loop.call_soon_threadsafe(task.cancel))
        return await main

    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(asyncio.run, whole())
        try:
            return running.result()
        except KeyboardInterrupt:
            with suppress(RuntimeError):  # it has ended meanwhile
                begun.result()()
            raise


@contextmanager
def deferred(stop: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Inside the block, in the main thread, the first signal calls `stop`; the next one does what it did before.

    Whoever asked for it raises the first one again (`signal.raise_signal`) once everything is put away. SIGTERM is left
    alone where nobody handles it: then it has to end the process at once. Needs a running event loop.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    caught = [number for number, handler in before.items() if callable(handler)]

    def restore() -> None:
        for number in caught:
            loop.remove_signal_handler(number)
            signal.signal(number, before[number])
        caught.clear()

    def first(number: signal.Signals) -> None:
        restore()
        stop(number)

    with suppress(NotImplementedError):  # event loops on Windows know no signals
        for number in caught:
            loop.add_signal_handler(number, first, number)
    try:
        yield
    finally:
        with suppress(NotImplementedError):
            restore()
