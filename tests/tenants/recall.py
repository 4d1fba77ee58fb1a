"""A method with a memory of its own: a gated recurrent unit, trained by PPO, in an env that needs a memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import nn

import bkrl
from bkrl.agents import AGENTS
from bkrl.agents.network import NetworkAgent
from bkrl.core.config import PPOConfig
from bkrl.core.flags import Flag
from bkrl.envs import env_spec, make_vec
from bkrl.learn.ppo import PPO
from bkrl.rewards.streams import EnvReward


class Recall(gymnasium.Env):
    """A cue is shown once; two steps later the action must be the cue. Without a memory half of them succeed."""

    observation_space = spaces.Box(0, 3, (2,), np.uint8)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.cue, self.clock = int(self.np_random.integers(2)), 0
        return np.array([1 + self.cue, 0], np.uint8), {}

    def step(self, action):
        self.clock += 1
        over = self.clock == 3
        return np.array([0, self.clock], np.uint8), float(over and action == self.cue), over, False, {}


class Cell(nn.Module):
    """One-hot observations, a recurrent unit, logits and values."""

    def __init__(self, hidden: int, num_actions: int) -> None:
        super().__init__()
        self.spec = {"name": "recall", "hidden": hidden, "num_actions": num_actions}
        self.cell = nn.GRUCell(8, hidden)
        self.head = nn.Linear(hidden, num_actions + 1)


class RecallAgent(NetworkAgent):
    """Its state is `hidden` (N, hidden)."""

    module: Cell

    @classmethod
    def build(cls, spec: Mapping[str, Any], *who: Any) -> RecallAgent:
        return cls(Cell(spec["hidden"], spec["num_actions"]), *who)

    def begin(self, num_envs: int) -> dict[str, torch.Tensor]:
        return {"hidden": torch.zeros(num_envs, self.spec["hidden"])}

    def forward(self, inputs, state, started):
        hidden, steps = state["hidden"], []
        seen = nn.functional.one_hot(inputs["seen"].long(), 4).flatten(-2).float()
        for t in range(len(seen)):
            hidden = self.module.cell(seen[t], hidden * ~started[t, :, None])
            steps.append(self.module.head(hidden))
        out = torch.stack(steps)
        return out[..., :-1], out[..., -1:], {"hidden": hidden}


@dataclass(frozen=True)
class RecallSettings(bkrl.TrainRsConfig):
    """Settings of recall."""

    hidden: Annotated[int, Flag("width of the memory", least=1)] = 16
    ppo: PPOConfig = field(default_factory=lambda: PPOConfig(num_envs=32, num_steps=12, learning_rate=3e-3))


def build(settings: RecallSettings) -> bkrl.Training:
    torch.manual_seed(settings.seed)
    facts = env_spec(settings.env)
    cell = Cell(settings.hidden, len(facts.action_names))
    agent = RecallAgent(cell, settings.env, facts.family, facts.action_names)
    envs = make_vec(settings.env, settings.ppo.num_envs)
    streams = [EnvReward(settings.ppo.gamma)]
    learner = PPO(envs, agent, streams, settings.ppo, total_steps=settings.steps, seed=settings.seed)
    return bkrl.Training(learner, iteration_steps=settings.ppo.num_envs * settings.ppo.num_steps)


AGENTS.add("recall", RecallAgent)
bkrl.register_env("Recall-3", Recall, lambda seen: [f"cue {cue}" for cue in seen[:, 0]], max_steps=3)
bkrl.register_method(bkrl.Method("recall", RecallSettings, build, "PPO with a memory of its own"))
