"""The kernels of `kernels` as operations of torch, with gradients.

They compute in float32 and cast back to the type of the input.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import pad

from bkrl.agents.language import kernels
from bkrl.agents.language.lanes import LANES

Counts = NDArray[np.int64]


def _flat(tensor: Tensor) -> NDArray[np.float32]:
    """The numbers of a tensor; the same memory where that holds float32 without gaps."""
    found: NDArray[np.float32] = tensor.detach().float().contiguous().view(-1).numpy()
    return found


@cache
def _threads(count: int, process: int) -> ThreadPoolExecutor:
    del process  # one that was forked has none of its parent's threads
    return ThreadPoolExecutor(count)


def _in_parts(call: Callable[[NDArray[np.int64], int], None], queries: Counts, keys: Counts) -> None:
    """Have `call` compute all prompts, in as many parts at once as torch has threads; it is given span and number."""
    parts = min(torch.get_num_threads(), len(keys))
    before_q, before_k = (np.concatenate([[0], counts.cumsum()]) for counts in (queries, keys))
    ends = np.linspace(0, len(keys), parts + 1).astype(int)
    spans = [np.array([a, b, before_q[a], before_k[a]]) for a, b in pairwise(ends)]
    if parts == 1:
        call(spans[0], 0)
    else:
        list(_threads(parts, os.getpid()).map(call, spans, range(parts)))


class _Attention(Function):
    @staticmethod
    def forward(
        ctx: Any, asking: Tensor, answering: Tensor | None, bias: Tensor | None, H: int, queries: Counts, keys: Counts,
        middle: int = 0, step: int = 0,
    ) -> Tensor:  # fmt: skip
        itself = answering is None
        width = asking.shape[1] // 3 if itself else asking.shape[1]
        out, logs = torch.empty(len(asking), width), np.empty((H, len(asking)), np.float32)
        q = _flat(asking)
        k = q if answering is None else _flat(answering)
        pitches = np.array([asking.shape[1], asking.shape[1] if itself else width, width])
        firsts = np.array([0, width, 2 * width, middle, step] if itself else [0, 0, 0, 0, 0])
        near = np.empty((H, 0), np.float32) if bias is None else _flat(bias).reshape(bias.shape)
        ctx.read, ctx.made = (q, k, k, pitches, firsts), (queries, keys, near, _flat(out), logs)
        ctx.kinds = [None if one is None else (one.dtype, one.shape) for one in (asking, answering, bias)]
        _in_parts(lambda span, _: kernels.attend(*(*ctx.read, span, *ctx.made)), queries, keys)
        return out.to(asking.dtype)

    @staticmethod
    def backward(ctx: Any, given: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        (q, k, *_), (queries, keys, near, *_) = ctx.read, ctx.made
        towards, of_q = _flat(given), np.empty_like(q)
        apart = np.empty_like(k[: k.size if ctx.needs_input_grad[1] else 0])  # states of a frozen encoder learn nothing
        of_k, of_v = (of_q, of_q) if ctx.kinds[1] is None else (apart, np.empty_like(apart))
        of_near = np.zeros((torch.get_num_threads(), *near.shape), np.float32)

        def part(span: NDArray[np.int64], number: int) -> None:
            kernels.attend_back(*(*ctx.read, span, *ctx.made, towards, of_q, of_k, of_v, of_near[number]))

        _in_parts(part, queries, keys)
        if ctx.kinds[1] is not None:
            of_k += of_v
        made = [
            None if kind is None or not one.size else torch.from_numpy(one).view(kind[1]).to(kind[0])
            for one, kind in zip((of_q, of_k, of_near.sum(0)), ctx.kinds, strict=True)
        ]
        return *made, *[None] * 5


def to_itself(qkv: Tensor, slopes: Tensor, lengths: Counts) -> Tensor:
    """(N, H W): attention of prompts that stand behind each other, each to itself.

    Args:
        qkv: (N, 3 H W), queries, keys and values of N tokens; products are not scaled.
        slopes: (H, 2 S + 16), the bias by distance: S + i − j is that of query i and key j.
        lengths: of the prompts, at most S.
    """
    middle, H = (slopes.shape[1] - LANES) // 2, len(slopes)
    made: Tensor = _Attention.apply(qkv, None, slopes, H, lengths, lengths, middle, -1)  # type: ignore[no-untyped-call]
    return made


def in_tree(qkv: Tensor, bias: Tensor) -> Tensor:
    """(B, L, H W): attention of B rows of a decoder, each to itself.

    Args:
        qkv: (B, L, 3 H W), queries, keys and values; products are not scaled.
        bias: (H, L, L), of query i and key j, −∞ where i does not look at j.
    """
    H, L, _ = bias.shape
    wide = -(-L // LANES) * LANES
    lines, lengths = pad(bias.mT, (0, wide - L)).flatten(1), np.full(len(qkv), L)
    made: Tensor = _Attention.apply(qkv.flatten(0, 1), None, lines, H, lengths, lengths, 0, wide)  # type: ignore[no-untyped-call]
    return made.unflatten(0, (-1, L))


def to_prompts(queries: Tensor, states: Tensor, lengths: Counts) -> Tensor:
    """(B, L, D): for each of B prompts the means of its states (N, D) that L queries (B, L, D) look for."""
    B, L, D = queries.shape
    counts = np.full(B, L)
    made: Tensor = _Attention.apply(queries.reshape(-1, D), states, None, 1, counts, lengths)  # type: ignore[no-untyped-call]
    return made.view(B, L, D)


class _Gated(Function):
    @staticmethod
    def forward(ctx: Any, both: Tensor) -> Tensor:
        out = torch.empty(*both.shape[:-1], both.shape[-1] // 2)
        ctx.both, ctx.kind = _flat(both), (both.dtype, both.shape)
        kernels.gated(ctx.both, out.shape[-1], _flat(out))
        return out.to(both.dtype)

    @staticmethod
    def backward(ctx: Any, given: Tensor) -> Tensor:  # type: ignore[override]
        made = np.empty_like(ctx.both)
        kernels.gated_back(ctx.both, given.shape[-1], _flat(given), made)
        return torch.from_numpy(made).view(ctx.kind[1]).to(ctx.kind[0])


def gated(both: Tensor) -> Tensor:
    """(..., F): gelu(a) b of (..., 2 F), a and behind it b; F is a multiple of 16, and gelu the one by tanh."""
    made: Tensor = _Gated.apply(both)  # type: ignore[no-untyped-call]
    return made


class _Normed(Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, epsilon: float) -> Tensor:
        out, ctx.scales = torch.empty(rows.shape), np.empty(rows.numel() // rows.shape[-1], np.float32)
        ctx.out, ctx.dtype = _flat(out), rows.dtype
        kernels.normed(_flat(rows), rows.shape[-1], epsilon, ctx.out, ctx.scales)
        return out.to(rows.dtype)

    @staticmethod
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        made = torch.empty(given.shape)
        kernels.normed_back(ctx.out, given.shape[-1], ctx.scales, _flat(given), _flat(made))
        return made.to(ctx.dtype), None


def normed(rows: Tensor, epsilon: float) -> Tensor:
    """Rows (..., D) over the root of their mean square; D is a multiple of 16."""
    made: Tensor = _Normed.apply(rows, epsilon)  # type: ignore[no-untyped-call]
    return made


def fits(tensor: Tensor) -> bool:
    """Whether `gated` and `normed` take rows of this width, on this device."""
    return not tensor.is_cuda and tensor.shape[-1] % LANES == 0
