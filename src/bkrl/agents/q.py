"""Agents that value actions: they take the best one, and any other with probability ε."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bkrl.agents.goal import GoalAgent
from bkrl.agents.networks.layers import Linear
from bkrl.agents.networks.symbols import SymbolLayer
from bkrl.agents.protocol import Acted, Inputs, State
from bkrl.core.documents import typed
from bkrl.core.flags import Flag
from bkrl.data.views import ViewName, Views
from bkrl.envs import env_spec
from bkrl.envs.symbols import Symbols

EVALUATION_EPSILON = 0.001
"""ε of a policy that is sampled but not trained (published)."""
_MOST = 0.999  # below 1, so that the best action can be told from the log-probabilities

_Size = Annotated[int, Flag("", least=1, most=2**20)]


class _Spec(TypedDict):
    """What a `QNetwork` is built from."""

    num_actions: _Size
    symbols: Symbols
    hidden: _Size
    layer_norm: bool
    dueling: bool


class QNetwork(nn.Module):
    """(B, J) uint8 → (B, A) action values: two layers on symbols, as `compact` has them.

    Args:
        symbols: what the J entries mean.
        num_actions: A.
        hidden: width of the layers.
        layer_norm: normalise before each ReLU, which lets Q-learning do without a target network (Gallici et al. 2024).
        dueling: Q = V + advantage − mean advantage (Wang et al. 2016).
    """

    readers = ("layers",)
    """The modules that are not heads."""
    first, last = ("layers.0.",), ("head.",)
    """How the names of the weights begin that read observations, and of those of the last layer."""

    def __init__(self, symbols: Symbols, num_actions: int, hidden: int, layer_norm: bool, dueling: bool) -> None:
        super().__init__()
        self.num_actions, self.dueling = num_actions, dueling
        self.sees = symbols.to_json()
        self.spec = {
            "num_actions": num_actions,
            "symbols": self.sees,
            "hidden": hidden,
            "layer_norm": layer_norm,
            "dueling": dueling,
        }
        norms = [nn.LayerNorm(hidden) if layer_norm else nn.Identity() for _ in range(2)]
        self.layers = nn.Sequential(
            SymbolLayer(symbols, hidden), norms[0], nn.ReLU(), Linear(hidden, hidden), norms[1], nn.ReLU()
        )
        self.head = Linear(hidden, num_actions + dueling)

    def initialise(self, seed: int, gain_of_values: float = 0.01) -> None:
        """Orthogonal weights: gain √2 inside; biases 0.

        With gain 1 the best of 139 untrained values lies near 1.8, and bootstrapping keeps it there for long.
        """
        generator = torch.Generator().manual_seed(seed)
        for module in self.modules():
            if isinstance(module, SymbolLayer):
                module.initialise(generator)
            elif isinstance(module, Linear):
                gain = gain_of_values if module is self.head else math.sqrt(2)
                nn.init.orthogonal_(module.weight, gain, generator=generator)
                nn.init.zeros_(module.bias)

    def forward(self, seen: Tensor) -> Tensor:
        out = self.head(self.layers(seen))
        if not self.dueling:
            return out
        value, advantage = out[:, :1], out[:, 1:]
        return value + advantage - advantage.mean(1, keepdim=True)


class QAgent(GoalAgent):
    """An agent that takes the action of highest value, and with probability ε any action.

    It is an agent with a policy: its logits are the logarithms of those probabilities, its one value is the highest of
    the action values. So whatever plays with agents or collects rollouts takes it as it is.

    Attributes:
        sees_goals: whether its network reads goals.
        epsilon: ε while it is trained.
        falls: (first, last, steps) of ε, linear.
        since: the step from which it falls.
        guide: an agent whose best action is `guide_share` of the random ones (guided exploration, Du et al. 2023).
    """

    guide: QAgent | None = None
    guide_share = 0.0

    sees_goals = False
    remembered: tuple[int, ...] = ()
    """How a memory of its rows puts pictures together: `picture_bytes` and `pictures` of `learn.replay.Replay`."""
    epsilon = EVALUATION_EPSILON
    falls = (1.0, 0.01, 1)
    since = 0

    @property
    def wants(self) -> tuple[ViewName, ...]:
        return super().wants if self.sees_goals else ("symbols",)

    @property
    def spec(self) -> dict[str, Any]:
        source = self.goals.to_json() if self.goals is not None else None
        return {"name": "q", **self.module.spec, "sees_goals": self.sees_goals, "goals": source}

    @classmethod
    def build(cls, spec: Mapping[str, Any], *who: Any) -> QAgent:
        given = typed(_Spec, {name: spec.get(name) for name in _Spec.__annotations__})
        agent = cls(QNetwork(**given), *who)
        agent.sees_goals = bool(spec.get("sees_goals"))
        agent.take_goals(spec)
        return agent

    def rows(self, views: Views) -> NDArray[np.uint8]:
        """(…, J) what the network reads of views: the symbols, then the goals if it sees them."""
        if self.sees_goals:
            return super().rows(views)
        axes = views.symbols.ndim - len(env_spec(self.env_id).obs_shape)
        return views.symbols.reshape(*views.symbols.shape[:axes], -1)

    def of_rows(self, rows: NDArray[np.uint8]) -> Inputs:
        """What the network is given, by its arguments' names, of rows (B, W)."""
        return {"seen": torch.from_numpy(rows).to(self.device)}

    def inputs(self, views: Views) -> Inputs:
        return self.of_rows(self.rows(views))

    def q_values(self, inputs: Inputs) -> Tensor:
        """(B, A)."""
        return self.module(**inputs)

    def forward(self, inputs: Inputs, state: State, started: Any) -> tuple[Tensor, Tensor, State]:
        values = self.q_values(inputs)
        advised = None if self.guide is None else self.guide.q_values(inputs).argmax(-1, keepdim=True)
        return self._logits(values, advised), values.amax(-1, keepdim=True), state

    def _logits(self, values: Tensor, advised: Tensor | None) -> Tensor:
        epsilon, guided = min(self.epsilon, _MOST), 0.0 if advised is None else self.guide_share
        shares = torch.full_like(values, (1 - guided) * epsilon / values.shape[-1])
        if advised is not None:
            shares.scatter_add_(-1, advised, torch.full_like(values, guided * epsilon))
        return shares.scatter_add_(-1, values.argmax(-1, keepdim=True), torch.full_like(values, 1 - epsilon)).log_()

    def act(self, views: Views, state: State, started: NDArray[np.bool_], noise: NDArray[np.float32] | None) -> Acted:
        training = self.epsilon, self.guide
        self.epsilon, self.guide = EVALUATION_EPSILON, None
        acted = super().act(views, state, started, noise)
        self.epsilon, self.guide = training
        return acted

    def prepare(self, device: torch.device, compile: bool) -> None:
        super().prepare(device, compile)
        if self.guide is not None:
            self.guide.prepare(device, compile=False)

    def schedule(self, step: int) -> None:
        first, last, steps = self.falls
        self.epsilon = first + (last - first) * min(1.0, max(step - self.since, 0) / steps)
