"""The gate: never more than allowed at once, quick to rise, quick to yield, one pause for everyone."""

from __future__ import annotations

import asyncio
import time

import pytest

from bkrl.llm.gate import Gate


def test_it_opens_quickly_until_the_first_objection_and_slowly_after() -> None:
    gate = Gate(20, 64)
    for _ in range(20):
        gate.succeeded()
    assert gate.limit == 60
    gate.refused(time.monotonic(), 0.0)
    assert gate.limit == 48
    for _ in range(48):
        gate.succeeded()
    assert gate.limit == pytest.approx(49, abs=0.1)
    for _ in range(5000):
        gate.succeeded()
    assert gate.limit == 64


def test_a_burst_of_objections_counts_once() -> None:
    gate = Gate(20, 64)
    entered = time.monotonic()
    for _ in range(20):
        gate.refused(entered, 0.0)
    assert gate.limit == 16
    for _ in range(100):
        gate.refused(time.monotonic(), 0.0)
    assert gate.limit == 1.0, "one request is always allowed"


def test_pauses_grow_without_a_wish_and_obey_one() -> None:
    gate = Gate(20, 64)
    assert gate.refused(time.monotonic(), 120.0) >= 120.0
    pauses = [gate.refused(time.monotonic(), None) for _ in range(12)]
    assert max(pauses) <= 60.0
    assert max(pauses[6:]) > 4.0
    gate.succeeded()
    assert gate.refused(time.monotonic(), None) <= 1.0


def test_no_more_than_the_limit_are_inside_and_everyone_gets_in() -> None:
    async def main() -> tuple[int, int]:
        gate, inside, most, done = Gate(4, 4), 0, 0, 0

        async def one() -> None:
            nonlocal inside, most, done
            await gate.enter()
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0.001)
            inside -= 1
            gate.leave()
            done += 1

        tasks = [asyncio.create_task(one()) for _ in range(60)]
        await asyncio.sleep(0.005)
        for task in tasks[40:50]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert gate.active == 0
        return most, done

    most, done = asyncio.run(main())
    assert most == 4
    assert done == 50


def test_requests_and_tokens_per_minute_are_kept() -> None:
    async def main(gate: Gate, count: int, tokens: int) -> float:
        started = time.monotonic()
        for _ in range(count):
            await gate.enter(tokens)
            gate.leave()
        return time.monotonic() - started

    assert asyncio.run(main(Gate(9, 9, rpm=1200), 5, 0)) >= 0.19
    assert asyncio.run(main(Gate(9, 9, tpm=60_000), 3, 100)) >= 0.19
