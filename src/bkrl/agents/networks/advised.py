"""A policy that starts from advice: logits + β Ψ(s, a), where β falls to 0 while the policy learns.

The action side of what exact shaping is for the critic: shaping starts the critic at Φ, advice starts the actor at Ψ.
No reward is changed, and for every β the network can still express any policy, so the best one stays within reach;
once β is 0 nothing of the advice is left but what was learnt with it (look-ahead advice as a prior, after Wiewiora,
Cottrell and Elkan 2003; the decay is that of PIES, Behboudian et al. 2022).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from bkrl.agents.networks import ActorCritic


class Advice(nn.Module):
    """Ψ(s, a) in [-1, 0]: 0 for the best action of a state, -1 for one that is as pointless as any.

    Args:
        network: its logits, up to a constant for each state, are the advice on a scale of its own.
        scale: what is mapped to -1; infinite: Ψ = 0 everywhere.
    """

    scale: Tensor

    def __init__(self, network: ActorCritic, scale: float) -> None:
        super().__init__()
        self.network = network.requires_grad_(False)
        self.register_buffer("scale", torch.tensor(scale, dtype=torch.float32))

    @property
    def empty(self) -> bool:
        """Whether Ψ = 0 everywhere."""
        return bool(self.scale.isinf())

    @torch.no_grad()
    def forward(self, observations: Tensor) -> Tensor:
        """(B, A) float32 for (B, *obs_shape) uint8."""
        logits = self.network(observations)[0].float()
        return ((logits - logits.amax(1, keepdim=True)) / self.scale).clamp(-1.0, 0.0)


class Advised(ActorCritic):
    """`base`, its logits shifted by advice whose weight falls linearly from `weight` to 0 at step `until`."""

    beta: Tensor

    def __init__(self, base: ActorCritic, advice: Advice, weight: float, until: int) -> None:
        super().__init__()
        self.base, self.advice = base, advice
        self.weight, self.until, self.now = weight, until, weight
        self.register_buffer("beta", torch.tensor(float(weight)), persistent=False)

    @property
    def spec(self) -> dict[str, Any]:  # type: ignore[override]
        """The arguments that build this network again as it is now; `rebuild_network` reads them."""
        return {
            "name": "advised",
            "base": self.base.spec,
            "advice": self.advice.network.spec,
            "weight": self.now,
            "until": self.until,
        }

    def at_step(self, step: int) -> None:
        """Let β fall to what it is after `step` environment steps."""
        self.now = self.weight * max(0.0, 1.0 - step / self.until)
        self.beta.fill_(self.now)

    @property
    def learnt(self) -> ActorCritic:
        """The base."""
        return self.base

    def shift(self, observations: Tensor) -> Tensor | None:
        """(B, A) β Ψ; None once β is 0."""
        return None if self.now == 0.0 else self.beta * self.advice(observations)

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        logits, values = self.base(observations)
        shift = self.shift(observations)
        return (logits if shift is None else logits + shift), values
