"""The first layer of a network that reads symbols: a sum of one weight row for each fact that holds.

One-hot encoding an observation and multiplying it with a matrix adds up the rows of the facts that hold. There are
few of those (a room shows mostly floor) and many that do not, so on a CPU the rows are added directly, which is some
ten times quicker than the product. Elsewhere the product is formed. Both say the same up to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bkrl.core.jit import kernel

LARGEST_CATEGORY = 31
"""An entry whose highest value is above this is a quantity, not a category."""


@dataclass(frozen=True)
class Symbols:
    """What the J entries of a flattened uint8 observation mean.

    Attributes:
        sizes: (J,) categories of each entry; 0 marks a quantity in 0..255, which counts v / 255. A value beyond the
            last category counts as the last one.
        reference: (J,) the value that is so ordinary that it needs no row of its own (the bias stands for it); -1:
            none.
        gate: (J,) an entry that must be at least 2 for this one to mean anything; -1: none. (In MiniGrid, 0 and 1 are
            the unseen and the empty cell, whose colour is written as red.)
        pointer: (entry, targets): one more entry is read, the one that `entry` points at: targets[value]. (In
            Crafter: what is faced.) None: none.
    """

    sizes: tuple[int, ...]
    reference: tuple[int, ...]
    gate: tuple[int, ...]
    pointer: tuple[int, tuple[int, ...]] | None = None

    def __post_init__(self) -> None:
        """ValueError where an entry points at nothing: the kernels below do not look."""
        J, targets = len(self.sizes), (self.pointer[0], *self.pointer[1]) if self.pointer else (0, 0)
        if not len(self.reference) == len(self.gate) == J or len(targets) < 2 or not all(0 <= t < J for t in targets):
            raise ValueError("symbols describe another number of entries than there are")
        for values, least, most in ((self.sizes, 0, 256), (self.reference, -1, 255), (self.gate, -1, J - 1)):
            if not all(least <= value <= most for value in values):
                raise ValueError(f"symbols hold a number that is not within {least} and {most}")

    @classmethod
    def of_sizes(cls, sizes: Sequence[int]) -> Symbols:
        """Every category has a row."""
        none = (-1,) * len(sizes)
        return cls(tuple(sizes), none, none)

    @classmethod
    def of_bounds(cls, high: np.ndarray) -> Symbols:
        """From the upper bounds of an observation space: small ones count categories, large ones bound a quantity."""
        return cls.of_sizes([int(top) + 1 if top <= LARGEST_CATEGORY else 0 for top in np.asarray(high).reshape(-1)])

    @classmethod
    def of_minigrid(cls, cells: int) -> Symbols:
        """A view of MiniGrid cells: object type (11), colour (6), state (4: a door's, or where an agent looks)."""
        gate = [g for cell in range(cells) for g in (-1, 3 * cell, 3 * cell)]
        return cls((11, 6, 4) * cells, (1, -1, 0) * cells, tuple(gate))

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    def tables(self) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.int32], int]:
        """Row (J', 256) of each value of each entry (-1: none), its weight (J', 256), gates (J',), number of rows.

        J' counts the entry behind the pointer too.
        """
        sizes, reference, gate = list(self.sizes), list(self.reference), list(self.gate)
        if self.pointer is not None:
            target = self.pointer[1][0]
            sizes.append(sizes[target])
            reference.append(-1)
            gate.append(-1)
        rows = np.full((len(sizes), 256), -1, np.int32)
        weights = np.ones((len(sizes), 256), np.float32)
        count = 0
        for entry, size in enumerate(sizes):
            if size == 0:
                rows[entry, 1:] = count
                weights[entry] = np.arange(256, dtype=np.float32) / 255
                count += 1
                continue
            for value in range(size):
                if value != reference[entry]:
                    rows[entry, value] = count
                    count += 1
            rows[entry, size:] = rows[entry, size - 1]
        return rows, weights, np.array(gate, np.int32), count


