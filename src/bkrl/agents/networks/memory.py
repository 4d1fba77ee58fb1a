"""A gated recurrent unit (Cho et al., 2014) over whole sequences, its gradients written out.

Autograd records some ten operations for each step, and going back through them takes longer than the products. Here a
step is one product and what its gates need, and all that can be multiplied at once is.

Axes: T steps, B agents, H units.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from bkrl.core.jit import kernel


def remember(inputs: Tensor, hidden: Tensor, goes_on: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """(T, B, H), the memory after each step; that of torch's `GRUCell`, which forgets where an episode begins.

    Args:
        inputs: (T, B, 3H), the gates' share of the inputs, their bias included: reset, update, new.
        hidden: (B, H), the memory before the first step.
        goes_on: (T, B, 1) float32, 0 where an episode begins.
        weight, bias: (3H, H) and (3H,), the gates' share of the memory.
    """
    if torch.is_grad_enabled():
        return _Remember.apply(inputs, hidden, goes_on, weight, bias)
    H, transposed, out = hidden.shape[1], weight.t(), []
    for now, going in zip(inputs, goes_on, strict=True):
        before = hidden * going
        share = torch.addmm(bias, before, transposed)
        reset, update = (now[:, : 2 * H] + share[:, : 2 * H]).sigmoid_().split(H, 1)
        new = torch.addcmul(now[:, 2 * H :], reset, share[:, 2 * H :]).tanh_()
        hidden = torch.lerp(new, before, update)
        out.append(hidden)
    return torch.stack(out)


class _Remember(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, hidden: Tensor, goes_on: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        T, B, H = *inputs.shape[:2], hidden.shape[1]
        out = torch.empty(T, B, H, device=inputs.device)
        before, new = torch.empty_like(out), torch.empty_like(out)
        gates, share = torch.empty(T, B, 2 * H, device=inputs.device), torch.empty_like(inputs)
        reset_and_update, reset, update = (one.unbind() for one in (gates, gates[..., :H], gates[..., H:]))
        rows = zip(*(one.split([2 * H, H], -1) for one in (inputs, share)), strict=True)
        (first, own_first), (last, own_last) = ([one.unbind() for one in pair] for pair in rows)
        transposed = weight.t()
        for t in range(T):
            torch.mul(hidden, goes_on[t], out=before[t])
            torch.addmm(bias, before[t], transposed, out=share[t])
            torch.add(first[t], own_first[t], out=reset_and_update[t]).sigmoid_()
            torch.addcmul(last[t], reset[t], own_last[t], out=new[t]).tanh_()
            hidden = torch.lerp(new[t], before[t], update[t], out=out[t])
        ctx.save_for_backward(goes_on, weight, before, new, gates, share)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, Tensor, Tensor]:
        goes_on, weight, before, new, gates, share = ctx.saved_tensors
        T, B, H = before.shape
        # Gradients of the gates' arguments: what is multiplied with the memory's share and with the inputs'.
        memory, inputs = torch.empty_like(share), torch.empty_like(share)
        carried = torch.zeros(B, H, device=before.device)
        arrays = [gradients[0].contiguous(), goes_on, carried, before, new, gates, share, memory, inputs]
        step = _back
        if before.device.type == "cpu":
            step, arrays = _back_on_cpu, [array.numpy() for array in arrays]
        for t in range(T - 1, -1, -1):
            step(t, *arrays)
            carried.addmm_(memory[t], weight)
        flat = memory.flatten(0, 1)
        return inputs, carried * goes_on[0], None, flat.t() @ before.flatten(0, 1), flat.sum(0)


@kernel
def _back_on_cpu(t, gradient, goes_on, carried, before, new, gates, share, memory, inputs):  # type: ignore[no-untyped-def]
    """Step t back through the gates: (B, H) `carried` is what the step after it leaves, and what it leaves itself."""
    T, B, H = before.shape
    one = np.float32(1)
    arriving = np.empty(H, np.float32)
    for b in range(B):
        going = goes_on[t + 1, b, 0] if t + 1 < T else np.float32(0)
        # One loop for each array that is written: the compiler takes several units at once.
        for h in range(H):
            arriving[h] = gradient[t, b, h] + carried[b, h] * going
        for h in range(H):
            carried[b, h] = arriving[h] * gates[t, b, H + h]
        for h in range(H):
            update = gates[t, b, H + h]
            inputs[t, b, H + h] = arriving[h] * (before[t, b, h] - new[t, b, h]) * update * (one - update)
        for h in range(H):
            inputs[t, b, 2 * H + h] = arriving[h] * (one - gates[t, b, H + h]) * (one - new[t, b, h] * new[t, b, h])
        for h in range(H):
            memory[t, b, 2 * H + h] = inputs[t, b, 2 * H + h] * gates[t, b, h]
        for h in range(H):
            inputs[t, b, h] = memory[t, b, 2 * H + h] * share[t, b, 2 * H + h] * (one - gates[t, b, h])
        for h in range(2 * H):
            memory[t, b, h] = inputs[t, b, h]


def _back(
    t: int,
    gradient: Tensor,
    goes_on: Tensor,
    carried: Tensor,
    before: Tensor,
    new: Tensor,
    gates: Tensor,
    share: Tensor,
    memory: Tensor,
    inputs: Tensor,
) -> None:
    """The same in torch, for other devices."""
    T, _, H = before.shape
    reset, update = gates[t].split(H, 1)
    arriving = gradient[t] + (carried * goes_on[t + 1] if t + 1 < T else 0)
    to_new = arriving * (1 - update) * (1 - new[t] * new[t])
    inputs[t, :, :H] = to_new * share[t, :, 2 * H :] * reset * (1 - reset)
    inputs[t, :, H : 2 * H] = arriving * (before[t] - new[t]) * update * (1 - update)
    inputs[t, :, 2 * H :] = to_new
    memory[t] = inputs[t]
    memory[t, :, 2 * H :] *= reset
    carried.copy_(arriving * update)
