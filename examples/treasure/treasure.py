"""A package that extends bkrl: a family of envs, an annotator, a method and a suggester of goals."""

from dataclasses import dataclass
from typing import Annotated

import gymnasium
import numpy as np

import bkrl
from bkrl.core.flags import Flag
from bkrl.goals.suggesters import Oracle
from bkrl.llm.protocol import Reply
from bkrl.methods.ppo import PPOSettings, facts_of, learner_of, policy_of, set_up
from bkrl.rewards.streams import EnvReward


class Corridor(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Box(0, 20, (1,), np.uint8), gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(1, 8))
        return np.array([self.left], np.uint8), {}

    def step(self, action):
        self.left = min(self.left + (-1 if action else 1), 20)
        return np.array([self.left], np.uint8), float(self.left == 0), self.left == 0, False, {}

    @staticmethod
    def caption(seen):
        return [f"The treasure is {left} steps to the right." for left in seen[:, 0]]


class Near:
    name, identity = "near", {"kind": "near", "version": "1"}

    async def complete(self, request):
        ends = [part.split("treasure is ")[-1].split()[0] for part in request.messages[-1].text.split("End of segment")]
        return Reply('{"thoughts": "", "choice": "%s"}' % ("A" if int(ends[0]) < int(ends[1]) else "B"), model="near")

    def facts(self):
        return self.identity

    async def close(self): ...


@dataclass(frozen=True)
class HastySettings(PPOSettings):
    haste: Annotated[float, Flag("what each step costs", least=0)] = 0.01


class Hasty(EnvReward):
    def rewards(self, rollout):
        return super().rewards(rollout) - np.float32(self.haste)


def build(settings):
    setup, reward = set_up(settings), Hasty(settings.ppo.gamma)
    reward.haste = settings.haste
    learner = learner_of(settings, setup, policy_of(settings, setup, 1), [reward])
    return bkrl.Training(learner, facts_of("none", frozenset(), learner), iteration_steps=settings.rollout_steps)


class First(Oracle):
    name = "first"

    def suggest(self, keys):
        return [goals[:1] for goals in super().suggest(keys)]


bkrl.register_env("Treasure", Corridor, Corridor.caption, max_steps=60, action_names=("left", "right"))
bkrl.register_annotator("near", lambda name, connection: Near(), "prefers what ends nearer to the treasure")
bkrl.register_method(bkrl.Method("hasty-ppo", HastySettings, build, "PPO that pays for every step"))
bkrl.register_suggester("first", lambda situations, seed: First(situations), "the first deed that makes sense")
