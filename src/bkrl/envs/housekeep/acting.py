"""What actions do: walking, turning, grabbing and releasing; high-level goto, pick and place; what they pay."""

from typing import Any, Final

import numpy as np

from bkrl.core.jit import Int, helper
from bkrl.envs.housekeep.floors import walk
from bkrl.envs.housekeep.houses import sees_straight
from bkrl.envs.housekeep.packer import NOWHERE, find_room, put, take
from bkrl.envs.housekeep.sight import aimed_at
from bkrl.envs.housekeep.state import FAILED, NOTHING, PICKED, PLACED

FORWARD, LEFT, RIGHT, UP, DOWN, GRAB = range(6)
STEP: Final = 0.25
TURN: Final = 20.0
TILT: Final = 10
MOST_TILT: Final = 30
START_TILT: Final = -20


@helper
def low_level(env: Any, things: Any, rows: Any, house: Any, sizes: Any, action: Int) -> None:
    """One low-level action."""
    env.steps += 1
    if action == FORWARD:
        yaw = np.radians(env.yaw)
        before_x, before_z = env.x, env.z
        to_x, to_z = before_x - STEP * np.sin(yaw), before_z - STEP * np.cos(yaw)
        polygon, x, z = walk(house.ground, np.int64(env.polygon), before_x, before_z, to_x, to_z)
        env.polygon, env.x, env.z = polygon, x, z
        if env.held >= 0:
            things[env.held].walked += np.hypot(x - before_x, z - before_z)
    elif action == LEFT:
        env.yaw = (env.yaw + TURN) % 360.0
    elif action == RIGHT:
        env.yaw = (env.yaw - TURN + 360.0) % 360.0
    elif action == UP:
        env.tilt = min(MOST_TILT, env.tilt + TILT)
    elif action == DOWN:
        env.tilt = max(-MOST_TILT, env.tilt - TILT)
    else:
        target = aimed_at(env, things, house)
        if target < 0:
            fail(env)
        elif env.held < 0:
            pick(env, things, rows, target)
        else:
            place(env, things, rows, house, sizes, target)


@helper
def fail(env: Any) -> None:
    """A pick or place that does not work."""
    env.tried += 1
    env.deed = FAILED


@helper
def pick(env: Any, things: Any, rows: Any, slot: Int) -> None:
    """Take up a thing."""
    thing = things[slot]
    env.deed, env.deed_thing, env.deed_place = PICKED, slot, thing.receptacle
    env.tried += 1
    env.worked += 1
    take(rows, things, slot)
    env.held = slot
    if thing.picked == 0:
        thing.from_x, thing.from_z = env.x, env.z
    thing.picked += 1


@helper
def place(env: Any, things: Any, rows: Any, house: Any, sizes: Any, receptacle: Int) -> None:
    """Put what is held on a receptacle; it stays in the hand where there is no room."""
    slot = np.int64(env.held)
    thing = things[slot]
    long, short, height = sizes[thing.model]
    base, half, top = house.base[receptacle], house.half[receptacle], house.top[receptacle]
    where = find_room(rows, things, receptacle, half, long, short)
    if where[0] == NOWHERE:
        fail(env)
        return
    env.tried += 1
    env.worked += 1
    put(rows, things, slot, receptacle, base, half, top, (long, short, height), where)
    thing.placed += 1
    thing.seen_on = receptacle  # which the agent knows, seen or not
    thing.to_x, thing.to_z = env.x, env.z
    env.deed, env.deed_thing, env.deed_place = PLACED, slot, receptacle
    env.held = -1


@helper
def way_to(house: Any, x: float, z: float, to: Int) -> tuple[float, Int]:
    """Length of the shortest way from a point of the floor to a place of the house, and the first place on it.

    The first place is `to` itself where one can walk straight there.
    """
    places = house.places
    best, first = np.inf, np.int64(to)
    for p in range(len(places)):
        if house.polygon[p] < 0:
            continue
        length = np.hypot(places[p, 0] - x, places[p, 1] - z) + house.away[p, to]
        if length < best - 1e-9 and sees_straight(house.ground, x, z, places[p, 0], places[p, 1]):
            best, first = length, np.int64(p)
    return best, first


@helper
def ways_from(house: Any, x: float, z: float, straight: Any, away: Any, first: Any) -> None:
    """`way_to` all R receptacles' places at once, into `away` and `first` (R,). straight: (C,) to work with."""
    places, R = house.places, len(house.low)
    for p in range(len(places)):
        sees = house.polygon[p] >= 0 and sees_straight(house.ground, x, z, places[p, 0], places[p, 1])
        straight[p] = np.hypot(places[p, 0] - x, places[p, 1] - z) if sees else np.inf
    for r in range(R):
        to = len(places) - R + r
        away[r], first[r] = np.inf, to
        for p in range(len(places)):
            if straight[p] + house.away[p, to] < away[r] - 1e-9:
                away[r], first[r] = straight[p] + house.away[p, to], p


@helper
def _place_at(house: Any, x: float, z: float) -> Int:
    """The place of the house that is exactly there; -1: none."""
    for p in range(len(house.places)):
        if house.polygon[p] >= 0 and house.places[p, 0] == x and house.places[p, 1] == z:
            return np.int64(p)
    return np.int64(-1)


