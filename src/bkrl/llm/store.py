"""The store: every reply ever paid for, found again by what was asked.

One SQLite file (`replies.sqlite`) in the cache folder. A reply is committed before anyone sees it, so a process
killed at any moment loses at most what was in flight. Several processes may use one store: while one of them waits for
an answer the others do not ask the same, the first reply to a question wins and all of them read that one. The
write-ahead log keeps readers and writers apart; it needs a local disk, not a network folder.

Four tables: `reply` holds good answers, one for each key; `rejected` keeps refusals, filtered and truncated answers
for the record and is never read back as a good one; `question` holds what each key stands for, so that replies can be
sorted by who gave them; `attempt` notes every send before it happens, so that what
was interrupted, and may have been billed without an answer, can be counted.

Replies carry a hash, which is checked when they are read. One that was changed, and one that came and is not there any
more, is named and asked for again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import sqlite3
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from bkrl.core.errors import InputError, RunFailed
from bkrl.core.files import atomic_write, lock, locked
from bkrl.core.reporter import Reporter
from bkrl.llm.budget import is_batch
from bkrl.llm.protocol import REFUSED, Reply

FILE = "replies.sqlite"
STORE_VERSION = 3
PROCESS = "another process"
_STALE_SECONDS = 3600.0
_LOG_HEADER, _FRAME_HEADER = 32, 24
"""Bytes in SQLite's write-ahead log: https://www.sqlite.org/fileformat.html#walformat"""
_COLUMNS = (
    "text, status, format, model, finish_reason, prompt_tokens, completion_tokens, reasoning_tokens, "
    "cached_tokens, tier"
)
_ATTEMPT = "insert into attempt(key, process, outcome) values (?, ?, 'in flight')"
_TABLES = f"""
create table if not exists reply(key text primary key, text text not null, status text not null, format text not null,
  model text not null, finish_reason text not null, prompt_tokens integer, completion_tokens integer,
  reasoning_tokens integer, created integer not null, cached_tokens integer, tier text not null default 'default',
  hash text not null default '') strict;
create table if not exists rejected(id integer primary key, key text not null, text text not null, status text not null,
  format text not null, model text not null, finish_reason text not null, prompt_tokens integer, completion_tokens
  integer, reasoning_tokens integer, created integer not null, cached_tokens integer,
  tier text not null default 'default', hash text not null default '') strict;
create table if not exists question(key text primary key, kind text not null, host text not null, model text not null,
  content blob not null) strict;
create table if not exists attempt(id integer primary key, key text not null, process text not null,
  outcome text not null) strict;
create index if not exists rejected_key on rejected(key);
create index if not exists attempt_key on attempt(key) where outcome = 'in flight';
create index if not exists attempt_answered on attempt(key) where outcome = 'answered';
pragma user_version = {STORE_VERSION};
"""


