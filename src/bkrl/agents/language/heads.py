"""Heads on the state that a language model is in before its first word: values, and actions for agents that score none.

Published (Carta et al. 2023): two hidden layers of 1024 with sigmoids.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bkrl.agents.networks.layers import Linear, in_float32

PUBLISHED = (1024, 1024)
_FLOOR = 1e-3
ACTIVATIONS = {"sigmoid": nn.Sigmoid, "relu": nn.ReLU, "tanh": nn.Tanh}


class Head(nn.Sequential):
    """(B, inputs) → (B, outputs) float32, also under autocast.

    Args:
        sizes: of the hidden layers.
        activation: a name of `ACTIVATIONS`.
        generator: draws the weights, uniformly within 1/√fan-in as torch does.
    """

    def __init__(
        self, inputs: int, outputs: int, sizes: Sequence[int], activation: str, generator: torch.Generator
    ) -> None:
        layers: list[nn.Module] = []
        for size, following in zip((inputs, *sizes), (*sizes, outputs), strict=True):
            layers += [Linear(size, following), ACTIVATIONS[activation]()]
        super().__init__(*layers[:-1])
        with torch.no_grad():
            for layer in self:
                if isinstance(layer, Linear):
                    bound = 1 / math.sqrt(layer.in_features)
                    for weights in (layer.weight, layer.bias):
                        weights.uniform_(-bound, bound, generator=generator)

    def forward(self, hidden: Tensor) -> Tensor:
        with in_float32(hidden):
            return super().forward(hidden.float())


class Critic(Head):
    """A value head of its own: on whitened states, and the model learns nothing from it.

    States of language models vary much in a few directions and little in those that tell situations apart; whitened,
    all have variance 1. What it says is in units of the returns that it was prepared with. Arguments as of `Head`.
    """

    mean: Tensor
    whitening: Tensor
    offset: Tensor
    scale: Tensor

    def __init__(
        self, inputs: int, outputs: int, sizes: Sequence[int], activation: str, generator: torch.Generator
    ) -> None:
        super().__init__(inputs, outputs, sizes, activation, generator)
        for name, first in {
            "mean": torch.zeros(inputs),
            "whitening": torch.eye(inputs),
            "offset": torch.zeros(outputs),
            "scale": torch.zeros(outputs),  # 0: not prepared yet
        }.items():
            self.register_buffer(name, first)

    @property
    def prepared(self) -> bool:
        """Whether it has seen states and returns."""
        return bool((self.scale > 0).all())

    @torch.no_grad()
    def prepare(self, states: Tensor, returns: Tensor) -> None:
        """Take whitening from states (S, D) and units from returns (S, K).

        Directions without variance would be blown up, so each is given a thousandth of the mean variance.
        """
        centred = states - states.mean(0)
        variance, directions = torch.linalg.eigh((centred.T @ centred / len(states)).double())
        floor = _FLOOR * variance.mean() + torch.finfo(torch.float32).tiny
        self.mean.copy_(states.mean(0))
        self.whitening.copy_(directions / (variance.clamp(min=0) + floor).sqrt())
        self.offset.copy_(returns.mean(0))
        spread = (returns - returns.mean(0)).square().mean(0).sqrt()
        self.scale.copy_(torch.where(spread > 0, spread, 1.0))

    @torch.no_grad()
    def shrink(self, states: Tensor, returns: Tensor) -> None:
        """Draw what it says towards the mean of that, by the slope of returns (S, K) on what it says of unseen states
        (S, D), between 0 and 1: what has been learnt from few is too far from the mean (Copas 1983).
        """
        said = self(states)
        apart = said - said.mean(0)
        last: Any = self[-1]
        variance = apart.square().sum(0)
        slope = torch.where(variance > 0, (apart * (returns - returns.mean(0))).sum(0) / variance, 1.0).clamp(0.0, 1.0)
        level = (said.mean(0) - self.offset) / self.scale
        last.weight.mul_(slope[:, None])
        last.bias.copy_(level + slope * (last.bias - level))

    def forward(self, hidden: Tensor) -> Tensor:
        with in_float32(hidden):
            return self.offset + self.scale * super().forward((hidden.detach().float() - self.mean) @ self.whitening)
