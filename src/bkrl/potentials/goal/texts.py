"""Texts as vectors: the clauses of captions, what views say, and how near that comes to goals.

Vectors are rounded to a grid of 1/1024, on which float32 products and sums are exact: the result is the same bit for
bit for any batch, order and library.
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from bkrl.data.distinct import distinct_rows, numbered
from bkrl.data.windows import Windows
from bkrl.envs.family import ClauseReader
from bkrl.text.encoders import TextEncoder

Captioner = Callable[[NDArray[np.uint8]], list[str]]

_GRID = 1024.0
_MEMORY = 32_768  # rows kept; beyond that all are forgotten and made again as needed, with the same result
_SEPARATORS = str.maketrans(".;", ",,")


def clauses(caption: str) -> list[str]:
    """The parts of a caption that say one thing each."""
    return [part for part in map(str.strip, caption.lower().translate(_SEPARATORS).split(",")) if part]


def action_clause(name: str) -> str:
    """What an action is called in words: "place_table" → "you place table"."""
    return "you " + name.replace("_", " ").lower()


class Texts:
    """Vectors and goal similarities of clauses and of what views say, each computed once.

    Row 0 of both tables is zero and stands for what came before the episode.  Where the env has a reader, views that
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

    def rows_of(self, windows: Windows) -> NDArray[np.int64]:
        """(B, H+1) rows of the tables for every place of every window."""
        used = np.zeros(len(windows.symbols), bool)
        used[windows.index[windows.valid]] = True
        rows = np.zeros(len(windows.symbols), np.int64)
        rows[used] = self.look_up(windows.symbols[used])
        return np.where(windows.valid, rows[windows.index], 0)

    def compared(self, windows: Windows, rows: NDArray[np.int64], reads_missions: bool) -> NDArray[np.int64]:
        """(B, n) rows by which windows are compared: `rows` (B, H+1) of their views and, if read, as many missions."""
        if not reads_missions:
            return rows
        assert windows.missions is not None
        return np.concatenate([rows, self.mission_rows(windows.missions)[:, None].repeat(rows.shape[1], 1)], 1)

    def mission_rows(self, missions: NDArray[np.object_]) -> NDArray[np.int64]:
        """(B,) rows of the tables for missions; call it after `rows_of`, which may forget the rows of others."""
        numbers, texts = numbered(missions)
        keys = [b"mission " + text.encode() for text in texts]
        for key, text in zip(keys, texts, strict=True):
            if key not in self._known:
                self._known[key] = self._vectors.add(on_grid(self.encoder([text.lower()])))
                self._similarities.add(np.zeros((1, len(self.goals)), np.float32))
        return np.array([self._known[key] for key in keys], np.int64)[numbers]

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
            self._clause_similarities.add(cosines(self.goals, vector).T)
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


def cosines(goals: NDArray[np.float32], vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """(G, n) cosine similarities of G goals with n texts, vectors on the grid, from exact whole-number products."""
    products = (goals @ vectors.T).astype(np.float64)
    squares = [(one * one).sum(1).astype(np.float64) for one in (goals, vectors)]
    norms = np.sqrt(squares[0][:, None] * squares[1])
    return (products / np.maximum(norms, 1e-9)).astype(np.float32)
