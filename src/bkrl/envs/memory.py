"""What happened in an episode so far, as numbers: a pure fold over what was seen, what was done and what was seen next.

The same fold runs beside a policy, over recorded episodes and in tests, so a potential reads the same numbers in all of
them. It is part of the history of an episode: nothing of it comes from the hidden state of an env.
"""

from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from bkrl.core.jit import helper

_FIELD_MOST: Final = 255
_EPISODES = 256  # of a record are folded at once


class EpisodeMemory(Protocol):
    """A family's memory."""

    @property
    def names(self) -> tuple[str, ...]:
        """(M,) of the fields, in order, each a word that programs can name."""

    @property
    def goals(self) -> tuple[str, ...]:
        """(M,) what each field counts, said as a goal: "pick up a key"."""

    @property
    def size(self) -> int:
        """S, bytes that are kept for an episode. The first M are the fields, the others are for the fold alone. All are
        0 where an episode begins.
        """

    def update(
        self, kept: NDArray[np.uint8], before: NDArray[np.uint8], actions: NDArray[np.int64], after: NDArray[np.uint8]
    ) -> None:
        """One step of N episodes, in place.

        Args:
            kept: (N, S).
            before: (N, *obs_shape) the symbols at which the agents acted.
            actions: (N,).
            after: (N, *obs_shape) the symbols that followed, the true last ones where the episode ended.
        """


@helper
def count(one: Any, field: Any) -> None:
    """Count once more in a field of one episode, (S,); it counts to 255."""
    if one[field] < _FIELD_MOST:
        one[field] += 1


def fold(
    memory: EpisodeMemory, observations: NDArray[np.uint8], actions: NDArray[np.int64], first: NDArray[np.int64]
) -> NDArray[np.uint8]:
    """(R, M) the fields at each of R rows of recorded episodes, one episode after the other.

    Args:
        memory: of their family.
        observations: (R, *obs_shape) symbols.
        actions: (R,) the action taken at each row; anything on the last row of an episode.
        first: (E,) the row at which each episode begins, increasing; the first is 0.
    """
    fields = np.zeros((len(observations), len(memory.names)), np.uint8)
    ends = np.append(first[1:], len(observations)) - 1
    for some in range(0, len(first), _EPISODES):
        rows, last = first[some : some + _EPISODES].copy(), ends[some : some + _EPISODES]
        kept = np.zeros((len(rows), memory.size), np.uint8)
        while len(going := np.flatnonzero(rows < last)):
            if len(going) < len(rows):
                rows, last, kept = rows[going], last[going], np.ascontiguousarray(kept[going])
            memory.update(kept, observations[rows], actions[rows], observations[rows + 1])
            rows += 1
            fields[rows] = kept[:, : fields.shape[1]]
    return fields
