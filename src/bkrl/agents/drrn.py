"""The deep reinforcement relevance network (He et al. 2016): an agent that reads, and says what each action is worth.

One gated recurrent unit reads the prompt, another the name of an action; two layers say from both what the action is
worth there, Q(s, a). The published form of Carta et al. (2023) has 231,169 + 128 V weights for V tokens. Actions are
drawn from the softmax of their values.

`policy.safetensors` holds the weights, `policy-tokenizer.json` the tokenizer, `policy.json` what they belong to.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bkrl.agents import FORMAT
from bkrl.agents.networks import check_fit
from bkrl.agents.networks.reader import read
from bkrl.agents.protocol import Acted, Agent, State
from bkrl.agents.viewer import Viewer
from bkrl.agents.weights import finite, read_weights, write_weights
from bkrl.core.errors import InputError
from bkrl.core.files import atomic_write, check_files, read_json, sha256, to_json
from bkrl.core.flags import Flag
from bkrl.core.seeds import derive_seed, generator
from bkrl.data.views import ViewName, Views
from bkrl.envs import env_spec
from bkrl.envs.vector import BaseVectorEnv
from bkrl.text.policy_prompts import FORMS, prompts, wants_of
from bkrl.text.tokenizer import Tokenizer
from bkrl.text.wording import Wording

WIDTH = 128
_RANDOM_STEPS = 32


class DRRNNetwork(nn.Module):
    """Axes: B states, A actions, S tokens, V tokens of the vocabulary."""

    def __init__(self, vocabulary: int, width: int = WIDTH) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.state_reader = nn.GRU(width, width, batch_first=True)
        self.action_reader = nn.GRU(width, width, batch_first=True)
        self.hidden = nn.Linear(2 * width, width)
        self.worth = nn.Linear(width, 1)

    @classmethod
    def empty(cls, vocabulary: int) -> DRRNNetwork:
        """A network whose weights are not written: torch would draw throw-away ones from its global generator."""
        with torch.device("meta"):
            network = cls(vocabulary)
        return network.to_empty(device="cpu")

    def initialise(self, generator: torch.Generator) -> None:
        """Fresh weights: those of the embedding are normal, all others uniform within 1 / √inputs, as in torch."""
        with torch.no_grad():
            for name, weight in self.named_parameters():
                if name.startswith("embedding"):
                    weight.normal_(generator=generator)
                    continue
                inputs = self.hidden.in_features if name.startswith("hidden") else self.worth.in_features
                weight.uniform_(-(inputs**-0.5), inputs**-0.5, generator=generator)

    def forward(self, states: Tensor, lengths: Tensor, actions: Tensor, action_lengths: Tensor) -> Tensor:
        """(B, A) Q.

        Args:
            states, lengths: (B, S) tokens and (B,) how many of them count.
            actions, action_lengths: (A, S) and (A,).
        """
        state = read(self.state_reader, self.embedding, states, lengths)
        action = read(self.action_reader, self.embedding, actions, action_lengths)
        # One layer on (state, action) side by side is a layer on each, added up: B + A products for B · A.
        of_state, of_action = self.hidden.weight.split(state.shape[1], 1)
        both = (state @ of_state.T)[:, None] + (action @ of_action.T)[None] + self.hidden.bias
        return self.worth(both.relu()).squeeze(-1)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Reading:
    """How a text agent reads and chooses.

    Attributes:
        form: of its prompts, a key of `FORMS` that makes plain text.
        observations: L, how many of them a prompt holds, the present one included.
        temperature: by which values are divided before the softmax.
    """

    form: str = "glam"
    observations: Annotated[int, Flag("", least=1)] = 3
    temperature: float = 1.0


class _Document(TypedDict):
    """policy.json."""

    network: dict[str, Any]
    env_id: str
    action_names: list[str]
    wording: dict[str, Any]
    reading: Reading
    sha256: dict[str, str]


class DRRNAgent(Agent):
    """See `Agent`; without memory: what it has seen before is part of its views.

    Args:
        network: with as many tokens as the tokenizer.
        tokenizer: turns prompts and names of actions into tokens.
        env_id: where it acts.
        reading: how it reads.
        wording: in which words.
    """

    def __init__(
        self, network: DRRNNetwork, tokenizer: Tokenizer, env_id: str, reading: Reading, wording: Wording | None = None
    ) -> None:
        self.module, self.tokenizer, self.reading = network, tokenizer, reading
        facts = env_spec(env_id)
        self.env_id, self.family, self.action_names = facts.env_id, facts.family, facts.action_names
        self.observations, self.wording = reading.observations, wording or Wording()
        self._worded = self.wording.of(facts)
        self.device = torch.device("cpu")
        self._actions = self._tokens(self._worded.action_names)

    @property
    def wants(self) -> tuple[ViewName, ...]:
        return wants_of(self.reading.form, self.reading.observations)

    def reworded(self, wording: Wording, env_id: str) -> DRRNAgent:
        """The same agent in another wording and another env, whose actions may be others."""
        return DRRNAgent(self.module, self.tokenizer, env_id, self.reading, wording)

    def begin(self, num_envs: int) -> State:
        return {}

    def values(self, views: Views, network: nn.Module | None = None) -> Tensor:
        """(B, A) Q, by another network where one is given; each distinct prompt is read once."""
        texts, index = prompts(FORMS[self.reading.form], views, self._worded)
        worth = (network or self.module)(*self._tokens(texts), *self._actions)
        return worth.index_select(0, torch.from_numpy(index).to(self.device))

    @torch.no_grad()
    def act(self, views: Views, state: State, started: NDArray[np.bool_], noise: NDArray[np.float32] | None) -> Acted:
        logits = (self.values(views) / self.reading.temperature).cpu().numpy()
        actions = (logits if noise is None else logits + noise).argmax(1)
        return Acted(actions, logits, np.zeros((len(views), 0), np.float32), state)

    def prepare(self, device: torch.device) -> None:
        """Move to a device."""
        self.module.to(device)
        self.device = device
        self._actions = self._tokens(self._worded.action_names)

    def _tokens(self, texts: Any) -> tuple[Tensor, Tensor]:
        tokens, lengths = self.tokenizer(texts)
        return torch.from_numpy(tokens).to(self.device), torch.from_numpy(lengths)

    # ---------------------------------------------------------------------------------------------------------- files

    def save(self, folder: Path, name: str = "policy") -> list[str]:
        """Write `NAME.safetensors`, `NAME-tokenizer.json` and `NAME.json`; their names."""
        files = [f"{name}.safetensors", f"{name}-tokenizer.json"]
        write_weights(folder / files[0], self.module)
        atomic_write(folder / files[1], self.tokenizer.to_json())
        document = {
            "format": FORMAT,
            "network": {"name": "drrn", "vocabulary": self.tokenizer.size},
            "env_id": self.env_id,
            "action_names": self.action_names,
            "wording": self.wording.to_json(),
            "reading": self.reading,
            "sha256": {file: sha256(folder / file) for file in files},
        }
        atomic_write(folder / f"{name}.json", to_json(document))
        return [*files, f"{name}.json"]

    @classmethod
    def load(cls, folder: Path, name: str = "policy") -> DRRNAgent:
        """Read an agent back; InputError when it is missing, damaged or of another format."""
        document: _Document = read_json(folder / f"{name}.json", _Document)
        weights, reader = folder / f"{name}.safetensors", folder / f"{name}-tokenizer.json"
        check_files(folder, {file.name: document["sha256"].get(file.name, "") for file in (weights, reader)})
        tensors = read_weights(weights)
        tokenizer = Tokenizer.of_json(reader.read_text(encoding="utf-8"))
        check_fit(lambda: DRRNNetwork(tokenizer.size), tensors, "the tokenizer beside them")
        network = DRRNNetwork.empty(tokenizer.size)
        network.load_state_dict(tensors)
        if not finite(network, tensors):
            raise InputError(f"{weights} holds weights that are not finite; train the policy again.")
        wording = Wording.of_json(document["wording"])
        agent = cls(network, tokenizer, document["env_id"], document["reading"], wording)
        if agent.action_names != tuple(document["action_names"]):
            raise InputError(f"{folder / name}.json names other actions than {agent.env_id} has.")
        return agent


def new_drrn(envs: BaseVectorEnv, vocabulary: int, reading: Reading, wording: Wording, seed: int) -> DRRNAgent:
    """An agent with fresh weights, and a tokenizer that is trained on what it would read while it acts at random.

    Args:
        envs: where it acts.
        vocabulary: most tokens.
        reading, wording: see `DRRNAgent`.
        seed: of the weights.
    """
    wants, observations = wants_of(reading.form, reading.observations), reading.observations
    view = Viewer(envs, SimpleNamespace(wants=wants, wording=wording, observations=observations, goals=None))
    worded, rng, N = wording.of(envs.env_spec), generator(seed, "corpus"), envs.num_envs
    seen, started = envs.reset(seed=derive_seed(seed, "corpus"))[0], np.ones(N, bool)
    corpus: list[Any] = list(worded.action_names)
    for _ in range(_RANDOM_STEPS):
        corpus += prompts(FORMS[reading.form], view(seen, started), worded)[0]
        actions = rng.integers(0, len(worded.action_names), N)
        view.acted(actions)
        seen, _, terminated, truncated, _ = envs.step(actions)
        started = terminated | truncated
    tokenizer = Tokenizer.trained(corpus, vocabulary)
    network = DRRNNetwork.empty(tokenizer.size)
    network.initialise(torch.Generator().manual_seed(seed))
    return DRRNAgent(network, tokenizer, envs.env_spec.env_id, reading, wording)
