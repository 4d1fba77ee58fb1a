"""All candidates of a prompt in one row of a decoder: what they share is computed once.

What a decoder reads is a tree of candidate tokens, behind the prompt or, in an encoder-decoder, behind the start token.
That is exact: a mask lets each token look at what stands before it in its own candidate, and at nothing else, and it is
given the position that it has there. What a position says of the next token serves all candidates that go on from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Tokens = tuple[int, ...]


@dataclass(frozen=True)
class Packed:
    """A candidates of at most M tokens in one row of L positions, read at P places: before the tree, and at each node.

    With start token s, the candidates (turn left), (turn right), (drop) are the row (s turn): s says how likely "turn"
    and "drop" are, turn says how likely "left" and "right" are. P = L = 2.

        tokens   [s, turn]    looks  [[1, 0], [1, 1]]    depth [0, 1]
        source   [[0, 1], [0, 1], [0, 0]]    target [[turn, left], [turn, right], [drop, 0]]    lengths [2, 2, 1]

    Without one the row is (turn): the prompt's last token has the place of s, and P = L + 1.

    Attributes:
        tokens: (L,) int64, what the decoder is fed.
        looks: (L, L) bool, whether position i looks at position j.
        depth: (L,) int64, how many tokens of its candidate stand before a position, the start token included.
        source: (A, M) int64, which of the P says how likely a token is.
        target: (A, M) int64, that token.
        lengths: (A,) int64, tokens of the candidates; what is beyond them in `source` and `target` is 0.
    """

    tokens: Tensor
    looks: Tensor
    depth: Tensor
    source: Tensor
    target: Tensor
    lengths: Tensor

    def to(self, device: torch.device) -> Packed:
        """The same on another device."""
        if self.tokens.device == device:
            return self
        return Packed(**{name: one.to(device) for name, one in vars(self).items()})

    @property
    def inside(self) -> Tensor:
        """(A, M) bool, which entries of `target` are tokens."""
        return torch.arange(self.target.shape[1], device=self.target.device) < self.lengths[:, None]

    @property
    def columns(self) -> Tensor:
        """(C,) int64, the distinct tokens of all candidates."""
        return self.target[self.inside].unique()


def tree(candidates: Sequence[Tokens], start: int | None = None) -> Packed:
    """A tree of tokens behind the prompt, or behind a start token; the last token of a candidate is not fed."""
    nodes: list[Tokens] = list(dict.fromkeys(one[:length] for one in candidates for length in range(1, len(one))))
    numbers = {node: number for number, node in enumerate([(), *nodes])}
    row: list[Tokens] = nodes if start is None else [(), *nodes]
    looks = torch.tensor([[node[: len(other)] == other for other in row] for node in row], dtype=torch.bool)
    A, M = len(candidates), max(map(len, candidates))
    source, target = torch.zeros(A, M, dtype=torch.int64), torch.zeros(A, M, dtype=torch.int64)
    for number, candidate in enumerate(candidates):
        for length, token in enumerate(candidate):
            source[number, length], target[number, length] = numbers[candidate[:length]], token
    return Packed(
        torch.tensor([node[-1] if node else start for node in row], dtype=torch.int64),
        looks.reshape(len(row), len(row)),
        torch.tensor([len(node) for node in row], dtype=torch.int64),
        source,
        target,
        torch.tensor([len(candidate) for candidate in candidates]),
    )


@dataclass(frozen=True)
class Prompts:
    """B prompts as tokens, padded to S on the right.

    Attributes:
        tokens: (B, S) int64.
        lengths: (B,) int64, their true lengths: no token counts as padding because of its number.
    """

    tokens: Tensor
    lengths: Tensor

    @property
    def mask(self) -> Tensor:
        """(B, S) bool, which entries are tokens."""
        return torch.arange(self.tokens.shape[1], device=self.tokens.device) < self.lengths[:, None]

    @staticmethod
    def of(rows: Sequence[Sequence[int]], pad: int = 0) -> Prompts:
        """Prompts of any lengths, at least one token each."""
        S = max(map(len, rows))
        return Prompts(
            torch.tensor([list(row) + [pad] * (S - len(row)) for row in rows]), torch.tensor([len(row) for row in rows])
        )

    def rows(self, which: Tensor) -> Prompts:
        """Some of them, as short as they can be padded."""
        lengths = self.lengths.index_select(0, which)
        return Prompts(self.tokens[:, : int(lengths.max())].index_select(0, which), lengths)

    def to(self, device: torch.device) -> Prompts:
        """The same on another device."""
        return Prompts(self.tokens.to(device), self.lengths.to(device))

    def repeated(self, times: int) -> Prompts:
        """Each of them `times` times in a row."""
        return Prompts(self.tokens.repeat_interleave(times, 0), self.lengths.repeat_interleave(times))


def buckets(lengths: Tensor, most_tokens: int, mixed: bool = False) -> list[Tensor]:
    """Row numbers by length, so that little is padded: the longest of a bucket is at most 4/3 as long as its shortest.

    Args:
        lengths: (B,).
        most_tokens: a bucket has at most so many tokens, padding included, or one row.
        mixed: unlike lengths may be in one bucket.
    """
    order = lengths.argsort(descending=True, stable=True)
    found, start = [], 0
    sizes = lengths[order].tolist()
    for row in range(1, len(sizes) + 1):
        longest = sizes[start]
        last = row == len(sizes) or (row + 1 - start) * longest > most_tokens
        if last or not (mixed or 4 * sizes[row] >= 3 * longest):
            found.append(order[start:row])
            start = row
    return found


@dataclass(frozen=True)
class Forest:
    """B prompts and their L candidate nodes each, as C trees of N tokens; what they begin with alike is in a tree once.

    Attributes:
        tokens, depths: (C, N) int64, what the decoder is fed, and how many tokens stand before it in its prompt.
        looks: (C, 1, N, N) bool, whether a token looks at another: at itself and at what leads to it.
        places: (B, S + L) int64, where a token of a prompt or a node of it stands among the C N; 0 for padding.
        sources: (C N,) int64, the other way: one of the B (S + L) that stands there; 0 for padding.
    """

    tokens: Tensor
    depths: Tensor
    looks: Tensor
    places: Tensor
    sources: Tensor


def begun_alike(prompts: Prompts) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Order (B,) of prompts by their tokens, and with how many of these each begins as the one before (B,)."""
    tokens = torch.where(prompts.mask, prompts.tokens, -1).cpu().numpy()
    order = np.lexsort(tokens.T[::-1])
    tokens, lengths = tokens[order], prompts.lengths.cpu().numpy()[order]
    alike = np.cumprod(tokens[1:] == tokens[:-1], 1).sum(1)
    return order, np.concatenate([[0], np.minimum(alike, np.minimum(lengths[1:], lengths[:-1]))])


