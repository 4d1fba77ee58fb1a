"""An agent that takes every action with the same probability: the baseline of all."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import ClassVar, Self, TypedDict

import numpy as np
from numpy.typing import NDArray

from bkrl.agents import FORMAT
from bkrl.agents.protocol import Acted, Agent, State
from bkrl.core.files import atomic_write, read_json, to_json
from bkrl.data.views import ViewName, Views


class PolicyDocument(TypedDict):
    """policy.json."""

    env_id: str
    family: str
    action_names: tuple[str, ...]


@dataclass(frozen=True)
class Unlearned(Agent):
    """See `Agent`. It has no weights: its fields are all of its policy.json, beside `kind`, its name in `AGENTS`."""

    env_id: str
    family: str
    action_names: tuple[str, ...]
    kind: ClassVar[str]
    document: ClassVar[type] = PolicyDocument

    def save(self, folder: Path, name: str = "policy") -> list[str]:
        document = {"format": FORMAT, "network": {"name": self.kind}, **asdict(self)}
        atomic_write(folder / f"{name}.json", to_json(document))
        return [f"{name}.json"]

    @classmethod
    def load(cls, folder: Path, name: str = "policy") -> Self:
        """Read an agent back; InputError when its file is damaged."""
        document = read_json(folder / f"{name}.json", cls.document)
        return cls(**{one.name: document[one.name] for one in fields(cls)})


@dataclass(frozen=True)
class RandomAgent(Unlearned):
    """Where there is no noise to sample with, it takes the first action."""

    kind = "random"
    wants: ClassVar[tuple[ViewName, ...]] = ()

    def begin(self, num_envs: int) -> State:
        return {}

    def act(self, views: Views, state: State, started: NDArray[np.bool_], noise: NDArray[np.float32] | None) -> Acted:
        logits = np.zeros((len(views), len(self.action_names)), np.float32)
        actions = (logits if noise is None else noise).argmax(1)
        return Acted(actions, logits, np.zeros((len(views), 0), np.float32), state)
