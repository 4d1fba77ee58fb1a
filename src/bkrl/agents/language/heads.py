"""Heads on the state that a language model is in before its first word: values, and actions for agents that score none.

Published (Carta et al. 2023): two hidden layers of 1024 with sigmoids.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bkrl.agents.networks.layers import Linear, in_float32

PUBLISHED = (1024, 1024)
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
            for parameter in self.parameters():
                parameter.zero_()
            for layer in self:
                if isinstance(layer, Linear):
                    bound = 1 / math.sqrt(layer.in_features)
                    for weights in (layer.weight, layer.bias):
                        weights.uniform_(-bound, bound, generator=generator)

    def forward(self, hidden: Tensor) -> Tensor:
        with in_float32(hidden):
            return super().forward(hidden.float())
