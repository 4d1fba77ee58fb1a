"""The OpenAI backend and the ask loop against a server that misbehaves."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from bkrl.core.errors import InputError, RunFailed
from bkrl.core.reporter import Reporter
from bkrl.llm import open_backend
from bkrl.llm.budget import Budget
from bkrl.llm.policy import AskPolicy
from bkrl.llm.prices import FREE, Price
from bkrl.llm.protocol import Connection, Exchange, Message, Request, request_key
from bkrl.llm.session import AskSession
from bkrl.llm.store import Store
from tests.commands import Started
from tests.llm.fault_server import QUICK, FaultServer, truth

ROOT = Path(__file__).parents[2]
SCHEMA = {"type": "object", "properties": {"choice": {"type": "string"}}, "required": ["choice"]}


def request(number: int = 0) -> Request:
    return Request((Message("system", "Compare. JSON."), Message("user", f"pair {number}")), SCHEMA)


def ask(
    tmp_path: Path, count: int = 1, policy: AskPolicy = QUICK, budget: Budget | None = None, price: Price = FREE
) -> tuple[list[Exchange], AskSession]:
    with (
        Store(tmp_path) as store,
        AskSession(open_backend("openai:m", Connection(tmp_path)), store, policy, Reporter(), budget, price) as asker,
    ):
        return asker.ask([request(number) for number in range(count)]), asker


def choice(exchange: Exchange) -> str:
    assert exchange.answer is not None, exchange
    return str(json.loads(exchange.answer)["choice"])


def test_the_sdks_own_http_library_is_taken_whichever_others_are_installed(
    server: FaultServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MCP's SDK brings httpx2 along, which version 2 of OpenAI's does not take."""
    import openai

    base = openai.DefaultAsyncHttpxClient.__mro__[1]
    other = ModuleType("other")
    vars(other).update(vars(sys.modules[base.__module__.partition(".")[0]]))
    monkeypatch.setattr(other, "AsyncClient", type("AsyncClient", (base,), {"__module__": "other"}))
    monkeypatch.setitem(sys.modules, "other", other)
    monkeypatch.setattr(openai, "DefaultAsyncHttpxClient", type("Default", (other.AsyncClient,), {}))
    client: Any = open_backend("openai:m", Connection(tmp_path)).client()  # type: ignore[attr-defined]
    assert isinstance(client._client, other.AsyncClient)
    assert ask(tmp_path)[1].budget.sent == 1


def test_answers_are_kept_and_never_asked_twice(server: FaultServer, tmp_path: Path) -> None:
    first, asker = ask(tmp_path, 20)
    assert asker.budget.sent == 20
    assert asker.usage.prompt_tokens == 2000
    second, asker = ask(tmp_path, 20)
    assert [e.answer for e in first] == [e.answer for e in second]
    assert asker.budget.sent == 0
    assert asker.usage.cached == 20
    assert len(server.requests) == 20
    assert all(count == 1 for count in server.billed.values())


def test_the_same_question_in_flight_is_asked_once(server: FaultServer, tmp_path: Path) -> None:
    server.latency = 0.05
    with Store(tmp_path) as store, AskSession(open_backend("openai:m"), store, QUICK, Reporter()) as asker:
        exchanges = asker.ask([request()] * 30)
    assert len(server.requests) == 1
    assert len({e.answer for e in exchanges}) == 1


RETRIED = (
    *("500", "502", "503:0", "529:0", "408", "429:0", "429ms:5", "429:date", "reset", "reset_mid", "short_body"),
    *("truncated_json", "null", "two_documents", "not_utf8", "empty_body", "empty_choices", "null_choices", "deep"),
    *("null_content", "error_in_200", "list_in_200"),
)


@pytest.mark.parametrize("fault", RETRIED)
def test_a_passing_fault_is_retried(server: FaultServer, tmp_path: Path, fault: str) -> None:
    server.plan = lambda prompt, attempt: fault if attempt == 0 else "ok"
    (exchange,), asker = ask(tmp_path)
    assert choice(exchange) == truth(next(iter(server.seen)))
    assert asker.budget.sent == 2


ACCEPTED = (
    "gemini",
    "thinking",
    "no_usage",
    "parts",
    "surrogate",
    "no_schema",
    "no_format",
    "no_max_tokens",
    "no_temperature",
    "picky",
)


