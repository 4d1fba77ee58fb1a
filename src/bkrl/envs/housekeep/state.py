"""The state of many Housekeep envs: one record each, with tables of things, rows of the packer, and what was seen."""

from typing import Final, NamedTuple

import numpy as np

from bkrl.envs.housekeep.layout import MOST_RECEPTACLES

# What the last action did
NOTHING, PICKED, PLACED, FAILED = range(4)

ENV: Final = np.dtype(
    [
        ("stream", np.uint64),  # state of the random stream that draws episodes
        ("episode", np.int32),  # of the env's list
        ("house", np.int16),  # of the env's houses
        ("reduced", np.uint8),
        ("x", np.float64),
        ("z", np.float64),
        ("polygon", np.int16),
        ("yaw", np.float64),  # degrees in [0, 360), counter-clockwise seen from above; 0 looks along -z
        ("tilt", np.int16),  # degrees, negative is down
        ("held", np.int16),  # slot of a thing, -1
        ("at", np.int16),  # high-level control: the receptacle where the agent stands, -1
        ("steps", np.int32),  # low-level steps of the episode
        ("decisions", np.int32),  # actions of the episode
        ("deed", np.uint8),  # what the last action did: NOTHING, PICKED, PLACED or FAILED
        ("deed_thing", np.int16),  # slot
        ("deed_place", np.int16),  # receptacle: taken from, or put on
        ("tried", np.int32),  # picks and places that were tried
        ("worked", np.int32),  # and that succeeded
        ("most_right", np.int16),  # the most misplaced things that were right at once
        ("squares_seen", np.int32),
        ("episode_return", np.float64),
        ("receptacles", np.uint8, (MOST_RECEPTACLES,)),  # 0 unseen, 1 before, 2 in view
    ],
    align=True,
)

EPISODE: Final = np.dtype(
    [
        ("house", np.int16),
        ("reduced", np.uint8),
        ("x", np.float64),
        ("z", np.float64),
        ("polygon", np.int16),
        ("yaw", np.float64),
        ("count", np.int16),
        ("misplaced", np.int16),
        ("models", np.int16, (10,)),
        ("receptacles", np.int16, (10,)),
    ],
    align=True,
)


class Rules(NamedTuple):
    """What can be chosen of an env.

    Attributes:
        high: high-level control.
        picture: whether agents see a map.
        limit: low-level steps after which an episode is truncated.
        first, wrong, failed: what the first pick of a misplaced thing, or placing it right after that, pays; what a
            wrong pick or place pays, and what one that fails.
        solved: what it pays when all is tidy.
    """

    high: bool
    picture: bool
    limit: int
    first: float
    wrong: float
    failed: float
    solved: float
