"""Label runs in batches: the same tables as at once, nothing submitted twice, whatever is killed or comes back odd."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bkrl.cli.commands.labels import label
from bkrl.core.errors import RunFailed, UsageError
from bkrl.core.files import atomic_write, read_json, read_table
from bkrl.core.reporter import Reporter
from bkrl.labelers.config import LabelConfig
from bkrl.llm import batches, open_backend
from bkrl.llm.batch_api import BatchApi
from bkrl.llm.openai import OpenAIBackend
from bkrl.llm.protocol import Connection, Fault
from bkrl.llm.store import Store
from bkrl.runs.record import Run
from tests.experience import write_env
from tests.llm.fault_server import FaultServer

PRICES = '[[price]]\nmodel = "m"\ninput = 1000\noutput = 10000\nbatch = 0.5\n'
TABLES = ("preferences.parquet", "responses.parquet")


class Told(Reporter):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)

    warn = say


@dataclass
class Desk:
    """A dataset, a server, and the command with its settings."""

    dataset: Path
    folder: Path
    server: FaultServer
    told: Told

    def label(self, batch: str, name: str = "batch", **settings: Any) -> Run | None:
        settings = {"num": 24, "llm": "openai:m", "max_tokens": 50, **settings}
        folder = self.folder / name
        config = LabelConfig(self.dataset, out=folder / "run", cache=folder / "cache", batch=batch, **settings)  # type: ignore[arg-type]
        return label(config, self.told)

    def finished(self, name: str = "batch", **settings: Any) -> Run:
        """Submit and collect, as often as it takes."""
        for _ in range(5):
            self.label("submit", name, **settings)
            try:
                done = self.label("collect", name, **settings)
            except RunFailed:
                continue
            assert done is not None
            return done
        raise AssertionError(self.told.lines)

    def same_as_live(self, done: Run, **settings: Any) -> None:
        live = self.label("off", "live", **settings)
        assert live is not None
        for file in TABLES:
            assert live.file(file).read_bytes() == done.file(file).read_bytes(), file


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_env(tmp_path_factory.mktemp("data") / "babyai", "BabyAI-Text-GoToLocal-Pretraining-S20")


@pytest.fixture
def desk(dataset: Path, tmp_path: Path, server: FaultServer) -> Desk:
    return Desk(dataset, tmp_path, server, Told())


def test_submit_come_back_collect_gives_the_tables_of_a_live_run(desk: Desk) -> None:
    desk.server.desk.polls = 3
    assert desk.label("submit") is None
    assert len(desk.server.requests) == 1, "one request tries an unknown endpoint before thousands are handed in"
    assert desk.label("status") is None
    assert "in_progress" in desk.told.lines[-1]
    with pytest.raises(RunFailed, match="still out"):
        desk.label("collect")
    done = desk.label("collect")
    assert done is not None
    assert done.facts["batches"][0]["status"] == "completed"
    usage, sent = done.facts["usage"], done.facts["batches"][0]["requests"]
    assert (usage["requests"], usage["cached"], usage["sent"]) == (sent + 1, 0, 1), "the run asked for all of them"
    assert f"0 from the store, 1 sent, {sent} in batches" in "".join(desk.told.lines)
    assert set(desk.server.desk.submitted.values()) == {1}
    assert max(desk.server.billed.values()) == 1
    desk.same_as_live(done)
    assert desk.label("collect", "batch") is not None, "complete stays complete"


def test_goals_go_in_batches_and_conversations_do_not(desk: Desk) -> None:
    desk.server.plan = lambda prompt, attempt: "goals"
    done = desk.finished(variant="goal", num=10)
    assert done.facts["quality"]["distinct_goals"] == 2
    with pytest.raises(UsageError, match="conversation"):
        desk.label("submit", "code", variant="code")
    with pytest.raises(UsageError, match="openai:MODEL"):
        desk.label("submit", "rules", llm="rules")


def test_what_is_learnt_of_an_endpoint_is_kept_by_the_effort_of_the_run(desk: Desk) -> None:
    desk.label("off", num=1, effort="low")
    (name,) = read_json(desk.folder / "batch" / "cache" / "endpoints.json")["endpoints"]
    assert name.endswith(" m (effort low)")


def test_closed_questions_bring_their_log_probabilities_in_a_batch_too(desk: Desk) -> None:
    desk.server.plan = lambda prompt, attempt: "top"
    done = desk.finished(num=1, ask="closed", variant="goal")
    sent = [json.loads(line)["body"] for line in desk.server.desk.files["file-1"].splitlines()]
    assert {(body["logprobs"], body["top_logprobs"]) for body in sent} == {(True, 5)}
    assert set(read_table(done.file("choices.parquet"))["exact"].to_pylist()) == {True}


def test_nothing_is_submitted_twice_and_a_live_run_waits_for_the_batch(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.label("submit")
    handed_in = desk.server.desk.submitted.copy()
    read, out = [], batches.Batches.out
    monkeypatch.setattr(batches.Batches, "out", lambda self: read.append(1) or out(self))
    desk.label("submit")
    assert len(read) < 4  # not once for each of 24 questions: a million of them would never be done
    assert "Already submitted" in desk.told.lines[-1]
    assert desk.server.desk.submitted == handed_in
    with pytest.raises(UsageError, match="paid twice"):
        desk.label("off")
    assert desk.label("collect") is not None


def test_a_fresh_start_does_not_forget_what_is_out(desk: Desk) -> None:
    desk.label("submit", num=10)
    for batch in ("submit", "off"):
        with pytest.raises(UsageError, match="paid twice"):
            desk.label(batch, num=10, fresh=True)
    done = desk.label("collect", num=10)
    assert done is not None
    assert max(desk.server.billed.values()) == 1


MOMENTS: list[tuple[str, str]] = [
    ("before", "upload"),
    ("after", "upload"),
    ("before", "create"),
    ("after", "create"),
    ("before", "save"),
]


@pytest.mark.parametrize(
    ("when", "what"),
    [one if one in MOMENTS[3:] else pytest.param(*one, marks=pytest.mark.slow) for one in MOMENTS],
)
def test_a_kill_at_any_moment_of_submitting_loses_nothing_and_pays_nothing_twice(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, when: str, what: str
) -> None:
    class Killed(BaseException):
        pass

    def killing(original: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*arguments: Any) -> Any:
            if when == "before":
                raise Killed
            await original(*arguments)
            raise Killed

        return call

    with monkeypatch.context() as patch:
        if what == "save":

            def write(path: Path, data: Any) -> None:
                if path.name == batches.FILE and "submitted" in data:
                    raise Killed
                atomic_write(path, data)

            patch.setattr("bkrl.llm.batches.atomic_write", write)
        else:
            patch.setattr(f"bkrl.llm.batch_api.BatchApi.{what}", killing(getattr(batches.BatchApi, what)))
        with pytest.raises(Killed):
            desk.label("submit")
    done = desk.finished()
    assert set(desk.server.desk.submitted.values()) == {1}
    assert max(desk.server.billed.values()) == 1
    assert not list((desk.folder / "batch" / "run").glob("batch-*.jsonl")), "no input file is left behind"
    desk.same_as_live(done)


CALLS = ["upload", "create", "list", "retrieve", "content"]
FAULTS = list(zip(["reset_after", "500", "reset_after", "429:0", "429:0"], CALLS, strict=True))
"""One of each call, which the fast run has."""


@pytest.mark.parametrize(
    ("fault", "call"),
    [
        one if one in FAULTS else pytest.param(*one, marks=pytest.mark.slow)
        for one in product(("reset_after", "500", "429:0"), CALLS)
    ],
)
def test_passing_faults_of_the_calls_are_got_over(desk: Desk, call: str, fault: str) -> None:
    desk.server.desk.plan = lambda name, attempt: fault if name == call and attempt == 0 else "ok"
    for _ in range(4):
        try:
            desk.label("submit", num=10)
            done = desk.label("collect", num=10)
        except RunFailed:
            continue
        break
    assert done is not None
    assert set(desk.server.desk.submitted.values()) == {1}


def test_answers_twice_out_of_order_torn_and_of_strangers(desk: Desk) -> None:
    desk.server.desk.messy = True
    done = desk.finished()
    assert any("belong to no request" in line for line in desk.told.lines)
    desk.same_as_live(done)


def test_an_expired_batch_gives_what_it_has_and_the_rest_is_asked_again(desk: Desk) -> None:
    desk.server.desk.ends = "expired"
    desk.server.plan = lambda prompt, attempt: (
        "unanswered"
        if int(prompt[:2], 16) % 3 == 0 and attempt == 0
        else "500"
        if attempt == 0 and prompt[2] == "1"
        else "ok"
    )
    desk.label("submit")
    with pytest.raises(RunFailed, match="still to be asked"):
        desk.label("collect")
    first = desk.server.desk.submitted.total()
    assert any("expired without an answer" in line for line in desk.told.lines)
    desk.server.desk.ends = "completed"
    desk.label("submit")
    assert 0 < desk.server.desk.submitted.total() - first < first, "only what is missing is handed in again"
    done = desk.label("collect")
    assert done is not None
    assert max(desk.server.billed.values()) == 1
    desk.server.plan = lambda prompt, attempt: "ok"
    desk.same_as_live(done)


def test_a_batch_that_fails_as_a_whole_says_why(desk: Desk) -> None:
    desk.server.desk.ends = "failed"
    desk.label("submit")
    with pytest.raises(RunFailed, match="still to be asked"):
        desk.label("collect")
    assert any("line 1 is odd" in line for line in desk.told.lines)
    desk.server.desk.ends = "completed"
    assert desk.finished() is not None


def odd(prompt: str, attempt: int) -> str:
    del attempt
    return ("context", "refusal", "prose", "content_filter", "length", "ok", "ok", "ok")[int(prompt[4], 16) % 8]


def test_hopeless_requests_are_recorded_as_a_live_run_records_them(desk: Desk) -> None:
    desk.server.plan = lambda prompt, attempt: odd(prompt, attempt) if odd(prompt, attempt) == "context" else "ok"
    done = desk.finished(num=60)
    rows = read_table(done.file("responses.parquet")).to_pylist()
    assert {row["reason"] for row in rows if row["status"] == "failed"} == {"context length"}
    desk.same_as_live(done, num=60)


def test_what_cannot_be_read_is_asked_again_in_the_next_batch(desk: Desk) -> None:
    desk.server.plan = lambda prompt, attempt: (
        "prose" if int(prompt[4], 16) % 8 == 2 else "length" if int(prompt[4], 16) % 8 == 4 and attempt == 0 else "ok"
    )
    done = desk.finished()
    assert len(desk.server.desk.batches) >= 2
    assert any(len(json.loads(row["prompt"])) == 4 for row in read_table(done.file("responses.parquet")).to_pylist())
    desk.server.seen.clear()
    desk.same_as_live(done)


def test_refusals_are_recorded_as_a_live_run_records_them_and_not_paid_for_again(desk: Desk) -> None:
    desk.server.plan = lambda prompt, attempt: ("refusal", "content_filter", "ok", "ok")[int(prompt[4], 16) % 4]
    done = desk.finished(num=60)
    assert max(desk.server.billed.values()) == 1
    assert len(desk.server.desk.batches) == 1
    statuses = {row["status"] for row in read_table(done.file("responses.parquet")).to_pylist()}
    assert statuses == {"ok", "refused", "filtered"}
    desk.same_as_live(done, num=60)


def kind(prompt: str) -> int:
    return int(prompt[4], 16) % 4


@pytest.mark.parametrize("stops", [(4,), (4, 11, 20)])
def test_a_stopped_run_asks_what_was_refused_to_it_no_second_time(desk: Desk, stops: tuple[int, ...]) -> None:
    """Refusals were known to one process only: the next one paid for them again, and took what came then."""
    desk.server.plan = lambda prompt, attempt: (
        "ok" if attempt else ("refusal", "content_filter", "ok", "ok")[kind(prompt)]
    )
    for most in stops:
        with pytest.raises(RunFailed, match="--max-requests"):
            desk.label("off", "batch", max_requests=most, concurrency=1)
    done = desk.label("off", "batch", concurrency=1)
    assert done is not None
    assert max(desk.server.billed.values()) == 1
    desk.server.seen.clear()
    desk.same_as_live(done)
    desk.server.plan = lambda prompt, attempt: "ok"
    with Store(desk.folder / "batch" / "cache") as store:
        refused = len(store.execute("select key from rejected"))
    again = LabelConfig(
        desk.dataset,
        out=desk.folder / "again",
        cache=desk.folder / "batch" / "cache",
        num=24,
        llm="openai:m",
        max_tokens=50,
    )
    other = label(again, desk.told)
    assert other is not None
    assert other.facts["usage"]["sent"] == refused > 0, "another run asks again"


def test_a_refusal_is_paid_for_once_by_whichever_way_the_run_goes_on(desk: Desk) -> None:
    """At once, then in a batch, then at once; and the refusals of another run do not stand for answers still due."""
    desk.server.plan = lambda prompt, attempt: "refusal" if kind(prompt) == 0 else "ok"
    assert desk.label("off", "first", concurrency=1) is not None
    refused = {prompt for prompt in desk.server.billed if kind(prompt) == 0}
    desk.server.plan = lambda prompt, attempt: ("refusal", "length", "prose", "ok")[kind(prompt)]
    desk.server.seen.clear()
    desk.server.billed.clear()
    with pytest.raises(RunFailed, match="--max-requests"):
        desk.label("off", max_requests=5, concurrency=1)
    desk.label("submit")
    with pytest.raises(RunFailed, match="still to be asked"):
        desk.label("collect")
    done = desk.label("off")
    assert done is not None
    assert {prompt: desk.server.billed[prompt] for prompt in refused} == dict.fromkeys(refused, 1)
    shared = {"out": desk.folder / "second", "cache": desk.folder / "first" / "cache"}
    config = LabelConfig(desk.dataset, num=24, llm="openai:m", max_tokens=50, batch="submit", **shared)  # type: ignore[arg-type]
    desk.server.desk.polls = 3
    label(config, desk.told)
    with pytest.raises(RunFailed, match="still out"):
        label(replace(config, batch="collect"), desk.told)


def test_a_kill_after_the_replies_came_records_no_refusal_twice(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    def write(path: Path, data: Any) -> None:
        if path.name == batches.FILE and '"collected": true' in data:
            raise Killed
        atomic_write(path, data)

    desk.server.plan = lambda prompt, attempt: ("refusal", "length", "ok", "ok")[int(prompt[4], 16) % 4]
    desk.label("submit", num=40)
    with monkeypatch.context() as patch:
        patch.setattr("bkrl.llm.batches.atomic_write", write)
        with pytest.raises(Killed):
            desk.label("collect", num=40)
    done = desk.finished(num=40)
    with Store(desk.folder / "batch" / "cache") as store:
        rejected = store.execute("select key, status, count(*) from rejected group by key, status")
    assert {status for _, status, _ in rejected} == {"refused", "truncated"}
    assert {count for *_, count in rejected} == {1}
    assert done is not None


@pytest.mark.parametrize("status", ["500_after", pytest.param("502_after", marks=pytest.mark.slow)])
def test_a_batch_whose_creation_answers_with_a_failure_is_not_given_up(desk: Desk, status: str) -> None:
    """The gateway failed, the batch was made, and is not in the list yet."""
    desk.server.desk.plan = lambda call, attempt: status if call == "create" else "ok"
    desk.server.desk.hidden = 1
    with pytest.raises(RunFailed, match="server failed"):
        desk.label("submit", num=10)
    assert batches.out_in(desk.folder / "batch" / "run")
    done = desk.finished(num=10)
    assert set(desk.server.desk.submitted.values()) == {1}
    assert max(desk.server.billed.values()) == 1
    desk.same_as_live(done, num=10)


def test_a_batch_that_cannot_be_looked_up_either_is_not_given_up(desk: Desk) -> None:
    desk.server.desk.plan = lambda call, attempt: {"create": "500_after", "list": "403"}.get(call, "ok")
    with pytest.raises(RunFailed, match="server failed"):
        desk.label("submit", num=10)
    desk.server.desk.plan = lambda call, attempt: "ok"
    desk.finished(num=10)
    assert set(desk.server.desk.submitted.values()) == {1}, "paid once"
    assert max(desk.server.billed.values()) == 1


def test_a_batch_that_was_lost_is_found_behind_hundreds_of_newer_ones(desk: Desk) -> None:
    desk.server.desk.plan = lambda call, attempt: "500_after" if call == "create" else "ok"
    desk.server.desk.hidden = 1
    with pytest.raises(RunFailed, match="server failed"):
        desk.label("submit", num=10)
    desk.server.desk.batches.update({name: {"id": name, "metadata": None} for name in map(str, range(250))})
    desk.finished(num=10)
    assert set(desk.server.desk.submitted.values()) == {1}
    assert desk.server.desk.calls["list"] == 4


def test_what_is_out_is_not_tried_live_with_another_cache(desk: Desk) -> None:
    desk.label("submit", num=10)
    first = desk.server.billed.copy()
    (desk.folder / "batch" / "cache" / "endpoints.json").unlink()
    desk.label("submit", num=10)
    assert desk.server.billed == first


def test_a_kill_before_the_batch_is_noted_leaves_no_money_set_aside(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    prices = desk.folder / "prices.toml"
    prices.write_text(PRICES)

    def write(path: Path, data: Any) -> None:
        if path.name == batches.FILE:
            raise Killed
        atomic_write(path, data)

    with monkeypatch.context() as patch:
        patch.setattr("bkrl.llm.batches.atomic_write", write)
        with pytest.raises(Killed):
            desk.label("submit", prices=prices, num=10)
    done = desk.finished(prices=prices, num=10, max_cost=30.0)
    assert done.facts["usage"]["possibly_spent_usd"] == 0
    spending = (desk.folder / "batch" / "run" / "spending.jsonl").read_text().split()
    assert sum('"send"' in line for line in spending) == sum('"end"' in line for line in spending)


@pytest.mark.parametrize("call", ["upload", "create"])
def test_a_batch_that_was_never_started_leaves_the_limit_on_requests_as_it_was(desk: Desk, call: str) -> None:
    desk.server.desk.plan = lambda called, attempt: "400" if called == call and attempt == 0 else "ok"
    limited = {"num": 10, "max_requests": 12}
    with pytest.raises(RunFailed, match="status 400"):
        desk.label("submit", **limited)
    done = desk.finished(**limited)
    assert done.facts["usage"]["sent"] == 1, "batches are counted apart"
    assert desk.server.billed.total() <= 12


def test_a_file_that_stops_coming_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bkrl.llm.batch_api.TRANSFER_SECONDS", 0.05)
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")

    class Stalled:
        async def __aenter__(self) -> Stalled:
            return self

        async def __aexit__(self, *_: object) -> None:
            return None

        async def iter_bytes(self, size: int) -> AsyncIterator[bytes]:
            yield b'{"custom_id": "one"}\n'
            await asyncio.Event().wait()

    async def read() -> None:
        backend = open_backend("openai:m", Connection())
        assert isinstance(backend, OpenAIBackend)
        content = SimpleNamespace(content=lambda file_id: Stalled())
        monkeypatch.setattr(
            backend, "client", lambda: SimpleNamespace(files=SimpleNamespace(with_streaming_response=content))
        )
        lines = BatchApi(backend).lines("f")
        assert await anext(lines) == {"custom_id": "one"}
        await anext(lines)

    with pytest.raises(Fault, match="no answer within") as fault:
        asyncio.run(asyncio.wait_for(read(), 30))
    assert fault.value.billed


def test_half_the_price_is_reckoned_and_the_limit_holds(desk: Desk) -> None:
    prices = desk.folder / "prices.toml"
    prices.write_text(PRICES)
    done = desk.finished(prices=prices)
    usage, asked = done.facts["usage"], desk.server.billed.total()
    assert usage["spent_usd"] == pytest.approx(0.2 + (asked - 1) * 0.1), "the first one was asked at once"
    assert usage["cost_usd"] == usage["spent_usd"]
    costs = {round(row["cost_usd"], 6) for row in read_table(done.file("responses.parquet")).to_pylist()}
    assert costs == {0.1, 0.2}
    with pytest.raises(RunFailed, match="max-cost"):
        desk.label("submit", "poor", prices=prices, max_cost=1.0, seed=2)
    before = desk.server.desk.submitted.total()
    desk.label("submit", "some", prices=prices, max_cost=12.0, seed=3)
    assert "do not fit" in "".join(desk.told.lines[-2:])
    assert 0 < desk.server.desk.submitted.total() - before < 39
    desk.label("submit", "few", max_requests=11, seed=4)
    assert desk.server.desk.submitted.total() - before < 60


def test_answers_of_a_batch_that_are_lost_count_as_possibly_paid(desk: Desk) -> None:
    prices = desk.folder / "prices.toml"
    prices.write_text(PRICES)
    empty = set()

    def plan(prompt: str, attempt: int) -> str:
        if attempt == 0 and int(prompt[:2], 16) % 3 == 0:
            empty.add(prompt)
            return "null_content"
        return "ok"

    desk.server.plan = plan
    usage = desk.finished(prices=prices).facts["usage"]
    assert len(empty) > 2
    assert usage["possibly_spent_usd"] > 2.0 * len(empty), "each at the most that it can cost"


def test_an_endpoint_without_batches_says_so(desk: Desk) -> None:
    desk.server.desk.plan = lambda call, attempt: "404"
    with pytest.raises(RunFailed, match="no Batch API"):
        desk.label("submit")
    assert not batches.out_in(desk.folder / "batch" / "run")
    (known,) = read_json(desk.folder / "batch" / "cache" / "endpoints.json")["endpoints"].values()
    assert known["batch"] is False
    assert desk.label("off") is not None


def test_a_batch_that_the_endpoint_does_not_know_is_not_given_up(desk: Desk) -> None:
    desk.label("submit")
    known = desk.server.desk.batches.copy()
    desk.server.desk.batches.clear()
    for step in ("status", "collect"):
        with pytest.raises(RunFailed, match="does not know batch_1"):
            desk.label(step)
    desk.label("submit")
    assert "Already submitted" in desk.told.lines[-1]
    desk.server.desk.batches.update(known)
    assert desk.label("collect") is not None


@pytest.mark.parametrize(("version", "path"), [("", "/v1/chat/completions"), ("2024-10-21", "/chat/completions")])
def test_both_interfaces_of_azure_take_batches(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, version: str, path: str
) -> None:
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", f"http://127.0.0.1:{desk.server.port}")
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", "azure-key")
    monkeypatch.setenv("OPENAI_API_VERSION", version)
    assert desk.finished(num=6) is not None
    assert desk.server.desk.batches["batch_1"]["endpoint"] == path


def test_large_runs_are_cut_into_several_files(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "MOST_REQUESTS", 8)
    done = desk.finished()
    assert sorted(len(text.splitlines()) for text in list(desk.server.desk.files.values())[:3])[-1] == 8
    assert len(done.facts["batches"]) >= 3
    monkeypatch.setattr(batches, "MOST_BYTES", 20_000)
    desk.finished("small", seed=5)
    inputs = [desk.server.desk.files[batch["input_file_id"]] for batch in desk.server.desk.batches.values()]
    assert all(len(text) <= 20_000 for text in inputs[len(done.facts["batches"]) :])


def test_a_schema_refused_inside_a_batch_is_put_otherwise_next_time(desk: Desk) -> None:
    desk.label("submit", "known")  # the endpoint is known from now on, and then changes its mind
    endpoints = desk.folder / "known" / "cache" / "endpoints.json"
    assert read_json(endpoints)["endpoints"]
    desk.server.plan = lambda prompt, attempt: "no_schema"
    done = desk.finished("known")
    forms = {row["answered_as"] for row in read_table(done.file("responses.parquet")).to_pylist()}
    assert "json_object" in forms


def test_the_key_is_nowhere(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    desk.server.desk.plan = lambda call, attempt: "401" if attempt == 0 else "ok"
    for step in ("submit", "submit", "status", "status", "collect", "collect"):
        try:
            desk.label(step)
        except RunFailed as error:
            desk.told.lines += [str(error), repr(error.__cause__), repr(error.__context__)]
    assert "CANARY" not in "".join(desk.told.lines) + "".join(capsys.readouterr())
    for file in desk.folder.rglob("*"):
        assert not file.is_file() or b"CANARY" not in file.read_bytes(), file


def test_what_is_out_in_a_batch_of_another_run_is_not_paid_for_again(desk: Desk) -> None:
    """Handed in, or asked live; only with the other's answers, or without the other's batch, the run goes on."""
    again = LabelConfig(
        desk.dataset,
        num=24,
        llm="openai:m",
        max_tokens=50,
        out=desk.folder / "again",
        cache=desk.folder / "batch" / "cache",
    )
    desk.label("submit")
    label(replace(again, batch="submit"), desk.told)
    assert f"requests are out with a batch of {desk.folder / 'batch' / 'run'}" in desk.told.lines[-1]
    assert max(desk.server.desk.submitted.values()) == 1
    live = replace(again, out=desk.folder / "live")
    with pytest.raises(RunFailed, match="out with a batch of"):
        label(live, desk.told)
    desk.label("collect")
    label(live, desk.told)
    done = label(replace(again, batch="collect"), desk.told)
    assert done is not None
    assert max(desk.server.billed.values()) == 1
    assert not list((desk.folder / "batch" / "cache" / "alive").iterdir()), "nothing is out"


@pytest.mark.parametrize("call", ["upload", "create"])
def test_a_batch_that_was_never_started_keeps_no_question_from_other_runs(desk: Desk, call: str) -> None:
    desk.server.desk.plan = lambda called, attempt: "400" if called == call else "ok"
    with pytest.raises(RunFailed):
        desk.label("submit", num=10)
    with Store(desk.folder / "batch" / "cache") as store:
        assert not any(map(store.elsewhere, [key for (key,) in store.execute("select key from attempt")]))
