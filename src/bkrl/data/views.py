"""What agents look at: one row for each of N agents in one step, or for each of T × N steps of a rollout."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

ViewName = Literal["symbols", "image", "text", "mission", "goal", "history", "env_state", "memory"]
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
        memory: (N, M) uint8, what happened in the episode so far, see `envs.memory`.
    """

    symbols: NDArray[np.uint8]
    image: NDArray[np.uint8] | None = None
    text: NDArray[np.object_] | None = None
    mission: NDArray[np.object_] | None = None
    goal: NDArray[Any] | None = None
    history: NDArray[np.object_] | None = None
    env_state: NDArray[Any] | None = None
    memory: NDArray[np.uint8] | None = None

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
        told = self.text, self.mission, self.goal, self.history
        return self.symbols, self.image, *told, self.env_state, self.memory

    def flat(self) -> Views:
        """(T, N) rows as (T * N,) rows."""
        return Views(*(a if a is None else a.reshape(a.shape[0] * a.shape[1], *a.shape[2:]) for a in self.arrays()))  # type: ignore[arg-type]

    @staticmethod
    def joined(parts: Sequence[Views]) -> Views:
        """Rows one after the other."""
        columns = zip(*(part.arrays() for part in parts), strict=True)
        return Views(*(None if column[0] is None else np.concatenate(column) for column in columns))  # type: ignore[arg-type]


class ViewKeys:
    """Bytes that tell views apart, in the kinds of views that are wanted: equal bytes stand for equal views.

    Texts are numbered in the order in which they are met, so keys of one `ViewKeys` mean nothing to another. `views`
    turns keys back into views, so that a memory of many steps holds each text once.
    """

    def __init__(self, wants: Sequence[ViewName]) -> None:
        self.wants = wants
        self.plain = len(wants) == 1 and wants[0] in ("symbols", "image")
        """Whether the keys are the wanted array itself."""
        self._numbers: dict[Any, int] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._dtypes: dict[str, np.dtype[Any]] = {}

    def __call__(self, views: Views) -> NDArray[np.uint8]:
        """(N, ...) uint8; the wanted array itself where that is one array of bytes."""
        if not self._shapes:
            self._shapes = {name: vars(views)[name].shape[1:] for name in self.wants}
            self._dtypes = {name: vars(views)[name].dtype for name in self.wants}
        columns = [vars(views)[name] for name in self.wants]
        if self.plain:
            return columns[0]
        return np.concatenate([self._bytes(column).reshape(len(views), -1) for column in columns], axis=1)

    def views(self, keys: NDArray[np.uint8]) -> Views:
        """The views of keys (B, ...) that were made here, without what is not wanted."""
        count, start = len(keys), 0
        columns: dict[str, Any] = {}
        texts, flat = np.fromiter(self._numbers, object, len(self._numbers)), keys.reshape(count, -1)
        for name in self.wants:
            read = self._dtypes[name].hasobject
            dtype = np.dtype(np.int64) if read else self._dtypes[name]
            stop = start + int(np.prod(self._shapes[name], initial=dtype.itemsize))
            column = np.ascontiguousarray(flat[:, start:stop]).view(dtype).reshape(count, *self._shapes[name])
            columns[name] = texts[column] if read else column
            start = stop
        columns.setdefault("symbols", np.zeros((count, 0), np.uint8))
        return Views(**columns)

    def clear(self) -> None:
        """Forget all texts: keys that were made before mean nothing from now on."""
        self._numbers.clear()

    def state(self) -> dict[str, NDArray[Any]]:
        """All texts, as arrays that a checkpoint can hold."""
        return pack_texts(list(self._numbers))

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._numbers = {text: number for number, text in enumerate(unpack_texts(state))}

    def _bytes(self, array: NDArray[Any]) -> NDArray[np.uint8]:
        if array.dtype == object:
            numbers = [self._numbers.setdefault(value, len(self._numbers)) for value in array.ravel()]
            array = np.array(numbers, np.int64).reshape(len(array), -1)
        return np.ascontiguousarray(array).view(np.uint8)


def pack_texts(values: Sequence[Any]) -> dict[str, NDArray[Any]]:
    """Values of texts, None, strings and tuples of these, as arrays: each string once, and what is made of it.

    None is -1, a string its number, a tuple of n values -2 - n and then the values: (None, ("a", "b")) becomes
    [-4, -1, -4, 0, 1] with the strings a and b.
    """
    strings: dict[str, int] = {}
    codes: list[int] = []

    def code(value: Any) -> None:
        if isinstance(value, str):
            codes.append(strings.setdefault(value, len(strings)))
        elif value is None:
            codes.append(-1)
        else:
            codes.append(-2 - len(value))
            for part in value:
                code(part)

    for value in values:
        code(value)
    text = json.dumps(list(strings), ensure_ascii=False).encode()
    return {"codes": np.array(codes, np.int32), "strings": np.frombuffer(text, np.uint8).copy()}


def unpack_texts(arrays: Mapping[str, NDArray[Any]]) -> list[Any]:
    """The values that `pack_texts` was given."""
    strings, codes = json.loads(arrays["strings"].tobytes()), iter(arrays["codes"].tolist())

    def value(code: int) -> Any:
        if code >= -1:
            return None if code < 0 else strings[code]
        return tuple(value(next(codes)) for _ in range(-2 - code))

    return [value(code) for code in codes]
