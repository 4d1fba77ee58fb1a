"""A session that stays open: asked again and again, asked without waiting, interrupted, stopped and closed."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from bkrl.core.errors import RunFailed
from bkrl.labelers.material import SegmentText, env_card
from bkrl.llm import open_backend
from bkrl.llm.budget import Budget
from bkrl.llm.policy import AskPolicy
from bkrl.llm.prices import Price
from bkrl.llm.protocol import Connection, Message, Request
from bkrl.llm.session import AskSession
from bkrl.llm.store import Store
from bkrl.text.prompts import SHIPPED
from tests.llm.fault_server import QUICK, FaultServer
from tests.llm.looking import stored, waiting


def request(number: int) -> Request:
    return Request((Message("system", "Compare. JSON."), Message("user", f"pair {number}")))


def requests(*numbers: int) -> list[Request]:
    return [request(number) for number in numbers]


def opened(store: Store, policy: AskPolicy = QUICK, budget: Budget | None = None) -> AskSession:
    return AskSession(open_backend("openai:m", Connection(store.path.parent)), store, policy, None, budget)


def test_one_session_is_asked_again_and_again(server: FaultServer, tmp_path: Path) -> None:
    before = set(threading.enumerate())  # a server's threads, and what other tests have left open
    with Store(tmp_path) as store, opened(store) as session:
        first = session.ask(requests(*range(5)))
        asking = [thread for thread in threading.enumerate() if thread.name == "ask" and thread not in before]
        again = session.ask(requests(*range(10)))
        assert [exchange.answer for exchange in again[:5]] == [exchange.answer for exchange in first]
        assert session.ask([]) == []
        assert (session.usage.asked, session.budget.sent, session.usage.cached) == (15, 10, 0)
    assert max(server.billed.values()) == 1
    assert [thread.is_alive() for thread in asking] == [False], "one thread for the session, which close ends"


def test_a_session_works_from_a_running_event_loop(server: FaultServer, tmp_path: Path) -> None:
    async def cell(session: AskSession, number: int) -> str:
        return session.ask(requests(number))[0].status

    with Store(tmp_path) as store, opened(store) as session:
        assert [asyncio.run(cell(session, number)) for number in range(3)] == ["ok"] * 3


def test_a_learner_does_not_wait_for_what_it_submits(server: FaultServer, tmp_path: Path) -> None:
    server.answers.clear()
    with Store(tmp_path) as store, opened(store, replace(QUICK, first_by_itself=False)) as session:
        session.submit(requests(0, 1, 2))
        session.submit(requests(2, 1, 3))
        for _ in range(4):  # here it learns
            assert session.poll() == []
        assert waiting(session) == 4
        server.answers.set()
        came = []
        while len(came) < 4:
            came += session.poll()
            time.sleep(0.01)
        assert {exchange.request for exchange in came} == set(requests(0, 1, 2, 3))
        assert (waiting(session), session.poll()) == (0, [])
        session.submit(requests(3))
        (known,) = session.poll(30.0)
        assert known.cached
    assert max(server.seen.values()) == 1


def test_what_is_in_flight_is_asked_once_by_whichever_way(server: FaultServer, tmp_path: Path) -> None:
    server.latency = 0.1
    with Store(tmp_path) as store, opened(store) as session:
        session.submit(requests(0, 1))
        asked = session.ask(requests(0, 1, 2))
        submitted = session.poll(30.0)
    assert [exchange.answer for exchange in submitted] == [exchange.answer for exchange in asked[:2]]
    assert len(server.requests) == 3


def test_a_refusal_is_paid_for_once_in_a_session(server: FaultServer, tmp_path: Path) -> None:
    server.plan = lambda prompt, attempt: "refusal"
    with Store(tmp_path) as store, opened(store) as session:
        for _ in range(3):
            session.submit(requests(0))
            assert [exchange.status for exchange in session.poll(30.0)] == ["refused"]
    assert max(server.billed.values()) == 1


@pytest.mark.parametrize("does", [("refusal",), ("length", "refusal"), ("length", "length"), ("length", "good")])
def test_what_a_run_had_is_counted_again_as_it_was(server: FaultServer, tmp_path: Path, does: tuple[str, ...]) -> None:
    """Of a refusal, and of a reply that was cut off, neither failure nor tokens nor dollars were counted again."""
    server.plan = lambda prompt, attempt: does[attempt]
    facts = []
    for life in range(3):
        with Store(tmp_path) as store, opened(store) as session:
            session.price = session.usage.price = Price(1.0, 1.0, 1.0)
            session.keep_account(tmp_path)
            if life < 2:
                session.submit(requests(0))
                session.poll(30.0)
            else:
                session.count_again(requests(0))
            facts.append(session.facts())
            session.budget.close()
    assert facts[0] == facts[1] == facts[2]
    assert facts[0]["prompt_tokens"] == 100 * len(does)
    assert sum(server.billed.values()) == len(does)


def test_a_budget_bounds_both_ways_together_and_a_stop_is_final(server: FaultServer, tmp_path: Path) -> None:
    with Store(tmp_path) as store, opened(store, budget=Budget(max_requests=6)) as session:
        assert [exchange.status for exchange in session.ask(requests(0, 1, 2, 3))] == ["ok"] * 4
        session.submit(requests(4, 5, 6, 7))
        came = session.poll(30.0)
        assert sorted(exchange.status for exchange in came) == ["failed", "failed", "ok", "ok"]
        assert {exchange.reason for exchange in came} == {"", "stopped"}
        assert session.stopped is not None
        assert "--max-requests" in session.stopped
        assert all("--max-requests" in exchange.detail for exchange in came if exchange.reply is None)
        with pytest.raises(RunFailed, match="--max-requests"):
            session.ask(requests(9))
        assert session.ask(requests(0))[0].cached, "what is kept is still read"
    assert len(server.requests) == 6


def test_a_final_fault_is_told_without_an_exception_to_who_does_not_wait(server: FaultServer, tmp_path: Path) -> None:
    server.plan = lambda prompt, attempt: "401"
    with Store(tmp_path) as store, opened(store) as session:
        session.submit(requests(*range(20)))
        came = session.poll(30.0)
        assert {exchange.reason for exchange in came} == {"stopped"}
        assert len(came) == 20
        assert session.stopped is not None
        assert "key" in session.stopped
    assert len(server.requests) == 1


def test_faults_are_retried_while_nobody_waits(server: FaultServer, tmp_path: Path) -> None:
    server.plan = lambda prompt, attempt: ("500", "429:0", "reset_mid")[attempt] if attempt < 3 else "ok"
    with Store(tmp_path) as store, opened(store) as session:
        session.submit(requests(*range(8)))
        assert [exchange.status for exchange in session.poll(30.0)] == ["ok"] * 8


def test_an_interrupted_session_can_be_asked_again(server: FaultServer, tmp_path: Path) -> None:
    pressed: list[str] = []

    def plan(prompt: str, attempt: int) -> str:
        if len(server.requests) == 10 and not pressed:
            pressed.append(prompt)
            os.kill(os.getpid(), signal.SIGINT)
        return "ok"

    server.plan, server.latency = plan, 0.02
    with Store(tmp_path) as store, opened(store) as session:
        with pytest.raises(KeyboardInterrupt):
            session.ask(requests(*range(100)))
        assert 0 < len(server.requests) < 100
        assert [exchange.status for exchange in session.ask(requests(*range(100)))] == ["ok"] * 100
    assert max(server.billed.values()) == 1, "what was in flight was waited for"


def test_closing_lets_replies_in_flight_arrive_and_sends_nothing_further(server: FaultServer, tmp_path: Path) -> None:
    server.latency = 0.3
    policy = replace(QUICK, concurrency=2, max_concurrency=2, first_by_itself=False)
    with Store(tmp_path) as store:
        with opened(store, policy) as session:
            session.submit(requests(*range(10)))
            while len(server.requests) < 2:
                time.sleep(0.01)
        assert len(server.requests) == 2
        assert sorted({exchange.reason for exchange in session.poll()}) == ["", "stopped"]
        assert store.interrupted({exchange.key for exchange in session.poll()}) == 0
        assert stored(store) == 2
        with opened(store, policy) as session:
            session.submit(requests(*range(10)))
            assert sum(exchange.cached for exchange in session.poll(30.0)) == 2
    assert max(server.billed.values()) == 1


def test_an_hour_without_questions_is_not_an_hour_without_replies(
    server: FaultServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the time since something was asked counts against a server that asks for pauses."""
    server.plan = lambda prompt, attempt: "429" if attempt == 0 else "ok"
    real, idle = time.monotonic, 0.0
    monkeypatch.setattr(time, "monotonic", lambda: real() + idle)
    with Store(tmp_path) as store, opened(store, replace(QUICK, stall=600.0)) as session:
        assert session.ask(requests(0))[0].status == "ok"
        idle = 3600.0
        assert session.ask(requests(1))[0].status == "ok"


def test_the_rules_annotator_answers_while_nobody_waits() -> None:
    card = env_card("BabyAI-Text-GoToLocal-RedBall-S20")
    captions = ("You see a red ball 2 steps forward", "You see a red ball 1 step forward")
    turns = SHIPPED.render("goal", world=card, segment=SegmentText(captions, ("forward",)))
    asked = Request(tuple(Message(role, text) for role, text in turns))
    with AskSession(open_backend("rules")) as session:
        session.submit([asked])
        (exchange,) = session.poll(30.0)
        assert exchange.answer == session.ask([asked])[0].answer
        assert "red ball" in str(exchange.answer)
