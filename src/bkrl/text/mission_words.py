"""Missions as numbers, for what cannot read text: networks and programs. One vocabulary serves both."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from bkrl.core.flags import Flag

NOTHING, OTHER, FIRST = 0, 1, 2
"""The numbers after a mission's last word, of a word that is not known, and of the first known word."""
BYTES = 24
"""A word is told from others by so many bytes of UTF-8."""
_MOST = 254  # words: a number is a byte
_LONGEST = 64  # words of a mission that programs read
_KEPT = 2**15  # missions whose numbers are kept


@lru_cache(2**14)
def words_of(mission: str) -> tuple[str, ...]:
    """The words of a mission, in lower case and without punctuation."""
    found = re.findall(r"\w+", mission.lower())
    return tuple(word.encode()[:BYTES].decode(errors="ignore") for word in found)


class Vocabulary:
    """Words numbered from `FIRST` on, and missions as rows of these numbers.

    With "ball", "go", "red", "the" and "to", "go to the red key" is 3, 6, 5, 4, 1, and then zeros. At most 254 words.
    """

    def __init__(self, words: Iterable[str] = ()) -> None:
        self.numbers = {word: number for number, word in enumerate(words, FIRST)}
        self._places: dict[str, int] = {}
        self._rows = np.zeros((0, 1), np.uint8)

    def unknown(self, missions: Iterable[str]) -> list[str]:
        """The words of these missions that have no number, in alphabetical order."""
        return sorted({word for mission in missions for word in words_of(mission)} - self.numbers.keys())

    def tokens(self, missions: Iterable[str]) -> NDArray[np.uint8]:
        """B missions → (B, L) numbers of their words, 0 after the last; L: words of the longest mission so far."""
        wanted = list(missions)
        while True:
            places = [self._places.get(mission, -1) for mission in wanted]
            if min(places, default=0) >= 0:
                return self._rows[places]
            self._meet(dict.fromkeys(wanted))

    def _meet(self, missions: Iterable[str]) -> None:
        """Keep the numbers of these missions' words; they are asked for in every step."""
        if len(self._places) > _KEPT:
            self._places, self._rows = {}, self._rows[:0]
        new = [mission for mission in missions if mission not in self._places]
        numbers = [[self.numbers.get(word, OTHER) for word in words_of(mission)] for mission in new]
        width = max([self._rows.shape[1], *map(len, numbers)])
        rows = np.zeros((len(self._rows) + len(new), width), np.uint8)
        rows[: len(self._rows), : self._rows.shape[1]] = self._rows
        for row, words in zip(rows[len(self._rows) :], numbers, strict=True):
            row[: len(words)] = words
        self._places |= {mission: place for place, mission in enumerate(new, len(self._rows))}
        self._rows = rows


@dataclass(frozen=True)
class MissionWords:
    """The words of a dataset's missions, in the order of their numbers, and how many words of a mission are read."""

    words: tuple[str, ...]
    length: Annotated[int, Flag("", least=1, most=_LONGEST)]

    def __post_init__(self) -> None:
        """ValueError for more words than a byte can number."""
        if len(self.words) > _MOST:
            raise ValueError(f"missions have at most {_MOST} different words")

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The words with their numbers."""
        return Vocabulary(self.words)

    @classmethod
    def of(cls, missions: Iterable[str]) -> MissionWords:
        """The words of some missions, in alphabetical order; of too many the rarest are left out."""
        split = [words_of(mission) for mission in sorted(set(missions))]
        counted = Counter(word for words in split for word in words)
        kept = sorted(counted, key=lambda word: (-counted[word], word))[:_MOST]
        return cls(tuple(sorted(kept)), min(max(map(len, split), default=1) or 1, _LONGEST))

    def tokens(self, missions: Iterable[str]) -> NDArray[np.uint8]:
        """B missions → (B, length)."""
        rows = self.vocabulary.tokens(missions)[:, : self.length]
        return np.pad(rows, ((0, 0), (0, self.length - rows.shape[1])))

    def to_json(self) -> dict[str, object]:
        return {"words": list(self.words), "length": self.length}