class SymbolLayer(nn.Module):
    """(B, *obs_shape) uint8 → (B, width) float32: bias plus the rows of the facts that hold."""

    def __init__(self, symbols: Symbols, width: int) -> None:
        super().__init__()
        rows, weights, gate, count = symbols.tables()
        self.symbols = symbols
        self._numpy = (rows, weights, gate)
        self.register_buffer("rows", torch.from_numpy(rows).long(), persistent=False)
        self.register_buffer("weights", torch.from_numpy(weights), persistent=False)
        gates = torch.from_numpy(gate).long()
        self.register_buffer("gated", (gates >= 0).nonzero().flatten(), persistent=False)
        self.register_buffer("gates", gates[gates >= 0], persistent=False)
        targets = symbols.pointer[1] if symbols.pointer is not None else ()
        self.register_buffer("targets", torch.tensor(targets, dtype=torch.int64), persistent=False)
        self.weight = nn.Parameter(torch.empty(count, width))
        self.bias = nn.Parameter(torch.zeros(width))

    rows: Tensor
    weights: Tensor
    gated: Tensor
    gates: Tensor
    targets: Tensor

    def initialise(self, generator: torch.Generator) -> None:
        """Orthogonal with gain √2, as a dense layer on the one-hot encoding would be."""
        nn.init.orthogonal_(self.weight, math.sqrt(2), generator=generator)
        nn.init.zeros_(self.bias)

    def forward(self, observations: Tensor) -> Tensor:
        # The kernel is compiled already, and torch cannot look into it. A decorated `forward` would cost as much as an
        # acting step's matrix product, compiled or not, and the decorator loads torch's compiler, which takes a second.
        if torch.compiler.is_compiling():
            return torch.compiler.disable(self._rows_added)(observations)
        return self._rows_added(observations)

    def _rows_added(self, observations: Tensor) -> Tensor:
        entries = self._entries(observations)
        if entries.device.type == "cpu" and self.weight.dtype == torch.float32:
            if not torch.is_grad_enabled():
                return _row_sum(self.weight, self.bias, entries.contiguous(), self._numpy)
            return _RowSum.apply(self.weight, self.bias, entries, self._numpy)
        return self.one_hot(entries) @ self.weight + self.bias

    def one_hot(self, entries: Tensor) -> Tensor:
        """(B, J') uint8 → (B, rows) float32, the encoding that the layer multiplies with."""
        place = torch.arange(entries.shape[1], device=entries.device)
        values = entries.long()
        rows, weights = self.rows[place, values], self.weights[place, values]
        rows[:, self.gated] = torch.where(entries[:, self.gates] > 1, rows[:, self.gated], -1)
        holds = rows >= 0
        encoded = torch.zeros(len(entries), self.weight.shape[0], device=entries.device, dtype=self.weight.dtype)
        return encoded.scatter_add_(1, rows.clamp_min(0), torch.where(holds, weights, 0.0).to(encoded.dtype))

    def _entries(self, observations: Tensor) -> Tensor:
        flat = observations.flatten(1)
        if self.symbols.pointer is None:
            return flat
        selector = flat[:, self.symbols.pointer[0]].long().clamp_max(len(self.targets) - 1)
        return torch.cat([flat, flat.gather(1, self.targets[selector][:, None])], dim=1)


class _RowSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, bias: Tensor, entries: Tensor, tables: tuple[Any, Any, Any]) -> Tensor:
        entries = entries.contiguous()
        out = _row_sum(weight, bias, entries, tables)
        ctx.save_for_backward(entries)
        ctx.tables, ctx.shape = tables, weight.shape
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        (entries,) = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        weight = torch.zeros(ctx.shape)
        rows, weights, gate = ctx.tables
        _add_gradients(weight.numpy(), entries.numpy(), rows, weights, gate, gradient.numpy())
        return weight, gradient.sum(0), None, None


def _row_sum(weight: Tensor, bias: Tensor, entries: Tensor, tables: tuple[Any, Any, Any]) -> Tensor:
    out = bias.detach().expand(len(entries), -1).clone()  # always new memory: the rows are added in place
    _add_rows(weight.detach().numpy(), entries.numpy(), *tables, out.numpy())
    return out


@kernel
def _add_rows(weight, entries, rows, weights, gate, out):  # type: ignore[no-untyped-def]
    """out[b] += weights · weight[row], for every entry of b that has a row."""
    width = weight.shape[1]
    for b in range(entries.shape[0]):
        for j in range(entries.shape[1]):
            value = entries[b, j]
            row = rows[j, value]
            if row < 0 or (gate[j] >= 0 and entries[b, gate[j]] < 2):
                continue
            factor = weights[j, value]
            for h in range(width):
                out[b, h] += factor * weight[row, h]


@kernel
def _add_gradients(gradient, entries, rows, weights, gate, out):  # type: ignore[no-untyped-def]
    """gradient[row] += weights · out[b], the transpose of `_add_rows`."""
    width = gradient.shape[1]
    for b in range(entries.shape[0]):
        for j in range(entries.shape[1]):
            value = entries[b, j]
            row = rows[j, value]
            if row < 0 or (gate[j] >= 0 and entries[b, gate[j]] < 2):
                continue
            factor = weights[j, value]
            for h in range(width):
                gradient[row, h] += factor * out[b, h]
