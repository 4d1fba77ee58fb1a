"""The bot: it knows everything, also what the agent has not seen, and what the votes say. An upper bound, no agent.

It takes the nearest misplaced thing to the nearest place where it is right and has room, and so on.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bkrl.core.jit import Int, helper, kernel
from bkrl.envs.housekeep.acting import DOWN, FORWARD, GRAB, LEFT, RIGHT, STEP, TILT, TURN, UP, way_to, yaw_along
from bkrl.envs.housekeep.catalogue import goals_of
from bkrl.envs.housekeep.floors import walk
from bkrl.envs.housekeep.houses import house
from bkrl.envs.housekeep.layout import SLOTS
from bkrl.envs.housekeep.packer import MOST_ROWS, NOWHERE, ROW, THING, find_room
from bkrl.envs.housekeep.sampling import model_sizes
from bkrl.envs.housekeep.sight import GRAB_RANGE, aimed_at, look_for
from bkrl.envs.housekeep.state import ENV
from bkrl.envs.housekeep.tables import scene_names

STATE: Final = np.dtype(
    [("scene", np.int16), ("world", ENV), ("things", THING, (SLOTS,)), ("rows", ROW, (MOST_ROWS,))], align=True
)
_NEAR: Final = 0.3
_LAST_ROOM: Final = 100.0
"""Metres that the bot walks farther so that each thing finds room in its only right place."""
_LEAST: Final = 0.01  # metres that a step must lead nearer, and that a turn is worth
_ASIDE: Final = 12
"""Steps for which the bot, where it cannot aim at what it stands before, walks aside before it comes back."""


class HousekeepBot:
    """See `family.Bot`.

    Args:
        high: high-level control.
    """

    def __init__(self, high: bool) -> None:
        self.high = high

    def begin(self, num_envs: int) -> dict[str, NDArray[Any]]:
        """What each is after (see `_goal`), and its steps where it stood before that without being able to aim."""
        return {"goal": np.full((num_envs, 2), NOWHERE, np.int16), "waiting": np.zeros(num_envs, np.int32)}

    def act(
        self,
        env_states: NDArray[Any],
        symbols: NDArray[np.uint8],
        memory: dict[str, NDArray[Any]],
        started: NDArray[np.bool_],
    ) -> NDArray[np.int64]:
        memory["waiting"][started], memory["goal"][started] = 0, NOWHERE
        actions, sizes = np.zeros(len(env_states), np.int64), model_sizes()
        envs, things, rows = (np.ascontiguousarray(env_states[name]) for name in ("world", "things", "rows"))
        for number in np.unique(env_states["scene"]).tolist():
            name, chosen = scene_names()[number], env_states["scene"] == number
            _plan(
                self.high,
                envs,
                things,
                rows,
                chosen,
                house(name),
                sizes,
                goals_of(name),
                memory["goal"],
                memory["waiting"],
                actions,
            )
        return actions


@helper
def _right_place(env: Any, things: Any, rows: Any, house: Any, sizes: Any, slot: Int, r: Int) -> bool:
    """Is a thing right on a receptacle that can be used and has room for it?"""
    if not house.usable[r] or not house.right[env.reduced, r, things[slot].kind]:
        return False
    long, short, _ = sizes[things[slot].model]
    return find_room(rows, things, r, house.half[r], long, short)[0] != NOWHERE


@helper
def _distance(house: Any, env: Any, r: Int) -> float:
    """About how far a receptacle's stand is: the shortest way from the place that is nearest to the agent."""
    to = len(house.places) - len(house.low) + r
    best, away = np.inf, np.inf
    for p in range(len(house.places)):
        near = (house.places[p, 0] - env.x) ** 2 + (house.places[p, 1] - env.z) ** 2
        if near < best and house.away[p, to] < 1e8:
            best, away = near, np.sqrt(near) + house.away[p, to]
    return away


@helper
def _wrong(env: Any, things: Any, house: Any, t: Int) -> bool:
    """Does a thing lie where it is wrong? One that is held does not lie."""
    lies = things[t].model >= 0 and things[t].receptacle != NOWHERE
    return lies and not house.right[env.reduced, things[t].receptacle, things[t].kind]


