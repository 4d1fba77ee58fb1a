"""Answers that were given before, asked for again: re-reading a run with today's parsers, or joining its shards.

Nothing is sent. What a run recorded comes back exactly as it was (key, text, tokens, cost), so that the tables made of
it differ only where reading differs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from bkrl.core.config import LabelConfig
from bkrl.core.errors import InputError, UsageError
from bkrl.core.files import read_json, read_table
from bkrl.core.flags import flags_of
from bkrl.core.reporter import Reporter
from bkrl.data.dataset import Dataset
from bkrl.data.schema import RESPONSES
from bkrl.labelers import baseline
from bkrl.labelers.tables import responses_of
from bkrl.llm import extras, open_backend
from bkrl.llm.kept import KeptAnswers, Speaker
from bkrl.llm.protocol import Connection
from bkrl.llm.store import Store
from bkrl.runs.record import Run

SETTINGS = [one.name for one in flags_of(LabelConfig) if one.flag.identity and not one.flag.reads]
"""What decides which questions a run asks, and of whom."""
_OF_THE_RUN = ("variant", "env_id", "llm", "prompts", "usage", "batches", "quality", "table", "reparsed", "merged")


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
def reader(config: LabelConfig, reporter: Reporter) -> Iterator[KeptAnswers]:
    """Asks the run `config.reparse`: its table of responses; for an unfinished run, what the store has kept of it."""
    run = config.reparse
    assert run is not None
    if (run / "manifest.json").exists():
        finished = Run.open(run, "label")
        with KeptAnswers(
            Speaker(config.llm, facts_of(finished)), rows=responses_of(finished), reporter=reporter
        ) as kept:
            yield kept
        return
    backend = open_backend(config.llm, connection(config, asking=False))
    table = run / "responses.parquet"
    rows = read_table(table, RESPONSES).to_pylist() if table.exists() else []
    if backend.identity is None:
        if not rows:
            raise InputError(f"{run} is unfinished, and answers of {config.llm} are not stored; run its command again.")
        with KeptAnswers(backend, rows=rows, reporter=reporter) as kept:
            yield kept
        return
    with Store(config.cache) as store, KeptAnswers(backend, store, rows, reporter=reporter) as kept:
        yield kept


def facts_of(run: Run) -> dict[str, str]:
    """What a run's manifest says about who answered."""
    return {name: value for name, value in run.facts.items() if name not in _OF_THE_RUN}
