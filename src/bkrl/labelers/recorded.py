"""Answers that were given before, asked for again: re-reading a run with today's parsers, or joining its shards.

Nothing is sent. What a run recorded comes back exactly as it was (key, text, tokens, cost), so that the tables made of
it differ only where reading differs.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bkrl.core.config import LabelConfig
from bkrl.core.errors import InputError, UsageError
from bkrl.core.files import read_json, read_table
from bkrl.core.reporter import Reporter
from bkrl.data.dataset import Dataset
from bkrl.data.schema import RESPONSES
from bkrl.labelers import baseline
from bkrl.labelers.tables import responses_of
from bkrl.llm import extras, open_backend
from bkrl.llm.ask import NOT_ASKED, Asker, AskPolicy, Exchange
from bkrl.llm.protocol import Connection, Message, Reply, Request
from bkrl.llm.store import Store
from bkrl.runs.record import Run

SETTINGS = (
    *("variant", "llm", "num", "length", "swap", "votes"),
    *("temperature", "max_tokens", "effort", "body", "prompt", "seed", "shard"),
)
"""What decides which questions a run asks, and of whom."""
_OF_THE_RUN = ("variant", "env_id", "llm", "prompts", "usage", "batches", "quality", "table", "reparsed", "merged")
Row = Mapping[str, Any]


@dataclass
class Speaker:
    """Stands where a backend would: who gave the recorded answers, as their manifest says."""

    name: str
    told: dict[str, str]
    identity: None = None

    async def complete(self, request: Request) -> Reply:
        raise NotImplementedError

    def facts(self) -> dict[str, str]:
        return dict(self.told)

    async def close(self) -> None:
        return None


class Recorded(Asker):
    """Answers from rows of responses.parquet, then from a store if there is one, and never from anybody.

    `exact`: every question must be there to the letter, InputError otherwise. Without it a follow-up whose last turn
    was worded differently (a parser says otherwise what it misses) is found by the conversation before it, and what
    was never asked comes back as an exchange with the reason NOT_ASKED.
    """

    def __init__(
        self, backend: Any, rows: Iterable[Row], store: Store | None, reporter: Reporter, exact: bool = False
    ) -> None:
        super().__init__(backend, store, AskPolicy(), reporter)
        self.absent = 0
        self._exact = exact
        self._rows: dict[str, Row] = {}
        self._follow_ups: dict[str, Row] = {}
        for row in rows:
            turns = [(turn["role"], turn["content"]) for turn in json.loads(row["prompt"])]
            self._rows.setdefault(_address(turns, row["sample"]), row)
            if len(turns) > 2:
                self._follow_ups.setdefault(_address(turns[:-1], row["sample"]), row)

    async def ask(self, request: Request) -> Exchange:
        row = self._find(request)
        if row is None and self.store is not None:
            return await super().ask(request)
        await asyncio.sleep(0)
        self.usage.asked += 1
        exchange = self._missing(request) if row is None else _exchange(row, request)
        if exchange.status != "ok" and exchange.reason != NOT_ASKED:
            reason = exchange.reason or exchange.status
            self.usage.failed += 1
            self.usage.reasons[reason] = self.usage.reasons.get(reason, 0) + 1
        return exchange

    def _find(self, request: Request) -> Row | None:
        turns = [(message.role, message.text) for message in request.messages]
        row = self._rows.get(_address(turns, request.sample))
        if row is None and not self._exact and len(turns) > 2:
            row = self._follow_ups.get(_address(turns[:-1], request.sample))
        return row

    async def _obtain(self, key: str, request: Request) -> Exchange:
        return self._missing(request, key)

    def _missing(self, request: Request, key: str = "") -> Exchange:
        if self._exact:
            words = request.messages[-1].text.strip().splitlines()[-1][:60]
            raise InputError(
                f"No shard holds an answer to one of the questions (it ends {words!r}); they were labelled by another "
                "version of bkrl, or their tables were changed."
            )
        self.absent += 1
        return Exchange(request, key, None, NOT_ASKED)


def settings_of(run: Path, given: LabelConfig, dataset: Dataset) -> LabelConfig:
    """`given`, for `dataset`, with the settings of the run whose answers are to be read again.

    Raises InputError when `run` is no label run or of another dataset, UsageError when `given` asks for something else.
    """
    if not (run / "config.json").exists():
        raise InputError(f"There is no label run at {run}.")
    recorded = read_json(run / "config.json")
    if recorded.get("stage") != "label":
        raise InputError(f"{run} is a '{recorded.get('stage')}' run; --reparse needs a label run.")
    settings = {name: recorded["config"][name] for name in SETTINGS if name in recorded["config"]}
    plain = LabelConfig(given.dataset)
    for name, value in settings.items():
        own = getattr(given, name)
        if own not in (value, getattr(plain, name)):
            raise UsageError(f"--{name.replace('_', '-')} is taken from {run} (there it is {value}); leave it out.")
    if settings["llm"] in baseline.NAMES:
        raise InputError(f"{run} is a control, which asked nobody; there is nothing to read again.")
    if recorded["inputs"]["dataset"]["manifest_sha256"] != dataset.manifest_sha256:
        raise InputError(f"{run} labelled another dataset than {given.dataset}; name the one in its config.json.")
    return replace(given, **settings)


def connection(config: LabelConfig, asking: bool = True) -> Connection:
    """How the annotator of a label run is reached. Raises what `extras` raises for --header and --body."""
    added = extras.headers(config.header or "", asking), extras.body(config.body or "")
    return Connection(config.cache, config.tier, asking, *added)


@contextmanager
def reader(config: LabelConfig, reporter: Reporter) -> Iterator[Recorded]:
    """Asks the run `config.reparse`: its table of responses; for an unfinished run, what the store has kept of it."""
    run = config.reparse
    assert run is not None
    if (run / "manifest.json").exists():
        finished = Run.open(run, "label")
        yield Recorded(Speaker(config.llm, facts_of(finished)), responses_of(finished), None, reporter)
        return
    backend = open_backend(config.llm, connection(config, asking=False))
    table = run / "responses.parquet"
    rows = read_table(table, RESPONSES).to_pylist() if table.exists() else []
    if backend.identity is None:
        if not rows:
            raise InputError(f"{run} is unfinished, and answers of {config.llm} are not stored; run its command again.")
        yield Recorded(backend, rows, None, reporter)
        return
    with Store(config.cache) as store:
        yield Recorded(backend, rows, store, reporter)


def facts_of(run: Run) -> dict[str, str]:
    """What a run's manifest says about who answered."""
    return {name: value for name, value in run.facts.items() if name not in _OF_THE_RUN}


def _exchange(row: Row, request: Request) -> Exchange:
    reply = None if row["reply"] is None else Reply.of_row(row)
    asked = tuple(Message(turn["role"], turn["content"]) for turn in json.loads(row["prompt"]))
    kept = replace(request, messages=asked)
    return Exchange(kept, row["key"], reply, row["reason"], cached=True, cost_usd=row["cost_usd"])


def _address(turns: Sequence[tuple[str, str]], sample: int) -> str:
    return hashlib.sha256(json.dumps([turns, sample]).encode("ascii")).hexdigest()
