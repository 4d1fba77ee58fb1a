"""An agent with a memory: `compact` with a gated recurrent unit (Cho et al., 2014) between its trunk and its head.

Axes: T steps, B agents, A actions, K reward streams.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bkrl.agents.network import NetworkAgent
from bkrl.agents.networks import Compact
from bkrl.agents.protocol import Inputs, State
from bkrl.envs.family import Symbols


class _GRUCell(nn.GRUCell):
    """A cell whose weights are not written: torch would draw throw-away ones from its global generator."""

    def reset_parameters(self) -> None:
        """Nothing."""


class Recurrent(Compact):
    """Features of the present plus a memory of the episode; the head reads their sum.

    The memory is 0 where an episode begins and where the network is new, so a fresh network acts as `compact` does.
    """

    def __init__(
        self, obs_shape: Sequence[int], num_actions: int, num_values: int, symbols: Symbols | None, hidden: int
    ) -> None:
        super().__init__(obs_shape, num_actions, num_values, symbols, hidden)
        self.hidden = hidden
        self.cell = _GRUCell(hidden, hidden)
        for bias in (self.cell.bias_ih, self.cell.bias_hh):
            nn.init.zeros_(bias)

    def initialise(self, generator: torch.Generator) -> None:
        """As `compact`; the cell's weights are orthogonal, gate by gate."""
        super().initialise(generator)
        for weight in (self.cell.weight_ih, self.cell.weight_hh):
            for gate in weight.detach().chunk(3):
                nn.init.orthogonal_(gate, generator=generator)

    def forward(self, observations: Tensor, hidden: Tensor, started: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
        """Logits (T, B, A), values (T, B, K) and the memory (B, hidden) after T steps.

        Args:
            observations: (T, B, *obs_shape) uint8.
            hidden: (B, hidden), the memory before the first step.
            started: (T, B) bool, where an episode begins.
        """
        T, B = started.shape
        features = self.trunk(self.encoder(observations.flatten(0, 1))).unflatten(0, (T, B))
        goes_on = (~started).to(hidden.dtype).unsqueeze(-1)
        remembered = []
        for t in range(T):
            hidden = self.cell(features[t], hidden * goes_on[t])
            remembered.append(hidden)
        logits, values = self.read_out((features + torch.stack(remembered)).flatten(0, 1))
        return logits.unflatten(0, (T, B)), values.unflatten(0, (T, B)), hidden


class RecurrentAgent(NetworkAgent):
    """An agent whose policy is a `Recurrent` network. Its state is `hidden` (N, hidden) float32."""

    module: Recurrent

    def begin(self, num_envs: int) -> State:
        """Nothing is remembered."""
        return {"hidden": torch.zeros(num_envs, self.module.hidden, device=self.device)}

    def forward(self, inputs: Inputs, state: State, started: Any) -> tuple[Tensor, Tensor, State]:
        """See `TrainableAgent.forward`: sequences (T, B)."""
        logits, values, hidden = self.module(inputs["seen"], state["hidden"], started)
        return logits, values, {"hidden": hidden}
