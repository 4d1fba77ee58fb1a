"""Replies made to harm: too large, too deep, packed, endless. Refused with a status, in bounded memory, no crash."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest

from bkrl.cli import main as cli
from bkrl.core.reporter import Reporter
from bkrl.labelers.answers import Unparsed, parse_choice, parse_goals, parse_program
from bkrl.llm import open_backend
from bkrl.llm.protocol import Exchange, Message, Request
from bkrl.llm.session import AskSession
from bkrl.llm.store import Store
from tests.experience import write_env
from tests.llm.fault_server import QUICK, FaultServer

FEW = replace(QUICK, attempts=3)
DEEP = 100_000


def ask(folder: Path, count: int = 2) -> list[Exchange]:
    with Store(folder) as store, AskSession(open_backend("openai:m"), store, FEW, Reporter()) as asker:
        asks = [Request((Message("user", f"pair {number}"),)) for number in range(count)]
        return asker.ask(asks)


@pytest.mark.parametrize(
    ("habit", "reason"),
    [
        ("flood", "reply too long"),
        ("zipped", "reply too long"),
        ("huge", "reply too long"),
        ("deep", "unreadable"),
        ("deep_closed", "unreadable"),
    ],
)
def test_a_hostile_body_is_refused_and_the_others_go_on(
    server: FaultServer, tmp_path: Path, habit: str, reason: str
) -> None:
    ask(tmp_path / "warm")
    bad = next(iter(server.seen))
    server.plan = lambda prompt, attempt: habit if prompt == bad else "ok"
    tracemalloc.start()
    exchanges = ask(tmp_path / "cold")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [exchange.status for exchange in exchanges] == ["failed", "ok"]
    assert exchanges[0].reason == reason
    if habit != "flood":  # the server runs in this process too, and holds the flood it sends
        assert peak < 120 * 2**20


@pytest.mark.parametrize("packing", ["gzip", "deflate"])
def test_an_answer_that_is_packed_unasked_is_unpacked(server: FaultServer, tmp_path: Path, packing: str) -> None:
    server.plan = lambda prompt, attempt: packing
    exchanges = ask(tmp_path)
    assert {exchange.status for exchange in exchanges} == {"ok"}
    assert all("so it is" in (exchange.answer or "") for exchange in exchanges)
    assert max(server.billed.values()) == 1
    assert all(headers["accept-encoding"] == "identity" for headers in server.headers)


@pytest.mark.parametrize("packing", ["torn_gzip", "no_gzip", "odd_packing"])
def test_an_answer_that_cannot_be_unpacked_has_a_reason(server: FaultServer, tmp_path: Path, packing: str) -> None:
    ask(tmp_path / "warm", 1)
    server.plan = lambda prompt, attempt: packing if attempt < 2 else "ok"
    (exchange,) = ask(tmp_path, 1)
    if packing == "odd_packing":
        assert (exchange.status, exchange.reason) == ("failed", "unreadable")
    else:
        assert exchange.status == "ok", "what is damaged on the way is asked for again"


def test_a_deeply_nested_answer_is_text_that_nobody_can_read(server: FaultServer, tmp_path: Path) -> None:
    server.plan = lambda prompt, attempt: "deep_text"
    (exchange,) = ask(tmp_path, 1)
    assert exchange.status == "ok"
    for parse in (parse_choice, parse_goals, parse_program):
        assert isinstance(parse(exchange.answer or ""), Unparsed)


@pytest.mark.parametrize(
    "text",
    [
        "[" * DEEP,
        "{" * DEEP,
        '{"choice":' * DEEP,
        "[" * DEEP + "]" * DEEP,
        "(" * DEEP + ")" * DEEP,
        "def potential(o, a, v):\n    return " + "(" * 5000 + "0" + ")" * 5000,
        "```python\n" * 20_000,
        "<think>" * 20_000,
        "<choice>" * 20_000,
        "answer is " * 15_000,
        "A > " * 40_000,
        "**" * 90_000,
        " " * 190_000 + "A",
        "- " * 90_000,
        "\u202e" * 100_000,
        "answer:" + " " * 190_000,
        "answer: " + "* " * 90_000 + "A",
        "</think>" * 20_000,
        "x" * 10_000_000,
    ],
    ids=range(19),
)
def test_no_reply_hangs_or_breaks_a_parser(text: str) -> None:
    for parse in (parse_choice, parse_goals, parse_program):
        assert parse(text) is not None


def test_a_kept_reply_with_one_flipped_bit_is_named_and_asked_for_again(
    server: FaultServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    dataset = write_env(tmp_path / "data", "BabyAI-Text-GoToLocal-Pretraining-S20")
    words = ["--cache", "cache", "--llm", "openai:m", "--num", "8"]
    assert cli.run_command(["label", str(dataset), "--out", "one", *words]) == 0
    assert "was changed" not in "".join(capfd.readouterr())
    file = tmp_path / "cache" / "replies.sqlite"
    raw = bytearray(file.read_bytes())
    raw[raw.index(b'"choice": "') + len(b'"choice": "')] ^= 3  # A and B are told apart by two bits
    file.write_bytes(raw)
    assert cli.run_command(["label", str(dataset), "--out", "two", *words]) == 0
    assert "was changed after it was stored; it is asked for again" in "".join(capfd.readouterr())
    assert sorted(server.billed.values()) == [1] * 7 + [2]
    assert (tmp_path / "one/preferences.parquet").read_bytes() == (tmp_path / "two/preferences.parquet").read_bytes()
