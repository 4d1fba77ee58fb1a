"""The shards of one labelling: whether they belong together, and what the whole was asked to be."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bkrl.core.errors import InputError
from bkrl.core.flags import flags_of, option_name
from bkrl.labelers.config import LabelConfig
from bkrl.labelers.shards import Shard
from bkrl.runs.inputs import dataset_at
from bkrl.runs.record import Run

SETTINGS = [one.name for one in flags_of(LabelConfig) if one.flag.identity and not one.flag.reads]
"""What decides which questions a run asks, and of whom."""
Usage = dict[str, object]
_OF_THE_RUN = ("variant", "env_id", "llm", "prompts", "usage", "batches", "quality", "table", "merged")


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
