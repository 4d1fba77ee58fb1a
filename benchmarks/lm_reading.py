"""Whether what a language model has read makes it learn sooner: DAgger with pretrained and with random weights.

    BKRL_MODELS=… python benchmarks/lm_reading.py [--lm smollm2-135m] [--seeds 1 2 3 4 5] [--out reading.jsonl]

The level has missions of three kinds, six actions, two distractors and ten steps: random play solves 7 % of it, the
bot 98 %. Whoever does not read the mission cannot know which of three objects is meant. Each model clones `--episodes`
of the bot's, then plays as many itself, which the bot labels, and so on. Pretrained and random weights of one shape
get the same adapters, on the same layers, with the same step size, and see the same first episodes. After each round
a line says the samples so far, success in 30 episodes that are the same for all, and the processor time.

Frozen layers read a prompt once for all seeds, so seeds of one model share its trunk, random ones too.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from bkrl.agents.language.adapters import LINEAR, Training
from bkrl.agents.language.agent import LanguageAgent, LanguageSettings
from bkrl.agents.language.catalogue import open_language_model
from bkrl.agents.language.scorer import Scoring
from bkrl.agents.play import play
from bkrl.core.seeds import derive_seed
from bkrl.envs import make_vec
from bkrl.learn.bc import Cloning
from bkrl.learn.dagger import Dagger, Rounds

ENV = "BabyAI-MixedTrainLocal-v0@task_kinds=goto+pickup+seq,room_size=5,num_dists=2,actions=canonical,max_steps=10"
UNSEEN = 1_000_003
"""Seed of the episodes that all are measured on."""


class Reader(LanguageAgent):
    """It remembers the states of frozen layers for good: they change no more."""

    def begin(self, num_envs: int) -> dict[str, Any]:
        """Nothing is remembered of episodes."""
        return {}

    def at_step(self, step: int) -> None:
        """See `begin`."""


def reader(where: str, pretrained: bool, frozen: int) -> Reader:
    """A model of the catalogue with adapters above its frozen layers, or a small one all of whose weights learn."""
    small = where.startswith("tiny")
    lm = open_language_model(where, pretrained=pretrained, chat=False)
    training = Training() if small else Training("lora", frozen, alpha=32, targets=LINEAR)
    settings = LanguageSettings(Scoring(normalise="token"), training, form="lamorel", observations=1)
    return Reader(lm, ENV, 1, settings)


def anew(agent: Reader, first: dict[str, torch.Tensor], seed: int) -> None:
    """Put its weights back, and draw new ones for all that is trained of it."""
    agent.module.load_state_dict(first)
    draw = torch.Generator().manual_seed(derive_seed(seed, "adapters"))
    with torch.no_grad():
        for name, parameter in agent.module.named_parameters():
            if "lora_A" in name:
                bound = parameter.shape[1] ** -0.5
                parameter.uniform_(-bound, bound, generator=draw)


def main() -> None:
    """Print a line for each round of each run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lm", default="smollm2-135m")
    parser.add_argument("--weights", nargs="+", default=["pretrained", "random"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--episodes", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--passes", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--frozen", type=int, default=28)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    out = given.out.open("a") if given.out else sys.stdout
    agents = {kind: reader(given.lm, kind == "pretrained", given.frozen) for kind in given.weights}
    start = {kind: {k: v.clone() for k, v in one.module.state_dict().items()} for kind, one in agents.items()}
    envs = make_vec(ENV, 30)
    for seed in given.seeds:
        for kind, agent in agents.items():
            anew(agent, start[kind], seed)
            how = {"batch_size": given.batch_size, "learning_rate": given.learning_rate, "max_grad_norm": 1.0}
            cloning = Cloning(agent, None, total_steps=2**62, seed=seed, **how)
            rounds = Rounds(ENV, given.episodes, mixing=0.0, passes=given.passes, held_out=0.0)
            learner = Dagger(cloning, rounds, total_steps=2**62, seed=seed)
            began = time.process_time()
            with tempfile.TemporaryDirectory() as place:
                learner.folder = Path(place)
                for number in range(given.rounds):
                    figures = learner.iterate()
                    taught = time.process_time() - began
                    found = list(play(agent, envs, 30, seed=UNSEEN))
                    line = {
                        "lm": given.lm, "weights": kind, "seed": seed, "round": number, "episodes": learner.episodes,
                        "samples": learner.step, "success": [int(one.success) for one in found],
                        "kinds": [one.task_kind for one in found], "played": figures["rollout/success_rate"],
                        "loss": figures["bc/loss"], "accuracy": figures["bc/accuracy"],
                        "seconds": round(taught, 1), "all_seconds": round(time.process_time() - began, 1),
                    }  # fmt: skip
                    print(json.dumps(line), file=out, flush=True)
                learner.close()


if __name__ == "__main__":
    main()
