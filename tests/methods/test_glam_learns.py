"""Small language models learn by PPO to go to what the mission names; one that has learnt answers needs fewer steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bkrl.core.config import CollectConfig, LmMakeConfig
from bkrl.core.reporter import Reporter
from bkrl.methods import TrainRsConfig
from bkrl.methods.glam import LMConfig
from bkrl.stages import collect, lm_make, train_rs

ENV = "BabyAI-MixedTrainLocal-v0@task_kinds=goto,room_size=5,num_dists=1,actions=restricted"
SEEDS = (1, 2, 3)
MARGIN = 0.1
"""So much more often than random play a model with random weights succeeds in the end, in the mean over seeds."""
THRESHOLD = 0.65


@pytest.mark.slow
def test_small_models_beat_random_play_and_one_that_has_learnt_answers_needs_fewer_steps(tmp_path: Path) -> None:
    shown = {
        who: collect.run(CollectConfig(env=ENV, explorer=who, episodes=300, out=tmp_path / who), Reporter()).path
        for who in ("random", "bot")
    }
    read, both = (shown["random"],), (shown["random"], shown["bot"])
    made = {
        "P0": LmMakeConfig(size="d32", steps=0, from_=read, out=tmp_path / "P0"),
        "P2": LmMakeConfig(
            size="d32", steps=1000, from_=both, clone=shown["bot"], clone_episodes=30, clone_steps=300,
            out=tmp_path / "P2",
        ),
    }  # fmt: skip
    how = {"env": ENV, "steps": 7680, "eval_every": 2560, "eval_episodes": 200}
    curves: dict[str, list[list[float]]] = {}
    for name, config in made.items():
        lm = LMConfig(lm_make.run(config, Reporter()).path.as_posix(), window=1, prompt="lamorel")
        for seed in SEEDS:
            out = tmp_path / f"{name}-{seed}"
            run = train_rs.run(TrainRsConfig(alg="glam", lm=lm, seed=seed, out=out, **how), Reporter())
            found = [row["eval/success_rate"] for row in run.metrics() if "eval/success_rate" in row]
            curves.setdefault(name, []).append(found)
    plain = TrainRsConfig(**{**how, "alg": "random", "steps": 200, "eval_every": 200}, out=tmp_path / "play")
    chance = train_rs.run(plain, Reporter()).facts["success_rate"]
    curve = {name: np.mean(rows, axis=0) for name, rows in curves.items()}
    assert curve["P0"][-1] > chance + MARGIN, (curve, chance)
    first = {name: int(np.argmax(rows > THRESHOLD)) for name, rows in curve.items()}
    assert curve["P2"][first["P2"]] > THRESHOLD
    assert first["P2"] < (first["P0"] if curve["P0"].max() > THRESHOLD else len(curve["P0"])), curve
