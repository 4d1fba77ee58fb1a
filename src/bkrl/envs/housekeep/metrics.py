"""How well a house was tidied: Housekeep's metrics of an episode, and ELLM's.

Below, M are the things that were misplaced at the start, and C those that lay right and were picked or placed at least
once. A held thing is not right. Definitions: Kant et al. 2022, as their code has them.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bkrl.core.jit import kernel
from bkrl.envs.housekeep.acting import way_between
from bkrl.envs.housekeep.houses import House
from bkrl.envs.housekeep.packer import NOWHERE
from bkrl.envs.housekeep.tables import votes

METRICS: Final = (
    "rearrange_success",  # ELLM: share of M that is right now
    "object_success",  # share of M and C that is right
    "max_rearrange_success",  # ELLM: the largest share of M that was right at once
    "soft_score",  # mean share of positive votes over M and C, held things 0
    "rearrangement_quality",  # mean over M and C of the mean 1 / rank of where a right thing lies, 0 for others
    "pick_place_efficiency",  # 2 / number of picks and places, over the touched of M that are right, and C
    "path_efficiency",  # geodesic distance / way walked with each carried thing; NaN where none was carried
    "misplaced_found",  # share of M that was seen
    "pick_place_success",  # share of picks and places that worked; NaN where none was tried
    "map_coverage",  # share of the floor that was seen
    "success_seen_classes",  # share of M of train classes that is right; NaN where there is none
    "success_unseen_classes",  # and of val and test classes
    "low_level_steps",
)


@kernel
def _ratio(house: Any, thing: Any, to_x: float, to_z: float) -> float:
    """Geodesic distance over the way walked with a thing, at most 1."""
    return min(1.0, way_between(house, thing.from_x, thing.from_z, to_x, to_z) / thing.walked)


def measure(house: House, world: Any, things: NDArray[Any]) -> NDArray[np.float64]:
    """(METRICS,) of one env as it stands. world: a `WORLD` record; things: (10,) `THING` records."""
    there = things["model"] >= 0
    wrong = there & (things["wrong"] > 0)
    touched = there & (things["picked"] + things["placed"] > 0)
    counted = wrong | (touched & ~wrong)
    on, kind = things["receptacle"].astype(int), things["kind"].astype(int)
    lying = there & (on != NOWHERE)
    right = lying & house.right[int(world["reduced"]), on, kind]
    n, m = int(counted.sum()), int(wrong.sum())
    moves = np.maximum(1, things["picked"] + things["placed"])
    handled = int((touched & wrong).sum() + (touched & ~wrong).sum())
    efficiency = (2 / moves)[touched & wrong & right].sum() / handled if handled else 0.0
    ways = [
        _ratio(house, one, world["x"], world["z"]) if one["receptacle"] == NOWHERE else
        _ratio(house, one, one["to_x"], one["to_z"])
        for one in things[there & (things["walked"] > 0)]
    ]  # fmt: skip
    learnt = np.array([votes().splits[k] == "train" for k in kind]) & wrong
    return np.array(
        [
            (right & wrong).sum() / m,
            (right & counted).sum() / n,
            world["most_right"] / m,
            house.soft[on, kind][counted & lying].sum() / n,
            house.quality[on, kind][counted & right].sum() / n,
            efficiency,
            np.mean(ways) if ways else np.nan,
            (wrong & (things["seen"] > 0)).sum() / m,
            world["worked"] / world["tried"] if world["tried"] else np.nan,
            world["squares_seen"] / len(house.squares),
            _share(right, learnt),
            _share(right, wrong & ~learnt),
            world["steps"],
        ],
        np.float64,
    )


def _share(right: NDArray[np.bool_], among: NDArray[np.bool_]) -> float:
    return float(right[among].mean()) if among.any() else np.nan
