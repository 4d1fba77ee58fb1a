"""The network that scores a short history, after the Preference Transformer (Kim et al. 2023, arXiv 2303.00957).

One token for each past transition (s_i, a_i, s_{i+1}) and one for the current observation; positions count back from
the window's end; tokens before the episode's start are masked.  One self-attention block, then a value and a weight
for each token: score = Σ softmax(w)_i v_i.  Views are embedded once each and gathered into windows, because that is
where nearly all of the work would be.

Raw integers are categories, not magnitudes: every value of every channel has an embedding of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

_LEVELS = 32  # categories of a value in a flat observation; larger values share the last ones (see `bucket`)


@dataclass(frozen=True)
class NetConfig:
    """Sizes of the network: what must be stored to build it again.

    Attributes:
        obs_shape: of one observation.
        num_actions, horizon: A and H.
        width: of tokens; heads: of attention; hidden: of the view encoder.
        grid: (columns, rows) of a map that stands first in a flat observation, (0, 0) when there is none.
    """

    obs_shape: tuple[int, ...]
    num_actions: int
    horizon: int
    width: int = 64
    heads: int = 2
    hidden: int = 128
    grid: tuple[int, int] = (0, 0)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> NetConfig:
        """The inverse of `to_json`."""
        values = dict(document)
        values["obs_shape"] = tuple(values["obs_shape"])
        values["grid"] = tuple(values["grid"])
        return cls(**values)


class CellEncoder(nn.Module):
    """Views (M, columns, rows, channels) of small integers: one vector a cell, shared by all places, then an MLP."""

    def __init__(self, shape: Sequence[int], hidden: int, cell: int = 16) -> None:
        super().__init__()
        *places, self.channels = shape
        self.tables = nn.Parameter(torch.zeros(self.channels, _LEVELS, cell))
        nn.init.normal_(self.tables, std=0.5 / math.sqrt(self.channels))
        self.bias = nn.Parameter(torch.zeros(cell))
        self.mix = nn.Linear(math.prod(places) * cell, hidden)

    def forward(self, views: Tensor) -> Tensor:
        """(M, *shape) uint8 → (M, hidden)."""
        cells: Tensor = self.bias
        index = views.reshape(len(views), -1, self.channels).clamp(max=_LEVELS - 1).long()
        for channel in range(self.channels):
            cells = cells + nn.functional.embedding(index[:, :, channel], self.tables[channel])
        return nn.functional.relu(self.mix(nn.functional.relu(cells).flatten(1)))


def bucket(values: Tensor) -> Tensor:
    """uint8 → category below _LEVELS: 0..19 exactly, larger values in 12 bins (a clock or a light level)."""
    values = values.long()
    return torch.where(values < 20, values, (20 + (values - 20) // 20).clamp(max=_LEVELS - 1))


class FlatEncoder(nn.Module):
    """Flat observations (M, size): a map of categories that may stand first, and numbers with a table each."""

    def __init__(self, size: int, grid: tuple[int, int], hidden: int) -> None:
        super().__init__()
        self.cells = grid[0] * grid[1]
        self.map = CellEncoder((*grid, 1), hidden) if self.cells else None
        self.rest = size - self.cells
        self.tables = nn.Parameter(torch.zeros(max(self.rest, 1) * _LEVELS, hidden))
        nn.init.normal_(self.tables, std=1.0 / math.sqrt(max(self.rest, 1)))
        self.join = nn.Linear(2 * hidden if self.cells else hidden, hidden)
        self.register_buffer("offsets", torch.arange(self.rest) * _LEVELS, persistent=False)
        self.offsets: Tensor

    def forward(self, views: Tensor) -> Tensor:
        """(M, size) uint8 → (M, hidden)."""
        flat = views.reshape(len(views), -1)
        index = bucket(flat[:, self.cells :]) + self.offsets
        numbers = nn.functional.relu(nn.functional.embedding_bag(index, self.tables, mode="sum"))
        parts = numbers if self.map is None else torch.cat([self.map(flat[:, : self.cells, None]), numbers], 1)
        return nn.functional.relu(self.join(parts))


def view_encoder(config: NetConfig) -> nn.Module:
    """The encoder that suits an observation's shape: a grid of cells, or a flat vector."""
    if len(config.obs_shape) == 3:
        return CellEncoder(config.obs_shape, config.hidden)
    return FlatEncoder(math.prod(config.obs_shape), config.grid, config.hidden)


class PreferenceNet(nn.Module):
    """Scores B windows; see the module's docstring."""

    def __init__(self, config: NetConfig) -> None:
        super().__init__()
        self.config = config
        width = config.width
        self.view = view_encoder(config)
        # three readings of a view: as a transition's start, as its end, and as the present
        self.reads = nn.Linear(config.hidden, 3 * width)
        self.action = nn.Embedding(config.num_actions, width)
        self.changed = nn.Embedding(2, width)
        self.position = nn.Parameter(torch.zeros(config.horizon + 1, width))
        nn.init.normal_(self.position, std=0.1)
        self.norm_in = nn.LayerNorm(width)
        self.norm_attention, self.norm_mlp, self.norm_out = (nn.LayerNorm(width) for _ in range(3))
        self.qkv = nn.Linear(width, 3 * width)
        self.attended = nn.Linear(width, width)
        self.mlp_in, self.mlp_out = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.value_and_weight = nn.Linear(width, 2)

    def embed(self, views: Tensor) -> Tensor:
        """(M, *obs_shape) uint8 → (M, 3 * width), once for each distinct view."""
        return self.reads(self.view(views))

    def forward(self, embedded: Tensor, index: Tensor, actions: Tensor, valid: Tensor) -> Tensor:
        """Scores (B,).

        Args:
            embedded: (M, 3 * width) from `embed`.
            index: (B, H+1) which embedded view stands where.
            actions: (B, H); valid: (B, H+1).
        """
        width, horizon = self.config.width, self.config.horizon
        now = embedded[index[:, -1], 2 * width :]
        if horizon:
            before = embedded[index[:, :-1], :width]
            after = embedded[index[:, 1:], width : 2 * width]
            moved = self.changed((index[:, :-1] != index[:, 1:]).long())
            past = before + after + self.action(actions) + moved
            tokens = torch.cat([past, now[:, None]], 1)
        else:
            tokens = now[:, None]
        x = self.norm_in(nn.functional.relu(tokens + self.position))
        x = x + self._attend(self.norm_attention(x), valid)
        x = x + self.mlp_out(nn.functional.relu(self.mlp_in(self.norm_mlp(x))))
        value, weight = self.value_and_weight(self.norm_out(x)).unbind(-1)
        weight = weight.masked_fill(~valid, -math.inf).softmax(-1)
        return (weight * value).sum(-1)

    def _attend(self, x: Tensor, valid: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = self.config.heads
        q, k, v = self.qkv(x).reshape(batch, length, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / math.sqrt(width // heads)
        scores = scores.masked_fill(~valid[:, None, None, :], -math.inf)
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, width)
        return self.attended(mixed)
