"""The store as a whole: what it says of itself, what can be removed, and a file that carries it elsewhere."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bkrl.cli.main import run_command
from bkrl.core.errors import InputError, UsageError
from bkrl.core.reporter import Reporter
from bkrl.llm import archive, open_backend
from bkrl.llm.ask import AskPolicy
from bkrl.llm.protocol import Message, Reply, Request, canonical, request_content, request_key
from bkrl.llm.session import AskSession
from bkrl.llm.store import Store
from tests.llm.fault_server import FaultServer

WHO = {"kind": "openai", "host": "h.example", "model": "m"}
DAY = 86_400


def put(store: Store, number: int, reply: Reply, who: dict[str, str] = WHO, created: int = 10 * DAY) -> str:
    request = Request((Message("user", f"question {number} \ud83d\ude00 é"),), None, 0.5, sample=number)
    content = request_content(who, request)
    store.put(request_key(who, request), reply, content, created)
    return request_key(who, request)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Three good replies of two models, one of them free of tokens; a refused and a truncated one."""
    with Store(tmp_path / "cache") as store:
        put(store, 0, Reply("yes", prompt_tokens=1_000_000, completion_tokens=0, cached_tokens=0))
        put(store, 1, Reply("no", model="m-2026"), created=20 * DAY)
        put(store, 2, Reply("grün", tier="batch"), {**WHO, "model": "n"})
        put(store, 3, Reply("never", "refused"))
        put(store, 4, Reply("cut o", "truncated"))
    return store


def cache(store: Store) -> Path:
    return store.path.parent


def test_what_was_asked_is_kept_with_the_answer_and_is_what_the_key_is_made_of(
    server: FaultServer, tmp_path: Path
) -> None:
    request = Request((Message("user", "hello"),), None, 0.5, 100)
    with Store(tmp_path) as store, AskSession(open_backend("openai:m"), store, AskPolicy(), Reporter()) as asker:
        (exchange,) = asker.ask([request])
        question = store.question(exchange.key)
        assert question is not None
        assert hashlib.sha256(question.encode()).hexdigest() == exchange.key
        assert json.loads(question)["messages"] == [["user", "hello"]]
        assert store.keys() == [exchange.key]
        assert store.question("unknown") is None


def test_the_summary_counts_replies_bytes_and_money(store: Store, tmp_path: Path) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text('[[price]]\nmodel = "m"\ninput = 2.0\noutput = 8.0\n')
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
    assert found["m", "ok"]["endpoint"] == "openai:h.example"
    assert (found["m", "ok"]["first"], found["m", "ok"]["last"]) == ("1970-01-11", "1970-01-21")
    assert found["n", "ok"]["bytes"] == len("grün".encode())
    with archive.existing(cache(store)) as reopened:
        archive.prune(reopened, model="m-2026", older_than_days=None, statuses=(), really=True)
        facts = archive.summary(reopened, prices)
    assert {(g["model"], g["status"]): g["usd"] for g in facts["groups"]}["m", "ok"] == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("conditions", "left"),
    [
        ({"statuses": ("refused",)}, 4),
        ({"statuses": ("refused", "truncated")}, 3),
        ({"model": "n"}, 4),
        ({"model": "m-2026"}, 4),
        ({"model": "m", "statuses": ("ok",)}, 3),
        ({"older_than_days": 1.0}, 0),
        ({"older_than_days": 1e6}, 5),
    ],
)
def test_pruning_says_first_what_it_would_do_and_then_does_that(store: Store, conditions: dict, left: int) -> None:  # type: ignore[type-arg]
    wanted = {"model": None, "older_than_days": None, "statuses": (), **conditions}
    with archive.existing(cache(store)) as reopened:
        would = archive.prune(reopened, **wanted, really=False)
        assert archive.summary(reopened)["replies"] == 5
        assert archive.prune(reopened, **wanted, really=True) == would
        assert archive.summary(reopened)["replies"] == left == 5 - sum(row[2] for row in would)
        assert reopened.execute("select count(*) from question") == [(left,)], "no question without a reply"
        with pytest.raises(UsageError, match="--older-than"):
            archive.prune(reopened, model=None, older_than_days=None, statuses=(), really=True)


def test_an_exported_file_fills_another_store_once(store: Store, tmp_path: Path) -> None:
    file, again = tmp_path / "replies.jsonl", tmp_path / "again.jsonl"
    with archive.existing(cache(store)) as reopened:
        assert archive.export(reopened, file) == (5, 0)
        reopened.put("an old key", Reply("of version 1"))
        assert archive.export(reopened, again) == (5, 1)
    assert file.read_bytes() == again.read_bytes()
    with Store(tmp_path / "other") as other:
        assert archive.load(other, file) == archive.Imported(5, 0, 0, False)
        assert archive.load(other, file) == archive.Imported(0, 5, 0, False)
        assert archive.export(other, again) == (5, 0)
        assert file.read_bytes() == again.read_bytes(), "nothing is lost on the way"
        key = put(other, 9, Reply("mine"))
    with Store(tmp_path / "third") as third:
        put(third, 9, Reply("theirs"))
        archive.export(third, file)
    with Store(tmp_path / "other") as other:
        assert archive.load(other, file) == archive.Imported(0, 0, 1, False)
        kept = other.get(key)
        assert kept is not None
        assert kept.text == "mine"


