"""The store: what was paid for once is found for ever, by several processes, through kills."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bkrl.core.errors import InputError, RunFailed
from bkrl.core.reporter import Reporter
from bkrl.llm.protocol import Message, Reply, Request, request_key
from bkrl.llm.store import SignsOfLife, Store
from tests.llm.looking import stored

WHO = {"kind": "openai", "host": "h", "model": "m"}
QUESTION = Request((Message("user", "hello"),), {"type": "object"}, 0.5, 100, None, 0)


def test_a_key_is_stable_for_ever() -> None:
    """A change here throws away every cache in the world."""
    assert request_key(WHO, QUESTION) == "78687b65b429b2124f12bcf2ec4a8fa62479949b50e7e4a204963c5e19cc8dd9"
    assert request_key(dict(reversed(WHO.items())), QUESTION) == request_key(WHO, QUESTION)


def test_a_sign_of_life_is_shown_though_another_process_sweeps_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "alive" / "gone"
    monkeypatch.setattr(Path, "iterdir", lambda folder: iter([gone]))
    signs = SignsOfLife(tmp_path / "alive")
    signs.show("me")
    assert signs.who("me")
    signs.close()
    assert not signs.who("me")


def test_a_key_changes_with_exactly_what_changes_the_answer() -> None:
    others = [
        request_key({**WHO, "model": "n"}, QUESTION),
        request_key({**WHO, "host": "g"}, QUESTION),
        request_key(WHO, replace(QUESTION, messages=(Message("system", "hello"),))),
        request_key(WHO, replace(QUESTION, messages=(Message("user", "hello "),))),
        request_key(WHO, replace(QUESTION, messages=(Message("user", "hel"), Message("user", "lo")))),
        request_key(WHO, replace(QUESTION, schema=None)),
        request_key(WHO, replace(QUESTION, temperature=0.4)),
        request_key(WHO, replace(QUESTION, max_tokens=99)),
        request_key(WHO, replace(QUESTION, reasoning_effort="low")),
        request_key(WHO, replace(QUESTION, sample=1)),
    ]
    assert len({*others, request_key(WHO, QUESTION)}) == len(others) + 1
    assert request_key(WHO, replace(QUESTION, temperature=0.5)) == request_key(WHO, QUESTION)


def test_the_first_good_reply_wins_and_bad_ones_are_never_read(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        for status in ("refused", "filtered", "truncated"):
            store.put("k", Reply("bad", status))
            assert store.get("k") is None
        assert store.rejected("k", "truncated") == Reply("bad", "truncated")
        assert store.put("k", Reply("good", prompt_tokens=3)).text == "good"
        assert store.put("k", Reply("later")).text == "good"
    with Store(tmp_path) as store:
        assert store.get("k") == Reply("good", prompt_tokens=3)
        assert [stored(store, table) for table in ("reply", "rejected", "attempt")] == [1, 3, 0]


def test_interrupted_sends_of_other_processes_are_counted(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.begin("mine")
        done = store.begin("done")
        assert done is not None
        store.end(done, "answered")
        assert store.interrupted({"mine", "done"}) == 0, "it is still at it"
    with Store(tmp_path) as store:
        assert store.interrupted({"mine", "done"}) == 1
        assert store.interrupted({"other"}) == 0


def test_what_a_living_process_asks_is_not_asked_by_another(tmp_path: Path) -> None:
    with Store(tmp_path) as mine, Store(tmp_path) as other:
        attempt = mine.begin("k")
        assert attempt is not None
        assert other.elsewhere("k")
        assert other.begin("k") is None
        assert other.interrupted({"k"}) == 0
        mine.end(attempt, "status 500")
        assert not other.elsewhere("k")
        assert other.begin("k") is not None
        assert mine.begin("k") is None
        other.put("k", Reply("cut", "truncated"))
    with Store(tmp_path) as later:
        assert not later.elsewhere("k"), "it has ended"
        assert later.interrupted({"k"}) == 1
        assert later.begin("k") is None, "an answer that was cut off would be again"


WRITER = """
import sys
from pathlib import Path
from bkrl.llm.protocol import Reply
from bkrl.llm.store import Store
with Store(Path(sys.argv[1])) as store:
    for number in range(100_000):
        attempt = store.begin(f"k{number}")
        store.put(f"k{number}", Reply(f"{number} from {sys.argv[2]} " + "x" * 500))
        store.end(attempt, "answered")
        print(number, flush=True)
