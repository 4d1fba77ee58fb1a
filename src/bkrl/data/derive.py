"""Datasets made of datasets: a few episodes of one, small enough to be sent or shipped, or all episodes of several."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bkrl.core.errors import InputError, RunFailed, UsageError
from bkrl.core.files import disk_is_full
from bkrl.core.reporter import Reporter
from bkrl.core.spacing import beginnings
from bkrl.data.dataset import Dataset
from bkrl.data.writer import DatasetWriter
from bkrl.runs.record import Run


def subset(source: Path, out: Path, episodes: int, reporter: Reporter | None = None) -> Run:
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
    config = {"env": dataset.env_id, "language": dataset.language, "episodes": episodes}
    run = Run.create(out, stage="collect", config=config, inputs={"dataset": source})
    return _copy([dataset], [chosen], run, reporter or Reporter(), subset_of=Path(source).name)


def merge(sources: Sequence[Path], out: Path, reporter: Reporter | None = None) -> Run:
    """Join datasets, in this order, into a run at `out`: all their episodes, numbered anew.

    Raises:
        InputError: a dataset is missing or damaged, they do not fit together, or an episode stands in two of them.
        UsageError: there are fewer than two, or `out` holds another run.
    """
    if len(sources) < 2:
        raise UsageError("Merging takes at least two datasets; name more of them.")
    datasets = [Dataset.open(source) for source in sources]
    for other in datasets[1:]:
        _check_fit(datasets[0], other)
    if not (out / "manifest.json").exists():
        _check_apart(datasets)
    first = datasets[0]
    whole = {"env": first.env_id, "language": first.language, "datasets": len(datasets)}
    read = {f"dataset {number}": path for number, path in enumerate(sources, 1)}
    run = Run.create(out, stage="collect", config=whole, inputs=read)
    everything = [np.arange(dataset.num_episodes) for dataset in datasets]
    return _copy(datasets, everything, run, reporter or Reporter(), merged=[Path(source).name for source in sources])


def _copy(
    datasets: Sequence[Dataset], chosen: Sequence[NDArray[np.int64]], run: Run, reporter: Reporter, **origin: object
) -> Run:
    """Write the chosen episodes of each dataset into a run, and finish it; `origin` is a fact about them."""
    info, texts = dict(datasets[0].info), datasets[0].episode_texts
    who = {one: None for data in datasets for one in data.explorers}
    if len(who) > 1 and "explorer" not in texts:
        info["episode_texts"] = texts = (*texts, "explorer")

    def episodes() -> Iterator[dict[str, Any]]:
        for data, numbers in zip(datasets, chosen, strict=True):
            for one, number in zip(data.recorded(numbers), numbers, strict=True):
                known = one["episode_texts"] | {"explorer": data.explorers[number]}
                yield {**one, "episode_texts": {name: known[name] for name in texts}}

    known = explored([dataset.run.facts for dataset in datasets])
    if all(who):
        known["explorer"] = ", ".join(who)
    return write(run, info, episodes(), sum(map(len, chosen)), reporter, origin, known)


def write(
    run: Run,
    info: Mapping[str, Any],
    episodes: Iterable[dict[str, Any]],
    count: int,
    reporter: Reporter,
    origin: Mapping[str, object],
    known: Mapping[str, object],
) -> Run:
    """Write `count` episodes, as `DatasetWriter.add_episode` takes them, into a run, and finish it.

    Args:
        info: what `info.json` says of their env.
        origin: facts about where they come from.
        known: facts about the exploring behind them, see `explored`.

    When anything but a full disk or `RunFailed` ends it, the run is removed: the next attempt begins anew.
    """
    if run.complete:
        reporter.say(f"{run.path} is already complete.")
        return run
    given = ("env_id", "obs_shape", "action_names", "texts", "episode_texts")
    others = {key: value for key, value in info.items() if key not in (*given, "schema_version")}
    writer = DatasetWriter(run, **{key: info[key] for key in given if key in info}, info=others)
    try:
        with reporter.progress("copy", count, "episodes") as update:
            for episode in episodes:
                writer.add_episode(**episode)
                update(writer.num_episodes)
        writer.close()
    except Exception as problem:
        if not disk_is_full(problem) and not isinstance(problem, RunFailed):  # those are gone on with
            run.discard()
        raise
    run.finish(
        writer.outputs,
        env_id=info["env_id"],
        **origin,
        recorded_episodes=writer.num_episodes,
        recorded_steps=int(writer.column("length").sum()),
        mean_return=float(writer.column("episode_return").mean()),
        success_rate=float(writer.column("success").mean()),
        **known,
    )
    return run


def explored(facts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What is known of the exploring behind some datasets.

    Who does not learn explored in the steps that it recorded.
    The steps are not called `steps`: nothing was explored here, and who adds up a chain of runs counts the explorers.
    """
    steps = [one.get("explorer_steps", one.get("steps", one.get("recorded_steps"))) for one in facts]
    free = [one.get("reward_free") for one in facts]
    known = {} if None in steps else {"explorer_steps": sum(steps)}
    return known if None in free else known | {"reward_free": all(free)}


def _check_fit(first: Dataset, other: Dataset) -> None:
    """InputError naming what sets two datasets apart so that they cannot be one."""
    facts = {
        "the family of envs": lambda data: data.info.get("family"),
        "the rules": lambda data: data.info.get("rules"),
        "the shape of observations": lambda data: data.obs_shape,
        "the actions": lambda data: data.action_names,
        "the language of captions": lambda data: data.language,
        "what else was recorded": lambda data: (data.texts, set(data.episode_texts) - {"explorer"}),
    }
    different = [name for name, of in facts.items() if of(first) != of(other)]
    if different:
        raise InputError(
            f"{first.path} and {other.path} do not fit together, because of {', '.join(different)}; merge what agrees "
            "in that."
        )


def _check_apart(datasets: Sequence[Dataset]) -> None:
    """InputError when an episode would come twice: parts of a dataset for training and testing would share it."""
    known: dict[bytes, Dataset] = {}
    seeds = [dataset.episodes.column("seed").to_numpy() for dataset in datasets]
    for number, dataset in enumerate(datasets):
        others = np.concatenate(seeds[:number] + seeds[number + 1 :])
        for episode in dataset.recorded(np.flatnonzero(np.isin(seeds[number], others))):
            digest = hashlib.sha256(str(episode["seed"]).encode())
            for name in ("observations", "actions"):
                digest.update(np.ascontiguousarray(episode[name]).tobytes())
            holder = known.setdefault(digest.digest(), dataset)
            if holder is not dataset:
                raise InputError(
                    f"{holder.path} and {dataset.path} hold the same episodes, as that of seed {episode['seed']}: one "
                    "is made of the other, or both were collected with one --seed; leave one of them out, or collect "
                    "one with another --seed."
                )
