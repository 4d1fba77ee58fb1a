"""An agent whose network reads which deeds are its goals, beside the symbols."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch

from bkrl.agents.network import NetworkAgent
from bkrl.agents.networks import ActorCritic, build_network, of_spec
from bkrl.agents.protocol import Goals, Inputs
from bkrl.data.views import Views
from bkrl.envs.family import Symbols


class GoalSource(Protocol):
    """What sets goals in any number of envs: each group of envs gets a follower of its own."""

    def of(self, num_envs: int) -> Goals:
        """Sets the goals of so many envs."""
        ...

    def to_json(self) -> dict[str, Any]:
        """What a policy file says of it."""
        ...


def goal_network(symbols: Symbols, num_actions: int, num_values: int, hidden: int, seed: int) -> ActorCritic:
    """A compact network of symbols followed by one entry for each deed: 1 where it is a goal."""
    A = num_actions
    joined = replace(
        symbols,
        sizes=(*symbols.sizes, *(2,) * A),
        reference=(*symbols.reference, *(0,) * A),
        gate=(*symbols.gate, *(-1,) * A),
    )
    shape = (len(joined.sizes),)
    return build_network(
        "compact",
        obs_shape=shape,
        num_actions=A,
        num_values=num_values,
        symbols=joined,
        hidden=hidden,
        seed=seed,
    )


class GoalAgent(NetworkAgent):
    """A network agent that sees its goals.

    Attributes:
        goals: a `GoalSource` for where nothing else sets goals, as in evaluations; a policy file brings its own.
    """

    goals: Any = None
    wants = ("symbols", "goal")  # type: ignore[assignment]

    @property
    def spec(self) -> dict[str, Any]:
        """See `NetworkAgent.spec`."""
        source = self.goals.to_json() if self.goals is not None else None
        return {"name": "goal", "num_actions": self.module.num_actions, "network": self.module.spec, "goals": source}

    @classmethod
    def build(cls, spec: Mapping[str, Any], *who: Any) -> GoalAgent:
        """See `NetworkAgent.build`."""
        from bkrl.goals.source import Source

        agent = cls(of_spec(spec.get("network")), *who)
        if spec.get("goals") is not None:
            agent.goals = Source.of_json(spec["goals"])
        return agent

    def inputs(self, views: Views) -> Inputs:
        """`seen`: the symbols, then the goals."""
        if views.goal is None:
            raise ValueError("views without goals")
        flat = views.symbols.reshape(*views.goal.shape[:-1], -1)
        return {"seen": torch.from_numpy(np.concatenate([flat, views.goal], axis=-1)).to(self.device)}
