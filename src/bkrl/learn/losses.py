"""What PPO minimises (Schulman et al., 2017), with gradients written out for the processor.

Autograd records some thirty operations for it, each of which takes longer than what it computes of a thousand steps.

Axes: S steps of a rollout, B of them in a minibatch, A actions, K reward streams.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bkrl.core.jit import kernel


def divergence(log_ratio: Tensor) -> Tensor:
    """KL(before ‖ now) from log π_now(a) - log π_before(a), (B,); see http://joschu.net/blog/kl-approx.html."""
    return (log_ratio.exp() - 1 - log_ratio).mean()


def explained_variance(values: Tensor, returns: Tensor) -> Tensor:
    """() the share of the variance of returns, (S,) or (S, K), that values explain; 0 where there is none."""
    variance = returns.var(0).mean()
    return torch.where(variance > 0, 1 - (returns - values).var(0).mean() / variance, 0.0)


class StepBatch(NamedTuple):
    """The steps of a rollout, S = T * N, as the losses read them.

    Attributes:
        actions: (S,) int64.
        log_probs: (S,) of the actions, when they were taken.
        advantages: (S,) of all streams together.
        values: (S, K) what the critic said then.
        returns: (S, K).
    """

    actions: Tensor
    log_probs: Tensor
    advantages: Tensor
    values: Tensor
    returns: Tensor


class Weights(NamedTuple):
    """Settings of the losses: `PPOConfig` explains them. `clip_value` is None where values are not clipped."""

    clip: float
    clip_value: float | None
    vf_coef: float
    ent_coef: float
    broadcast: bool = False


def losses(logits: Tensor, values: Tensor, taken: StepBatch, mb: Tensor, weights: Weights) -> tuple[Tensor, Tensor]:
    """The loss (), and without gradients (5,) the policy's and the values', entropy, KL divergence and share clipped.

    Args:
        logits, values: (B, A) and (B, K), what the agent says now.
        taken: of the whole rollout.
        mb: (B,) int64, which of its steps these are.
        weights: of the parts.
    """
    plain = logits.dtype == values.dtype == torch.float32 and not weights.broadcast
    if logits.device.type == "cpu" and plain:
        return _Losses.apply(logits, values, taken, mb, weights)  # type: ignore[no-any-return]
    return by_torch(logits, values, taken, mb, weights)


def by_torch(logits: Tensor, values: Tensor, taken: StepBatch, mb: Tensor, weights: Weights) -> tuple[Tensor, Tensor]:
    """What `losses` computes, in torch."""
    actions, before, advantage, old_values, returns = (column[mb] for column in taken)
    log_probs = logits.log_softmax(-1)
    log_ratio = log_probs.gather(1, actions[:, None]).squeeze(1) - before
    ratio = log_ratio.exp()
    entropy = -(log_probs.exp() * log_probs).sum(-1).mean()
    clipped = ratio.clamp(1 - weights.clip, 1 + weights.clip)
    policy = -torch.minimum(advantage * ratio, advantage * clipped).mean()
    value = value_loss(values, old_values, returns, weights.clip_value, weights.broadcast)
    loss = policy + weights.vf_coef * value - weights.ent_coef * entropy
    with torch.no_grad():
        far = ((ratio - 1).abs() > weights.clip).float().mean()
        kl = divergence(log_ratio)
        return loss, torch.stack([policy, value, entropy, kl, far])


def value_loss(
    values: Tensor, before: Tensor, returns: Tensor, clip: float | None = None, broadcast: bool = False
) -> Tensor:
    """Half the mean squared error of values (B, K), clipped to `clip` around what they were before if that is larger.

    With `broadcast`, as GLAM's code has it (g7), value i is held against all returns of the minibatch. The gradient
    with respect to it is then that of (V_i − mean R)², so all values of a minibatch learn the same mean.
    """
    if broadcast:
        values = values[:, None]
    squares = (values - returns).square()
    if clip is not None:
        moved = (values - before).clamp(-clip, clip)
        squares = torch.maximum(squares, (before + moved - returns).square())
    return 0.5 * squares.sum(-1).mean()


class _Losses(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, values: Tensor, taken: StepBatch, mb: Tensor, weights: Weights
    ) -> tuple[Tensor, Tensor]:
        of_logits, of_values = torch.empty(logits.shape), torch.empty(values.shape)
        figures = torch.empty(6)
        said = [one.detach().contiguous().numpy() for one in (logits, values, mb, *taken)]
        clip_value = math.inf if weights.clip_value is None else weights.clip_value
        numbers = np.array([weights.clip, clip_value, weights.vf_coef, weights.ent_coef], np.float32)
        said += [numbers, of_logits.numpy(), of_values.numpy(), figures.numpy()]
        _add_up(*said)
        ctx.save_for_backward(of_logits, of_values)
        loss, parts = figures[0], figures[1:]
        ctx.mark_non_differentiable(parts)
        return loss, parts

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return (*(one * gradients[0] for one in ctx.saved_tensors), None, None, None)


@kernel
def _add_up(  # type: ignore[no-untyped-def]
    logits, values, mb, actions, log_probs, advantages, old_values, returns, numbers, of_logits, of_values, figures
):
    """The loss and its parts into `figures` (6,), and the gradients of the loss."""
    (B, A), K = logits.shape, values.shape[1]
    clip, clip_value, vf_coef, ent_coef = numbers[0], numbers[1], numbers[2], numbers[3]
    one, share = np.float32(1), np.float32(1 / B)
    low, high = one - clip, one + clip
    policy, value, entropy, kl, far = np.zeros(5)
    for i in range(B):
        step = mb[i]
        largest = logits[i, 0]
        for j in range(1, A):
            largest = max(largest, logits[i, j])
        total = np.float32(0)
        for j in range(A):
            of_logits[i, j] = math.exp(logits[i, j] - largest)
            total += of_logits[i, j]
        inverse, total = one / total, largest + math.log(total)
        uncertain = np.float32(0)
        for j in range(A):
            of_logits[i, j] *= inverse  # the probability, until its gradient stands there
            uncertain -= of_logits[i, j] * (logits[i, j] - total)
        action, advantage = actions[step], advantages[step]
        log_ratio = logits[i, action] - total - log_probs[step]
        ratio = math.exp(log_ratio)
        # A ratio that is not a number is neither below nor above, and stays none.
        near = low if ratio < low else high if ratio > high else ratio
        free = advantage * ratio <= advantage * near  # the smaller one counts; the clipped one has no slope
        policy -= advantage * ratio if free else advantage * near
        slope = -advantage * ratio * share if free else np.float32(0)
        for j in range(A):
            of_logits[i, j] *= ent_coef * share * (logits[i, j] - total + uncertain) - slope
        of_logits[i, action] += slope
        entropy += uncertain
        kl += ratio - one - log_ratio
        far += abs(ratio - one) > clip
        for k in range(K):
            before, wanted = old_values[step, k], returns[step, k]
            error, moved = values[i, k] - wanted, values[i, k] - before
            bound = -clip_value if moved < -clip_value else clip_value if moved > clip_value else moved
            other = before + bound - wanted
            if error * error >= other * other or bound == moved:
                value += error * error
                of_values[i, k] = vf_coef * error * share
            else:  # the larger one counts
                value += other * other
                of_values[i, k] = 0
    figures[1], figures[2], figures[3] = policy / B, value / (2 * B), entropy / B
    figures[4], figures[5] = kl / B, far / B
    figures[0] = figures[1] + vf_coef * figures[2] - ent_coef * figures[3]
