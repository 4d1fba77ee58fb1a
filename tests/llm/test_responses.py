"""The Responses API brings what chat completions bring: answers, log-probabilities, faults, what is learnt, batches."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from bkrl.core.errors import RunFailed, UsageError
from bkrl.core.reporter import Reporter
from bkrl.labelers.answers import CHOICE_SCHEMA
from bkrl.llm import extras, open_backend
from bkrl.llm.capabilities import FILE
from bkrl.llm.protocol import Connection, Exchange, Message, Request
from bkrl.llm.responses import completion_of
from bkrl.llm.session import AskSession
from bkrl.llm.store import Store
from tests.llm.fault_server import QUICK, FaultServer, answer_to
from tests.llm.test_batches import TABLES, Desk, dataset, desk  # noqa: F401 - fixtures

HABITS = ("ok", "details", "thinking", "no_schema", "no_format", "no_temperature", "no_extras", "surrogate")


def ask(folder: Path, api: Any = "responses", effort: str | None = None, **request: Any) -> list[Exchange]:
    connection = Connection(folder, api=api)
    with Store(folder) as store, AskSession(open_backend("openai:m", connection), store, QUICK, Reporter()) as asker:
        schema = None if "choices" in request else CHOICE_SCHEMA
        texts = [(Message("system", "Compare."), Message("user", f"pair {number}")) for number in range(3)]
        return asker.ask([Request(text, schema, reasoning_effort=effort, **request) for text in texts])


def known(folder: Path, name: str = "responses") -> dict[str, Any]:
    entries = json.loads((folder / FILE).read_text())["endpoints"]
    return next(entry for key, entry in entries.items() if (name in key) == (name == "responses"))


@pytest.mark.parametrize(
    "habit", [pytest.param(one, marks=pytest.mark.slow) if one in ("details", "no_format") else one for one in HABITS]
)
def test_both_apis_bring_the_same(server: FaultServer, tmp_path: Path, habit: str) -> None:
    server.plan = lambda prompt, attempt: habit
    both = [ask(tmp_path / api, api, "low") for api in ("chat", "responses")]
    assert {address.rpartition("/v1")[2] for address in server.addresses} == {"/chat/completions", "/responses"}
    for chat, response in zip(*both, strict=True):
        assert chat.status == response.status == "ok"
        assert chat.reply is not None
        # The Responses API always says how many tokens were read from a cache or thought in.
        counted = {name: getattr(chat.reply, name) or 0 for name in ("cached_tokens", "reasoning_tokens")}
        assert replace(chat.reply, **counted) == response.reply
    learnt = [known(tmp_path / "chat", "chat"), known(tmp_path / "responses")]
    for name in ("form", "schema_followed", "temperature", "reasoning_effort", "logprobs"):
        assert learnt[0][name] == learnt[1][name], name
    count = len(server.requests)
    ask(tmp_path / "responses", "responses", "low", sample=1)
    assert len(server.requests) == count + 3, "nothing is found out twice"
    assert not {"seed", "messages", "max_tokens", "response_format"} & server.requests[-1].keys()


def test_the_stand_in_and_the_requests_are_of_the_sdks_own_types(server: FaultServer, tmp_path: Path) -> None:
    from openai.types.responses import Response
    from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming

    ask(tmp_path, effort="low")
    ask(tmp_path, choices=("yes", "no"))
    for request in server.requests:
        TypeAdapter(ResponseCreateParamsNonStreaming).validate_python(request)
        for does in ("ok", "details", "thinking", "length", "content_filter", "refusal", "top"):
            Response.model_validate(answer_to(request, "0" * 8, does))


@pytest.mark.parametrize(
    ("does", "status"), [("length", "truncated"), ("content_filter", "filtered"), ("refusal", "refused")]
)
def test_an_answer_that_is_none_is_recorded_as_such(
    server: FaultServer, tmp_path: Path, does: str, status: str
) -> None:
    server.plan = lambda prompt, attempt: does
    assert {exchange.status for exchange in ask(tmp_path)} == {status}


@pytest.mark.parametrize(
    "fault", ["500", "429:0", "reset_mid", "truncated_json", "empty_choices", "null_content", "error_in_200", "deep"]
)
def test_a_passing_fault_is_retried(server: FaultServer, tmp_path: Path, fault: str) -> None:
    server.plan = lambda prompt, attempt: fault if attempt == 0 else "ok"
    assert {exchange.status for exchange in ask(tmp_path)} == {"ok"}


@pytest.mark.parametrize(
    "body", [{"status": "failed", "error": {"code": "server_error"}}, {"status": "queued"}, None, []]
)
def test_a_response_that_is_not_done_is_no_completion(body: Any) -> None:
    assert completion_of(body) == body
    assert not completion_of({"status": "completed", "output": "x", "usage": 3})["choices"]


def test_log_probabilities_are_the_answer_where_they_are_offered(server: FaultServer, tmp_path: Path) -> None:
    server.plan = lambda prompt, attempt: "top"
    both = [ask(tmp_path / api, api, choices=("yes", "no")) for api in ("chat", "responses")]
    assert both[0][0].answer == both[1][0].answer
    assert "logprobs" in str(both[1][0].answer)
    assert server.requests[-1]["include"] == ["message.output_text.logprobs"]
    assert server.requests[-1]["top_logprobs"] == 5
    server.plan = lambda prompt, attempt: "no_top"
    assert {exchange.answer for exchange in ask(tmp_path / "none", choices=("yes", "no"))} == {"Yes"}
    assert known(tmp_path / "none")["logprobs"] is False


def test_replies_of_the_two_apis_are_kept_apart(server: FaultServer, tmp_path: Path) -> None:
    first, second = ask(tmp_path, "chat"), ask(tmp_path, "responses")
    assert not {exchange.key for exchange in first} & {exchange.key for exchange in second}
    assert len(server.requests) == 6
    assert all(exchange.cached for exchange in ask(tmp_path, "responses"))


def test_an_endpoint_without_it_is_named_in_one_sentence(server: FaultServer, tmp_path: Path) -> None:
    server.plan = lambda prompt, attempt: "no_api"
    with pytest.raises(RunFailed, match="The address has no such API; check OPENAI_BASE_URL \\(and --api\\)"):
        ask(tmp_path)
    assert len(server.requests) == 1


def test_fields_that_are_filled_in_cannot_be_set() -> None:
    with pytest.raises(UsageError, match="'reasoning' beside --api responses, .*; --effort changes it"):
        extras.body('{"reasoning": {"effort": "high"}}', "responses")
    assert extras.body('{"reasoning": {"effort": "high"}}') == {"reasoning": {"effort": "high"}}


def test_a_batch_of_responses_has_the_tables_of_a_live_run(desk: Desk) -> None:  # noqa: F811
    desk.server.plan = lambda prompt, attempt: "no_schema"
    done = desk.finished(api="responses")
    assert {batch["endpoint"] for batch in desk.server.desk.batches.values()} == {"/v1/responses"}
    desk.same_as_live(done, api="responses")
    assert all(done.file(table).stat().st_size for table in TABLES)
