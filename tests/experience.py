"""Small synthetic datasets for tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bkrl.dataset import DatasetWriter
from bkrl.run import Run


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
) -> list[dict[str, Any]]:
    """A complete collect run of random episodes; what was written, episode by episode.

    Episode 0 succeeds, episode 1 is truncated, the others terminate.
    """
    rng = np.random.default_rng(0)
    run = Run.create(path, stage="collect", config=Config())
    writer = DatasetWriter(run, env_id=env_id, obs_shape=shape, action_names=action_names, info={"language": "en"})
    episodes = []
    for i, length in enumerate(lengths):
        episode = {
            "observations": rng.integers(0, 255, (length + 1, *shape)).astype(np.uint8),
            "actions": rng.integers(0, len(action_names), length),
            "rewards": rng.random(length).astype(np.float32),
            "captions": [f"caption {j % 2}" for j in range(length + 1)],
        }
        writer.add_episode(
            **episode, mission=f"go {i}", terminated=i != 1, truncated=i == 1, success=i == 0, seed=7, checkpoint_step=i
        )
        episodes.append(episode)
    writer.close()
    run.finish(writer.outputs)
    return episodes