@helper
def _only_place(env: Any, things: Any, rows: Any, house: Any, sizes: Any, t: Int) -> Int:
    """The only receptacle with room where a thing is right; -1 where there are more; -2 where there is none."""
    found = np.int64(-2)
    for r in range(len(house.low)):
        if _right_place(env, things, rows, house, sizes, t, r):
            if found >= 0:
                return np.int64(-1)
            found = np.int64(r)
    return found


@helper
def _needed(env: Any, things: Any, rows: Any, house: Any, sizes: Any, receptacle: Int) -> bool:
    """Is it the only place for a thing that lies wrong?"""
    for t in range(len(things)):
        if _wrong(env, things, house, t) and _only_place(env, things, rows, house, sizes, t) == receptacle:
            return True
    return False


@helper
def _urgency(env: Any, things: Any, rows: Any, house: Any, sizes: Any, t: Int) -> float:
    """Whether another thing may take the only place of one that lies wrong: then the longest first, in metres that the
    bot walks farther for it. What has no place with room waits.
    """
    only = _only_place(env, things, rows, house, sizes, t)
    if only == -2:
        return -_LAST_ROOM
    for other in range(len(things)):
        rival = only >= 0 and other != t and _wrong(env, things, house, other)
        if rival and _right_place(env, things, rows, house, sizes, other, only):
            return _LAST_ROOM * (1.0 + sizes[things[t].model, 0])
    return 0.0


@helper
def _goal(env: Any, things: Any, rows: Any, house: Any, sizes: Any, last: Any) -> tuple[Int, Int]:
    """The thing to pick and the receptacle it lies on; with full hands -1 and where to put what is held.

    What the bot was after last, it stays after as long as that makes sense.
    """
    slot, place = np.int64(last[0]), np.int64(last[1])
    if place >= 0 and (env.held >= 0) == (slot < 0):
        if slot < 0:
            sensible = _right_place(env, things, rows, house, sizes, np.int64(env.held), place)
        else:
            lies_there = things[slot].receptacle == place
            sensible = lies_there and not house.right[env.reduced, place, things[slot].kind]
        if sensible:
            return slot, place
    best, slot, place = np.inf, np.int64(-1), np.int64(-1)
    if env.held >= 0:
        for r in range(len(house.low)):
            if _right_place(env, things, rows, house, sizes, np.int64(env.held), r):
                far = _distance(house, env, r) + _LAST_ROOM * _needed(env, things, rows, house, sizes, r)
                if far < best:
                    best, place = far, np.int64(r)
        return slot, place
    for t in range(len(things)):
        if not _wrong(env, things, house, t):
            continue
        far = _distance(house, env, np.int64(things[t].receptacle))
        far -= _urgency(env, things, rows, house, sizes, np.int64(t))
        if far < best:
            best, slot, place = far, np.int64(t), np.int64(things[t].receptacle)
    return slot, place


@helper
def _wanted(env: Any, things: Any, rows: Any, house: Any, sizes: Any, slot: Int) -> bool:
    """Would grabbing, as the agent looks now, take up the thing, or put what is held where it is right?"""
    target = aimed_at(env, things, house)
    if target < 0:
        return False
    if slot >= 0:
        return target == slot
    return _right_place(env, things, rows, house, sizes, np.int64(env.held), target)


