"""Program potentials (BK-Code): a language model's program, run in the sandbox, as a raw potential."""

from __future__ import annotations

import ast
import math
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import numpy as np
from numpy.typing import NDArray

from bkrl.core.errors import InputError, UsageError
from bkrl.core.files import atomic_write
from bkrl.core.reporter import Reporter
from bkrl.core.spacing import end_to_end
from bkrl.data.dataset import Dataset
from bkrl.data.windows import Reads, Windows
from bkrl.labelers.tables import labels_of, memory_names, mission_words
from bkrl.llm.rules.proposals import WEIGHT
from bkrl.potentials.kinds import Fitted, LabelledKind, Maker, Shuffle, permuted
from bkrl.potentials.protocol import Artefact, Raw
from bkrl.runs.record import Run
from bkrl.sandbox import advice
from bkrl.sandbox.advice import CodeTable
from bkrl.sandbox.pool import Sandbox, probation
from bkrl.text.mission_words import MissionWords

PROGRAM = "program.py"
HORIZON = 5
BOUNDS = (0.0, 1.0)
"""The scale of programs that read memory. Measured on a dataset it would end where the dataset does, and sub-goals that
no explorer has reached are what such a program is for."""
_PROBATION = 4096  # windows of the dataset that a program has to behave on


class CodeRaw(Raw):
    """A program in its sandbox, whose worker starts when the first windows come."""

    def __init__(
        self,
        source: str,
        obs_shape: tuple[int, ...],
        horizon: int,
        divisors: tuple[int, ...] = (),
        words: MissionWords | None = None,
        memory: tuple[str, ...] = (),
    ) -> None:
        self.source, self.obs_shape, self.words, self.memory = source, obs_shape, words, memory
        self.reads = Reads.of(horizon, words is not None, bool(memory))
        self.bounds = BOUNDS if memory else None
        self.sandbox = Sandbox(source, obs_shape, horizon, divisors=divisors, words=words, memory=len(memory))

    def __call__(self, windows: Windows) -> NDArray[np.float64]:
        return self.sandbox.evaluate_numbered(windows)[0]

    def advises(self, actions: int) -> CodeTable | None:
        """What the program's own `advice` says of so many actions; None where it has no such function."""
        return CodeTable.of(self.sandbox, actions)

    def save(self, folder: Path) -> tuple[list[str], dict[str, Any]]:
        atomic_write(folder / PROGRAM, self.source)
        read: dict[str, Any] = {} if self.words is None else {"mission": self.words.to_json()}
        read |= {"memory": list(self.memory)} if self.memory else {}
        return [PROGRAM], {"sandbox": self.sandbox.level, **read}

    def close(self) -> None:
        self.sandbox.close()


def read(labels: Run, dataset: Dataset, *, shuffle: Shuffle | None, bounds: str = "") -> Maker:
    """The chosen program of a label run; `bounds`: its lowest and highest value, as LO,HI (as it was measured: "").

    It becomes a potential once it has behaved on windows of the dataset.
    """
    row = _chosen(labels)
    facts = {"candidate": row["candidate_id"], "round": row["round"]}
    program = str(row["program"])
    if shuffle is not None:
        weights = [float(part[2]) for part in WEIGHT.finditer(program)]
        if len(set(weights)) < 2:
            raise UsageError(
                f"The program of {labels.path} is no sum of parts with different weights, so there is nothing to "
                "shuffle; use --control random or zero, or labels of another variant."
            )
        dealt = iter(permuted(len(weights), shuffle))
        program = WEIGHT.sub(lambda part: f"{part[1]}{weights[next(dealt)]}{part[3]}", program)
    scale, words, memory = _bounds(bounds), mission_words(labels, dataset), memory_names(labels, dataset)

    def make(seed: int, reporter: Reporter) -> Fitted:
        raw = CodeRaw(program, dataset.obs_shape, HORIZON, words=words, memory=memory)
        raw.bounds = scale or raw.bounds
        reporter.say(f"The program runs in a sandbox of level {raw.sandbox.level}.")
        rows = end_to_end(len(dataset.actions), _PROBATION)
        probation(raw.sandbox, dataset.windows(rows, HORIZON), seed)
        return Fitted("code", raw, dataset, {**facts, "sandbox": raw.sandbox.level})

    return make


def advises(labels: Run) -> bool:
    """Whether the chosen program of a label run itself says something of actions."""
    return advice.advises(ast.parse(str(_chosen(labels)["program"])))


def _chosen(labels: Run) -> dict[str, Any]:
    rows = [row for row in labels_of(labels) if row["chosen"]]
    if len(rows) != 1:
        raise InputError(f"{labels.path} has no chosen program; label again.")
    return rows[0]


def _bounds(text: str) -> tuple[float, float] | None:
    try:
        lo, hi = map(float, text.split(",")) if text else (0.0, 1.0)
    except ValueError:
        lo = hi = math.nan
    if not -math.inf < lo < hi < math.inf:
        raise UsageError(f"--bounds are two numbers, the smaller one first, such as 0,1, not '{text}'.")
    return (lo, hi) if text else None


class _Settings(TypedDict):
    """What `CodeRaw.save` returns."""

    mission: NotRequired[MissionWords]
    memory: NotRequired[tuple[str, ...]]


def load(artefact: Artefact) -> CodeRaw:
    """The program of a "code" artefact; InputError when it is not text."""
    path = artefact.part(PROGRAM)
    try:
        source = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text; run train-rm again.") from None
    settings: _Settings = artefact.read_settings(_Settings)
    memory = settings.get("memory", ())
    artefact.check_memory(memory)
    return CodeRaw(source, artefact.obs_shape, artefact.horizon, words=settings.get("mission"), memory=memory)


KINDS = (LabelledKind("code", load, read, ("bounds",), variant="code", horizon=lambda labels: HORIZON),)
