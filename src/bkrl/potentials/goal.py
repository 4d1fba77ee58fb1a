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
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict, cast

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import nn

from bkrl.core.errors import InputError
from bkrl.core.files import atomic_write, read_json, read_table, to_json, write_table
from bkrl.core.jit import kernel
from bkrl.data.distinct import NumberedWindows, distinct_rows
from bkrl.potentials.protocol import Artefact
from bkrl.text.encoders import EncoderSettings, TextEncoder, open_encoder

if TYPE_CHECKING:
    from bkrl.envs.family import ClauseReader

Captioner = Callable[[NDArray[np.uint8]], list[str]]

INDEX, ENCODER = "goal_index.parquet", "encoder.json"
HORIZON = 4
TOP = 3
_GRID = 1024.0
_ROUNDING = 2.0  # steps of the grid by which the same encoder may differ from one processor to another
_CHUNK = 2048  # windows compared with all moments at once
_MEMORY = 32_768  # rows kept; beyond that all are forgotten and made again as needed, with the same result
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
    """Vectors and goal similarities of clauses and of what views say, each computed once.

    Row 0 of both tables is zero and stands for what came before the episode.  Where the world has a reader, views that
    read the same share a row, and nothing is written to be taken apart again.
    """

    def __init__(
        self,
        encoder: TextEncoder,
        captioner: Captioner,
        action_names: Sequence[str],
        goals: NDArray[np.float32] | None = None,
        reader: ClauseReader | None = None,
    ) -> None:
        self.encoder = encoder
        self.captioner = captioner
        self.reader = reader
        self.goals = np.zeros((0, encoder.size), np.float32) if goals is None else goals
        self._clauses: dict[str, int] = {}
        self._clause_vectors = _Rows(encoder.size)
        self._clause_similarities = _Rows(len(self.goals))
        self._read = np.zeros(0, np.int64)  # the clause that each of the reader's texts is; -1: not needed yet
        self._forget()
        numbers = [self._clause(action_clause(name)) for name in action_names]
        self.action_similarities = self._clause_similarities.all[numbers]

    def _forget(self) -> None:
        self._known: dict[bytes, int] = {}
        self._vectors = _Rows(self.encoder.size, first=1)
        self._similarities = _Rows(len(self.goals), first=1)

    @property
    def vectors(self) -> NDArray[np.float32]:
        """(1 + rows known, size) on the grid."""
        return self._vectors.all

    @property
    def similarities(self) -> NDArray[np.float32]:
        """(1 + rows known, G) highest cosine of any clause with each goal."""
        return self._similarities.all

    def look_up(self, views: NDArray[np.uint8]) -> NDArray[np.int64]:
        """(M,) rows of `vectors` and `similarities` for (M, *obs_shape) distinct views."""
        if self.reader is None:
            return self._rows(views, self._split)
        read = self.reader(views)
        first, inverse = distinct_rows(read)
        return self._rows(read[first], self._numbers)[inverse]

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

    def _rows(
        self, things: NDArray[Any], numbers_of: Callable[[NDArray[Any]], tuple[NDArray[np.int64], NDArray[np.int64]]]
    ) -> NDArray[np.int64]:
        """(M,) rows of M distinct views or lists of clauses; `numbers_of` those that are new."""
        if len(self._known) + len(things) > _MEMORY:
            self._forget()
        known = self._known
        keys = [thing.tobytes() for thing in things]
        new = [i for i, key in enumerate(keys) if key not in known]
        if new:
            numbers, starts = numbers_of(things[new])
            first = self._vectors.add(on_grid(_bags(self._clause_vectors.all, numbers, "sum", starts)))
            self._similarities.add(_bags(self._clause_similarities.all, numbers, "max", starts))
            known.update(zip([keys[i] for i in new], range(first, first + len(new)), strict=True))
        return np.array([known[key] for key in keys], np.int64)

    def _split(self, views: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The numbers of the clauses in the captions of views, and where those of each view begin."""
        known = self._clauses
        said = [
            [known[one] if one in known else self._clause(one) for one in clauses(caption)] or [self._clause("")]
            for caption in self.captioner(views)
        ]
        starts = np.cumsum([0, *(len(one) for one in said[:-1])])
        return np.array([number for one in said for number in one], np.int64), starts

    def _numbers(self, read: NDArray[np.int32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """As `_split`, of lists that the reader has made."""
        assert self.reader is not None
        there = read >= 0
        counts = there.sum(axis=1)
        parts = read[there]
        if len(self._read) < len(self.reader.texts):
            self._read = np.append(self._read, np.full(len(self.reader.texts) - len(self._read), -1))
        for part in np.unique(parts[self._read[parts] < 0]):
            (text,) = clauses(self.reader.texts[part])
            self._read[part] = self._clause(text)
        return self._read[parts], np.cumsum(counts) - counts

    def _clause(self, text: str) -> int:
        number = self._clauses.get(text)
        if number is None:
            vector = on_grid(self.encoder([text]))
            number = self._clauses[text] = self._clause_vectors.add(vector)
            self._clause_similarities.add(_cosine(self.goals, vector[0])[None])
        return number


class _Rows:
    """A float32 matrix to which rows are added; `first` rows of zeros stand at its top."""

    def __init__(self, width: int, first: int = 0) -> None:
        self._matrix = np.zeros((1024, width), np.float32)
        self._count = first

    @property
    def all(self) -> NDArray[np.float32]:
        return self._matrix[: self._count]

    def add(self, rows: NDArray[np.float32]) -> int:
        """Add rows (n, width); the number of the first."""
        first = self._count
        self._count += len(rows)
        while len(self._matrix) < self._count:
            self._matrix = np.concatenate([self._matrix, np.zeros_like(self._matrix)])
        self._matrix[first : self._count] = rows
        return first


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
        reader: ClauseReader | None = None,
    ) -> None:
        self.index = index
        self.threshold = threshold
        self.horizon = horizon
        self.texts = Texts(encoder, captioner, action_names, index.vectors, reader)

    def __call__(self, windows: NumberedWindows) -> NDArray[np.float64]:
        similarity = self.similarity(windows)
        return np.maximum(0.0, (similarity - self.threshold) / (1.0 - self.threshold))

    def similarity(self, windows: NumberedWindows, moments: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
        """(B,) highest cosine of the present with the goals of the retrieved moments (or of `moments`, (B, top))."""
        rows = self.texts.rows_of(windows)
        allowed = self._suggested(self.retrieve(rows) if moments is None else moments)
        present = self.texts.similarities[rows[:, -1]]
        if windows.index.shape[1] > 1:
            changed = windows.valid[:, -2] & (windows.index[:, -1] != windows.index[:, -2])
            acted = self.texts.action_similarities[windows.actions[:, -1]]
            np.maximum(present, acted, out=present, where=changed[:, None])
        return (present * allowed).max(axis=1).astype(np.float64)

    def _suggested(self, moments: NDArray[np.int64]) -> NDArray[np.bool_]:
        """(B, G) the goals suggested for any of the moments (B, top)."""
        allowed: NDArray[np.bool_] = self.index.suggested[moments[:, 0]]
        for place in range(1, moments.shape[1]):
            allowed |= self.index.suggested[moments[:, place]]
        return allowed

    def retrieve(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """(B, top) the moments most like windows given by their rows (B, H+1), of equally near ones the first.

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
    merged = np.zeros((len(first), len(goals)), bool)
    np.logical_or.at(merged, inverse, matrix)
    return GoalIndex(keys[first], goals, vectors, merged)


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


class _Settings(TypedDict):
    """What `save_index` and train-rm store."""

    threshold: float
    language: NotRequired[Literal["en", "fr"]]


def load(artefact: Artefact) -> GoalRaw:
    """The index of a "goal" artefact, with the captioner of its world."""
    from bkrl.envs import captioner, clause_reader

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
    language = settings.get("language", "en")
    return GoalRaw(
        index,
        encoder,
        captioner(artefact.env_id, language),
        artefact.action_names,
        settings["threshold"],
        artefact.horizon,
        clause_reader(artefact.env_id) if language == "en" else None,
    )


def _matrix(rows: Sequence[Mapping[str, Any]]) -> NDArray[np.float32]:
    return np.array([row["vector"] for row in rows], np.float32)
