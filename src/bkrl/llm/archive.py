"""The store as a whole: what is in it, what may go, and a file to share it with others.

The file has one JSON object a line: `key`, `question` (the content that the key is the hash of), `reply`, `created`.
Nothing in it depends on a machine, and the same replies give the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, TypedDict, get_args

from bkrl.core.documents import typed
from bkrl.core.errors import InputError, UsageError
from bkrl.core.files import atomic_write
from bkrl.core.flags import Flag
from bkrl.core.lines import read_lines
from bkrl.llm.prices import find_price
from bkrl.llm.protocol import MAX_REPLY_CHARS, Reply, ReplyStatus, canonical, cleaned
from bkrl.llm.store import FILE, Store

STATUSES: tuple[str, ...] = get_args(ReplyStatus)
_REPLY = tuple(field.name for field in fields(Reply))
_DAY = 86_400
_LAST_SECOND = 253_402_300_799
"""Of the year 9999."""
_LARGEST = 2**53 - 1


@dataclass(frozen=True)
class Record:
    """One kept reply with what was asked. `question` is canonical JSON; its hash is the key."""

    key: str
    question: str
    reply: Reply
    created: int

    def line(self) -> str:
        """The record as it stands in a file."""
        content = {"key": self.key, "question": json.loads(self.question), "reply": asdict(self.reply)}
        return canonical({**content, "created": self.created}) + "\n"


@dataclass(frozen=True)
class Imported:
    """What came of an import: replies that were new, that were there already, and that were there with another text
    (the store's own stays); whether the file's last line was torn and left out.
    """

    added: int
    known: int
    different: int
    torn: bool


def existing(folder: Path, *, reading: bool = False) -> Store:
    """The store of a cache folder; InputError when there is none (a new one would only hide a wrong path).

    With `reading` the folder need not be writable.
    """
    if not (folder / FILE).exists():
        raise InputError(f"There is no reply store in {folder}; name the folder with --cache.")
    return Store(folder, reading=reading)


def summary(store: Store, prices: Path | None = None) -> dict[str, Any]:
    """What a store holds: totals, and `groups` of replies by endpoint, model, status and tier.

    `usd` of a group is None when its price or the tokens of one of its replies are not known.
    """
    groups = []
    for table in ("reply", "rejected"):
        rows = store.execute(
            "select coalesce(q.kind, ''), coalesce(q.host, ''), coalesce(q.model, r.model), r.status, r.tier, "
            "count(*), sum(length(cast(r.text as blob))), sum(r.prompt_tokens), sum(r.completion_tokens), "
            "sum(min(coalesce(r.cached_tokens, 0), r.prompt_tokens)), "
            "sum(r.prompt_tokens is null or r.completion_tokens is null), min(r.created), max(r.created) "
            f"from {table} r left join question q using(key) group by 1, 2, 3, 4, 5 order by 1, 2, 3, 4, 5"
        )
        for kind, host, model, status, tier, count, size, prompt, completion, cached, unknown, first, last in rows:
            price = find_price({"kind": kind, "host": host, "model": model}, prices) if kind else None
            known = price is not None and not unknown
            usd = price.of_tokens(prompt, completion, cached or 0, tier) if known and price is not None else None
            groups.append(
                {
                    **{"endpoint": f"{kind}:{host}".strip(":") or "not recorded", "model": model, "status": status},
                    **{"tier": tier, "replies": count, "bytes": size, "prompt_tokens": prompt},
                    **{"completion_tokens": completion, "usd": usd, "first": _date(first), "last": _date(last)},
                }
            )
    sends = store.execute("select outcome, count(*) from attempt group by outcome order by outcome")
    files = [Path(f"{store.path}{end}") for end in ("", "-wal")]
    return {
        "path": store.path.as_posix(),
        "bytes": sum(file.stat().st_size for file in files if file.exists()),
        "replies": sum(group["replies"] for group in groups),
        "sends": dict(sends),
        "groups": sorted(groups, key=lambda group: (group["endpoint"], group["model"], group["status"])),
    }


def prune(
    store: Store, *, model: str | None, older_than_days: float | None, statuses: Sequence[str], really: bool
) -> list[tuple[str, str, int, int]]:
    """Remove the replies that all given conditions hold for; without `really` only say which they would be.

    Returns (model, status, replies, bytes) of what goes. UsageError when no condition is given, or an unknown status.
    """
    if model is None and older_than_days is None and not statuses:
        raise UsageError("Say what may go: --model, --older-than, --status, or several of them.")
    for status in statuses:
        if status not in STATUSES:
            raise UsageError(f"There is no status '{status}'; there are {', '.join(STATUSES)}.")
    conditions, values = ["1"], list[object]()
    if model is not None:
        conditions.append("? in (coalesce(q.model, ''), r.model)")
        values.append(model)
    if older_than_days is not None:
        conditions.append("r.created < ?")
        values.append(int(max(time.time() - older_than_days * _DAY, 0.0)))  # also for days without end
    if statuses:
        conditions.append(f"r.status in ({','.join('?' * len(statuses))})")
        values += statuses
    chosen = f"left join question q using(key) where {' and '.join(conditions)}"
    gone: list[tuple[str, str, int, int]] = []
    with store.transaction():
        for table in ("reply", "rejected"):
            gone += store.execute(  # type: ignore[arg-type]
                "select coalesce(q.model, r.model), r.status, count(*), sum(length(cast(r.text as blob))) "
                f"from {table} r {chosen} group by 1, 2 order by 1, 2",
                values,
            )
            if really:
                store.execute(
                    f"delete from {table} where rowid in (select r.rowid from {table} r {chosen})",
                    values,
                )
        if really:
            store.execute(
                "delete from question where not exists (select 1 from reply where reply.key = question.key) "
                "and not exists (select 1 from rejected where rejected.key = question.key)"
            )
    if really:
        store.execute("vacuum")
    return gone


def export(store: Store, file: Path, model: str | None = None) -> tuple[int, int]:
    """Write replies (of one model, or all) into a file. Returns how many, and how many had to stay because they were
    kept before their questions were. InputError when there is nothing to write.
    """
    records = list(_records(store, model))
    bare = sum(
        int(store.execute(f"select count(*) from {table} r where not exists ({_SAME_KEY})")[0][0])
        for table in ("reply", "rejected")
    )
    if not records:
        raise InputError(f"{store.path} holds no replies{f' of {model}' if model else ''} that can be exported.")
    atomic_write(file, "".join(record.line() for record in records))
    return len(records), bare


def load(store: Store, file: Path) -> Imported:
    """Take up the replies of an exported file; again and again changes nothing.

    Every line's key is worked out anew from its question. InputError names the first line that does not fit; then
    nothing has been taken. A last line that was torn off is left out.
    """
    records, torn = read(file)
    added = known = different = 0
    for record in records:
        there = _kept(store, record)
        if not there:
            store.put(record.key, record.reply, record.question, record.created)
            added += 1
        elif record.reply.text in there:
            known += 1
        else:
            different += 1
    return Imported(added, known, different, torn)


def read(file: Path) -> tuple[list[Record], bool]:
    """The records of an exported file, and whether its last line was torn and left out. InputError without any."""
    if (file / FILE).is_file():
        raise InputError(
            f"{file} is a cache folder; write its replies into a file with `bkrl cache export FILE --cache {file}` and "
            "name that."
        )
    try:
        lines, torn = read_lines(file)
    except OSError as error:
        raise InputError(
            f"{file} cannot be read ({error.strerror}); name a file that `bkrl cache export` wrote."
        ) from None
    records = []
    for number, line in enumerate(lines, 1):
        try:
            records += [_record(line)] if line.strip() else []
        except ValueError as error:
            raise InputError(f"{file}, line {number}: {error}; export it again.") from None
    if not records:
        raise InputError(f"{file} holds no replies; name a file that `bkrl cache export` wrote.")
    return records, torn


def as_responses(file: Path) -> list[dict[str, Any]]:
    """An exported file as rows of responses.parquet, as far as a replay needs them; good replies come last.

    InputError when it holds replies of several models: then nobody could say who answers.
    """
    records, _ = read(file)
    questions = [json.loads(record.question) for record in records]
    models = sorted({str(question["endpoint"].get("model", "")) for question in questions})
    if len(models) > 1:
        raise InputError(f"{file} holds replies of {', '.join(models)}; export one of them with --model.")
    rows = [
        {
            **asdict(record.reply),
            "prompt": json.dumps([{"role": role, "content": text} for role, text in question["messages"]]),
            "sample": question["sample"],
            "reply": record.reply.text,
            "reason": "" if record.reply.status == "ok" else record.reply.status,
            "answered_as": record.reply.format,
        }
        for record, question in zip(records, questions, strict=True)
    ]
    return sorted(rows, key=lambda row: str(row["status"]) == "ok")


_SAME_KEY = "select 1 from question q where q.key = r.key"


@dataclass(frozen=True)
class _Line:
    key: str
    question: dict[str, Any]
    reply: Reply
    created: Annotated[int, Flag("", least=0, most=_LAST_SECOND)]


class _Question(TypedDict):
    endpoint: dict[str, str]
    messages: list[tuple[str, str]]
    sample: Annotated[int, Flag("", least=0, most=_LARGEST)]


def _record(text: bytes) -> Record:
    """A line of a file; ValueError (and so Mismatch) when it is none, or the store could not hold it."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("this is not JSON") from None
    line: _Line = typed(_Line, content)
    named: _Question = typed(_Question, line.question, "question")
    if not all(name.isprintable() for name in named["endpoint"].values()):
        raise ValueError("question.endpoint holds what cannot be printed")
    question, reply = canonical(line.question), line.reply
    if hashlib.sha256(question.encode("ascii")).hexdigest() != line.key:
        raise ValueError("the key does not belong to the question")
    for name, count in vars(reply).items():
        if isinstance(count, int) and not 0 <= count <= _LARGEST:
            raise ValueError(f"reply.{name} must be from 0 to {_LARGEST}, not {count}")
    if len(reply.text) > MAX_REPLY_CHARS or cleaned(reply) != reply:
        raise ValueError("the reply's text cannot be kept")
    return Record(line.key, question, reply, line.created)


def _records(store: Store, model: str | None) -> Iterator[Record]:
    """All replies whose question is known, by key; refused and truncated ones before a good one."""
    wanted = "where ? in (q.model, r.model)" if model is not None else ""
    columns = ", ".join(f"r.{name}" for name in _REPLY)
    rows = [
        (key, rank, number, created, *values)
        for rank, table in enumerate(("rejected", "reply"))
        for key, number, created, *values in store.execute(
            f"select r.key, r.rowid, r.created, {columns} from {table} r join question q using(key) {wanted}",
            () if model is None else (model,),
        )
    ]
    for key, rank, _, created, *values in sorted(rows, key=lambda row: (row[0], row[1], row[3], row[4], row[2])):
        del rank
        question = store.question(key)
        if question is not None:
            yield Record(key, question, Reply(*values), created)


def _kept(store: Store, record: Record) -> list[str]:
    """Texts of what the store already has in this record's place: the good reply, or the same rejected one."""
    if record.reply.status == "ok":
        return [text for (text,) in store.execute("select text from reply where key = ?", (record.key,))]
    same = (record.key, record.reply.status, record.reply.text, record.created)
    return [
        text
        for (text,) in store.execute(
            "select text from rejected where key = ? and status = ? and text = ? and created = ?", same
        )
    ]


def _date(seconds: int) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(seconds))
