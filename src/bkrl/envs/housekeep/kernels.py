"""The loops over worlds: the kernels that Python calls. Each works on worlds start..stop-1 of one house."""

from __future__ import annotations

from typing import Any

import numpy as np

from bkrl.core.jit import Int, helper, kernel
from bkrl.envs.housekeep.acting import START_TILT, high_level, judge, low_level, pay
from bkrl.envs.housekeep.packer import MOST_ROWS, NOWHERE, find_room, put
from bkrl.envs.housekeep.sight import look, observe
from bkrl.envs.housekeep.state import FAILED, NOTHING
from bkrl.envs.housekeep.views import recall


@helper
def _draw(world: Any, count: Int) -> Int:
    """A number below `count` from the world's stream (splitmix64)."""
    world.stream += np.uint64(0x9E3779B97F4A7C15)
    mixed = np.uint64(world.stream)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.int64((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(11)) % count


@kernel
def draw_episodes(worlds: Any, chosen: Any, episodes: Any) -> None:
    """The next episode of each chosen world."""
    for n in range(len(worlds)):
        if chosen[n]:
            worlds[n].episode = _draw(worlds[n], len(episodes))
            worlds[n].house = episodes[worlds[n].episode].house


@helper
def _lay_out(things: Any, rows: Any, house: Any, episode: Any, kinds: Any, sizes: Any, all_things: bool) -> Int:
    """Put an episode's things where they lie at first; the slot of the first one without room, -1: all have room."""
    for row in range(MOST_ROWS):
        rows[row].receptacle = NOWHERE
    for slot in range(len(things)):  # all of them first: what lay there before takes no room
        things[slot].model = things[slot].row = NOWHERE
    for slot in range(len(things)):
        thing = things[slot]
        wrong = slot < episode.misplaced
        thing.model = episode.models[slot] if slot < episode.count and (wrong or all_things) else -1
        thing.receptacle = thing.row = thing.seen_on = NOWHERE
        thing.kind = thing.start = -1
        thing.wrong = thing.seen = thing.picked = thing.placed = 0
        thing.walked = thing.x = thing.y = thing.z = thing.left = thing.right = 0.0
        thing.from_x = thing.from_z = thing.to_x = thing.to_z = 0.0
        thing.half[0] = thing.half[1] = thing.half[2] = 0.0
        if thing.model < 0:
            continue
        thing.kind, thing.wrong = kinds[thing.model], wrong
        thing.start = r = np.int64(episode.receptacles[slot])
        long, short, height = sizes[thing.model]
        where = find_room(rows, things, r, house.half[r], long, short)
        if where[0] == NOWHERE:
            return np.int64(slot)
        put(rows, things, slot, r, house.base[r], house.half[r], house.top[r], (long, short, height), where)
    return np.int64(-1)


@kernel
def without_room(things: Any, rows: Any, house: Any, episodes: Any, number: Int, kinds: Any, sizes: Any) -> Any:
    """Episode and slot of the first thing in the episodes of a house that has no room; (-1, -1): all have."""
    for e in range(len(episodes)):
        if episodes[e].house == number:
            slot = _lay_out(things, rows, house, episodes[e], kinds, sizes, True)
            if slot >= 0:
                return e, slot
    return -1, -1


@kernel
def begin_worlds(
    worlds: Any,
    things: Any,
    rows: Any,
    squares: Any,
    chosen: Any,
    house: Any,
    number: Int,
    episodes: Any,
    kinds: Any,
    sizes: Any,
    all_things: bool,
    views: Any,
    picture: bool,
    observations: Any,
) -> None:
    """Begin the drawn episodes of the chosen worlds that are in house `number`."""
    for n in range(len(worlds)):
        world = worlds[n]
        if not chosen[n] or world.house != number:
            continue
        episode = episodes[world.episode]
        world.reduced, world.x, world.z = episode.reduced, episode.x, episode.z
        world.polygon, world.yaw, world.tilt = episode.polygon, episode.yaw, START_TILT
        world.held = world.at = world.deed_thing = world.deed_place = -1
        world.steps = world.decisions = world.tried = world.worked = 0
        world.most_right = world.squares_seen = 0
        world.deed = NOTHING
        world.episode_return = 0.0
        for r in range(len(world.receptacles)):
            world.receptacles[r] = 0
        squares[n, :] = False
        _lay_out(things[n], rows[n], house, episode, kinds, sizes, all_things)
        if len(views.away) > 0:
            recall(world, things[n], squares[n], house, views)
        else:
            look(world, things[n], squares[n], house)
        observe(world, things[n], squares[n], house, observations[n], picture)


@kernel
def step_worlds(
    worlds: Any,
    things: Any,
    rows: Any,
    squares: Any,
    actions: Any,
    idle: Any,
    house: Any,
    number: Int,
    goals: Any,
    sizes: Any,
    views: Any,
    rules: Any,
    out: Any,
    start: Int,
    stop: Int,
) -> None:
    """One action in each world of house `number` that does not idle.

    Args:
        worlds: (N,) `WORLD`; things: (N, 10) `THING`; rows: (N, rows) `ROW`; squares: (N, Q) bool.
        actions, idle: (N,).
        house: a `House`; goals: (G,) receptacles that can be gone to; sizes: (M, 3) of the models.
        views: the house's `Views`, used by high-level control.
        rules: a `Rules`; out: an `Outputs`.
        start, stop: the worlds to step.
    """
    for n in range(start, stop):
        world = worlds[n]
        if world.house != number:
            continue
        out.rewards[n], out.terminated[n], out.truncated[n] = 0.0, False, False
        world.deed = NOTHING
        if idle[n]:
            continue
        if rules.high:
            high_level(world, things[n], rows[n], house, sizes, goals, views, actions[n])
            recall(world, things[n], squares[n], house, views)
        else:
            low_level(world, things[n], rows[n], house, sizes, actions[n])
            look(world, things[n], squares[n], house)
        world.decisions += 1
        observe(world, things[n], squares[n], house, out.symbolic[n], rules.picture)
        tidy = judge(world, things[n], house.right)
        reward = pay(world, things[n], house.right, rules) + (rules.solved if tidy else 0.0)
        world.episode_return += reward
        out.rewards[n], out.terminated[n] = reward, tidy
        out.truncated[n] = world.steps >= rules.limit and not tidy


@kernel
def observe_worlds(
    worlds: Any, things: Any, squares: Any, house: Any, number: Int, picture: bool, observations: Any
) -> None:
    """The observations of worlds as they stand."""
    for n in range(len(worlds)):
        if worlds[n].house == number:
            observe(worlds[n], things[n], squares[n], house, observations[n], picture)


@kernel
def tell_deeds(worlds: Any, things: Any, deeds: Any, kinds: Any, places: Any) -> None:
    """Of each world what its last action did, to which class of things, and where, (N,) each; -1 where nothing was."""
    for n in range(len(worlds)):
        world = worlds[n]
        done = world.deed != NOTHING and world.deed != FAILED
        deeds[n] = world.deed
        kinds[n] = things[n, world.deed_thing].kind if done else -1
        places[n] = world.deed_place if done else -1
