"""What high-level control sees and how it walks, found once for the places where it stands.

It stands only where an episode starts and where receptacles are used from, and there it always looks the same way.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bkrl.core.jit import Int, helper, kernel
from bkrl.envs.housekeep.acting import START_TILT, stand, ways_from
from bkrl.envs.housekeep.houses import House
from bkrl.envs.housekeep.packer import THING
from bkrl.envs.housekeep.sight import look, look_for_things
from bkrl.envs.housekeep.state import ENV


class HouseViews(NamedTuple):
    """Of E episodes in a house with R receptacles and Q squares of floor; of low-level control E is 0.

    Attributes:
        receptacles: (E + R, R) bool, in view from each start, then from each receptacle, if they are present.
        squares: (E + R, Q) bool, floor in view.
        away, first: (E, R) length of the shortest way from each start to each receptacle, and the first place on it.
    """

    receptacles: NDArray[np.bool_]
    squares: NDArray[np.bool_]
    away: NDArray[np.float64]
    first: NDArray[np.int64]


def views_of(house: House, number: int, episodes: NDArray[Any]) -> HouseViews:
    """The views in house `number` of a table of `EPISODE` records; episodes in other houses have none.

    With no episodes, no views.
    """
    E, R = len(episodes), len(house.low)
    S = E + R if E else 0
    views = HouseViews(
        np.zeros((S, R), bool), np.zeros((S, len(house.squares)), bool), np.zeros((E, R)), np.zeros((E, R), np.int64)
    )
    everything = house._replace(present=np.ones_like(house.present))
    _fill(np.zeros(1, ENV), np.zeros(0, THING), everything, number, episodes, views)
    return views


@kernel
def _fill(envs: Any, nothing: Any, house: Any, number: Int, episodes: Any, views: Any) -> None:
    """Look from everywhere. envs: (1,) an env for it; nothing: (0,) things."""
    env, R = envs[0], len(house.low)
    lengths = np.empty(len(house.places))
    for s in range(len(views.squares)):
        if s < len(episodes):
            episode = episodes[s]
            if episode.house != number:
                continue
            env.at, env.x, env.z, env.yaw, env.tilt = -1, episode.x, episode.z, episode.yaw, START_TILT
            ways_from(house, env.x, env.z, lengths, views.away[s], views.first[s])
        else:
            stand(env, house, np.int64(s - len(episodes)))
        look(env, nothing, views.squares[s], house)
        for r in range(R):
            views.receptacles[s, r] = env.receptacles[r] == 2


@helper
def recall(env: Any, things: Any, squares: Any, house: Any, views: Any) -> None:
    """`sight.look` from where high-level control stands, out of the table; things move, so they are looked for."""
    row = np.int64(env.episode) if env.at < 0 else len(views.away) + np.int64(env.at)
    receptacles, present = views.receptacles[row], house.present[env.reduced]
    for r in range(len(receptacles)):
        env.receptacles[r] = 2 if receptacles[r] and present[r] else min(1, env.receptacles[r])
    floor, new = views.squares[row], 0
    for q in range(len(floor)):
        new += floor[q] and not squares[q]
        squares[q] |= floor[q]
    env.squares_seen += new
    look_for_things(env, things, house)
