"""How fast a dataset is cloned, in samples a second of processor time on one thread.

    python benchmarks/cloning.py [--json] [--quick]

* `clone_samples_per_s`: recorded actions that `bc` learns from, compact network, on episodes of the bot that errs
  (BabyAI-MixedTrainLocal-v0, goto), held-out figures included;
* `clone_ratio`: against a plain loop of the same network, batches and optimiser that looks at every sample, also where
  its view stands twice in the minibatch. Rounds alternate between the two; the middle ratio counts.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from bkrl.agents.build import new_agent
from bkrl.core.config import CollectConfig
from bkrl.core.reporter import Reporter
from bkrl.data.dataset import Dataset
from bkrl.envs import make_vec
from bkrl.learn.bc import MINIBATCHES, Cloning, Demonstrations, demonstrations
from bkrl.learn.ppo import Adam
from bkrl.stages import collect
from command_line import parser_of, show

ENV = "BabyAI-MixedTrainLocal-v0@task_kinds=goto"
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


def main() -> None:
    arguments = parser_of(__doc__).parse_args()
    rounds, seconds, episodes = (1, 0.1, 20) if arguments.quick else (9, 1.0, 4000)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        config = CollectConfig(env=ENV, explorer="bot", epsilon=0.3, episodes=episodes, out=Path(folder) / "data")
        dataset = Dataset.open(collect.run(config, Reporter()).path)
        envs = make_vec(ENV, 1)
        agent, other = (new_agent("compact", envs, "symbolic", 1, 0) for _ in range(2))
        parts = demonstrations(dataset, agent, only_successes=False, held_out=0.1, seed=0)
        settings = {"batch_size": BATCH, "learning_rate": 1e-3, "max_grad_norm": 1.0, "total_steps": 10**9, "seed": 0}
        cloning = Cloning(agent, *parts, **settings)

        def ours() -> int:
            before = cloning.step
            cloning.iterate()
            return cloning.step - before

        theirs = plain(other.module, parts[0])
        for warm in (ours, theirs):
            rate(warm, 0.2)
        pairs = [(rate(ours, seconds), rate(theirs, seconds)) for _ in range(rounds)]
    figures = {
        "clone_samples_per_s": statistics.median(mine for mine, _ in pairs),
        "clone_ratio": statistics.median(mine / other for mine, other in pairs),
    }
    show(figures, arguments.json)


if __name__ == "__main__":
    main()
