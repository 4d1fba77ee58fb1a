"""The episodes and the actions of an env with its options."""

from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bkrl.core.errors import InputError, UsageError
from bkrl.core.files import read_json
from bkrl.envs.housekeep.episodes import HouseEpisode, read_episodes, scenes_with_episodes, shipped
from bkrl.envs.housekeep.floors import put_on_floor
from bkrl.envs.housekeep.houses import house
from bkrl.envs.housekeep.kernels import without_room
from bkrl.envs.housekeep.layout import LOW_LEVEL, SLOTS
from bkrl.envs.housekeep.options import ANY, TASKS, Chosen
from bkrl.envs.housekeep.packer import empty_tables
from bkrl.envs.housekeep.sampling import model_sizes
from bkrl.envs.housekeep.state import EPISODE
from bkrl.envs.housekeep.tables import DATA, models, scene, votes, words

LAYOUTS: Final = "task_layouts.json"
"""Where the things of the four tasks lie at first: sampled for bkrl, since the paper's layouts are not published."""

FARTHEST_START: Final = 0.5
"""Metres to the floor from where an episode may start: original ones start up to a few centimetres beside it."""


def episodes_of(env_id: str, options: Chosen) -> tuple[HouseEpisode, ...]:
    """The episodes that an env is played in.

    Raises:
        UsageError: there is none.
        InputError: a file holds one that cannot be played.
    """
    return _episodes_of(env_id, options, _version(options.file))


def _version(file: str) -> tuple[int, int]:
    """What changes when a file is written anew; (0, 0) where there is none."""
    try:
        found = Path(file).stat() if file else None
    except OSError:
        found = None
    return (found.st_mtime_ns, found.st_size) if found else (0, 0)


@lru_cache(64)
def _episodes_of(env_id: str, options: Chosen, version: tuple[int, int]) -> tuple[HouseEpisode, ...]:
    """`version`: of the file, so that nothing is remembered of an earlier one."""
    if env_id in TASKS:
        return (task_episode(TASKS.index(env_id)),)
    if options.file:
        found = tuple(one for one in read_episodes(Path(options.file)) if options.scene in ("", one.scene))
        if not found:
            raise UsageError(f"{options.file} has no episodes of {options.scene}; leave scene out.")
    elif options.scene:
        found = shipped(options.scene)
    else:
        found = tuple(one for name in scenes_with_episodes(options.split) for one in shipped(name))
    if options.episode == ANY:
        return found
    if not 0 <= options.episode < len(found):
        where = options.scene or options.file
        raise UsageError(f"{where} has the episodes 0 to {len(found) - 1}, not {options.episode}.")
    return (found[options.episode],)


def task_episode(number: int) -> HouseEpisode:
    """The episode of one of the four tasks, counted from 0, in the layout that bkrl publishes."""
    known = read_json(DATA / LAYOUTS, dict[str, list[dict[str, Any]]])["layouts"][number]
    return HouseEpisode(
        "Rs_int",
        "train",
        number,
        True,
        False,
        (known["x"], known["z"], known["yaw"]),
        tuple(known["models"]),
        tuple(known["receptacles"]),
        len(known["models"]),
        0,
    )


def compiled(episodes: tuple[HouseEpisode, ...], source: str) -> tuple[NDArray[Any], tuple[str, ...]]:
    """Episodes as the engine reads them, and the names of their houses; InputError where one cannot be played."""
    names = tuple(dict.fromkeys(one.scene for one in episodes))
    table = np.zeros(len(episodes), EPISODE)
    for row, one in zip(table, episodes, strict=True):
        polygon, x, z = put_on_floor(house(one.scene).ground, *one.start[:2])
        if np.hypot(x - one.start[0], z - one.start[1]) > FARTHEST_START:
            raise InputError(f"Episode {one.number} of {source} starts beside the floor of {one.scene}.")
        row["house"], row["reduced"], row["polygon"] = names.index(one.scene), one.reduced, polygon
        row["x"], row["z"], row["yaw"] = x, z, one.start[2] % 360
        row["count"], row["misplaced"] = len(one.models), one.misplaced
        row["models"][: len(one.models)] = one.models
        row["receptacles"][: len(one.models)] = one.receptacles
    rows, things = empty_tables(SLOTS)
    for number, name in enumerate(names):
        e, slot = without_room(things, rows, house(name), table, number, models().object, model_sizes())
        if e >= 0:
            receptacle = scene(name).keys[episodes[e].receptacles[slot]]
            thing = words(votes().objects[models().object[episodes[e].models[slot]]])
            raise InputError(f"Episode {episodes[e].number} of {source}: {receptacle} has no room for the {thing}.")
    return table, names


def goals_of(name: str) -> NDArray[np.int64]:
    """(G,) the receptacles of a scene that high-level control can go to."""
    return np.flatnonzero(house(name).usable)


def action_names(env_id: str, options: Chosen) -> tuple[str, ...]:
    """The actions in their order; things have their names where all episodes have the same ones."""
    if options.control == "low":
        return LOW_LEVEL
    name = options.scene
    goto = [f"go to {words(scene(name).keys[r])}" for r in goals_of(name)]
    episodes = episodes_of(env_id, options)
    kinds = [votes().objects[models().object[model]] for model in episodes[0].models] if len(episodes) == 1 else []
    slots = [*map(words, kinds), *(f"thing {slot + 1}" for slot in range(len(kinds), SLOTS))]
    return (*goto, *(f"pick up {slot}" for slot in slots), "place")