@pytest.mark.parametrize("habit", ACCEPTED)
def test_habits_of_servers_are_coped_with(server: FaultServer, tmp_path: Path, habit: str) -> None:
    server.plan = lambda prompt, attempt: habit
    exchanges, asker = ask(tmp_path, 3)
    assert all(exchange.status == "ok" for exchange in exchanges)
    assert all(choice(e) in "AB" for e in exchanges)
    assert asker.budget.sent == len(server.requests)
    refusals = len(server.requests) - 3
    assert refusals <= 5, "what is refused is learnt once"
    form = {"no_schema": "json_object", "no_format": "text", "picky": "text"}.get(habit, "json_schema")
    assert {e.reply.format for e in exchanges if e.reply} == {form}


def test_what_a_list_of_errors_refuses_is_left_out(server: FaultServer, tmp_path: Path) -> None:
    server.plan = lambda prompt, attempt: "gemini"
    exchanges, asker = ask(tmp_path, 5)
    assert [exchange.status for exchange in exchanges] == ["ok"] * 5
    assert not {"seed", "logprobs"} & set(server.requests[-1])
    assert asker.budget.sent == 7, "each refusal costs one request"


def test_a_text_that_stands_among_the_reasoning_is_the_answer(server: FaultServer, tmp_path: Path) -> None:
    server.plan = lambda prompt, attempt: "thinking"
    exchanges, _ = ask(tmp_path, 5)
    assert {choice(exchange) for exchange in exchanges} <= {"A", "B"}
    assert len(server.requests) == 5


def test_an_endpoint_that_never_says_anything_is_given_up(server: FaultServer, tmp_path: Path) -> None:
    server.plan = lambda prompt, attempt: "null_content"
    with pytest.raises(RunFailed, match="empty"):
        ask(tmp_path, 5, replace(QUICK, attempts=12))
    assert len(server.requests) <= 20


def test_a_prompt_that_always_comes_back_empty_is_paid_for_a_few_times(server: FaultServer, tmp_path: Path) -> None:
    bad = ask(tmp_path, 1)[0][0].key and next(iter(server.seen))
    server.plan = lambda prompt, attempt: "null_content" if prompt == bad else "ok"
    exchanges, _ = ask(tmp_path / "other", 5, replace(QUICK, attempts=12))
    assert [exchange.reason for exchange in exchanges] == ["empty", "", "", "", ""]
    assert 2 < server.seen[bad] <= 1 + 6


def test_a_prompt_that_a_server_cannot_answer_is_asked_with_other_seeds_and_given_up(
    server: FaultServer, tmp_path: Path
) -> None:
    bad = ask(tmp_path, 1)[0][0].key and next(iter(server.seen))
    server.requests.clear()
    server.plan = lambda prompt, attempt: "500" if prompt == bad else "ok"
    exchanges, _ = ask(tmp_path / "other", 5, replace(QUICK, attempts=12))
    assert [exchange.reason for exchange in exchanges] == ["status 500", "", "", "", ""]
    seeds = [body["seed"] for body in server.requests if body["messages"][1]["content"] == "pair 0"]
    assert len(seeds) == len(set(seeds)) <= 8
    assert seeds[0] == 0


def test_while_a_server_is_down_no_question_is_given_up(server: FaultServer, tmp_path: Path) -> None:
    """It answers ten, then nothing for 150 requests: that is no fault of the prompts."""
    server.plan = lambda prompt, attempt: "500" if 10 < len(server.requests) <= 160 else "ok"
    exchanges, _ = ask(tmp_path, 40, replace(QUICK, attempts=12))
    assert [exchange.status for exchange in exchanges] == ["ok"] * 40


def test_fields_of_the_body_are_sent_and_are_part_of_the_key(server: FaultServer, tmp_path: Path) -> None:
    def key(**body: Any) -> str:
        with (
            Store(tmp_path) as store,
            AskSession(open_backend("openai:m", Connection(tmp_path, body=body)), store, QUICK, Reporter()) as asker,
        ):
            return asker.ask([request()])[0].key

    plain, thinking = key(), key(chat_template_kwargs={"enable_thinking": False})
    assert plain == request_key({"kind": "openai", "host": "127.0.0.1", "model": "m"}, request()), "as it always was"
    assert plain != thinking
    assert server.requests[-1]["chat_template_kwargs"] == {"enable_thinking": False}
    server.plan = lambda prompt, attempt: "no_extra"
    with pytest.raises(RunFailed, match="does not accept 'chat_template_kwargs' of --body"):
        key(chat_template_kwargs={"enable_thinking": True})


