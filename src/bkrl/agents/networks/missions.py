"""How networks read missions: their words as numbers, and what a mission makes of the things in view.

Axes: B observations, M distinct missions, L words, C cells, F features of a thing.
"""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bkrl.core.jit import adding, kernel
from bkrl.data.distinct import distinct_rows
from bkrl.envs.symbols import Symbols
from bkrl.text import mission_words

_THING = 4
"""MiniGrid's kinds of objects from here on (door, key, ball, box, goal, lava) are what missions speak of."""


class WordTable(nn.Module):
    """The words that a network has numbers for. They are part of its weights, so they are where the weights are.

    Args:
        size: most numbers, the two that are no words included; at most 256.
    """

    words: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("words", torch.zeros(size, mission_words.BYTES, dtype=torch.uint8))
        self._known: mission_words.Vocabulary | None = None

    def _load_from_state_dict(self, *arguments: Any) -> None:
        super()._load_from_state_dict(*arguments)
        self.read_anew()

    def read_anew(self) -> None:
        """Other words were copied over these."""
        self._known = None

    @property
    def known(self) -> mission_words.Vocabulary:
        """The words with their numbers."""
        if self._known is None:
            rows = self.words[mission_words.FIRST :].cpu().numpy().view(f"S{mission_words.BYTES}")[:, 0]
            self._known = mission_words.Vocabulary(word.decode(errors="ignore") for word in rows.tolist() if word)
        return self._known

    @property
    def taken(self) -> int:
        """All numbers of words are below this."""
        return mission_words.FIRST + len(self.known.numbers)

    def add(self, missions: Iterable[str]) -> list[str]:
        """Number the words of these missions, in alphabetical order; those for which there was no room."""
        new, first = self.known.unknown(missions), self.taken
        room = len(self.words) - first
        for number, word in enumerate(new[:room], first):
            letters = list(word.encode())
            self.words[number, : len(letters)] = torch.tensor(letters, dtype=torch.uint8)
        self._known = None
        return new[room:]

    def unknown(self, missions: Iterable[str]) -> list[str]:
        """The words of these missions that have no number."""
        return self.known.unknown(missions)

    def tokens(self, missions: Iterable[str]) -> NDArray[np.uint8]:
        """(B,) missions → (B, L) numbers of their words, 0 after the last."""
        return self.known.tokens(missions)


def vocabulary_of(network: nn.Module) -> WordTable | None:
    """The words of missions that a network knows; None if it reads none."""
    mission: Any = dict(network.named_children()).get("mission")
    return None if mission is None else mission.vocabulary


def distinct(tokens: Tensor) -> tuple[Tensor, Tensor]:
    """(B, L) → the distinct missions (M, L) int64, and (B,) which of them each is."""
    if tokens.device.type == "cpu":
        first, places = distinct_rows(tokens.numpy())
        return tokens[torch.from_numpy(first)].long(), torch.from_numpy(places)
    return tokens.long().unique(dim=0, return_inverse=True)


def added_words(missions: Tensor, embedding: Tensor) -> tuple[Tensor, Tensor]:
    """(M, L) → (M, channels) the words' embeddings added up, and added up with weights j/J (the last word's is 1).

    In "the red box" the words weigh 1/3, 2/3 and 1 in the second sum.
    """
    there = (missions > 0).to(embedding.dtype)
    order = there.cumsum(1)
    places = order / order[:, -1:].clamp_min(1) * there
    # As a product: an `embedding_bag` takes four times as long to go back through.
    weights = embedding.new_zeros(2, len(missions), len(embedding))
    weights.scatter_add_(2, missions.expand(2, -1, -1), torch.stack([there, places]))
    words, late = (weights.flatten(0, 1) @ embedding).chunk(2)
    return words, late


