"""The layers of a T5, computed for scoring: positions of the caller's choice, and nothing that every row shares twice.

transformers counts positions from the left of a row, so a tree of candidates would stand at wrong ones. Here distances
are given. What does not depend on the prompt is computed in one row, and no mask is made where nothing is padded.
Weights, adapters and gradients are those of the model; `Scorer` holds the first scores against the model's own forward.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, rms_norm, scaled_dot_product_attention

_LARGE = 2**17
"""More weights of attention than this are not kept for the backward pass."""


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
        return embedding(buckets, self.attention.relative_attention_bias.weight).permute(2, 0, 1).contiguous()[None]

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
    """(B, S, D) states behind some layers of an encoder; what is no token is any number.

    On a processor nothing is computed for padding: tokens stand in one row behind each other, and each prompt looks at
    itself. On a GPU many small products are slower than a few with padding in them.

    Args:
        layers: blocks of the stack.
        states: (B, S, D) before them.
        mask: (B, S) bool, which positions are tokens.
        distances: those of the stack.
    """
    bias, lengths = distances.row(states.shape[1]), mask.sum(1).tolist()
    whole = min(lengths) == states.shape[1]
    if states.is_cuda or (whole and not torch.is_grad_enabled()):
        seen = _seen(mask)
        for block in layers:
            normed = _normed(block.layer[0], states)
            states = states + _attended(block.layer[0].SelfAttention, normed, normed, bias, seen)
            states = _forward(block, states)
        return states
    row = states.flatten(0, 1)
    if not whole:
        places = mask.flatten().nonzero().squeeze(1)
        row = row.index_select(0, places)
    for block in layers:
        attention = block.layer[0].SelfAttention
        normed = _normed(block.layer[0], row)
        qkv = torch.cat([attention.q(normed), attention.k(normed), attention.v(normed)], 1)
        out: Tensor = _EachToItself.apply(qkv, bias[0], lengths)  # type: ignore[no-untyped-call]
        row = _forward(block, row + attention.o(out))
    if not whole:
        row = row.new_zeros(mask.numel(), row.shape[1]).index_copy(0, places, row)
    return row.unflatten(0, mask.shape)


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
        states = states + _across(across.EncDecAttention, _normed(across, states), source, seen)
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
    q, k, v = (
        _heads(attention, layer(of))
        for layer, of in ((attention.q, queries), (attention.k, source), (attention.v, source))
    )
    return _out(attention, _attend(q.expand(len(k), -1, -1, -1), k, v, bias, seen))


def _across(attention: Any, queries: Tensor, source: Tensor, seen: Tensor | None) -> Tensor:
    """(B, L, D): few queries (B or 1, L, D) that look at what is `seen` of source (B, S, D).

    q (W_k x) is (q W_k) x, and a mean of W_v x is W_v of the mean of x: so the products with the weights are made for L
    queries, not for S positions. That is less where L is less than the width of a head.
    """
    if not (queries.shape[1] <= attention.key_value_proj_dim and _plain(attention.k) and _plain(attention.v)):
        return _attended(attention, queries, source, None, seen)
    q = _heads(attention, attention.q(queries))
    H, L, W = q.shape[1:]
    looked = (q @ attention.k.weight.view(H, W, -1)).flatten(1, 2)
    weights = _weights(looked.expand(len(source), -1, -1), source, None, None if seen is None else seen[:, 0])
    means = (weights.to(source.dtype) @ source).unflatten(1, (H, L))
    return _out(attention, means @ attention.v.weight.view(H, W, -1).mT)


def _plain(layer: Any) -> bool:
    """Whether a layer is its weights: an adapter adds to them."""
    return type(layer) is nn.Linear and layer.bias is None


def _heads(attention: Any, states: Tensor) -> Tensor:
    """(B, L, H W) → (B, H, L, W)."""
    return states.unflatten(2, (-1, attention.key_value_proj_dim)).transpose(1, 2)


def _out(attention: Any, heads: Tensor) -> Tensor:
    said: Tensor = attention.o(heads.transpose(1, 2).flatten(2))
    return said


def _attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, seen: Tensor | None) -> Tensor:
    """(B, H, L, W): queries (B, H, L, W) that look at keys and values (B, H, S, W).

    Args:
        q, k, v: see above; products are not scaled.
        bias: (1, H, L, S), added to the scores.
        seen: (B, 1, 1, S) bool, what may be looked at; None: everything.
    """
    if q.is_cuda or not torch.is_grad_enabled():  # on a processor a bias gets no gradient there
        mask = seen if bias is None else (bias if seen is None else bias.masked_fill(~seen, -math.inf)).to(q.dtype)
        return scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=1.0)
    return _weights(q, k, bias, seen).to(v.dtype) @ v


def _weights(q: Tensor, k: Tensor, bias: Tensor | None, seen: Tensor | None) -> Tensor:
    scores = q @ k.mT
    if bias is not None:
        scores = scores + bias
    if seen is not None:
        scores = scores.masked_fill(~seen, -math.inf)
    return scores.softmax(-1)


class _EachToItself(torch.autograd.Function):
    """Attention of prompts that stand behind each other, each to itself, one after the other: what is computed of one
    stays in the cache. The bias has a gradient, which torch's own attention has not.

    The weights of long prompts are computed again in the backward pass.
    """

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, bias: Tensor, lengths: Sequence[int]) -> Tensor:
        """(N, H W) of the N tokens of some prompts.

        Args:
            qkv: (N, 3 H W), their queries, keys and values.
            bias: (H, S, S), added to the scores.
            lengths: of the prompts.
        """
        made, kept = [], []
        for near, q, k, v in zip(_nears(bias, lengths), *_each(qkv, bias, lengths, 3), strict=True):
            weights = None if near.numel() > _LARGE else _shares(q, k, near)
            if weights is None:
                mask = near[None].to(q.dtype)
                made.append(scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=mask, scale=1.0)[0])
            else:
                made.append(weights.to(v.dtype) @ v)
            kept.append(weights)
        out = _joined([made])
        ctx.lengths, ctx.kept = lengths, kept
        ctx.save_for_backward(qkv, bias, out)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        qkv, bias, out = ctx.saved_tensors
        lengths, of_bias = ctx.lengths, torch.zeros_like(bias)
        means = (gradient * out).unflatten(1, (len(bias), -1)).sum(2).T[:, :, None].split(lengths, 1)
        of_q, of_k, of_v = [], [], []
        given = _each(gradient, bias, lengths, 1)
        rows = zip(
            ctx.kept, _nears(bias, lengths), _nears(of_bias, lengths), means, *given, *_each(qkv, bias, lengths, 3)
        )
        for weights, near, of_near, mean, towards, q, k, v in rows:
            weights = _shares(q, k, near) if weights is None else weights
            of_v.append(weights.mT.to(v.dtype) @ towards)
            of_scores = (towards @ v.mT).to(weights.dtype).sub_(mean).mul_(weights)
            of_near += of_scores
            of_scores = of_scores.to(q.dtype)
            of_q.append(of_scores @ k)
            of_k.append(of_scores.mT @ q)
        return _joined([of_q, of_k, of_v]), of_bias, None


def _shares(q: Tensor, k: Tensor, bias: Tensor) -> Tensor:
    """(H, S, S), the weights of attention of one prompt to itself."""
    if q.dtype == bias.dtype:
        return torch.baddbmm(bias, q, k.mT).softmax(2)
    return (q @ k.mT + bias).softmax(2)


def _nears(bias: Tensor, lengths: Sequence[int]) -> list[Tensor]:
    """(H, s, s) of (H, S, S) for each length s."""
    nears = {length: bias[:, :length, :length] for length in set(lengths)}
    return [nears[length] for length in lengths]


def _each(rows: Tensor, bias: Tensor, lengths: Sequence[int], count: int) -> list[tuple[Tensor, ...]]:
    """What rows (N, count H W) hold of each prompt: `count` times (H, s, W)."""
    heads = rows.unflatten(1, (count * len(bias), -1)).transpose(0, 1)
    return [part.split(lengths, 1) for part in heads.split(len(bias))]


def _joined(parts: Sequence[Sequence[Tensor]]) -> Tensor:
    """The rows (N, n H W) that `_each` took apart."""
    return torch.cat([torch.cat(list(part), 1) for part in parts]).transpose(0, 1).flatten(1)


def _forward(block: Any, states: Tensor) -> Tensor:
    layer = block.layer[-1]
    made: Tensor = states + layer.DenseReluDense(_normed(layer, states))
    return made


def _normed(layer: Any, states: Tensor) -> Tensor:
    return _rms(layer.layer_norm, states)


def _rms(norm: Any, states: Tensor) -> Tensor:
    return rms_norm(states, states.shape[-1:], norm.weight, norm.variance_epsilon)
