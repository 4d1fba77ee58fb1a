"""Missions as numbers, for what cannot read text: the words that a dataset's missions have, numbered."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from bkrl.core.flags import Flag

NOTHING, OTHER = 0, 1
"""The numbers after a mission's last word, and of a word that is not known."""
_FIRST = 2
_MOST = 254  # words: a number is a byte
_LONGEST = 64  # words of a mission that are read


@dataclass(frozen=True)
class MissionWords:
    """The known words, in alphabetical order from number 2 on, and how many words of a mission are read.

    With the words ("ball", "go", "red", "the", "to"), "go to the red key" is 3, 6, 5, 4, 1, and then zeros.
    """

    words: tuple[str, ...]
    length: Annotated[int, Flag("", least=1, most=_LONGEST)]

    def __post_init__(self) -> None:
        """ValueError for more words than a byte can number."""
        if len(self.words) > _MOST:
            raise ValueError(f"missions have at most {_MOST} different words")

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words, _FIRST)}

    @classmethod
    def of(cls, missions: Iterable[str]) -> MissionWords:
        """The words of some missions; of too many the rarest are left out."""
        split = [_split(mission) for mission in sorted(set(missions))]
        counted = Counter(word for words in split for word in words)
        kept = sorted(counted, key=lambda word: (-counted[word], word))[:_MOST]
        return cls(tuple(sorted(kept)), min(max(map(len, split), default=1) or 1, _LONGEST))

    @property
    def size(self) -> int:
        """One more than the largest number."""
        return len(self.words) + _FIRST

    def tokens(self, missions: Iterable[str]) -> NDArray[np.uint8]:
        """B missions → (B, length)."""
        distinct: dict[str, int] = {}
        rows = [distinct.setdefault(mission, len(distinct)) for mission in missions]
        table = np.zeros((max(len(distinct), 1), self.length), np.uint8)
        for row, mission in zip(table, distinct, strict=False):
            numbers = [self._numbers.get(word, OTHER) for word in _split(mission)[: self.length]]
            row[: len(numbers)] = numbers
        return table[rows]

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return {"words": list(self.words), "length": self.length}


def _split(mission: str) -> list[str]:
    return re.findall(r"\w+", mission.lower())
