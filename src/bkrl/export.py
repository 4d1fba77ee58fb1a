"""Datasets looked at, checked through and through, and written in other libraries' formats."""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from bkrl.dataset import Dataset
from bkrl.errors import InputError, UsageError
from bkrl.files import make_folder


def validate(path: Path) -> dict[str, Any]:
    """Check every rule the schema states and return what the dataset holds; InputError names the first broken rule."""
    data = Dataset.open(path)
    last = data.first_row + data.lengths
    rules = {
        "episode ids are not 0, 1, 2, …": (
            data.episodes.column("episode_id").to_numpy() == np.arange(data.num_episodes)
        ),
        "an episode's rows do not stand together": data.episode_of_row
        == np.repeat(np.arange(data.num_episodes), data.lengths + 1),
        "step numbers do not count up from 0": data.ages
        == np.arange(len(data.ages)) - np.repeat(data.first_row, data.lengths + 1),
        "a last row has an action": data.actions[last] == -1,
        "a row that is not the last has no action": (data.actions >= 0) | np.isin(np.arange(len(data.actions)), last),
        "an action is out of range": data.actions < len(data.action_names),
        "a reward is not finite": np.isfinite(data.rewards),
        "an episode's return is not the sum of its rewards": np.isclose(
            np.add.reduceat(data.rewards.astype(np.float64), data.first_row), data.returns, rtol=1e-4, atol=1e-5
        ),
        "an episode neither terminated nor was truncated": data.terminated
        | data.episodes.column("truncated").to_numpy(),
    }
    for sentence, holds in rules.items():
        if not np.all(holds):
            raise InputError(f"{path} is not valid: {sentence} (first at {int(np.argmin(holds))}); collect it again.")
    return {
        "env": data.env_id,
        "episodes": data.num_episodes,
        "steps": data.num_steps,
        "success_rate": float(data.success.mean()),
        "mean_return": float(data.returns.mean()),
        "mean_length": float(data.lengths.mean()),
        "distinct_captions": len(data.caption_texts),
        "observation": f"uint8 {data.obs_shape}",
        "actions": ", ".join(data.action_names),
        "valid": True,
    }


def head(path: Path, episode: int, rows: int) -> tuple[list[str], list[list[Any]]]:
    """The first `rows` steps of an episode as a table: step, action, reward, caption."""
    data = Dataset.open(path)
    if episode >= data.num_episodes:
        raise UsageError(f"{path} has {data.num_episodes} episodes, numbered from 0; there is no episode {episode}.")
    first = int(data.first_row[episode])
    table = []
    for row in range(first, first + min(rows, int(data.lengths[episode]) + 1)):
        action = int(data.actions[row])
        name = data.action_names[action] if action >= 0 else ""
        table.append([row - first, name, float(data.rewards[row]), data.caption(row)])
    return ["step", "action", "reward", "caption"], table


def to_minari(path: Path, out: Path) -> dict[str, Any]:
    """Write a dataset as a Minari dataset folder (needs the `minari` extra).

    Minari keeps its datasets under one root by name; `out` becomes that dataset's folder. Nothing is left behind
    when it fails.
    """
    try:
        import minari
        from gymnasium import spaces
        from minari.data_collector.episode_buffer import EpisodeBuffer
    except ImportError:
        raise UsageError("Minari is not installed; run `pip install 'bkrl[minari]'`.") from None
    data = Dataset.open(path)
    if out.exists():
        raise UsageError(f"{out} exists; name a new folder with --out.")
    truncated = data.episodes.column("truncated").to_pylist()
    buffers = []
    for e in range(data.num_episodes):
        first, length = int(data.first_row[e]), int(data.lengths[e])
        done = np.zeros(length, bool)
        done[-1] = bool(data.terminated[e])
        steps = slice(first, first + length)
        buffers.append(
            EpisodeBuffer(
                id=e,
                observations=list(data.observations[first : first + length + 1]),
                actions=list(data.actions[steps]),
                rewards=[float(r) for r in data.rewards[steps]],
                terminations=list(done),
                truncations=[*([False] * (length - 1)), truncated[e]],
                infos={},
            )
        )
    out = out.absolute()  # Minari joins a relative root twice
    make_folder(out.parent)
    previous = os.environ.get("MINARI_DATASETS_PATH")
    try:
        folder = tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.")
    except OSError as error:
        raise UsageError(f"{out} cannot be made ({error.strerror}); choose another --out.") from None
    with folder as scratch, warnings.catch_warnings():
        os.environ["MINARI_DATASETS_PATH"] = scratch
        try:
            # Minari asks for an environment to evaluate in and for its spec; a recording has neither.
            warnings.filterwarnings("ignore", module="minari")
            minari.create_dataset_from_buffers(
                dataset_id="bkrl/export-v0",
                buffer=buffers,
                observation_space=spaces.Box(0, 255, data.obs_shape, np.uint8),
                action_space=spaces.Discrete(len(data.action_names)),
                algorithm_name="PPO + RND",
                description=f"{data.env_id}, collected with bkrl",
                author="bkrl",
                author_email="none",
                code_permalink="none",
                data_format="arrow",
            )
        finally:
            if previous is None:
                del os.environ["MINARI_DATASETS_PATH"]
            else:
                os.environ["MINARI_DATASETS_PATH"] = previous
        shutil.move(Path(scratch) / "bkrl" / "export-v0", out)
    return {"episodes": data.num_episodes, "steps": data.num_steps, "format": "Minari"}
