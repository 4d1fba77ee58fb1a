"""Recorded experience, read: a run directory with `steps/part-*.parquet`, `episodes.parquet` and `info.json`.

Tables of labels point at steps with `Segment`s; nothing is ever rewritten. `writer` writes such a directory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NotRequired, TypedDict, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bkrl.core.errors import InputError, UsageError
from bkrl.core.files import read_json, read_table, sha256
from bkrl.core.flags import Flag
from bkrl.data.schema import LABEL, SCHEMA_VERSION, episodes_schema, part_name, steps_schema
from bkrl.data.windows import Windows, gather
from bkrl.envs import env_spec, memory_of
from bkrl.envs.memory import fold
from bkrl.runs.record import Run

# What the table of episodes says of one and its steps do not.
_KEPT = ("terminated", "truncated", "success", "seed", "checkpoint_step")


class Segment(NamedTuple):
    """`length` consecutive actions of one episode, and so `length` + 1 observations, from step `start` on."""

    episode_id: int
    start: int
    length: int


class Info(TypedDict):
    """info.json, as far as readers rely on it."""

    schema_version: int
    env_id: str
    obs_shape: list[Annotated[int, Flag("", least=1)]]
    action_names: list[str]
    family: NotRequired[str]
    rules: NotRequired[str]
    texts: NotRequired[list[str]]
    episode_texts: NotRequired[list[str]]


class Dataset:
    """A complete, verified dataset, read into arrays over its R rows when they are first asked for."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.path: Path = run.path
        self.info: Info = read_json(run.file("info.json"), Info)
        version = self.info["schema_version"]
        if version not in range(1, SCHEMA_VERSION + 1):
            raise InputError(
                f"{self.path} has schema version {version}, this bkrl reads 1 to {SCHEMA_VERSION}; update bkrl, or "
                "collect it again."
            )
        self.env_id: str = self.info["env_id"]
        self.obs_shape: tuple[int, ...] = tuple(self.info["obs_shape"])
        self.action_names: tuple[str, ...] = tuple(self.info["action_names"])
        self.texts: tuple[str, ...] = tuple(self.info.get("texts", ()))
        self.episode_texts: tuple[str, ...] = tuple(self.info.get("episode_texts", ()))
        self.episodes = read_table(run.file("episodes.parquet"), episodes_schema(self.episode_texts))
        if self.episodes.num_rows == 0:
            raise InputError(f"{self.path} holds no episodes; collect with more --episodes-per-checkpoint.")

    @classmethod
    def open(cls, path: Path) -> Dataset:
        """Open a collect run, verifying the manifest, every hash and the schema version; InputError otherwise."""
        return cls(Run.open(Path(path), "collect"))

    @property
    def manifest_sha256(self) -> str:
        """What identifies this dataset in other runs' manifests."""
        return sha256(self.path / "manifest.json")

    @property
    def language(self) -> str:
        """The language of the captions, "en" or "fr"."""
        return str(self.run.config["config"].get("language") or "en")

    @property
    def num_episodes(self) -> int:
        """E."""
        return int(self.episodes.num_rows)

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """(E,) actions in each episode."""
        return self._episode_column("length").astype(np.int64)

    @property
    def num_steps(self) -> int:
        """Actions in all episodes."""
        return int(self.lengths.sum())

    @cached_property
    def first_row(self) -> NDArray[np.int64]:
        """(E,) the row of each episode's first observation."""
        return np.concatenate([[0], np.cumsum(self.lengths + 1)[:-1]])

    @cached_property
    def returns(self) -> NDArray[np.float32]:
        """(E,) sum of the env's rewards."""
        return self._episode_column("episode_return")

    @cached_property
    def success(self) -> NDArray[np.bool_]:
        """(E,) whether the episode ended in success."""
        return self._episode_column("success")

    @cached_property
    def terminated(self) -> NDArray[np.bool_]:
        """(E,) whether the env ended the episode (and not the time limit)."""
        return self._episode_column("terminated")

    @cached_property
    def checkpoint_step(self) -> NDArray[np.int64]:
        """(E,) environment steps the recorded policy had been trained for."""
        return self._episode_column("checkpoint_step")

    @cached_property
    def explorers(self) -> list[str]:
        """(E,) who acted in each episode, "" where nothing says it."""
        if "explorer" in self.episode_texts:
            return cast("list[str]", self.episodes.column("explorer").to_pylist())
        facts = self.run.facts  # before explorers had names, the one that was trained kept its `checkpoints`
        return [str(facts.get("explorer", "rnd" if "checkpoints" in facts else ""))] * self.num_episodes

    @property
    def explorer(self) -> str:
        """All of them by name, "" where nothing says it."""
        return ", ".join(filter(None, dict.fromkeys(self.explorers)))

    @cached_property
    def task_kinds(self) -> list[str]:
        """(E,) the kind of each episode's task, "" where the env does not say it."""
        if "task_kind" not in self.episode_texts:
            return [""] * self.num_episodes
        return cast("list[str]", self.episodes.column("task_kind").to_pylist())

    @cached_property
    def missions(self) -> list[str]:
        """(E,) the first mission of each episode."""
        return cast("list[str]", self.row_missions[self.first_row].tolist())

    @cached_property
    def row_missions(self) -> NDArray[np.object_]:
        """(R,) the mission at each row: where sub-goals are shown it changes within an episode."""
        numbers, texts = self.text("mission")
        return np.array(texts, object)[numbers]

    @cached_property
    def observations(self) -> NDArray[np.uint8]:
        """(R, *obs_shape) uint8."""
        return _observations(self._steps, self.obs_shape)

    @cached_property
    def actions(self) -> NDArray[np.int64]:
        """(R,) the action taken at each row, -1 on an episode's last row."""
        return _actions(self._steps)

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        """(R,) what a bot would have done at each row, -1 on an episode's last; `actions` where none was asked."""
        if LABEL not in self.texts:
            return self.actions
        numbers, names = self.text(LABEL)
        return np.array([self.action_names.index(name) if name else -1 for name in names], np.int64)[numbers]

    @cached_property
    def rewards(self) -> NDArray[np.float32]:
        """(R,) the reward of that action, 0 on an episode's last row."""
        return _rewards(self._steps)

    @cached_property
    def ages(self) -> NDArray[np.int32]:
        """(R,) actions taken before each row in its episode."""
        return self._steps.column("step").to_numpy().astype(np.int32)

    @cached_property
    def episode_of_row(self) -> NDArray[np.int64]:
        """(R,) the episode of each row."""
        return self._steps.column("episode_id").to_numpy()

    @cached_property
    def caption_ids(self) -> NDArray[np.int32]:
        """(R,) index into `caption_texts`."""
        return self._captions[0]

    @cached_property
    def caption_texts(self) -> list[str]:
        """The distinct captions."""
        return self._captions[1]

    def text(self, name: str) -> tuple[NDArray[np.int32], list[str]]:
        """The column `name`, "mission" or one of `texts`: (R,) numbers of its distinct texts, and these."""
        return _texts(self._steps, name)

    def caption(self, row: int) -> str:
        """The caption of one row."""
        return self.caption_texts[self.caption_ids[row]]

    def rows(self, segment: Segment) -> NDArray[np.int64]:
        """(length + 1,) rows of a segment; InputError when the dataset has no such steps."""
        episode, start, length = segment
        if not 0 <= episode < self.num_episodes or start < 0 or start + length > self.lengths[episode]:
            raise InputError(f"{self.path} has no segment {tuple(segment)}; the labels belong to another dataset.")
        return np.arange(start, start + length + 1) + self.first_row[episode]

    def windows(self, rows: NDArray[np.int64], horizon: int) -> Windows:
        """The windows of H = `horizon` past actions that end at `rows`, (B,), with missions and memory at
        these.
        """
        rows = np.asarray(rows, np.int64)
        windows = gather(self.observations, self.actions, self.ages, rows, horizon)
        memory = None if self.memory is None else self.memory[rows]
        return replace(windows, missions=self.row_missions[rows], memory=memory)

    @cached_property
    def memory(self) -> NDArray[np.uint8] | None:
        """(R, M) what happened in each episode up to each row; None where nothing is remembered of them."""
        try:
            memory = memory_of(self.env_id) if env_spec(self.env_id).obs_shape == self.obs_shape else None
        except UsageError:
            return None
        return None if memory is None else fold(memory, self.observations, self.actions, self.first_row)

    def recorded(self, chosen: NDArray[np.int64]) -> Iterator[dict[str, Any]]:
        """Yield episodes as `DatasetWriter.add_episode` takes them; no more than one part is in memory at a time.

        Args:
            chosen: (K,) numbers of episodes, ascending.
        """
        parts = self._episode_column("part")[chosen]
        for part in np.unique(parts):
            schema = steps_schema(self.obs_shape, self.texts)
            table = read_table(self.run.file(part_name(part)), schema).unify_dictionaries()
            observations, actions, rewards = _observations(table, self.obs_shape), _actions(table), _rewards(table)
            captions, missions = _texts(table, "caption"), _texts(table, "mission")
            others = {name: _texts(table, name) for name in self.texts}
            for episode in self.episodes.take(pa.array(chosen[parts == part])).to_pylist():
                rows = slice(episode["row_start"], episode["row_start"] + episode["length"] + 1)
                yield {
                    "observations": observations[rows],
                    "actions": actions[rows][:-1],
                    "rewards": rewards[rows][:-1],
                    "captions": [captions[1][number] for number in captions[0][rows]],
                    "mission": [missions[1][number] for number in missions[0][rows]],
                    "texts": {name: [known[i] for i in numbers[rows]] for name, (numbers, known) in others.items()},
                    "episode_texts": {name: episode[name] for name in self.episode_texts},
                    **{name: episode[name] for name in _KEPT},
                }

    def beginning(self, count: int) -> tuple[str, list[tuple[int, str, str, float]]]:
        """What the first episode is, and its first `count` steps: step, caption, action, reward."""
        [first] = self.recorded(np.zeros(1, np.int64))
        mission = f", whose mission is: {first['mission'][0]}" if first["mission"][0] else ""
        names = [self.action_names[action] for action in first["actions"][:count].tolist()]
        parts = zip(range(count), first["captions"], names, first["rewards"].tolist(), strict=False)
        return f"The first of {self.num_episodes:,} episodes{mission}", list(parts)

    @cached_property
    def _steps(self) -> pa.Table:
        names = sorted(name for name in self.run.manifest["outputs"] if name.startswith("steps/"))
        schema = steps_schema(self.obs_shape, self.texts)
        table = pa.concat_tables([read_table(self.run.file(name), schema) for name in names]).unify_dictionaries()
        expected = int((self.lengths + 1).sum())
        if table.num_rows != expected:
            raise InputError(
                f"{self.path} has {table.num_rows} step rows, its episodes need {expected}; collect again."
            )
        return table

    @cached_property
    def _captions(self) -> tuple[NDArray[np.int32], list[str]]:
        return _texts(self._steps, "caption")

    def _episode_column(self, name: str) -> NDArray[Any]:
        return self.episodes.column(name).to_numpy()


