"""The loops over envs: the kernels that Python calls. Each works on envs start..stop-1 of one house."""

from typing import Any

import numpy as np

from bkrl.core.jit import Int, helper, kernel
from bkrl.envs.housekeep.acting import START_TILT, high_level, judge, low_level, pay
from bkrl.envs.housekeep.packer import MOST_ROWS, NOWHERE, find_room, put
from bkrl.envs.housekeep.sight import look, observe
from bkrl.envs.housekeep.state import FAILED, NOTHING
from bkrl.envs.housekeep.views import recall


@helper
def _draw(env: Any, count: Int) -> Int:
    """A number below `count` from the env's stream (splitmix64)."""
    env.stream += np.uint64(0x9E3779B97F4A7C15)
    mixed = np.uint64(env.stream)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.int64((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(11)) % count


@kernel
def draw_episodes(envs: Any, chosen: Any, episodes: Any) -> None:
    """The next episode of each chosen env."""
    for n in range(len(envs)):
        if chosen[n]:
            envs[n].episode = _draw(envs[n], len(episodes))
            envs[n].house = episodes[envs[n].episode].house


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
def begin_envs(
    envs: Any,
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
    """Begin the drawn episodes of the chosen envs that are in house `number`."""
    for n in range(len(envs)):
        env = envs[n]
        if not chosen[n] or env.house != number:
            continue
        episode = episodes[env.episode]
        env.reduced, env.x, env.z = episode.reduced, episode.x, episode.z
        env.polygon, env.yaw, env.tilt = episode.polygon, episode.yaw, START_TILT
        env.held = env.at = env.deed_thing = env.deed_place = -1
        env.steps = env.decisions = env.tried = env.worked = 0
        env.most_right = env.squares_seen = 0
        env.deed = NOTHING
        env.episode_return = 0.0
        for r in range(len(env.receptacles)):
            env.receptacles[r] = 0
        squares[n, :] = False
        _lay_out(things[n], rows[n], house, episode, kinds, sizes, all_things)
        if len(views.away) > 0:
            recall(env, things[n], squares[n], house, views)
        else:
            look(env, things[n], squares[n], house)
        observe(env, things[n], squares[n], house, observations[n], picture)


@kernel
def step_envs(
    envs: Any,
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
    """One action in each env of house `number` that does not idle.

    Args:
        envs: (N,) `ENV`; things: (N, 10) `THING`; rows: (N, rows) `ROW`; squares: (N, Q) bool.
        actions, idle: (N,).
        house: a `House`; goals: (G,) receptacles that can be gone to; sizes: (M, 3) of the models.
        views: the house's `Views`, used by high-level control.
        rules: a `Rules`; out: the `HousekeepOutputs`.
        start, stop: the envs to step.
    """
    for n in range(start, stop):
        env = envs[n]
        if env.house != number:
            continue
        out.rewards[n], out.terminated[n], out.truncated[n] = 0.0, False, False
        env.deed = NOTHING
        if idle[n]:
            continue
        if rules.high:
            high_level(env, things[n], rows[n], house, sizes, goals, views, actions[n])
            recall(env, things[n], squares[n], house, views)
        else:
            low_level(env, things[n], rows[n], house, sizes, actions[n])
            look(env, things[n], squares[n], house)
        env.decisions += 1
        observe(env, things[n], squares[n], house, out.symbolic[n], rules.picture)
        tidy = judge(env, things[n], house.right)
        reward = pay(env, things[n], house.right, rules) + (rules.solved if tidy else 0.0)
        env.episode_return += reward
        out.rewards[n], out.terminated[n] = reward, tidy
        out.truncated[n] = env.steps >= rules.limit and not tidy


@kernel
def observe_envs(
    envs: Any, things: Any, squares: Any, house: Any, number: Int, picture: bool, observations: Any
) -> None:
    """The observations of envs as they stand."""
    for n in range(len(envs)):
        if envs[n].house == number:
            observe(envs[n], things[n], squares[n], house, observations[n], picture)


@kernel
def tell_deeds(envs: Any, things: Any, deeds: Any, kinds: Any, places: Any) -> None:
    """Of each env what its last action did, to which class of things, and where, (N,) each; -1 where nothing was."""
    for n in range(len(envs)):
        env = envs[n]
        done = env.deed != NOTHING and env.deed != FAILED
        deeds[n] = env.deed
        kinds[n] = things[n, env.deed_thing].kind if done else -1
        places[n] = env.deed_place if done else -1
