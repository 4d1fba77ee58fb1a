"""Recorded experience, written: many episodes stand in a part of the table of steps, and an episode is never split."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bkrl.core.errors import InputError
from bkrl.core.files import atomic_write, to_json, write_table
from bkrl.data.schema import SCHEMA_VERSION, episodes_schema, part_name, steps_schema
from bkrl.runs.record import Run

# Observations compress well, captions too: this keeps a part's file far below 128 MB and its reading in memory.
PART_BYTES = 64 * 2**20
_NO_TEXTS: Mapping[str, Sequence[str]] = {}
_NO_EPISODE_TEXTS: Mapping[str, str] = {}
# A dataset card: with it, `datasets.load_dataset` finds the tables in the folder, and the Hugging Face hub shows them.
_CARD = Path(__file__).with_name("card.md")


class DatasetWriter:
    """Writes episodes into a run directory as they end; call `close()` and then `run.finish(writer.outputs)`.

    Parts of a recording that was cut short there are removed. `played_by`: who acted, for the dataset card.
    """

    def __init__(
        self,
        run: Run,
        *,
        env_id: str,
        obs_shape: Sequence[int],
        action_names: Sequence[str],
        info: Mapping[str, Any] | None = None,
        texts: Sequence[str] = (),
        episode_texts: Sequence[str] = (),
        played_by: str = "",
    ) -> None:
        self._run, self._played_by = run, played_by
        self._shape = tuple(obs_shape)
        self._info = {
            **(info or {}),
            "schema_version": SCHEMA_VERSION,
            "env_id": env_id,
            "obs_shape": list(obs_shape),
            "action_names": list(action_names),
            **({"texts": list(texts)} if texts else {}),
            **({"episode_texts": list(episode_texts)} if episode_texts else {}),
        }
        self._texts, self._episode_texts = tuple(texts), tuple(episode_texts)
        self._schema = steps_schema(self._shape, texts)
        self._columns: dict[str, list[Any]] = {name: [] for name in self._schema.names}
        self._bytes = 0
        self._part = 0
        self._rows_in_part = 0
        self._episodes_schema = episodes_schema(episode_texts)
        self._episodes: dict[str, list[Any]] = {name: [] for name in self._episodes_schema.names}
        self.outputs: list[str] = []
        shutil.rmtree(run.file("steps"), ignore_errors=True)
        run.file("steps").mkdir(exist_ok=True)

    @property
    def num_episodes(self) -> int:
        """Episodes written so far."""
        return len(self._episodes["episode_id"])

    def column(self, name: str) -> NDArray[Any]:
        """(E,) a column of the table of episodes, as it is written."""
        kind = self._episodes_schema.field(name).type
        return cast("NDArray[Any]", pa.array(self._episodes[name], kind).to_numpy(zero_copy_only=False))

    def add_episode(
        self,
        observations: NDArray[np.uint8],
        actions: NDArray[np.integer],
        rewards: NDArray[np.floating],
        captions: Sequence[str],
        *,
        mission: str | Sequence[str],
        terminated: bool,
        truncated: bool,
        success: bool,
        seed: int,
        checkpoint_step: int,
        texts: Mapping[str, Sequence[str]] = _NO_TEXTS,
        episode_texts: Mapping[str, str] = _NO_EPISODE_TEXTS,
    ) -> None:
        """Append an episode of T actions.

        Args:
            observations: (T+1, *obs_shape) uint8, the true final one included.
            actions: (T,); rewards: (T,); captions: T+1 strings.
            mission: one, or T+1 where it may change within the episode.
            seed: what the env was seeded with (it may have drawn several episodes since).
            checkpoint_step: environment steps the recorded policy had been trained for.
            texts: T+1 strings for each of the writer's `texts`.
            episode_texts: one for each of the writer's `episode_texts`.
        """
        length = len(actions)
        if length == 0:
            raise ValueError("an episode has at least one action")
        if observations.shape != (length + 1, *self._shape) or observations.dtype != np.uint8:
            raise ValueError(f"observations must be uint8 of shape {(length + 1, *self._shape)}")
        missions = [mission] * (length + 1) if isinstance(mission, str) else mission
        if len(rewards) != length or not len(captions) == len(missions) == length + 1:
            raise ValueError("rewards need one entry an action, captions and missions one an observation")
        if set(texts) != set(self._texts) or any(len(column) != length + 1 for column in texts.values()):
            raise ValueError(f"the texts {', '.join(self._texts) or '(none)'} need one entry an observation")
        if set(episode_texts) != set(self._episode_texts):
            raise ValueError(f"an episode needs the texts {', '.join(self._episode_texts) or '(none)'}")
        episode_id, rows = self.num_episodes, length + 1
        raw = np.ascontiguousarray(observations).reshape(rows, -1)
        last = np.arange(rows) == length
        columns = self._columns
        columns["episode_id"].append(np.full(rows, episode_id, np.int64))
        columns["step"].append(np.arange(rows, dtype=np.int32))
        columns["observation"].append(raw)
        columns["caption"].extend(captions)
        columns["mission"].extend(missions)
        columns["action"].append(np.append(actions, -1).astype(np.int32))
        columns["reward"].append(np.append(rewards, 0).astype(np.float32))
        columns["terminated"].append(last & terminated)
        columns["truncated"].append(last & truncated)
        for name, column in texts.items():
            columns[name].extend(column)
        described = (episode_id, seed, length, float(np.sum(rewards, dtype=np.float64)), success, terminated, truncated)
        others = (episode_texts[name] for name in self._episode_texts)
        row = (*described, checkpoint_step, self._part, self._rows_in_part, *others)
        for name, value in zip(self._episodes_schema.names, row, strict=True):
            self._episodes[name].append(value)
        self._rows_in_part += rows
        self._bytes += raw.nbytes + sum(map(len, captions))
        if self._bytes >= PART_BYTES:
            self._write_part()

    def close(self) -> None:
        """Write what is buffered, the table of episodes and the description."""
        if self._rows_in_part:
            self._write_part()
        write_table(self._run.file("episodes.parquet"), pa.table(self._episodes, schema=self._episodes_schema))
        atomic_write(self._run.file("info.json"), to_json(self._info))
        atomic_write(self._run.file("README.md"), self._card())
        self.outputs += ["episodes.parquet", "info.json", "README.md"]

    def _card(self) -> str:
        return _CARD.read_text("utf-8").format(
            **self._info | {"language": self._info.get("language", "en")},
            episodes=self.num_episodes,
            by=f", played by {self._played_by}," if self._played_by else ",",
            actions=", ".join(self._info["action_names"]),
            shape=", ".join(map(str, self._shape)),
        )

    def _write_part(self) -> None:
        columns = self._columns
        action = np.concatenate(columns["action"])
        is_last = action < 0
        raw = pa.array(np.concatenate(columns["observation"]).reshape(-1))
        arrays: dict[str, pa.Array] = {
            "episode_id": pa.array(np.concatenate(columns["episode_id"])),
            "step": pa.array(np.concatenate(columns["step"])),
            "observation": pa.FixedSizeListArray.from_arrays(raw, type=self._schema.field("observation").type),
            "action": pa.array(action, mask=is_last),
            "reward": pa.array(np.concatenate(columns["reward"]), mask=is_last),
            "terminated": pa.array(np.concatenate(columns["terminated"])),
            "truncated": pa.array(np.concatenate(columns["truncated"])),
        }
        for column in ("caption", "mission", *self._texts):  # entries in order of first appearance
            try:
                arrays[column] = pa.array(columns[column], pa.string()).dictionary_encode()
            except UnicodeEncodeError:
                raise InputError(f"A {column} of the env holds half a surrogate pair; have it give Unicode.") from None
        name = part_name(self._part)
        write_table(self._run.file(name), pa.table(arrays, schema=self._schema))
        self.outputs.append(name)
        self._columns = {column: [] for column in self._schema.names}
        self._bytes = self._rows_in_part = 0
        self._part += 1
