"""Local models that compute in the process of whoever asks: one of their own begins with six seconds of imports.

`tests/llm/test_local.py` has the tests of that process.
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

from bkrl.llm.causal import CausalModel
from bkrl.llm.local import LocalBackend
from bkrl.llm.protocol import Fault, Reply, Request

APART = LocalBackend._answers
_here: WeakKeyDictionary[LocalBackend, CausalModel] = WeakKeyDictionary()


def model_here(backend: LocalBackend) -> CausalModel:
    """The model that answers for a backend in this process."""
    assert backend._path is not None
    return _here.setdefault(backend, CausalModel(backend._path, backend.identity))


async def _answers(self: LocalBackend, requests: Sequence[Request]) -> list[Reply | Fault]:
    return await APART(self, requests) if self._path is None else model_here(self).answer(requests)


def compute_here() -> None:
    """From now on, in this process."""
    LocalBackend._answers = _answers  # type: ignore[method-assign]
