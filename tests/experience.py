"""Small synthetic datasets for tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bkrl import envs
from bkrl.data.writer import DatasetWriter
from bkrl.runs.record import Run


@dataclass(frozen=True)
class Config:
    """What a collect run would have been asked for."""

    seed: int = 1


def write_dataset(
    path: Path,
    lengths: Sequence[int] = (3, 1, 5),
    shape: Sequence[int] = (2, 3),
    env_id: str = "Toy",
    action_names: Sequence[str] = ("a", "b"),
    checkpoints: int = 0,
    texts: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """A complete collect run of random episodes; what was written, episode by episode.

    Episode 0 succeeds, episode 1 is truncated, the others terminate. Each is of a checkpoint of its own, or all are
    spread evenly over `checkpoints`, in order.
    """
    rng = np.random.default_rng(0)
    run = Run.create(path, stage="collect", config=Config())
    info = {"language": "en"}
    writer = DatasetWriter(run, env_id=env_id, obs_shape=shape, action_names=action_names, info=info, texts=texts)
    episodes = []
    for i, length in enumerate(lengths):
        episode = {
            "observations": rng.integers(0, 255, (length + 1, *shape)).astype(np.uint8),
            "actions": rng.integers(0, len(action_names), length),
            "rewards": rng.random(length).astype(np.float32),
            "captions": [f"caption {j % 2}" for j in range(length + 1)],
        }
        writer.add_episode(
            **episode,
            mission=f"go {i}",
            terminated=i != 1,
            truncated=i == 1,
            success=i == 0,
            seed=7,
            checkpoint_step=i * checkpoints // len(lengths) if checkpoints else i,
            texts={name: [f"{name} {(i + j) % 2}" for j in range(length + 1)] for name in texts},
        )
        episodes.append(episode)
    writer.close()
    run.finish(writer.outputs)
    return episodes


def views(rng: np.random.Generator, family: str, count: int) -> np.ndarray:
    """Observations that could have been seen: a few things in an empty room, or in a meadow."""
    if family == "babyai":
        views = np.zeros((count, 7, 7, 3), np.uint8)
        views[..., 0] = 1
        for number in range(count):
            for _ in range(rng.integers(0, 3)):
                x, y = rng.integers(0, 7), rng.integers(0, 6)
                views[number, x, y] = (rng.integers(5, 8), rng.integers(0, 6), 0)
        return views
    from bkrl.envs.crafter import layout

    rows = np.full((count, layout.SIZE), 2, np.uint8)
    rows[:, layout.VIEW] = rng.choice([2, 2, 2, 1, 3, 6, 14], (count, layout.VIEW.stop))
    rows[:, layout.PLAYER_CELL] = layout.CELL["player"]
    rows[:, layout.FACING] = rng.integers(0, 4, count)
    rows[:, layout.INVENTORY] = rng.integers(0, 10, (count, 16)) * rng.integers(0, 2, (count, 16))
    rows[:, layout.INDEX["health"]] = 9
    rows[:, layout.SLEEPING], rows[:, layout.DAYLIGHT] = 0, 255
    return rows


def write_env(path: Path, env_id: str, episodes: int = 12, length: int = 15) -> Path:
    """A complete collect run of a real env: made-up views, the env's own captions; every other episode succeeds."""
    env_spec, caption, rng = envs.env_spec(env_id), envs.captioner(env_id), np.random.default_rng(1)
    run_ = Run.create(path, stage="collect", config=Config())
    writer = DatasetWriter(run_, env_id=env_id, obs_shape=env_spec.obs_shape, action_names=env_spec.action_names)
    for episode in range(episodes):
        observations = views(rng, env_spec.family, length + 1)
        rewards = np.zeros(length, np.float32)
        rewards[-1] = episode % 2
        writer.add_episode(
            observations,
            rng.integers(0, len(env_spec.action_names), length),
            rewards,
            caption(observations),
            mission="go to the red ball",
            terminated=bool(episode % 2),
            truncated=not episode % 2,
            success=bool(episode % 2),
            seed=episode,
            checkpoint_step=episode // 4,
        )
    writer.close()
    run_.finish(writer.outputs)
    return path
