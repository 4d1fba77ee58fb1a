"""Whole studies made of thin air: run directories as the stages write them, with curves of our choosing."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from markupsafe import Markup
from PIL import Image

from bkrl.core.config import CollectConfig, EvaluateConfig
from bkrl.core.files import atomic_write, to_json, write_table
from bkrl.core.reporter import Reporter
from bkrl.data.schema import GOALS, PREFERENCES, PROGRAMS, RESPONSES
from bkrl.data.writer import DatasetWriter
from bkrl.labelers.config import LabelConfig
from bkrl.methods import TrainRsConfig
from bkrl.potentials.config import TrainRmConfig
from bkrl.report.plots.draw import Drawing
from bkrl.runs.record import Run

RED, KEY = "BabyAI-Text-GoToLocal-RedBall-S20", "BabyAI-Text-GoToLocal-PurpleKey-S20"
CRAFTER = "Crafter-Text-PlaceCraftingTable"
EVIL = "</script><script>alert('x')</script><img src=x onerror=alert(1)> & \"quoted\""
PROGRAM = 'def potential(observations, actions, valid):\n    # <b>near</b> a ball\n    return "s" * 3 if 1.5 else 0\n'
STEPS = np.arange(0, 1_000_001, 50_000)


@dataclass
class Listener(Reporter):
    warnings: list[str] = field(default_factory=list)

    def warn(self, text: str) -> None:
        self.warnings.append(text)


@contextmanager
def unpictured() -> Iterator[None]:
    """Reports have empty pictures: half of the time, where a test asks for words and numbers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bkrl.stages.report.write_png", lambda path, *_, **__: path.write_bytes(b""))
        drawing = Drawing(Markup("<svg></svg>"), (), (), (0.0, 1.0))
        patch.setattr("bkrl.report.plots.figures.draw", lambda *_, **__: drawing)
        yield


def collect(
    root: Path, env: str = "BabyAI-Text-GoToLocal-Pretraining-S20", seed: int = 1, env_id: str = "", clock: float = 0
) -> Path:
    """Experience; `env_id`: the env as the manifest has it, where it is spelt otherwise there; `clock`: what stands in
    the metrics of exploring as a time, where it is not 0.
    """
    config = CollectConfig(env=env, out=root / "data", steps=200_000, seed=seed)
    run = Run.create(root / "data", stage="collect", config=config)
    if clock:
        run.log(0, **{"time/sps": clock})
    writer = DatasetWriter(run, env_id=env, obs_shape=(7, 7, 3), action_names=("left", "right", "forward"))
    rng = np.random.default_rng(0)
    for episode in range(4):
        writer.add_episode(
            rng.integers(0, 9, (9, 7, 7, 3)).astype(np.uint8),
            rng.integers(0, 3, 8),
            np.zeros(8),
            [f"You see a ball {i} steps forward. {EVIL}" for i in range(9)],
            mission="",
            terminated=True,
            truncated=False,
            success=episode % 2 == 0,
            seed=episode,
            checkpoint_step=0,
        )
    writer.close()
    run.finish(writer.outputs, env_id=env_id or env, steps=200_000, recorded_episodes=4)
    return run.path


def responses(run: Run, replies: list[str]) -> None:
    rows = [dict.fromkeys(RESPONSES.names) | {"request_id": i, "reply": r} for i, r in enumerate(replies)]
    write_table(run.file("responses.parquet"), pa.Table.from_pylist(rows, schema=RESPONSES))


def label(
    root: Path,
    variant: str,
    llm: str = "rules",
    dataset: Path | None = None,
    seed: int = 1,
    criteria: str = "overall",
    score: str = "none",
    **facts: str,
) -> Path:
    dataset = dataset or root / "data"
    config = LabelConfig(dataset, variant, root / f"label-{variant}", llm, criteria=criteria, score=score, seed=seed)
    run = Run.create(config.run_dir, stage="label", config=config, inputs={"dataset": dataset})
    segment = {"episode_id": 0, "start": 1, "length": 3}
    if variant == "pref":
        name, schema = "preferences.parquet", PREFERENCES
        table = [
            {
                "pair_id": i,
                "a_episode_id": 0,
                "a_start": 0,
                "b_episode_id": 1,
                "b_start": 2,
                "length": 5,
                "label": value,
            }
            | {"status": "labelled", "votes_a": 1, "votes_b": 0, "votes_tie": 0, "votes_invalid": 0, "request_ids": [i]}
            for i, value in enumerate((1.0, 0.0, 0.5))
        ]
        responses(run, [f"The first one. {EVIL}"] * 3)
    elif variant == "goal":
        name, schema = "goals.parquet", GOALS
        table = [
            {"query_id": i, **segment, "caption": f"You see a key. {EVIL}", "goal": f"go to the key {EVIL}"}
            | {"goal_id": 0, "status": "ok", "request_id": i}
            for i in range(3)
        ]
        responses(run, ["goals"] * 3)
    else:
        name, schema = "programs.parquet", PROGRAMS
        table = [
            {"candidate_id": i, "round": i, "program": PROGRAM, "status": "ok", "error": None, "score": 0.5 + i / 4}
            | {"score_details": None, "chosen": i == 1, "request_id": i}
            for i in range(2)
        ]
        responses(run, ["program"] * 2)
    write_table(run.file(name), pa.Table.from_pylist(table, schema=schema))
    run.finish(
        ["responses.parquet", name],
        variant=variant,
        env_id="BabyAI-Text-GoToLocal-Pretraining-S20",
        llm=llm,
        annotator="rules (hand-written heuristics, not a language model)" if llm == "rules" else llm,
        usage={"requests": 3, "sent": 2, "cached": 1, "prompt_tokens": 700, "completion_tokens": 77},
        quality={"tie": {"rate": 0.25, "low": 0.2, "high": 0.3, "n": 100}, "note": EVIL},
        **facts,
    )
    return run.path


