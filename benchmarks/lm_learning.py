"""Whether PPO keeps what a language model has cloned, gains, and has a critic that learns.

    python benchmarks/lm_learning.py [--json] [--seeds 2] [--steps 30000]

`tiny-t5` clones 60 of the bot's episodes in "go to" in a room of 5 with one distractor and six actions, and PPO goes on
from there with the bot as its teacher (--imitate bot, whose weight falls by a tenth). The settings of PPO were chosen
on seeds 101 and 102. Over the seeds 1, 2, …:

* `clone_start_max`: success of the best clone, so much headroom there is;
* `clone_end_min`: the least success of PPO's last policy, in 200 episodes;
* `clone_drop_max`: how far an evaluation fell below that of its clone, at most;
* `explained_min`: the least mean share of the variance of returns that the critic explains in rollouts that it has not
  learnt from, over the second half of training;
* `ridge_max`: the most that ridge regression explains there on the same states of the model, trained on three quarters
  of the envs of a rollout and tested on the others, its penalty chosen afterwards: an upper bound for what is linear.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from torch import Tensor

from bkrl.agents.language.agent import LanguageAgent
from bkrl.core.config import CollectConfig
from bkrl.core.reporter import Reporter
from bkrl.learn.critic import CriticLearner
from bkrl.learn.hardware import CPU, Hardware
from bkrl.learn.rollout import Collector
from bkrl.methods import TrainRsConfig
from bkrl.methods.bc import ClonedLM
from bkrl.methods.glam import GlamPPO, LMConfig
from bkrl.stages import collect, train_rs

ENV = "BabyAI-MixedTrainLocal-v0@task_kinds=goto,room_size=5,num_dists=1,actions=canonical"
PPO = replace(GlamPPO(), learning_rate=1e-3, update_epochs=4, target_kl=0.1)
PENALTIES = 10.0 ** np.arange(-2, 6)
FOLDS = 4


def ridge(states: np.ndarray, returns: np.ndarray, fold: np.ndarray) -> np.ndarray:
    """(8,) shares of the variance of returns (S,) that states (S, D) explain, by penalty, in folds (S,) left out."""
    left = np.tile(returns, (len(PENALTIES), 1))
    for one in range(FOLDS):
        train, test = fold != one, fold == one
        mean, spread = states[train].mean(0), states[train].std(0) + 1e-6
        x, unseen = (states[train] - mean) / spread, (states[test] - mean) / spread
        level = returns[train].mean()
        u, s, vt = np.linalg.svd(x, full_matrices=False)
        for row, penalty in zip(left, PENALTIES, strict=True):
            weights = vt.T @ (s / (s**2 + penalty) * (u.T @ (returns[train] - level)))
            row[test] -= level + unseen @ weights
    return 1 - left.var(1) / returns.var()


class Compared(CriticLearner):
    """Beside the critic: what ridge regression explains of each rollout, for each penalty."""

    def __init__(self, shares: list[np.ndarray], agent: LanguageAgent, **how: Any) -> None:
        super().__init__(agent, **how)
        self.shares = shares

    def learn(
        self, collector: Collector, values: Tensor, returns: Tensor, known: Tensor, hardware: Hardware = CPU
    ) -> dict[str, float]:
        with hardware.autocast():
            states, numbers = self._states(collector)
        rows = known.flatten().numpy()
        x = states.index_select(0, numbers).double().numpy()[rows]
        fold = np.tile(np.arange(known.shape[1]) % FOLDS, known.shape[0])[rows]
        self.shares.append(ridge(x, returns[..., 0].flatten().double().numpy()[rows], fold))
        return super().learn(collector, values, returns, known, hardware)


def measure(seed: int, steps: int, folder: Path) -> tuple[list[float], list[float], list[np.ndarray]]:
    """Success in each evaluation, the clone's first; the variance explained in each rollout; and ridge regression's."""
    data = collect.run(CollectConfig(env=ENV, explorer="bot", episodes=60, seed=seed, out=folder / "bot"), Reporter())
    how = {"env": ENV, "seed": seed, "eval_episodes": 200}
    clone = train_rs.run(
        TrainRsConfig(
            alg="bc", data=data.path, lm=ClonedLM("tiny-t5", window=1), batch_size=64, steps=4_000, eval_every=4_000,
            out=folder / "clone", **how,
        ),
        Reporter(),
    )  # fmt: skip
    shares: list[np.ndarray] = []
    with patch("bkrl.learn.critic.CriticLearner", partial(Compared, shares)):
        run = train_rs.run(
            TrainRsConfig(
                alg="glam", lm=LMConfig("tiny-t5", window=1), init_from=clone.path, imitate="bot", imitate_coef=1.0,
                imitate_until=10 * steps, ppo=PPO, steps=steps, eval_every=max(steps // 10, 1), out=folder / "ppo",
                **how,
            ),
            Reporter(),
        )  # fmt: skip
    rows = run.metrics()
    success = [row["eval/success_rate"] for row in rows if "eval/success_rate" in row]
    return success, [row["critic/explained_variance"] for row in rows if "critic/explained_variance" in row], shares


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=30_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        found = [measure(seed, given.steps, Path(place) / str(seed)) for seed in range(1, given.seeds + 1)]
    for seed, (success, explained, shares) in enumerate(found, 1):
        half = len(explained) // 2
        print(
            f"seed {seed}: success " + " ".join(f"{one:.3f}" for one in success),
            f"explained, by half: {np.mean(explained[:half]):.3f} {np.mean(explained[half:]):.3f}; ridge",
            f"{np.mean(shares[:half], axis=0).max():.3f} {np.mean(shares[half:], axis=0).max():.3f}",
            file=sys.stderr,
        )
    figures = {
        "clone_start_max": max(success[0] for success, *_ in found),
        "clone_end_min": min(success[-1] for success, *_ in found),
        "clone_drop_max": max(success[0] - min(success) for success, *_ in found),
        "explained_min": min(float(np.mean(explained[len(explained) // 2 :])) for _, explained, _ in found),
        "ridge_max": max(float(np.mean(shares[len(shares) // 2 :], axis=0).max()) for *_, shares in found),
    }
    print(json.dumps(figures) if given.json else "\n".join(f"{name} {value:.3f}" for name, value in figures.items()))


if __name__ == "__main__":
    main()
