"""The layers of a T5, computed for scoring: positions of the caller's choice, and nothing that every row shares twice.

transformers counts positions from the left of a row, so a tree of candidates would stand at wrong ones. Here distances
are given. What does not depend on the prompt is computed in one row, and no mask is made where nothing is padded.
Weights, adapters and gradients are those of the model; `Scorer` holds the first scores against the model's own forward.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding, rms_norm, scaled_dot_product_attention

_LARGE = 2**22
"""More weights of attention than this are computed in parts of about `_AT_ONCE`."""
_AT_ONCE = 2**19


def fits(model: Any) -> bool:
    """Whether a model's layers are those of T5, as in Flan-T5, mT5 and ByT5."""
    return model.config.model_type in ("t5", "mt5")


class Distances:
    """The bias of attention by distance, in one stack of layers.

    Args:
        stack: an encoder or a decoder.
    """

    def __init__(self, stack: Any) -> None:
        self.attention, self.both = stack.block[0].layer[0].SelfAttention, not stack.is_decoder
        self._square = torch.zeros(0, 0, dtype=torch.int64)

    def row(self, length: int) -> Tensor:
        """(1, H, S, S) for S positions in a row."""
        device = self.attention.relative_attention_bias.weight.device
        if len(self._square) < length or self._square.device != device:
            places = torch.arange(length, device=device)
            self._square = self._bucket(places - places[:, None])
        return self._bias(self._square[:length, :length])

    def of(self, distances: Tensor) -> Tensor:
        """(1, H, L, L) for distances (L, L): where a position that is looked at stands, minus where one looks from."""
        return self._bias(self._bucket(distances))

    def _bias(self, buckets: Tensor) -> Tensor:
        return embedding(buckets, self.attention.relative_attention_bias.weight).permute(2, 0, 1)[None]

    def _bucket(self, distances: Tensor) -> Tensor:
        """Which bias belongs to a distance (Raffel et al. 2020): one each at first, then ranges that grow."""
        count, far = self.attention.relative_attention_num_buckets, self.attention.relative_attention_max_distance
        behind = torch.zeros_like(distances)
        if self.both:
            count //= 2
            behind, apart = (distances > 0) * count, distances.abs()
        else:
            apart = (-distances).clamp(min=0)
        near = count // 2
        share = (apart.clamp(min=1).float() / near).log() / math.log(far / near)
        ranged = (near + (share * (count - near)).long()).clamp(max=count - 1)
        return behind + torch.where(apart < near, apart, ranged)


def encoded(layers: Sequence[Any], states: Tensor, mask: Tensor, distances: Distances) -> Tensor:
    """(B, S, D) states behind some layers of an encoder.

    Args:
        layers: blocks of the stack.
        states: (B, S, D) before them.
        mask: (B, S) bool, which positions are tokens.
        distances: those of the stack.
    """
    bias, seen = distances.row(states.shape[1]), _seen(mask)
    for block in layers:
        normed = _normed(block.layer[0], states)
        states = states + _attended(block.layer[0].SelfAttention, normed, normed, bias, seen)
        states = _forward(block, states)
    return states


def decoded(
    stack: Any, tokens: Tensor, looks: Tensor, apart: Tensor, distances: Distances, source: Tensor, mask: Tensor
) -> Tensor:
    """(B, L, D) last states of a decoder that reads the same tokens in each row.

    Args:
        stack: the decoder.
        tokens: (L,).
        looks: (L, L) bool, whether position i looks at position j.
        apart: (L, L), see `Distances.of`.
        distances: those of the stack.
        source: (B, S, D), of the encoder.
        mask: (B, S) bool, which of them are tokens.
    """
    seen = _seen(mask)
    bias = distances.of(apart).masked_fill(~looks, -math.inf)
    states = stack.embed_tokens(tokens)[None]  # one row for all, until it looks at the prompt
    for block in stack.block:
        normed = _normed(block.layer[0], states)
        states = states + _attended(block.layer[0].SelfAttention, normed, normed, bias, None)
        across = block.layer[1]
        states = states + _attended(across.EncDecAttention, _normed(across, states), source, None, seen)
        states = _forward(block, states)
    return finished(stack, states)


