"""The agent published with BabyAI (Hui et al., 2020), and compared with GLAM as Symbolic-PPO.

A mission is read by a gated recurrent unit. It scales and shifts the channels of two blocks of convolutions on the view
(FiLM, Perez et al., 2018). A long short-term memory follows. 1,068,103 parameters with 6 actions and one value.

What makes it quick: each distinct view goes through the first convolutions once, and each distinct mission through the
recurrent unit once; convolutions on 2×2 cells are products; normalisation is done by the layers before it.

Normalisation differs from the published code, where an agent's logits depend on whom it is computed together with,
because the statistics are those of the batch. Here they are kept from update to update: what is learnt from is what
acted, and the first ratio of an update is 1.

Axes: T steps, B agents, N = T * B, M missions, L words, A actions, K values.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bkrl.agents.networks.layers import Linear, conv, in_float32, linear
from bkrl.agents.networks.missions import WordTable, distinct
from bkrl.agents.protocol import State
from bkrl.core.errors import UsageError
from bkrl.data.distinct import distinct_rows

CHANNELS = 128
_WORDS = 100
_MOMENTUM = 0.1
_SAMPLE = 256
_CELLS = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]])
_TAPS = ((_CELLS[None] - _CELLS[:, None] + 1) * torch.tensor([3, 1])).sum(2)
"""Which of the nine weights of a 3×3 kernel leads from each of 2×2 cells (columns) to each (rows); [0, 3] is 8."""


def bias_of(layer: nn.Conv2d) -> Tensor:
    """A layer's bias, which it has."""
    assert layer.bias is not None
    return layer.bias


class Norm(nn.Module):
    """Batch normalisation by statistics that change between updates only (`settle`); those of the batches are gathered.

    Gradients take the statistics for constants, so what is normalised need not be there: the layer before does it.
    """

    mean: Tensor
    var: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(CHANNELS)), nn.Parameter(torch.zeros(CHANNELS))
        self.register_buffer("mean", torch.zeros(CHANNELS))
        self.register_buffer("var", torch.ones(CHANNELS))
        self.gathered: tuple[Tensor, Tensor] | None = None

    def factors(self) -> tuple[Tensor, Tensor]:
        """What each channel is multiplied with, and what is added to it then."""
        scale = self.weight * (self.var + 1e-5).rsqrt()
        return scale, self.bias - self.mean * scale

    def within(self, layer: nn.Conv2d) -> tuple[Tensor, Tensor]:
        """Weight and bias of a layer that normalises what it computes."""
        scale, shift = self.factors()
        return layer.weight * scale[:, None, None, None], bias_of(layer) * scale + shift

    @torch.no_grad()
    def gather(self, normalised: Tensor) -> None:
        """Note the statistics that (N, ..., C) had before it was normalised, from some rows of what is learnt from."""
        if not normalised.requires_grad:
            return
        some = normalised[:: 1 + len(normalised) // _SAMPLE].flatten(0, -2).float()
        var, mean = torch.var_mean(some, 0)
        scale, shift = self.factors()
        before = self.gathered or (self.mean, self.var)
        safe = scale.abs() > 1e-3  # a channel that is switched off keeps its statistics
        mean, var = (mean - shift) / scale, var / scale.square()
        self.gathered = (
            torch.where(safe, before[0].lerp(mean, _MOMENTUM), before[0]),
            torch.where(safe, before[1].lerp(var, _MOMENTUM), before[1]),
        )

    def settle(self) -> None:
        """Normalise by what was gathered from here on."""
        if self.gathered is not None:
            self.mean, self.var = self.gathered
            self.gathered = None


class Block(nn.Module):
    """Two convolutions of 3×3 on 2×2 cells; the second's channels are scaled and shifted by what the mission says.

    Every cell of a result reads all four cells, so a convolution is one product: of rows (N, 4 * C).
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = conv(CHANNELS, CHANNELS, 3, 1, 1), Norm()
        self.conv2, self.norm2 = conv(CHANNELS, CHANNELS, 3, 1, 1), Norm()
        self.scale, self.shift = linear(CHANNELS, CHANNELS), linear(CHANNELS, CHANNELS)
        self.register_buffer("taps", _TAPS.flatten(), persistent=False)

    taps: Tensor

    def forward(self, x: Tensor, missions: Tensor, which: Tensor) -> Tensor:
        """(N, 4, C), (M, C) and which mission each of the N has → (N, 4, C)."""
        x = self.product(x, *self.norm1.within(self.conv1))
        self.norm1.gather(x)
        x = self.product(x.relu(), self.conv2.weight, bias_of(self.conv2))
        scale, shift = self.norm2.factors()
        times, plus = self.scale(missions) * scale, self.shift(missions) * scale + shift
        times, plus = (part.to(x.dtype).index_select(0, which)[:, None] for part in (times, plus))
        x = torch.addcmul(plus, x, times)
        self.norm2.gather(x)
        return x.relu()

    def product(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """The convolution of (N, 4, C) by (C', C, 3, 3) and (C',)."""
        blocks = weight.flatten(2).permute(2, 0, 1).index_select(0, self.taps).unflatten(0, (4, 4))
        dense = blocks.transpose(1, 2).reshape(4 * CHANNELS, 4 * CHANNELS)  # (to, C', from, C)
        return F.linear(x.flatten(1), dense, bias.repeat(4)).unflatten(1, (4, CHANNELS))


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
        self.vocabulary = WordTable(_WORDS)
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
        self.conv1, self.norm1 = conv(3, CHANNELS, 2, 1, 1), Norm()
        self.conv2, self.norm2 = conv(CHANNELS, CHANNELS, 3, 1, 1), Norm()
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
        inputs = seen.amax(1)
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
        """(N, 7, 7, 3) uint8 → (N, 4, 128), what does not depend on the mission: once for each distinct view."""
        first, places = distinct_rows(observations.cpu().numpy())
        views = observations[torch.from_numpy(first).to(observations.device)]
        x = views.float().permute(0, 3, 1, 2)  # channels lie side by side in memory, here and below
        for layer, norm in ((self.conv1, self.norm1), (self.conv2, self.norm2)):
            weight, bias = norm.within(layer)
            x = F.conv2d(x, weight.contiguous(memory_format=torch.channels_last), bias, padding=1)
            norm.gather(x.permute(0, 2, 3, 1))
            x = F.max_pool2d(x, 2).relu()
        rows = x.permute(0, 2, 3, 1).flatten(1, 2)
        return rows.flatten(1).index_select(0, torch.from_numpy(places).to(x.device)).unflatten(1, (4, CHANNELS))

    def settle(self) -> None:
        """Normalise by the statistics of the last update."""
        for module in self.modules():
            if isinstance(module, Norm):
                module.settle()
