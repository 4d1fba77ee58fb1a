"""Batches: thousands of questions handed in at once, answered within a day for less; replies go to the same store.

What is out stands in `batches.json` in the run's folder, written before anything is sent, and every batch carries a
token of ours at the endpoint. So a process killed at any moment neither loses a batch nor submits one twice.
"""

import secrets
from collections import Counter
from collections.abc import Awaitable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict, TypeVar

from bkrl.core.documents import Mismatch, typed
from bkrl.core.errors import InputError, RunFailed
from bkrl.core.files import atomic_write, check_checksum, plain, read_json, to_json, with_checksum
from bkrl.llm.batch_api import BatchApi
from bkrl.llm.budget import KEY, batch_name
from bkrl.llm.capabilities import Capabilities
from bkrl.llm.faults import redacted
from bkrl.llm.openai import OpenAIBackend
from bkrl.llm.protocol import REFUSED, Fault, Request, cleaned, request_content
from bkrl.llm.session import AskSession

T = TypeVar("T")

FILE = "batches.json"
MOST_REQUESTS = 50_000
MOST_BYTES = 200_000_000
_FINAL = ("completed", "expired", "cancelled", "failed")
_UNKNOWN = Request(())


@dataclass
class SentBatch:
    """One batch. `status` is the endpoint's word for it; `batch_id` is empty until the endpoint has named one; `known`
    is what was known of the endpoint when the requests were put.
    """

    token: str
    keys: list[str]
    known: Capabilities
    batch_id: str = ""
    status: str = "uploading"
    collected: bool = False


class _State(TypedDict):
    batches: list[SentBatch]
    failures: dict[str, tuple[str, str]]


@dataclass
class Outcome:
    """What came back: replies kept, lines without a reply by reason, lines that belong to no request or are no JSON."""

    replies: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    foreign: int = 0


def out_in(folder: Path) -> int:
    """How many requests of a run are out in batches that were not collected."""
    return sum(len(batch.keys) for batch in _read(folder / FILE)[0] if not batch.collected)


def asked_in(folder: Path) -> set[str]:
    """Of the questions that a run has put into batches what `Budget.keys` holds of others."""
    return {key[:KEY] for batch in _read(folder / FILE)[0] for key in batch.keys}


def refused_in(folder: Path) -> set[str]:
    """The same of those that were refused."""
    return {key[:KEY] for key, (reason, _) in _read(folder / FILE)[1].items() if reason in REFUSED}


