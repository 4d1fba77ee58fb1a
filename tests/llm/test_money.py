"""Prices are known or said to be unknown; limits are never exceeded, whatever fails and however often one starts."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from bkrl.core.config import AskConfig
from bkrl.core.errors import InputError, RunFailed
from bkrl.core.reporter import Reporter
from bkrl.llm import open_backend
from bkrl.llm.batch_api import BatchApi
from bkrl.llm.budget import Budget, Exhausted
from bkrl.llm.completions import read_completion
from bkrl.llm.forecast import CHARS_PER_TOKEN, forecast
from bkrl.llm.openai import OpenAIBackend, Refused
from bkrl.llm.opening import session_with
from bkrl.llm.prices import FREE, Price, find_price, most_prompt_tokens, remarks
from bkrl.llm.protocol import Api, Connection, Exchange, Fault, Message, Reply, Request, request_content
from bkrl.llm.session import AskSession
from bkrl.llm.store import Store
from tests.llm.fault_server import QUICK, FaultServer

DEAR = Price(1000.0, 100.0, 10_000.0, batch=0.5, flex=0.5)
COST = (100 * 1000.0 + 10 * 10_000.0) / 1e6
"""Of one answer of the server: 100 tokens in, 10 out."""


def ask(
    tmp_path: Path, count: int, budget: Budget, price: Price | None = DEAR, api: Api = "chat"
) -> tuple[list[Exchange], AskSession]:
    backend = open_backend("openai:m", Connection(tmp_path, api=api))
    with Store(tmp_path) as store, AskSession(backend, store, QUICK, Reporter(), budget, price) as asker:
        asks = [Request((Message("user", f"pair {number}"),), max_tokens=20) for number in range(count)]
        return asker.ask(asks), asker


def openai_at(host: str, model: str) -> dict[str, str]:
    return {"kind": "openai", "host": host, "model": model}


def test_models_are_matched_exactly_by_date_or_by_a_written_beginning(tmp_path: Path) -> None:
    known = find_price(openai_at("api.openai.com", "gpt-5-mini"))
    assert known is not None
    assert (known.input, known.cached_input, known.output, known.batch) == (0.25, 0.025, 2.0, 0.5)
    assert find_price(openai_at("api.openai.com", "gpt-5-mini-2025-08-07")) == known
    for model in ("gpt-5-mini-turbo", "gpt-5", "mini", ""):
        assert find_price(openai_at("api.openai.com", model)) != known
    assert find_price(openai_at("api.openai.com", "gpt-5-mini-turbo")) is None, "unknown, not nearly known"
    assert find_price(openai_at("elsewhere.example", "gpt-5-mini")) is None, "another host has prices of its own"
    own = tmp_path / "prices.toml"
    own.write_text(
        '[[price]]\nmodel = "gpt-*"\ninput = 7\noutput = 8\n'
        '[[price]]\nmodel = "gpt-5*"\ninput = 9\noutput = 10\nhost = "h"\n'
        '[[price]]\nmodel = "local"\ninput = 1\noutput = 1\n'
    )
    assert find_price(openai_at("api.openai.com", "gpt-5-mini"), own).input == 7.0  # type: ignore[union-attr]
    assert find_price(openai_at("h", "gpt-5-mini"), own).input == 9.0  # type: ignore[union-attr]
    assert find_price(openai_at("127.0.0.1", "local"), own).output == 1.0  # type: ignore[union-attr]


def test_this_machine_costs_nothing() -> None:
    for identity in ({"kind": "hf", "model": "m", "host": "local"}, openai_at("localhost", "m"), openai_at("::1", "m")):
        assert find_price(identity) == FREE
    assert FREE.of(Reply("x")) == 0.0, "also without usage"


@pytest.mark.parametrize(
    "text",
    [
        "price = 3",
        '[[price]]\nmodel = "m"\ninput = 1',
        '[[price]]\nmodel = "m"\ninput = "much"\noutput = 1',
        '[[price]]\nmodel = "m"\ninput = -1\noutput = 1',
        '[[price]]\nmodel = "m"\ninput = nan\noutput = 1',
        '[[price]]\nmodel = "m"\ninput = 1\noutput = 1\nouput = 2',
        '[[price]]\nmodel = "m"\ninput = 1\noutput = 1\nflex = 1.5',
        '[[price]]\nmodel = "m"\ninput = 1\noutput = 1\nbatch = 2',
        'as_of = "x"\n[[price]]\nmodel = "m"\ninput = 1\noutput = 1',
        'as_of = ""\n[[price]]\nmodel = "m"\ninput = 1\noutput = 1',
        'as_of = 9999\n[[price]]\nmodel = "m"\ninput = 1\noutput = 1',
        'as_of = 9999-12-31\n[[price]]\nmodel = "m"\ninput = 1\noutput = 1',
        '[[price]]\nmodel = "m"\ninput = 1\noutput = 1\nas_of = "yesterday"',
        '[[price]]\nmodel = "m"\ninput = 1\noutput = 1\ncached_input = 2',
        "[[price",
    ],
)
def test_a_malformed_price_list_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "p.toml"
    file.write_text(text)
    with pytest.raises(InputError, match="price list"):
        find_price(openai_at("h", "m"), file)
    with pytest.raises(InputError, match=r"none.toml cannot be read \(No such file or directory\); name another"):
        find_price(openai_at("h", "m"), tmp_path / "none.toml")
    file.write_bytes(b"\xff")
    with pytest.raises(InputError, match=r"cannot be read \(it is not UTF-8 text\); name another"):
        find_price(openai_at("h", "m"), file)


def test_a_reply_costs_what_its_tokens_and_its_tier_say() -> None:
    reply = Reply("x", prompt_tokens=1000, completion_tokens=100, cached_tokens=400)
    assert DEAR.of(reply) == pytest.approx((600 * 1000 + 400 * 100 + 100 * 10_000) / 1e6)
    assert DEAR.of(replace(reply, tier="batch")) == pytest.approx(DEAR.of(reply) / 2)  # type: ignore[operator]
    assert DEAR.of(Reply("x", prompt_tokens=5)) is None, "an unknown count is not nothing"
    assert DEAR.of(replace(reply, cached_tokens=99_999)) == pytest.approx((1000 * 100 + 100 * 10_000) / 1e6)


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_thoughts_that_the_total_alone_counts_are_paid_for(server: FaultServer, tmp_path: Path, api: Api) -> None:
    """They cost nothing before, so --max-cost was passed unnoticed."""
    server.plan = lambda prompt, attempt: "apart"
    exchanges, asker = ask(tmp_path, 2, Budget(), api=api)
    cost = (300 * 1000 + 1010 * 10_000) / 1e6
    assert [exchange.cost_usd for exchange in exchanges] == [pytest.approx(cost)] * 2
    assert asker.budget.paid == pytest.approx(2 * cost)
    facts = asker.usage.as_facts()
    assert (facts["prompt_tokens"], facts["completion_tokens"], facts["reasoning_tokens"]) == (600, 2020, 2000)


@pytest.mark.parametrize(
    ("usage", "written"),
    [
        ({"prompt_tokens": 300, "completion_tokens": 10, "total_tokens": 310}, 10),
        ({"prompt_tokens": 300, "completion_tokens": 10, "total_tokens": 0}, 10),
        ({"prompt_tokens": 300, "completion_tokens": 10, "total_tokens": "1310"}, 10),
        ({"prompt_tokens": 300, "completion_tokens": 10}, 10),
        ({"completion_tokens": 10, "total_tokens": 1310}, 10),
        ({"prompt_tokens": 300, "total_tokens": 1310}, None),
        ({"prompt_tokens": 300, "completion_tokens": 10, "total_tokens": 1310}, 1010),
    ],
)
def test_a_total_that_tells_nothing_of_thoughts_changes_nothing(usage: dict[str, Any], written: int | None) -> None:
    body = {"choices": [{"message": {"content": "x"}}], "usage": usage}
    assert read_completion(body, {}, "text").completion_tokens == written


def test_the_bound_holds_for_any_vocabulary_of_bytes() -> None:
    words = Request((Message("system", "ü" * 50), Message("user", "\U0001f600" * 10)), {"type": "object"})
    assert most_prompt_tokens(words) >= 100 + 40 + len('{"type": "object"}')


def test_the_bound_and_the_forecast_hold_what_the_body_adds(tmp_path: Path) -> None:
    """40,000 bytes of tools in --body were not counted, so --max-cost was passed."""
    (tmp_path / "prices.toml").write_text('[[price]]\nmodel = "m"\ninput = 1.0\noutput = 1.0\n')
    identity = {"kind": "openai", "host": "example.org", "model": "m"}
    request = Request((Message("user", "Which?"),), max_tokens=1)
    bare, long = (find_price(identity | body, tmp_path / "prices.toml") for body in ({}, {"body": "x" * 40_000}))
    assert bare is not None
    assert long is not None
    assert long.bound(request) == pytest.approx(bare.bound(request) + 0.04)
    short, tall = (forecast([request] * 3, 1, tmp_path, None, price).tokens_in for price in (bare, long))
    assert tall == pytest.approx(short + 3 * 40_000 / CHARS_PER_TOKEN, abs=1)


def test_rows_and_totals_say_what_was_paid(server: FaultServer, tmp_path: Path) -> None:
    server.plan = lambda prompt, attempt: "details"
    exchanges, asker = ask(tmp_path, 5, Budget())
    cost = (36 * 1000 + 64 * 100 + 10 * 10_000) / 1e6
    assert [exchange.cost_usd for exchange in exchanges] == [pytest.approx(cost)] * 5
    facts = {**asker.usage.as_facts(), **asker.usage.cost_facts()}
    assert facts["cost_usd"] == facts["spent_usd"] == pytest.approx(5 * cost)
    assert (facts["cached_prompt_tokens"], facts["reasoning_tokens"]) == (320, 20)
    again, asker = ask(tmp_path, 5, Budget())
    assert [exchange.cost_usd for exchange in again] == [exchange.cost_usd for exchange in exchanges]
    assert asker.usage.cost_facts()["spent_usd"] == 0.0, "read from the store"
    _, asker = ask(tmp_path, 5, Budget(), price=None)
    assert asker.usage.cost_facts()["cost_usd"] is None
    assert asker.usage.cost_facts()["price"] == "unknown"


def test_a_limit_in_dollars_is_never_exceeded_and_nothing_is_lost_at_it(server: FaultServer, tmp_path: Path) -> None:
    server.latency = 0.005
    server.plan = lambda prompt, attempt: "500" if (int(prompt[:4], 16) + attempt) % 4 == 0 else "ok"
    limit, file = 12 * COST, tmp_path / "spending.jsonl"
    with pytest.raises(RunFailed, match="max-cost"):
        ask(tmp_path, 40, Budget(file, max_usd=limit))
    first = server.billed.total()
    assert first * COST <= limit
    assert first >= 10, "what others may still cost is waited for, not taken for spent"
    with pytest.raises(RunFailed, match="raise it"):
        ask(tmp_path, 40, Budget(file, max_usd=limit))
    assert server.billed.total() * COST <= limit, "a second start has no second purse"
    exchanges, asker = ask(tmp_path, 40, Budget(file, max_usd=100.0))
    assert all(exchange.status == "ok" for exchange in exchanges)
    assert max(server.billed.values()) == 1
    assert asker.budget.paid == pytest.approx(40 * COST)


def test_answers_that_were_lost_count_as_paid(server: FaultServer, tmp_path: Path) -> None:
    server.plan = lambda prompt, attempt: "truncated_json"
    bound = DEAR.bound(Request((Message("user", "pair 0"),), max_tokens=20))
    with pytest.raises(RunFailed, match="max-cost"):
        ask(tmp_path, 30, Budget(max_usd=3.5 * bound))
    assert server.billed.total() == 3
    assert server.billed.total() * COST <= 3.5 * bound


def test_a_limit_in_requests_counts_every_single_one(server: FaultServer, tmp_path: Path) -> None:
    server.plan = lambda prompt, attempt: "picky" if int(prompt[0], 16) % 2 else "500" if attempt == 0 else "length"
    file = tmp_path / "spending.jsonl"
    with pytest.raises(RunFailed, match="max-requests"):
        ask(tmp_path, 100, Budget(file, max_requests=17))
    assert len(server.requests) == 17, "refusals, repetitions and longer second tries included"
    with pytest.raises(RunFailed, match="max-requests"):
        ask(tmp_path, 100, Budget(file, max_requests=30))
    assert len(server.requests) == 30


def test_a_budget_survives_kills_torn_lines_and_counts_what_was_out(tmp_path: Path) -> None:
    file = tmp_path / "spending.jsonl"
    first = Budget(file)
    done, out = first.begin(2.0), first.begin(3.0)
    first.settle(done, 1.5)
    first.settle(done, 99.0)
    with file.open("ab") as raw:
        raw.write(b'{"end": "' + out.encode())  # killed while it wrote
    again = Budget(file, max_usd=5.0)
    assert (again.paid, again.doubtful, again.requests) == (1.5, 3.0, 2)
    with pytest.raises(Exhausted, match=r"4\.5"):
        asyncio.run(again.reserve(0.6))
    again.settle(again.begin(0.4), 0.4)
    assert Budget(file).paid == pytest.approx(1.9)


def test_reservations_wait_for_each_other_and_never_pass_the_limit() -> None:
    rng = random.Random(3)

    async def main() -> tuple[float, float, int]:
        budget, most, refused = Budget(max_usd=10.0), 0.0, 0

        async def one() -> None:
            nonlocal most, refused
            bound = rng.uniform(0.5, 3.0)
            try:
                name = await budget.reserve(bound)
            except Exhausted:
                refused += 1
                return
            most = max(most, budget.committed)
            await asyncio.sleep(rng.uniform(0.0, 0.002))
            if rng.random() < 0.1:
                budget.lose(name)
            else:
                budget.settle(name, bound * rng.random() * 0.2)

        await asyncio.gather(*(one() for _ in range(300)))
        return most, budget.committed, refused

    most, spent, refused = asyncio.run(main())
    assert most <= 10.0
    assert 7.0 < spent <= 10.0
    assert refused


def test_flex_is_asked_for_priced_and_missed_loudly(server: FaultServer, tmp_path: Path) -> None:
    flex = Connection(tmp_path, tier="flex")
    request = Request((Message("user", "x"),))
    with (
        Store(tmp_path) as store,
        AskSession(open_backend("openai:m", flex), store, QUICK, Reporter(), None, DEAR) as asker,
    ):
        (exchange,) = asker.ask([request])
        assert server.requests[-1]["service_tier"] == "flex"
        assert exchange.cost_usd == pytest.approx(COST / 2)
        with AskSession(open_backend("openai:m"), store, QUICK, Reporter(), None, DEAR) as asker:
            (same,) = asker.ask([request])
        assert same.cached, "the tier is no part of the question"
        assert same.cost_usd == exchange.cost_usd, "what it was bought for"
        server.plan = lambda prompt, attempt: "no_flex"
        with (
            AskSession(open_backend("openai:m", flex), store, QUICK) as asker,
            pytest.raises(RunFailed, match="no flex tier"),
        ):
            asker.ask([Request((Message("user", "y"),))])


def test_a_project_does_not_choose_a_dearer_tier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a tier OpenAI takes the project's setting, and a reply at its price was booked at the standard one."""
    request = Request((Message("user", "x"),))
    for address, sent in (("https://api.openai.com/v1", "default"), ("https://api.example.com/v1", None)):
        monkeypatch.setenv("OPENAI_BASE_URL", address)
        backend = OpenAIBackend("m", Connection(tmp_path, asking=False))
        parameters, _ = backend.parameters(request)
        assert parameters.get("service_tier") == sent
        assert "service_tier" not in json.loads(BatchApi(backend).line("k", request))["body"]
        assert "tier" not in request_content(backend.identity, request)
        flex, _ = OpenAIBackend("m", Connection(tmp_path, tier="flex", asking=False)).parameters(request)
        assert flex["service_tier"] == "flex"
        refused = Refused(Fault("item", "bad request", "no service_tier"), "unsupported: service_tier")
        assert backend.adapted(refused, parameters).reason != "no such tier", "nobody asked for flex"


