"""An expert as an agent: what the family's bot would do, or, with a chance, any action."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from bkrl.agents.protocol import Acted, State
from bkrl.agents.random import PolicyDocument, Unlearned
from bkrl.core.errors import UsageError
from bkrl.core.flags import Flag
from bkrl.data.views import ViewName, Views
from bkrl.envs import bot_of, env_spec
from bkrl.envs.family import Bot


class _Document(PolicyDocument):
    epsilon: Annotated[float, Flag("", least=0, most=1)]


@dataclass(frozen=True)
class BotAgent(Unlearned):
    """The bot of its family. It plans from the state of the env, which no learning agent sees.

    Attributes:
        epsilon: the chance with which a sampled action is any action, all equally likely.
    """

    epsilon: float = 0.0
    kind = "bot"
    document = _Document
    wants: ClassVar[tuple[ViewName, ...]] = ("symbols", "env_state")

    @classmethod
    def of(cls, env_id: str, epsilon: float = 0.0) -> BotAgent:
        """The bot of an env; UsageError where there is none."""
        facts = env_spec(env_id)
        agent = cls(env_id, facts.family, facts.action_names, epsilon)
        assert agent.bot
        return agent

    @cached_property
    def bot(self) -> Bot:
        """What plans; UsageError where the env has none."""
        found = bot_of(self.env_id)
        if found is None:
            raise UsageError(f"{self.env_id} has no bot; `bkrl list envs` shows the BabyAI levels, which have one.")
        return found

    def begin(self, num_envs: int) -> State:
        return self.bot.begin(num_envs)

    def act(self, views: Views, state: State, started: NDArray[np.bool_], noise: NDArray[np.float32] | None) -> Acted:
        assert views.env_state is not None
        memory = {name: np.array(one) for name, one in state.items()}
        N, A = len(views), len(self.action_names)
        chosen = self.bot.act(views.env_state, views.symbols, memory, started)
        other = self.epsilon / A
        logits = np.full((N, A), math.log(other) if other else -np.inf, np.float32)
        logits[np.arange(N), chosen] = math.log(1 - self.epsilon + other)
        actions = (logits if noise is None else logits + noise).argmax(1)
        return Acted(actions, logits, np.zeros((N, 0), np.float32), memory)
