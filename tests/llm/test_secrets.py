"""A planted key, through runs that work, fail and go in batches, with every logger at its most talkative: nowhere."""

from __future__ import annotations

import base64
import json
import logging
import traceback
from pathlib import Path
from typing import Any

import pytest

from bkrl.cli import main as cli
from bkrl.core.errors import InputError
from bkrl.core.files import read_table
from bkrl.llm import extras, open_backend
from bkrl.llm.faults import Secrets
from bkrl.llm.protocol import Connection
from bkrl.llm.store import Store
from tests.experience import write_env
from tests.llm.conftest import CANARY
from tests.llm.fault_server import FaultServer


def broken(*arguments: Any) -> None:
    raise KeyError("a bug of our own")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OPENAI_API_KEY", "sk-secret-word\n"),
        ("OPENAI_API_KEY", "sk-secret-word "),
        ("OPENAI_API_KEY", "sk-sécret-word"),
        ("AZURE_OPENAI_API_KEY", "secret-word\r\n"),
        ("OPENAI_ORG_ID", "org-secret "),
    ],
)
def test_a_key_that_no_header_carries_is_named_before_anything_is_sent(
    server: FaultServer, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    """It counted as a lost connection, was tried for minutes, and as possibly billed."""
    if name.startswith("AZURE"):
        monkeypatch.delenv("OPENAI_API_KEY")
        monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", server.url.removesuffix("/v1"))
        monkeypatch.delenv("OPENAI_BASE_URL")
    monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=f"^{name} has a character that no header takes .*; set it anew.$") as told:
        open_backend("openai:m")
    assert "secret" not in str(told.value)
    assert open_backend("openai:m", Connection(asking=False)), "nothing is sent"


