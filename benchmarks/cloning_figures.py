"""How fast a dataset is cloned and the bot plays, for `agents`: figures of one thread, a second of processor time."""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from bkrl.agents.bot import BotAgent
from bkrl.agents.build import new_agent, options_of
from bkrl.agents.play import play
from bkrl.core.config import CollectConfig
from bkrl.core.reporter import Reporter
from bkrl.data.dataset import Dataset
from bkrl.envs import make_vec
from bkrl.learn.bc import MINIBATCHES, Cloning, Demonstrations, demonstrations
from bkrl.learn.ppo import Adam
from bkrl.stages import collect

MIXED = "BabyAI-MixedTrainLocal-v0"
ENV = f"{MIXED}@task_kinds=goto"
BATCH = 2048


def plain(agent: torch.nn.Module, data: Demonstrations) -> Callable[[], int]:
    """Minibatches of single steps, nothing shared; the same number as an iteration of `bc`."""
    views, actions = torch.from_numpy(data.views.symbols), torch.from_numpy(data.actions)
    optimizer = Adam(agent.parameters(), lr=1e-3, eps=1e-5, fused=True)

    def iterate() -> int:
        for _ in range(MINIBATCHES):
            chosen = torch.randint(len(actions), (BATCH,))
            loss = torch.nn.functional.cross_entropy(agent(views[chosen])[0], actions[chosen])
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(agent.parameters(), 1.0)
            optimizer.step()
        return MINIBATCHES * BATCH

    return iterate


def rate(iterate: Callable[[], int], seconds: float) -> float:
    """Samples in a second of processor time."""
    count, start = 0, time.process_time()
    while time.process_time() - start < seconds:
        count += iterate()
    return count / (time.process_time() - start)


def cloning(rounds: int, seconds: float, episodes: int) -> dict[str, float]:
    """`bc` on so many episodes of a bot that errs, against `plain`. Rounds alternate; the middle one counts."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        config = CollectConfig(env=ENV, explorer="bot", epsilon=0.3, episodes=episodes, out=Path(folder) / "data")
        dataset = Dataset.open(collect.run(config, Reporter()).path)
        envs = make_vec(ENV, 1)
        agent, other = (new_agent("compact", envs, "symbolic", 1, 0) for _ in range(2))
        parts = demonstrations(dataset, agent, only_successes=False, held_out=0.1, seed=0)
        settings = {"batch_size": BATCH, "learning_rate": 1e-3, "max_grad_norm": 1.0, "total_steps": 10**9, "seed": 0}
        learner = Cloning(agent, parts, **settings)

        def ours() -> int:
            before = learner.step
            learner.iterate()
            return learner.step - before

        theirs = plain(other.module, parts[0])
        for warm in (ours, theirs):
            rate(warm, min(seconds, 0.2))
        pairs = [(rate(ours, seconds), rate(theirs, seconds)) for _ in range(rounds)]
    return {
        "clone_samples_per_s": statistics.median(mine for mine, _ in pairs),
        "clone_ratio": statistics.median(mine / other for mine, other in pairs),
    }


def bot(rounds: int, seconds: float) -> dict[str, float]:
    """Steps of the bot, of 128 envs and their resets included."""
    agent = BotAgent.of(MIXED)
    envs = make_vec(MIXED, 128, **options_of(agent))
    seeds = itertools.count(0, 1_000_000)

    def play_some() -> int:
        return sum(one.length for one in play(agent, envs, 1024, seed=next(seeds), greedy=True))

    rate(play_some, 0.0)
    rate(play_some, min(seconds, 0.2))  # compile, warm up
    return {"bot_steps_per_s": statistics.median(rate(play_some, seconds) for _ in range(rounds))}
