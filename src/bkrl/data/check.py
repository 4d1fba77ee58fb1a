"""Datasets checked through and through."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from bkrl.core.errors import InputError
from bkrl.data.dataset import Dataset


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
        "explorer": data.explorer or None,
        "episodes": data.num_episodes,
        "steps": data.num_steps,
        "success_rate": float(data.success.mean()),
        "mean_return": float(data.returns.mean()),
        "mean_length": float(data.lengths.mean()),
        "distinct_captions": len(data.caption_texts),
        "distinct_missions": len(data.text("mission")[1]),
        "task_kinds": {kind: count for kind, count in sorted(Counter(data.task_kinds).items()) if kind},
        "observation": f"uint8 {data.obs_shape}",
        "actions": ", ".join(data.action_names),
        "valid": True,
    }