def test_a_key_that_is_not_sent_may_be_anything(server: FaultServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", "of another shell\n")
    assert open_backend("openai:m")


def test_a_space_at_the_end_of_a_headers_value_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """No header carries it either."""
    monkeypatch.setenv("GATE", "secret ")
    with pytest.raises(InputError, match="--header X-Gate: the value of its variable has characters that no header"):
        extras.headers("X-Gate=GATE")


@pytest.mark.parametrize("user", [pytest.param("", marks=pytest.mark.slow), "ann:pass%2FCANARY@"])
def test_a_server_that_echoes_every_secret_gets_none_of_them_stored_or_shown(
    server: FaultServer,
    user: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    dataset = write_env(tmp_path / "data", "BabyAI-Text-GoToLocal-Pretraining-S20")
    logging.getLogger("httpx2").setLevel(logging.INFO)
    monkeypatch.setenv("OPENAI_BASE_URL", server.url.replace("//", f"//{user}"))
    monkeypatch.setenv("OPENAI_API_KEY", 'odd/"key"\\CANARY')
    monkeypatch.setenv("GATE", "gate-CANARY-1")
    monkeypatch.chdir(tmp_path)
    scenarios = [("live", "echo", [], 0), ("refused", "echo_400", [], 1), ("down", "echo_402", [], 1)]
    scenarios += [("batch", "echo", ["--batch", "submit"], 0), ("batch", "echo", ["--batch", "collect"], 0)]
    scenarios += [("odd", "echo", ["--batch", "submit"], 0), ("odd", "echo_400", ["--batch", "collect"], 0)]
    scenarios += [("ill", "echo", ["--batch", "submit"], 0), ("ill", "echo", ["--batch", "collect"], 1)]
    for name, habit, extra, code in scenarios:
        server.plan = lambda prompt, attempt, habit=habit: habit  # type: ignore[misc]
        server.desk.ends = "failed" if name == "ill" else "completed"
        words = ["--out", f"{name}/run", "--cache", f"{name}/cache", "--llm", "openai:m", "--num", "8", *extra]
        assert cli.run_command(["label", str(dataset), *words, "--header", "X-Gate=GATE"]) == code, name
    sent = base64.b64encode(b"ann:pass/CANARY").decode() if user else "CANARY"
    assert sent in server.said, "the server was told"
    assert "gate-CANARY-1" in server.said
    said = "".join(capfd.readouterr()) + caplog.text
    assert "[key]" in said
    kept = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    responses = read_table(tmp_path / "live" / "run" / "responses.parquet").to_pylist()
    assert "[key]" in responses[0]["reply"]
    assert "[key]" in responses[0]["model"]
    with Store(tmp_path / "live" / "cache") as store:
        kept += [json.dumps(store.execute("select * from reply")).encode()]
    for content in [*kept, said.encode(), json.dumps(responses).encode()]:
        assert b"CANARY" not in content
        assert sent.encode() not in content


def test_a_piece_of_a_key_is_not_stored_either(
    server: FaultServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "sk-Zq7vB2mXw9Rt4LkP0sYd8HfJ3nGc"
    monkeypatch.setenv("OPENAI_API_KEY", key)
    server.plan = lambda prompt, attempt: "piece"
    monkeypatch.chdir(tmp_path)
    dataset = write_env(tmp_path / "data", "BabyAI-Text-GoToLocal-Pretraining-S20")
    words = ["--out", "run", "--cache", "cache", "--llm", "openai:m", "--num", "8"]
    assert cli.run_command(["label", str(dataset), *words]) == 0
    rows = read_table(tmp_path / "run" / "responses.parquet").to_pylist()
    assert json.loads(rows[0]["reply"])["thoughts"] == "I see [key]."
    assert rows[0]["finish_reason"] == "[key]"
    with Store(tmp_path / "cache") as store:
        content = json.dumps([rows, store.execute("select * from reply")])
    assert not any(key[start : start + 8] in content for start in range(len(key) - 7))


@pytest.mark.parametrize(
    ("secret", "text", "hidden"),
    [
        ("Zq7vB2mXw9Rt4LkP", "say Zq7vB2mX twice: q7vB2mXw9!", "say [key] twice: [key]!"),
        ("Zq7vB2mXw9Rt4LkP", "only Zq7vB2m", "only Zq7vB2m"),
        ("sk-no-key-required", "A key is required.", "A key is required."),
        ("sk-no-key-required", "sk-no-key-required, no-key-req", "[key], [key]"),
        ("qwertzuiopasdfghjklyxcvb", "uiopasdfg", "[key]"),
        ('odd"key"with"quotes', json.dumps('y"with"q'), '"[key]"'),
    ],
)
def test_any_eight_characters_of_a_secret_are_hidden_but_not_a_plain_word(secret: str, text: str, hidden: str) -> None:
    assert Secrets([secret]).hide(text) == hidden
    assert Secrets([secret]).hide_in({"a": [text, 1, None], text: 2}) == {"a": [hidden, 1, None], hidden: 2}


def test_a_planted_key_is_in_no_file_log_traceback_or_manifest(
    server: FaultServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    dataset = write_env(tmp_path / "data", "BabyAI-Text-GoToLocal-Pretraining-S20")
    prices = tmp_path / "prices.toml"
    prices.write_text('[[price]]\nmodel = "m"\ninput = 1000\noutput = 10000\n')
    for logger in ("", "openai", "httpx2", "httpcore2", "httpx", "httpcore", "asyncio"):
        logging.getLogger(logger).setLevel(logging.DEBUG)
    monkeypatch.chdir(tmp_path)
    scenarios: list[tuple[str, str, list[str], int | None]] = [
        ("whole", "ok", [], 0),
        ("refused", "401", [], 1),
        ("poor", "ok", ["--prices", str(prices), "--max-cost", "0.01"], 1),
        ("batch", "ok", ["--batch", "submit"], 0),
        ("batch", "ok", ["--batch", "collect"], 0),
        ("broken", "ok", [], None),
    ]
    said = ""
    for name, habit, extra, code in scenarios:
        server.plan = lambda prompt, attempt, habit=habit: habit  # type: ignore[misc]
        words = ["--out", f"{name}/run", "--cache", f"{name}/cache", "--llm", "openai:m", "--num", "8", *extra]
        if name == "broken":
            monkeypatch.setattr("bkrl.llm.openai.read_completion", broken)
        try:
            assert cli.run_command(["label", str(dataset), *words]) == code
        except KeyError:
            said += traceback.format_exc()
            assert code is None
    said += "".join(capfd.readouterr()) + caplog.text + repr([vars(record) for record in caplog.records])
    assert "a bug of our own" in said
    assert "POST" in said, "the loggers did talk"
    assert "CANARY" not in said
    looked_at = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert {"manifest.json", "config.json", "batches.json", "spending.jsonl", "endpoints.json", "replies.sqlite"} <= {
        file.name for file in looked_at
    }
    for file in looked_at:
        assert b"CANARY" not in file.read_bytes(), file
    assert {headers.get("authorization") for headers in server.headers} == {f"bearer {CANARY.lower()}"}
