"""How the bot finds its way over the cells it has seen: marks, the shortest path, and paths past what is in the way."""

from typing import Any, Final, NamedTuple

from bkrl.core.jit import helper
from bkrl.envs.babyai import constants as c
from bkrl.envs.babyai.missions import is_tracked, refers
from bkrl.envs.babyai.state import MARGIN, MEMBER_MASK, ahead, cell_at, color_of, is_target, kind_of, state_of

# What a cell is to the bot.
UNSEEN: Final = 0
FREE: Final = 1
WALLED: Final = 2
SHUT: Final = 3  # a door that a toggle opens: closed, or locked with its key at hand
BARRED: Final = 4  # a locked door whose key has been seen and lies somewhere
BLOCKED: Final = 5  # an object that can be carried away

# Which cells `mark` marks.
PLACES: Final = 0  # what "go to" counts for description `which`
OBJECTS: Final = 1  # of description `which`, to be picked up
READY_DOORS: Final = 2  # of description `which`, to be opened by a toggle or two
BARRED_DOORS: Final = 3  # of description `which`, for which a key has been seen
BESIDE: Final = 4  # empty cells beside an object of description `which`
OCCUPIED: Final = 5  # as BESIDE, where something lies that can be carried away
UNKNOWN: Final = 6  # not seen yet
KEYS: Final = 7  # of colour `which`
BOXES: Final = 8  # that the mission does not mean
GOALS: Final = 9
CELL: Final = 10  # the one with index `which`
TARGETS: Final = 12  # objects that a task of minigrid's own means by `which`, FIRST or SECOND
STANDS: Final = 13  # empty cells beside such an object, or a door
NEAR: Final = 14  # those that touch one, if only with a corner
DOORS: Final = 15  # of colour `which`
SPOTS: Final = 11  # empty cells, where something can be laid down: off the path and (0) in nobody's way, (1) anywhere,
# or (2) any

NONE: Final = -1
HERE: Final = 7
"""No action: what was looked for is in front."""

NO_WAY: Final = -1
_CLOCKWISE: Final = 8


class Mind(NamedTuple):
    """What the bot of one env knows, and its working memory. Arrays of cells have the grid's indices.

    Attributes:
        grid: the cells of the env; only those that were seen are read.
        env: the env's record.
        seen: one bit for each cell.
        stride: cells in a row.
        terrain: what each cell is to the bot.
        wanted: 1 for cells to be faced.
        avoid: 1 on the paths that were looked for in this step.
        spot: (1,) the cell that was chosen to lay down what is carried; 0 for none.
        parent, queue, later: of `way`.
        first, states: of `approach`; eight states a cell.
    """

    grid: Any
    env: Any
    seen: Any
    stride: Any
    terrain: Any
    wanted: Any
    avoid: Any
    spot: Any
    parent: Any
    queue: Any
    later: Any
    first: Any
    states: Any


@helper
def has_seen(mind: Any, at: int) -> bool:
    """Whether a cell has been in view in this episode."""
    return (mind.seen[at >> 3] >> (at & 7)) & 1 != 0


@helper
def can_carry(kind: int) -> bool:
    """Whether an object can be picked up."""
    return kind in (c.KEY, c.BALL, c.BOX)


@helper
def opens(carried: int, door: int) -> bool:
    """Whether what is carried is the key of a door."""
    return kind_of(carried) == c.KEY and color_of(carried) == color_of(door)


@helper
def survey(mind: Any, fixed: bool, shut: bool) -> None:
    """Write `terrain`. `fixed`: nothing may be carried away; `shut`: no door may be opened."""
    keys, locked = 0, 0
    carried: Any = mind.env.carrying
    height = len(mind.grid) // mind.stride
    for y in range(MARGIN, height - MARGIN):
        for at in range(y * mind.stride + MARGIN, (y + 1) * mind.stride - MARGIN):
            cell = cell_at(mind.grid, at)
            kind, terrain = kind_of(cell), WALLED
            if not has_seen(mind, at):
                terrain = UNSEEN
            elif kind in (c.EMPTY, c.FLOOR) or (kind == c.DOOR and state_of(cell) == c.OPEN):
                terrain = FREE
            elif kind == c.DOOR and not shut:
                terrain = SHUT if state_of(cell) == c.CLOSED or opens(carried, cell) else BARRED
                locked += terrain == BARRED
            elif can_carry(kind):
                terrain = WALLED if fixed else BLOCKED
                if kind == c.KEY and not fixed:
                    keys |= 1 << color_of(cell)
            mind.terrain[at] = terrain
    if locked:
        for at in range(len(mind.grid)):
            if mind.terrain[at] == BARRED and not (keys >> color_of(cell_at(mind.grid, at))) & 1:
                mind.terrain[at] = WALLED


