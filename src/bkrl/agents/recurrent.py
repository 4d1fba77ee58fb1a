"""Agents with a memory, and the network `recurrent`: `compact` with a gated recurrent unit between trunk and head.

Axes: T steps, B agents, A actions, K reward streams.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from bkrl.agents.network import NetworkAgent
from bkrl.agents.networks import Compact
from bkrl.agents.networks.layers import in_float32, linear
from bkrl.agents.networks.memory import remember
from bkrl.agents.protocol import Inputs, State
from bkrl.data.distinct import distinct_rows
from bkrl.envs.symbols import Symbols

Looks: TypeAlias = tuple[Tensor, Tensor]
"""What the network makes of U views whatever is remembered."""


class _GRUCell(nn.GRUCell):
    """A cell whose weights are not written: torch would draw throw-away ones from its global generator."""

    def reset_parameters(self) -> None:
        """Nothing."""


class Recurrent(Compact):
    """Features of the present and a memory of the episode, which the head reads together.

    Without missions it reads their sum. With missions the memory is half as wide, and stands beside the features.

    The memory is 0 where an episode begins and where the network is new, so a fresh network acts as `compact` does.

    Attributes:
        memory: the width of each part of an agent's memory.
    """

    def __init__(
        self,
        obs_shape: Sequence[int],
        num_actions: int,
        num_values: int,
        symbols: Symbols | None,
        hidden: int,
        missions: bool = False,
    ) -> None:
        super().__init__(obs_shape, num_actions, num_values, symbols, hidden, missions)
        width = hidden // 2 if missions else hidden
        self.memory = {"hidden": width}
        if missions:
            self.head = linear(hidden + width, num_actions + num_values)
        self.cell = _GRUCell(hidden, width)
        for bias in (self.cell.bias_ih, self.cell.bias_hh):
            nn.init.zeros_(bias)

    def initialise(self, generator: torch.Generator) -> None:
        super().initialise(generator)
        for weight in (self.cell.weight_ih, self.cell.weight_hh):
            for gate in weight.detach().chunk(3):
                nn.init.orthogonal_(gate, generator=generator)

    def forward(  # type: ignore[override]
        self, observations: Tensor, tokens: Tensor | None, state: State, started: Tensor
    ) -> tuple[Tensor, Tensor, State]:
        """Logits (T, B, A), values (T, B, K) and the memory after T steps.

        Args:
            observations: (T, B, *obs_shape) uint8.
            tokens: (T, B, L) uint8, the words of missions, for a network that reads them.
            state: `hidden` (B, hidden), the memory before the first step.
            started: (T, B) bool, where an episode begins.
        """
        T, B = started.shape
        goes_on = (~started).to(torch.float32).unsqueeze(-1)
        seen = observations.flatten(0, 1)
        if tokens is None:  # step by step and row by row, as earlier versions did: the last digits stay the same
            features = self.features(seen, None)
            remembered = self.step_by_step(features.unflatten(0, (T, B)), state["hidden"], goes_on)
            logits, values = self.read_out(features + remembered.flatten(0, 1))
        else:
            logits, values, remembered = self.once(seen, tokens.flatten(0, 1), state["hidden"], goes_on)
        return logits.unflatten(0, (T, B)), values.unflatten(0, (T, B)), {"hidden": remembered[-1]}

    def settle(self) -> None:
        """Nothing is left over from an update; see `Film.settle`."""

    def once(self, seen: Tensor, tokens: Tensor, hidden: Tensor, goes_on: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits (T * B, A), values (T * B, K) and the memory (T, B, width), looking at equal rows once.

        The sequences of a minibatch hold each view and mission about four times.
        """
        rows = np.concatenate([seen.flatten(1).cpu().numpy(), tokens.cpu().numpy()], 1)
        first, places = (torch.from_numpy(one).to(seen.device) for one in distinct_rows(rows))
        return self.go_on(self.look(seen[first], tokens[first]), places.view(goes_on.shape[:2]), hidden, goes_on)

    def look(self, seen: Tensor, tokens: Tensor) -> Looks:
        """(U, 3 * width) and (U, A + K) float32: the present's share of the gates and of the outputs."""
        features = self.features(seen, tokens)
        gates = nn.functional.linear(features, self.cell.weight_ih, self.cell.bias_ih).float()
        with in_float32(features):
            return gates, features.float() @ self.head.weight[:, : features.shape[1]].t()

    def go_on(self, looks: Looks, places: Tensor, hidden: Tensor, goes_on: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What `once` returns, from what `look` made of U views, and which of them comes in each step (T, B)."""
        (gates, present), width = looks, hidden.shape[1]
        remembered = remember(gates, places, hidden, goes_on, self.cell.weight_hh, self.cell.bias_hh)
        with in_float32(remembered):
            past = nn.functional.linear(remembered.flatten(0, 1), self.head.weight[:, -width:], self.head.bias)
        # `embedding` chooses rows as an index does; its gradient is computed much sooner. `split` goes back by one
        # concatenation; a slice by zeros for all that it leaves out.
        out = nn.functional.embedding(places.flatten(), present) + past
        logits, values = out.split([self.num_actions, out.shape[1] - self.num_actions], 1)
        return logits, values, remembered

    def step_by_step(self, features: Tensor, hidden: Tensor, goes_on: Tensor) -> Tensor:
        """What `remember` computes, from features (T, B, hidden)."""
        remembered = []
        for t in range(len(features)):
            hidden = self.cell(features[t], hidden * goes_on[t])
            remembered.append(hidden)
        return torch.stack(remembered)


class RecurrentAgent(NetworkAgent):
    """An agent whose policy is a network with a memory. Its state is what the network's `memory` says, float32."""

    def begin(self, num_envs: int) -> State:
        return {name: torch.zeros(num_envs, size, device=self.device) for name, size in self.module.memory.items()}

    def schedule(self, step: int) -> None:
        self.module.settle()

    @property
    def looks_apart(self) -> bool:
        return isinstance(self.module, Recurrent) and self.module.mission is not None

    def look(self, inputs: Inputs) -> Looks:
        """(U, …) what the network makes of views (U,) whatever is remembered."""
        looks: Looks = self.module.look(inputs["seen"], inputs["words"])
        return looks

    def go_on(self, looks: Looks, places: Tensor, state: State, started: Tensor) -> tuple[Tensor, Tensor, State]:
        """T steps (T, B): logits and values (T * B, …), and the state after them.

        Args:
            looks: what `look` made of U views.
            places: (T, B) int64, which of them is seen in each step.
            state: before the first step.
            started: (T, B) bool, where an episode begins.
        """
        goes_on = (~started).to(torch.float32).unsqueeze(-1)
        logits, values, remembered = self.module.go_on(looks, places, state["hidden"], goes_on)
        return logits, values, {"hidden": remembered[-1]}

    def forward(self, inputs: Inputs, state: State, started: Any) -> tuple[Tensor, Tensor, State]:
        out: tuple[Tensor, Tensor, State] = self.module(inputs["seen"], inputs.get("words"), state, started)
        return out
