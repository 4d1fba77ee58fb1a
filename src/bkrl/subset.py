"""A few episodes of a dataset as a dataset of their own: small enough to be sent, tested on or shipped."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bkrl.dataset import Dataset, DatasetWriter
from bkrl.errors import UsageError
from bkrl.run import Run
from bkrl.spacing import beginnings


def subset(source: Path, out: Path, episodes: int) -> Run:
    """Copy `episodes` of a dataset, evenly spaced over it and so over its checkpoints, into a run at `out`.

    Half of them are solved ones, as far as there are solved and failed ones.

    Raises:
        InputError: the dataset is missing or damaged.
        UsageError: it has fewer episodes than are wanted, or `out` holds another run.
    """
    dataset = Dataset.open(source)
    if not 1 <= episodes <= dataset.num_episodes:
        raise UsageError(f"{source} has {dataset.num_episodes} episodes; ask for 1 to that many, not {episodes}.")
    solved, failed = np.flatnonzero(dataset.success), np.flatnonzero(~dataset.success)
    half = min(len(solved), max(episodes // 2, episodes - len(failed)))
    parts = (solved, half), (failed, episodes - half)
    chosen = np.sort(np.concatenate([those[beginnings(len(those), count)] for those, count in parts]))
    settings = {"env": dataset.env_id, "language": dataset.run.config["config"].get("language", "en")}
    run = Run.create(out, stage="collect", config={**settings, "episodes": episodes}, inputs={"dataset": source})
    if run.complete:
        return run
    info = {key: value for key, value in dataset.info.items() if key != "schema_version"}
    for key in ("env_id", "obs_shape", "action_names"):
        info.pop(key)
    writer = DatasetWriter(
        run, env_id=dataset.env_id, obs_shape=dataset.obs_shape, action_names=dataset.action_names, info=info
    )
    table = dataset.episodes.to_pydict()
    for episode in chosen.tolist():
        rows = np.arange(dataset.lengths[episode] + 1) + dataset.first_row[episode]
        writer.add_episode(
            dataset.observations[rows],
            dataset.actions[rows[:-1]],
            dataset.rewards[rows[:-1]],
            [dataset.caption(int(row)) for row in rows],
            mission=dataset.missions[episode],
            terminated=bool(table["terminated"][episode]),
            truncated=bool(table["truncated"][episode]),
            success=bool(table["success"][episode]),
            seed=int(table["seed"][episode]),
            checkpoint_step=int(table["checkpoint_step"][episode]),
        )
    writer.close()
    kept = {"recorded_episodes": len(chosen), "recorded_steps": int(dataset.lengths[chosen].sum())}
    facts = {key: value for key, value in dataset.run.facts.items() if key in ("steps", "reward_free")}
    run.finish(writer.outputs, env_id=dataset.env_id, subset_of=Path(source).name, **kept, **facts)
    return run