@helper
def mark(mind: Any, what: int, which: int) -> bool:
    """Write `wanted`; whether there is any such cell."""
    mind.wanted[:] = 0
    if what == CELL:
        mind.wanted[which] = 1
        return True
    found = False
    height = len(mind.grid) // mind.stride
    for y in range(MARGIN, height - MARGIN):
        for at in range(y * mind.stride + MARGIN, (y + 1) * mind.stride - MARGIN):
            seen = has_seen(mind, at)
            if (not seen and what == UNKNOWN) or (seen and is_meant(mind, at, what, which)):
                mind.wanted[at] = 1
                found = True
    return found


@helper
def is_meant(mind: Any, at: int, what: int, which: int) -> bool:
    """Whether a seen cell is one of those to be marked."""
    cell = cell_at(mind.grid, at)
    kind = kind_of(cell)
    if kind == c.WALL:  # to minigrid, one is a grey object too
        return False
    if what == PLACES:
        return is_tracked(cell, which)
    if what == OBJECTS:
        return can_carry(kind) and refers(cell, which)
    if what == READY_DOORS:
        carried: Any = mind.env.carrying
        return refers(cell, which) and kind == c.DOOR and (state_of(cell) != c.LOCKED or opens(carried, cell))
    if what == BARRED_DOORS:
        return refers(cell, which) and mind.terrain[at] == BARRED
    if what in (BESIDE, OCCUPIED):
        if kind == c.EMPTY if what == BESIDE else can_carry(kind):
            for side in range(4):
                beside = at + ahead(side, mind.stride)
                near = cell_at(mind.grid, beside)
                if has_seen(mind, beside) and refers(near, which) and kind_of(near) != c.WALL:
                    return True
        return False
    if what == KEYS:
        return kind == c.KEY and color_of(cell) == which
    if what == BOXES:
        return kind == c.BOX and cell & MEMBER_MASK == 0
    if what == GOALS:
        return kind == c.GOAL
    if what == TARGETS:
        return can_carry(kind) and is_target(mind.env, cell, which)
    if what in (STANDS, NEAR):
        return kind == c.EMPTY and touches(mind, at, which, what == NEAR)
    if what == DOORS:
        return kind == c.DOOR and color_of(cell) == which
    if what == UNKNOWN or kind != c.EMPTY or (which < 2 and mind.avoid[at]):
        return False
    return which > 0 or keeps_ways_open(mind, at)


@helper
def touches(mind: Any, at: int, which: int, corners: bool) -> bool:
    """Whether what the mission calls its first or second object has been seen beside a cell, or at its corners."""
    for side in range(4):
        beside = at + ahead(side, mind.stride)
        if has_seen(mind, beside) and is_target(mind.env, cell_at(mind.grid, beside), which):
            return True
        corner = beside + ahead((side + 1) % 4, mind.stride)
        if corners and has_seen(mind, corner) and is_target(mind.env, cell_at(mind.grid, corner), which):
            return True
    return False


@helper
def keeps_ways_open(mind: Any, at: int) -> bool:
    """Whether an object laid down here neither divides the free cells around nor cuts an object or door off.

    Of the eight cells around, the free ones must be one arc of the circle, and each that is neither free nor wall
    must have a free neighbour on the circle.
    """
    changes = 0
    for i in range(_CLOCKWISE):
        before, this, after = kind_around(mind, at, i + 7), kind_around(mind, at, i), kind_around(mind, at, i + 1)
        changes += (this == FREE) != (after == FREE)
        if this == BLOCKED and before != FREE and after != FREE:
            return False
    return changes <= 2


