"""What an agent is, to those who play with it (`Agent`) and to those who train it (`TrainableAgent`).

Axes: N agents, A actions, K values (one for each reward stream).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bkrl.data.views import ViewName, Views
from bkrl.text.wording import Wording

if TYPE_CHECKING:
    from torch import Tensor, nn

State = Mapping[str, Any]
"""What agents remember: arrays or tensors by name, with a leading axis N. {} for agents without memory."""
Inputs = Mapping[str, Any]
"""Views as tensors on the agent's device, by name, with a leading axis for each of the views'."""


@dataclass(frozen=True)
class Acted:
    """What N agents did in one step.

    Attributes:
        actions: (N,) int64.
        logits: (N, A) float32, log-probabilities of all actions up to a constant for each agent.
        values: (N, K) float32, what the agent expects of each reward stream; K is 0 for an agent without values.
        state: what they remember from now on.
        labels: (N,) int64, what a bot would have done, where one was asked.
    """

    actions: NDArray[np.int64]
    logits: NDArray[np.float32]
    values: NDArray[np.float32]
    state: State
    labels: NDArray[np.int64] | None = None

    @property
    def log_probs(self) -> NDArray[np.float32]:
        """(N,) log-probabilities of the actions taken."""
        shifted = self.logits - self.logits.max(1, keepdims=True)
        chosen = np.take_along_axis(shifted, self.actions[:, None], 1)[:, 0]
        return chosen - np.log(np.exp(shifted).sum(1))


class Agent(Protocol):
    """Who acts. `play`, `evaluate` and `collect` know only this.

    An agent whose state is empty is a function of the views that it wants: what it says of equal views is equal.
    Agents are subclasses, which gives them the members that have defaults.

    Attributes:
        env_id, family: the env it was made for, and the family of envs in which it can act.
        action_names: in the order of its logits.
        wording: of the captions, missions and action names that it reads.
        observations: L, the observations of its `history`, the present one included.
        goals: the source of its goals where nothing else sets them; training and evaluations share it.
        counted: what it has read so far, by name.
    """

    env_id: str
    family: str
    action_names: tuple[str, ...]
    wording: Wording = Wording()
    observations: int = 3
    goals: Any = None
    counted: Mapping[str, int] = MappingProxyType({})

    @property
    def wants(self) -> tuple[ViewName, ...]:
        """The views it reads; nothing else is computed for it."""

    @property
    def looks_apart(self) -> bool:
        """Whether its `look` and `go_on` do together what `forward` does."""
        return False

    def reworded(self, wording: Wording, env_id: str) -> Agent | None:
        """The same agent in another wording and another env, whose actions may be others; None where it cannot be."""
        return None

    def begin(self, num_envs: int) -> State:
        """The state of N agents before their first step."""

    def act(self, views: Views, state: State, started: NDArray[np.bool_], noise: NDArray[np.float32] | None) -> Acted:
        """One step of N agents.

        Args:
            views: what they look at; the kinds in `wants`.
            state: what `begin` or the last `act` returned, for these agents.
            started: (N,) True where `views` are the first of an episode: what was before is forgotten there.
            noise: (N, A) Gumbel noise, with which the likeliest action is a sample; None: the likeliest action.
        """

    def save(self, folder: Path, name: str = "policy") -> list[str]:
        """Write the agent into `folder`; the names of the files. `bkrl.agents.load_agent` reads it back."""


class TrainableAgent(Agent, Protocol):
    """An agent that a policy-gradient learner trains: its policy is a torch module.

    Leading axes of inputs and outputs are (B,) for an agent without memory; an agent with memory is given sequences,
    (T, B), and the state (B, …) before their first step.
    """

    view: str
    """What it sees of an env: `symbolic`, `image` or `text`."""
    module: Any
    """A torch module with all weights; those that require a gradient are trained."""

    @property
    def costly(self) -> bool:
        """Whether steps of one view are learnt from beside each other, so that each view is looked at less often."""
        return False

    def inputs(self, views: Views) -> Inputs:
        """What the agent makes of views (B,) whatever is learnt: computed once for all epochs of an update."""

    def together(self, inputs: Inputs, rows: Tensor) -> list[Any]:
        """Of inputs with numbers `rows` (B,) those that are learnt from together, as places in `rows`: all of them.

        A large agent learns from few at once, which bounds memory; their gradients are added up.
        """
        return [slice(None)]

    def forward(self, inputs: Inputs, state: State, started: Any) -> tuple[Tensor, Tensor, State]:
        """Logits (…, A), values (…, K), both float32, and the state after the last step.

        Args:
            inputs: from `inputs`.
            state: before the first step; {} without memory.
            started: (T, B) bool tensor, where an episode begins; not read without memory.
        """

    def values(self, views: Views, state: State, started: NDArray[np.bool_]) -> Tensor:
        """(B, K) what the agent expects after one step from `views` (B,); arguments as in `act`."""

    def groups(self) -> dict[str, list[nn.Parameter]]:
        """What is trained, in groups that may have learning rates of their own."""

    def schedule(self, step: int) -> None:
        """Follow the schedules: `step` env steps are taken. Called between iterations."""

    def prepare(self, device: Any, compile: bool) -> None:
        """Move to a device; translate the module with `torch.compile` if that is asked for."""


class Goals(Protocol):
    """What sets agents their goals while they act (`Views.goal`)."""

    def happened(self, actions: NDArray[np.int64], infos: Mapping[str, Any], after: NDArray[np.uint8]) -> None:
        """What a step brought; `after` (N, ...) are symbols, the true last ones of episodes that ended."""

    def __call__(self, views: Views, started: NDArray[np.bool_]) -> NDArray[Any]:
        """(N, ...) the goals of N agents, which see `views`; `started` as in `Agent.act`."""
