"""All candidates of a prompt in one row of a decoder: what they share is computed once.

What a decoder reads is a tree of candidate tokens, behind the prompt or, in an encoder-decoder, behind the start token.
That is exact: a mask lets each token look at what stands before it in its own candidate, and at nothing else, and it is
given the position that it has there. What a position says of the next token serves all candidates that go on from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
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
    """B prompts as tokens, padded to S at one side.

    Attributes:
        tokens: (B, S) int64.
        lengths: (B,) int64, their true lengths: no token counts as padding because of its number.
        left: whether the padding stands in front.
    """

    tokens: Tensor
    lengths: Tensor
    left: bool = False

    @property
    def mask(self) -> Tensor:
        """(B, S) bool, which entries are tokens."""
        places = torch.arange(self.tokens.shape[1], device=self.tokens.device)
        return (places >= self.first[:, None]) & (places < (self.first + self.lengths)[:, None])

    @property
    def first(self) -> Tensor:
        """(B,) the column of the first token."""
        return self.tokens.shape[1] - self.lengths if self.left else torch.zeros_like(self.lengths)

    @property
    def positions(self) -> Tensor:
        """(B, S) int64, how many tokens of its prompt stand before one."""
        places = torch.arange(self.tokens.shape[1], device=self.tokens.device)
        return (places - self.first[:, None]).clamp(min=0)

    @staticmethod
    def of(rows: Sequence[Sequence[int]], pad: int = 0, left: bool = False) -> Prompts:
        """Prompts of any lengths, at least one token each."""
        S = max(map(len, rows))
        padded = [[pad] * (S - len(row)) + list(row) if left else list(row) + [pad] * (S - len(row)) for row in rows]
        return Prompts(torch.tensor(padded), torch.tensor([len(row) for row in rows]), left)

    def rows(self, which: Tensor) -> Prompts:
        """Some of them, as short as they can be padded."""
        lengths = self.lengths.index_select(0, which)
        S, longest = self.tokens.shape[1], int(lengths.max())
        kept = slice(S - longest, S) if self.left else slice(0, longest)
        return Prompts(self.tokens[:, kept].index_select(0, which), lengths, self.left)

    def to(self, device: torch.device) -> Prompts:
        """The same on another device."""
        return Prompts(self.tokens.to(device), self.lengths.to(device), self.left)

    def repeated(self, times: int) -> Prompts:
        """Each of them `times` times in a row."""
        return Prompts(self.tokens.repeat_interleave(times, 0), self.lengths.repeat_interleave(times), self.left)


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
