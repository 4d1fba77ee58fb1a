"""What agents look at: one row for each of N agents in one step, or for each of T × N steps of a rollout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

ViewName = Literal["symbols", "image", "text", "mission", "goal", "history", "env_state"]
Turn: TypeAlias = tuple[Sequence[str], str]
"""The sentences of an observation and the name of the action taken there; "" in the present."""


@dataclass(frozen=True)
class Views:
    """What N agents can look at in one step. All arrays have the same leading axes, (N,) or (T, N).

    Attributes:
        symbols: (N, *obs_shape) uint8, the symbolic observation.
        image: (N, H, W, 3) uint8, the picture; None where no agent wants it, as for all that follow.
        text: (N,) objects, the caption as a tuple of sentences.
        mission: (N,) objects, the sentence that the env asks the agent to fulfil, "" where there is none.
        goal: (N, ...) of any dtype, what a method has set the agent as its goal.
        history: (N, L - 1) objects, the steps before this one, the oldest first: a `Turn`, or None where the episode is
            younger. After two steps, with L = 4: [None, (sentences, "go forward"), (sentences, "pick up")].
        env_state: (N,) records, all that is true of the env, for bots: no policy that learns should want it.
    """

    symbols: NDArray[np.uint8]
    image: NDArray[np.uint8] | None = None
    text: NDArray[np.object_] | None = None
    mission: NDArray[np.object_] | None = None
    goal: NDArray[Any] | None = None
    history: NDArray[np.object_] | None = None
    env_state: NDArray[Any] | None = None

    def __len__(self) -> int:
        return len(self.symbols)

    def __getitem__(self, rows: Any) -> Views:
        """The rows chosen by an index, a slice, an index array or a mask over the leading axes."""
        return Views(*[None if array is None else array[rows] for array in self.arrays()])  # type: ignore[arg-type]

    def __setitem__(self, rows: Any, views: Views) -> None:
        """Write rows; both must hold the same kinds of views."""
        for array, new in zip(self.arrays(), views.arrays(), strict=True):
            if array is not None:
                array[rows] = new

    def arrays(self) -> tuple[NDArray[Any] | None, ...]:
        """All of them, in this order."""
        return self.symbols, self.image, self.text, self.mission, self.goal, self.history, self.env_state

    def flat(self) -> Views:
        """(T, N) rows as (T * N,) rows."""
        return Views(*(a if a is None else a.reshape(-1, *a.shape[2:]) for a in self.arrays()))  # type: ignore[arg-type]

    @staticmethod
    def joined(parts: Sequence[Views]) -> Views:
        """Rows one after the other."""
        columns = zip(*(part.arrays() for part in parts), strict=True)
        return Views(*(None if column[0] is None else np.concatenate(column) for column in columns))  # type: ignore[arg-type]


class ViewKeys:
    """Bytes that tell views apart, in the kinds of views that are wanted: equal bytes stand for equal views.

    Texts are numbered in the order in which they are met, so keys of one `ViewKeys` mean nothing to another.
    """

    def __init__(self, wants: Sequence[ViewName]) -> None:
        self.wants = wants
        self.plain = len(wants) == 1 and wants[0] in ("symbols", "image")
        """Whether the keys are the wanted array itself."""
        self._numbers: dict[Any, int] = {}

    def __call__(self, views: Views) -> NDArray[np.uint8]:
        """(N, ...) uint8; the wanted array itself where that is one array of bytes."""
        columns = [getattr(views, name) for name in self.wants]
        if self.plain:
            return columns[0]
        return np.concatenate([self._bytes(column).reshape(len(views), -1) for column in columns], axis=1)

    def clear(self) -> None:
        """Forget all texts: keys that were made before mean nothing from now on."""
        self._numbers.clear()

    def _bytes(self, array: NDArray[Any]) -> NDArray[np.uint8]:
        if array.dtype == object:
            numbers = [self._numbers.setdefault(value, len(self._numbers)) for value in array.ravel()]
            array = np.array(numbers, np.int64).reshape(len(array), -1)
        return np.ascontiguousarray(array).view(np.uint8)
