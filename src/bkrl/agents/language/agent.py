"""An agent whose policy is a language model: it scores the names of its actions after a prompt (GLAM).

A saved policy is `policy/`, a plain transformers folder or, with low-rank adapters, a folder that peft opens on the
same model; `policy.safetensors`, the heads; and `policy.json`, what they belong to.
"""

from __future__ import annotations

import tempfile
from copy import copy
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from bkrl.agents import FORMAT
from bkrl.agents.language.adapters import Trainable, prepare
from bkrl.agents.language.catalogue import reopened
from bkrl.agents.language.heads import PUBLISHED, Critic, Head
from bkrl.agents.language.models import LanguageModel, Origin, open_model, trained
from bkrl.agents.language.packing import Prompts
from bkrl.agents.language.scorer import Scorer, Scoring
from bkrl.agents.networks import misfit
from bkrl.agents.protocol import Acted, Inputs, State, TrainableAgent
from bkrl.agents.weights import finite, read_weights, write_weights
from bkrl.core.errors import InputError, UsageError
from bkrl.core.files import atomic_write, check_files, read_json, sha256, to_json
from bkrl.data.views import ViewName, Views
from bkrl.envs import env_spec
from bkrl.text.policy_prompts import FORMS, Chat, prompts, wants_of
from bkrl.text.wording import Wording

_KEPT_BYTES = 2**29
"""So much of the states of frozen layers is kept."""


@dataclass(frozen=True)
class LanguageSettings:
    """How a language model acts.

    Attributes:
        scoring: how token probabilities become a policy.
        training: what of the model is trained.
        action_head: a head says how likely actions are, and their names are not scored (published as AFlan).
        head_sizes, head_activation: of the heads' hidden layers.
        own_critic: the value head is a `Critic`, from which the model learns nothing.
        form: of the prompts, one of `FORMS`.
        observations: how many of them a prompt holds, the present one included.
        most_tokens: prompts are scored together up to so many tokens, which bounds memory; a large model learns on a
            processor from 1/32 of them at once.
    """

    scoring: Scoring = field(default_factory=Scoring)
    training: Trainable = field(default_factory=Trainable)
    action_head: bool = False
    head_sizes: tuple[int, ...] = PUBLISHED
    head_activation: str = "sigmoid"
    own_critic: bool = False
    form: str = "glam"
    observations: int = 3
    most_tokens: int = 2**14


class _Spec(TypedDict):
    """`network` in policy.json."""

    name: str
    lm: Origin
    level: str
    num_values: int
    settings: LanguageSettings


class _Document(TypedDict):
    """policy.json."""

    network: _Spec
    env_id: str
    family: str
    action_names: list[str]
    wording: dict[str, Any]
    files: dict[str, str]


class _Weights(nn.Module):
    """Model and heads. Its state is what changes: a frozen model is not written into every checkpoint."""

    def __init__(self, model: nn.Module, heads: dict[str, nn.Module]) -> None:
        super().__init__()
        self.model, self.heads = model, nn.ModuleDict(heads)
        self.register_state_dict_post_hook(_keep_trained)
        self.register_load_state_dict_post_hook(_miss_only_trained)


