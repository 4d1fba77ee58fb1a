"""The network that scores a short history, after the Preference Transformer (Kim et al. 2023, arXiv 2303.00957).

One token for each past transition (s_i, a_i, s_{i+1}) and one for the current observation; positions count back from
the window's end; tokens before the episode's start are masked.  One self-attention block, then a value and a weight
for each token: score = n Σ softmax(w)_i v_i over the n valid ones.  Views are embedded once each and gathered into
windows, because that is where nearly all of the work would be.

Raw integers are categories, not magnitudes: every value of every channel has an embedding of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bkrl.core.flags import Flag
from bkrl.core.jit import kernel

_Size = Annotated[int, Flag("", least=1, most=2**20)]
_MOST_CHANNELS = 4  # a kind of cell is met by a table of 32 to this power
_LEVELS = 32  # categories of a value in a flat observation; larger values share the last ones (see `bucket`)


@dataclass(frozen=True)
class NetConfig:
    """Sizes of the network: what must be stored to build it again.

    Attributes:
        obs_shape: of one observation.
        num_actions, horizon: A and H.
        width: of tokens; heads: of attention; hidden: of the view encoder.
        grid: (columns, rows) of a map that stands first in a flat observation, (0, 0) when there is none.
        faced: the byte of a flat observation that says which way one faces, and then, for each of its values, the byte
            of the cell that is faced; empty when there is none.
    """

    obs_shape: tuple[_Size, ...]
    num_actions: _Size
    horizon: Annotated[int, Flag("", least=0)]
    width: _Size = 32
    heads: _Size = 2
    hidden: _Size = 64
    grid: tuple[int, int] = (0, 0)
    faced: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """ValueError for sizes that do not go together."""
        size, cells = math.prod(self.obs_shape), math.prod(self.grid)
        if self.width % self.heads or not 0 <= cells <= size or min(self.grid) < 0:
            raise ValueError("the network's heads do not divide its width, or its grid is larger than a view")
        if len(self.obs_shape) == 3 and self.obs_shape[-1] > _MOST_CHANNELS:
            raise ValueError(f"views have at most {_MOST_CHANNELS} channels")
        if len(self.faced) == 1 or not all(0 <= byte < size for byte in self.faced):
            raise ValueError("what is faced is no byte of a view")


class CellEncoder(nn.Module):
    """Views (M, columns, rows, channels) of small integers, as a set of cells.

    A cell's vector comes from its values and its place by a network shared by all cells; the view is the cells' maximum
    and sum.  So "the nearest thing" is easy to say and needs few examples, wherever in the view it was seen.
    """

    def __init__(self, shape: Sequence[int], hidden: int, cell: int = 32) -> None:
        super().__init__()
        *places, self.channels = shape
        self.places = math.prod(places)
        self.tables = nn.Parameter(torch.zeros(self.channels, _LEVELS, cell))
        self.position = nn.Parameter(torch.zeros(self.places, cell))
        for table in (self.tables, self.position):
            nn.init.normal_(table, std=0.5)
        self.cell = nn.Linear(cell, cell)
        self.mix = nn.Linear(2 * cell, hidden)
        self._forget()

    def _forget(self) -> None:
        self._row_of = np.full(_LEVELS**self.channels, -1, np.int32)  # -1: a kind of cell not met yet
        self._frozen = torch.zeros(0, self.places, self.cell.out_features)

    def forward(self, views: Tensor) -> Tensor:
        """(M, *shape) uint8 → (M, hidden).

        There are few kinds of cells, so each is worked out once for every place and then looked up.
        """
        values = views.reshape(len(views), self.places, self.channels)
        highest, total = self._pool_training(values) if self.training else self._pool_frozen(values)
        return nn.functional.relu(self.mix(torch.cat([highest, total / math.sqrt(self.places)], 1)))

    def _pool_training(self, values: Tensor) -> tuple[Tensor, Tensor]:
        values = values.clamp(max=_LEVELS - 1).long()
        codes = values[..., 0]
        for channel in range(1, self.channels):
            codes = codes * _LEVELS + values[..., channel]
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
        return np.minimum(views, _LEVELS - 1)

    def _vectors(self, codes: Tensor) -> Tensor:
        """(K,) kinds of cells → (K, places, cell)."""
        cells: Tensor = self.position
        for channel in reversed(range(self.channels)):
            cells = cells + self.tables[channel, codes % _LEVELS][:, None]
            codes = codes // _LEVELS
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
                code = code * _LEVELS + min(int(values[m, p, channel]), _LEVELS - 1)
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
_BUCKETS = torch.where(_BYTES < 20, _BYTES, (20 + (_BYTES - 20) // 20).clamp(max=_LEVELS - 1))


def bucket(values: Tensor) -> Tensor:
    """uint8 → category below _LEVELS: 0..19 exactly, larger values in 12 bins (a clock or a light level)."""
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
        self.tables = nn.Parameter(torch.zeros(max(self.numbers, 1) * _LEVELS, hidden))
        nn.init.normal_(self.tables, std=1.0 / math.sqrt(max(self.numbers, 1)))
        self.join = nn.Linear(2 * hidden if self.cells else hidden, hidden)
        self.register_buffer("offsets", torch.arange(self.numbers) * _LEVELS, persistent=False)
        self.offsets: Tensor
        self.faced = faced
        if faced:
            self.size += hidden
            self.ahead = nn.Embedding(_LEVELS, hidden)
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


def view_encoder(config: NetConfig) -> tuple[CellEncoder | FlatEncoder, int]:
    """The encoder that suits an observation's shape (a grid of cells or a flat vector), and the size of its output."""
    if len(config.obs_shape) == 3:
        return CellEncoder(config.obs_shape, config.hidden), config.hidden
    flat = FlatEncoder(math.prod(config.obs_shape), config.grid, config.hidden, config.faced)
    return flat, flat.size


