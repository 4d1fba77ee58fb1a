"""One labelling shared out over several machines: which questions are whose, and whether the parts belong together.

A question belongs to the shard that a hash of its words points at. So the same words are never asked on two machines,
whichever pairs they come from and in whichever order they are shown, and no machine needs to know of the others.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bkrl.core.config import LabelConfig
from bkrl.core.errors import InputError, UsageError
from bkrl.core.flags import option_name
from bkrl.data.dataset import Dataset, Segment
from bkrl.labelers.material import segment_text
from bkrl.labelers.recorded import SETTINGS
from bkrl.runs.inputs import dataset_at
from bkrl.runs.record import Run

Usage = dict[str, object]


@dataclass(frozen=True)
class Shard:
    """Part `number` (from 1) of `count`."""

    number: int = 1
    count: int = 1

    @classmethod
    def parse(cls, text: str | None) -> Shard:
        """From `2/4`; None is the whole. UsageError for anything else."""
        if text is None:
            return cls()
        match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise UsageError(f"--shard is i/n with i from 1 to n, like 1/4, not '{text}'.")
        return cls(int(match[1]), int(match[2]))

    def holds(self, dataset: Dataset, *segments: Segment) -> bool:
        """Whether the question about these segments, in any order, is this shard's."""
        if self.count == 1:
            return True
        texts = sorted(
            json.dumps([text.captions, text.actions]) for text in (segment_text(dataset, s) for s in segments)
        )
        digest = hashlib.sha256("\n".join(texts).encode("ascii")).digest()
        return int.from_bytes(digest[:8], "big") % self.count == self.number - 1

    def conversations(self, votes: int) -> range:
        """The conversations of `--variant code` that are this shard's: every `count`-th. UsageError when none is."""
        if self.count > votes:
            raise UsageError(
                f"With --variant code shards divide the conversations, and --votes {votes} are fewer than {self.count} "
                "shards; raise --votes or take fewer shards."
            )
        return range(self.number - 1, votes, self.count)


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
