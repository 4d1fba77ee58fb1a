"""Answers that were given before, asked for again: re-reading a run with today's parsers, or joining its shards.

Nothing is sent. What a run recorded comes back exactly as it was (key, text, tokens, cost), so that the tables made of
it differ only where reading differs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from bkrl.core.config import LabelConfig
from bkrl.core.errors import InputError, UsageError
from bkrl.core.files import read_json, read_table
from bkrl.core.flags import flags_of, option_name
from bkrl.core.reporter import Reporter
from bkrl.data.dataset import Dataset
from bkrl.data.schema import RESPONSES
from bkrl.labelers import baseline
from bkrl.labelers.shards import Shard
from bkrl.labelers.tables import responses_of
from bkrl.llm import open_backend
from bkrl.llm.kept import KeptAnswers, Speaker
from bkrl.llm.protocol import Connection
from bkrl.llm.store import Store
from bkrl.runs.inputs import dataset_at
from bkrl.runs.record import Run

SETTINGS = [one.name for one in flags_of(LabelConfig) if one.flag.identity and not one.flag.reads]
"""What decides which questions a run asks, and of whom."""
Usage = dict[str, object]
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


@contextmanager
def reader(run: Path, llm: str, connection: Connection, cache: Path, reporter: Reporter) -> Iterator[KeptAnswers]:
    """Asks a run of annotator `llm`: its table of responses; for an unfinished one, what the store has kept of it."""
    if (run / "manifest.json").exists():
        finished = Run.open(run, "label")
        speaker = Speaker(llm, facts_of(finished))
        with KeptAnswers(speaker, rows=responses_of(finished), reporter=reporter) as kept:
            yield kept
        return
    backend = open_backend(llm, connection)
    table = run / "responses.parquet"
    rows = read_table(table, RESPONSES).to_pylist() if table.exists() else []
    if backend.identity is None and not rows:
        raise InputError(f"{run} is unfinished, and answers of {llm} are not stored; run its command again.")
    with ExitStack() as stack:
        store = None if backend.identity is None else stack.enter_context(Store(cache))
        yield stack.enter_context(KeptAnswers(backend, store, rows, reporter=reporter))


def facts_of(run: Run) -> dict[str, str]:
    """What a run's manifest says about who answered."""
    return {name: value for name, value in run.facts.items() if name not in _OF_THE_RUN}


def together(paths: Sequence[Path]) -> list[Run]:
    """The shards at these paths in order, when they are all the shards of one labelling.

    Raises InputError: a run is unfinished, damaged or no shard; settings, dataset or prompts differ; a shard is missing
    or given twice.
    """
    runs = [Run.open(path, "label") for path in paths]
    found: dict[int, Run] = {}
    for run in runs:
        text = run.config["config"].get("shard")
        if text is None:
            raise InputError(f"{run.path} is no shard: it was labelled as a whole.")
        shard = Shard.parse(text)
        _same(runs[0], run)
        if shard.number in found:
            raise InputError(f"Shard {text} is given twice: {found[shard.number].path} and {run.path}.")
        found[shard.number] = run
    count = Shard.parse(runs[0].config["config"]["shard"]).count if runs else 0
    missing = [str(number) for number in range(1, count + 1) if number not in found]
    if missing or not runs:
        raise InputError(f"Of {count} shards {', '.join(missing) or 'all'} are missing; name every one of them.")
    return [found[number] for number in sorted(found)]


def config_of(runs: Sequence[Run], out: Path, dataset: Path | None) -> LabelConfig:
    """The settings of the undivided labelling that these shards are the parts of."""
    found = runs[0].config["config"]
    settings = {name: found[name] for name in SETTINGS if name != "shard" and name in found}
    return LabelConfig(dataset=dataset_at(runs[0], dataset), out=out, **settings)


def summed(parts: Sequence[Usage]) -> Usage:
    """Usage of all shards: numbers added, and None where one of them is not known; words of the first."""
    total: Usage = {}
    for name in {name: None for part in parts for name in part}:
        values = [part[name] for part in parts if name in part]
        if all(isinstance(value, dict) for value in values):
            total[name] = summed(values)  # type: ignore[arg-type]
        elif any(value is None for value in values):
            total[name] = None
        else:
            total[name] = values[0] if isinstance(values[0], str) else sum(values)  # type: ignore[arg-type]
    return total


def _same(first: Run, other: Run) -> None:
    """InputError naming what two shards do not share."""
    mine, theirs = first.config["config"], other.config["config"]
    names = [name for name in SETTINGS if name != "shard" and mine.get(name) != theirs.get(name)]
    different = [option_name((name,)) for name in names]
    hashes = [run.config["inputs"]["dataset"]["manifest_sha256"] for run in (first, other)]
    if Shard.parse(mine["shard"] or "1/1").count != Shard.parse(theirs["shard"]).count:
        different.append("the number of shards")
    if hashes[0] != hashes[1]:
        different.append("the dataset")
    if first.facts.get("prompts") != other.facts.get("prompts"):
        different.append("the prompts")
    if different:
        raise InputError(f"{first.path} and {other.path} do not belong together: {', '.join(different)} differ.")