def forest(prompts: Prompts, packed: Packed, most: int) -> Forest:
    """Prompts, padded on the right, with their candidates.

    Args:
        prompts: B of them.
        packed: the candidates.
        most: a tree has at most so many tokens, or one prompt.
    """
    (B, S), L = prompts.tokens.shape, len(packed.tokens)
    order, alike = begun_alike(prompts)
    lengths, below = prompts.lengths.tolist(), np.arange(L)
    trees: list[list[tuple[int, int, NDArray[np.int64]]]] = []  # of each prompt its number, its new tokens, its path
    count = most + 1
    for row, shared in zip(order.tolist(), alike.tolist(), strict=True):
        length = lengths[row]
        if count + length - shared + L > most:
            trees.append([])
            count, shared = 0, 0
        before = trees[-1][-1][2][:shared] if shared else below[:0]
        new = length - shared
        trees[-1].append((row, new, np.concatenate([before, count + np.arange(new + L)])))
        count += new + L
    N = max(int(tree[-1][2][-1]) + 1 for tree in trees)
    read = torch.cat([prompts.tokens.cpu(), packed.tokens.cpu().expand(B, L)], 1).numpy()
    nodes, depth = packed.looks.cpu().numpy(), packed.depth.cpu().numpy()
    tokens, depths = (np.zeros((len(trees), N), np.int64) for _ in range(2))
    looks = np.zeros((len(trees), N, N), np.bool_)
    looks[:] = np.eye(N, dtype=np.bool_)  # padding looks at itself: no NaN
    places, sources = np.zeros((B, S + L), np.int64), np.zeros((len(trees), N), np.int64)
    for number, tree in enumerate(trees):
        for row, new, path in tree:
            length = lengths[row]
            columns = np.concatenate([np.arange(length - new, length), S + below])
            added, whole = path[length - new :], path[:length]
            tokens[number, added] = read[row, columns]
            depths[number, added] = np.concatenate([columns[:new], length - 1 + depth])
            looks[number, added[:new, None], whole] = np.tri(new, length, length - new, np.bool_)
            looks[number, added[new:, None], whole] = True
            looks[number, added[new:, None], added[new:]] = nodes
            places[row, np.concatenate([np.arange(length), S + below])] = number * N + path
            sources[number, added] = row * (S + L) + columns
    made = (tokens, depths, looks[:, None], places, sources.reshape(-1))
    return Forest(*(torch.from_numpy(one).to(prompts.tokens.device) for one in made))