@helper
def kind_around(mind: Any, at: int, i: int) -> int:
    """FREE, WALLED or (anything else) BLOCKED: the cell number i modulo 8 on the circle around a cell, clockwise."""
    side = ahead((i // 2) % 4, mind.stride)
    around = at + side + (ahead((i // 2 + 1) % 4, mind.stride) if i % 2 else 0)
    terrain = mind.terrain[around]
    return terrain if terrain in (FREE, WALLED) else BLOCKED


@helper
def approach(mind: Any) -> tuple[int, int]:
    """The first action on the shortest way to face a wanted cell, with nothing in between but doors to be opened.

    Turning, a step and opening a door take one action each. A state is the agent's cell, its heading, and whether it
    has just opened the door in front: 8 * cell + 2 * heading + opened.

    Returns:
        8 * the wanted cell + the action (HERE: none), NONE where there is no such way; and the number of actions.
    """
    first, states = mind.first, mind.states
    first[:] = 255
    start = 8 * mind.env.agent + 2 * mind.env.heading
    first[start] = HERE
    states[0] = start
    head, tail, steps, farther = 0, 1, 0, 1  # states from `farther` on take more than `steps` actions
    while head < tail:
        if head == farther:
            steps, farther = steps + 1, tail
        state: Any = states[head]
        head += 1
        at, heading, opened = state >> 3, (state >> 1) & 3, state & 1
        front = at + ahead(heading, mind.stride)
        if mind.wanted[front]:
            return front * 8 + first[state], steps
        for action in (c.FORWARD, c.TOGGLE, c.LEFT, c.RIGHT):
            if action == c.FORWARD:
                if mind.terrain[front] != FREE and not opened:
                    continue
                to = 8 * front + 2 * heading
            elif opened:
                break
            elif action == c.TOGGLE:
                if mind.terrain[front] != SHUT:
                    continue
                to = state | 1
            else:
                to = 8 * at + 2 * ((heading + (1 if action == c.RIGHT else 3)) % 4)
            if first[to] == 255:
                first[to] = action if head == 1 else first[state]
                states[tail] = to
                tail += 1
    return NONE, 0


@helper
def way(mind: Any, start: int) -> tuple[int, int]:
    """The path from a cell to a neighbour of a wanted one, past as few obstacles as can be; `avoid` is set on it.

    Cells are taken in the order of the obstacles before them, then of their distance.

    Returns:
        The first obstacle (BLOCKED or BARRED), 0 where there is none, NO_WAY where there is no path; and the first
        locked door on the path whose key is carried, 0 where there is none.
    """
    parent, queue, later = mind.parent, mind.queue, mind.later
    parent[:] = -1
    parent[start] = start
    queue[0] = start
    head, tail, waiting = 0, 1, 0
    while True:
        while head < tail:
            at: Any = queue[head]
            head += 1
            for side in range(4):
                beside = at + ahead(side, mind.stride)
                if mind.wanted[beside]:
                    return follow_back(mind, start, at)
                terrain = mind.terrain[beside]
                if parent[beside] < 0 and terrain not in (UNSEEN, WALLED):
                    parent[beside] = at
                    if terrain in (BLOCKED, BARRED):
                        later[waiting] = beside
                        waiting += 1
                    else:
                        queue[tail] = beside
                        tail += 1
        if waiting == 0:
            return NO_WAY, 0
        for i in range(waiting):
            queue[i] = later[i]
        head, tail, waiting = 0, waiting, 0


@helper
def follow_back(mind: Any, start: int, end: int) -> tuple[int, int]:
    """What `way` returns of the path that it has found."""
    obstacle = door = 0
    at: Any = end
    while at != start:
        mind.avoid[at] = 1
        terrain, cell = mind.terrain[at], cell_at(mind.grid, at)
        if terrain in (BLOCKED, BARRED):
            obstacle = at
        if terrain == SHUT and state_of(cell) == c.LOCKED:
            door = at
        at = mind.parent[at]
    return obstacle, door