class Store:
    """Replies by key. Use as a context manager, from one thread at a time; open another Store for another at once.

    Args:
        folder: of the store; made if it is missing.
        reporter: what hears of replies that were lost or damaged; `lost` counts them in any case.

    Raises InputError when the folder cannot be used or the file is damaged, RunFailed when the disk is full.
    """

    def __init__(self, folder: Path, reporter: Reporter | None = None) -> None:
        self.path = folder / FILE
        self.reporter, self.lost = reporter or Reporter(), 0
        self._damaged: set[str] = set()
        # Not the process number: that comes again, in containers as a rule.
        self._process = secrets.token_hex(8)
        self._signs = SignsOfLife(folder / "alive")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"The cache folder {folder} cannot be made ({error.strerror}); choose another with --cache."
            ) from None
        self._db = self._connect()
        with self._explained():
            version = self._db.execute("pragma user_version").fetchone()[0]
            if version > STORE_VERSION:
                raise InputError(
                    f"The reply store {self.path} was written by a newer bkrl (version {version}); update bkrl."
                )
            self._check_log()
            self._db.execute("pragma journal_mode = wal")
            self._db.execute("pragma synchronous = normal")
            if version < STORE_VERSION:
                self._upgrade()

    def get(self, key: str) -> Reply | None:
        """The good reply under `key`, or None."""
        return self._whole(key, self.execute(f"select {_COLUMNS}, hash from reply where key = ?", (key,)))

    def put(self, key: str, reply: Reply, question: str = "") -> Reply:
        """Record a reply and return the one that now counts: for a good reply the first ever stored under `key`.

        `question` is the request's content (`protocol.request_content`).
        """
        given = (
            *(reply.text, reply.status, reply.format, reply.model, reply.finish_reason),
            *(reply.prompt_tokens, reply.completion_tokens, reply.reasoning_tokens, reply.cached_tokens, reply.tier),
        )
        row = (key, *given, _hash(key, given), int(time.time()))
        table = "reply" if reply.status == "ok" else "rejected"
        with self.transaction():
            if question:
                who = json.loads(question)["endpoint"]
                described = (key, who.get("kind", ""), who.get("host", ""), who.get("model", ""))
                packed = zlib.compress(question.encode("ascii"), 1)
                self._db.execute("insert or ignore into question values (?, ?, ?, ?, ?)", (*described, packed))
            if table == "reply" and self.get(key) is None:
                self._db.execute("delete from reply where key = ?", (key,))  # a damaged one
            self._db.execute(
                f"insert or ignore into {table}(key, {_COLUMNS}, hash, created) values ({','.join('?' * len(row))})",
                row,
            )
        if reply.status != "ok":
            return reply
        kept = self.get(key)
        return reply if kept is None else kept

    def known(self, key: str) -> Reply | None:
        """What need not be asked for: the good reply, or one that was cut off by its token limit and would be again."""
        return self.get(key) or self.rejected(key, "truncated")

    def rejected(self, key: str, status: str) -> Reply | None:
        """The first answer that was recorded with this status and is no good one, or None."""
        wanted = f"select {_COLUMNS}, hash from rejected where key = ? and status = ? order by id"
        return self._whole(key, self.execute(wanted, (key, status)))

    def refusal(self, key: str) -> Reply | None:
        """The latest answer that was refused or filtered, or None."""
        wanted = f"select {_COLUMNS}, hash from rejected where key = ? and status in (?, ?) order by id desc"
        return self._whole(key, self.execute(wanted, (key, *REFUSED)))

    def begin(self, key: str) -> int | None:
        """Note that a request is about to be sent; returns the attempt's number. None when it must not be sent: it was
        answered meanwhile, or another process waits for its answer.
        """
        self._signs.show(self._process)
        with self.transaction():
            if self.known(key) is not None or self.elsewhere(key):
                return None
            self._name_if_lost(key)
            cursor = self._db.execute(_ATTEMPT, (key, self._process))
        return int(cursor.lastrowid or 0)

    def hand_in(self, keys: Sequence[str], batch: str, folder: Path) -> bool:
        """Note that questions go into a run's batch. False, and nothing is noted, where somebody else waits for one."""
        with self.transaction():
            if any(map(self.elsewhere, keys)):
                return False
            self._signs.hand_in(batch, folder)
            self._db.executemany(_ATTEMPT, [(key, batch) for key in keys])
        return True

    def come_back(self, batch: str) -> None:
        """A batch was fetched, or never started: nobody waits for it."""
        self.execute("update attempt set outcome = 'came back' where process = ? and outcome = 'in flight'", (batch,))
        self._signs.come_back(batch)

    def elsewhere(self, key: str) -> str:
        """Who else waits for the answer: PROCESS, "a batch of FOLDER", where a run's batch is out, or ""."""
        wanted = "select process from attempt where key = ? and outcome = 'in flight' and process <> ?"
        return next(filter(None, (self._signs.who(one) for (one,) in self.execute(wanted, (key, self._process)))), "")

    def end(self, attempt: int, outcome: str) -> None:
        """Note how the attempt went (`answered`, or a fault's reason)."""
        with self._explained():
            self._db.execute("update attempt set outcome = ? where id = ?", (outcome, attempt))

    def interrupted(self, keys: Iterable[str]) -> int:
        """How many sends for these keys, by processes that are gone, never ended: each may have been billed."""
        wanted = set(keys)
        with self._explained():
            rows = self._db.execute(
                "select key, process from attempt where outcome = 'in flight' and process <> ?", (self._process,)
            ).fetchall()
        alive = {process: self._signs.who(process) for process in {process for _, process in rows}}
        return sum(key in wanted and not alive[process] for key, process in rows)

    def execute(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """One SQL statement and its rows, errors explained."""
        with self._explained():
            return self._db.execute(statement, tuple(values)).fetchall()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """What is written inside the block is kept together or not at all."""
        with self._explained():
            self._db.execute("begin immediate")
            try:
                yield
            except BaseException:
                if self._db.in_transaction:  # SQLite has rolled back by itself where the disk is full
                    self._db.execute("rollback")
                raise
            self._db.execute("commit")

    def close(self) -> None:
        self._db.close()
        self._signs.close()

    def _connect(self) -> sqlite3.Connection:
        try:
            db = sqlite3.connect(self.path, timeout=60.0, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise InputError(
                f"The reply store {self.path} cannot be opened ({error}); choose another with --cache."
            ) from None
        db.text_factory = lambda raw: raw.decode("utf-8", "replace")  # damaged text must be read to be named
        return db

    def _upgrade(self) -> None:
        """Make the tables, or bring those of an earlier version up to date; another process may do the same."""
        with self.transaction():
            version = self._db.execute("pragma user_version").fetchone()[0]
            if version == 1:
                for table in ("reply", "rejected"):
                    self._db.execute(f"alter table {table} add column cached_tokens integer")
                    self._db.execute(f"alter table {table} add column tier text not null default 'default'")
            for table in ("reply", "rejected") if version in (1, 2) else ():
                self._db.execute(f"alter table {table} add column hash text not null default ''")
                rows = self._db.execute(f"select rowid, key, {_COLUMNS} from {table}")
                hashed = ((_hash(key, row), number) for number, key, *row in rows.fetchall())
                self._db.executemany(f"update {table} set hash = ? where rowid = ?", hashed)
            for statement in _TABLES.split(";\n"):
                self._db.execute(statement)

    def _whole(self, key: str, rows: Iterable[Sequence[Any]]) -> Reply | None:
        """The first reply that is as it was stored. Rows of an earlier bkrl, at work beside this one, have no hash."""
        for *row, digest in rows:
            if digest in ("", _hash(key, row)):
                return Reply(*row)
            if key not in self._damaged:
                self._damaged.add(key)
                self._lose(f"The kept reply {key[:12]} ({row[0][:40]!r}) was changed after it was stored")
        return None

    def _name_if_lost(self, key: str) -> None:
        """Say so where an answer came that is not there."""
        came = "exists(select 1 from attempt where key = :key and outcome = 'answered')"
        there = " or ".join(f"exists(select 1 from {table} where key = :key)" for table in ("reply", "rejected"))
        if self._db.execute(f"select {came} and not ({there})", {"key": key}).fetchone()[0]:
            self._lose(f"The reply {key[:12]} came, and is not in the store")

    def _lose(self, sentence: str) -> None:
        self.lost += 1
        self.reporter.warn(f"{sentence}; it is asked for again ({self.path}).")

    def _check_log(self) -> None:
        """Say so where SQLite leaves out transactions of the write-ahead log that were committed: those behind a frame
        that was changed. A frame that a kill cut off was not committed.
        """
        for _ in range(3):  # another process at work may be just between two states
            if not self._log_is_cut():
                return
            time.sleep(0.05)
        self.lost += 1
        self.reporter.warn(
            f"The write-ahead log of {self.path} is damaged: the replies that came last, before its process was "
            "killed, may be lost; they are asked for again."
        )

    def _log_is_cut(self) -> bool:
        file = Path(f"{self.path}-wal")
        raw = file.read_bytes() if file.exists() else b""
        _, taken, _ = self._db.execute("pragma wal_checkpoint(passive)").fetchone()
        size = _FRAME_HEADER + self._db.execute("pragma page_size").fetchone()[0]
        heads = [raw[at : at + _FRAME_HEADER] for at in range(_LOG_HEADER, len(raw) - size + 1, size)]
        current = [head[8:16] == raw[16:24] for head in heads]  # others are left from before the last checkpoint
        left_out = zip(heads[max(0, taken) :], current[max(0, taken) :], strict=True)
        headless = taken == 0 and len(raw) >= _LOG_HEADER + size and not any(current)
        return headless or any(now and head[4:8] != bytes(4) for head, now in left_out)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            text = str(error)
            if "full" in text:
                raise RunFailed(f"The disk is full: {self.path} cannot grow; free some space and run again.") from None
            if "readonly" in text or "unable to open" in text:
                raise InputError(
                    f"The reply store {self.path} cannot be written; choose another folder with --cache."
                ) from None
            if "locked" in text:
                raise RunFailed(f"The reply store {self.path} stayed locked for a minute by another process.") from None
            raise InputError(f"The reply store {self.path} is damaged ({text}); move it away and run again.") from None


def _hash(key: str, row: Sequence[object]) -> str:
    """Of a reply's columns, under its key."""
    return hashlib.sha256(json.dumps([key, *row]).encode()).hexdigest()[:16]


class SignsOfLife:
    """A folder with a locked file for each living process: the system lets go of a lock however its process ends. Where
    files cannot be locked no process counts as alive.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._own: IO[bytes] | None = None

    def show(self, name: str) -> None:
        """Be alive under this name until `close`, or the end of the process."""
        if self._own is not None:
            return
        with contextlib.suppress(OSError):
            self._folder.mkdir(exist_ok=True)
            self._sweep()
            self._own = (self._folder / name).open("wb")
            lock(self._own)

    def hand_in(self, batch: str, folder: Path) -> None:
        """A batch lives by itself until it comes back. Its file holds the folder of the run that sent it."""
        self._folder.mkdir(exist_ok=True)
        atomic_write(self._folder / batch, os.fsencode(folder.absolute()))

    def come_back(self, batch: str) -> None:
        (self._folder / batch).unlink(missing_ok=True)

    def who(self, name: str) -> str:
        """Who lives under a name; see `Store.elsewhere`."""
        if not is_batch(name):
            return PROCESS if locked(self._folder / name) else ""
        with contextlib.suppress(FileNotFoundError):
            return f"a batch of {os.fsdecode((self._folder / name).read_bytes())}"
        return ""

    def close(self) -> None:
        if self._own is not None:
            self._own.close()
            Path(self._own.name).unlink(missing_ok=True)
            self._own = None

    def _sweep(self) -> None:
        """Remove what killed processes have left; young files may be about to be locked."""
        for file in self._folder.iterdir():
            with contextlib.suppress(FileNotFoundError):  # another process sweeps, too
                if time.time() - file.stat().st_mtime > _STALE_SECONDS and not self.who(file.name):
                    file.unlink()