def _observations(table: pa.Table, shape: Sequence[int]) -> NDArray[np.uint8]:
    """(R, *shape) uint8 of a table of steps."""
    column, width = table.column("observation"), prod(shape)
    if pa.types.is_fixed_size_binary(column.type):  # schema version 1
        flat = [
            np.frombuffer(chunk.buffers()[1], np.uint8)[chunk.offset * width : (chunk.offset + len(chunk)) * width]
            for chunk in column.chunks
        ]
    else:
        flat = [chunk.flatten().to_numpy() for chunk in column.chunks]
    return np.concatenate(flat).reshape(-1, *shape)


def _actions(table: pa.Table) -> NDArray[np.int64]:
    """(R,), -1 on an episode's last row."""
    return table.column("action").fill_null(-1).to_numpy().astype(np.int64)


def _rewards(table: pa.Table) -> NDArray[np.float32]:
    """(R,), 0 on an episode's last row."""
    return table.column("reward").fill_null(0.0).to_numpy().astype(np.float32)


def _texts(table: pa.Table, name: str) -> tuple[NDArray[np.int32], list[str]]:
    """(R,) numbers of the texts in a column, and the distinct texts."""
    column = table.column(name).combine_chunks()
    array = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
    return array.indices.to_numpy().astype(np.int32), array.dictionary.to_pylist()
