"""A learner and its bot, who act in turns: which of them acts is drawn anew in each step (DAgger, Ross et al. 2011)."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bkrl.agents.bot import BotAgent
from bkrl.agents.play import LookOnce
from bkrl.agents.protocol import Acted, Agent, State
from bkrl.core.prefixes import under
from bkrl.data.views import ViewName, Views


class Mixture(Agent):
    """See `Agent`. The bot is asked in every state, whoever acts: `Acted.labels`.

    Args:
        agent: the learner; it is asked with noise, the bot without.
        bot: of the same env.
        share: the chance with which the bot acts.
        seed: of these draws.
    """

    def __init__(self, agent: Agent, bot: BotAgent, share: float, seed: int) -> None:
        self.agent, self.bot, self.share = agent, bot, share
        self.env_id, self.family, self.action_names = bot.env_id, bot.family, bot.action_names
        self.wording = agent.wording
        self.observations = agent.observations
        # It does not learn while it acts: of a view that it has seen before it says the same.
        self._ask = agent.act if agent.begin(1) else LookOnce(agent).act
        self._draw = np.random.default_rng(seed)

    @property
    def wants(self) -> tuple[ViewName, ...]:
        return tuple(dict.fromkeys((*self.agent.wants, *self.bot.wants)))

    def begin(self, num_envs: int) -> State:
        """What both remember, and a mark, so that no one takes it for an agent that says the same of equal views."""
        parts: dict[str, Any] = {"agent.": self.agent.begin(num_envs), "bot.": self.bot.begin(num_envs)}
        state = {f"{name}{key}": one for name, part in parts.items() for key, one in part.items()}
        return {"drawn": np.zeros(num_envs, np.int64), **state}

    def act(self, views: Views, state: State, started: NDArray[np.bool_], noise: NDArray[np.float32] | None) -> Acted:
        bot, learner = self.bot.act(views, under(state, "bot."), started, None), under(state, "agent.")
        # Where the bot always acts, the learner, who may be slow, is not asked.
        own = replace(bot, state=learner) if self.share >= 1 else self._ask(views, learner, started, noise)
        taken = self._draw.random(len(views)) < self.share
        after = {f"agent.{key}": one for key, one in own.state.items()}
        after |= {f"bot.{key}": one for key, one in bot.state.items()}
        actions = np.where(taken, bot.actions, own.actions)
        return Acted(actions, own.logits, own.values, {"drawn": state["drawn"], **after}, bot.actions)

    def save(self, folder: Path, name: str = "policy") -> list[str]:
        return self.agent.save(folder, name)
