"""Whether what a model has read makes it learn sooner: heads on a frozen model, pretrained or with random weights.

    python benchmarks/lm_reading.py [--lm smollm2-135m] [--seeds 5] [--episodes 10 30 80] [--pool 110] [--out FILE]

Missions of three kinds, six actions, two distractors, ten steps: random play solves 7 % of it, the bot 98 %. Who does
not read the mission cannot know which of three objects is meant. The bot plays `--pool` episodes. For each seed an
order of these is drawn, and a head on the last state of the model (`--train heads --action-head`) clones the first 10,
30 and 80; so do all weights of `tiny-t5`, and a small network that sees symbols (`compact`). A line for each says the
samples, the agreement with the bot in the pool's other episodes, and the success in episodes that are the same for
all, with sampled actions. No setting was tuned.

A frozen model reads a prompt once for all seeds, which is what makes this cheap: ten minutes of a core without play.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bkrl.agents.build import new_agent, teach
from bkrl.agents.language.adapters import Trainable
from bkrl.agents.language.agent import LanguageAgent, LanguageSettings
from bkrl.agents.language.catalogue import open_language_model
from bkrl.agents.language.scorer import Scoring
from bkrl.agents.play import play
from bkrl.core.config import CollectConfig
from bkrl.core.reporter import Reporter
from bkrl.data.dataset import Dataset
from bkrl.envs import make_vec
from bkrl.learn.bc import Cloning, Demonstrations, demonstrations
from bkrl.stages import collect

ENV = "BabyAI-MixedTrainLocal-v0@task_kinds=goto+pickup+seq,room_size=5,num_dists=2,actions=canonical,max_steps=10"
UNSEEN, PLAYED = 1_000_003, 30
"""Seed of the episodes that all are measured on, and their number."""
SMALL = ("tiny-t5", "compact")
EPOCHS, BATCH, RATE = 60, 16, 1e-3


class Frozen(LanguageAgent):
    """A frozen model under heads that remembers what it has read: a prompt's last state."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.kept: dict[Any, Tensor] = {}

    @torch.no_grad()
    def read(self, texts: list[Any], index: Tensor) -> dict[str, Tensor]:
        """See `LanguageAgent.read`."""
        new = [text for text in texts if text not in self.kept]
        if new:
            self.kept |= dict(zip(new, self.scorer(self.scorer.prompts(new)).hidden, strict=True))
        hidden = torch.stack([self.kept[text] for text in texts]).index_select(0, index)
        return {"logits": torch.zeros(len(hidden), len(self.action_names)), "hidden": hidden}


def agent_of(where: str, seed: int, lm: Any, missions: Sequence[str]) -> Any:
    """`tiny-t5` or the network `compact`, all of which learns, or a frozen model with a head of its own."""
    if where == "compact":  # it sees symbols, and reads missions alone
        envs = make_vec(ENV, 1)
        agent = new_agent(where, envs, "symbolic", 1, seed, True)
        teach(agent, envs)
        agent.vocabulary.add(missions)
        return agent
    settings = {"head_sizes": (64, 64), "head_activation": "relu", "form": "lamorel", "observations": 1}
    if where == "tiny-t5":
        small = open_language_model(where, seed=seed)
        return LanguageAgent(small, ENV, 1, LanguageSettings(Scoring(normalise="token"), **settings), None, seed)
    how = LanguageSettings(Scoring(normalise="token"), Trainable("heads"), True, **settings)
    return Frozen(lm, ENV, 1, how, None, seed)


def part(data: Demonstrations, episodes: NDArray[np.int64]) -> Demonstrations:
    """Some episodes of a dataset."""
    rows = np.concatenate([np.arange(data.starts[i], data.starts[i + 1]) for i in episodes])
    lengths = np.diff(data.starts)[episodes]
    return Demonstrations(data.views[rows], data.actions[rows], np.concatenate([[0], np.cumsum(lengths)]))


def agreement(cloning: Cloning) -> float:
    """How often the likeliest action is the bot's, in what is held out."""
    with torch.no_grad():
        logits, actions = cloning.held_out.look(torch.arange(cloning.held_out.units))
    return float((logits.argmax(1) == actions).float().mean())


def figures(where: str, weights: str, given: argparse.Namespace, data: Dataset) -> Iterator[dict[str, Any]]:
    """A row for each seed and number of episodes."""
    large = where not in SMALL
    lm = open_language_model(where, pretrained=weights == "pretrained", chat=False) if large else None
    place = Path(f"{given.states}-{weights}.pt") if given.states and large else None
    kept: dict[Any, Tensor] = torch.load(place) if place and place.exists() else {}
    before = len(kept)
    envs = make_vec(ENV, PLAYED)
    for seed in range(1, given.seeds + 1):
        order = np.random.default_rng(seed).permutation(given.pool)
        for count in given.episodes:
            began = time.process_time()
            agent = agent_of(where, seed, lm, data.missions)
            if isinstance(agent, Frozen):
                agent.kept = kept
            shown, _ = demonstrations(data, agent, only_successes=False, held_out=0.0, seed=1)
            parts = part(shown, order[:count]), part(shown, order[max(given.episodes) :])
            how = {"batch_size": BATCH, "learning_rate": RATE, "max_grad_norm": 1.0, "seed": seed}
            cloning = Cloning(agent, parts, total_steps=EPOCHS * len(parts[0]), **how)
            while not cloning.done:
                cloning.iterate()
            row = {"lm": where, "weights": weights, "seed": seed, "episodes": count, "samples": len(parts[0])}
            row |= {"agreement": agreement(cloning), "held_out": len(parts[1])}
            if given.play:
                found = list(play(agent, envs, PLAYED, seed=UNSEEN))
                row |= {"success": [int(one.success) for one in found], "kinds": [one.task_kind for one in found]}
            if place and len(kept) > before:
                torch.save(kept, place)
                before = len(kept)
            yield row | {"seconds": round(time.process_time() - began, 1), "read": len(kept)}


def main() -> None:
    """Print a row of JSON for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lm", nargs="+", default=["smollm2-135m", *SMALL])
    parser.add_argument("--weights", nargs="+", default=["pretrained", "random"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--episodes", nargs="+", type=int, default=[10, 30, 80])
    parser.add_argument("--pool", type=int, default=110)
    parser.add_argument("--play", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--states", help="keep what frozen models read in files that begin with this")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    out = given.out.open("a") if given.out else sys.stdout
    with tempfile.TemporaryDirectory() as place:
        how = CollectConfig(env=ENV, explorer="bot", episodes=given.pool, seed=1, out=Path(place) / "bot")
        data = Dataset.open(collect.run(how, Reporter()).path)
        for where in given.lm:
            for weights in given.weights if where not in SMALL else ["random"]:
                for row in figures(where, weights, given, data):
                    print(json.dumps(row), file=out, flush=True)


if __name__ == "__main__":
    main()
