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
    return _Remember.apply(inputs, hidden, goes_on, weight, bias)


class _Remember(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, hidden: Tensor, goes_on: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        T, B, H = *inputs.shape[:2], hidden.shape[1]
        out = torch.empty(T, B, H, device=inputs.device)
        before, new = torch.empty_like(out), torch.empty_like(out)
        gates, share = torch.empty(T, B, 2 * H, device=inputs.device), torch.empty_like(inputs)
        transposed = weight.t()
        for t in range(T):
            torch.mul(hidden, goes_on[t], out=before[t])
            torch.addmm(bias, before[t], transposed, out=share[t])
            torch.add(inputs[t, :, : 2 * H], share[t, :, : 2 * H], out=gates[t]).sigmoid_()
            torch.addcmul(inputs[t, :, 2 * H :], gates[t, :, :H], share[t, :, 2 * H :], out=new[t]).tanh_()
            hidden = torch.lerp(new[t], before[t], gates[t, :, H:], out=out[t])
        ctx.save_for_backward(goes_on, weight, before, new, gates, share)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, Tensor, Tensor]:
        goes_on, weight, before, new, gates, share = ctx.saved_tensors
        T, B, H = before.shape
        # Gradients of the gates' arguments: what is multiplied with the memory's share and with the inputs'.
        memory, inputs = torch.empty_like(share), torch.empty_like(share)
        carried = torch.zeros(B, H, device=before.device)
        step = _back_on_cpu if before.device.type == "cpu" else _back
        for t in range(T - 1, -1, -1):
            carried += gradients[0][t]
            step(carried, before[t], new[t], gates[t], share[t], memory[t], inputs[t])
            carried = carried.addmm_(memory[t], weight).mul_(goes_on[t])
        flat = memory.flatten(0, 1)
        return inputs, carried, None, flat.t() @ before.flatten(0, 1), flat.sum(0)


def _back_on_cpu(*arrays: Tensor) -> None:
    _gates_back(*(array.numpy() for array in arrays))


@kernel
def _gates_back(carried, before, new, gates, share, memory, inputs):  # type: ignore[no-untyped-def]
    """One step back through the gates: (B, H) `carried` arrives at the step's memory and leaves at the one before."""
    B, H = carried.shape
    one = np.float32(1)
    for b in range(B):
        for h in range(H):
            reset, update = gates[b, h], gates[b, H + h]
            arriving = carried[b, h]
            to_new = arriving * (one - update) * (one - new[b, h] * new[b, h])
            to_update = arriving * (before[b, h] - new[b, h]) * update * (one - update)
            to_reset = to_new * share[b, 2 * H + h] * reset * (one - reset)
            inputs[b, h] = memory[b, h] = to_reset
            inputs[b, H + h] = memory[b, H + h] = to_update
            inputs[b, 2 * H + h] = to_new
            memory[b, 2 * H + h] = to_new * reset
            carried[b, h] = arriving * update


def _back(
    carried: Tensor, before: Tensor, new: Tensor, gates: Tensor, share: Tensor, memory: Tensor, inputs: Tensor
) -> None:
    """The same in torch, for other devices."""
    H = carried.shape[1]
    reset, update = gates.split(H, 1)
    to_new = carried * (1 - update) * (1 - new * new)
    torch.cat(
        [to_new * share[:, 2 * H :] * reset * (1 - reset), carried * (before - new) * update * (1 - update)],
        1,
        out=inputs[:, : 2 * H],
    )
    inputs[:, 2 * H :] = to_new
    memory.copy_(inputs)[:, 2 * H :].mul_(reset)
    carried *= update
