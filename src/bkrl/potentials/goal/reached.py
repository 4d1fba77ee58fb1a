"""Goals that an episode has reached: the fields of its memory that suggested goals name.

A caption says how near a goal is; that it was reached is gone from view a moment later. So each field of the memory of
episodes is called by the goal that it counts ("pick up a key"), suggested goals are compared with these names, and a
field that one of them means is worth something from the first time on. All such fields count the same, however often
they were suggested: what comes late in an episode is asked about seldom.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bkrl.core.errors import InputError
from bkrl.data.dataset import Dataset
from bkrl.envs import memory_of
from bkrl.potentials.goal.texts import cosines, on_grid
from bkrl.potentials.kinds import Shuffle, permuted
from bkrl.text.encoders import TextEncoder

ALIKE = 0.5
"""The cosine from which a goal means the field whose name is nearest to it."""


@dataclass(frozen=True)
class Reached:
    """How much of what was suggested an episode has reached.

    Attributes:
        memory: (M,) names of the fields of the memory.
        fields: (K,) the numbers of those that goals mean, in order.
        half: (K,) the counts at which each of them is worth half, at least 1.
    """

    memory: tuple[str, ...]
    fields: tuple[int, ...]
    half: tuple[float, ...]

    def __post_init__(self) -> None:
        """ValueError for fields that the memory does not have, or counts that are none."""
        if not self.fields or not set(self.fields) <= set(range(len(self.memory))):
            raise ValueError(f"the fields {self.fields} are not among {len(self.memory)}")
        if len(self.half) != len(self.fields) or not all(count >= 1 for count in self.half):
            raise ValueError(f"the counts {self.half} do not fit {len(self.fields)} fields")

    def __call__(self, memory: NDArray[np.uint8]) -> NDArray[np.float64]:
        """(B, M) → (B,) in [0, 1): the mean over fields of n / (n + half), so each time is worth less than the last."""
        counts = memory[:, list(self.fields)].astype(np.float64)
        worth: NDArray[np.float64] = (counts / (counts + np.array(self.half))).mean(axis=1)
        return worth

    @property
    def names(self) -> list[str]:
        """(K,) of the fields that goals mean."""
        return [self.memory[field] for field in self.fields]


def measure(
    goals: Sequence[str], encoder: TextEncoder, dataset: Dataset, names: tuple[str, ...], shuffle: Shuffle | None = None
) -> Reached:
    """What memory counts of the goals, and how far the dataset's episodes came.

    Half the worth of a field is where the middle one of the episodes ended that did such a thing at all.

    Args:
        goals: distinct texts.
        encoder: of them.
        dataset: its episodes, with their memory.
        names: (M,) of the fields of the memory.
        shuffle: of a control: its share of the fields that goals mean is replaced by as many, drawn from all others.

    Raises:
        InputError: memory counts none of the goals.
    """
    memory = memory_of(dataset.env_id)
    assert memory is not None
    assert dataset.memory is not None
    alike = cosines(on_grid(encoder(memory.goals)), on_grid(encoder(goals)))
    meant = {int(field) for field, cosine in zip(alike.argmax(0), alike.max(0), strict=True) if cosine >= ALIKE}
    if not meant:
        raise InputError(
            f"None of the {len(goals)} goals of these labels is one that the memory of episodes counts "
            f"({', '.join(memory.goals)}); label again without --with-memory."
        )
    if shuffle is not None:
        drawn = permuted(len(names), Shuffle(shuffle.seed)).tolist()
        kept = [one for one in drawn if one in meant][: len(meant) - round(shuffle.share * len(meant))]
        meant = {*kept, *[one for one in drawn if one not in kept][: len(meant) - len(kept)]}
    counts = dataset.memory[dataset.first_row + dataset.lengths]
    fields = tuple(sorted(meant))
    half = tuple(float(np.median(done)) if len(done := counts[counts[:, one] > 0, one]) else 1.0 for one in fields)
    return Reached(names, fields, half)
