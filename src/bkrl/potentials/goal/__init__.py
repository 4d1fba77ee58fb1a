"""Goal potentials (BK-Goal): how near the present comes, in words, to what was suggested for similar moments.

Retrieval: the recent past is compared with the segments that were asked about; the goals suggested for the most similar
ones count.  Similarity: the present view's caption, clause by clause, and the last action if it changed anything, is
compared with those goals.  near = max(0, (similarity - threshold) / (1 - threshold)): graded, without the published
jump from 0 to the threshold, and the threshold is measured for this encoder and this env on the dataset.  raw = near;
with the memory of episodes it is reached + `NEAR` near, where `reached` says how many of the goals were reached before.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from bkrl.core.errors import InputError
from bkrl.core.files import atomic_write, read_json, read_table, to_json, write_table
from bkrl.core.jit import kernel
from bkrl.data.windows import Reads, Windows
from bkrl.envs import captioner, clause_reader
from bkrl.envs.family import ClauseReader
from bkrl.potentials.goal.reached import Reached
from bkrl.potentials.goal.texts import Captioner, Texts, on_grid
from bkrl.potentials.protocol import Artefact, Raw
from bkrl.text.encoders import EncoderSettings, TextEncoder, open_encoder

INDEX, ENCODER = "goal_index.parquet", "encoder.json"
HORIZON = 4
TOP = 3
NEAR = 0.1
"""What being near a goal counts beside having reached them all, where memory says what was reached."""
_ROUNDING = 2.0  # steps of the grid by which the same encoder may differ from one processor to another
_CHUNK = 2048  # windows compared with all moments at once
_INDEX_SCHEMA = pa.schema(
    [("kind", pa.string()), ("text", pa.string()), ("goals", pa.list_(pa.int32())), ("vector", pa.list_(pa.float32()))]
)


@dataclass(frozen=True)
class GoalIndex:
    """K moments that were asked about, and G distinct goals.

    Attributes:
        keys: (K, size) float32 on the grid, the moments' vectors.
        goals: G texts; vectors: (G, size) float32 on the grid.
        suggested: (K, G) bool, which goals were suggested for which moment.
    """

    keys: NDArray[np.float32]
    goals: list[str]
    vectors: NDArray[np.float32]
    suggested: NDArray[np.bool_]


class GoalRaw(Raw):
    """Graded similarity to the retrieved goals, in [0, 1]; with memory see above, in [0, 1 + NEAR]."""

    def __init__(
        self,
        index: GoalIndex,
        encoder: TextEncoder,
        captioner: Captioner,
        action_names: Sequence[str],
        threshold: float,
        horizon: int = HORIZON,
        reader: ClauseReader | None = None,
        language: str = "en",
        reads_missions: bool = False,
        reached: Reached | None = None,
    ) -> None:
        self.index, self.reached = index, reached
        self.reads = Reads.of(horizon, reads_missions, reached is not None)
        # what no explorer has reached is what memory is for: a scale measured on its episodes would end there
        self.bounds = None if reached is None else (0.0, 1.0 + NEAR)
        self.language = language
        self.threshold = threshold
        self.texts = Texts(encoder, captioner, action_names, index.vectors, reader)

    def __call__(self, windows: Windows) -> NDArray[np.float64]:
        similarity = self.similarity(windows)
        near: NDArray[np.float64] = np.maximum(0.0, (similarity - self.threshold) / (1.0 - self.threshold))
        if self.reached is None:
            return near
        assert windows.memory is not None
        return self.reached(windows.memory) + NEAR * near

    def similarity(self, windows: Windows, moments: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
        """(B,) highest cosine of the present with the goals of the retrieved moments (or of `moments`, (B, top))."""
        rows = self.texts.rows_of(windows)
        if moments is None:
            moments = self.retrieve(self.texts.compared(windows, rows, self.reads.mission))
        allowed: NDArray[np.bool_] = self.index.suggested[moments[:, 0]]  # (B, G) for any of them
        for place in range(1, moments.shape[1]):
            allowed |= self.index.suggested[moments[:, place]]
        present = self.texts.similarities[rows[:, -1]]
        if windows.index.shape[1] > 1:
            changed = windows.valid[:, -2] & (windows.index[:, -1] != windows.index[:, -2])
            acted = self.texts.action_similarities[windows.actions[:, -1]]
            np.maximum(present, acted, out=present, where=changed[:, None])
        return (present * allowed).max(axis=1).astype(np.float64)

    def retrieve(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """(B, top) the moments most like windows given by their rows (B, n), of equally near ones the first.

        All moments' vectors have one length but for rounding, so the products' order is the cosines' order.  A window's
        product is the sum of its rows' products, which repeat; all are whole numbers below 2**24, exact in float32
        whatever the order of summation.
        """
        found = np.empty((len(rows), min(TOP, len(self.index.keys))), np.int64)
        keys = torch.from_numpy(self.index.keys).T
        for start in range(0, len(rows), _CHUNK):
            part = rows[start : start + _CHUNK]
            used = np.zeros(len(self.texts.vectors), bool)
            used[part] = True
            products = torch.from_numpy(self.texts.vectors[used]) @ keys
            _nearest(products.numpy(), (np.cumsum(used) - 1)[part], found[start : start + _CHUNK])
        return found

    def save(self, folder: Path) -> tuple[list[str], dict[str, Any]]:
        index = self.index
        rows = [
            {"kind": "goal", "text": goal, "goals": [], "vector": vector.tolist()}
            for goal, vector in zip(index.goals, index.vectors, strict=True)
        ]
        rows += [
            {"kind": "key", "text": "", "goals": np.flatnonzero(mask).tolist(), "vector": key.tolist()}
            for key, mask in zip(index.keys, index.suggested, strict=True)
        ]
        write_table(folder / INDEX, pa.Table.from_pylist(rows, schema=_INDEX_SCHEMA))
        atomic_write(folder / ENCODER, to_json(self.texts.encoder.settings()))
        settings = {"threshold": self.threshold, "encoder": self.texts.encoder.name, "language": self.language}
        read = {} if self.reached is None else {"reached": asdict(self.reached)}
        return [INDEX, ENCODER], {**settings, **read}


@kernel
def _nearest(products, rows, found):  # type: ignore[no-untyped-def]
    """found[b]: where the sum of products[rows[b]] is highest, highest first, of equal ones the first."""
    top = found.shape[1]
    total = np.empty(products.shape[1], products.dtype)
    best = np.empty(top, products.dtype)
    for b in range(rows.shape[0]):
        total[:] = 0
        for place in range(rows.shape[1]):
            total += products[rows[b, place]]
        best[:] = -np.inf
        for k in range(total.size):
            if total[k] <= best[top - 1]:
                continue
            place = top - 1
            while place > 0 and total[k] > best[place - 1]:
                best[place] = best[place - 1]
                found[b, place] = found[b, place - 1]
                place -= 1
            best[place] = total[k]
            found[b, place] = k


class _Settings(TypedDict):
    """What `GoalRaw.save` returns."""

    threshold: float
    language: NotRequired[Literal["en", "fr"]]
    reached: NotRequired[Reached]


def load(artefact: Artefact) -> GoalRaw:
    """The index of a "goal" artefact, with the captioner of its env."""

    table = read_table(artefact.part(INDEX), _INDEX_SCHEMA).to_pylist()
    goals = [row for row in table if row["kind"] == "goal"]
    keys = [row for row in table if row["kind"] == "key"]
    if not goals or not keys:
        raise InputError(f"{artefact.part(INDEX)} holds no goals or no keys; run train-rm again.")
    suggested = np.zeros((len(keys), len(goals)), bool)
    for mask, row in zip(suggested, keys, strict=True):
        mask[row["goals"]] = True
    index = GoalIndex(_matrix(keys), [row["text"] for row in goals], _matrix(goals), suggested)
    encoder = open_encoder(read_json(artefact.part(ENCODER), EncoderSettings))
    now = on_grid(encoder(index.goals[:1]))
    if now.shape != index.vectors[:1].shape or np.abs(now - index.vectors[:1]).max() > _ROUNDING:
        raise InputError(
            f"The text encoder {encoder.name} gives other vectors than when {artefact.folder} was built: a model of "
            "that name was changed or is another one here; bring back the one it was built with, or run train-rm again."
        )
    settings: _Settings = artefact.read_settings(_Settings)
    language, reached = settings.get("language", "en"), settings.get("reached")
    artefact.check_memory(() if reached is None else reached.memory)
    return GoalRaw(
        index,
        encoder,
        captioner(artefact.env_id, language),
        artefact.action_names,
        settings["threshold"],
        artefact.horizon,
        clause_reader(artefact.env_id) if language == "en" else None,
        language,
        "mission" in artefact.reads,
        reached,
    )


def _matrix(rows: Sequence[Mapping[str, Any]]) -> NDArray[np.float32]:
    return np.array([row["vector"] for row in rows], np.float32)
