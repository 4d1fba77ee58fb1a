"""A gated recurrent unit (Cho et al., 2014) over whole sequences, its gradients written out for the processor.

Autograd records some ten operations for each step, and going back through them takes longer than the products. Here a
step is one product and one kernel for what its gates need, and all that can be multiplied at once is.

Axes: T steps, B agents, H units, U distinct inputs.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bkrl.core.jit import helper, kernel


def remember(gates: Tensor, places: Tensor, hidden: Tensor, goes_on: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """(T, B, H), the memory after each step; that of torch's `GRUCell`, which forgets where an episode begins.

    Args:
        gates: (U, 3H) float32, the gates' share of the inputs, their bias included: reset, update, new.
        places: (T, B) int64, which of the inputs comes in each step.
        hidden: (B, H), the memory before the first step.
        goes_on: (T, B, 1) float32, 0 where an episode begins.
        weight, bias: (3H, H) and (3H,), the gates' share of the memory.
    """
    if gates.device.type != "cpu":
        return by_torch(gates, places, hidden, goes_on, weight, bias)
    if torch.is_grad_enabled():
        return _Remember.apply(gates, places, hidden, goes_on, weight, bias)
    return _forth(gates, places, hidden, goes_on, weight, bias)[0]


def by_torch(gates: Tensor, places: Tensor, hidden: Tensor, goes_on: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """What `remember` computes, in torch."""
    H, out = hidden.shape[1], []
    for now, going in zip(nn.functional.embedding(places, gates), goes_on, strict=True):
        before = hidden * going
        share = torch.addmm(bias, before, weight.t())
        reset, update = (now[:, : 2 * H] + share[:, : 2 * H]).sigmoid().split(H, 1)
        new = torch.addcmul(now[:, 2 * H :], reset, share[:, 2 * H :]).tanh()
        hidden = torch.lerp(new, before, update)
        out.append(hidden)
    return torch.stack(out)


def _forth(
    gates: Tensor, places: Tensor, hidden: Tensor, goes_on: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """What is remembered after each step and before it (T, B, H), and what the gates said there (T, B, 4H)."""
    (T, B), H = places.shape, hidden.shape[1]
    out, before, said = gates.new_empty(T, B, H), gates.new_empty(T, B, H), gates.new_empty(T, B, 4 * H)
    share, transposed = gates.new_empty(B, 3 * H), weight.t()
    arrays = [one.detach().contiguous().numpy() for one in (gates, places, goes_on)]
    arrays += [one.numpy() for one in (share, before, said, out)]
    torch.mul(hidden, goes_on[0], out=before[0])
    for t, memory in enumerate(before.unbind()):
        torch.addmm(bias, memory, transposed, out=share)
        _step(t, *arrays)
    return out, before, said


class _Remember(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, gates: Tensor, places: Tensor, hidden: Tensor, goes_on: Tensor, weight: Tensor, bias: Tensor
    ) -> Tensor:
        out, before, said = _forth(gates, places, hidden, goes_on, weight, bias)
        ctx.save_for_backward(places, goes_on, weight, before, said)
        ctx.inputs = len(gates)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        places, goes_on, weight, before, said = ctx.saved_tensors
        _, B, H = before.shape
        of_gates, of_weight, of_bias = torch.zeros(ctx.inputs, 3 * H), torch.zeros(3 * H, H), torch.zeros(3 * H)
        share, carried = torch.empty(B, 3 * H), torch.zeros(B, H)
        arrays = [one.contiguous().numpy() for one in (gradients[0], places, goes_on)]
        arrays += [one.numpy() for one in (carried, before, said, share, of_gates, of_bias)]
        transposed = share.t()
        for t, memory in reversed([*enumerate(before.unbind())]):
            _step_back(t, *arrays)
            if t or ctx.needs_input_grad[2]:
                carried.addmm_(share, weight)
            of_weight.addmm_(transposed, memory)
        return of_gates, None, carried * goes_on[0], None, of_weight, of_bias


@helper
def _sigmoid(x):  # type: ignore[no-untyped-def]
    """1 / (1 + exp(-x)), wrong by at most 1e-7. The compiler takes several at once, which it cannot with `math.exp`.

    exp(y) = 2^n exp(r) with y = n log 2 + r; exp(r) is Cephes' polynomial (Moshier, 1989), 2^n is written bit by bit.
    """
    y = np.float32(87) if x < np.float32(-87) else -x
    y = np.float32(-87) if x > np.float32(87) else y  # and what is not a number stays none
    middle = np.float32(12582912)  # 1.5 * 2^23: above it, float32 has whole numbers alone
    n = (y * np.float32(1.44269504) + middle) - middle
    r = y - n * np.float32(0.693359375) + n * np.float32(2.12194440e-4)
    p = np.float32(1.9875691500e-4)
    p = p * r + np.float32(1.3981999507e-3)
    p = p * r + np.float32(8.3334519073e-3)
    p = p * r + np.float32(4.1665795894e-2)
    p = p * r + np.float32(1.6666665459e-1)
    p = p * r + np.float32(5.0000001201e-1)
    p = p * r * r + r + np.float32(1)
    power = np.int32((np.int32(n) + 127) << 23).view(np.float32)
    return np.float32(1) / (np.float32(1) + p * power)


@kernel
def _step(t, gates, places, goes_on, share, before, said, out):  # type: ignore[no-untyped-def]
    """Step t: `said` are reset, update, new and the memory's share of new; `share` is its share of all gates."""
    T, B, H = out.shape
    # The compiler takes several units at once where loops read and write arrays that share no memory for certain.
    asked, answer = np.empty(2 * H, np.float32), np.empty(2 * H, np.float32)
    for b in range(B):
        row = places[t, b]
        for h in range(2 * H):
            asked[h] = gates[row, h] + share[b, h]
        for h in range(2 * H):
            answer[h] = _sigmoid(asked[h])
        for h in range(2 * H):
            said[t, b, h] = answer[h]
        for h in range(H):
            said[t, b, 3 * H + h] = share[b, 2 * H + h]
        for h in range(H):
            asked[h] = np.float32(2) * (gates[row, 2 * H + h] + answer[h] * share[b, 2 * H + h])
        for h in range(H):
            answer[h] = np.float32(2) * _sigmoid(asked[h]) - np.float32(1)  # tanh(x) = 2 sigmoid(2 x) - 1
        for h in range(H):
            said[t, b, 2 * H + h] = answer[h]
        for h in range(H):
            out[t, b, h] = answer[h] + said[t, b, H + h] * (before[t, b, h] - answer[h])
        if t + 1 < T:
            for h in range(H):
                before[t + 1, b, h] = out[t, b, h] * goes_on[t + 1, b, 0]