def _keep_trained(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    kept = {prefix + name for name in _changing(module)}
    for name in [name for name in state if name.startswith(prefix) and name not in kept]:
        del state[name]


def _changing(module: nn.Module) -> set[str]:
    """What is trained, and what the heads have measured."""
    trained = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
    return trained | {name for name, _ in module.named_buffers() if name.startswith("heads.")}


def _miss_only_trained(module: nn.Module, found: Any) -> None:
    kept = _changing(module)
    found.missing_keys[:] = [name for name in found.missing_keys if any(name.endswith(own) for own in kept)]


class LanguageAgent(TrainableAgent):
    """See `TrainableAgent`; without memory: what it has seen before is part of its views.

    Args:
        lm: the model; what `settings.training` says is frozen in it, and adapters are added.
        env_id: where it acts.
        num_values: K.
        settings: how it acts.
        wording: in which words it reads captions, missions and the names of actions.
        seed: of heads and adapters.
        adapter: a folder with adapters of an earlier run.
    """

    view = "text"

    def __init__(
        self,
        lm: LanguageModel,
        env_id: str,
        num_values: int,
        settings: LanguageSettings | None = None,
        wording: Wording | None = None,
        seed: int = 0,
        adapter: Path | None = None,
    ) -> None:
        settings = settings or LanguageSettings()
        facts = env_spec(env_id)
        self.lm, self.settings, self.num_values = lm, settings, num_values
        self.env_id, self.family, self.action_names = facts.env_id, facts.family, facts.action_names
        self.observations = settings.observations
        self.device = torch.device("cpu")
        self.counted: dict[str, int] = {"prompts": 0, "tokens": 0}  # read so far
        self.lower: dict[str | Chat, dict[str, Tensor]] = {}  # states of frozen layers, of the prompts read last
        self.adapters = prepare(lm, settings.training, seed, adapter)
        generator = torch.Generator().manual_seed(seed)
        shape = (settings.head_sizes, settings.head_activation, generator)
        heads: dict[str, nn.Module] = {"value": (Critic if settings.own_critic else Head)(lm.width, num_values, *shape)}
        if settings.action_head:
            heads["action"] = Head(lm.width, len(self.action_names), *shape)
        self.module: Any = _Weights(lm.model, heads)
        self.wording = wording or Wording()

    def reworded(self, wording: Wording, env_id: str) -> LanguageAgent:
        """The same agent in another wording and another env, whose actions may be others; UsageError if it cannot."""
        facts = env_spec(env_id)
        if self.settings.action_head and len(facts.action_names) != len(self.action_names):
            raise UsageError(f"its head has {len(self.action_names)} actions, and there are {len(facts.action_names)}")
        if self.settings.scoring.bias and wording.of(facts).action_names != self._worded.action_names:
            raise UsageError("its --bias-prompts were read with other names of actions")
        other = copy(self)
        other.env_id, other.action_names = facts.env_id, facts.action_names
        other.wording = wording
        return other

    def biased(self, bias: tuple[float, ...]) -> None:
        """Take this off the logits of its actions from here on."""
        self.settings = replace(self.settings, scoring=replace(self.settings.scoring, bias=bias))
        self.wording = self.wording

    def frozen_unlike(self, other: LanguageAgent) -> bool:
        """Whether what is not trained of its model differs from the weights of another agent's model."""
        there = dict(other.lm.model.named_parameters())
        mine = {name: one for name, one in self.lm.model.named_parameters() if not one.requires_grad}
        return not all(name in there and torch.equal(one, there[name]) for name, one in mine.items())

    @property
    def wording(self) -> Wording:
        """In which words it reads; another may be set, to see how far it understands them."""
        return self._wording

    @wording.setter
    def wording(self, wording: Wording) -> None:
        self._wording, self._worded = wording, wording.of(env_spec(self.env_id))
        self.scorer = Scorer(
            self.lm,
            self._worded.action_names,
            self.settings.scoring,
            frozen=max(0, self.settings.training.frozen),
            half=self.settings.training.half,
            most_tokens=self.settings.most_tokens,
        )

    @property
    def wants(self) -> tuple[ViewName, ...]:
        return wants_of(self.settings.form, self.observations)

    @property
    def spec(self) -> dict[str, Any]:
        """What it is made from, as plain JSON values."""
        settings = asdict(self.settings)
        return {
            "name": "language",
            "lm": asdict(self.lm.origin),
            "level": self.lm.level,
            "num_values": self.num_values,
            "settings": settings,
        }

    # --------------------------------------------------------------------------------------------------------- acting

    def begin(self, num_envs: int) -> State:
        """Nothing is remembered, not even what was read before: a run that goes on has not read it."""
        self.lower.clear()
        return {}

    def inputs(self, views: Views) -> Inputs:
        """`tokens` (B, S) and `lengths` (B,) of the prompts, and what frozen parts make of them."""
        texts, index = self.prompts(views)
        return self.read(texts, torch.from_numpy(index))

    def prompts(self, views: Views) -> tuple[list[str | Chat], NDArray[np.int64]]:
        """K different prompts, and for each of the views (B,) the number of its own."""
        return prompts(FORMS[self.settings.form], views, self._worded)

    @torch.no_grad()
    def read(self, texts: list[str | Chat], index: Tensor) -> dict[str, Tensor]:
        """`inputs` of prompts: of K texts those with numbers `index` (B,)."""
        read = self.scorer.prompts(texts).to(self.device)
        self.counted["prompts"] += len(texts)
        self.counted["tokens"] += int(read.lengths.sum())
        made = {"tokens": read.tokens, "lengths": read.lengths}
        if self.settings.training.train == "heads":
            scored = self.scorer(read)
            made = {"logits": scored.logits, "hidden": scored.hidden}
        elif self.scorer.can_split():
            made |= self._lower(texts, read)
        index = index.to(self.device)
        return {name: tensor.index_select(0, index) for name, tensor in made.items()}

    def _lower(self, texts: list[str | Chat], read: Prompts) -> dict[str, Tensor]:
        """What frozen layers make of prompts: an update and a critic read again what the rollout has read."""
        most = _KEPT_BYTES // (4 * self.lm.width * read.tokens.shape[1])
        if len(texts) > most:
            return dict(self.scorer.lower(read))
        if new := [number for number, text in enumerate(texts) if text not in self.lower]:
            made = self.scorer.lower(read.rows(torch.tensor(new, device=self.device)))
            for row, number in enumerate(new):
                S = int(read.lengths[number])
                self.lower[texts[number]] = {
                    name: (states[row, :S] if name == "states" else states[row]).clone()
                    for name, states in made.items()
                }
        kept = [self.lower[text] for text in texts]
        for text in list(self.lower)[: max(0, len(self.lower) - most)]:
            del self.lower[text]
        return {name: pad_sequence([one[name] for one in kept], batch_first=True) for name in kept[0]}

    @property
    def costly(self) -> bool:
        return self.lm.large

    def together(self, inputs: Inputs, rows: Tensor) -> list[Any]:
        """See `TrainableAgent`; a GPU computes many prompts at once, or as `--accumulate` says."""
        if not self.lm.large or "tokens" not in inputs or self.device.type != "cpu":
            return super().together(inputs, rows)
        prompts = Prompts(inputs["tokens"], inputs["lengths"]).rows(rows)
        return self.scorer.together(prompts, self.settings.most_tokens // 32)

    def forward(self, inputs: Inputs, state: State, started: Any) -> tuple[Tensor, Tensor, State]:
        logits, hidden = self._logits(inputs)
        if self.settings.action_head:
            logits = self.module.heads["action"](hidden)
        return logits, self.module.heads["value"](hidden), state

    def _logits(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        if "hidden" in inputs:
            return inputs["logits"], inputs["hidden"]
        lower = {name: inputs[name] for name in ("states", "nodes") if name in inputs}
        scored = self.scorer(Prompts(inputs["tokens"], inputs["lengths"]), lower or None)
        return scored.logits, scored.hidden

    def states(self, inputs: Inputs) -> Tensor:
        """(B, D) what its heads read."""
        return self._logits(inputs)[1]

    def values(self, views: Views, state: State, started: Any) -> Tensor:
        return self.forward(self.inputs(views), state, started)[1]

    @torch.no_grad()
    def act(self, views: Views, state: State, started: NDArray[np.bool_], noise: NDArray[np.float32] | None) -> Acted:
        out, values, state = self.forward(self.inputs(views), state, started)
        logits = out.cpu().numpy()
        return Acted((logits if noise is None else logits + noise).argmax(1), logits, values.cpu().numpy(), state)

    # ------------------------------------------------------------------------------------------------------- training

    def groups(self) -> dict[str, list[nn.Parameter]]:
        """`policy`, what is trained of the model, and `heads`, without a critic of its own."""
        body = trained(self.lm.model)
        own = {id(p) for p in self.module.heads["value"].parameters()} if self.settings.own_critic else set()
        heads = [parameter for parameter in trained(self.module.heads) if id(parameter) not in own]
        return {name: group for name, group in (("policy", body), ("heads", heads)) if group}

    def schedule(self, step: int) -> None:
        """Nothing changes by a schedule; see `begin`."""
        self.lower.clear()

    def prepare(self, device: torch.device, compile: bool) -> None:
        """See `TrainableAgent.prepare`; nothing is compiled: every batch has another shape."""
        self.module.to(device)
        self.device = device

    # ---------------------------------------------------------------------------------------------------------- files

    def save(self, folder: Path, name: str = "policy") -> list[str]:
        (folder / name).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as place:
            made = Path(place)
            if self.adapters is None:
                self.lm.save(made)
            else:
                self.adapters.save_pretrained(made, save_embedding_layers=False)
                (made / "README.md").unlink(missing_ok=True)  # a form about the model, not filled in
            files = sorted(path for path in made.rglob("*") if path.is_file())
            for path in files:
                atomic_write(folder / name / path.name, path.read_bytes())
        write_weights(folder / f"{name}.safetensors", self.module.heads)
        names = [*(f"{name}/{path.name}" for path in files), f"{name}.safetensors"]
        document = {
            "format": FORMAT,
            "network": self.spec,
            "env_id": self.env_id,
            "family": self.family,
            "action_names": self.action_names,
            "wording": self.wording.to_json(),
            "files": {file: sha256(folder / file) for file in names},
        }
        atomic_write(folder / f"{name}.json", to_json(document))
        for path in set((folder / name).iterdir()) - {folder / file for file in names}:
            path.unlink()  # of an earlier policy, perhaps with adapters
        return [*names, f"{name}.json"]

    @classmethod
    def load(cls, folder: Path, name: str = "policy", files: str = "") -> LanguageAgent:
        """Read an agent back; InputError when it is missing, damaged or of another format.

        Args:
            folder, name: where `NAME.json` is.
            files: the name under which its other files were saved, if that is not `name`.
        """
        path, files = folder / f"{name}.json", files or name
        document: _Document = read_json(path, _Document)
        check_files(folder, document["files"])
        spec = document["network"]
        settings, adapted = spec["settings"], spec["settings"].training.train == "lora"
        if adapted:
            lm = reopened(spec["lm"])
        else:
            lm = replace(open_model((folder / files).as_posix(), chat=spec["lm"].chat), origin=spec["lm"])
        lm = replace(lm, level=spec["level"])
        wording = Wording.of_json(document["wording"])
        agent = cls(
            lm, document["env_id"], spec["num_values"], settings, wording, adapter=folder / files if adapted else None
        )
        if list(agent.action_names) != document["action_names"]:
            raise InputError(f"{path} names other actions than {agent.env_id} has; train the policy again.")
        weights = folder / f"{files}.safetensors"
        tensors = read_weights(weights)
        if problem := misfit(agent.module.heads, tensors):
            raise InputError(f"{weights} does not fit what is said beside it ({problem}); train the policy again.")
        agent.module.heads.load_state_dict(tensors)
        if not finite(agent.module, dict(agent.module.named_parameters())):
            raise InputError(
                f"{weights} holds weights that are not finite; train the policy again with a smaller --learning-rate."
            )
        return agent
