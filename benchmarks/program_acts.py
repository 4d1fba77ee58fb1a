"""How well a program of labels acts by itself: its advice is followed and nothing is learnt.

    python benchmarks/program_acts.py [LABELS] [--env Crafter-Text-MakeStonePickaxe] [--json] [--quick]

LABELS is a run of `bkrl label --variant code --with-memory` whose program has an `advice`. Without it the rules
annotator writes one here, after 20 episodes of random play in Crafter-Text-Reward. An action is drawn with probability
proportional to exp(8 Ψ), as `train-rm --play-steps` follows advice: Ψ is what the program says, less its best, on a
scale from -1 to 0 that the dataset gives. Each seed begins with the episodes in which `train-rs --seed` evaluates.

* `success_rate`, `low`, `high`: mean over seeds 6 to 13, with a 95 % interval (Student's t over seeds).
* `seed_6`, …: of one seed.
* `score`: Crafter's, over all episodes, where the env unlocks achievements.
* `episodes`: in all.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

os.environ.setdefault("OMP_NUM_THREADS", "1")
import numpy as np

from bkrl.agents.play import play
from bkrl.agents.protocol import Acted, Agent, State
from bkrl.core.config import CollectConfig
from bkrl.core.reporter import Reporter
from bkrl.core.seeds import derive_seed
from bkrl.core.spacing import end_to_end
from bkrl.data.dataset import Dataset
from bkrl.data.views import ViewName, Views
from bkrl.envs import env_spec, make_vec
from bkrl.labelers.config import LabelConfig
from bkrl.potentials.advice import SHARPNESS, in_place
from bkrl.potentials.asked import ROWS, present
from bkrl.potentials.code import read
from bkrl.runs.inputs import dataset_at
from bkrl.runs.record import Run
from bkrl.stages import collect, label
from bkrl.stats.intervals import t_interval
from bkrl.stats.scores import geometric_score
from command_line import parser_of, show

SEEDS = range(6, 14)
ENVS, BATCH = 64, 8192


@dataclass(frozen=True)
class ProgramAgent(Agent):
    """See `bkrl.agents.protocol.Agent`: a program's advice as a policy, at the weight `SHARPNESS`."""

    env_id: str
    table: Any
    horizon: int
    spread: float
    wants: ClassVar[tuple[ViewName, ...]] = ("symbols", "memory")

    @property
    def family(self) -> str:
        """The env's."""
        return env_spec(self.env_id).family

    @property
    def action_names(self) -> tuple[str, ...]:
        """The env's."""
        return env_spec(self.env_id).action_names

    def begin(self, num_envs: int) -> State:
        """Nothing is remembered but what views hold."""
        del num_envs
        return {}

    def act(self, views: Views, state: State, started: Any, noise: Any) -> Acted:
        """The likeliest action, or with noise a sample."""
        told = self.table(present(views.symbols, self.horizon, None, views.memory))
        behind = (told.max(1, keepdims=True) - told) / self.spread
        logits = (-SHARPNESS * behind.clip(0.0, 1.0)).astype(np.float32)
        actions = (logits if noise is None else logits + noise).argmax(1)
        return Acted(actions, logits, np.zeros((len(views), 0), np.float32), state)


def labelled(folder: Path) -> Path:
    """A program of the rules annotator, after random play."""
    play_config = CollectConfig("Crafter-Text-Reward", explorer="random", episodes=20, out=folder / "data")
    data = collect.run(play_config, Reporter())
    config = LabelConfig(
        dataset=data.path, variant="code", with_memory=True, out=folder / "labels", cache=folder / "cache"
    )
    return label.run(config, Reporter()).path


def measure(labels: Path, env_id: str, episodes: int, seeds: range) -> dict[str, float]:
    """Success rates of the program of a label run."""
    run = Run.open(labels, "label")
    dataset = Dataset.open(dataset_at(run, None))
    raw = read(run, dataset, shuffle=None)(0, Reporter()).raw
    table = raw.advises(len(env_spec(env_id).action_names))
    if table is None:
        raise SystemExit(f"The program of {labels} gives no advice; label a dataset of Crafter --with-memory.")
    rows = end_to_end(len(dataset.ages), ROWS)
    parts = [rows[start : start + BATCH] for start in range(0, len(rows), BATCH)]
    told = np.concatenate([table(dataset.windows(part, raw.reads.horizon).numbered()) for part in parts])
    agent, envs = (
        ProgramAgent(env_id, table, raw.reads.horizon, in_place(told)[1]),
        make_vec(env_id, min(ENVS, episodes)),
    )
    rates, unlocked = {}, []
    for seed in seeds:
        played = list(play(agent, envs, episodes, seed=derive_seed(seed, "evaluation")))
        rates[seed] = float(np.mean([one.success for one in played]))
        unlocked += [one.unlocked for one in played]
    envs.close()
    table.close()
    raw.close()
    interval = t_interval(np.array(list(rates.values())))
    by_seed = {f"seed_{seed}": rate for seed, rate in rates.items()}
    whole = {"success_rate": interval.estimate, "low": interval.low, "high": interval.high}
    score = {"score": float(geometric_score(np.mean(unlocked, axis=0)))} if np.size(unlocked) else {}
    return {**whole, **by_seed, **score, "episodes": episodes * len(seeds)}


def main() -> None:
    """Measure and print."""
    parser = parser_of(__doc__)
    parser.add_argument("labels", type=Path, nargs="?", help="a run of bkrl label")
    parser.add_argument("--env", default="Crafter-Text-MakeStonePickaxe", help="the task")
    parser.add_argument("--episodes", type=int, default=100, help="of each seed")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        labels = arguments.labels or labelled(Path(folder))
        few = (2, SEEDS[:2]) if arguments.quick else (arguments.episodes, SEEDS)
        show(measure(labels, arguments.env, *few), arguments.json)


if __name__ == "__main__":
    main()
