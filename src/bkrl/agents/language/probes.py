"""What a language model would do where a bot knows better: prompts of the env itself, put to it again and again.

Published as `template_test`, with a few prompts written by hand (Carta et al. 2023). These are what the bot of the env
comes across, in the words that the agent reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bkrl.agents.bot import BotAgent
from bkrl.agents.protocol import Agent
from bkrl.agents.random import RandomAgent
from bkrl.agents.viewer import Viewer
from bkrl.core.seeds import derive_seed, generator
from bkrl.data.views import Views
from bkrl.envs import bot_of, make_vec

_COUNT = 64
_STEPS = 8


@dataclass(frozen=True)
class Probes:
    """Moments of P episodes of the bot, one of each, at the first to the eighth step.

    Attributes:
        views: (P,) what the agent would see there.
        actions: (P,) int64, what the bot does there.
    """

    views: Views
    actions: NDArray[np.int64]

    @staticmethod
    def of(agent: Any) -> Probes | None:
        """Those of the env of an agent; the same for all runs there. None where the env has no bot."""
        if bot_of(agent.env_id) is None:
            return None
        return _moments(agent, BotAgent.of(agent.env_id), _COUNT)

    def figures(self, agent: Any) -> dict[str, float]:
        """How often an agent finds likeliest what the bot does, how likely it finds that, and its entropy in nats."""
        logits = agent.act(self.views, {}, np.zeros(len(self.actions), bool), None).logits.astype(np.float64)
        log_probs = logits - logits.max(1, keepdims=True)
        log_probs -= np.log(np.exp(log_probs).sum(1, keepdims=True))
        chosen = np.take_along_axis(log_probs, self.actions[:, None], 1)
        return {
            "probe/agreement": float((logits.argmax(1) == self.actions).mean()),
            "probe/probability": float(np.exp(chosen).mean()),
            "probe/entropy": float(-(np.exp(log_probs) * log_probs).sum(1).mean()),
        }


def bias_of(agent: Any, count: int) -> tuple[float, ...]:
    """(A,) an agent's mean logits at so many moments of random play, the same for all runs in its env.

    Taken off, they leave what a prompt adds to a name (after the batch calibration of Zhou et al. 2024, arXiv
    2309.17249; of log-probabilities without the softmax).
    """
    player = RandomAgent(agent.env_id, agent.family, agent.action_names)
    views = _moments(agent, player, count).views
    logits = agent.act(views, {}, np.zeros(count, bool), None).logits.astype(np.float64)
    return tuple(logits.mean(0).tolist())


def _moments(agent: Any, player: Agent, count: int) -> Probes:
    """Moments of `count` episodes of a player, see `Probes`; what a random one does is drawn."""
    envs, rng = make_vec(agent.env_id, count), generator(0, "probes", "play")
    seen, known, state = Viewer(envs, agent), Viewer(envs, player), player.begin(count)
    observations, _ = envs.reset(seed=derive_seed(0, "probes"))
    started = np.ones(count, bool)
    parts: list[Views] = []
    actions = []
    for step in range(_STEPS):
        views = seen(observations, started)
        noise = rng.gumbel(size=(count, len(player.action_names))).astype(np.float32)
        acted = player.act(known(observations, started), state, started, noise)
        rows = np.arange(step, count, _STEPS)
        parts.append(views[rows])
        actions.append(acted.actions[rows])
        seen.acted(acted.actions)
        observations, _, terminated, truncated, _ = envs.step(acted.actions)
        state, started = acted.state, terminated | truncated
    envs.close()
    return Probes(Views.joined(parts), np.concatenate(actions))