class MissionLayer(nn.Module):
    """Observations and missions → (B, width), to be added to what the first layer of a network makes of observations.

    A mission's words are embedded and added up with weights by place and channel, so that their order counts: word j
    of J weighs (1 - j/J) - (k/d) (1 - 2j/J) in channel k of d (position encoding, Sukhbaatar et al., 2015). One layer
    makes of that what is added whatever is seen.

    In views of MiniGrid cells the mission also asks a question of each thing: F features, ReLU of a sum of what the
    mission makes of the thing's kind, colour and state. They enter the network with weights for each cell. So which
    thing is meant is learnt once for all cells, and pairs of colour and kind that no mission has named are understood.

    Args:
        symbols: of the observations; None for pictures.
        width: of the network's first layer.
        size: of the vocabulary.
        channels: of the words' embeddings.
        features: F.
    """

    def __init__(
        self, symbols: Symbols | None, width: int, size: int = 256, channels: int = 64, features: int = 8
    ) -> None:
        super().__init__()
        self.vocabulary = WordTable(size)
        self.embedding = nn.Parameter(torch.empty(size, channels))
        self.register_buffer("channel", torch.arange(1, channels + 1) / channels, persistent=False)
        self.sentence = nn.Parameter(torch.empty(channels, channels))
        self.context = nn.Parameter(torch.empty(width, channels))
        cells = 0 if symbols is None else len(symbols.sizes) // 3
        self.cells = cells if cells and symbols == Symbols.of_minigrid(cells) else 0
        if self.cells:
            self.facts = symbols.sizes[:3] if symbols else ()  # kinds, colours, states
            self.questions = nn.Parameter(torch.empty(sum(self.facts), features, channels))
            self.doubts = nn.Parameter(torch.zeros(features))
            self.places = nn.Parameter(torch.empty(self.cells * features, width))

    channel: Tensor

    def initialise(self, generator: torch.Generator) -> None:
        """Orthogonal weights with gain √2, embeddings of length 1 on average in each channel."""
        nn.init.normal_(self.embedding, generator=generator)
        nn.init.orthogonal_(self.sentence, math.sqrt(2), generator=generator)
        nn.init.orthogonal_(self.context, generator=generator)
        if self.cells:
            nn.init.normal_(self.questions, std=1 / math.sqrt(3 * self.questions.shape[2]), generator=generator)
            nn.init.orthogonal_(self.places, math.sqrt(2), generator=generator)

    def forward(self, observations: Tensor, tokens: Tensor) -> Tensor:
        """(B, *obs_shape) uint8 and (B, L) uint8 → (B, width) float32."""
        if torch.compiler.is_compiling():  # as in `SymbolLayer`
            return torch.compiler.disable(self._forward)(observations, tokens)
        return self._forward(observations, tokens)

    def _forward(self, observations: Tensor, tokens: Tensor) -> Tensor:
        missions, which = distinct(tokens)
        context, asked = self.read(missions)
        return self.see(context, asked, observations, which)

    def read(self, missions: Tensor) -> tuple[Tensor, Tensor]:
        """(M, L) int64 → what each mission adds whatever is seen (M, width), and what it asks of things (M, 21, F)."""
        words, late = added_words(missions, self.embedding[: self.vocabulary.taken])
        said = words - late - self.channel * (words - 2 * late)
        read = (said @ self.sentence.T).relu()
        context = read @ self.context.T
        if not self.cells:
            return context, context.new_zeros(len(missions), 0)
        facts, features, channels = self.questions.shape
        return context, (read @ self.questions.view(-1, channels).T).float().view(-1, facts, features)

    def see(self, context: Tensor, asked: Tensor, observations: Tensor, which: Tensor) -> Tensor:
        """(B, width) of observations (B, *obs_shape), under missions that were `read`: each under number which (B,)."""
        out = context.index_select(0, which)
        if not self.cells:
            return out
        entries = observations.flatten(1)
        if entries.device.type == "cpu":
            return out + _Things.apply(asked, self.doubts, self.places, entries.contiguous(), which)
        return out + things_by_torch(asked, self.doubts, self.places, entries, which)


def things_by_torch(asked: Tensor, doubts: Tensor, places: Tensor, entries: Tensor, which: Tensor) -> Tensor:
    """What `_Things` computes, in torch."""
    kinds, colors, states = entries.long().unflatten(1, (-1, 3)).unbind(2)
    facts = asked[which]  # (B, 21, F)

    def answer(index: Tensor, first: int, last: int) -> Tensor:
        index = (first + index).clamp_max(last - 1)
        return facts.gather(1, index[:, :, None].expand(-1, -1, facts.shape[2]))

    found = (answer(kinds, 0, 11) + answer(colors, 11, 17) + answer(states, 17, 21) + doubts).relu()
    return (found * (kinds >= _THING)[:, :, None]).flatten(1) @ places


class _Things(torch.autograd.Function):
    """asked (M, 21, F), doubts (F,), places (C * F, W), entries (B, 3C), which (B,) → (B, W).

    The features of all things in view, from what the missions ask, times the weights of their cells. Most cells have
    no thing, and cost nothing.
    """

    @staticmethod
    def forward(ctx: Any, asked: Tensor, doubts: Tensor, places: Tensor, entries: Tensor, which: Tensor) -> Tensor:
        ctx.save_for_backward(asked, doubts, places, entries, which)
        out = torch.zeros(len(entries), places.shape[1])
        _things(None, *(tensor.detach().numpy() for tensor in (asked, doubts, places, entries, which, out)))
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        given = ctx.saved_tensors
        grown = [torch.zeros_like(tensor) for tensor in given[:3]]
        arrays = (tensor.detach().numpy() for tensor in (*given, gradients[0].contiguous()))
        _things(tuple(tensor.numpy() for tensor in grown), *arrays)
        return grown[0], grown[1], grown[2], None, None


@adding
def _dot(left, i, right, j):  # type: ignore[no-untyped-def]
    """Row i of the one times row j of the other."""
    total = np.float32(0)
    for h in range(left.shape[1]):
        total += left[i, h] * right[j, h]
    return total


@kernel
def _things(grown, asked, doubts, places, entries, which, out):  # type: ignore[no-untyped-def]
    """out[b] += relu(feature f) * places[cell * F + f], for every thing in b's view.

    With `grown` the transpose of that: `out` is its gradient, and those of asked, doubts and places are added to.
    """
    features, width = places.shape[0] * 3 // entries.shape[1], places.shape[1]
    for b in range(entries.shape[0]):
        mission = which[b]
        for j in range(0, entries.shape[1], 3):
            if entries[b, j] < _THING:
                continue
            kind, color, state = min(entries[b, j], 10), 11 + min(entries[b, j + 1], 5), 17 + min(entries[b, j + 2], 3)
            for f in range(features):
                value = asked[mission, kind, f] + asked[mission, color, f] + asked[mission, state, f] + doubts[f]
                if not value > 0:
                    continue
                row = j // 3 * features + f
                if grown is None:
                    for h in range(width):
                        out[b, h] += value * places[row, h]
                else:
                    to_asked, to_doubts, to_places = grown
                    for h in range(width):
                        to_places[row, h] += value * out[b, h]
                    slope = _dot(places, row, out, b)
                    to_asked[mission, kind, f] += slope
                    to_asked[mission, color, f] += slope
                    to_asked[mission, state, f] += slope
                    to_doubts[f] += slope
