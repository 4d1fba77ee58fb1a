"""Views as vectors: a grid of cells, or a flat observation with a map in front.

Raw integers are categories, not magnitudes: every value of every channel has an embedding of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bkrl.core.jit import kernel

MOST_CHANNELS = 4  # a kind of cell is met by a table of 32 to this power
LEVELS = 32  # categories of a value in a flat observation; larger values share the last ones (see `bucket`)


class CellEncoder(nn.Module):
    """Views (M, columns, rows, channels) of small integers, as a set of cells.

    A cell's vector comes from its values and its place by a network shared by all cells; the view is the cells' maximum
    and sum.  So "the nearest thing" is easy to say and needs few examples, wherever in the view it was seen.
    """

    def __init__(self, shape: Sequence[int], hidden: int, cell: int = 32) -> None:
        super().__init__()
        *places, self.channels = shape
        self.places = math.prod(places)
        self.tables = nn.Parameter(torch.zeros(self.channels, LEVELS, cell))
        self.position = nn.Parameter(torch.zeros(self.places, cell))
        for table in (self.tables, self.position):
            nn.init.normal_(table, std=0.5)
        self.cell = nn.Linear(cell, cell)
        self.mix = nn.Linear(2 * cell, hidden)
        self._forget()

    def _forget(self) -> None:
        self._row_of = np.full(LEVELS**self.channels, -1, np.int32)  # -1: a kind of cell not met yet
        self._frozen = torch.zeros(0, self.places, self.cell.out_features)

    def forward(self, views: Tensor) -> Tensor:
        """(M, *shape) uint8 → (M, hidden).

        There are few kinds of cells, so each is worked out once for every place and then looked up.
        """
        values = views.reshape(len(views), self.places, self.channels)
        highest, total = self._pool_training(values) if self.training else self._pool_frozen(values)
        return nn.functional.relu(self.mix(torch.cat([highest, total / math.sqrt(self.places)], 1)))

    def _pool_training(self, values: Tensor) -> tuple[Tensor, Tensor]:
        values = values.clamp(max=LEVELS - 1).long()
        codes = values[..., 0]
        for channel in range(1, self.channels):
            codes = codes * LEVELS + values[..., channel]
        present, local = _numbered(codes)
        kinds = len(present)
        vectors = self._vectors(present).transpose(0, 1).reshape(self.places * kinds, -1)
        index = torch.arange(self.places) * kinds + local
        bag = nn.functional.embedding_bag
        return bag(index, vectors, mode="max"), bag(index, vectors, mode="sum")

    def _pool_frozen(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """As in training, from a table that grows: each kind in a computation of its own, so no other can change it."""
        codes = np.empty((len(values), self.places), np.int64)
        if _encode(values.numpy(), self._row_of, codes):
            new = np.unique(codes[self._row_of[codes] < 0])
            first = len(self._frozen)
            self._frozen = torch.cat([self._frozen, *(self._vectors(torch.tensor([code])) for code in new)])
            self._row_of[new] = np.arange(first, len(self._frozen))
        highest, total = torch.empty(2, len(values), self._frozen.shape[2])
        _pool(codes, self._row_of, self._frozen.numpy(), highest.numpy(), total.numpy())
        return highest, total

    def alike(self, views: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Views (M, *shape) in which what cannot be told apart is equal."""
        return np.minimum(views, LEVELS - 1)

    def _vectors(self, codes: Tensor) -> Tensor:
        """(K,) kinds of cells → (K, places, cell)."""
        cells: Tensor = self.position
        for channel in reversed(range(self.channels)):
            cells = cells + self.tables[channel, codes % LEVELS][:, None]
            codes = codes // LEVELS
        return nn.functional.relu(self.cell(nn.functional.relu(cells)))

    def train(self, mode: bool = True) -> CellEncoder:
        """Training changes the weights, so what was worked out with the old ones is forgotten."""
        self._forget()
        return super().train(mode)


@kernel
def _encode(values, row_of, codes):  # type: ignore[no-untyped-def]
    """codes[m, p]: the kind of cell that values[m, p] are, as one number. Whether any has no row yet."""
    new = False
    for m in range(values.shape[0]):
        for p in range(values.shape[1]):
            code = 0
            for channel in range(values.shape[2]):
                code = code * LEVELS + min(int(values[m, p, channel]), LEVELS - 1)
            codes[m, p] = code
            new |= row_of[code] < 0
    return new


