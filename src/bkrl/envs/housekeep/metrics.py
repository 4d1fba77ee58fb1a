"""How well a house was tidied: Housekeep's metrics of an episode, and ELLM's.

Below, M are the things that were misplaced at the start, and C those that lay right and were picked or placed at least
once. A held thing is not right. Definitions: Kant et al. 2022, as their code has them.
"""

from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bkrl.core.jit import Int, helper, kernel
from bkrl.envs.housekeep.acting import way_between
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


@cache
def train_classes() -> NDArray[np.bool_]:
    """(O,) whether each class of things is of the train split."""
    return np.array([split == "train" for split in votes().splits])


@kernel
def measure(envs: Any, things: Any, chosen: Any, house: Any, number: Int, train: Any, found: Any) -> None:
    """Write `found` (N, METRICS) of the chosen envs that are in house `number`, as they stand."""
    for n in range(len(envs)):
        if chosen[n] and envs[n].house == number:
            _measure(envs[n], things[n], house, train, found[n])


@helper
def _measure(env: Any, things: Any, house: Any, train: Any, found: Any) -> None:
    wrong = wrong_right = counted = right = learnt = learnt_right = handled = carried = seen = 0
    soft = quality = efficiency = ways = 0.0
    for t in range(len(things)):
        thing = things[t]
        moves = thing.picked + thing.placed
        if thing.model < 0:
            continue
        if thing.walked > 0:
            held = thing.receptacle == NOWHERE
            to_x, to_z = (env.x, env.z) if held else (thing.to_x, thing.to_z)
            ways += min(1.0, way_between(house, thing.from_x, thing.from_z, to_x, to_z) / thing.walked)
            carried += 1
        if thing.wrong == 0 and moves == 0:
            continue
        fine = thing.receptacle != NOWHERE and house.right[env.reduced, thing.receptacle, thing.kind]
        counted += 1
        right += fine
        handled += moves > 0
        if thing.receptacle != NOWHERE:
            soft += house.soft[thing.receptacle, thing.kind]
        if fine:
            quality += house.quality[thing.receptacle, thing.kind]
        if thing.wrong > 0:
            wrong += 1
            wrong_right += fine
            seen += thing.seen > 0
            learnt += train[thing.kind]
            learnt_right += train[thing.kind] and fine
            if fine and moves > 0:
                efficiency += 2 / moves
    found[0] = wrong_right / wrong
    found[1] = right / counted
    found[2] = env.most_right / wrong
    found[3] = soft / counted
    found[4] = quality / counted
    found[5] = efficiency / handled if handled > 0 else 0.0
    found[6] = ways / carried if carried > 0 else np.nan
    found[7] = seen / wrong
    found[8] = env.worked / env.tried if env.tried > 0 else np.nan
    found[9] = env.squares_seen / len(house.squares)
    found[10] = learnt_right / learnt if learnt > 0 else np.nan
    found[11] = (wrong_right - learnt_right) / (wrong - learnt) if wrong > learnt else np.nan
    found[12] = env.steps
