"""PPO written plainly, the slow side of `training.py`: one file in the manner of CleanRL, on the reference envs.

Float32 throughout, observations kept as floats, two passes through the network for each acting step (one for the
action, one for the value, as in the published code), figures fetched from the tensors in every minibatch.

`pip install crafter` brings opensimplex, whose noise is compiled where numba happens to be installed and pure Python
where it is not; crafter does not ask for numba. `crafter_noise` chooses, so that both can be measured beside numba.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import FunctionType, ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor, nn

from bkrl.agents.networks import build_network


@cache
def _opensimplex(numba: bool) -> ModuleType:
    """opensimplex as it is imported with numba, or without; checked by what its noise function is."""
    kept = {name: module for name, module in sys.modules.items() if name.split(".")[0] in ("numba", "opensimplex")}
    for name in [name for name in kept if name.startswith("opensimplex")]:
        del sys.modules[name]
    if not numba:
        sys.modules["numba"] = None  # type: ignore[assignment]  # importing it raises ImportError
    try:
        found = importlib.import_module("opensimplex")
        noise = sys.modules["opensimplex.internals"]._noise3
    finally:
        for name in [name for name in sys.modules if name.startswith("opensimplex") or name == "numba"]:
            del sys.modules[name]
        sys.modules.update(kept)
    if isinstance(noise, FunctionType) is numba:
        raise RuntimeError(f"opensimplex is {'not ' if numba else ''}compiled; this version chooses in another way.")
    return found


@contextmanager
def crafter_noise(numba: bool) -> Iterator[None]:
    """Let crafter's worlds be made of noise that is compiled by numba, or of noise in pure Python."""
    worldgen: Any = importlib.import_module("crafter.worldgen")
    before = worldgen.opensimplex
    worldgen.opensimplex = _opensimplex(numba)
    try:
        yield
    finally:
        worldgen.opensimplex = before


class TimedResets(gym.Wrapper[Any, Any, Any, Any]):
    """An env that knows how long its resets took."""

    seconds = 0.0

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Reset, on the clock."""
        start = time.perf_counter()
        found = super().reset(**options)
        self.seconds += time.perf_counter() - start
        return found


class Plain:
    """Envs in a SyncVectorEnv, the paper network, and the published hyper-parameters.

    Args:
        make: makes one reference env, whose observation is what the policy sees.
        num_envs, num_steps: size of a rollout; 4 epochs of 4 minibatches follow it.
    """

    def __init__(self, make: Callable[[], Any], num_envs: int, num_steps: int) -> None:
        self.envs = SyncVectorEnv([lambda: TimedResets(make())] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)
        self.N, self.T = num_envs, num_steps
        first, _ = self.envs.reset(seed=0)
        shape = first.shape[1:]
        actions = int(self.envs.single_action_space.n)
        self.network: Any = build_network("paper", obs_shape=shape, num_actions=actions, num_values=1)
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=3e-4, eps=1e-5)
        self.obs = torch.zeros(num_steps, num_envs, *shape)
        self.actions = torch.zeros(num_steps, num_envs, dtype=torch.long)
        self.log_probs, self.rewards, self.dones, self.values = torch.zeros(4, num_steps, num_envs)
        self.next_obs, self.next_done = torch.from_numpy(first).float(), torch.zeros(num_envs)

    def policy(self, obs: Tensor) -> torch.distributions.Categorical:
        """The distribution of actions: one pass."""
        return torch.distributions.Categorical(logits=self.network.actor(self.network.encoder(obs)))

    def value(self, obs: Tensor) -> Tensor:
        """(B,) values: another pass."""
        features = self.network.encoder(obs)
        return self.network.critic(features + self.network.residual(features))[:, 0]

    def act(self, first: int, last: int) -> float:
        """Steps `first`..`last` of a rollout; the seconds they took."""
        start = time.perf_counter()
        for t in range(first, last):
            self.obs[t], self.dones[t] = self.next_obs, self.next_done
            with torch.no_grad():
                distribution = self.policy(self.next_obs)
                action = distribution.sample()
                self.values[t] = self.value(self.next_obs)
            self.actions[t], self.log_probs[t] = action, distribution.log_prob(action)
            obs, reward, terminated, truncated, _ = self.envs.step(action.numpy())
            self.rewards[t] = torch.tensor(reward)
            self.next_obs, self.next_done = torch.Tensor(obs), torch.Tensor(terminated | truncated)
        return time.perf_counter() - start

    def resets_took(self) -> float:
        """Seconds all resets took so far."""
        return sum(env.seconds for env in self.envs.envs)  # type: ignore[attr-defined]

    def reset(self, count: int) -> float:
        """Start `count` new episodes in each of the envs in turn; the seconds they took."""
        start = time.perf_counter()
        for number in range(count):
            self.envs.envs[number % self.N].reset()
        return time.perf_counter() - start

    def update(self, minibatches: int = 16) -> float:
        """The first `minibatches` of the 16 steps that follow a rollout; the seconds they took."""
        start = time.perf_counter()
        with torch.no_grad():
            next_value = self.value(self.next_obs)
            advantages, running = torch.zeros_like(self.rewards), torch.zeros(self.N)
            for t in reversed(range(self.T)):
                alive = 1.0 - (self.next_done if t == self.T - 1 else self.dones[t + 1])
                following = next_value if t == self.T - 1 else self.values[t + 1]
                delta = self.rewards[t] + 0.99 * following * alive - self.values[t]
                advantages[t] = running = delta + 0.99 * 0.95 * alive * running
        returns = (advantages + self.values).flatten()
        obs, actions, log_probs = self.obs.flatten(0, 1), self.actions.flatten(), self.log_probs.flatten()
        advantages = advantages.flatten()
        size = len(obs) // 4
        clip_fractions = []
        order = np.arange(len(obs))
        for number in range(minibatches):
            if number % 4 == 0:
                np.random.default_rng(number).shuffle(order)
            mb = torch.from_numpy(order[number % 4 * size : (number % 4 + 1) * size])
            distribution = self.policy(obs[mb])
            log_ratio = distribution.log_prob(actions[mb]) - log_probs[mb]
            ratio = log_ratio.exp()
            clip_fractions.append(((ratio - 1).abs() > 0.1).float().mean().item())
            advantage = (advantages[mb] - advantages[mb].mean()) / (advantages[mb].std() + 1e-8)
            policy_loss = torch.max(-advantage * ratio, -advantage * ratio.clamp(0.9, 1.1)).mean()
            value_loss = 0.5 * (self.value(obs[mb]) - returns[mb]).square().mean()
            loss = policy_loss + 0.5 * value_loss - 0.01 * distribution.entropy().mean()
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.network.parameters(), 0.5)
            self.optimizer.step()
        return time.perf_counter() - start
