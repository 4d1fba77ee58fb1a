"""What the bot does next: the whole plan is made anew in every step, from what it has seen and what it carries.

There is no stack of subgoals, so whatever another agent, or chance, has done before, the bot goes on from there. What
comes first is decided by rules that lead on in each new step as in the one before: the target, or what is to be carried
to another place; before that, what is in the way from one to the other; before that, the key of a locked door; before
that, a place to lay down what is carried.
"""

from typing import Any, Final

import numpy as np

from bkrl.core.jit import helper, kernel, write
from bkrl.envs.babyai import constants as c
from bkrl.envs.babyai.bot.paths import (
    BARRED,
    BARRED_DOORS,
    BESIDE,
    BLOCKED,
    BOXES,
    CELL,
    DOORS,
    FREE,
    GOALS,
    HERE,
    KEYS,
    NEAR,
    NO_WAY,
    NONE,
    OBJECTS,
    OCCUPIED,
    PLACES,
    READY_DOORS,
    SHUT,
    SPOTS,
    STANDS,
    TARGETS,
    UNKNOWN,
    WALLED,
    Mind,
    approach,
    mark,
    survey,
    touches,
    way,
)
from bkrl.envs.babyai.missions import refers
from bkrl.envs.babyai.state import FIRST, NOTHING_CARRIED, SECOND, ahead, cell_at, color_of, kind_of

_DEPTH: Final = 8  # obstacles behind obstacles
_NOWHERE: Final = -1
_SCRUPLE: Final = 12  # actions that a better place to lay something down is worth
STAY: Final = 8
"""Any action that changes nothing."""
PATIENCE: Final = 300
"""After so many steps in which nothing new was seen or done, the bot moves by chance for a while."""


