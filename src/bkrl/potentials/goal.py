"""Goal potentials (BK-Goal): how near the present comes, in words, to what was suggested for similar moments.

Retrieval: the recent past is compared with the segments that were asked about; the goals suggested for the most similar
ones count.  Similarity: the present view's caption, clause by clause, and the last action if it changed anything, is
compared with those goals.  raw = max(0, (similarity - threshold) / (1 - threshold)): graded, without the published jump
from 0 to the threshold, and the threshold is measured for this encoder and this world on the dataset.

Vectors are rounded to a grid of 1/1024, on which float32 products and sums are exact: the result is the same bit for
bit for any batch, order and library.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bkrl.errors import InputError
from bkrl.potentials.distinct import distinct_rows, distinct_views
from bkrl.potentials.encoders import TextEncoder, open_encoder
from bkrl.potentials.protocol import Artefact
from bkrl.run import atomic_write, read_json, read_table, to_json, write_table
from bkrl.windows import Windows

Captioner = Callable[[NDArray[np.uint8]], list[str]]

INDEX, ENCODER = "goal_index.parquet", "encoder.json"
HORIZON = 4
TOP = 3
_GRID = 1024.0
_MEMORY = 32_768  # views kept; beyond that all are forgotten and made again as needed, with the same result
_CLAUSE = re.compile(r"\s*[.,;]\s*")
_INDEX_SCHEMA = pa.schema(
    [("kind", pa.string()), ("text", pa.string()), ("goals", pa.list_(pa.int32())), ("vector", pa.list_(pa.float32()))]
)


def clauses(caption: str) -> list[str]:
    """The parts of a caption that say one thing each."""
    return [part for part in _CLAUSE.split(caption.lower()) if part]


def action_clause(name: str) -> str:
    """What an action is called in words: "place_table" → "you place table"."""
    return "you " + name.replace("_", " ").lower()


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


class Texts:
    """Vectors and goal similarities of clauses and views, each computed once."""

    def __init__(
        self,
        encoder: TextEncoder,
        captioner: Captioner,
        action_names: Sequence[str],
        goals: NDArray[np.float32] | None = None,
    ) -> None:
        self.encoder = encoder
        self.captioner = captioner
        self.goals = goals
        self._clauses: dict[str, tuple[NDArray[np.float32], NDArray[np.float32]]] = {}
        self._views: dict[bytes, int] = {}
        width = 0 if goals is None else len(goals)
        self.vectors = np.zeros((0, encoder.size), np.float32)
        self.similarities = np.zeros((0, width), np.float32)
        known = [self._clause(action_clause(name)) for name in action_names]
        self.action_vectors = np.stack([vector for vector, _ in known])
        self.action_similarities = np.stack([similarity for _, similarity in known])

    def look_up(self, views: NDArray[np.uint8]) -> NDArray[np.int64]:
        """(M,) rows of `vectors` and `similarities` for (M, *obs_shape) views, which should be distinct."""
        if len(self._views) + len(views) > _MEMORY:
            self._views.clear()
            self.vectors, self.similarities = self.vectors[:0], self.similarities[:0]
        keys = [view.tobytes() for view in views]
        new = [i for i, key in enumerate(keys) if key not in self._views]
        if new:
            parts = [self._view(caption) for caption in self.captioner(views[new])]
            self.vectors = np.concatenate([self.vectors, np.stack([vector for vector, _ in parts])])
            self.similarities = np.concatenate([self.similarities, np.stack([one for _, one in parts])])
            for i in new:
                self._views.setdefault(keys[i], len(self._views))
        return np.array([self._views[key] for key in keys], np.int64)

    def window_vectors(self, windows: Windows) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]:
        """(B, size) sums over each window's views and actions, not normalised; and its views' rows and numbers."""
        views, index = distinct_views(windows)
        rows = self.look_up(views)[index]
        total = np.where(windows.valid[:, :1], self.vectors[rows[:, 0]], 0.0)
        for i in range(1, windows.horizon + 1):
            total += np.where(windows.valid[:, i : i + 1], self.vectors[rows[:, i]], 0.0)
        for i in range(windows.horizon):
            total += np.where(windows.valid[:, i : i + 1], self.action_vectors[windows.actions[:, i]], 0.0)
        return total, rows, index

    def _view(self, caption: str) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        known = [self._clause(one) for one in clauses(caption)]
        if not known:
            return np.zeros(self.encoder.size, np.float32), np.zeros(self.similarities.shape[1], np.float32)
        total = np.stack([vector for vector, _ in known]).sum(axis=0, dtype=np.float64)
        return on_grid(total), np.max([similarity for _, similarity in known], axis=0)

    def _clause(self, text: str) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        if text not in self._clauses:
            vector = on_grid(self.encoder([text])[0])
            none = np.zeros(0, np.float32)
            self._clauses[text] = vector, none if self.goals is None else _cosine(self.goals, vector)
        return self._clauses[text]


def on_grid(vector: NDArray[np.floating]) -> NDArray[np.float32]:
    """The vector scaled to length 1 and rounded to multiples of 1/1024, kept as whole numbers in float32."""
    norm = float(np.linalg.norm(vector.astype(np.float64)))
    return np.zeros(len(vector), np.float32) if norm == 0 else np.rint(vector * (_GRID / norm)).astype(np.float32)


def _cosine(goals: NDArray[np.float32], vector: NDArray[np.float32]) -> NDArray[np.float32]:
    """(G,) cosine similarities, from exact whole-number products."""
    products = (goals @ vector).astype(np.float64)
    norms = np.sqrt((goals * goals).sum(1).astype(np.float64) * float(vector @ vector))
    return (products / np.maximum(norms, 1e-9)).astype(np.float32)


class GoalRaw:
    """Graded similarity to the retrieved goals, in [0, 1]."""

    def __init__(
        self,
        index: GoalIndex,
        encoder: TextEncoder,
        captioner: Captioner,
        action_names: Sequence[str],
        threshold: float,
        horizon: int = HORIZON,
    ) -> None:
        self.index = index
        self.threshold = threshold
        self.horizon = horizon
        self.texts = Texts(encoder, captioner, action_names, index.vectors)
        lengths = np.sqrt((index.keys * index.keys).sum(1).astype(np.float64))
        self._key_lengths = np.maximum(lengths, 1e-9)

    def __call__(self, windows: Windows) -> NDArray[np.float64]:
        similarity = self.similarity(windows)
        return np.maximum(0.0, (similarity - self.threshold) / (1.0 - self.threshold))

    def similarity(self, windows: Windows, keys: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
        """(B,) highest cosine between the present and the goals of the retrieved moments (or of `keys`, (B, top))."""
        vectors, rows, index = self.texts.window_vectors(windows)
        near = self.retrieve(vectors) if keys is None else keys
        allowed = self.index.suggested[near].any(axis=1)
        present = self.texts.similarities[rows[:, -1]]
        if windows.horizon:
            changed = windows.valid[:, -2] & (index[:, -1] != index[:, -2])
            acted = self.texts.action_similarities[windows.actions[:, -1]]
            present = np.where(changed[:, None], np.maximum(present, acted), present)
        return np.where(allowed, present, 0.0).max(axis=1).astype(np.float64)

    def retrieve(self, vectors: NDArray[np.float32]) -> NDArray[np.int64]:
        """(B, top) most similar moments; of equals the first."""
        # whole numbers below 2**24: exact in float32, whatever the order of summation
        scores = (vectors @ self.index.keys.T) / self._key_lengths
        top = min(TOP, len(self.index.keys))
        found = np.empty((len(vectors), top), np.int64)
        everyone = np.arange(len(vectors))
        for place in range(top):
            found[:, place] = scores.argmax(axis=1)
            scores[everyone, found[:, place]] = -np.inf
        return found


def calibrate(
    raw: GoalRaw, windows: Windows, rng: np.random.Generator, quantile: float = 0.9
) -> tuple[float, dict[str, float]]:
    """The threshold for this encoder and world, and the figures behind it.

    It is the similarity that goals of *unrelated* moments reach in `quantile` of the windows: what is above has to do
    with the moment, and not just with the words of this world.  Where unrelated goals reach as high as the retrieved
    ones nearly everywhere (few distinct goals), the median of the retrieved ones keeps a quarter of the range alive.
    """
    found = raw.similarity(windows)
    strangers = rng.integers(0, len(raw.index.keys), (len(windows), min(TOP, len(raw.index.keys))))
    unrelated = raw.similarity(windows, strangers)
    by_null = float(np.quantile(unrelated, quantile))
    by_median = float(np.quantile(found, 0.5))
    threshold = min(by_null, by_median, 0.98)
    return threshold, {
        "threshold": threshold,
        "unrelated_quantile": by_null,
        "retrieved_median": by_median,
        "retrieved_p99": float(np.quantile(found, 0.99)),
        "above": float((found > threshold).mean()),
    }


def build_index(texts: Texts, moments: Windows, suggested: Sequence[Sequence[int]], goals: list[str]) -> GoalIndex:
    """Keys from the windows that end each asked segment; `suggested[k]` numbers the goals of moment k."""
    totals, _, _ = texts.window_vectors(moments)
    matrix = np.zeros((len(moments), len(goals)), bool)
    for row, numbers in zip(matrix, suggested, strict=True):
        row[list(numbers)] = True
    vectors = np.stack([on_grid(texts.encoder([goal])[0]) for goal in goals])
    keys = np.stack([on_grid(total) for total in totals])
    # moments that read the same are one key with the goals of all of them
    first, inverse = distinct_rows(keys)
    order = np.argsort(first)
    merged = np.zeros((len(first), len(goals)), bool)
    np.logical_or.at(merged, np.argsort(order)[inverse], matrix)
    return GoalIndex(keys[first[order]], goals, vectors, merged)


def save_index(raw: GoalRaw, folder: Path) -> dict[str, Any]:
    """Write index and encoder; the settings the artefact must hold to build the potential again."""
    index = raw.index
    rows = [
        {"kind": "goal", "text": goal, "goals": [], "vector": vector.tolist()}
        for goal, vector in zip(index.goals, index.vectors, strict=True)
    ]
    rows += [
        {"kind": "key", "text": "", "goals": np.flatnonzero(mask).tolist(), "vector": key.tolist()}
        for key, mask in zip(index.keys, index.suggested, strict=True)
    ]
    write_table(folder / INDEX, pa.Table.from_pylist(rows, schema=_INDEX_SCHEMA))
    atomic_write(folder / ENCODER, to_json(raw.texts.encoder.settings()))
    return {"threshold": raw.threshold, "encoder": raw.texts.encoder.name}


def load(artefact: Artefact) -> GoalRaw:
    """The index of a "goal" artefact, with the captioner of its world."""
    from bkrl.envs import captioner

    table = read_table(artefact.part(INDEX), _INDEX_SCHEMA).to_pylist()
    goals = [row for row in table if row["kind"] == "goal"]
    keys = [row for row in table if row["kind"] == "key"]
    if not goals or not keys:
        raise InputError(f"{artefact.part(INDEX)} holds no goals or no keys; run train-rm again.")
    suggested = np.zeros((len(keys), len(goals)), bool)
    for mask, row in zip(suggested, keys, strict=True):
        mask[row["goals"]] = True
    index = GoalIndex(_matrix(keys), [row["text"] for row in goals], _matrix(goals), suggested)
    encoder = open_encoder(read_json(artefact.part(ENCODER)))
    language = str(artefact.settings.get("language", "en"))
    threshold = float(artefact.settings["threshold"])
    return GoalRaw(
        index, encoder, captioner(artefact.env_id, language), artefact.action_names, threshold, artefact.horizon
    )


def _matrix(rows: Sequence[Mapping[str, Any]]) -> NDArray[np.float32]:
    return np.array([row["vector"] for row in rows], np.float32)