@helper
def way_between(house: Any, x: float, z: float, to_x: float, to_z: float) -> float:
    """Length of the shortest way between two points of the floor."""
    here, there = _place_at(house, x, z), _place_at(house, to_x, to_z)
    if here >= 0 and there >= 0:
        return house.away[here, there]
    if sees_straight(house.ground, x, z, to_x, to_z):
        return np.hypot(to_x - x, to_z - z)
    best = np.inf
    for last in range(len(house.places)):
        end_x, end_z = house.places[last]
        end = np.hypot(to_x - end_x, to_z - end_z)
        if house.polygon[last] >= 0 and end < best and sees_straight(house.ground, end_x, end_z, to_x, to_z):
            best = min(best, way_to(house, x, z, np.int64(last))[0] + end)
    return best


@helper
def _turns(from_yaw: float, to_yaw: float) -> Int:
    """Turns of 20 degrees from one direction to another, rounded."""
    return np.int64(np.floor(abs((to_yaw - from_yaw + 540.0) % 360.0 - 180.0) / TURN + 0.5))


@helper
def yaw_along(x: float, z: float, to_x: float, to_z: float) -> float:
    return np.degrees(np.arctan2(-(to_x - x), -(to_z - z))) % 360.0


@helper
def go(env: Any, things: Any, house: Any, views: Any, receptacle: Int) -> None:
    """Go to where a receptacle is used from, and look at it; it takes the steps that the way would take.

    These are its length in steps of 0.25 m, rounded up, and the turns at its corners in steps of 20 degrees, rounded.
    """
    to = len(house.places) - len(house.low) + receptacle
    if env.at >= 0:
        here = len(house.places) - len(house.low) + env.at
        length, via = house.away[here, to], np.int64(house.next[here, to])
    else:
        length, via = views.away[env.episode, receptacle], views.first[env.episode, receptacle]
    x, z, yaw, turns = env.x, env.z, env.yaw, np.int64(0)
    for _ in range(len(house.places)):
        there_x, there_z = house.places[via]
        if np.hypot(there_x - x, there_z - z) > 0.01:
            along = yaw_along(x, z, there_x, there_z)
            turns += _turns(yaw, along)
            yaw = along
        x, z = there_x, there_z
        if via == to:
            break
        via = np.int64(house.next[via, to])
    stand(env, house, receptacle)
    env.steps += np.int64(np.ceil(length / STEP - 1e-6)) + turns + _turns(yaw, env.yaw)
    if env.held >= 0:
        things[env.held].walked += length


@helper
def stand(env: Any, house: Any, receptacle: Int) -> None:
    """Stand where a receptacle is used from, and look at it."""
    env.x, env.z = house.stands[receptacle, 0], house.stands[receptacle, 1]
    env.yaw = house.stands[receptacle, 2] % 360.0
    env.polygon = house.stand_polygon[receptacle]
    top = house.top[receptacle]
    away = np.hypot(house.base[receptacle, 0] - env.x, house.base[receptacle, 1] - env.z)
    env.tilt = np.int64(np.round(np.degrees(np.arctan2(top - house.camera, max(0.1, away))) / TILT)) * TILT
    env.tilt = min(MOST_TILT, max(-MOST_TILT, env.tilt))
    env.at = receptacle


@helper
def high_level(env: Any, things: Any, rows: Any, house: Any, sizes: Any, goals: Any, views: Any, action: Int) -> None:
    """One high-level action: goto each of `goals` (G,), pick each slot, or place."""
    before = env.steps
    if action < len(goals):
        receptacle = goals[action]
        if house.present[env.reduced, receptacle] and env.at != receptacle:
            go(env, things, house, views, receptacle)
    elif action < len(goals) + len(things):
        slot = action - len(goals)
        thing = things[slot]
        known = thing.model >= 0 and thing.seen > 0 and thing.receptacle != NOWHERE
        if env.held < 0 and env.at >= 0 and known and thing.receptacle == env.at:
            pick(env, things, rows, slot)
        else:
            fail(env)
    elif env.held >= 0 and env.at >= 0:
        place(env, things, rows, house, sizes, np.int64(env.at))
    else:
        fail(env)
    env.steps = max(env.steps, before + 1)


@helper
def pay(env: Any, things: Any, right: Any, rules: Any) -> float:
    """The reward of the last action, by Housekeep's rules as ELLM's code has them.

    Taking a thing from where it belongs costs; the first pick of a misplaced one pays. Placing a misplaced one right
    pays after its first pick only; placing anything wrong costs.
    """
    if env.deed == NOTHING:
        return 0.0
    if env.deed == FAILED:
        return rules.failed
    thing = things[env.deed_thing]
    fine = right[env.reduced, env.deed_place, thing.kind]
    if env.deed == PICKED:
        if fine:
            return rules.wrong
        return rules.first if thing.picked == 1 else 0.0
    if not fine:
        return rules.wrong
    return rules.first if thing.picked == 1 and thing.wrong else 0.0


@helper
def judge(env: Any, things: Any, right: Any) -> bool:
    """Is all tidy and the hand empty? Counts how much is right on the way; a held thing is not."""
    count, tidy = 0, env.held < 0
    for t in range(len(things)):
        thing = things[t]
        if thing.model < 0:
            continue
        fine = thing.receptacle != NOWHERE and right[env.reduced, thing.receptacle, thing.kind]
        if thing.wrong:
            count += fine
            tidy &= fine
        elif thing.picked > 0:
            tidy &= fine
    env.most_right = max(env.most_right, count)
    return tidy