@kernel
def act_bots(
    grids: Any,
    envs: Any,
    views: Any,
    started: Any,
    explored: Any,
    idle: Any,
    done: Any,
    spots: Any,
    stride: int,
    num_actions: int,
    actions: Any,
) -> None:
    """The next action of the bot in each of N envs.

    Args:
        grids: (N, cells) of `state`.
        envs: (N,) records.
        views: (N, 147) what the agents see.
        started: (N,) an episode begins.
        explored: (N, bytes) a bit for each cell that was seen; changed in place, as are the next three.
        idle: (N,) steps since something new was seen or done.
        done: (N,) the tasks that were done then.
        spots: (N,) the cell that was chosen to lay down what is carried; 0 for none.
        stride: cells in a row.
        num_actions: no later action is taken; with fewer than six, only the first three.
        actions: (N,) written.
    """
    size = grids.shape[1]
    terrain = np.full(size, WALLED, np.uint8)  # the margins remain so
    wanted, avoid = np.zeros(size, np.uint8), np.zeros(size, np.uint8)
    parent, queue, later = np.zeros(size, np.int32), np.zeros(size, np.int32), np.zeros(size, np.int32)
    first, states = np.zeros(8 * size, np.uint8), np.zeros(8 * size, np.int32)
    for n in range(len(grids)):
        env, seen = envs[n], explored[n]
        if started[n]:
            seen[:] = 0
            idle[n] = done[n] = 0
        if started[n] or env.carrying == NOTHING_CARRIED:
            spots[n] = 0
        idle[n] += 1
        progress = env.done | env.first_clause_done << 7
        if look(env, views[n], seen, stride) or progress != done[n]:
            idle[n], done[n] = 0, progress
        spot = spots[n : n + 1]
        mind = Mind(grids[n], env, seen, stride, terrain, wanted, avoid, spot, parent, queue, later, first, states)
        action = decide(mind, num_actions <= c.TOGGLE, idle[n] >= PATIENCE and idle[n] // 16 % 2 == 0)
        if action == NONE or action >= num_actions:
            action = wander(mind)
        actions[n] = action


@helper
def look(env: Any, view: Any, seen: Any, stride: int) -> bool:
    """Remember what is in view; whether any of it is new."""
    forward, right = ahead(env.heading, stride), ahead((env.heading + 1) % 4, stride)
    new = False
    for x in range(c.VIEW):
        for y in range(c.VIEW):
            if view[(x * c.VIEW + y) * 3] != c.UNSEEN:
                at = env.agent + forward * (c.AGENT_Y - y) + right * (x - c.AGENT_X)
                bit = 1 << (at & 7)
                if not seen[at >> 3] & bit:
                    seen[at >> 3] |= bit
                    new = True
    return new


@helper
def wander(mind: Any) -> int:
    """An action by chance, which depends on the state of the env alone, and harms nothing."""
    mixed = np.uint64(mind.env.steps) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(mind.env.agent)
    mixed = (mixed ^ mixed >> np.uint64(29)) * np.uint64(0xBF58476D1CE4E5B9)
    draw = (mixed >> np.uint64(40)) % np.uint64(4)
    front = mind.terrain[mind.env.agent + ahead(mind.env.heading, mind.stride)]
    if draw >= 2 and front == FREE:
        return c.FORWARD
    if draw >= 2 and front == SHUT:
        return c.TOGGLE
    return c.LEFT if draw % 2 else c.RIGHT


@helper
def decide(mind: Any, moves_only: bool, aimless: bool) -> int:
    """The next action; NONE where there is nothing left to try, or nothing is to be: then the terrain is new alone."""
    env = mind.env
    mind.avoid[:] = 0
    clause = 2 if env.in_sequence and env.first_clause_done else 0
    own = env.task[0] > c.PUT_NEXT  # picking up another object, or toggling, can fail these
    fixed = shut = moves_only or own
    for task in (clause, clause + 1):
        if (env.strict >> task) & 1 and not (env.done >> task) & 1:
            fixed = fixed or env.task[task] in (c.PICK_UP, c.PUT_NEXT)
            shut = shut or env.task[task] == c.OPEN_DOOR
    survey(mind, fixed, shut)
    if aimless:
        return NONE
    if own:
        action = attempt_own(mind)
        return action if action != NONE else pursue(mind, UNKNOWN, 0, c.FORWARD, NONE, 0)
    if env.task[0] == c.NO_TASK and mark(mind, GOALS, 0):
        action = pursue(mind, GOALS, 0, c.FORWARD, NONE, 0)
        if action != NONE:
            return action
    for certain in (True, False):
        for task in (clause, clause + 1):
            if not (env.done >> task) & 1:
                action = attempt(mind, task, certain)
                if action != NONE:
                    return action
    action = pursue(mind, UNKNOWN, 0, c.FORWARD, NONE, 0)
    return action if action != NONE else pursue(mind, BOXES, 0, c.TOGGLE, NONE, 0)


@helper
def attempt(mind: Any, task: int, certain: bool) -> int:
    """The next action for a task; NONE where something that it needs has to be found first.

    `certain`: all of it; otherwise what is to be put next to something is taken along on the search for that.
    """
    env, kind, which = mind.env, mind.env.task[task], 2 * task
    carried: Any = env.carrying
    carries_it = carried != NOTHING_CARRIED and refers(carried, which)
    if kind == c.GO_TO:
        action = pursue(mind, PLACES, which, STAY, NONE, 0)
        return lay_down(mind, 0) if action == NONE and carries_it else action
    if kind == c.OPEN_DOOR:
        action = pursue(mind, READY_DOORS, which, c.TOGGLE, NONE, 0)
        if action == NONE and mark(mind, BARRED_DOORS, which):
            door = nearest(mind)
            if door != _NOWHERE:
                action = fetch(mind, KEYS, color_of(cell_at(mind.grid, door)), CELL, door)
        return action
    if kind == c.PICK_UP:
        return lay_down(mind, 2) if carries_it else fetch(mind, OBJECTS, which, NONE, 0)
    if kind == c.PUT_NEXT:
        if not mark(mind, BESIDE, which + 1):
            if mark(mind, OCCUPIED, which + 1):
                return fetch(mind, OCCUPIED, which + 1, NONE, 0)
            if certain:
                return NONE
        write(mind.avoid, mind.wanted)
        if carries_it:
            action = pursue(mind, BESIDE, which + 1, c.DROP, NONE, 0)
            return action if action != NONE else pursue(mind, UNKNOWN, 0, c.FORWARD, NONE, 0)
        return fetch(mind, OBJECTS, which, BESIDE, which + 1)
    return NONE


@helper
def attempt_own(mind: Any) -> int:
    """The next action for a task of minigrid's own; NONE where something that it needs has to be found first."""
    env, task = mind.env, mind.env.task[0]
    if task == c.RED_THEN_BLUE:
        return pursue(mind, DOORS, c.BLUE if env.done else c.RED, c.TOGGLE, NONE, 0)
    if task == c.GO_BESIDE:
        if touches(mind, env.agent, FIRST, False):
            return c.DONE
        return pursue(mind, STANDS, FIRST, c.FORWARD, NONE, 0)
    if task == c.PUT_NEAR and env.carrying != NOTHING_CARRIED:
        return pursue(mind, NEAR, SECOND, c.DROP, NONE, 0)
    return pursue(mind, TARGETS, FIRST, c.PICKUP, NONE, 0)


@helper
def fetch(mind: Any, what: int, which: int, to: int, to_which: int) -> int:
    """Pick something up; `to`: it is to be carried there. What is carried is laid down first.

    Unless it is a key, and one of the ways leads through a door that it opens: then first the door.
    """
    if mind.env.carrying != NOTHING_CARRIED and mark(mind, what, which):
        obstacle, door = way(mind, mind.env.agent)
        if obstacle != NO_WAY and door == 0 and to != NONE:
            cargo = nearest(mind)
            if not mark(mind, to, to_which):
                mark(mind, UNKNOWN, 0)
            _, door = way(mind, cargo)
        if door:
            action = pursue(mind, CELL, door, c.TOGGLE, NONE, 0)
            if action != NONE:
                return action
        elif obstacle != NO_WAY:
            return lay_down(mind, 0)
    return pursue(mind, what, which, c.PICKUP, to, to_which)


@helper
def nearest(mind: Any) -> int:
    """The first cell marked as wanted, as the bot walks; _NOWHERE where none can be reached."""
    found, _ = approach(mind)
    if found != NONE:
        return found >> 3
    for at in range(len(mind.grid)):
        if mind.wanted[at]:
            return at
    return _NOWHERE


@helper
def pursue(mind: Any, what: int, which: int, deed: int, to: int, to_which: int) -> int:
    """The next action on the way to face a cell and do something there.

    Args:
        mind: of the bot.
        what: which cells, see `mark`.
        which: likewise.
        deed: the action when one of them is in front, or STAY.
        to: where what is picked up is to be carried: the way from there on must be free before it is. NONE: nowhere.
        to_which: likewise.

    Returns:
        NONE where there is no such cell, or no way to one that the bot knows of.
    """
    for _ in range(_DEPTH):
        if not mark(mind, what, which):
            return NONE
        found, _ = approach(mind)
        obstacle = 0
        if found == NONE:
            obstacle, _ = way(mind, mind.env.agent)
            if obstacle == NO_WAY:
                return NONE
        elif to != NONE:
            if not mark(mind, to, to_which):
                mark(mind, UNKNOWN, 0)
            obstacle, _ = way(mind, found >> 3)
        if obstacle <= 0:
            if found & 7 != HERE:
                return found & 7
            return deed if deed != STAY else stay(mind)
        if mind.env.carrying != NOTHING_CARRIED:
            return lay_down(mind, 0)
        deed = c.PICKUP
        if mind.terrain[obstacle] == BLOCKED:
            what, which, to = CELL, obstacle, NONE
        else:
            what, which, to, to_which = KEYS, color_of(cell_at(mind.grid, obstacle)), CELL, obstacle
    return NONE


@helper
def stay(mind: Any) -> int:
    """An action that changes nothing, one of the first four."""
    front = mind.env.agent + ahead(mind.env.heading, mind.stride)
    return c.PICKUP if mind.terrain[front] in (FREE, SHUT, BARRED) else c.FORWARD


@helper
def lay_down(mind: Any, least: int) -> int:
    """The next action on the way to a place for what is carried: of the kinds of `SPOTS` from `least` on, the nearest.

    A kind counts as `_SCRUPLE` actions nearer than the next: something in the way may have to be moved once more. Once
    a place is chosen it stays the same: what is off the path depends on where the bot stands.
    """
    if mind.spot[0] and kind_of(cell_at(mind.grid, mind.spot[0])) == c.EMPTY and mark(mind, CELL, mind.spot[0]):
        found, _ = approach(mind)
        if found != NONE:
            return c.DROP if found & 7 == HERE else found & 7
    best, least_cost = NONE, 0
    for scruples in range(least, 3):
        if mark(mind, SPOTS, scruples) and (best == NONE or least_cost > _SCRUPLE * scruples):
            found, steps = approach(mind)
            if found != NONE and (best == NONE or steps + _SCRUPLE * scruples < least_cost):
                best, least_cost = found, steps + _SCRUPLE * scruples
    if best == NONE:
        return NONE
    mind.spot[0] = best >> 3
    return c.DROP if best & 7 == HERE else best & 7
