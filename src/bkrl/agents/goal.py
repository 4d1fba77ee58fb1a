"""An agent whose network reads which deeds are its goals, beside the symbols."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bkrl.agents.network import NetworkAgent
from bkrl.agents.networks import of_spec
from bkrl.agents.protocol import Inputs
from bkrl.agents.recurrent import Recurrent, RecurrentAgent
from bkrl.data.views import ViewName, Views
from bkrl.envs.symbols import Symbols


def with_goals(symbols: Symbols, num_deeds: int) -> Symbols:
    """Symbols followed by one entry for each deed: 1 where it is a goal."""
    D = num_deeds
    return replace(
        symbols,
        sizes=(*symbols.sizes, *(2,) * D),
        reference=(*symbols.reference, *(0,) * D),
        gate=(*symbols.gate, *(-1,) * D),
    )


class GoalAgent(NetworkAgent):
    """A network agent that sees its goals.

    Attributes:
        goals: a `goals.source.Source` for where nothing else sets goals, as in evaluations; a policy file brings it.
    """

    @property
    def wants(self) -> tuple[ViewName, ...]:
        seen: tuple[ViewName, ...] = ("symbols", "goal")
        return (*seen, "mission") if self.goals is not None and self.goals.reads_mission else seen

    @property
    def spec(self) -> dict[str, Any]:
        source = self.goals.to_json() if self.goals is not None else None
        return {"name": "goal", "num_actions": self.module.num_actions, "network": self.module.spec, "goals": source}

    @classmethod
    def build(cls, spec: Mapping[str, Any], *who: Any) -> GoalAgent:
        agent = goal_agent(of_spec(spec.get("network")), *who)
        agent.take_goals(spec)
        return agent

    def take_goals(self, spec: Mapping[str, Any]) -> None:
        """Set goals as the policy file says."""
        from bkrl.goals.source import Source

        if spec.get("goals") is not None:
            self.goals = Source.of_json(spec["goals"])

    def rows(self, views: Views) -> NDArray[np.uint8]:
        """(…, J) what the network reads of views: the symbols, then the goals."""
        if views.goal is None:
            raise ValueError("views without goals")
        flat = views.symbols.reshape(*views.goal.shape[:-1], -1)
        return np.concatenate([flat, views.goal], axis=-1)

    def inputs(self, views: Views) -> Inputs:
        return {"seen": torch.from_numpy(self.rows(views)).to(self.device)}


class RecurrentGoalAgent(GoalAgent, RecurrentAgent):
    """The same, with a memory of the episode."""


def goal_agent(network: Any, *who: Any) -> GoalAgent:
    """An agent that sees its goals, with this network; `who` is what `NetworkAgent` takes behind it."""
    return (RecurrentGoalAgent if isinstance(network, Recurrent) else GoalAgent)(network, *who)