def train_rm(root: Path, variant: str, control: str = "none", dataset: Path | None = None, **settings: Any) -> Path:
    """A potential; `training`: what its making found; `name`: of its folder."""
    training = settings.pop("training", {"accuracy": 0.8})
    out = root / settings.pop("name", f"rm-{variant}" + ("" if control == "none" else f"-{control}"))
    labels = root / f"label-{variant}"
    config = TrainRmConfig(labels=labels, out=out, control=control, **settings)
    inputs = {"labels": labels, "dataset": dataset or root / "data"}
    run = Run.create(out, stage="train-rm", config=config, inputs=inputs)
    example = {"episode": 0, "success": True, "return": 1.0, "first_step": 3, "phi": [-1.0, -0.4, 0.0]}
    quality = {
        "kind": variant,
        "control": control,
        "coverage": 0.75,
        "phi": {"mean": -0.5, "quantiles": {"50": -0.4}},
        "training": {},
        "examples": [example | {"captions": [EVIL] * 3, "actions": ["left", "forward"]}],
    }
    atomic_write(run.file("potential_report.json"), to_json(quality))
    checks = [{"name": "finite", "passed": True, "detail": "all"}, {"name": "units", "passed": False, "detail": EVIL}]
    without = {"present": "no windows " + EVIL}
    atomic_write(run.file("certificate.json"), to_json({"passed": False, "checks": checks, "not_applicable": without}))
    run.finish(
        ["potential_report.json", "certificate.json"],
        variant=variant,
        kind=variant,
        control=control,
        env_id="BabyAI-Text-GoToLocal-Pretraining-S20",
        llm="rules",
        training=training,
    )
    return run.path


def curve(half: float, seed: int, last: int = len(STEPS)) -> list[tuple[int, float]]:
    """Success that passes one half at `half` steps, a little earlier or later by seed."""
    half = half * (1 + 0.04 * ((seed * 7) % 5 - 2))
    return [(int(s), float(1 / (1 + np.exp(-(s - half) / 60_000)))) for s in STEPS[:last]]


def train_rs(
    root: Path,
    alg: str,
    seed: int,
    half: float = 500_000,
    env: str = RED,
    potential: Path | None = None,
    **settings: Any,
) -> Path:
    """A training run; `facts` are added to its manifest, other settings go to its config."""
    facts, seconds = settings.pop("facts", {}), settings.pop("seconds", 1.0)
    out = root / settings.pop("name", f"{alg}-{env[-12:]}-s{seed}")
    last = settings.pop("last", len(STEPS))
    if potential is not None:
        settings["potential"] = potential
    config = TrainRsConfig(alg=alg, env=env, seed=seed, out=out, **settings)
    given = {"potential": potential, **{name: getattr(config, name, None) for name in ("init_from", "data")}}
    inputs = {name: path for name, path in given.items() if path is not None}
    run = Run.create(out, stage="train-rs", config=config, inputs=inputs)
    for step, value in curve(half, seed, last):
        run.log(step, **{"eval/success_rate": value, "eval/return": 0.9 * value, "eval/length": 400 - 300 * value})
        run.log(step, **{"time/rollout": seconds, "time/sps": 9000.0 / seconds})
    atomic_write(run.file("policy.json"), "{}\n")
    known = {"alg": alg, "env_id": env, "steps": 1_000_000, "success_rate": value}
    run.finish(["policy.json"], **{**known, **facts})
    return run.path


def evaluate(root: Path, policy: Path, env: str = RED, alg: str = "bk-code") -> Path:
    out = root / f"eval-{policy.name}"
    run = Run.create(out, stage="evaluate", config=EvaluateConfig(policy=policy, out=out), inputs={"policy": policy})
    buffer = io.BytesIO()
    frames = [Image.new("RGB", (64, 64), colour) for colour in ("#204060", "#406080")]
    frames[0].save(buffer, format="GIF", save_all=True, append_images=frames[1:], duration=100, loop=0)
    run.file("gifs").mkdir()
    atomic_write(run.file("gifs/sampled-0.gif"), buffer.getvalue())
    scores = {
        "success_rate": {"mean": 0.9, "low": 0.8, "high": 0.95},
        "return": {"mean": 0.7},
        "length": {"mean": 50.0},
    }
    run.finish(["gifs/sampled-0.gif"], env_id=env, alg=alg, episodes=100, modes={"sampled": scores})
    return run.path


def study(root: Path, seeds: range = range(1, 9), seconds: float = 1.0) -> list[Path]:
    """PPO, two methods of different worth and a control, on one env, with everything they rest on."""
    collect(root)
    for variant in ("pref", "goal", "code"):
        label(root, variant)
        train_rm(root, variant)
    train_rm(root, "pref", "shuffled")
    runs = []
    for seed in seeds:
        runs += [
            train_rs(root, "ppo", seed, 600_000, seconds=seconds),
            train_rs(root, "bk-code", seed, 200_000, potential=root / "rm-code"),
            train_rs(root, "bk-goal", seed, 900_000, potential=root / "rm-goal"),
            train_rs(root, "bk-pref", seed, 595_000 + 10_000 * (seed % 2), potential=root / "rm-pref"),
            train_rs(root, "bk-pref", seed, 600_000, potential=root / "rm-pref-shuffled", name=f"shuffled-s{seed}"),
        ]
    runs.append(evaluate(root, runs[1]))
    return runs
