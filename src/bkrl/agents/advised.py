"""An agent that starts from advice: logits + β Ψ(s, a), where β falls to 0 while the agent learns.

The action side of what exact shaping is for the critic: shaping starts the critic at Φ, advice starts the actor at Ψ.
No reward is changed, and for every β the agent can still express any policy, so the best one stays within reach; once β
is 0 nothing of the advice is left but what was learnt with it (look-ahead advice as a prior, after Wiewiora, Cottrell
and Elkan 2003; the decay is that of PIES, Behboudian et al. 2022).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, TypedDict

import torch
from torch import Tensor, nn

from bkrl.agents.network import NetworkAgent, words_of
from bkrl.agents.networks import ActorCritic, of_spec
from bkrl.agents.networks.missions import WordTable, vocabulary_of
from bkrl.agents.protocol import Inputs, State
from bkrl.core.documents import typed
from bkrl.core.flags import Flag
from bkrl.data.views import ViewName, Views


class Advice(nn.Module):
    """Ψ(s, a) in [-1, 0]: 0 for the best action of a state, -1 for one that is as pointless as any.

    Args:
        network: its logits, up to a constant for each state, are the advice on a scale of its own. Where it reads
            missions, it knows their words.
        scale: what is mapped to -1; infinite: Ψ = 0 everywhere.
    """

    scale: Tensor

    def __init__(self, network: ActorCritic, scale: float) -> None:
        super().__init__()
        self.network = network.requires_grad_(False)
        self.register_buffer("scale", torch.tensor(scale, dtype=torch.float32))

    @property
    def empty(self) -> bool:
        """Whether Ψ = 0 everywhere."""
        return bool(self.scale.isinf())

    @property
    def vocabulary(self) -> WordTable | None:
        """The words of missions that it knows; None if it reads none."""
        return vocabulary_of(self.network)

    @torch.no_grad()
    def forward(self, observations: Tensor, words: Tensor | None = None) -> Tensor:
        """(B, A) float32 for (B, *obs_shape) uint8 and, where missions are read, (B, L) the numbers of their words."""
        logits = self.network(*(given for given in (observations, words) if given is not None))[0].float()
        return ((logits - logits.amax(1, keepdim=True)) / self.scale).clamp(-1.0, 0.0)


@torch.no_grad()
def begin_as(policy: nn.Module, advice: Advice, weight: float) -> None:
    """Give a policy the weights of an advice's network, so that its logits are `weight` · Ψ, up to a constant for each
    state and without the lower limit of Ψ. Its values stay its own, and so do the words that the advice lacks.

    Raises:
        ValueError: the policy is another network; says in what.
    """
    own, told = policy.state_dict(), advice.network.state_dict()
    actions = int(advice.network.spec["num_actions"])
    same = own.keys() == told.keys() and all(
        one.shape[1:] == told[name].shape[1:] and (one.shape[:1] == told[name].shape[:1] or name.startswith("head."))
        for name, one in own.items()
    )
    if not same or len(own["head.bias"]) < actions:
        raise ValueError("its layers are others")
    words = vocabulary_of(policy)
    known = [] if words is None else list(words.known.numbers)
    for name, one in told.items():
        if name.startswith("head."):
            own[name][:actions] = one[:actions] * (weight / advice.scale)
        else:
            own[name].copy_(one)
    if words is not None:
        words.read_anew()
        words.add(known)


class _Module(nn.Module):
    """The weights of an advised agent."""

    def __init__(self, base: nn.Module, advice: Advice) -> None:
        super().__init__()
        self.base, self.advice = base, advice


class _Spec(TypedDict):
    """What `AdvisedAgent.spec` gives."""

    base: dict[str, Any]
    advice: dict[str, Any]
    weight: float
    until: Annotated[int, Flag("", least=1)]


class AdvisedAgent(NetworkAgent):
    """`base`, its logits shifted by advice whose weight β falls linearly from `weight` to 0 at step `until`.

    The base is a `NetworkAgent`; `language.advised` has that of a language model. The shift changes between iterations
    only, so it is one of the `inputs`: computed once for all epochs of an update.
    """

    module: _Module

    def __init__(self, base: Any, advice: Advice, weight: float, until: int) -> None:
        super().__init__(_Module(base.module, advice), base.env_id, base.family, base.action_names, base.view)
        self.base, self.advice = base, advice
        self.wording, self.observations, self.counted = base.wording, base.observations, base.counted
        self.weight, self.until, self.now = weight, until, weight

    name: ClassVar[str] = "advised"
    """In policy.json."""

    @property
    def wants(self) -> tuple[ViewName, ...]:
        """What the base wants, and for the advice symbols and the mission if it reads that."""
        advice: tuple[ViewName, ...] = ("symbols",) if self.advice.vocabulary is None else ("symbols", "mission")
        return tuple(dict.fromkeys((*self.base.wants, *advice)))

    @property
    def spec(self) -> dict[str, Any]:
        """The agent as it is now: a saved policy goes on with the weight that β has fallen to."""
        specs = {"base": self.base.spec, "advice": self.advice.network.spec}
        return {"name": self.name, **specs, "weight": self.now, "until": self.until}

    @property
    def num_actions(self) -> int:
        return self.base.num_actions

    @classmethod
    def build(cls, spec: Mapping[str, Any], *who: Any) -> AdvisedAgent:
        both: _Spec = typed(_Spec, spec)
        base = NetworkAgent.of(of_spec(both["base"]), *who)
        advice = Advice(of_spec(both["advice"]), 1.0)  # the scale is among the weights
        return cls(base, advice, both["weight"], both["until"])

    def schedule(self, step: int) -> None:
        self.base.schedule(step)
        self.now = self.weight * max(0.0, 1.0 - step / self.until)

    def groups(self) -> dict[str, list[nn.Parameter]]:
        return self.base.groups()

    def prepare(self, device: torch.device, compile: bool) -> None:
        self.base.prepare(device, compile)
        self.module.to(device)
        self.device = device

    def begin(self, num_envs: int) -> State:
        return self.base.begin(num_envs)

    def inputs(self, views: Views) -> Inputs:
        inputs = self.base.inputs(views)
        if self.now == 0.0:
            return inputs
        words = words_of(views, self.advice.vocabulary, self.device)
        return {**inputs, "shift": self.now * self.advice(torch.from_numpy(views.symbols).to(self.device), words)}

    @property
    def costly(self) -> bool:
        return self.base.costly

    def together(self, inputs: Inputs, rows: Tensor) -> list[Any]:
        return self.base.together(inputs, rows)

    def forward(self, inputs: Inputs, state: State, started: Any) -> tuple[Tensor, Tensor, State]:
        logits, values, state = self.base.forward(inputs, state, started)
        return (logits + inputs["shift"] if "shift" in inputs else logits), values, state

    def values(self, views: Views, state: State, started: Any) -> Tensor:
        return self.base.values(views, state, started)
