"""The agent published with BabyAI (Hui et al., 2020), and compared with GLAM as Symbolic-PPO.

A mission is read by a gated recurrent unit. It scales and shifts the channels of two blocks of convolutions on the view
(FiLM, Perez et al., 2018). A long short-term memory follows. 1,068,103 parameters with 6 actions and one value.

Two things are as fast as they are because they are done once: each distinct view goes through the first convolutions
once, and each distinct mission through the recurrent unit once.

Normalisation differs from the published code, where an agent's logits depend on whom it is computed together with,
because the statistics are those of the batch. Here they are kept from update to update: what is learnt from is what
acted, and the first ratio of an update is 1.

Axes: T steps, B agents, N = T * B, M missions, L words, A actions, K values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bkrl.agents.networks import Linear, conv, in_float32, linear
from bkrl.agents.networks.missions import Vocabulary, distinct
from bkrl.agents.protocol import State
from bkrl.core.errors import UsageError
from bkrl.data.distinct import distinct_rows

CHANNELS = 128
_WORDS = 100
_MOMENTUM = 0.1


class Norm(nn.Module):
    """Batch normalisation by statistics that change between updates only (`settle`); those of the batches are gathered.

    Gradients take the statistics for constants.
    """

    mean: Tensor
    var: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("var", torch.ones(channels))
        self.gathered: tuple[Tensor, Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            with torch.no_grad():
                var, mean = torch.var_mean(x.float(), (0, 2, 3))
                before_mean, before_var = self.gathered or (self.mean, self.var)
                self.gathered = before_mean.lerp(mean, _MOMENTUM), before_var.lerp(var, _MOMENTUM)
        scale = self.weight * (self.var + 1e-5).rsqrt()
        shift = self.bias - self.mean * scale
        return torch.addcmul(shift.to(x.dtype)[:, None, None], x, scale.to(x.dtype)[:, None, None])

    def settle(self) -> None:
        """Normalise by what was gathered from here on."""
        if self.gathered is not None:
            self.mean, self.var = self.gathered
            self.gathered = None


class Block(nn.Module):
    """Two convolutions of 3×3; the second's channels are scaled and shifted by what is made of the mission."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = conv(CHANNELS, CHANNELS, 3, 1, 1), Norm(CHANNELS)
        self.conv2, self.norm2 = conv(CHANNELS, CHANNELS, 3, 1, 1), Norm(CHANNELS)
        self.scale, self.shift = linear(CHANNELS, CHANNELS), linear(CHANNELS, CHANNELS)

    def forward(self, x: Tensor, missions: Tensor, which: Tensor) -> Tensor:
        """(N, C, H, W), (M, C) and which mission each of the N has → (N, C, H, W)."""
        x = self.conv2(self.norm1(self.conv1(x)).relu())
        scale, shift = (part(missions).index_select(0, which)[:, :, None, None] for part in (self.scale, self.shift))
        return self.norm2(torch.addcmul(shift.to(x.dtype), x, scale.to(x.dtype))).relu()


class _GRU(nn.GRU):
    def reset_parameters(self) -> None:
        """Nothing, as `Linear`."""


class _LSTMCell(nn.LSTMCell):
    def reset_parameters(self) -> None:
        """Nothing, as `Linear`."""


class MissionGRU(nn.Module):
    """(M, L) words → (M, 128), what the unit remembers after a mission's last word."""

    def __init__(self) -> None:
        super().__init__()
        self.vocabulary = Vocabulary(_WORDS)
        self.embedding = nn.Parameter(torch.empty(_WORDS, CHANNELS))
        self.unit = _GRU(CHANNELS, CHANNELS, batch_first=True)

    def forward(self, missions: Tensor) -> Tensor:
        after, _ = self.unit(self.embedding[missions])
        last = (missions > 0).sum(1).clamp_min(1) - 1
        return after[torch.arange(len(missions), device=missions.device), last].float()


