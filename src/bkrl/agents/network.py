"""Agents whose policy is a network, and their files.

`policy.safetensors` holds the weights, `policy.json` what they are the weights of.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bkrl.agents import FORMAT
from bkrl.agents.networks import check_fit, of_spec
from bkrl.agents.networks.layers import to_device
from bkrl.agents.networks.missions import WordTable, vocabulary_of
from bkrl.agents.protocol import Acted, Inputs, State, TrainableAgent
from bkrl.agents.weights import finite, read_weights, write_weights
from bkrl.core.errors import InputError
from bkrl.core.files import atomic_write, check_files, read_json, sha256, to_json
from bkrl.data.views import ViewName, Views


class _Document(TypedDict):
    """policy.json."""

    network: dict[str, Any]
    env_id: str
    family: str
    action_names: list[str]
    view: Literal["symbolic", "image"]
    sha256: str


class NetworkAgent(TrainableAgent):
    """An agent whose policy is a network without memory.

    A network that reads missions has their words in a `WordTable`; words that are not there count as one.

    Args:
        network: the actor-critic.
        env_id, family: where it is trained.
        action_names: in the order of its logits.
        view: `symbolic` or `image`, what the network reads.
    """

    def __init__(
        self, network: Any, env_id: str, family: str, action_names: tuple[str, ...], view: str = "symbolic"
    ) -> None:
        self.module: Any = network
        self.env_id, self.family, self.action_names, self.view = env_id, family, action_names, view
        self.device = torch.device("cpu")

    @staticmethod
    def of(network: Any, *who: Any) -> NetworkAgent:
        """The agent for a network of `build_network`."""
        if not hasattr(network, "memory"):
            return NetworkAgent(network, *who)
        from bkrl.agents.recurrent import RecurrentAgent  # it stands on this module

        return RecurrentAgent(network, *who)

    @property
    def wants(self) -> tuple[ViewName, ...]:
        """One of symbols and image, and the mission and the memory of episodes if the network reads them."""
        seen: tuple[ViewName, ...] = ("image" if self.view == "image" else "symbols",)
        seen += () if self.vocabulary is None else ("mission",)
        return (*seen, "memory") if self.reads_memory else seen

    @property
    def reads_memory(self) -> bool:
        """Whether it reads the memory of episodes."""
        return "episode" in dict(self.module.named_children())

    @property
    def vocabulary(self) -> WordTable | None:
        """The words of missions that it knows; None if it reads none."""
        return vocabulary_of(self.module)

    @property
    def spec(self) -> dict[str, Any]:
        """What `build` makes the agent from, as plain JSON values."""
        return dict(self.module.spec)

    @property
    def num_actions(self) -> int:
        """A."""
        return int(self.spec["num_actions"])

    @classmethod
    def build(cls, spec: Mapping[str, Any], *who: Any) -> NetworkAgent:
        """An agent whose weights are not yet written.

        Args:
            spec: from policy.json.
            who: env_id, family, action_names and view.

        Raises:
            ValueError: the spec describes no agent.
        """
        return NetworkAgent.of(of_spec(spec), *who)

    # --------------------------------------------------------------------------------------------------------- acting

    def begin(self, num_envs: int) -> State:
        return {}

    def inputs(self, views: Views) -> Inputs:
        """`seen`: what the network reads; `words`: (B, L) the numbers of the mission's words; `memory`: (B, M) that of
        episodes. The last two only if it reads them.
        """
        seen: Any = views.image if self.view == "image" else views.symbols
        inputs = {"seen": to_device(seen, self.device)}
        words = words_of(views, self.vocabulary, self.device)
        inputs |= {} if words is None else {"words": words}
        if self.reads_memory:
            if views.memory is None:
                raise ValueError("the agent wants the memory of episodes, and the views have none")
            inputs["memory"] = to_device(views.memory, self.device)
        return inputs

    def forward(self, inputs: Inputs, state: State, started: Any) -> tuple[Tensor, Tensor, State]:
        if "memory" in inputs:
            return (*self.module(inputs["seen"], inputs.get("words"), inputs["memory"]), state)
        words = (inputs["words"],) if "words" in inputs else ()
        return (*self.module(inputs["seen"], *words), state)

    def values(self, views: Views, state: State, started: Any) -> Tensor:
        return one_step(self, self.inputs(views), state, started)[1]

    @torch.no_grad()
    def act(self, views: Views, state: State, started: NDArray[np.bool_], noise: NDArray[np.float32] | None) -> Acted:
        out, values, state = one_step(self, self.inputs(views), state, started)
        logits = out.cpu().numpy()
        return Acted((logits if noise is None else logits + noise).argmax(1), logits, values.cpu().numpy(), state)

    # ------------------------------------------------------------------------------------------------------- training

    def groups(self) -> dict[str, list[nn.Parameter]]:
        return {"policy": [p for p in self.module.parameters() if p.requires_grad]}

    def schedule(self, step: int) -> None:
        """Nothing changes by a schedule."""

    def prepare(self, device: torch.device, compile: bool) -> None:
        self.module.to(device)
        self.device = device
        if compile:
            self.module.compile(dynamic=True)  # at its first call; the weights stay its own

    # ---------------------------------------------------------------------------------------------------------- files

    def save(self, folder: Path, name: str = "policy") -> list[str]:
        write_weights(folder / f"{name}.safetensors", self.module)
        document = {
            "format": FORMAT,
            "network": self.spec,
            "env_id": self.env_id,
            "family": self.family,
            "action_names": self.action_names,
            "view": self.view,
            "sha256": sha256(folder / f"{name}.safetensors"),
        }
        atomic_write(folder / f"{name}.json", to_json(document))
        return [f"{name}.safetensors", f"{name}.json"]

    @classmethod
    def load(cls, folder: Path, name: str = "policy") -> NetworkAgent:
        """Read an agent back; InputError when it is missing, damaged or of another format."""
        path = folder / f"{name}.json"
        document: _Document = read_json(path, _Document)
        weights = folder / f"{name}.safetensors"
        check_files(folder, {weights.name: document["sha256"]})
        tensors = read_weights(weights)
        names = tuple(document["action_names"])
        who = (document["env_id"], document["family"], names, document["view"])
        bare = {**document["network"], "goals": None}  # which may be a million, and are no weights
        check_fit(lambda: cls.build(bare, *who).module, tensors, "the network that is described beside them")
        agent = cls.build(document["network"], *who)
        agent.module.load_state_dict(tensors)
        if agent.num_actions != len(names):
            raise InputError(f"{path} names other actions than its network has; train the policy again.")
        if not finite(agent.module, tensors):
            raise InputError(
                f"{weights} holds weights that are not finite; train the policy again with a smaller --learning-rate."
            )
        return agent


def words_of(views: Views, vocabulary: WordTable | None, device: torch.device) -> Tensor | None:
    """(B, L) the numbers of the words of the views' missions; None for a network that reads none."""
    if vocabulary is None:
        return None
    if views.mission is None:
        raise ValueError("the agent wants missions, and the views have none")
    return to_device(vocabulary.tokens(views.mission), device)


def one_step(
    agent: TrainableAgent, inputs: Inputs, state: State, started: NDArray[np.bool_]
) -> tuple[Tensor, Tensor, State]:
    """`agent.forward` of one step (B,): agents with a memory are given sequences of length 1."""
    if not state:
        return agent.forward(inputs, state, None)
    sequence = {name: tensor[None] for name, tensor in inputs.items()}
    device = next(iter(sequence.values())).device
    logits, values, state = agent.forward(sequence, state, to_device(started, device)[None])
    return logits[0], values[0], state
