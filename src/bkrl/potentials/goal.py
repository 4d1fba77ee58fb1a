"""Goal potentials (BK-Goal): how near the present comes, in words, to what was suggested for similar moments.

Retrieval: the recent past is compared with the segments that were asked about; the goals suggested for the most similar
ones count.  Similarity: the present view's caption, clause by clause, and the last action if it changed anything, is
compared with those goals.  raw = max(0, (similarity - threshold) / (1 - threshold)): graded, without the published jump
from 0 to the threshold, and the threshold is measured for this encoder and this world on the dataset.

Vectors are rounded to a grid of 1/1024, on which float32 products and sums are exact: the result is the same bit for
bit for any batch, order and library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import nn

from bkrl.errors import InputError
from bkrl.potentials.distinct import NumberedWindows, distinct_rows
from bkrl.potentials.encoders import TextEncoder, open_encoder
from bkrl.potentials.protocol import Artefact
from bkrl.run import atomic_write, read_json, read_table, to_json, write_table

Captioner = Callable[[NDArray[np.uint8]], list[str]]

INDEX, ENCODER = "goal_index.parquet", "encoder.json"
HORIZON = 4
TOP = 3
_GRID = 1024.0
_CHUNK = 2048  # windows compared with all moments at once
_MEMORY = 32_768  # views kept; beyond that all are forgotten and made again as needed, with the same result
_SEPARATORS = str.maketrans(".;", ",,")
_INDEX_SCHEMA = pa.schema(
    [("kind", pa.string()), ("text", pa.string()), ("goals", pa.list_(pa.int32())), ("vector", pa.list_(pa.float32()))]
)


def clauses(caption: str) -> list[str]:
    """The parts of a caption that say one thing each."""
    return [part for part in map(str.strip, caption.lower().translate(_SEPARATORS).split(",")) if part]


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
    """Vectors and goal similarities of clauses and views, each computed once.

    Row 0 of both tables is zero and stands for what came before the episode.
    """

    def __init__(
        self,
        encoder: TextEncoder,
        captioner: Captioner,
        action_names: Sequence[str],
        goals: NDArray[np.float32] | None = None,
    ) -> None:
        self.encoder = encoder
        self.captioner = captioner
        self.goals = np.zeros((0, encoder.size), np.float32) if goals is None else goals
        self._clauses: dict[str, int] = {}
        self._clause_vectors: list[NDArray[np.float32]] = []
        self._clause_similarities: list[NDArray[np.float32]] = []
        self._forget()
        numbers = [self._clause(action_clause(name)) for name in action_names]
        self.action_similarities = np.stack([self._clause_similarities[number] for number in numbers])

    def _forget(self) -> None:
        self._views: dict[bytes, int] = {}
        self._vectors = np.zeros((1024, self.encoder.size), np.float32)
        self._similarities = np.zeros((1024, len(self.goals)), np.float32)

    @property
    def vectors(self) -> NDArray[np.float32]:
        """(1 + views known, size) on the grid."""
        return self._vectors[: 1 + len(self._views)]

    @property
    def similarities(self) -> NDArray[np.float32]:
        """(1 + views known, G) highest cosine of any clause of the view with each goal."""
        return self._similarities[: 1 + len(self._views)]

    def look_up(self, views: NDArray[np.uint8]) -> NDArray[np.int64]:
        """(M,) rows of `vectors` and `similarities` for (M, *obs_shape) distinct views."""
        if len(self._views) + len(views) > _MEMORY:
            self._forget()
        keys = [view.tobytes() for view in views]
        new = [i for i, key in enumerate(keys) if key not in self._views]
        if new:
            self._learn([keys[i] for i in new], self.captioner(views[new]))
        return np.array([self._views[key] for key in keys], np.int64)

    def rows_of(self, windows: NumberedWindows) -> NDArray[np.int64]:
        """(B, H+1) rows of the tables for every place of every window."""
        used = np.zeros(len(windows.views), bool)
        used[windows.index[windows.valid]] = True
        rows = np.zeros(len(windows.views), np.int64)
        rows[used] = self.look_up(windows.views[used])
        return np.where(windows.valid, rows[windows.index], 0)

    def window_vectors(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """(B, size) sums over windows given by their rows (B, H+1); whole numbers, so exact, and not normalised."""
        return _bags(self.vectors, rows, "sum")

    def _learn(self, keys: list[bytes], captions: list[str]) -> None:
        known = self._clauses
        said = [
            [known[one] if one in known else self._clause(one) for one in clauses(caption)] or [self._clause("")]
            for caption in captions
        ]
        flat = np.array([number for one in said for number in one], np.int64)
        starts = np.cumsum([0, *(len(one) for one in said[:-1])])
        start = 1 + len(self._views)
        stop = start + len(keys)
        while len(self._vectors) < stop:
            self._vectors = np.concatenate([self._vectors, np.zeros_like(self._vectors)])
            self._similarities = np.concatenate([self._similarities, np.zeros_like(self._similarities)])
        self._vectors[start:stop] = on_grid(_bags(np.stack(self._clause_vectors), flat, "sum", starts))
        if len(self.goals):
            self._similarities[start:stop] = _bags(np.stack(self._clause_similarities), flat, "max", starts)
        self._views.update(zip(keys, range(start, stop), strict=True))

    def _clause(self, text: str) -> int:
        number = self._clauses.get(text)
        if number is None:
            number = self._clauses[text] = len(self._clauses)
            vector = on_grid(self.encoder([text]))[0]
            self._clause_vectors.append(vector)
            self._clause_similarities.append(_cosine(self.goals, vector))
        return number


def _bags(
    table: NDArray[np.float32], index: NDArray[np.int64], mode: str, starts: NDArray[np.int64] | None = None
) -> NDArray[np.float32]:
    """Sum or maximum of table rows over each row of `index`, or over each run of it that begins at `starts`."""
    offsets = None if starts is None else torch.from_numpy(starts)
    with torch.no_grad():
        bag = nn.functional.embedding_bag(torch.from_numpy(index), torch.from_numpy(table), offsets, mode=mode)
    return cast("NDArray[np.float32]", bag.numpy())


def on_grid(vectors: NDArray[np.floating]) -> NDArray[np.float32]:
    """(n, size) vectors scaled to length 1 and rounded to multiples of 1/1024, kept as whole numbers in float32."""
    exact = vectors.astype(np.float64)
    norms = np.sqrt((exact * exact).sum(axis=1, keepdims=True))
    return np.rint(exact * (_GRID / np.where(norms > 0, norms, np.inf))).astype(np.float32)


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

    def __call__(self, windows: NumberedWindows) -> NDArray[np.float64]:
        similarity = self.similarity(windows)
        return np.maximum(0.0, (similarity - self.threshold) / (1.0 - self.threshold))

    def similarity(self, windows: NumberedWindows, moments: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
        """(B,) highest cosine of the present with the goals of the retrieved moments (or of `moments`, (B, top))."""
        rows = self.texts.rows_of(windows)
        near = self.retrieve(self.texts.window_vectors(rows)) if moments is None else moments
        allowed = self.index.suggested[near[:, 0]]
        for place in range(1, near.shape[1]):
            allowed |= self.index.suggested[near[:, place]]
        present = self.texts.similarities[rows[:, -1]]
        if windows.index.shape[1] > 1:
            changed = windows.valid[:, -2] & (windows.index[:, -1] != windows.index[:, -2])
            acted = self.texts.action_similarities[windows.actions[:, -1]]
            np.maximum(present, acted, out=present, where=changed[:, None])
        return (present * allowed).max(axis=1).astype(np.float64)

    def retrieve(self, vectors: NDArray[np.float32]) -> NDArray[np.int64]:
        """(B, top) the moments whose vectors point most nearly the same way.

        All moments' vectors have one length but for rounding, so the products' order is the cosines' order; they are
        whole numbers below 2**24, exact in float32 whatever the order of summation.
        """
        top = min(TOP, len(self.index.keys))
        found = np.empty((len(vectors), top), np.int64)
        keys = torch.from_numpy(self.index.keys).T
        with torch.no_grad():
            for start in range(0, len(vectors), _CHUNK):
                scores = torch.from_numpy(vectors[start : start + _CHUNK]) @ keys
                for place in range(top):
                    best = scores.argmax(dim=1, keepdim=True)
                    found[start : start + _CHUNK, place] = best[:, 0].numpy()
                    scores.scatter_(1, best, -torch.inf)
        return found


def calibrate(
    raw: GoalRaw, windows: NumberedWindows, rng: np.random.Generator, quantile: float = 0.9
) -> tuple[float, dict[str, Any]]:
    """The threshold for this encoder and world, and the figures behind it: what similarities there are (percentiles of
    those with retrieved and with unrelated goals), and the share of windows above the threshold.

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
        "similarity_retrieved": _percentiles(found),
        "similarity_unrelated": _percentiles(unrelated),
    }


def _percentiles(values: NDArray[np.float64]) -> dict[str, float]:
    return {str(q): float(np.percentile(values, q)) for q in (5, 25, 50, 75, 95)}


def build_index(
    texts: Texts, moments: NumberedWindows, suggested: Sequence[Sequence[int]], goals: list[str]
) -> GoalIndex:
    """Keys from the windows that end each asked segment; `suggested[k]` numbers the goals of moment k."""
    matrix = np.zeros((len(moments), len(goals)), bool)
    for row, numbers in zip(matrix, suggested, strict=True):
        row[list(numbers)] = True
    vectors = on_grid(np.concatenate([texts.encoder([goal]) for goal in goals]))
    keys = on_grid(texts.window_vectors(texts.rows_of(moments)))
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