@kernel
def _pool(codes, row_of, table, highest, total):  # type: ignore[no-untyped-def]
    """Maximum and sum of table[row_of[codes[m, p]], p] over the places p.

    Summed in blocks of sixteen, then the blocks: the order in which PyTorch sums, so that Φ is what it was with that.
    """
    size = table.shape[2]
    block, high = np.empty(size, table.dtype), np.empty(size, table.dtype)
    for m in range(codes.shape[0]):
        block[:] = 0
        high[:] = -np.inf
        total[m] = 0
        for p in range(codes.shape[1]):
            row = row_of[codes[m, p]]
            for i in range(size):
                value = table[row, p, i]
                block[i] += value
                high[i] = max(high[i], value)
            if p % 16 == 15:
                for i in range(size):
                    total[m, i] += block[i]
                    block[i] = 0
        for i in range(size):
            total[m, i] += block[i]
            highest[m, i] = high[i]


def _numbered(codes: Tensor) -> tuple[Tensor, Tensor]:
    """The codes that occur, in increasing order, and for every code its number among them."""
    present = torch.bincount(codes.flatten()).nonzero().flatten()
    lookup = torch.zeros(int(present[-1]) + 1, dtype=torch.long)
    lookup[present] = torch.arange(len(present))
    return present, lookup[codes]


_BYTES = torch.arange(256)
_BUCKETS = torch.where(_BYTES < 20, _BYTES, (20 + (_BYTES - 20) // 20).clamp(max=LEVELS - 1))


def bucket(values: Tensor) -> Tensor:
    """uint8 → category below LEVELS: 0..19 exactly, larger values in 12 bins (a clock or a light level)."""
    return _BUCKETS[values.long()]


class FlatEncoder(nn.Module):
    """Flat observations (M, size): a map of categories that may stand first, and numbers with a table each.

    The numbers are also handed on as they are: what an action changed is a difference, which needs no hidden layer.
    What one faces is looked up, because most actions mean what they do there.
    """

    def __init__(self, size: int, grid: tuple[int, int], hidden: int, faced: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.cells = grid[0] * grid[1]
        self.numbers = size - self.cells
        self.size = hidden + self.numbers
        self.map = CellEncoder((*grid, 1), hidden) if self.cells else None
        self.tables = nn.Parameter(torch.zeros(max(self.numbers, 1) * LEVELS, hidden))
        nn.init.normal_(self.tables, std=1.0 / math.sqrt(max(self.numbers, 1)))
        self.join = nn.Linear(2 * hidden if self.cells else hidden, hidden)
        self.register_buffer("offsets", torch.arange(self.numbers) * LEVELS, persistent=False)
        self.offsets: Tensor
        self.faced = faced
        if faced:
            self.size += hidden
            self.ahead = nn.Embedding(LEVELS, hidden)
            self.register_buffer("cell_ahead", torch.tensor(faced[1:]), persistent=False)
            self.cell_ahead: Tensor

    def forward(self, views: Tensor) -> Tensor:
        """(M, size) uint8 → (M, hidden + numbers), and hidden more where it is known what is faced."""
        flat = views.reshape(len(views), -1)
        numbers = bucket(flat[:, self.cells :])
        known = nn.functional.relu(nn.functional.embedding_bag(numbers + self.offsets, self.tables, mode="sum"))
        parts = [known]
        if self.map is not None:
            parts.insert(0, self.map(flat[:, : self.cells, None]))
        found = [nn.functional.relu(self.join(torch.cat(parts, 1))), numbers / 10.0]
        if self.faced:
            way = flat[:, self.faced[0]].long().clamp(max=len(self.cell_ahead) - 1)
            found.append(self.ahead(bucket(flat.gather(1, self.cell_ahead[way][:, None])[:, 0])))
        return torch.cat(found, 1)

    def alike(self, views: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Views (M, size) in which what cannot be told apart is equal."""
        flat = views.reshape(len(views), -1)
        return np.concatenate([flat[:, : self.cells], _BUCKETS.numpy().astype(np.uint8)[flat[:, self.cells :]]], 1)
