"""How fast training is: each figure a ratio measured side by side in one run.

    python benchmarks/training.py [--json] [--quick] [--only babyai|crafter] [--rounds 3] [--threads 2]

For BabyAI (RedBall-S20), and with `crafter_` before the name for Crafter (place_table):

* `paper_fraction`: steps a second of a whole run with the paper network and the published rollout, over what that
  network's bare arithmetic allows (the acting forwards; forward, backward and Adam on minibatches of the same size) in
  the fastest known settings. It may exceed 1, because views that repeat are looked at once.
  `paper_fraction_every_view` is the same with every view looked at: what the loop alone costs.
* `naive_ratio`: that run over the same algorithm written plainly on the reference envs (`plain_ppo.py`).
* `training_threads_ratio`: that run over the same on one thread: what `--threads` gain. `ceiling_threads_ratio`: the
  same of the bare arithmetic, which is what can be gained.
* `compact_ratio`: a run with the compact network on one thread over that plain run on `--threads`.
* `crafter_naive_ratio`, `crafter_compact_ratio`: the same, where the reference env is as `pip install crafter` leaves
  it, which is what a user of the published code has: the noise its terrain is made of in pure Python.
  `…_ratio_numba`: the kinder case that numba happens to be installed too and compiles that noise (bkrl needs numba, so
  beside it it does). Which of the two runs is checked on the noise function itself.
* `collect_fraction`: the explorer of `bkrl collect`, paid for novelty (RND), over it paid by the env; one thread.
* `…_share_…`: where our two runs spend their time.

The sides take turns, so that other work on the machine hits all of them; a ratio is the median of the rounds' ratios.
Everything includes resets. Only the plain side on Crafter is put together from parts, each measured in every round: the
acting steps of a quarter of a rollout, less what resets took in them; one of the 16 minibatches; and resets by
themselves, whose mean (`crafter_plain_reset_s`, …`_numba_reset_s`) is shared out among the steps of an episode
(`crafter_plain_episode_length`: of some 1,500 episodes of random play, which is what the policy does at first; the few
resets within those acting steps would make a mean that is mostly chance).
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from bkrl.agents.build import observation_options
from bkrl.agents.networks import build_network
from bkrl.core.config import CollectConfig, ExplorerConfig, HardwareConfig, PPOConfig
from bkrl.envs import env_spec, make, make_vec
from bkrl.learn.ppo import PPO
from bkrl.methods import TrainRsConfig, find_method
from bkrl.stages.collect import explorer
from command_line import parser_of, show
from plain_ppo import Plain, crafter_noise

ENVS = {"babyai": "BabyAI-Text-GoToLocal-RedBall-S20", "crafter": "Crafter-Text-PlaceCraftingTable"}
PAPER_ROLLOUT = {"babyai": (8, 128), "crafter": (16, 256)}  # envs × steps, as published
SETTINGS = {"fp32": (False, False), "bf16": (True, False), "bf16 channels_last": (True, True)}
Shares = dict[str, float]


def our_run(
    env_id: str, network: str, config: PPOConfig, every_view: bool = False, novelty: bool = False, seed: int = 0
) -> PPO:
    """The run that `bkrl train-rs` makes, or `bkrl collect` if paid for novelty."""
    same: dict[str, Any] = {"env": env_id, "network": network, "steps": 10**9, "seed": seed, "ppo": config}
    same["hardware"] = HardwareConfig(device="cpu")
    ppo = explorer(CollectConfig(**same)) if novelty else find_method("ppo").build(TrainRsConfig(**same)).learner
    if every_view:
        ppo.collector.look_once = False
    return ppo


def rate_of(ppo: PPO, threads: int, iterations: int, shares: Shares | None = None) -> float:
    """Steps a second over whole iterations."""
    torch.set_num_threads(threads)
    before, start = ppo.step, time.perf_counter()
    for _ in range(iterations):
        metrics = ppo.iterate()
        for key, seconds in metrics.items():
            if shares is not None and key.startswith("time/"):
                shares[key[5:]] = shares.get(key[5:], 0.0) + seconds
    return (ppo.step - before) / (time.perf_counter() - start)


class Ceiling:
    """The paper network's arithmetic, with nothing around it."""

    def __init__(self, obs_shape: tuple[int, ...], num_actions: int, num_envs: int, num_steps: int, sample: int):
        self.N, self.T, self.sample = num_envs, num_steps, sample
        rng = np.random.default_rng(0)
        high = 256 if obs_shape[0] > 16 else 5
        size = num_envs * num_steps // 4
        self.batch = torch.from_numpy(rng.integers(0, high, (size, *obs_shape), dtype=np.uint8))
        self.network = build_network("paper", obs_shape=obs_shape, num_actions=num_actions, num_values=1)
        self.optimizer = torch.optim.Adam(self.network.parameters(), fused=True)
        self.settings = "fp32"

    def rate(self, settings: str, threads: int) -> float:
        """Steps a second: one forward in a batch of N, four forwards and backwards in a minibatch."""
        torch.set_num_threads(threads)
        bf16, channels_last = SETTINGS[settings]
        self.network.to(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
        context = partial(torch.autocast, "cpu", torch.bfloat16) if bf16 else nullcontext
        start = time.perf_counter()
        with torch.no_grad(), context():
            for _ in range(self.sample):
                self.network(self.batch[: self.N])
        acting = (time.perf_counter() - start) / self.sample / self.N
        count = max(1, self.sample // 16)
        start = time.perf_counter()
        for _ in range(count):
            with context():
                logits, values = self.network(self.batch)
            loss = logits.square().mean() + values.square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        training = (time.perf_counter() - start) / count / len(self.batch)
        return 1 / (acting + 4 * training)


def plain_rate(plain: Plain, threads: int) -> float:
    """Steps a second of the plain side over a whole rollout and its update."""
    torch.set_num_threads(threads)
    return plain.T * plain.N / (plain.act(0, plain.T) + plain.update())


class PlainParts:
    """The plain side on Crafter, put together from parts because a whole rollout would take minutes."""

    def __init__(self, env_id: str, plain: Plain, many: int) -> None:
        self.plain, self.many = plain, many
        self.reset_seconds: dict[bool, list[float]] = {False: [], True: []}
        rng = np.random.default_rng(0)
        envs = make_vec(env_id, 64)  # the native engine ends episodes as the reference does, and sooner
        envs.reset(seed=0)
        actions = len(env_spec(env_id).action_names)
        steps, ended = 250 * many, 0
        for _ in range(steps):
            _, _, terminated, truncated, _ = envs.step(rng.integers(0, actions, envs.num_envs))
            ended += int(np.count_nonzero(terminated | truncated))
        envs.close()
        self.episode_length = steps * 64 / ended
        with crafter_noise(numba=True):  # let episodes spread out: at first all envs are equally young
            for _ in range(12 * many):
                plain.next_obs = torch.Tensor(plain.envs.step(rng.integers(0, actions, plain.N))[0])
            plain.reset(1)

    def rate(self, threads: int, numba: bool) -> float:
        """Steps a second, where noise is compiled or in pure Python."""
        plain, steps = self.plain, self.plain.T // 4
        torch.set_num_threads(threads)
        before = plain.resets_took()
        with crafter_noise(numba=True):  # these resets are taken out again, so let them be the short ones
            seconds = plain.act(0, steps)
        acting = (seconds - (plain.resets_took() - before)) / (steps * plain.N)
        training = plain.update(1) * 16 / (plain.T * plain.N)
        count = self.many * 2 if numba else -(-self.many // 2)
        with crafter_noise(numba):
            reset = plain.reset(count) / count
        self.reset_seconds[numba].append(reset)
        return 1 / (acting + training + reset / self.episode_length)


def figures(family: str, rounds: int, threads: int, quick: bool) -> dict[str, float]:
    """All ratios of one env; `quick`: of rollouts too small for them to mean anything."""
    env_id = ENVS[family]
    facts = env_spec(env_id)
    N, T = (2, 8) if quick else PAPER_ROLLOUT[family]
    many = 1 if quick else 16
    small: dict[str, int] = {"num_envs": 4, "num_steps": 8} if quick else {}
    published = PPOConfig(num_envs=N, num_steps=T, learning_rate=3e-4, num_minibatches=4, clip_coef=0.1)
    view = observation_options(facts, "paper")[1]
    reference: dict[str, Any] = {"observation": "image"} if view == "image" else {}
    plain = Plain(lambda: make(env_id, backend="reference", **reference), N, T)
    parts = PlainParts(env_id, plain, many) if family == "crafter" else None
    paper, alone, every = (our_run(env_id, "paper", published, every_view=every) for every in (False, False, True))
    compact = our_run(env_id, "compact", PPOConfig(**small))
    novelty, reward = (
        our_run(env_id, "compact", ExplorerConfig(**small), novelty=novelty) for novelty in (True, False)
    )
    space = paper.envs.single_observation_space
    shape = tuple((space[view] if view == "image" else space).shape)
    ceiling = Ceiling(shape, len(facts.action_names), N, T, sample=1 if quick else 16 if family == "crafter" else 64)

    shares: dict[str, Shares] = {"paper": {}, "compact": {}}
    sides: dict[str, Callable[[], float]] = {
        "ceiling": lambda: max(ceiling.rate(settings, threads) for settings in SETTINGS),
        "ceiling_1_thread": lambda: max(ceiling.rate(settings, 1) for settings in SETTINGS),
        "paper": lambda: rate_of(paper, threads, 1 if family == "crafter" else 2, shares["paper"]),
        "paper_1_thread": lambda: rate_of(alone, 1, 1),
        "every_view": lambda: rate_of(every, threads, 1),
        "plain": lambda: plain_rate(plain, threads) if parts is None else parts.rate(threads, numba=False),
        "compact": lambda: rate_of(compact, 1, many, shares["compact"]),
        "novelty": lambda: rate_of(novelty, 1, 4),
        "reward": lambda: rate_of(reward, 1, 4),
    }
    if parts is not None:
        sides["plain_numba"] = lambda: parts.rate(threads, numba=True)
    for name in ("ceiling", "compact", "novelty", "reward"):  # compile and warm up
        sides[name]()
    if family == "babyai":
        sides["paper"]()
    for taken in shares.values():
        taken.clear()
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, measure in sides.items():
            rates[name].append(measure())

    def ratio(quick: str, slow: str) -> float:
        return statistics.median(q / s for q, s in zip(rates[quick], rates[slow], strict=True))

    found = {
        "paper_fraction": ratio("paper", "ceiling"),
        "paper_fraction_every_view": ratio("every_view", "ceiling"),
        "training_threads_ratio": ratio("paper", "paper_1_thread"),
        "ceiling_threads_ratio": ratio("ceiling", "ceiling_1_thread"),
        "naive_ratio": ratio("paper", "plain"),
        "compact_ratio": ratio("compact", "plain"),
        "collect_fraction": ratio("novelty", "reward"),
    }
    if parts is not None:
        found |= {
            "naive_ratio_numba": ratio("paper", "plain_numba"),
            "compact_ratio_numba": ratio("compact", "plain_numba"),
            "plain_reset_s": statistics.mean(parts.reset_seconds[False]),
            "plain_numba_reset_s": statistics.mean(parts.reset_seconds[True]),
            "plain_episode_length": parts.episode_length,
        }
    found |= {f"{name}_steps_per_s": statistics.median(values) for name, values in rates.items()}
    for name, taken in shares.items():
        found |= {f"{name}_share_{phase}": seconds / sum(taken.values()) for phase, seconds in taken.items()}
    prefix = "" if family == "babyai" else f"{family}_"
    return {prefix + key: value for key, value in found.items()}


def main() -> None:
    """Measure and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--only", choices=list(ENVS), help="one env only")
    parser.add_argument("--rounds", type=int, default=3, help="how often each side has its turn")
    parser.add_argument("--threads", type=int, default=2, help="threads of the paper networks, ours and plain")
    args = parser.parse_args()
    if args.quick:
        args.rounds = args.threads = 1
    gym.logger.min_level = gym.logger.ERROR
    start = time.perf_counter()
    results: dict[str, float] = {}
    for family in ENVS:
        if args.only in (None, family):
            results |= figures(family, args.rounds, args.threads, args.quick)
    results |= {"threads": args.threads, "load": os.getloadavg()[0], "seconds": time.perf_counter() - start}
    show(results, args.json)


if __name__ == "__main__":
    main()