@kernel
def _step_back(t, gradient, places, goes_on, carried, before, said, share, of_gates, of_bias):  # type: ignore[no-untyped-def]
    """Step t back through the gates: (B, H) `carried` is what the step after it leaves, and what it leaves itself.

    `share` gets the gradient of the memory's share of the gates; what is due to inputs and bias is added up.
    """
    T, B, H = before.shape
    one = np.float32(1)
    arriving = np.empty(H, np.float32)
    for b in range(B):
        row = places[t, b]
        going = goes_on[t + 1, b, 0] if t + 1 < T else np.float32(0)
        # One loop for each array that is written: the compiler takes several units at once.
        for h in range(H):
            arriving[h] = gradient[t, b, h] + carried[b, h] * going
        for h in range(H):
            carried[b, h] = arriving[h] * said[t, b, H + h]
        for h in range(H):
            update = said[t, b, H + h]
            share[b, H + h] = arriving[h] * (before[t, b, h] - said[t, b, 2 * H + h]) * update * (one - update)
        for h in range(H):
            new = said[t, b, 2 * H + h]
            arriving[h] *= (one - said[t, b, H + h]) * (one - new * new)  # from here on that of new's argument
        for h in range(H):
            share[b, 2 * H + h] = arriving[h] * said[t, b, h]
        for h in range(H):
            reset = said[t, b, h]
            share[b, h] = arriving[h] * said[t, b, 3 * H + h] * reset * (one - reset)
        for h in range(2 * H):
            of_gates[row, h] += share[b, h]
        for h in range(3 * H):
            of_bias[h] += share[b, h]
        for h in range(H):
            of_gates[row, 2 * H + h] += arriving[h]
