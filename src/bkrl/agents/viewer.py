"""From what envs return to the views that an agent wants."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bkrl.agents.protocol import Agent, Goals
from bkrl.data.views import Views
from bkrl.envs import sentences
from bkrl.envs.vector import WorldVectorEnv


def symbols_of(observations: Any) -> NDArray[np.uint8]:
    """The symbolic observations, also where envs return pictures beside them."""
    return observations["symbolic"] if isinstance(observations, dict) else observations


class Viewer:
    """Makes views of N envs, for one agent.

    Args:
        envs: the envs.
        agent: what it wants is computed, and nothing else.
        goals: sets goals for an agent that wants `goal`; None: the agent's own, its attribute `goals`.
    """

    def __init__(self, envs: WorldVectorEnv, agent: Agent, goals: Goals | None = None) -> None:
        self.envs, self.wants = envs, agent.wants
        self.goals: Goals | None = goals or getattr(agent, "goals", None)
        if "goal" in self.wants and self.goals is None:
            raise ValueError("the agent wants a goal, and nothing sets goals")
        self.sentences = sentences(envs.world.env_id) if "text" in self.wants else None

    def __call__(self, observations: Any, started: NDArray[np.bool_]) -> Views:
        """(N,) views of the first or of the next observations; `started` as in `Agent.act`."""
        views = self._of(observations)
        if "mission" in self.wants:
            views = replace(views, mission=self.envs.missions())
        return views if self.goals is None else replace(views, goal=self.goals(views, started))

    def last(self, observations: Any, ended: NDArray[np.int64], before: Views) -> Views:
        """(K,) views of the last observations of episodes; mission and goal stay those of the step before.

        Args:
            observations: `infos["final_obs"]`, of all envs.
            ended: (K,) the envs.
            before: (N,) what was seen before the last action.
        """
        both = isinstance(observations, dict)
        views = self._of({key: one[ended] for key, one in observations.items()} if both else observations[ended])
        if before.mission is None and before.goal is None:
            return views
        old = before[ended]
        return replace(views, mission=old.mission, goal=old.goal)

    def _of(self, observations: Any) -> Views:
        symbols = symbols_of(observations)
        image = observations["image"] if "image" in self.wants else None
        return Views(symbols, image, None if self.sentences is None else self.sentences(symbols))
