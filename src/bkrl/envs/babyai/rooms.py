"""A grid of rooms, drawn as minigrid draws it: doors, objects and the agent, in these rooms.

Source: `RoomGrid` and `MiniGridEnv.place_obj` of PyPI minigrid, `RoomGridLevel.check_objs_reachable`. The draws, their
order and their bounds are minigrid's, so the same stream of random numbers gives the same layout and is left in the
same state. A function that returns False has found no place: the layout is to be drawn again from the start.

Rooms are numbered row by row. Neighbours share a wall: room (column, row) has its top left corner at
(column * (size - 1), row * (size - 1)), so 3 × 2 rooms of size 6 make a map of 16 × 11 cells.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bkrl.core.jit import helper
from bkrl.envs.babyai.constants import ANY, CLOSED, COLORS_AS_DRAWN, DOOR, EMPTY, KINDS_AS_DRAWN, LOCKED, WALL
from bkrl.envs.babyai.pcg64 import integer_below
from bkrl.envs.babyai.state import EMPTY_CELL, MARGIN, WALL_CELL, ahead, cell_at, kind_of, make_cell

NOWHERE: Final = -1
MAX_ROOMS: Final = 9
MAX_THINGS: Final = 80
MAX_TRIES: Final = 1000  # of placing one thing, then the layout is drawn afresh
HEADINGS: Final = 4
WALLED, DOORWAY, OPENING = range(3)
_MAX_DOORS_TRIED: Final = 5000
_MAX_POSES: Final = 10_000  # 1 pose of 144 is found in all but one of 10**30 cases
_COLORS: Final = np.array(COLORS_AS_DRAWN)
_KINDS: Final = np.array(KINDS_AS_DRAWN)

PLAN = np.dtype(
    [
        ("columns", np.int64),
        ("rows", np.int64),
        ("size", np.int64),  # of a room, walls included
        ("num_things", np.int64),
        ("things", np.int64, (MAX_THINGS,)),  # cells of objects and doors, in the order in which they were added
        # Of each room, for its sides right, down, left, up:
        ("side", np.int64, (MAX_ROOMS, 4)),  # WALLED, DOORWAY or OPENING
        ("place", np.int64, (MAX_ROOMS, 4)),  # the cell where a door may be, NOWHERE on the map's edge
        ("locked", np.int64, (MAX_ROOMS,)),  # `Room.locked`: the door added last to this room is locked
        # What was drawn last, for later steps of a layout
        ("room", np.int64),
        ("locked_room", np.int64),  # NOWHERE where there is none
        ("door_color", np.int64),
        ("colors", np.int64, (6,)),
        ("kind", np.int64),
        ("num_chosen", np.int64),
        ("chosen", np.int64, (4,)),  # cells of the things that the mission is about
    ]
)
"""A layout while it is drawn."""


def empty_rooms(columns: int, rows: int, size: int) -> NDArray[np.uint32]:
    """The padded grid of so many rooms with nothing in them, laid flat."""
    inner = np.full((rows * (size - 1) + 1, columns * (size - 1) + 1), EMPTY_CELL, np.uint32)
    inner[:: size - 1] = inner[:, :: size - 1] = WALL_CELL
    return np.pad(inner, MARGIN, constant_values=WALL_CELL).ravel()


@helper
def begin_rooms(env: Any, plan: Any, columns: int, rows: int, size: int, stride: int) -> None:
    """`RoomGrid._gen_grid`: where doors may be; the agent is in the middle until it is placed."""
    plan.columns, plan.rows, plan.size = columns, rows, size
    plan.num_things = plan.num_chosen = 0
    plan.room = plan.locked_room = NOWHERE
    plan.locked[:] = False
    plan.side[:] = WALLED
    plan.place[:] = NOWHERE
    for row in range(rows):
        for column in range(columns):
            room = row * columns + column
            corner = corner_of(plan, room, stride)
            if column < columns - 1:
                at = corner + (1 + integer_below(env, size - 2)) * stride + size - 1
                plan.place[room, 0] = plan.place[room + 1, 2] = at
            if row < rows - 1:
                at = corner + 1 + integer_below(env, size - 2) + (size - 1) * stride
                plan.place[room, 1] = plan.place[room + columns, 3] = at
    middle = corner_of(plan, rows // 2 * columns + columns // 2, stride)
    env.agent = middle + size // 2 * stride + size // 2
    env.heading = 0


@helper
def corner_of(plan: Any, room: int, stride: int) -> int:
    """The top left cell of a room, which is a wall."""
    row, column = room // plan.columns, room % plan.columns
    return (MARGIN + row * (plan.size - 1)) * stride + MARGIN + column * (plan.size - 1)


@helper
def room_at(plan: Any, at: int, stride: int) -> int:
    """`RoomGrid.room_from_pos`; a wall between two rooms belongs to the one on the right, or below."""
    y, x = at // stride - MARGIN, at % stride - MARGIN
    return y // (plan.size - 1) * plan.columns + x // (plan.size - 1)


@helper
def inside(plan: Any, room: int, at: int, stride: int) -> bool:
    """`Room.pos_inside`: within the room or its walls."""
    corner = corner_of(plan, room, stride)
    y, x = at // stride - corner // stride, at % stride - corner % stride
    return 0 <= y < plan.size and 0 <= x < plan.size


@helper
def neighbor(plan: Any, room: int, side: int) -> int:
    """The room on this side (0 right, 1 down, 2 left, 3 up)."""
    if side % 2 == 0:
        return room + 1 - side
    return room + (2 - side) * plan.columns


@helper
def draw_room(env: Any, plan: Any, column: int, row: int) -> int:
    """A room, its column drawn before its row where they are ANY."""
    if column == ANY:
        column = integer_below(env, plan.columns)
    if row == ANY:
        row = integer_below(env, plan.rows)
    return row * plan.columns + column


@helper
def draw_color(env: Any) -> int:
    """`MiniGridEnv._rand_color`."""
    return _COLORS[integer_below(env, len(_COLORS))]


@helper
def draw_kind(env: Any) -> int:
    """A key, a ball or a box."""
    return _KINDS[integer_below(env, len(_KINDS))]


@helper
def draw_some(env: Any, among: Any, size: int, count: int, out: Any) -> None:
    """`MiniGridEnv._rand_subset`: `count` of the first `size` elements, one after the other."""
    left = among[:size].copy()
    for i in range(count):
        drawn = integer_below(env, size - i)
        out[i] = left[drawn]
        for j in range(drawn, size - i - 1):
            left[j] = left[j + 1]


@helper
def clear_room(grid: Any, size: int, stride: int) -> None:
    """An empty room within its walls."""
    grid[:] = WALL_CELL
    for y in range(1, size - 1):
        start = (MARGIN + y) * stride + MARGIN + 1
        grid[start : start + size - 2] = EMPTY_CELL


@helper
def find_place(grid: Any, env: Any, corner: int, size: int, stride: int, agent: int) -> int:
    """`MiniGridEnv.place_obj`: a random empty cell of a room that is not the agent's or beside it.

    NOWHERE after MAX_TRIES. For the agent itself `agent` is NOWHERE.
    """
    for _ in range(MAX_TRIES + 1):
        x = integer_below(env, size)
        at = corner + integer_below(env, size) * stride + x
        if kind_of(cell_at(grid, at)) != EMPTY:
            continue
        if agent != NOWHERE and distance(at, agent, stride) < 2:
            continue
        return at
    return NOWHERE


@helper
def distance(a: int, b: int, stride: int) -> int:
    """Manhattan distance between two cells."""
    return abs(a // stride - b // stride) + abs(a % stride - b % stride)


@helper
def place_agent(grid: Any, env: Any, corner: int, size: int, stride: int) -> bool:
    """`RoomGrid.place_agent`: with an empty cell or a wall in front.

    minigrid tries for ever where objects are on all sides of the only free cell, which some levels come to.
    """
    for _ in range(_MAX_POSES):
        env.agent = find_place(grid, env, corner, size, stride, NOWHERE)
        if env.agent == NOWHERE:
            return False
        env.heading = integer_below(env, HEADINGS)
        front = kind_of(cell_at(grid, env.agent + ahead(env.heading, stride)))
        if front in (EMPTY, WALL):
            return True
    return False


@helper
def place_object(grid: Any, env: Any, cell: int, corner: int, size: int, stride: int) -> bool:
    """`RoomGrid.place_in_room`, of a room that no plan describes."""
    at = find_place(grid, env, corner, size, stride, env.agent)
    if at == NOWHERE:
        return False
    grid[at] = cell
    return True


@helper
def add_object(grid: Any, env: Any, plan: Any, room: int, cell: int, stride: int) -> bool:
    """`RoomGrid.place_in_room`."""
    at = find_place(grid, env, corner_of(plan, room, stride), plan.size, stride, env.agent)
    if at == NOWHERE:
        return False
    add_thing(grid, plan, at, cell)
    return True


@helper
def add_thing(grid: Any, plan: Any, at: int, cell: int) -> None:
    """Put something into a cell, and remember that it is there."""
    grid[at] = cell
    plan.things[plan.num_things] = at
    plan.num_things += 1


@helper
def add_distractor(grid: Any, env: Any, plan: Any, column: int, row: int, unique: bool, stride: int) -> bool:
    """One object of `RoomGrid.add_distractors`; `unique`: unlike all others."""
    while True:
        color = draw_color(env)
        cell = make_cell(draw_kind(env), color, 0)
        is_new = True
        for i in range(plan.num_things):
            is_new &= cell_at(grid, plan.things[i]) != cell
        if is_new or not unique:
            break
    return add_object(grid, env, plan, draw_room(env, plan, column, row), cell, stride)


@helper
def add_door(grid: Any, env: Any, plan: Any, room: int, side: int, color: int, locked: int) -> None:
    """`RoomGrid.add_door`. What is ANY is drawn: a side where there is a neighbour but no door, a colour, a lock."""
    if side == ANY:
        side = integer_below(env, 4)
        while plan.place[room, side] == NOWHERE or plan.side[room, side] != WALLED:
            side = integer_below(env, 4)
    if color == ANY:
        color = draw_color(env)
    if locked == ANY:
        locked = 1 - integer_below(env, 2)
    add_thing(grid, plan, plan.place[room, side], make_cell(DOOR, color, LOCKED if locked else CLOSED))
    plan.locked[room] = locked
    plan.door_color = color
    join(plan, room, side, DOORWAY)


@helper
def join(plan: Any, room: int, side: int, how: int) -> None:
    """Two rooms are connected."""
    plan.side[room, side] = how
    plan.side[neighbor(plan, room, side), (side + 2) % 4] = how


@helper
def remove_wall(grid: Any, plan: Any, room: int, side: int, stride: int) -> None:
    """`RoomGrid.remove_wall`."""
    last = plan.size - 1
    at = corner_of(plan, room, stride)
    along = 1 if side % 2 else stride
    if side == 0:
        at += last
    elif side == 1:
        at += last * stride
    for i in range(1, last):
        grid[at + i * along] = EMPTY_CELL
    join(plan, room, side, OPENING)


@helper
def connect_all(grid: Any, env: Any, plan: Any, without: int, stride: int) -> bool:
    """`RoomGrid.connect_all`: doors of any colour but `without` until all rooms can be reached."""
    num_rooms = plan.columns * plan.rows
    start = room_at(plan, env.agent, stride)
    reached = reachable_rooms(plan, start)
    for _ in range(_MAX_DOORS_TRIED + 1):
        if reached == (1 << num_rooms) - 1:
            return True
        room = draw_room(env, plan, ANY, ANY)
        side = integer_below(env, 4)
        if plan.place[room, side] == NOWHERE or plan.side[room, side] != WALLED:
            continue
        if plan.locked[room] or plan.locked[neighbor(plan, room, side)]:
            continue
        add_door(grid, env, plan, room, side, draw_color_but(env, without), 0)
        reached = reachable_rooms(plan, start)
    return False


@helper
def draw_color_but(env: Any, without: int) -> int:
    """A colour that is not this one; any where it is ANY."""
    if without == ANY:
        return draw_color(env)
    drawn = integer_below(env, len(_COLORS) - 1)
    for color in _COLORS:
        if color != without:
            if drawn == 0:
                return color
            drawn -= 1
    return ANY


@helper
def reachable_rooms(plan: Any, start: int) -> int:
    """The rooms that doors and openings lead to from this one, as bits."""
    reached, before = 1 << start, 0
    while reached != before:
        before = reached
        for room in range(plan.columns * plan.rows):
            if (reached >> room) & 1:
                for side in range(4):
                    if plan.side[room, side] != WALLED:
                        reached |= 1 << neighbor(plan, room, side)
    return reached


@helper
def all_reachable(grid: Any, agent: int, stride: int) -> bool:
    """`check_objs_reachable`: whether each object stands beside a cell the agent can walk to, through any door."""
    reached = np.zeros(len(grid), np.bool_)
    stack = np.empty(len(grid), np.int64)
    reached[agent] = True
    stack[0] = agent
    waiting = 1
    while waiting > 0:
        waiting -= 1
        at = stack[waiting]
        if kind_of(cell_at(grid, at)) not in (EMPTY, DOOR):
            continue
        for beside in (at + 1, at - 1, at + stride, at - stride):
            if not reached[beside]:
                reached[beside] = True
                stack[waiting] = beside
                waiting += 1
    unreached = 0
    for at in range(len(grid)):
        unreached += kind_of(cell_at(grid, at)) > WALL and not reached[at]
    return unreached == 0
