"""An agent that takes every action with the same probability: the baseline of all."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar, TypedDict

import numpy as np
from numpy.typing import NDArray

from bkrl.agents import FORMAT
from bkrl.agents.protocol import Acted, Agent, State
from bkrl.core.files import atomic_write, read_json, to_json
from bkrl.data.views import ViewName, Views


class _Document(TypedDict):
    """policy.json."""

    env_id: str
    family: str
    action_names: list[str]


@dataclass(frozen=True)
class RandomAgent(Agent):
    """See `Agent`. Where there is no noise to sample with, it takes the first action."""

    env_id: str
    family: str
    action_names: tuple[str, ...]
    wants: ClassVar[tuple[ViewName, ...]] = ()

    def begin(self, num_envs: int) -> State:
        return {}

    def act(self, views: Views, state: State, started: NDArray[np.bool_], noise: NDArray[np.float32] | None) -> Acted:
        logits = np.zeros((len(views), len(self.action_names)), np.float32)
        actions = (logits if noise is None else noise).argmax(1)
        return Acted(actions, logits, np.zeros((len(views), 0), np.float32), state)

    def save(self, folder: Path, name: str = "policy") -> list[str]:
        document = {"format": FORMAT, "network": {"name": "random"}, **asdict(self)}
        atomic_write(folder / f"{name}.json", to_json(document))
        return [f"{name}.json"]

    @classmethod
    def load(cls, folder: Path, name: str = "policy") -> RandomAgent:
        """Read an agent back; InputError when its file is damaged."""
        document: _Document = read_json(folder / f"{name}.json", _Document)
        return cls(document["env_id"], document["family"], tuple(document["action_names"]))
