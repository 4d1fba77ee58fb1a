"""The store as a whole: what it says of itself."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
import zlib
from pathlib import Path

import pytest

from bkrl.cli.main import run_command
from bkrl.llm import archive, open_backend
from bkrl.llm.policy import AskPolicy
from bkrl.llm.protocol import Message, Reply, Request, request_content, request_key
from bkrl.llm.session import AskSession
from bkrl.llm.store import Store
from tests.llm.fault_server import FaultServer

WHO = {"kind": "openai", "host": "h.example", "model": "m"}


def put(store: Store, number: int, reply: Reply, who: dict[str, str] = WHO) -> None:
    request = Request((Message("user", f"question {number} \ud83d\ude00 é"),), None, 0.5, sample=number)
    store.put(request_key(who, request), reply, request_content(who, request))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Three good replies of two models, one of them free of tokens; a refused and a truncated one."""
    with Store(tmp_path / "cache") as store:
        put(store, 0, Reply("yes", prompt_tokens=1_000_000, completion_tokens=0, cached_tokens=0))
        put(store, 1, Reply("no", model="m-2026"))
        put(store, 2, Reply("grün", tier="batch", prompt_tokens=500_000, completion_tokens=0), {**WHO, "model": "n"})
        put(store, 3, Reply("never", "refused"))
        put(store, 4, Reply("cut o", "truncated"))
    return store


def cache(store: Store) -> Path:
    return store.path.parent


def test_what_was_asked_is_kept_with_the_answer_and_is_what_the_key_is_made_of(
    server: FaultServer, tmp_path: Path
) -> None:
    request = Request((Message("user", "hello"),), None, 0.5, 100)
    with Store(tmp_path) as store, AskSession(open_backend("openai:m"), store, AskPolicy()) as session:
        (exchange,) = session.ask([request])
        ((key, content),) = store.execute("select key, content from question")
    question = zlib.decompress(content)
    assert hashlib.sha256(question).hexdigest() == exchange.key == key
    assert json.loads(question)["messages"] == [["user", "hello"]]


def test_the_summary_counts_replies_bytes_and_money(store: Store, tmp_path: Path) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text("".join(f'[[price]]\nmodel = "{name}"\ninput = 2.0\noutput = 8.0\n' for name in "mn"))
    with archive.existing(cache(store)) as reopened:
        attempt = reopened.begin("k")
        reopened.end(attempt, "busy")
        facts = archive.summary(reopened, prices)
    assert facts["replies"] == 5
    assert facts["sends"] == {"busy": 1}
    assert facts["bytes"] > 4096
    found = {(group["model"], group["status"]): group for group in facts["groups"]}
    assert found["m", "ok"]["replies"] == 2
    assert found["m", "ok"]["usd"] is None, "one of the two came without tokens"
    assert found["n", "ok"]["usd"] == pytest.approx(1.0)
    assert found["m", "ok"]["endpoint"] == "openai:h.example"
    assert found["m", "ok"]["first"] in {time.strftime("%Y-%m-%d", time.gmtime(time.time() - s)) for s in (0, 60)}
    assert found["n", "ok"]["bytes"] == len("grün".encode())


def test_a_store_is_looked_at_on_the_command_line(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--cache", str(cache(store))]
    assert run_command(["cache", "info", *where, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["replies"] == 5
    assert run_command(["cache", "info", *where]) == 0
    assert "h.example" in capsys.readouterr().out
    assert run_command(["cache", "info", "--cache", str(tmp_path / "nowhere")]) == 3
    assert not (tmp_path / "nowhere").exists()


def test_a_store_of_an_earlier_version_is_brought_up_to_date(store: Store) -> None:
    with sqlite3.connect(store.path) as connection:
        for table in ("reply", "rejected"):
            for column in ("cached_tokens", "tier", "hash"):
                connection.execute(f"alter table {table} drop column {column}")
        connection.execute("pragma user_version = 1")
    connection.close()
    with archive.existing(cache(store)) as shown:
        assert archive.summary(shown)["replies"] == 5