class Film(nn.Module):
    """The published actor-critic. Its spec is plain JSON, as that of every network.

    Attributes:
        memory: the width of each part of an agent's memory.
    """

    def __init__(self, obs_shape: Sequence[int], num_actions: int, num_values: int) -> None:
        super().__init__()
        if tuple(obs_shape) != (7, 7, 3):
            raise UsageError(
                f"The published agent of BabyAI reads views of 7×7 cells, not observations of shape "
                f"{tuple(obs_shape)}; use --alg ppo there."
            )
        self.memory = {"hidden": CHANNELS, "cell": CHANNELS}
        self.spec: dict[str, Any] = {}
        self.mission = MissionGRU()
        self.conv1, self.norm1 = conv(3, CHANNELS, 2, 1, 1), Norm(CHANNELS)
        self.conv2, self.norm2 = conv(CHANNELS, CHANNELS, 3, 1, 1), Norm(CHANNELS)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.unit = _LSTMCell(CHANNELS, CHANNELS)
        self.actor = nn.Sequential(linear(CHANNELS, 64), nn.Tanh(), linear(64, num_actions))
        self.critic = nn.Sequential(linear(CHANNELS, 64), nn.Tanh(), linear(64, num_values))

    def initialise(self, generator: torch.Generator) -> None:
        """Layers: normal, rows of length 1. Convolutions and units: uniform within 1/√inputs. Words: normal."""
        nn.init.normal_(self.mission.embedding, generator=generator)
        for module in self.modules():
            if isinstance(module, Linear):
                nn.init.normal_(module.weight, generator=generator)
                with torch.no_grad():
                    module.weight /= module.weight.norm(dim=1, keepdim=True)
                nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Conv2d | _GRU | _LSTMCell):
                bound = 1 / math.sqrt(module.weight[0].numel() if isinstance(module, nn.Conv2d) else CHANNELS)
                for parameter in module.parameters():
                    nn.init.uniform_(parameter, -bound, bound, generator=generator)

    def forward(
        self, observations: Tensor, tokens: Tensor, state: State, started: Tensor
    ) -> tuple[Tensor, Tensor, State]:
        """See `Recurrent.forward`; the state is `hidden` and `cell`, both (B, 128)."""
        T, B = started.shape
        missions, which = distinct(tokens.flatten(0, 1))
        seen = self.look(observations.flatten(0, 1))
        said = self.mission(missions)
        for block in self.blocks:
            seen = block(seen, said, which)
        inputs = F.max_pool2d(seen, 2).flatten(1)
        gates = F.linear(inputs, self.unit.weight_ih, self.unit.bias_ih).float().unflatten(0, (T, B))
        goes_on = (~started).to(torch.float32).unsqueeze(-1)
        hidden, cell = state["hidden"], state["cell"]
        remembered = []
        with in_float32(gates):
            for t in range(T):
                before = torch.addmm(self.unit.bias_hh, hidden * goes_on[t], self.unit.weight_hh.t())
                enters, stays, new, leaves = (gates[t] + before).chunk(4, 1)
                cell = stays.sigmoid() * (cell * goes_on[t]) + enters.sigmoid() * new.tanh()
                hidden = leaves.sigmoid() * cell.tanh()
                remembered.append(hidden)
            features = torch.stack(remembered)
            return self.actor(features), self.critic(features), {"hidden": hidden, "cell": cell}

    def look(self, observations: Tensor) -> Tensor:
        """(N, 7, 7, 3) uint8 → (N, 128, 2, 2), what does not depend on the mission: once for each distinct view."""
        first, places = distinct_rows(observations.cpu().numpy())
        views = observations[torch.from_numpy(first).to(observations.device)].permute(0, 3, 1, 2).float()
        x = F.max_pool2d(self.norm1(self.conv1(views)).relu(), 2)
        x = F.max_pool2d(self.norm2(self.conv2(x)).relu(), 2)
        return x.index_select(0, torch.from_numpy(places).to(x.device))

    def settle(self) -> None:
        """Normalise by the statistics of the last update."""
        for module in self.modules():
            if isinstance(module, Norm):
                module.settle()
