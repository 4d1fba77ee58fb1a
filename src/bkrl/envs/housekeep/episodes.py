"""Episodes: where the agent starts, and which things lie where in which layout of a house."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import numpy as np

from bkrl.core.documents import Mismatch, typed
from bkrl.core.errors import InputError, UsageError
from bkrl.core.files import read_table
from bkrl.core.flags import Flag
from bkrl.envs.housekeep.labels import holders, labels
from bkrl.envs.housekeep.layout import SLOTS
from bkrl.envs.housekeep.tables import models, scene, table, votes


class HouseEpisode(NamedTuple):
    """One episode.

    Attributes:
        scene: name of the house.
        split: "train", "val" or "test".
        number: position in its file.
        seen: whether its classes of objects are of the train split.
        reduced: whether some receptacles are absent.
        start: x, z and yaw (degrees) of the agent.
        models: of each thing, misplaced ones first; at most 10.
        receptacles: on which each lies.
        misplaced: how many of them are.
        oracle_steps: moves of Housekeep's own oracle; 0 where it is not known.
    """

    scene: str
    split: str
    number: int
    seen: bool
    reduced: bool
    start: tuple[float, float, float]
    models: tuple[int, ...]
    receptacles: tuple[int, ...]
    misplaced: int
    oracle_steps: int


@cache
def shipped(name: str) -> tuple[HouseEpisode, ...]:
    """The original episodes of a scene; none for scenes whose files the source does not hold."""
    columns = _columns()
    return tuple(_episode(columns, i) for i, other in enumerate(columns["scene"]) if other == name)


@cache
def _columns() -> dict[str, list[Any]]:
    return table("episodes")


def _episode(columns: dict[str, list[Any]], i: int) -> HouseEpisode:
    one = {name: column[i] for name, column in columns.items()}
    return HouseEpisode(
        one["scene"],
        one["split"],
        one["episode"],
        one["seen"],
        one["dropout"],
        (one["start_x"], one["start_z"], float(one["start_yaw_deg"])),
        tuple(one["model_id"]),
        tuple(one["start_receptacle"]),
        one["misplaced_count"],
        one["oracle_steps_solve"],
    )


@cache
def scenes_with_episodes(split: str = "") -> tuple[str, ...]:
    """The scenes that have original episodes, of one split or of all."""
    columns = _columns()
    pairs = dict.fromkeys(zip(columns["scene"], columns["split"], strict=True))
    return tuple(name for name, of in pairs if split in ("", of))


class _Row(TypedDict):
    """The columns of a file that an episode is read from."""

    scene: str
    split: Literal["train", "val", "test"]
    episode: Annotated[int, Flag("", least=0)]
    seen: bool
    dropout: bool
    start_x: float
    start_z: float
    start_yaw_deg: Annotated[int, Flag("", least=0, most=359)]
    model_id: list[int]
    start_receptacle: list[int]
    misplaced_count: int
    oracle_steps_solve: Annotated[int, Flag("", least=0)]


def read_episodes(path: Path) -> tuple[HouseEpisode, ...]:
    """Episodes from a file of `bkrl data make-episodes`; InputError where one cannot be played."""
    columns = read_table(path).to_pydict()
    mine = {name: columns[name] for name in _Row.__annotations__ if name in columns}
    try:
        for i in range(len(mine.get("scene", []))):
            typed(_Row, {name: column[i] for name, column in mine.items()})
    except Mismatch as wrong:
        raise InputError(f"Episode {i} of {path}: {wrong}; make it with `bkrl data make-episodes`.") from None
    if not mine.get("scene"):
        raise InputError(f"{path} holds no episodes; make it with `bkrl data make-episodes`.")
    found = tuple(_episode(mine, i) for i in range(len(mine["scene"])))
    for one in found:
        check(one, str(path))
    return found


def check(one: HouseEpisode, where: str) -> None:
    """InputError where an episode names what there is not, or a receptacle that nothing can lie on."""
    try:
        known = scene(one.scene)
    except UsageError as wrong:
        raise InputError(f"Episode {one.number} of {where}: {wrong}") from None
    there = holders(one.scene) & labels(one.scene, one.reduced).present
    fits = 1 <= one.misplaced <= len(one.models) == len(one.receptacles) <= SLOTS
    if not fits or not all(0 <= model < len(models().object) for model in one.models):
        raise InputError(
            f"Episode {one.number} of {where} has {len(one.models)} things, {one.misplaced} of them misplaced; it "
            f"needs 1 to {SLOTS} known ones, each on a receptacle, and at least one misplaced."
        )
    kinds = models().object[list(one.models)].tolist()
    if twice := [kind for kind in kinds if kinds.count(kind) > 1]:
        name = votes().objects[twice[0]]
        raise InputError(f"Episode {one.number} of {where} has two things of the class {name}; one is allowed.")
    for r in one.receptacles:
        if not 0 <= r < len(there) or not there[r]:
            name = known.keys[r] if 0 <= r < len(known.keys) else f"number {r}"
            raise InputError(f"Episode {one.number} of {where}: nothing can lie on {name} of {one.scene}.")


def to_columns(episodes: Sequence[HouseEpisode]) -> dict[str, list[Any]]:
    """Episodes as a table with the columns of the shipped one."""
    names, of = votes().objects, models().object
    right = {(one.scene, one.reduced): labels(one.scene, one.reduced).right for one in episodes}
    return {
        "scene": [one.scene for one in episodes],
        "split": [one.split for one in episodes],
        "episode": [one.number for one in episodes],
        "seen": [one.seen for one in episodes],
        "dropout": [one.reduced for one in episodes],
        "start_x": [one.start[0] for one in episodes],
        "start_z": [one.start[1] for one in episodes],
        "start_yaw_deg": [int(one.start[2]) for one in episodes],
        "misplaced_count": [one.misplaced for one in episodes],
        "objects_count": [len(one.models) for one in episodes],
        "oracle_steps_solve": [one.oracle_steps for one in episodes],
        "object": [[names[of[model]] for model in one.models] for one in episodes],
        "model_id": [list(one.models) for one in episodes],
        "start_receptacle": [list(one.receptacles) for one in episodes],
        "misplaced": [[i < one.misplaced for i in range(len(one.models))] for one in episodes],
        "correct_receptacles": [
            [np.flatnonzero(right[one.scene, one.reduced][:, of[model]]).tolist() for model in one.models]
            for one in episodes
        ],
    }
