"""What an endpoint accepts is found out once, remembered for the next process, and never trusted blindly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bkrl.core.errors import RunFailed
from bkrl.core.reporter import Reporter
from bkrl.labelers.answers import CHOICE_SCHEMA, GOALS_SCHEMA
from bkrl.llm import open_backend
from bkrl.llm.capabilities import FILE, Capabilities, Memory, follows
from bkrl.llm.openai import OpenAIBackend, Refused
from bkrl.llm.protocol import Connection, Exchange, Fault, Message, Request
from bkrl.llm.session import AskSession
from bkrl.llm.store import Store
from tests.llm.fault_server import QUICK, FaultServer


def ask(
    folder: Path, start: int = 0, count: int = 3, effort: str | None = None, model: str = "m", **asked: Any
) -> list[Exchange]:
    """What one process would ask: a backend of its own, the store and the memory in `folder`."""
    backend = open_backend(f"openai:{model}", Connection(folder, effort=effort or "default"))
    with Store(folder) as store, AskSession(backend, store, QUICK, Reporter()) as asker:
        asked = {"schema": CHOICE_SCHEMA, "reasoning_effort": effort} | asked
        return asker.ask([Request((Message("user", f"JSON {n}"),), **asked) for n in range(start, start + count)])


def remembered(folder: Path) -> Capabilities:
    ((_, entry),) = json.loads((folder / FILE).read_text())["endpoints"].items()
    return Capabilities(**entry)


@pytest.mark.parametrize(
    "habit", ["ok", "no_schema", "no_format", "no_max_tokens", "no_temperature", "no_extras", "picky"]
)
def test_a_second_process_asks_rightly_at_once(server: FaultServer, tmp_path: Path, habit: str) -> None:
    server.plan = lambda prompt, attempt: habit
    ask(tmp_path, effort="low")
    first = len(server.requests)
    exchanges = ask(tmp_path, start=10, effort="low")
    assert all(exchange.status == "ok" for exchange in exchanges)
    assert len(server.requests) == first + 3, "nothing is found out twice"
    known = remembered(tmp_path)
    assert known.accepted
    assert known.temperature is (habit not in ("no_temperature", "picky"))
    assert known.seed is (habit != "no_extras")
    assert known.reasoning_effort is (habit != "no_extras")
    assert known.form == {"no_schema": "json_object", "no_format": "text", "picky": "text"}.get(habit, "json_schema")
    assert known.limit_field == ("max_completion_tokens" if habit in ("no_max_tokens", "picky") else "max_tokens")


def test_logprobs_are_asked_for_once_only_to_know(server: FaultServer, tmp_path: Path) -> None:
    ask(tmp_path)
    assert [body.get("logprobs") for body in server.requests] == [True, None, None]
    assert remembered(tmp_path).logprobs is False, "accepted, and not given"


@pytest.mark.parametrize("first", [True, False])
def test_a_refusal_says_nothing_of_log_probabilities(server: FaultServer, tmp_path: Path, first: bool) -> None:
    """Filtered answers have none; all questions after one were asked for words alone, once for each vote."""
    server.plan = lambda prompt, attempt: "content_filter" if (len(server.requests) == 1) is first else "top"
    asks = [Request((Message("user", f"Yes or No? {n}"),), choices=("Yes", "No")) for n in range(2)]
    with Store(tmp_path) as store, AskSession(open_backend("openai:m", Connection(tmp_path)), store, QUICK) as asker:
        told = [asker.ask([one])[0] for one in asks]
    assert [one.status for one in told] == (["filtered", "ok"] if first else ["ok", "filtered"])
    assert remembered(tmp_path).logprobs is True


def test_what_one_effort_takes_away_others_still_have(server: FaultServer, tmp_path: Path) -> None:
    """One run without --effort none, and every later one with it was given words in the place of log-probabilities."""
    closed: dict[str, Any] = {"schema": None, "choices": ("Yes", "No")}
    server.plan = lambda prompt, attempt: "top" if server.requests[-1].get("reasoning_effort") == "none" else "no_top"
    assert {one.answer for one in ask(tmp_path, **closed)} == {"Yes"}
    assert all("logprobs" in str(one.answer) for one in ask(tmp_path, effort="none", **closed))
    count = len(server.requests)
    ask(tmp_path, start=10, **closed)
    ask(tmp_path, start=10, effort="none", **closed)
    assert len(server.requests) == count + 6, "both are remembered"
    names = json.loads((tmp_path / FILE).read_text())["endpoints"]
    assert sorted(name.partition(" ")[2] for name in names) == ["m", "m (effort none)"]


def test_a_schema_that_is_accepted_and_ignored_is_known_as_such(server: FaultServer, tmp_path: Path) -> None:
    ask(tmp_path)
    assert remembered(tmp_path).schema_followed is True
    server.plan = lambda prompt, attempt: "prose"
    ask(tmp_path, start=10)
    assert remembered(tmp_path).schema_followed is False
    server.plan = lambda prompt, attempt: "ok"
    ask(tmp_path, start=20)
    assert remembered(tmp_path).schema_followed is False, "one answer beside the schema is enough"
    assert "not followed" in open_backend("openai:m", Connection(tmp_path)).facts()["schema"]


def test_a_field_is_refused_by_its_whole_name_only(server: FaultServer, tmp_path: Path) -> None:
    backend = open_backend("openai:m", Connection(tmp_path, body={"min": 1}))
    assert isinstance(backend, OpenAIBackend)
    backend.capabilities.accepted = True
    sent = {"logprobs": True, "seed": 0, "max_tokens": 9}
    words = "unsupported parameter 'top_logprobs'; see the list of seeds that an administrator allows"
    fault = Fault("item", "bad request")
    assert backend.adapted(Refused(fault, words), sent) is fault, "neither logprobs, seed nor min is named"
    assert backend.capabilities.logprobs is not False
    assert isinstance(told := backend.adapted(Refused(fault, "unsupported: 'logprobs'."), sent), Fault)
    assert told.kind == "again"
    assert backend.capabilities.logprobs is False
    with pytest.raises(Fault, match="does not accept 'min' of --body"):
        backend.adapted(Refused(fault, "unknown field min"), sent)


@pytest.mark.parametrize(
    ("complaint", "field"),
    [
        ("Invalid max_tokens value, the valid range of max_tokens is [1, 8192]", "limit_field"),
        ("max_tokens is too large: 100000. This model supports at most 16384 completion tokens.", "limit_field"),
        (
            "Invalid 'temperature': decimal above maximum value. Expected a value <= 2, but got 3 instead.",
            "temperature",
        ),
        ("temperature must be between 0 and 1", "temperature"),
    ],
)
def test_a_value_outside_the_range_does_not_make_its_field_unknown(
    server: FaultServer, tmp_path: Path, complaint: str, field: str
) -> None:
    backend = open_backend("openai:m", Connection(tmp_path))
    assert isinstance(backend, OpenAIBackend)
    before = vars(backend.capabilities)[field]
    body = {"error": {"message": complaint, "type": "invalid_request_error"}}
    refused = backend.refusal(400, body, {})
    assert isinstance(refused, Refused)
    told = backend.adapted(refused, {"max_tokens": 100_000, "temperature": 3.0})
    assert isinstance(told, Fault)
    assert (told.kind, vars(backend.capabilities)[field]) == ("item", before), "else it bounds nothing from now on"
    assert complaint[:40] in str(told)
    if field == "temperature":
        assert isinstance(told := backend.adapted(refused, {"max_tokens": 9, "temperature": 0.0}), Fault)
        assert (told.kind, backend.capabilities.temperature) == ("again", False), "no request could be sent otherwise"


def test_votes_have_seeds_of_their_own(server: FaultServer, tmp_path: Path) -> None:
    with Store(tmp_path) as store, AskSession(open_backend("openai:m"), store, QUICK, Reporter()) as asker:
        asks = [Request((Message("user", "x"),), sample=sample) for sample in range(3)]
        asker.ask(asks)
    assert sorted(body["seed"] for body in server.requests) == [0, 1, 2]


def test_an_endpoint_that_takes_no_limit_is_left_alone(server: FaultServer, tmp_path: Path) -> None:
    server.plan = lambda prompt, attempt: "no_limits"
    with pytest.raises(RunFailed, match="refuses every limit"):
        ask(tmp_path)
    assert not server.billed


def test_endpoints_are_told_apart_by_port_and_model(
    server: FaultServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(tmp_path)
    with FaultServer(lambda prompt, attempt: "picky") as other:
        monkeypatch.setenv("OPENAI_BASE_URL", other.url.replace("http://", "http://user:CANARY-word@"))
        ask(tmp_path, start=10)
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    ask(tmp_path, start=20, model="n")
    document = (tmp_path / FILE).read_text()
    assert len(json.loads(document)["endpoints"]) == 3
    assert "CANARY" not in document


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"endpoints": 3}', b'{"endpoints": {"e": {"form": "x"}}}', b"\xff"]
)
def test_a_damaged_memory_is_an_empty_one(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    memory, default = Memory(tmp_path), Capabilities(limit_field="max_completion_tokens")
    assert memory.recall("e", default) == default
    memory.keep("e", Capabilities(accepted=True))
    assert memory.recall("e", default).accepted


def test_answers_are_held_against_the_schema() -> None:
    for text in ('{"thoughts": "t", "choice": "A"}', ' {"choice": "tie", "thoughts": ""}\n'):
        assert follows(text, CHOICE_SCHEMA)
    wrong = ('{"choice": "A"}', '{"thoughts": "t", "choice": "C"}', '{"thoughts": 1, "choice": "A"}', "A", "[]", "{")
    for text in (*wrong, '{"thoughts": "t", "choice": "A", "more": 1}', "```json\n{}\n```", "[" * 100_000):
        assert not follows(text, CHOICE_SCHEMA)
    assert follows('{"goals": ["a", "b"]}', GOALS_SCHEMA)
    assert not follows('{"goals": ["a", 3]}', GOALS_SCHEMA)


@pytest.mark.parametrize("version", ["", "2024-10-21"])
def test_both_interfaces_of_azure_are_found_and_remembered(
    server: FaultServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", f"http://127.0.0.1:{server.port}")
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", "azure-key")
    monkeypatch.setenv("OPENAI_API_VERSION", version)
    assert all(exchange.status == "ok" for exchange in ask(tmp_path))
    address = server.addresses[-1]
    assert ("/openai/deployments/m/" in address and "api-version=2024-10-21" in address) == bool(version)
    assert address.startswith("/openai/v1/") == (not version)
    assert remembered(tmp_path).limit_field == "max_completion_tokens"