@helper
def _aim(env: Any, things: Any, rows: Any, house: Any, sizes: Any, slot: Int, place: Int) -> Int:
    """The action that leads to a grab from where the agent stands; -1 where turning and tilting do not help."""
    if slot >= 0:
        x, y, z = things[slot].x, things[slot].y, things[slot].z
    else:
        x, y, z = house.base[place, 0], house.top[place], house.base[place, 1]
    away = np.hypot(x - env.x, z - env.z)
    if away > GRAB_RANGE + 0.5:
        return np.int64(-1)
    yaw, tilt = env.yaw, np.int64(env.tilt)
    bearing = (yaw_along(env.x, env.z, x, z) - yaw + 540.0) % 360.0 - 180.0
    first_turn = np.int64(np.floor(bearing / TURN))
    slope = min(30.0, max(-30.0, np.degrees(np.arctan2(y - house.camera, max(away, 0.05)))))
    first_tilt = np.int64(np.floor(slope / TILT))
    best: Int = np.int64(1000)
    action: Int = np.int64(-1)
    for turn in range(first_turn - 1, first_turn + 3):
        for level in range(first_tilt - 1, first_tilt + 3):
            if abs(level) * TILT > 30:
                continue
            cost = abs(turn) + abs(level - tilt // TILT)
            if cost >= best:
                continue
            env.yaw, env.tilt = (yaw + turn * TURN + 360.0) % 360.0, level * TILT
            look_for(env, things, house)
            if _wanted(env, things, rows, house, sizes, slot):
                best = cost
                if turn != 0:
                    action = LEFT if turn > 0 else RIGHT
                elif level * TILT != tilt:
                    action = UP if level * TILT > tilt else DOWN
                else:
                    action = GRAB
    env.yaw, env.tilt = yaw, tilt
    return np.int64(action)


@helper
def _turns_to(env: Any, x: float, z: float) -> Int:
    """Turns to the left, negative ones to the right, after which a point lies straight ahead, as far as turns allow."""
    bearing = (yaw_along(env.x, env.z, x, z) - env.yaw + 540.0) % 360.0 - 180.0
    turns = np.int64(np.ceil((abs(bearing) - 0.01) / TURN - 0.5))
    return turns if bearing > 0 else -turns


@helper
def _length_after(env: Any, house: Any, turns: Int, to: Int) -> float:
    """Length of the shortest way to a place of the house after so many turns and a step."""
    yaw = np.radians(env.yaw + turns * TURN)
    to_x, to_z = env.x - STEP * np.sin(yaw), env.z - STEP * np.cos(yaw)
    _, x, z = walk(house.ground, np.int64(env.polygon), env.x, env.z, to_x, to_z)
    return way_to(house, x, z, to)[0]


@helper
def _on_the_way(env: Any, house: Any, to: Int) -> Int:
    """The action that leads to a place of the house; -1 where no step leads nearer to it.

    Each step makes the shortest way shorter, and where the agent steps depends on where it stands, not on how it is
    turned: so it never walks to and fro.
    """
    length, first = way_to(house, env.x, env.z, to)
    there_x, there_z = house.places[first]
    chosen, best = np.int64(0), length - _LEAST
    if np.hypot(there_x - env.x, there_z - env.z) > _NEAR:
        chosen = _turns_to(env, there_x, there_z)
        best = min(best, _length_after(env, house, chosen, to))
    if best == length - _LEAST:
        # Around corners and along walls that step may lead no nearer: the one from whose end the way is shortest
        for turns in range(-9, 9):
            cost = _length_after(env, house, np.int64(turns), to) + _LEAST * abs(turns)
            if cost < best:
                best, chosen = cost, np.int64(turns)
        if best == length - _LEAST:
            return np.int64(-1)
    return np.int64(FORWARD if chosen == 0 else LEFT if chosen > 0 else RIGHT)


@helper
def _walk_or_grab(env: Any, things: Any, rows: Any, house: Any, sizes: Any, slot: Int, place: Int, waiting: Any) -> Int:
    """A low-level action. waiting: (1,) see `HousekeepBot.begin`."""
    if place < 0:
        return np.int64(LEFT)
    action = _aim(env, things, rows, house, sizes, slot, place)
    stage = waiting[0] % _ASIDE
    if action < 0 and stage == 0:
        action = _on_the_way(env, house, len(house.places) - len(house.low) + place)
    if action < 0:
        # It stands there and can aim at nothing: it walks aside, each time in another direction
        turns = (5 * (waiting[0] // _ASIDE) + 2) % 9
        action = np.int64(LEFT if stage < turns else FORWARD)
        waiting[0] += 1
    return action


@kernel
def _plan(
    high: bool,
    envs: Any,
    things: Any,
    rows: Any,
    chosen: Any,
    house: Any,
    sizes: Any,
    goals: Any,
    lasts: Any,
    waiting: Any,
    actions: Any,
) -> None:
    for n in range(len(envs)):
        if not chosen[n]:
            continue
        slot, place = _goal(envs[n], things[n], rows[n], house, sizes, lasts[n])
        if lasts[n, 0] != slot or lasts[n, 1] != place:
            lasts[n, 0], lasts[n, 1], waiting[n] = slot, place, 0
        if not high:
            actions[n] = _walk_or_grab(envs[n], things[n], rows[n], house, sizes, slot, place, waiting[n : n + 1])
            continue
        actions[n] = len(goals) + (slot if slot >= 0 else len(things[n]))
        for g in range(len(goals)):
            if goals[g] == place and envs[n].at != place:
                actions[n] = g