def _bounded_exp(x: Tensor) -> Tensor:
    return x.clamp(-40.0, 40.0).exp()


Inputs = tuple[Tensor, Tensor, Tensor, Tensor]
"""Of windows: tokens (B, H+1, width), queries and values (B, heads, H+1, n), keys (B, heads, n, H+1)."""


class PreferenceNet(nn.Module):
    """Scores B windows; see the module's docstring.

    The work is ordered by how often it has to be done: once a view (`embed`), once a transition (`transitions`), and
    only what relates the tokens of a window to each other once a window (`score`).
    """

    def __init__(self, config: NetConfig) -> None:
        super().__init__()
        self.config = config
        width = config.width
        self.view, size = view_encoder(config)
        # three readings of a view: as a transition's start, as its end, and as the present
        self.reads = nn.Linear(size, 3 * width)
        self.action = nn.Embedding(config.num_actions, width)
        self.changed = nn.Embedding(2, width)
        self.norm_token, self.norm_mlp, self.norm_out = (nn.LayerNorm(width) for _ in range(3))
        self.position = nn.Parameter(torch.zeros(config.horizon + 1, width))
        nn.init.normal_(self.position, std=0.3)
        self.qkv = nn.Linear(width, 3 * width)
        self.attended = nn.Linear(width, width)
        self.mlp_in, self.mlp_out = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.value_and_weight = nn.Linear(width, 2)

    def alike(self, views: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Views (M, …) in which what the network cannot tell apart is equal: equal rows embed equally."""
        return self.view.alike(views)

    def embed(self, views: Tensor) -> Tensor:
        """(M, *obs_shape) uint8 → (M, 3 * width), once for each distinct view."""
        return self.reads(self.view(views))

    def transitions(self, embedded: Tensor, before: Tensor, action: Tensor, after: Tensor, moved: Tensor) -> Tensor:
        """(T, 4 * width) tokens with their queries, keys and values, once for each distinct transition.

        Args:
            embedded: (M, 3 * width) from `embed`.
            before, after: (T,) rows of it; action: (T,).
            moved: (T,) whether the view changed at all, also where it embeds the same.
        """
        width = self.config.width
        changed = self.changed(moved.long())
        return self._token(
            embedded[before, :width] + embedded[after, width : 2 * width] + self.action(action) + changed
        )

    def present(self, embedded: Tensor) -> Tensor:
        """(M, 4 * width) tokens of views as the present."""
        return self._token(embedded[:, 2 * self.config.width :])

    def _token(self, x: Tensor) -> Tensor:
        token = self.norm_token(nn.functional.relu(x))
        return torch.cat([token, nn.functional.linear(token, self.qkv.weight)], 1)

    def places(self) -> Tensor:
        """(H+1, 4 * width) what its place in the window adds to a token: attention is linear in its inputs."""
        return torch.cat([self.position, self.qkv(self.position)], 1)

    def arrange(self, tokens: Tensor) -> Inputs:
        """What `score` takes, from (B, H+1, 4 * width) tokens, the transitions' and, last, the present's."""
        width, heads = self.config.width, self.config.heads
        batch, length, _ = tokens.shape
        tokens = tokens + self.places()
        q, k, v = tokens[..., width:].reshape(batch, length, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
        return tokens[..., :width], q, k.transpose(-1, -2), v

    def gather(self, past: Tensor, present: Tensor, rows: Tensor, places: Tensor) -> Inputs:
        """The same without gradients: rows (B, H+1) of the distinct transitions and, last, of the distinct presents."""
        batch, length = rows.shape
        width, heads = self.config.width, self.config.heads
        x = torch.empty(batch, length, width)
        q, v = torch.empty(2, batch, heads, length, width // heads)
        k = torch.empty(batch, heads, width // heads, length)
        _gather(*(array.numpy() for array in (past, present, rows, places, x, q, k, v)))
        return x, q, k, v

    def score(self, inputs: Inputs, valid: Tensor) -> Tensor:
        """Scores (B,) from what `arrange` or `gather` made, and valid (B, H+1)."""
        x, q, k, v = inputs
        # softmax by hand: over six entries torch's own costs more than everything else in this block
        weights = _bounded_exp(q @ k / math.sqrt(q.shape[-1])) * valid[:, None, None, :]
        mixed = (weights @ v) / weights.sum(-1, keepdim=True)
        x = x + self.attended(mixed.transpose(1, 2).reshape(x.shape))
        x = x + self.mlp_out(nn.functional.relu(self.mlp_in(self.norm_mlp(x))))
        value, weight = self.value_and_weight(self.norm_out(x)).unbind(-1)
        weight = _bounded_exp(weight) * valid
        return (weight * value).sum(-1) / weight.sum(-1) * valid.sum(-1)

    def forward(self, views: Tensor, index: Tensor, actions: Tensor, valid: Tensor) -> Tensor:
        """Scores (B,) of windows whose views are numbered.

        Args:
            views: (M, *obs_shape) uint8; index: (B, H+1) which of them stands where; actions: (B, H); valid: (B, H+1).
        """
        embedded = self.embed(views)
        before, after = index[:, :-1].flatten(), index[:, 1:].flatten()
        past = self.transitions(embedded, before, actions.flatten(), after, before != after)
        present = self.present(embedded)[index[:, -1:]]
        return self.score(self.arrange(torch.cat([past.reshape(len(index), -1, past.shape[1]), present], 1)), valid)


@kernel
def _gather(past, present, rows, places, x, q, k, v):  # type: ignore[no-untyped-def]
    """Tokens by their rows, each with what its place adds, taken apart as attention needs it."""
    length, width = x.shape[1:]
    heads, size = q.shape[1], q.shape[3]
    token = np.empty(4 * width, x.dtype)
    for b in range(rows.shape[0]):
        for i in range(length):
            found = past[rows[b, i]] if i < length - 1 else present[rows[b, i]]
            for j in range(4 * width):
                token[j] = found[j] + places[i, j]
            for j in range(width):
                x[b, i, j] = token[j]
            for head in range(heads):
                start = width + head * size
                for j in range(size):
                    q[b, head, i, j] = token[start + j]
                for j in range(size):
                    k[b, head, j, i] = token[start + width + j]
                for j in range(size):
                    v[b, head, i, j] = token[start + 2 * width + j]