def test_new_parameters_replace_refused_ones(server: FaultServer, tmp_path: Path) -> None:
    server.plan = lambda prompt, attempt: "no_max_tokens"
    ask(tmp_path)
    assert server.requests[0]["max_tokens"] == server.requests[-1]["max_completion_tokens"] == 1024
    assert "max_tokens" not in server.requests[-1]


@pytest.mark.parametrize("fault", ["401", "402", "403", "404", "quota", "quota_in_200", "redirect"])
def test_a_final_fault_ends_the_run_at_once(server: FaultServer, tmp_path: Path, fault: str) -> None:
    server.plan = lambda prompt, attempt: fault
    with pytest.raises(RunFailed) as stopped:
        ask(tmp_path, 200)
    assert len(server.requests) == 1, "the first request goes alone"
    assert "200" in str(stopped.value)
    assert "CANARY" not in str(stopped.value)


def test_what_was_answered_before_a_final_fault_is_kept(server: FaultServer, tmp_path: Path) -> None:
    served: list[str] = []

    def plan(prompt: str, attempt: int) -> str:
        served.append(prompt)
        return "ok" if len(served) <= 30 else "401"

    server.plan = plan
    with pytest.raises(RunFailed, match="of 100 done"):
        ask(tmp_path, 100)
    server.plan = lambda prompt, attempt: "ok"
    exchanges, asker = ask(tmp_path, 100)
    assert len(exchanges) == 100
    assert asker.usage.cached == 30
    assert max(server.billed.values()) == 1


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("context", "context length"),
        pytest.param("413", "context length", marks=pytest.mark.slow),
        ("filter400", "filtered"),
        pytest.param("content_filter", "filtered", marks=pytest.mark.slow),
        ("refusal", "refused"),
        ("length", "truncated"),
        pytest.param("huge", "reply too long", marks=pytest.mark.slow),  # in the fast run: test_hostile.py
        ("400", "bad request"),
        ("500", "status 500"),
    ],
)
def test_a_hopeless_item_is_recorded_and_the_others_go_on(
    server: FaultServer, tmp_path: Path, fault: str, reason: str
) -> None:
    bad = ask(tmp_path, 1)[0][0].key and next(iter(server.seen))
    server.plan = lambda prompt, attempt: fault if prompt == bad else "ok"
    exchanges, asker = ask(tmp_path / "other", 10)
    assert [exchange.status == "ok" for exchange in exchanges] == [False] + [True] * 9
    assert (exchanges[0].reason or exchanges[0].status) == reason
    assert asker.usage.reasons == {reason: 1}


def test_refused_and_truncated_answers_are_never_reused(server: FaultServer, tmp_path: Path) -> None:
    server.plan = lambda prompt, attempt: "refusal"
    assert ask(tmp_path)[0][0].status == "refused"
    server.plan = lambda prompt, attempt: "ok"
    assert ask(tmp_path)[0][0].status == "ok"


def test_a_refusal_is_paid_for_once_in_a_run_however_often_the_question_comes(
    server: FaultServer, tmp_path: Path
) -> None:
    server.plan = lambda prompt, attempt: "refusal"
    with (
        Store(tmp_path) as store,
        AskSession(open_backend("openai:m", Connection(tmp_path)), store, QUICK, Reporter()) as asker,
    ):

        async def one_after_the_other() -> list[str]:
            return [(await asker.answer(request())).status for _ in range(3)]

        assert asker.run([one_after_the_other]) == [["refused"] * 3]
    assert max(server.billed.values()) == 1


ASK = """
import sys
from pathlib import Path
from tests.llm.test_openai import ask
exchanges, asker = ask(Path(sys.argv[1]), 40)
assert all(exchange.status == "ok" for exchange in exchanges)
print(asker.budget.sent, asker.usage.cached)
"""


