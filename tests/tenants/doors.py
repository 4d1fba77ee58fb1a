"""A method whose goal is in the views: paid for reaching the goals that it sets, and for nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import nn

import bkrl
from bkrl.agents import AGENTS
from bkrl.agents.network import NetworkAgent
from bkrl.core.config import PPOConfig
from bkrl.envs import env_spec, make_vec
from bkrl.learn.ppo import PPO
from bkrl.rewards.streams import RewardStream

LENGTH = 7


class Doors(gymnasium.Env):
    """A corridor with a door at each end; the mission names one. Without the mission half of the episodes succeed."""

    observation_space = spaces.Box(0, LENGTH, (1,), np.uint8)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.mission = LENGTH // 2, ("go left", "go right")[int(self.np_random.integers(2))]
        return np.array([self.place], np.uint8), {}

    def step(self, action):
        self.place += 1 if action else -1
        over = self.place in (0, LENGTH - 1)
        right = self.place == target(self.mission)
        return np.array([self.place], np.uint8), float(over and right), over, False, {}


def target(mission: str) -> int:
    return 0 if mission == "go left" else LENGTH - 1


class Missions:
    """Goals that are read off missions: nothing is kept between calls, so they are their own source."""

    def of(self, num_envs):
        return self

    def happened(self, actions, infos, after):
        pass

    def __call__(self, views, started):
        """(N,) the place that the mission names."""
        return np.array([target(mission) for mission in views.mission], np.uint8)


class Net(nn.Module):
    """Logits and a value from one-hot place and goal."""

    def __init__(self, num_actions: int) -> None:
        super().__init__()
        self.spec = {"name": "doors", "num_actions": num_actions}
        self.layers = nn.Sequential(nn.Linear(2 * LENGTH, 32), nn.Tanh(), nn.Linear(32, num_actions + 1))

    def forward(self, seen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out = self.layers(nn.functional.one_hot(seen.long(), LENGTH).flatten(-2).float())
        return out[..., :-1], out[..., -1:]


class DoorsAgent(NetworkAgent):
    """Sees where it is and where it shall go; the mission is there for what sets its goals."""

    wants = ("symbols", "mission", "goal")
    goals = Missions()

    @classmethod
    def build(cls, spec: Mapping[str, Any], *who: Any) -> DoorsAgent:
        return cls(Net(spec["num_actions"]), *who)

    def inputs(self, views):
        seen = np.concatenate([views.symbols, views.goal[..., None]], axis=-1)
        return {"seen": torch.from_numpy(seen)}


@dataclass
class Reached(RewardStream):
    """A reward stream: 1 for a step that leads to the goal."""

    gamma: float
    name: str = "goals"
    coef: float = 1.0
    episodic: bool = True

    def rewards(self, rollout):
        return (rollout.following()[:, :, 0] == rollout.views.goal[:-1]).astype(np.float32)


@dataclass(frozen=True)
class DoorsSettings(bkrl.TrainRsConfig):
    """Settings of doors."""

    ppo: PPOConfig = field(default_factory=lambda: PPOConfig(num_envs=16, num_steps=16, learning_rate=5e-3))


def build(settings: DoorsSettings) -> bkrl.Training:
    torch.manual_seed(settings.seed)
    facts = env_spec(settings.env)
    agent = DoorsAgent(Net(len(facts.action_names)), settings.env, facts.family, facts.action_names)
    envs = make_vec(settings.env, settings.ppo.num_envs)
    streams = [Reached(settings.ppo.gamma)]
    learner = PPO(envs, agent, streams, settings.ppo, total_steps=settings.steps, seed=settings.seed)
    return bkrl.Training(learner, iteration_steps=settings.ppo.num_envs * settings.ppo.num_steps)


AGENTS.add("doors", DoorsAgent)
bkrl.register_env("Doors-7", Doors, lambda seen: [f"place {place}" for place in seen[:, 0]], max_steps=30)
bkrl.register_method(bkrl.Method("doors", DoorsSettings, build, "PPO that is paid for goals which it sees"))
