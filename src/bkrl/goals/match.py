"""Which deeds reach a goal: the same words, or words that an encoder finds similar enough."""

import re
from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from bkrl.envs.family import GoalSpace
from bkrl.text.encoders import TextEncoder


def normal(text: str) -> str:
    """Small letters, single spaces, no full stop at the end: "Chop  tree." → "chop tree"."""
    return re.sub(r"\s+", " ", text).strip(" .").lower()


class Matcher:
    """Similarity of goals and deeds.

    Args:
        situations: names the deeds.
        encoder: makes vectors of texts; None: only a name of a deed reaches it, and pays 1.
        threshold: the cosine that must be exceeded (published: .99, at which only equal texts match).
    """

    def __init__(self, situations: GoalSpace, encoder: TextEncoder | None = None, threshold: float = 0.99) -> None:
        self.situations, self.encoder, self.threshold = situations, encoder, threshold
        self._row = cache(self._row_of)
        self._deeds = np.zeros(0) if encoder is None else encoder(list(situations.deeds))

    def __call__(self, goals: Sequence[str]) -> NDArray[np.float32]:
        """(G, A) what a goal pays when a deed is done: their similarity where it is enough, otherwise 0."""
        rows = [self._row(normal(goal)) for goal in goals]
        return np.stack(rows) if rows else np.zeros((0, len(self.situations.deeds)), np.float32)

    def _row_of(self, goal: str) -> NDArray[np.float32]:
        row = np.array([goal in names for names in self.situations.same], np.float32)
        if self.encoder is not None:
            similar = np.minimum(self._deeds @ self.encoder([goal])[0], 1)  # rounded, it may be more
            row = np.maximum(row, np.where(similar > self.threshold, similar, 0)).astype(np.float32)
        return row
