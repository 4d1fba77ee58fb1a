"""BabyAI's agent trained plainly, as published, and how much quicker ours are: two figures of `agents.py`.

The plain loop: one env object each, stepped one after the other in Python. Observations and missions are made into
tensors in every step. All of the network runs in every step for all envs, and again, step by step, for each sequence
that is learnt from. Batch normalisation is that of torch, in float32 throughout; hyper-parameters are those of
`babyai-ppo`.

Axes: T steps, N envs, R steps of a sequence.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bkrl.core.config import HardwareConfig, PPOConfig
from bkrl.envs import make
from bkrl.methods import TrainRsConfig, find_method
from bkrl.methods.babyai_ppo import PUBLISHED

MIXED = "BabyAI-MixedTrainLocal-v0"
N, T, R = 64, 40, 20


class Block(nn.Module):
    """Two convolutions, modulated by the mission (FiLM)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(128, 128, 3, padding=1), nn.BatchNorm2d(128)
        self.conv2, self.norm2 = nn.Conv2d(128, 128, 3, padding=1), nn.BatchNorm2d(128)
        self.scale, self.shift = nn.Linear(128, 128), nn.Linear(128, 128)

    def forward(self, x: Tensor, mission: Tensor) -> Tensor:
        x = self.conv2(self.norm1(self.conv1(x)).relu())
        return self.norm2(x * self.scale(mission)[:, :, None, None] + self.shift(mission)[:, :, None, None]).relu()