def test_flex_is_given_the_time_that_it_takes(tmp_path: Path) -> None:
    """Replies that come after minutes were cut off, paid for perhaps, and asked for again."""
    for tier, seconds in (("default", 120.0), ("flex", 900.0)):
        backend = open_backend("openai:m", Connection(tmp_path, tier=tier, asking=False))
        policy = session_with(backend, AskConfig(), tier=tier).policy
        assert policy.deadline == seconds
        assert policy.patience > seconds
        assert policy.stall > seconds


def test_every_shipped_price_is_dated_and_sane() -> None:
    import tomllib
    from importlib import resources

    document = tomllib.loads((resources.files("bkrl.llm") / "prices.toml").read_text("utf-8"))
    assert isinstance(document["as_of"], date)
    for entry in document["price"]:
        price = find_price(openai_at(entry["host"], entry["model"]))
        assert price is not None
        assert 0 < price.cached_input <= price.input < price.output
        assert price.as_of == entry.get("as_of", document["as_of"])
        assert str(price.as_of) in price.source


def test_what_is_written_to_a_prompt_cache_is_reckoned_as_if_it_were_all_that_was_not_read(tmp_path: Path) -> None:
    own = tmp_path / "prices.toml"
    own.write_text('[[price]]\nmodel = "m"\ninput = 1\ncached_input = 0.1\ncache_write = 1.25\noutput = 5\n')
    price = find_price(openai_at("host", "m"), own)
    assert price is not None
    assert price.of_tokens(1_000_000, 0) == 1.25
    assert price.of_tokens(1_000_000, 0, cached=1_000_000) == 0.1


@pytest.mark.parametrize(
    ("day", "said"),
    [
        ("2026-11-01", []),
        ("2027-05-10", ["older than six months"]),
        ("2027-09-01", ["older than", "was to be shut"]),
    ],
)
def test_a_price_that_is_old_or_whose_model_ends_is_told(
    day: str, said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bkrl.llm.prices.today", lambda: date.fromisoformat(day))
    own = tmp_path / "prices.toml"
    ends = "ends = 2027-08-31\n" if "09" in day else ""
    own.write_text(f'as_of = "2026-10-31"\n[[price]]\nmodel = "m"\ninput = 1\noutput = 2\n{ends}')
    told = remarks(find_price(openai_at("host", "m"), own))
    assert len(told) == len(said)
    assert all(words in sentence for words, sentence in zip(said, told))
    own.write_text('[[price]]\nmodel = "m"\ninput = 1\noutput = 2\nends = "soon"\n')
    with pytest.raises(InputError, match="ends must be a date"):
        find_price(openai_at("host", "m"), own)