class Batches:
    """The batches of one run, whose folder holds `batches.json`. They share the store and budget of a session that asks
    an OpenAI-compatible endpoint. Every method raises RunFailed with a sentence when the endpoint does not play along.
    """

    def __init__(self, folder: Path, session: AskSession) -> None:
        assert isinstance(session.backend, OpenAIBackend)
        assert session.store is not None
        self._folder, self._session, self._backend, self._store = folder, session, session.backend, session.store
        self._budget, self._price, self._reporter = session.budget, session.price, session.reporter
        self._api = BatchApi(self._backend)
        self.batches, self.failures = _read(folder / FILE)

    def submit(self, missing: Mapping[str, Request]) -> None:
        """Hand in what is missing and not out already; as much of it as the run's limits allow."""
        self._run(self._submit(missing))

    def status(self) -> None:
        """Say how every batch is doing."""
        self._run(self._status())

    def collect(self, missing: Mapping[str, Request]) -> Outcome:
        """Fetch what is finished into the store. `missing`: the requests whose replies are not there."""
        return self._run(self._collect(missing))

    def out(self) -> set[str]:
        """The keys that are out."""
        return {key for batch in self.batches if not batch.collected for key in batch.keys}

    @property
    def endpoint_known(self) -> bool:
        """Whether the endpoint has ever answered a request."""
        return self._backend.capabilities.accepted

    def facts(self) -> list[dict[str, Any]]:
        named = [batch for batch in self.batches if batch.batch_id]
        return [{"id": one.batch_id, "status": one.status, "requests": len(one.keys)} for one in named]

    async def _submit(self, missing: Mapping[str, Request]) -> None:
        await self._recover()
        out = self.out()
        todo = {key: request for key, request in missing.items() if key not in out and key not in self.failures}
        if not todo:
            if out:
                self._reporter.say(f"Already submitted: {len(out):,} requests are out; see --batch status.")
            else:
                self._reporter.say("Nothing to submit: every answer is here; --batch collect finishes the run.")
            return
        theirs = {key: who for key in todo if (who := self._store.elsewhere(key))}
        for who, count in Counter(theirs.values()).items():
            self._reporter.warn(f"{count:,} requests are out with {who} and not submitted again; collect there first.")
        todo = {key: request for key, request in todo.items() if key not in theirs}
        if not todo:
            return
        sent = 0
        for keys, lines, most in self._chunks(todo):
            await self._hand_in(keys, lines, most)
            sent += len(keys)
            self._reporter.say(f"{self.batches[-1].batch_id}: {len(keys):,} requests submitted.")
        if sent == 0:
            raise RunFailed(
                f"None of the {len(todo):,} requests fits into --max-cost or --max-requests; raise it and submit again."
            )
        if sent < len(todo):
            self._reporter.warn(
                f"{len(todo) - sent:,} requests do not fit into --max-cost or --max-requests, counted at the most they "
                "can cost; collect, then submit again."
            )
        self._reporter.say("Come back with --batch status, then --batch collect; a batch takes up to 24 hours.")

    def _chunks(self, todo: Mapping[str, Request]) -> Iterator[tuple[list[str], list[bytes], float]]:
        """Keys, lines and most dollars of each batch, within the endpoint's limits and the run's."""
        keys: list[str] = []
        lines: list[bytes] = []
        size, most = 0, 0.0
        for key, request in todo.items():
            line = self._api.line(key, request)
            cost = 0.0 if self._price is None else self._price.bound(request, "batch")
            if not self._budget.room(most + cost, len(keys) + 1):
                break
            if keys and (len(keys) == MOST_REQUESTS or size + len(line) > MOST_BYTES):
                yield keys, lines, most
                keys, lines, size, most = [], [], 0, 0.0
            keys.append(key)
            lines.append(line)
            size, most = size + len(line), most + cost
        if keys:
            yield keys, lines, most

    async def _hand_in(self, keys: list[str], lines: list[bytes], most: float) -> None:
        batch = SentBatch(secrets.token_hex(8), keys, replace(self._backend.capabilities))
        file = self._folder / f"batch-{batch.token}.jsonl"
        self.batches.append(batch)
        # Before its money is set aside: a kill in between must not leave a sum that belongs to no batch.
        self._save()
        name = batch_name(batch.token)
        if not self._store.hand_in(keys, name, self._folder):
            self._forget(batch)
            raise RunFailed("Another run has just submitted some of these questions; run the same command again.")
        self._budget.begin(most, len(keys), name)
        try:
            atomic_write(file, b"".join(lines))
            file_id = await self._api.upload(file)
            batch.batch_id = await self._api.create(file_id, batch.token)
        except Fault as fault:
            if not fault.billed:  # it is certain that nothing was started
                self._budget.settle(name, 0.0, unsent=len(keys))
                self._forget(batch)
            raise
        finally:
            file.unlink(missing_ok=True)
        batch.status = "submitted"
        self._backend.learn_batch(True)
        self._save()

    async def _recover(self) -> None:
        """Look for batches whose submission was cut off: they are out, or were never started."""
        for batch in [batch for batch in self.batches if not batch.batch_id]:
            found = await self._api.find(batch.token)
            if found is not None:
                batch.batch_id, batch.status = found, "submitted"
                self._save()
            else:
                self._budget.settle(batch_name(batch.token), 0.0, unsent=len(batch.keys))
                self._forget(batch)
        for file in self._folder.glob("batch-*.jsonl"):
            file.unlink(missing_ok=True)

    def _forget(self, batch: SentBatch) -> None:
        """It was never started."""
        self.batches.remove(batch)
        self._store.come_back(batch_name(batch.token))
        self._save()

    async def _status(self) -> None:
        await self._recover()
        if not self.batches:
            self._reporter.say("No batch was submitted; --batch submit does that.")
        for batch in self.batches:
            if batch.collected:
                self._reporter.say(f"{batch.batch_id}: {batch.status}, collected ({len(batch.keys):,} requests)")
                continue
            said = await self._api.status(batch.batch_id)
            batch.status = str(said.get("status"))
            counts = said.get("request_counts")
            counts = counts if isinstance(counts, dict) else {}
            self._reporter.say(
                f"{batch.batch_id}: {batch.status}, {counts.get('completed', 0)} of {len(batch.keys):,} done, "
                f"{counts.get('failed', 0)} failed"
            )
        self._save()

    async def _collect(self, missing: Mapping[str, Request]) -> Outcome:
        await self._recover()
        outcome = Outcome()
        for batch in self.batches:
            if batch.collected:
                continue
            said = await self._api.status(batch.batch_id)
            batch.status = str(said.get("status"))
            if batch.status not in _FINAL:
                continue
            await self._fetch(batch, said, missing, outcome)
            if batch.status == "failed":
                errors = said.get("errors")
                listed = errors.get("data") if isinstance(errors, dict) else None
                words = "; ".join(str(error.get("message")) for error in (listed or [])[:3] if isinstance(error, dict))
                self._reporter.warn(f"{batch.batch_id} failed as a whole ({redacted(words) or 'no reason given'}).")
            batch.collected = True
            self._store.come_back(batch_name(batch.token))
            self._save()
        return outcome

    async def _fetch(
        self, batch: SentBatch, said: Mapping[str, Any], missing: Mapping[str, Request], outcome: Outcome
    ) -> None:
        """Every line of a finished batch into the store, in whatever order and however often it comes."""
        wanted, seen = set(batch.keys), set()
        paid = doubtful = 0.0
        for name in ("output_file_id", "error_file_id"):
            if not isinstance(said.get(name), str):
                continue
            async for line in self._api.lines(str(said[name])):
                key = line.get("custom_id")
                if not isinstance(key, str) or key not in wanted:
                    outcome.foreign += 1
                    continue
                if key in seen:
                    continue
                seen.add(key)
                request = missing.get(key, _UNKNOWN)
                try:
                    reply = cleaned(self._api.reply(line, request, batch.known))
                except Fault as fault:
                    self._note(key, fault, outcome)
                    if fault.billed and self._price is not None:
                        doubtful += self._price.bound(request, "batch")
                    continue
                question = request_content(self._backend.identity, request) if request is not _UNKNOWN else ""
                kept = None if reply.status == "ok" else self._store.rejected(key, reply.status)
                if kept is None or replace(kept, format=reply.format) != reply:  # else it was fetched before
                    self._store.put(key, reply, question)
                outcome.replies += 1
                if reply.status in REFUSED:
                    self.failures[key] = (reply.status, "")
                cost = 0.0 if self._price is None else self._price.of(reply)
                if cost is None and self._price is not None:
                    doubtful += self._price.bound(request, "batch")
                paid += cost or 0.0
        if lost := len(wanted - seen):
            outcome.faults[f"{batch.status} without an answer"] += lost
        self._budget.settle(batch_name(batch.token), paid, doubtful)

    def _note(self, key: str, fault: Fault, outcome: Outcome) -> None:
        """A fault that can never go away is an answer of its own; everything else will be asked again."""
        outcome.faults[fault.reason] += 1
        if fault.kind == "item":
            self.failures[key] = (fault.reason, str(fault))

    def _save(self) -> None:
        state = {"version": 1, "batches": [asdict(batch) for batch in self.batches], "failures": self.failures}
        atomic_write(self._folder / FILE, to_json(with_checksum(plain(state))))

    def _run(self, work: Awaitable[T]) -> T:
        async def whole() -> T:
            try:
                return await work
            except Fault as fault:
                words = str(fault).rstrip(".")
                raise RunFailed(
                    f"{words[:1].upper()}{words[1:]}; nothing is lost, run the same command again."
                ) from None

        return self._session.call(whole())


def _read(file: Path) -> tuple[list[SentBatch], dict[str, tuple[str, str]]]:
    if not file.exists():
        return [], {}
    try:
        document = read_json(file)
        check_checksum(document)
        state: _State = typed(_State, document)
    except (InputError, Mismatch):
        raise InputError(f"{file} is damaged; restore it, or remove it if no batch is out.") from None
    return state["batches"], state["failures"]