class Network(nn.Module):
    """The published actor-critic: one step of B envs."""

    def __init__(self, num_actions: int) -> None:
        super().__init__()
        self.image = nn.Sequential(
            nn.Conv2d(3, 128, 2, padding=1),
            nn.BatchNorm2d(128),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(128, 128, 3, padding=1),
            nn.BatchNorm2d(128),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.words, self.reader = nn.Embedding(100, 128), nn.GRU(128, 128, batch_first=True)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.memory = nn.LSTMCell(128, 128)
        self.actor = nn.Sequential(nn.Linear(128, 64), nn.Tanh(), nn.Linear(64, num_actions))
        self.critic = nn.Sequential(nn.Linear(128, 64), nn.Tanh(), nn.Linear(64, 1))

    def forward(self, image: Tensor, words: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits (B, A), values (B,) and the memory (2, B, 128) after the step."""
        after, _ = self.reader(self.words(words))
        mission = after[torch.arange(len(words)), (words > 0).sum(1) - 1]
        x = self.image(image)
        for block in self.blocks:
            x = block(x, mission)
        memory = torch.stack(self.memory(nn.functional.max_pool2d(x, 2).flatten(1), (memory[0], memory[1])))
        return self.actor(memory[0]), self.critic(memory[0])[:, 0], memory


class PlainBabyAI:
    """The loop.

    Args:
        env_id: the level.
    """

    def __init__(self, env_id: str) -> None:
        self.envs = [make(env_id, backend="reference") for _ in range(N)]
        self.seen = [env.reset(seed=i)[0] for i, env in enumerate(self.envs)]
        self.network = Network(int(self.envs[0].action_space.n))  # type: ignore[attr-defined]
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=1e-4, eps=1e-5)
        self.vocabulary: dict[str, int] = {}
        self.memory, self.mask = torch.zeros(2, N, 128), torch.ones(N)

    def observe(self) -> tuple[Tensor, Tensor]:
        """Images (N, 3, 7, 7) and words (N, L) of what the envs show."""
        rows = []
        for env in self.envs:
            words = re.findall("[a-z]+", env.unwrapped.mission.lower())  # type: ignore[attr-defined]
            rows.append([self.vocabulary.setdefault(word, len(self.vocabulary) + 1) for word in words])
        tokens = np.zeros((N, max(map(len, rows))))
        for i, row in enumerate(rows):
            tokens[i, : len(row)] = row
        return torch.tensor(np.array(self.seen)).permute(0, 3, 1, 2).float(), torch.tensor(tokens).long()

    def rollout(self, steps: int = T) -> None:
        """`steps` steps of all envs."""
        self.kept: list[tuple[Tensor, ...]] = []
        for _ in range(steps):
            image, words = self.observe()
            with torch.no_grad():
                logits, values, memory = self.network(image, words, self.memory * self.mask[:, None])
            distribution = torch.distributions.Categorical(logits=logits)
            action = distribution.sample()
            rewards, ended = torch.zeros(N), torch.zeros(N)
            for i, env in enumerate(self.envs):
                self.seen[i], reward, terminated, truncated, _ = env.step(int(action[i]))
                rewards[i] = 20 * float(reward)
                if terminated or truncated:
                    self.seen[i], ended[i] = env.reset()[0], 1
            kept = (image, words, self.memory, self.mask, action, distribution.log_prob(action), values, rewards)
            self.kept.append(kept)
            self.memory, self.mask = memory, 1 - ended

    def update(self, minibatches: int = 8) -> None:
        """The first so many of the 8 minibatches of 64 sequences: 4 epochs of 2."""
        image, words, memory, mask, action, log_prob, values, rewards = zip(*self.kept, strict=True)
        with torch.no_grad():
            following = self.network(*self.observe(), self.memory * self.mask[:, None])[1]
            advantages, running = [torch.zeros(N)] * T, torch.zeros(N)
            for t in reversed(range(T)):
                alive = self.mask if t == T - 1 else mask[t + 1]
                delta = rewards[t] + 0.99 * following * alive - values[t]
                advantages[t] = running = delta + 0.99 * 0.99 * alive * running
                following = values[t]
        starts = [(t, i) for t in range(0, T, R) for i in range(N)]
        for number in range(minibatches):
            if number % 2 == 0:
                order = np.random.default_rng(number).permutation(len(starts))
            chosen = [starts[place] for place in order[number % 2 * N : (number % 2 + 1) * N]]
            held = torch.stack([memory[t][:, i] for t, i in chosen], 1)
            total = torch.zeros(())
            for step in range(R):
                at = partial(_at, chosen, step)
                tokens = nn.utils.rnn.pad_sequence(at(words), batch_first=True)
                logits, value, held = self.network(
                    torch.stack(at(image)), tokens, held * torch.stack(at(mask))[:, None]
                )
                distribution = torch.distributions.Categorical(logits=logits)
                ratio = (distribution.log_prob(torch.stack(at(action))) - torch.stack(at(log_prob))).exp()
                advantage, old = torch.stack(at(advantages)), torch.stack(at(values))
                policy = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
                target = old + advantage
                near = old + (value - old).clamp(-0.2, 0.2)
                critic = torch.max((value - target).square(), (near - target).square()).mean()
                total = total + policy + 0.5 * critic - 0.01 * distribution.entropy().mean()
            self.optimizer.zero_grad()
            (total / R).backward()
            nn.utils.clip_grad_norm_(self.network.parameters(), 0.5)
            self.optimizer.step()


def _at(chosen: list[tuple[int, int]], step: int, kept: Sequence[Tensor]) -> list[Tensor]:
    """What was kept of the chosen sequences in one of their steps."""
    return [kept[t + step][i] for t, i in chosen]


def learners(rounds: int, quick: bool) -> dict[str, float]:
    """Steps a second of processor time on one thread, and ratios: whole iterations of ours against the plain loop.

    Of the plain loop's eight minibatches two are measured. The sides take turns; a ratio is the median of the rounds'.
    """
    torch.set_num_threads(1)
    plain = PlainBabyAI(MIXED)

    def ours(alg: str, **settings: Any) -> Any:
        config = TrainRsConfig(alg=alg, env=MIXED, steps=10**9, hardware=HardwareConfig(device="cpu"), **settings)
        return find_method(alg).build(config).learner  # type: ignore[union-attr]

    def spent(work: Callable[[], object]) -> float:
        start = time.process_time()
        work()
        return time.process_time() - start

    published, sizes = PUBLISHED, (128, 16)
    if quick:
        published, sizes = replace(published, num_envs=4, num_steps=20), (4, 4)
    wide = ours("ppo", network="recurrent", ppo=PPOConfig(num_envs=sizes[0], num_steps=sizes[1]))
    sides = {"babyai_ppo": (ours("babyai-ppo", ppo=published), 1), "recurrent": (wide, 1 if quick else 10)}
    for learner, _ in sides.values():
        learner.iterate()  # compile, warm up
    steps = 1 if quick else T
    rates: dict[str, list[float]] = {"plain": [], **{name: [] for name in sides}}
    for _ in range(rounds):
        acting = spent(lambda: plain.rollout(steps)) / steps
        updating = 0.0 if quick else spent(lambda: plain.update(2)) * 4
        rates["plain"].append(N * T / (acting * T + updating))
        for name, (learner, count) in sides.items():
            before = learner.step
            taken = spent(lambda learner=learner, count=count: [learner.iterate() for _ in range(count)])
            rates[name].append((learner.step - before) / taken)
    found = {f"{name}_steps_per_s": statistics.median(rate) for name, rate in rates.items()}
    for name in sides:
        found[f"{name}_ratio"] = statistics.median(
            fast / slow for fast, slow in zip(rates[name], rates["plain"], strict=True)
        )
    return found
