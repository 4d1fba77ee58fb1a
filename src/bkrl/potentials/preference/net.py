"""The network that scores a short history, after the Preference Transformer (Kim et al. 2023, arXiv 2303.00957).

One token for each past transition (s_i, a_i, s_{i+1}) and one for the current observation; positions count back from
the window's end; tokens before the episode's start are masked.  One self-attention block, then a value and a weight
for each token: score = n Σ softmax(w)_i v_i over the n valid ones.  Views are embedded once each and gathered into
windows, because that is where nearly all of the work would be.

A network that reads missions adds to each token what the mission makes of its view (`MissionLayer`, as policies have
it): whether the thing that is meant is in view, and where. One that reads the memory of episodes adds what was done so
far to the current observation's token.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn

from bkrl.agents.networks.missions import MissionLayer
from bkrl.core.flags import Flag
from bkrl.envs.symbols import Symbols
from bkrl.potentials.preference.encoders import MOST_CHANNELS, CellEncoder, FlatEncoder

_Size = Annotated[int, Flag("", least=1, most=2**20)]


@dataclass(frozen=True)
class NetConfig:
    """Sizes of the network: what must be stored to build it again.

    Attributes:
        obs_shape: of one observation.
        num_actions, horizon: A and H.
        width: of tokens; heads: of attention; hidden: of the view encoder.
        grid: (columns, rows) of a map that stands first in a flat observation, (0, 0) when there is none.
        faced: the byte of a flat observation that says which way one faces, and then, for each of its values, the byte
            of the cell that is faced; empty when there is none.
        vocabulary: numbers of words of missions; 0: missions are not read.
        things: whether views are of MiniGrid's cells, so that a mission can ask which thing is meant.
        memory: fields of the memory of episodes; 0: it is not read.
    """

    obs_shape: tuple[_Size, ...]
    num_actions: _Size
    horizon: Annotated[int, Flag("", least=0)]
    width: _Size = 32
    heads: _Size = 2
    hidden: _Size = 64
    grid: tuple[int, int] = (0, 0)
    faced: tuple[int, ...] = ()
    vocabulary: Annotated[int, Flag("", least=0, most=256)] = 0
    things: bool = False
    memory: Annotated[int, Flag("", least=0, most=256)] = 0

    def __post_init__(self) -> None:
        """ValueError for sizes that do not go together."""
        size, cells = math.prod(self.obs_shape), math.prod(self.grid)
        if self.width % self.heads or not 0 <= cells <= size or min(self.grid) < 0:
            raise ValueError("the network's heads do not divide its width, or its grid is larger than a view")
        if len(self.faced) == 1 or not all(0 <= byte < size for byte in self.faced):
            raise ValueError("what is faced is no byte of a view")
        if self.things and (len(self.obs_shape) != 3 or self.obs_shape[-1] != 3):
            raise ValueError("views of things have three channels")


def view_encoder(config: NetConfig) -> tuple[CellEncoder | FlatEncoder, int]:
    """The encoder that suits an observation's shape (a grid of cells or a flat vector), and the size of its output."""
    if len(config.obs_shape) == 3 and config.obs_shape[-1] <= MOST_CHANNELS:
        return CellEncoder(config.obs_shape, config.hidden), config.hidden
    flat = FlatEncoder(math.prod(config.obs_shape), config.grid, config.hidden, config.faced)
    return flat, flat.size


def _bounded_exp(x: Tensor) -> Tensor:
    return x.clamp(-40.0, 40.0).exp()


class MemoryLayer(nn.Module):
    """What the memory of episodes adds to a token: of each field whether it is 0, and its logarithm."""

    def __init__(self, fields: int, width: int) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(2 * fields, 2 * width), nn.Linear(2 * width, width)

    def forward(self, memory: Tensor) -> Tensor:
        """(B, M) uint8 → (B, width)."""
        counts = memory.float()
        features = torch.cat([counts.clamp(max=1.0), counts.log1p() / math.log(256.0)], 1)
        added: Tensor = self.out(nn.functional.relu(self.hidden(features)))
        return added