def asking(tmp_path: Path) -> Started:
    """A process of its own that asks and keeps the replies in `tmp_path`."""
    script = tmp_path / "ask.py"
    if not script.exists():  # an earlier process may be about to read it
        script.write_text(ASK)
    return Started([script, tmp_path], PYTHONPATH=os.pathsep.join(map(str, (ROOT, ROOT / "src"))))


def test_processes_that_share_a_cache_pay_for_no_question_twice(server: FaultServer, tmp_path: Path) -> None:
    server.latency = 0.2
    server.plan = lambda prompt, attempt: "500" if attempt == 0 and prompt[0] in "0123" else "ok"
    askers = [asking(tmp_path) for _ in range(3)]
    ended = [asker.done(300) for asker in askers]
    told = [one.stdout.split() for one in ended]
    assert [one.returncode for one in ended] == [0, 0, 0]
    assert max(server.billed.values()) == 1
    assert sum(int(cached) for _, cached in told) == 80
    assert list((tmp_path / "alive").iterdir()) == []


def test_a_killed_process_is_not_waited_for(server: FaultServer, tmp_path: Path) -> None:
    server.plan = lambda prompt, attempt: "hang" if attempt == 0 else "ok"
    asker = asking(tmp_path)
    while not server.requests:
        time.sleep(0.05)
    asker.kill()
    (exchange,), _ = ask(tmp_path)
    assert exchange.status == "ok"
    with Store(tmp_path) as store:
        assert store.interrupted({exchange.key}) == 1


def test_names_that_no_table_can_hold_do_not_lose_the_reply(server: FaultServer, tmp_path: Path) -> None:
    server.plan = lambda prompt, attempt: "odd_names"
    (exchange,), _ = ask(tmp_path)
    assert exchange.reply is not None
    assert exchange.status == "ok"
    assert len(exchange.reply.model) <= 200
    assert max(server.billed.values()) == 1


def test_what_cannot_be_remembered_of_an_endpoint_does_not_lose_the_reply(server: FaultServer, tmp_path: Path) -> None:
    (tmp_path / "endpoints.json").mkdir(parents=True)
    (exchange,), _ = ask(tmp_path)
    assert exchange.status == "ok"
    assert max(server.billed.values()) == 1


