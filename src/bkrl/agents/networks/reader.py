"""A gated recurrent unit (Cho et al. 2014) over long texts of different lengths.

The same function as `torch.nn.GRU` on packed sequences, whose backward pass copies whole arrays at every step. Here
what a token adds to the gates is computed once for each token of the vocabulary, and the gradient of the weights once
for all steps.

Axes: B texts, V tokens of the vocabulary, P tokens of all texts together, H units. The P tokens stand in the order of
torch's packed sequences: the first of each text, the longest text first; then the second of each that has two; …
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


def read(reader: nn.GRU, embedding: nn.Embedding, tokens: Tensor, lengths: Tensor) -> Tensor:
    """(B, H) what the unit knows after the last token of each text.

    Args:
        reader: one layer, one direction.
        embedding: of the tokens.
        tokens: (B, S) int64.
        lengths: (B,) int64 on the processor, at least 1; tokens behind them do not count.
    """
    packed = nn.utils.rnn.pack_padded_sequence(tokens, lengths, batch_first=True, enforce_sorted=False)
    weights: Sequence[Tensor] = reader.all_weights[0]  # input, hidden, their biases
    by_token = nn.functional.linear(embedding.weight, weights[0], weights[2])  # (V, 3 H)
    gates, counts = nn.functional.embedding(packed.data, by_token), packed.batch_sizes.tolist()
    last: Tensor = _Unit.apply(gates, weights[1], weights[3], counts)  # type: ignore[no-untyped-call]
    return last[packed.unsorted_indices]


class _Unit(torch.autograd.Function):
    """The recurrence, with gates in torch's order: r (reset), z (update), n (new).

    h' = n + z (h - n), r = σ(x_r + W_r h + b_r), z = σ(x_z + W_z h + b_z), n = tanh(x_n + r (W_n h + b_n)).
    """

    @staticmethod
    def forward(ctx: Any, gates: Tensor, weight: Tensor, bias: Tensor, counts: list[int]) -> Tensor:  # type: ignore[override]
        """(B, H) from gates (P, 3 H), what the tokens add to r, z and n, and `counts` (S,), texts so long."""
        H, kept = weight.shape[1], len(gates) if ctx.needs_input_grad[0] else 0
        before, news = gates.new_empty(kept, H), gates.new_empty(kept, H)
        switches, offers = gates.new_empty(kept, 2 * H), gates.new_empty(kept, H)
        hidden, turned = gates.new_zeros(counts[0], H), weight.T.contiguous()
        stop = 0
        for k in counts:
            start, stop, old = stop, stop + k, hidden[:k]
            inner = torch.addmm(bias, old, turned)
            rz = inner[:, : 2 * H].add_(gates[start:stop, : 2 * H]).sigmoid_()
            new = torch.addcmul(gates[start:stop, 2 * H :], rz[:, :H], inner[:, 2 * H :]).tanh_()
            if kept:
                before[start:stop], news[start:stop] = old, new
                switches[start:stop], offers[start:stop] = rz, inner[:, 2 * H :]
            hidden[:k] = new.lerp_(old, rz[:, H:])
        ctx.counts = counts
        ctx.save_for_backward(before, switches, news, offers, weight)
        return hidden

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:  # type: ignore[override]
        """Of gates, weight and bias."""
        before, switches, news, offers, weight = ctx.saved_tensors
        (P, H), of_hidden, start = before.shape, gradient.clone(), len(before)
        of_gates, of_inner = before.new_empty(P, 3 * H), before.new_empty(P, 3 * H)
        # What a gradient at the output of a gate is worth before it, for all tokens at once.
        resets, updates = switches[:, :H], switches[:, H:]
        by_new = (1 - updates) * (1 - news * news)
        by_update = (before - news) * updates * (1 - updates)
        by_reset = offers * resets * (1 - resets)
        for k in reversed(ctx.counts):
            start, stop = start - k, start
            after, here = of_hidden[:k], of_inner[start:stop]
            of_new = torch.mul(after, by_new[start:stop], out=of_gates[start:stop, 2 * H :])
            torch.mul(of_new, by_reset[start:stop], out=here[:, :H])
            torch.mul(after, by_update[start:stop], out=here[:, H : 2 * H])
            torch.mul(of_new, resets[start:stop], out=here[:, 2 * H :])
            after.mul_(updates[start:stop]).addmm_(here, weight)
        of_gates[:, : 2 * H] = of_inner[:, : 2 * H]
        return of_gates, of_inner.T @ before, of_inner.sum(0), None