def test_a_torn_last_line_is_left_out_and_any_other_damage_stops_everything(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "replies.jsonl"
    with archive.existing(cache(store)) as reopened:
        archive.export(reopened, file)
    whole = file.read_bytes()
    lines = whole.splitlines(keepends=True)
    file.write_bytes(whole[: -len(lines[-1]) // 2])
    with Store(tmp_path / "torn") as other:
        assert archive.load(other, file) == archive.Imported(4, 0, 0, True)
    spoilt = {
        "line 2: this is not JSON": [lines[0], b"{}}\n", *lines[1:]],
        "line 3: the key does not belong": [*lines[:2], lines[2].replace(b"question ", b"Question "), *lines[3:]],
        "line 1: reply.status": [lines[0].replace(b'"status":"', b'"status":"x'), *lines[1:]],
        "reply.prompt_tokens": [line.replace(b'"prompt_tokens":null', b'"prompt_tokens":"9"') for line in lines],
        "line 1: it has no 'hello'": [b'{"hello": 1}\n', *lines],
        "holds no replies": [b"[" * 100_000],
        "cannot be read": [],
    }
    for match, content in spoilt.items():
        file.write_bytes(b"".join(content)) if content else file.unlink()
        with Store(tmp_path / "spoilt") as other:
            with pytest.raises(InputError, match=match):
                archive.load(other, file)
            assert archive.summary(other)["replies"] == 0, "nothing was taken"


@pytest.mark.parametrize(
    ("where", "name", "value", "match"),
    [
        ("", "created", 10**30, "created"),
        ("", "created", -(10**18), "created"),
        ("", "created", True, "created"),
        ("reply", "prompt_tokens", 10**30, "prompt_tokens"),
        ("reply", "completion_tokens", -5, "completion_tokens"),
        ("reply", "text", "\ud800", "cannot be kept"),
        ("reply", "model", "\ud800", "cannot be kept"),
        ("question", "endpoint", {"kind": "openai", "host": "\ud800", "model": "m"}, "question.endpoint"),
        ("question", "endpoint", {"kind": "openai", "host": "h", "model": ["m"]}, "question.endpoint"),
        ("question", "messages", None, "question.messages"),
        ("question", "messages", [["user"]], "question.messages"),
        ("question", "sample", "0", "sample"),
    ],
    ids=range(12),
)
def test_a_file_made_to_break_the_store_is_refused_whole(
    tmp_path: Path, where: str, name: str, value: Any, match: str
) -> None:
    question = json.loads(
        request_content({"kind": "openai", "host": "h", "model": "m"}, Request((Message("user", "x"),)))
    )
    record = {"question": question, "reply": {"text": "A", "status": "ok"}, "created": 1}
    odd = json.loads(json.dumps(record))
    (odd[where] if where else odd)[name] = value
    file = tmp_path / "odd.jsonl"
    with file.open("w") as lines:
        for one in (record, odd):
            key = hashlib.sha256(canonical(one["question"]).encode("ascii")).hexdigest()
            lines.write(json.dumps({"key": key, **one}) + "\n")
    with Store(tmp_path / "store") as other:
        with pytest.raises(InputError, match=f"line 2: .*{match}"):
            archive.load(other, file)
        assert archive.summary(other)["replies"] == 0


def test_an_exported_file_can_be_replayed(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "replies.jsonl"
    with archive.existing(cache(store)) as reopened:
        put(reopened, 4, Reply("whole"))
        archive.export(reopened, file, model="m")
        archive.export(reopened, tmp_path / "both.jsonl")
        with pytest.raises(InputError, match="no replies of nobody"):
            archive.export(reopened, tmp_path / "none.jsonl", model="nobody")
    asker = AskSession(open_backend(f"replay:{file}"))
    first = Request((Message("user", "question 0 \ud83d\ude00 é"),), None, 0.5, sample=0)
    texts = {0: "yes", 1: "no", 4: "whole"}
    for number, text in texts.items():
        wanted = replace(first, messages=(Message("user", f"question {number} \ud83d\ude00 é"),), sample=number)
        (exchange,) = asker.ask([wanted])
        assert exchange.answer == text
    with pytest.raises(InputError, match="replies of m, n"):
        open_backend(f"replay:{tmp_path / 'both.jsonl'}")


def test_the_commands(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where, file = ["--cache", str(cache(store))], str(tmp_path / "r.jsonl")
    assert run_command(["cache", "info", *where, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["replies"] == 5
    assert run_command(["cache", "info", *where]) == 0
    assert "h.example" in capsys.readouterr().out
    assert run_command(["cache", "prune", *where]) == 2
    assert run_command(["cache", "prune", *where, "--status", "refuse"]) == 2
    for days in ("inf", "1e300"):
        assert run_command(["cache", "prune", *where, "--older-than", days]) == 0
    assert "truncated, filtered, refused" in capsys.readouterr().err
    assert run_command(["cache", "prune", *where, "--status", "refused"]) == 0
    assert "Nothing has been removed" in capsys.readouterr().out
    assert run_command(["cache", "export", file, *where]) == 0
    assert run_command(["cache", "prune", *where, "--status", "refused", "--yes"]) == 0
    capsys.readouterr()
    assert run_command(["cache", "prune", *where, "--status", "refused", "--yes"]) == 0
    assert "nothing to remove" in capsys.readouterr().out
    assert run_command(["cache", "import", file, *where]) == 0
    assert "1 replies added, 4 were known" in capsys.readouterr().out
    assert run_command(["cache", "info", "--cache", str(tmp_path / "nowhere")]) == 3
    assert not (tmp_path / "nowhere").exists()


def test_processes_that_export_prune_and_write_at_once_disturb_nobody(store: Store, tmp_path: Path) -> None:
    write = (
        "import sys\nfrom pathlib import Path\nfrom bkrl.llm.store import Store\n"
        "from tests.llm.test_archive import put, Reply\n"
        "with Store(Path(sys.argv[1])) as store:\n"
        "    for number in range(100, 400):\n        put(store, number, Reply('x' * 200))\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", write, str(cache(store))]) for _ in range(2)]
    with archive.existing(cache(store)) as reopened:
        while any(writer.poll() is None for writer in writers):
            archive.export(reopened, tmp_path / "now.jsonl")
            records, torn = archive.read(tmp_path / "now.jsonl")
            assert len(records) >= 3
            assert not torn
            archive.prune(reopened, model=None, older_than_days=None, statuses=("refused",), really=True)
        assert [writer.returncode for writer in writers] == [0, 0]
        assert archive.summary(reopened)["replies"] == 304


@contextmanager
def only_readable(folder: Path) -> Iterator[Path]:
    """A copy of a folder in which the one who looks may write nothing."""
    place = Path(tempfile.mkdtemp())  # below tmp_path nobody else may look
    copy = Path(shutil.copytree(folder, place / "cache"))
    for path in (place, copy, *copy.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    identity = os.geteuid()
    if identity == 0:
        os.seteuid(65534)
    else:
        copy.chmod(0o555)
    try:
        yield copy
    finally:
        os.seteuid(identity)
        copy.chmod(0o755)
        shutil.rmtree(place)


def test_who_may_only_read_a_store_can_look_at_it_and_export_it(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with only_readable(cache(store)) as folder:
        assert run_command(["cache", "info", "--cache", str(folder), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["replies"] == 5
        with archive.existing(folder, reading=True) as shown:
            assert len(shown.keys()) == 3
            with pytest.raises(InputError, match="cannot be written"):
                put(shown, 9, Reply("no"))
        with pytest.raises(InputError, match="cannot be written"):
            Store(folder)
    connection = sqlite3.connect(store.path)
    connection.execute("delete from reply")
    connection.commit()  # and left open: what was deleted is in the log alone
    with only_readable(cache(store)) as folder:
        (code,) = {run_command(["cache", "info", "--cache", str(folder)])}
        assert (code, "copy the folder" in capsys.readouterr().err) in ((3, True), (0, False))
    connection.close()


def test_a_store_of_an_earlier_version_that_is_only_read_is_brought_up_to_date(store: Store) -> None:
    with sqlite3.connect(store.path) as connection:
        for table in ("reply", "rejected"):
            for column in ("cached_tokens", "tier"):
                connection.execute(f"alter table {table} drop column {column}")
        connection.execute("pragma user_version = 1")
    connection.close()
    with archive.existing(cache(store), reading=True) as shown:
        assert archive.summary(shown)["replies"] == 5


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        ("folder", "name a file that `bkrl cache export` wrote"),
        ("cache", "write its replies into a file with `bkrl cache export FILE --cache"),
        ("empty", "holds no replies; name a file that"),
        ("blank", "holds no replies; name a file that"),
    ],
)
def test_what_cannot_be_imported_is_told_what_to_do_and_makes_no_store(
    made: str, sentence: str, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = cache(store) if made == "cache" else tmp_path / made
    if made == "folder":
        source.mkdir()
    elif made != "cache":
        source.write_text("" if made == "empty" else "\n\n")
    assert run_command(["cache", "import", str(source), "--cache", str(tmp_path / "new")]) == 3
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
