"""What N agents have seen and done lately: the last observations of the running episode and the actions between them.

A row is filled from the right: the last column is the present. After two observations in a window of three,

    texts   = [None, (first sentences), (second sentences)]
    actions = [-1, action taken at the first]
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

NO_ACTION = -1


@dataclass(frozen=True)
class History:
    """The window of N agents; methods return a new one.

    Attributes:
        texts: (N, L) objects, the captions as tuples of sentences; None where the episode is younger.
        actions: (N, L - 1) int64, column j is the action taken at `texts[:, j]`; -1 where there was none.
    """

    texts: NDArray[np.object_]
    actions: NDArray[np.int64]

    @classmethod
    def begin(cls, num_envs: int, observations: int = 3) -> History:
        """The empty window of `num_envs` agents, for L = `observations` and the actions between them."""
        return cls(np.full((num_envs, observations), None, object), np.full((num_envs, observations - 1), NO_ACTION))

    def seen(self, texts: NDArray[np.object_], started: NDArray[np.bool_]) -> History:
        """The window when the agents look at `texts` (N,); where an episode has `started` (N,), it holds only these."""
        kept, actions = self.texts.copy(), self.actions.copy()
        kept[:, :-1] = self.texts[:, 1:]
        kept[started] = None
        kept[:, -1] = texts
        actions[started] = NO_ACTION
        return History(kept, actions)

    def acted(self, actions: NDArray[np.int64]) -> History:
        """The window after the agents took `actions` (N,), which the next `seen` follows."""
        return History(self.texts, np.concatenate([self.actions, actions[:, None]], 1)[:, 1:])

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All of it as arrays of numbers, which a checkpoint can hold; texts are JSON in UTF-8."""
        text = json.dumps(self.texts.tolist(), ensure_ascii=False).encode()
        return {"texts": np.frombuffer(text, np.uint8).copy(), "actions": self.actions.copy()}

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> History:
        """The window that `arrays` was called on."""
        actions = arrays["actions"].astype(np.int64)
        texts = np.empty((len(actions), actions.shape[1] + 1), object)
        for n, row in enumerate(json.loads(arrays["texts"].tobytes())):
            for j, sentences in enumerate(row):
                texts[n, j] = None if sentences is None else tuple(sentences)
        return cls(texts, actions)