def finished(stack: Any, states: Tensor) -> Tensor:
    """States behind the last norm of a stack."""
    return _rms(stack.final_layer_norm, states)


def _seen(mask: Tensor) -> Tensor | None:
    """(B, 1, 1, S) bool, what may be looked at; None: everything."""
    return None if bool(mask.all()) else mask[:, None, None]


def _attended(attention: Any, queries: Tensor, source: Tensor, bias: Tensor | None, seen: Tensor | None) -> Tensor:
    """(B, L, D): queries (B or 1, L, D) that look at what is `seen` of source (B, S, D), with a bias (1, H, L, S)."""
    width = attention.key_value_proj_dim
    q, k, v = (
        layer(of).unflatten(2, (-1, width)).transpose(1, 2)
        for layer, of in ((attention.q, queries), (attention.k, source), (attention.v, source))
    )
    out = attend(q.expand(len(k), -1, -1, -1), k, v, bias, seen)
    said: Tensor = attention.o(out.transpose(1, 2).flatten(2))
    return said


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, seen: Tensor | None) -> Tensor:
    """(B, H, L, W): queries (B, H, L, W) that look at keys and values (B, H, S, W).

    Args:
        q, k, v: see above; products are not scaled.
        bias: (1, H, L, S), added to the scores.
        seen: (B, 1, 1, S) bool, what may be looked at; None: everything.
    """
    if q.is_cuda:
        mask = seen if bias is None else (bias if seen is None else bias.masked_fill(~seen, -math.inf)).to(q.dtype)
        return scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=1.0)
    if bias is None or len(q) * bias.numel() <= _LARGE:
        return _weights(q, k, bias, seen).to(v.dtype) @ v
    out: Tensor = _InParts.apply(q, k, v, bias, seen)  # type: ignore[no-untyped-call]
    return out


def _weights(q: Tensor, k: Tensor, bias: Tensor | None, seen: Tensor | None) -> Tensor:
    scores = q @ k.mT
    if bias is not None:
        scores = scores + bias
    if seen is not None:
        scores = scores.masked_fill(~seen, -math.inf)
    return scores.softmax(3)


class _InParts(torch.autograd.Function):
    """The same a few rows at a time, whose weights stay in the cache; they are computed again in the backward pass."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, seen: Tensor | None) -> Tensor:
        out = torch.empty_like(q)
        for r, part in _parts(len(q), bias, seen):
            out[r] = _weights(q[r], k[r], bias, part).to(v.dtype) @ v[r]
        ctx.save_for_backward(q, k, v, bias, seen, out)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, None]:  # type: ignore[override]
        q, k, v, bias, seen, out = ctx.saved_tensors
        mean = (gradient * out).sum(3, keepdim=True)
        of_q, of_k, of_v, of_bias = (torch.zeros_like(one) for one in (q, k, v, bias))
        for r, part in _parts(len(q), bias, seen):
            weights = _weights(q[r], k[r], bias, part)
            of_v[r] = weights.to(v.dtype).mT @ gradient[r]
            of_scores = weights * (gradient[r] @ v[r].mT - mean[r])
            of_bias += of_scores.sum(0)
            of_scores = of_scores.to(q.dtype)
            of_q[r], of_k[r] = of_scores @ k[r], of_scores.mT @ q[r]
        return of_q, of_k, of_v, of_bias, None


def _parts(count: int, bias: Tensor, seen: Tensor | None) -> Iterator[tuple[slice, Tensor | None]]:
    some = max(1, _AT_ONCE // bias.numel())
    for first in range(0, count, some):
        rows = slice(first, first + some)
        yield rows, seen if seen is None else seen[rows]


def _forward(block: Any, states: Tensor) -> Tensor:
    layer = block.layer[-1]
    made: Tensor = states + layer.DenseReluDense(_normed(layer, states))
    return made


def _normed(layer: Any, states: Tensor) -> Tensor:
    return _rms(layer.layer_norm, states)


def _rms(norm: Any, states: Tensor) -> Tensor:
    return rms_norm(states, states.shape[-1:], norm.weight, norm.variance_epsilon)
