"""The layers of a T5, computed for scoring: positions of the caller's choice, and nothing that every row shares twice.

transformers counts positions from the left of a row, so a tree of candidates would stand at wrong ones. Here distances
are given. What does not depend on the prompt is computed in one row, and no mask is made where nothing is padded.
Weights, adapters and gradients are those of the model; `Scorer` holds the first scores against the model's own forward.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear, rms_norm, scaled_dot_product_attention

from bkrl.agents.language import rows
from bkrl.agents.language.lanes import LANES
from bkrl.agents.language.rows import Counts


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
        self._line = torch.zeros(0, dtype=torch.int64)

    def row(self, length: int) -> Tensor:
        """(1, H, S, S) for S positions in a row."""
        device = self.attention.relative_attention_bias.weight.device
        if len(self._square) < length or self._square.device != device:
            places = torch.arange(length, device=device)
            self._square = self._bucket(places - places[:, None])
        return self._bias(self._square[:length, :length])

    def slopes(self, length: int) -> Tensor:
        """(H, 2 S + 16): number S + i − j is the bias of position i that looks at position j, of S in a row."""
        longest = (len(self._line) - LANES) // 2
        if longest < length:
            longest = length
            self._line = self._bucket(longest - torch.arange(2 * longest + LANES))
        chosen = self._line[longest - length : longest + length + LANES]
        return embedding(chosen, self.attention.relative_attention_bias.weight).T.contiguous()

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


@dataclass(frozen=True)
class EncoderStates:
    """States of B prompts of at most S tokens: without padding on a processor, where that would be computed in vain.

    On a GPU many small products are slower than a few with padding in them.

    Attributes:
        rows: (N, D), all tokens behind each other; on a GPU (B, S, D), and what is no token is any number.
        mask: (B, S) bool, which positions are tokens.
        which: (N,) the row of each token, where equal tokens have one; None: each has its own.
    """

    rows: Tensor
    mask: Tensor
    which: Tensor | None = None

    @staticmethod
    def read(embeddings: Any, tokens: Tensor, mask: Tensor) -> EncoderStates:
        """Those of tokens (B, S) before the first layer: equal tokens have equal ones there, wherever they stand."""
        if tokens.is_cuda:
            return EncoderStates(embeddings(tokens), mask)
        distinct, which = tokens[mask].unique(return_inverse=True)
        return EncoderStates(embeddings(distinct), mask, which)

    @staticmethod
    def of(padded: Tensor, mask: Tensor) -> EncoderStates:
        """Those that `padded` made."""
        if padded.is_cuda:
            return EncoderStates(padded, mask)
        row = padded.flatten(0, 1)
        return EncoderStates(row if bool(mask.all()) else row.index_select(0, _places(mask)), mask)

    def padded(self) -> Tensor:
        """(B, S, D)."""
        if self.rows.is_cuda:
            return self.rows
        B, S = self.mask.shape
        padded = self.rows.new_zeros(B * S, self.rows.shape[1])
        return padded.index_copy(0, _places(self.mask), self.rows).view(B, S, -1)

    @property
    def lengths(self) -> Counts:
        """(B,), tokens of the prompts."""
        counts: Counts = self.mask.sum(1).numpy()
        return counts


def _places(mask: Tensor) -> Tensor:
    return mask.flatten().nonzero().squeeze(1)


def encoded(layers: Sequence[Any], states: EncoderStates, distances: Distances) -> EncoderStates:
    """States behind some layers of an encoder.

    Args:
        layers: blocks of the stack.
        states: before them.
        distances: those of the stack.
    """
    row, mask, which = states.rows, states.mask, states.which
    if row.is_cuda:
        bias, seen = distances.row(mask.shape[1]), _seen(mask)
        for block in layers:
            normed = _rms(block.layer[0].layer_norm, row)
            row = _forward(block, row + _attended(block.layer[0].SelfAttention, normed, normed, bias, seen))
        return EncoderStates(row, mask)
    slopes, lengths = distances.slopes(mask.shape[1]), states.lengths
    for block in layers:
        attention = block.layer[0].SelfAttention
        qkv = _projected(block.layer[0].layer_norm, row, [attention.q, attention.k, attention.v])
        if which is not None:
            qkv, row, which = qkv.index_select(0, which), row.index_select(0, which), None
        row = _forward(block, row + attention.o(rows.to_itself(qkv, slopes, lengths)))
    return EncoderStates(row, mask, which)


def decoded(
    stack: Any, tokens: Tensor, looks: Tensor, apart: Tensor, distances: Distances, source: EncoderStates
) -> Tensor:
    """(B, L, D) last states of a decoder that reads the same tokens in each row.

    Args:
        stack: the decoder.
        tokens: (L,).
        looks: (L, L) bool, whether position i looks at position j.
        apart: (L, L), see `Distances.of`.
        distances: those of the stack.
        source: of the encoder.
    """
    bias = distances.of(apart).masked_fill(~looks, -math.inf)
    states = stack.embed_tokens(tokens)[None]  # one row for all, until it looks at the prompt
    for block in stack.block:
        attention, norm = block.layer[0].SelfAttention, block.layer[0].layer_norm
        if states.is_cuda:
            normed = _rms(norm, states)
            states = states + _attended(attention, normed, normed, bias, None)
        else:
            qkv = _projected(norm, states, [attention.q, attention.k, attention.v])
            states = states + attention.o(rows.in_tree(qkv, bias[0]))
        across = block.layer[1]
        states = states + _across(across.EncDecAttention, _rms(across.layer_norm, states), source)
        states = _forward(block, states)
    return _rms(stack.final_layer_norm, states)


def finished(stack: Any, states: EncoderStates) -> EncoderStates:
    """States behind the last norm of a stack."""
    return EncoderStates(_rms(stack.final_layer_norm, states.rows), states.mask, states.which)


def _seen(mask: Tensor) -> Tensor | None:
    """(B, 1, 1, S) bool, what may be looked at; None: everything."""
    return None if bool(mask.all()) else mask[:, None, None]


def _attended(attention: Any, queries: Tensor, source: Tensor, bias: Tensor | None, seen: Tensor | None) -> Tensor:
    """(B, L, D): queries (B or 1, L, D) that look at what is `seen` of source (B, S, D), with a bias (1, H, L, S)."""
    q, k, v = (
        layer(of).unflatten(2, (-1, attention.key_value_proj_dim)).transpose(1, 2)  # (B, L, H W) → (B, H, L, W)
        for layer, of in ((attention.q, queries), (attention.k, source), (attention.v, source))
    )
    return _out(attention, _attend(q.expand(len(k), -1, -1, -1), k, v, bias, seen))


def _across(attention: Any, queries: Tensor, source: EncoderStates) -> Tensor:
    """(B, L, D): few queries (B or 1, L, D) that look at the tokens of B prompts.

    q (W_k x) is (q W_k) x, and a mean of W_v x is W_v of the mean of x: so the products with the weights are made for L
    queries, not for S positions. That is less where L is less than the width of a head.
    """
    L, W = queries.shape[1], attention.key_value_proj_dim
    if not (L <= W and _plain(attention.k) and _plain(attention.v)):
        return _attended(attention, queries, source.padded(), None, _seen(source.mask))
    q = attention.q(queries).flatten(0, 1).unflatten(1, (-1, W))
    H, B = q.shape[1], len(source.mask)
    looked = torch.bmm(q.transpose(0, 1), attention.k.weight.view(H, W, -1)).transpose(0, 1)
    looked = looked.reshape(len(queries), L * H, -1).expand(B, -1, -1)
    if source.rows.is_cuda:
        seen = _seen(source.mask)
        weights = _weights(looked, source.rows, None, None if seen is None else seen[:, 0])
        means = weights.to(source.rows.dtype) @ source.rows
    else:
        means = rows.to_prompts(looked, source.rows, source.lengths)
    said = torch.bmm(means.view(B * L, H, -1).transpose(0, 1), attention.v.weight.view(H, W, -1).mT)
    made: Tensor = attention.o(said.transpose(0, 1).reshape(B, L, -1))
    return made


def _plain(layer: Any) -> bool:
    """Whether a layer is its weights: an adapter adds to them."""
    return type(layer) is nn.Linear and layer.bias is None


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


def _forward(block: Any, states: Tensor) -> Tensor:
    layer = block.layer[-1]
    dense, norm = layer.DenseReluDense, layer.layer_norm
    gate = [dict(dense.named_children()).get(name) for name in ("wi_0", "wi_1")]
    gelu = getattr(dense.act, "approximate", None) == "tanh"
    if gelu and all(map(_plain, gate)) and dense.wi_0.out_features % LANES == 0 and rows.fits(states):
        made: Tensor = states + dense.wo(rows.gated(_projected(norm, states, gate)))
    else:
        made = states + dense(_rms(norm, states))
    return made


def _projected(norm: Any, states: Tensor, layers: Sequence[Any]) -> Tensor:
    """(..., ΣO): what layers say of normed states (..., D), one behind the other."""
    if not (all(map(_plain, layers)) and rows.fits(states)):
        states = _rms(norm, states)
        return torch.cat([layer(states) for layer in layers], -1)
    # The norm's weights belong to columns: those of the layers take them on.
    weights = torch.cat([layer.weight for layer in layers]) * norm.weight
    return linear(rows.normed(states, norm.variance_epsilon), weights)


def _rms(norm: Any, states: Tensor) -> Tensor:
    if rows.fits(states):
        return rows.normed(states, norm.variance_epsilon) * norm.weight
    return rms_norm(states, states.shape[-1:], norm.weight, norm.variance_epsilon)
