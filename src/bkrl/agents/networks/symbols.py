"""The first layer of a network that reads symbols: a sum of one weight row for each fact that holds.

One-hot encoding an observation and multiplying it with a matrix adds up the rows of the facts that hold. There are
few of those (a room shows mostly floor) and many that do not, so on a CPU the rows are added directly, which is some
ten times quicker than the product. Elsewhere the product is formed. Both say the same up to rounding.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from bkrl.core.jit import kernel
from bkrl.envs.symbols import Symbols


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
        _add_rows(weight.numpy(), entries.numpy(), rows, weights, gate, None, gradient.numpy())
        return weight, gradient.sum(0), None, None


def _row_sum(weight: Tensor, bias: Tensor, entries: Tensor, tables: tuple[Any, Any, Any]) -> Tensor:
    out = bias.detach().expand(len(entries), -1).clone()  # always new memory: the rows are added in place
    _add_rows(weight.detach().numpy(), entries.numpy(), *tables, out.numpy(), None)
    return out


@kernel
def _add_rows(weight, entries, rows, weights, gate, out, gradient):  # type: ignore[no-untyped-def]
    """out[b] += weights · weight[row], for every entry of b that has a row; or, the transpose of that, weight[row] +=
    weights · gradient[b]. What is not wanted is None.
    """
    width = weight.shape[1]
    for b in range(entries.shape[0]):
        for j in range(entries.shape[1]):
            value = entries[b, j]
            row = rows[j, value]
            if row < 0 or (gate[j] >= 0 and entries[b, gate[j]] < 2):
                continue
            factor = weights[j, value]
            if out is not None:  # else numba does not compile it
                for h in range(width):
                    out[b, h] += factor * weight[row, h]
            if gradient is not None:
                for h in range(width):
                    weight[row, h] += factor * gradient[b, h]