def test_a_store_that_fails_is_named_although_others_wait_for_the_same_answer(
    server: FaultServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise RunFailed("The disk is full.")

    monkeypatch.setattr(Store, "put", fail)
    with (
        Store(tmp_path) as store,
        AskSession(open_backend("openai:m", Connection(tmp_path)), store, QUICK, Reporter()) as asker,
        pytest.raises(RunFailed, match="The disk is full"),
    ):
        asker.ask([request()] * 5)


def test_a_truncated_answer_is_asked_once_more_with_room(server: FaultServer, tmp_path: Path) -> None:
    server.plan = lambda prompt, attempt: "length" if attempt == 0 else "ok"
    (exchange,), _ = ask(tmp_path)
    assert exchange.status == "ok"
    assert [body["max_tokens"] for body in server.requests] == [1024, 4096]
    (exchange,), asker = ask(tmp_path)
    assert exchange.status == "ok"
    assert asker.budget.sent == 0, "the short attempt is known to be hopeless and is not bought again"


def test_an_answer_that_stays_too_long_is_bought_twice_and_then_never_again(
    server: FaultServer, tmp_path: Path
) -> None:
    server.plan = lambda prompt, attempt: "length"
    (first,), _ = ask(tmp_path)
    assert [body["max_tokens"] for body in server.requests] == [1024, 4096]
    (again,), asker = ask(tmp_path)
    assert (first.reply, first.reason) == (again.reply, again.reason)
    assert asker.budget.sent == 0


def test_the_deadline_covers_the_whole_answer(server: FaultServer, tmp_path: Path) -> None:
    server.plan = lambda prompt, attempt: "trickle" if attempt == 0 else "ok"
    (exchange,), asker = ask(tmp_path, policy=replace(QUICK, deadline=2.0))
    assert exchange.status == "ok"
    assert asker.budget.lost == 1


def test_a_hanging_server_is_given_up(server: FaultServer, tmp_path: Path) -> None:
    server.plan = lambda prompt, attempt: "hang" if attempt == 0 else "ok"
    (exchange,), _ = ask(tmp_path, policy=replace(QUICK, deadline=2.0))
    assert exchange.status == "ok"


def test_a_server_that_asks_for_pauses_for_ever_is_given_up(server: FaultServer, tmp_path: Path) -> None:
    server.plan = lambda prompt, attempt: "429:0"
    with pytest.raises(RunFailed, match="No reply for"):
        ask(tmp_path, policy=replace(QUICK, stall=0.0, refusals=4))
    assert len(server.requests) == 4


@pytest.mark.parametrize("count", [60, pytest.param(200, marks=pytest.mark.slow)])
def test_too_many_requests_slow_the_whole_pool_and_lose_nothing(
    server: FaultServer, tmp_path: Path, count: int
) -> None:
    server.latency = 0.01
    server.plan = lambda prompt, attempt: "429:0" if server.in_flight > 8 else "ok"
    exchanges, asker = ask(tmp_path, count)
    assert all(exchange.status == "ok" for exchange in exchanges)
    assert max(server.billed.values()) == 1
    assert asker.budget.sent < 2.5 * count, "it backs off instead of hammering"


def test_retry_after_is_honoured(server: FaultServer, tmp_path: Path) -> None:
    server.plan = lambda prompt, attempt: "429:1" if attempt == 0 else "ok"
    started = time.monotonic()
    ask(tmp_path)
    assert time.monotonic() - started >= 1.0


def test_ctrl_c_leaves_no_complaint_about_jobs_that_had_to_be_given_up(
    server: FaultServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server.plan = lambda prompt, attempt: signal.raise_signal(signal.SIGINT) or "hang"  # type: ignore[func-returns-value]
    with pytest.raises(KeyboardInterrupt):
        ask(tmp_path, 3, replace(QUICK, grace=0.0))
    gc.collect()
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_a_running_event_loop_such_as_a_notebooks_is_no_obstacle(server: FaultServer, tmp_path: Path) -> None:
    async def cell() -> list[Exchange]:
        return ask(tmp_path, 5)[0]

    assert [exchange.status for exchange in asyncio.run(cell())] == ["ok"] * 5
    assert len(server.requests) == 5


def test_ctrl_c_in_a_notebook_keeps_what_was_answered(server: FaultServer, tmp_path: Path) -> None:
    """There the loop that asks is in another thread, and the signals are not its own."""
    hanging = threading.Event()

    def plan(prompt: str, attempt: int) -> str:
        if len(server.requests) == 6:
            hanging.set()
        return "ok" if len(server.requests) <= 5 else "hang"

    def interrupt() -> None:
        hanging.wait(30)
        os.kill(os.getpid(), signal.SIGINT)

    async def cell() -> None:
        ask(tmp_path, 20, replace(QUICK, grace=0.1, deadline=None))

    server.plan = plan
    person = threading.Thread(target=interrupt)
    person.start()
    loop = asyncio.new_event_loop()
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(cell())
    person.join()
    loop.close()
    server.plan = lambda prompt, attempt: "ok"
    exchanges, asker = ask(tmp_path, 20)
    assert (asker.usage.cached, len(exchanges)) == (5, 20)


def test_a_long_retry_after_is_waited_for_and_not_taken_for_lost_patience(
    server: FaultServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pauses pass at once here and the clock jumps over them, so patience can be longer than any request may take."""
    server.plan = lambda prompt, attempt: ("500:1000", "429:1000", "500", "ok")[min(attempt, 3)]
    now, sleep, paused = time.monotonic, asyncio.sleep, 0.0

    async def skip(seconds: float) -> None:
        nonlocal paused
        paused += seconds if seconds > 500 else 0
        await sleep(0 if seconds > 500 else seconds)

    monkeypatch.setattr(time, "monotonic", lambda: now() + paused)
    monkeypatch.setattr(asyncio, "sleep", skip)
    (exchange,), _ = ask(tmp_path, policy=replace(QUICK, patience=600))
    assert exchange.status == "ok"
    assert paused > 1900


def test_max_requests_is_never_exceeded(server: FaultServer, tmp_path: Path) -> None:
    server.plan = lambda prompt, attempt: "500" if attempt == 0 else "ok"
    with pytest.raises(RunFailed, match="max-requests"):
        ask(tmp_path, 100, budget=Budget(max_requests=25))
    assert len(server.requests) == 25


def test_a_web_page_is_named_as_such(server: FaultServer, tmp_path: Path) -> None:
    server.plan = lambda prompt, attempt: "html"
    with pytest.raises(RunFailed, match="web page"):
        ask(tmp_path, 5)


def test_an_unreachable_server_ends_the_run_soon(
    server: FaultServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    with pytest.raises(RunFailed, match="cannot be reached"):
        ask(tmp_path, 5)


def test_every_request_failing_alike_ends_the_run(server: FaultServer, tmp_path: Path) -> None:
    server.plan = lambda prompt, attempt: "400"
    with pytest.raises(RunFailed, match="first 20 requests all failed"):
        ask(tmp_path, 500)
    assert len(server.requests) < 100


@pytest.mark.parametrize(("habit", "count", "reason"), [("null_content", 2, "empty"), ("400", 25, "bad request")])
def test_a_run_whose_other_answers_are_kept_goes_on_where_the_rest_has_none(
    server: FaultServer, tmp_path: Path, habit: str, count: int, reason: str
) -> None:
    """Only what this process had received counted as an answer, so such a run stopped, and paid, at every start."""
    ask(tmp_path, 3)
    server.plan = lambda prompt, attempt: habit
    exchanges, _ = ask(tmp_path, 3 + count)
    assert [exchange.reason for exchange in exchanges] == [""] * 3 + [reason] * count


@pytest.mark.parametrize("count", [60, pytest.param(300, marks=pytest.mark.slow)])
def test_answers_are_not_mixed_up_under_faults(server: FaultServer, tmp_path: Path, count: int) -> None:
    faults = ("500", "reset_mid", "truncated_json", "empty_choices", "429:0", "short_body", "not_utf8")
    server.plan = lambda prompt, attempt: (
        faults[int(prompt[8:16], 16) % 7] if (int(prompt[16:24], 16) + attempt) % 5 == 0 else "ok"
    )
    exchanges, asker = ask(tmp_path, count)
    assert all(exchange.status == "ok" for exchange in exchanges)
    server.plan = lambda prompt, attempt: "ok"
    clean, _ = ask(tmp_path / "clean", count)
    assert [e.answer for e in exchanges] == [e.answer for e in clean]
    unreadable = asker.budget.lost
    assert sum(server.billed.values()) - 2 * count <= unreadable, "every answer billed beyond need is accounted for"


def test_a_missing_key_is_an_input_error_except_on_this_machine(
    server: FaultServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    assert "dummy" in open_backend("openai:m").facts()["notice"]
    exchanges, _ = ask(tmp_path)
    assert exchanges[0].status == "ok"
    monkeypatch.delenv("OPENAI_BASE_URL")
    with pytest.raises(InputError, match="OPENAI_API_KEY"):
        open_backend("openai:m")


def test_connection_settings_do_not_change_a_key(
    server: FaultServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(tmp_path, 3)
    with FaultServer() as other:
        monkeypatch.setenv("OPENAI_BASE_URL", other.url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-another-key")
        _, asker = ask(tmp_path, 3)
        assert asker.budget.sent == 0
        assert other.requests == []


def test_azure_endpoints_are_found_in_the_environment(
    server: FaultServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", f"http://127.0.0.1:{server.port}")
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", "azure-key")
    for version in ("", "2024-10-21"):
        monkeypatch.setenv("OPENAI_API_VERSION", version)
        exchanges, _ = ask(tmp_path / f"v{version}")
        assert exchanges[0].status == "ok"
    assert server.headers[-1].get("api-key") == "azure-key"


def test_the_key_is_in_no_file_and_no_error(server: FaultServer, tmp_path: Path) -> None:
    told: list[Any] = []
    for fault in ("ok", "401", "500", "context"):
        server.plan = lambda prompt, attempt, fault=fault: fault
        try:
            exchanges, asker = ask(tmp_path / fault, 2, replace(QUICK, attempts=2))
            told += [exchanges, asker.usage.as_facts(), asker.backend.facts(), vars(asker)]
        except RunFailed as error:
            told += [error, error.__cause__, error.__context__]
    assert "CANARY" not in repr(told)
    for file in tmp_path.rglob("*"):
        if file.is_file():
            assert b"CANARY" not in file.read_bytes(), file
    assert any("sk-canary" in headers["authorization"] for headers in server.headers), "the key was really used"
