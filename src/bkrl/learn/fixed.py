"""A learner that learns nothing: how an agent that cannot learn becomes a run like those of the others."""

from typing import Any

from bkrl.agents.protocol import Agent
from bkrl.learn.hardware import CPU, Hardware
from bkrl.learn.protocol import Learner, Saved


class Fixed(Learner):
    """See `Learner`. One iteration, in which nothing happens, leads from step 0 to the last.

    So the agent is evaluated at both ends, on the episodes on which others are evaluated.
    """

    hardware: Hardware = CPU

    def __init__(self, agent: Agent, total_steps: int) -> None:
        self.agent, self.total_steps = agent, total_steps
        self.step = 0

    def iterate(self) -> dict[str, float]:
        """No env is stepped."""
        self.step = self.total_steps
        return {}

    def state(self) -> Saved:
        return Saved({}, {"step": self.step}, True)

    def restore(self, saved: Saved) -> None:
        self.step = int(saved.counters["step"])

    def facts(self) -> dict[str, Any]:
        """That it does not learn, and what the agent reads."""
        return {"learns": False, "wants": list(self.agent.wants)}
