"""The facts about a world that the rest of bkrl needs without making one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class World:
    """One environment id.

    Attributes:
        env_id: the name, as registered with Gymnasium.
        family: "babyai", "crafter" or "toy"; potentials and policies are made for a family.
        obs_shape: shape of the symbolic uint8 observation.
        action_names: in the order of the action indices.
        max_steps: an episode is truncated after this many actions.
        rules: one sentence: whose rules this id follows, with every deviation.
        solved: one sentence: what counts as success.
    """

    env_id: str
    family: str
    obs_shape: tuple[int, ...]
    action_names: tuple[str, ...]
    max_steps: int
    rules: str
    solved: str


class ClauseReader(Protocol):
    """Which clauses the captions of observations have, known without making the captions.

    Attributes:
        texts: the clauses; may grow at its end as observations are read.
    """

    texts: list[str]

    def __call__(self, views: NDArray[np.uint8]) -> NDArray[np.int32]:
        """(M, *obs_shape) → (M, most) numbers of `texts` in the caption's order, -1 after the last."""
        ...