class PreferenceNet(nn.Module):
    """Scores B windows; see the module's docstring.

    The work is ordered by how often it has to be done: once a view (`embed`), once a transition (`transitions`), and
    only what relates the tokens of a window to each other once a window (`score`).
    """

    def __init__(self, config: NetConfig, words: Sequence[str] = ()) -> None:
        super().__init__()
        self.config = config
        width = config.width
        self.view, size = view_encoder(config)
        # three readings of a view: as a transition's start, as its end, and as the present
        self.reads = nn.Linear(size, 3 * width)
        self.action = nn.Embedding(config.num_actions, width)
        self.changed = nn.Embedding(2, width)
        self.norm_token, self.norm_mlp, self.norm_out = (nn.LayerNorm(width) for _ in range(3))
        self.position = nn.Parameter(torch.zeros(config.horizon + 1, width))
        nn.init.normal_(self.position, std=0.3)
        self.qkv = nn.Linear(width, 3 * width)
        self.attended = nn.Linear(width, width)
        self.mlp_in, self.mlp_out = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.value_and_weight = nn.Linear(width, 2)
        self.mission: MissionLayer | None = None
        if config.vocabulary:
            symbols = Symbols.of_minigrid(math.prod(config.obs_shape[:2])) if config.things else None
            self.mission = MissionLayer(symbols, width, config.vocabulary)
            self.mission.initialise(torch.default_generator)
            if words:  # they come with the weights where there are any
                self.mission.vocabulary.add(words)
        self.memory: MemoryLayer | None = MemoryLayer(config.memory, width) if config.memory else None

    def embed(self, views: Tensor) -> Tensor:
        """(M, *obs_shape) uint8 → (M, 3 * width), once for each distinct view."""
        return self.reads(self.view(views))

    def transitions(self, embedded: Tensor, before: Tensor, action: Tensor, after: Tensor, moved: Tensor) -> Tensor:
        """(T, 4 * width) tokens with their queries, keys and values, once for each distinct transition.

        Args:
            embedded: (M, 3 * width) from `embed`.
            before, after: (T,) rows of it; action: (T,).
            moved: (T,) whether the view changed at all, also where it embeds the same.
        """
        width = self.config.width
        changed = self.changed(moved.long())
        return self._token(
            embedded[before, :width] + embedded[after, width : 2 * width] + self.action(action) + changed
        )

    def present(self, embedded: Tensor) -> Tensor:
        """(M, 4 * width) tokens of views as the present."""
        return self._token(embedded[:, 2 * self.config.width :])

    def _token(self, x: Tensor) -> Tensor:
        token = self.norm_token(nn.functional.relu(x))
        return torch.cat([token, nn.functional.linear(token, self.qkv.weight)], 1)

    def places(self) -> Tensor:
        """(H+1, 4 * width) what its place in the window adds to a token: attention is linear in its inputs."""
        return torch.cat([self.position, self.qkv(self.position)], 1)

    def score(self, tokens: Tensor, valid: Tensor, memory: Tensor | None = None, asked: Tensor | None = None) -> Tensor:
        """Scores (B,) from (B, H+1, 4 * width) tokens, the transitions' and, last, the present's, each with what its
        place adds, from valid (B, H+1), and where they are read, the memory (B, M) uint8, and what the mission makes of
        the view at each place (B, H+1, width).
        """
        width, heads = self.config.width, self.config.heads
        x, (batch, length, _) = tokens[..., :width], tokens.shape
        q, k, v = tokens[..., width:].reshape(batch, length, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
        if asked is not None:
            x = x + asked
        if self.memory is not None and memory is not None:
            x = torch.cat([x[:, :-1], x[:, -1:] + self.memory(memory)[:, None]], 1)
        # softmax by hand: over six entries torch's own costs more than everything else in this block
        weights = _bounded_exp(q @ k.mT / math.sqrt(q.shape[-1])) * valid[:, None, None, :]
        mixed = (weights @ v) / weights.sum(-1, keepdim=True)
        x = x + self.attended(mixed.transpose(1, 2).reshape(x.shape))
        x = x + self.mlp_out(nn.functional.relu(self.mlp_in(self.norm_mlp(x))))
        value, weight = self.value_and_weight(self.norm_out(x)).unbind(-1)
        weight = _bounded_exp(weight) * valid
        return (weight * value).sum(-1) / weight.sum(-1) * valid.sum(-1)

    def forward(
        self,
        views: Tensor,
        index: Tensor,
        actions: Tensor,
        valid: Tensor,
        tokens: Tensor | None = None,
        memory: Tensor | None = None,
    ) -> Tensor:
        """Scores (B,) of windows whose views are numbered.

        Args:
            views: (M, *obs_shape) uint8; index: (B, H+1) which of them stands where; actions: (B, H); valid: (B, H+1);
                tokens: (B, L) uint8, the missions, and memory: (B, M) uint8, where they are read.
        """
        asked = None
        if self.mission is not None and tokens is not None:
            asked = self.mission(views[index.flatten()], tokens.repeat_interleave(index.shape[1], 0))
            asked = asked.view(*index.shape, -1)
        embedded = self.embed(views)
        before, after = index[:, :-1].flatten(), index[:, 1:].flatten()
        past = self.transitions(embedded, before, actions.flatten(), after, before != after)
        present = self.present(embedded)[index[:, -1:]]
        told = torch.cat([past.reshape(len(index), -1, past.shape[1]), present], 1) + self.places()
        return self.score(told, valid, memory, asked)