"""


def test_kill_9_at_any_moment_loses_nothing_that_was_put(tmp_path: Path) -> None:
    said = -1
    for round_ in range(4):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), str(round_)], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        for _ in range(20 + 37 * round_):
            said = max(said, int(writer.stdout.readline()))
        os.kill(writer.pid, signal.SIGKILL)
        said = max([said, *(int(line) for line in writer.stdout.read().split("\n")[:-1] if line)])
        writer.wait()
        with Store(tmp_path) as store:
            assert store._db.execute("pragma integrity_check").fetchone() == ("ok",)
            assert all(store.get(f"k{number}") is not None for number in range(said + 1))
            first = store.get("k0")
            assert first is not None
            assert first.text.startswith("0 from 0")
            assert store.interrupted({f"k{number}" for number in range(said + 2)}) <= round_ + 1


def test_several_processes_write_at_once_and_read_the_same(tmp_path: Path) -> None:
    script = WRITER.replace("100_000", "300").replace("print(number, flush=True)", "pass")
    writers = [subprocess.Popen([sys.executable, "-c", script, str(tmp_path), str(name)]) for name in range(3)]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    with Store(tmp_path) as store:
        assert stored(store) == 300


def test_a_damaged_store_is_named(tmp_path: Path) -> None:
    (tmp_path / "replies.sqlite").write_bytes(b"this is no database, whatever its name says" * 100)
    with pytest.raises(InputError, match="damaged"):
        Store(tmp_path)


class Told(Reporter):
    """Keeps what it is warned of."""

    def __init__(self) -> None:
        self.warned: list[str] = []

    def warn(self, text: str) -> None:
        self.warned.append(text)


@pytest.mark.parametrize("mask", [1, 128])  # 128: no UTF-8 any more
@pytest.mark.parametrize("status", ["ok", "truncated"])
def test_a_reply_that_was_changed_is_named_and_makes_room_for_another(tmp_path: Path, status: Any, mask: int) -> None:
    with Store(tmp_path) as store:
        store.put("key", Reply("the first is better", status))
        store.put("other", Reply("the second is better"))
    raw = bytearray((tmp_path / "replies.sqlite").read_bytes())
    raw[raw.index(b"the first") + 4] ^= mask
    (tmp_path / "replies.sqlite").write_bytes(raw)
    told = Told()
    with Store(tmp_path, told) as store:
        assert store.known("key") is None
        assert store.known("key") is None
        (sentence,) = told.warned
        assert "The kept reply key" in sentence
        assert "asked for again" in sentence
        assert store.lost == 1
        assert store.get("other") == Reply("the second is better")
        assert store.begin("key") is not None
        assert store.put("key", Reply("the second is better")) == store.known("key") == Reply("the second is better")


def test_a_store_without_hashes_gets_them(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.put("a", Reply("good", prompt_tokens=3))
        store.put("b", Reply("bad", "truncated"))
    with sqlite3.connect(tmp_path / "replies.sqlite") as db:
        hashes = [db.execute(f"select hash from {table}").fetchall() for table in ("reply", "rejected")]
        db.execute("alter table reply drop column hash")
        db.execute("alter table rejected drop column hash")
        db.execute("pragma user_version = 2")
    with Store(tmp_path) as store:
        assert store.get("a") == Reply("good", prompt_tokens=3)
        assert store.known("b") == Reply("bad", "truncated")
        assert [store.execute(f"select hash from {table}") for table in ("reply", "rejected")] == hashes
        assert store.lost == 0


def test_a_reply_that_came_and_is_gone_is_named_when_it_is_asked_for_again(tmp_path: Path) -> None:
    told = Told()
    with Store(tmp_path, told) as store:
        for key, status in (("a", "ok"), ("b", "refused")):
            store.end(store.begin(key) or 0, "answered")
            store.put(key, Reply("x", status))  # type: ignore[arg-type]
        store.execute("delete from reply where key = 'a'")
        assert store.begin("b")
        assert not told.warned
        assert store.begin("a")
        assert "The reply a came, and is not in the store" in told.warned[0]


@pytest.mark.parametrize("places", [8, pytest.param(24, marks=pytest.mark.slow)])
def test_a_flipped_write_ahead_log_loses_no_reply_without_a_word(tmp_path: Path, places: int) -> None:
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), "0"], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    for _ in range(12):
        writer.stdout.readline()
    writer.kill()
    writer.wait()
    files = {end: (tmp_path / f"replies.sqlite{end}").read_bytes() for end in ("", "-wal")}

    def opened(log: bytes) -> tuple[int, list[str]]:
        folder, told = tmp_path / "copy", Told()
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / "replies.sqlite").write_bytes(files[""])
        (folder / "replies.sqlite-wal").write_bytes(log)
        with Store(folder, told) as store:
            return stored(store), told.warned

    log = files["-wal"]
    whole, warned = opened(log)
    assert whole >= 12
    assert not warned
    for cut in (len(log) - 1, len(log) - 5000):  # as a kill leaves it
        opened(log[:cut])
    lost = 0
    for place in (1, 9, 17, 25, *np.random.default_rng(0).integers(32, len(log) - 5 * 4120, places).tolist()):
        flipped = bytearray(log)
        flipped[place] ^= 4
        count, warned = opened(bytes(flipped))
        lost += whole - count
        assert count == whole or ["is damaged" in one for one in warned] == [True], place
    assert lost > 40 * places / 24


def test_a_full_disk_is_one_sentence_and_loses_nothing(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.put("kept", Reply("x"))
        pages = store.execute("pragma page_count")[0][0]
        store.execute(f"pragma max_page_count = {pages + 2}")
        with pytest.raises(RunFailed, match="The disk is full: .* free some space and run again"):
            store.put("more", Reply("x" * 100_000))
        assert (store.get("kept"), store.get("more")) == (Reply("x"), None)


def test_a_store_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    Store(tmp_path).close()
    with sqlite3.connect(tmp_path / "replies.sqlite") as db:
        db.execute("pragma user_version = 99")
    with pytest.raises(InputError, match="newer"):
        Store(tmp_path)


def test_a_cache_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("hello")
    with pytest.raises(InputError, match="--cache"):
        Store(tmp_path / "cache")
