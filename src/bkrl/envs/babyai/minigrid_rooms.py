"""Layouts of minigrid's levels with several rooms; see `minigrid_generate`."""

from typing import Any, Final

import numpy as np

from bkrl.core.jit import helper
from bkrl.envs.babyai import constants as c
from bkrl.envs.babyai.minigrid_halls import (
    GOAL_CELL,
    between,
    fill,
    find_empty,
    name_target,
    place_of,
    start_in,
    wall_in,
)
from bkrl.envs.babyai.minigrid_levels import KEY_CORRIDOR, UNLOCK
from bkrl.envs.babyai.pcg64 import integer_below
from bkrl.envs.babyai.rooms import (
    add_door,
    add_object,
    begin_rooms,
    connect_all,
    corner_of,
    draw_color,
    draw_kind,
    neighbor,
    place_agent,
    remove_wall,
)
from bkrl.envs.babyai.state import (
    CONTENT_COLOR_SHIFT,
    CONTENT_KIND_SHIFT,
    EMPTY_CELL,
    FIRST,
    MEMBER_SHIFT,
    SECOND,
    TRACKED_SHIFT,
    WALL_CELL,
    ahead,
    make_cell,
)

_COLORS: Final = np.array(c.COLORS_AS_DRAWN)
_MEANT: Final = 1 << MEMBER_SHIFT | 1 << TRACKED_SHIFT
_CORNERS: Final = np.array([2, 8, 6, 0])
"""Rooms of a maze in which the ball may lie: top right, bottom right, bottom left, top left."""
_MIDDLE: Final = 4


@helper
def draw_grid_of_rooms(grid: Any, env: Any, level: Any, stride: int) -> None:
    """`FourRoomsEnv` and `PlaygroundEnv`: `count` rooms a side, joined by holes; three a side by doors."""
    width, height, rooms, size = level.width, level.height, level.count, level.size
    doors = rooms > 2
    passage, short = EMPTY_CELL, 1 if doors else 0
    for row in range(0, rooms * size, size):
        for column in range(0, rooms * size, size):
            if column + size < rooms * size:
                fill(grid, column + size, row, 1, size, WALL_CELL, stride)
                at = place_of(column + size, between(env, row + 1, row + size - short), stride)
                if doors:
                    passage = make_cell(c.DOOR, draw_color(env), c.CLOSED)
                grid[at] = passage
            if row + size < rooms * size:
                fill(grid, column, row + size, size, 1, WALL_CELL, stride)
                at = place_of(between(env, column + 1, column + size - short), row + size, stride)
                if doors:
                    passage = make_cell(c.DOOR, draw_color(env), c.CLOSED)
                grid[at] = passage
    start_in(grid, env, 0, 0, width, height, stride)
    if not doors:
        grid[find_empty(grid, env, 0, 0, width, height, stride)] = GOAL_CELL
        return
    for _ in range(12):
        kind = draw_kind(env)
        cell = make_cell(kind, draw_color(env), 0)
        grid[find_empty(grid, env, 0, 0, width, height, stride)] = cell


@helper
def draw_locked_room(grid: Any, env: Any, width: int, height: int, stride: int) -> None:
    """`LockedRoomEnv`: three rooms on either side of a hall, one of them locked. Room 2 row + side."""
    left, right, rows = width // 2 - 2, width // 2 + 2, height // 3
    for x in (left, right):
        fill(grid, x, 0, 1, height, WALL_CELL, stride)
    for y in range(0, 3 * rows, rows):
        fill(grid, 0, y, left, 1, WALL_CELL, stride)
        fill(grid, right, y, width - right, 1, WALL_CELL, stride)
    locked = integer_below(env, 6)
    grid[place_in_side_room(env, locked, left, right, rows, stride)] = GOAL_CELL
    colors = _COLORS.copy()
    shuffle_colors(env, colors)
    for room in range(6):
        at = place_of(right if room % 2 else left, room // 2 * rows + 3, stride)
        grid[at] = make_cell(c.DOOR, colors[room], c.LOCKED if room == locked else c.CLOSED)
    room = integer_below(env, 6)
    while room == locked:
        room = integer_below(env, 6)
    key = make_cell(c.KEY, colors[locked], 0)
    grid[place_in_side_room(env, room, left, right, rows, stride)] = key
    name_target(env, FIRST, key)
    env.target_color[SECOND] = colors[room]
    start_in(grid, env, left, 0, right - left, height, stride)


@helper
def place_in_side_room(env: Any, room: int, left: int, right: int, rows: int, stride: int) -> int:
    """`LockedRoom.rand_pos`."""
    x = (right if room % 2 else 0) + 1
    y = room // 2 * rows + 1
    column = between(env, x, x + left - 1)
    return place_of(column, between(env, y, y + rows - 1), stride)


@helper
def draw_multi_room(grid: Any, env: Any, level: Any, stride: int) -> None:
    """`MultiRoomEnv`: chains of rooms until one is `count` rooms long.

    A room is (x, y, width, height, x of its entry, y of its entry).
    """
    count, width, height = level.count, level.width, level.height
    rooms = np.empty((count, 6), np.int64)
    made = 0
    while made < count:
        made = draw_chain(env, rooms, width, height, level.size)
    fill(grid, 0, 0, width, height, EMPTY_CELL, stride)
    before = -1  # the number of the last door's colour
    for room in range(count):
        place = rooms[room]
        wall_in(grid, place[0], place[1], place[2], place[3], stride)
        if room > 0:
            number = integer_below(env, 6 if before < 0 else 5)
            number += before >= 0 and number >= before
            grid[place_of(place[4], place[5], stride)] = make_cell(c.DOOR, _COLORS[number], c.CLOSED)
            before = number
    start_in(grid, env, rooms[0, 0], rooms[0, 1], rooms[0, 2], rooms[0, 3], stride)
    place = rooms[count - 1]
    grid[find_empty(grid, env, place[0], place[1], place[2], place[3], stride)] = GOAL_CELL


@helper
def draw_chain(env: Any, rooms: Any, width: int, height: int, most: int) -> int:
    """`MultiRoomEnv._placeRoom`; how many rooms fit. Walls are 0 right, 1 down, 2 left, 3 up.

    A room that fits stays: minigrid tries eight times to place the next one, and never another one before it.
    """
    x = integer_below(env, width - 2)
    y = integer_below(env, width - 2)
    if not draw_room(env, rooms, 0, 2, x, y, width, height, most):
        return 0
    entry = 2
    for made in range(1, len(rooms)):
        tries = 8
        left, top, columns, rows = rooms[made - 1, 0], rooms[made - 1, 1], rooms[made - 1, 2], rooms[made - 1, 3]
        while tries > 0:
            tries -= 1
            wall = integer_below(env, 3)
            wall += wall >= entry
            along = 1 + integer_below(env, (rows if wall in (0, 2) else columns) - 2)
            x = left + (along if wall in (1, 3) else columns - 1 if wall == 0 else 0)
            y = top + (along if wall in (0, 2) else rows - 1 if wall == 1 else 0)
            if draw_room(env, rooms, made, (wall + 2) % 4, x, y, width, height, most):
                entry = (wall + 2) % 4
                break
        else:
            return made
    return len(rooms)


@helper
def draw_room(
    env: Any, rooms: Any, made: int, entry: int, door_x: int, door_y: int, width: int, height: int, most: int
) -> bool:
    """Room number `made`, entered by a door in wall `entry`; False where it would not fit."""
    columns = between(env, 4, most + 1)
    rows = between(env, 4, most + 1)
    x, y = door_x, door_y
    if made > 0 and entry in (0, 2):
        y = between(env, door_y - rows + 2, door_y)
        x = door_x - columns + 1 if entry == 0 else door_x
    elif made > 0:
        x = between(env, door_x - columns + 2, door_x)
        y = door_y - rows + 1 if entry == 1 else door_y
    if x < 0 or y < 0 or x + columns > width or y + rows >= height:
        return False
    for i in range(made - 1):
        other = rooms[i]
        apart = x + columns < other[0] or other[0] + other[2] <= x or y + rows < other[1] or other[1] + other[3] <= y
        if not apart:
            return False
    room = rooms[made]
    room[0], room[1], room[2], room[3], room[4], room[5] = x, y, columns, rows, door_x, door_y
    return True


@helper
def shuffle_colors(env: Any, colors: Any) -> None:
    """`MiniGridEnv._rand_subset` of all colours, in place."""
    for i in range(len(colors)):
        drawn = i + integer_below(env, len(colors) - i)
        color = colors[drawn]
        for at in range(drawn, i, -1):
            colors[at] = colors[at - 1]
        colors[i] = color


@helper
def draw_rooms(grid: Any, env: Any, level: Any, plan: Any, stride: int) -> bool:
    """The levels of `RoomGrid`. False where something finds no place, and where minigrid would give up."""
    size, width, height = level.size, level.width, level.height
    for x in range(0, width, size - 1):
        fill(grid, x, 0, 1, height, WALL_CELL, stride)
    for y in range(0, height, size - 1):
        fill(grid, 0, y, width, 1, WALL_CELL, stride)
    begin_rooms(env, plan, width // (size - 1), height // (size - 1), size, stride)
    if level.layout == UNLOCK:
        return draw_unlock(grid, env, level, plan, stride)
    if level.layout == KEY_CORRIDOR:
        return draw_key_corridor(grid, env, plan, stride)
    return draw_maze(grid, env, level, plan, stride)


@helper
def add_target(grid: Any, env: Any, plan: Any, room: int, cell: int, stride: int) -> bool:
    """The object of the mission."""
    name_target(env, FIRST, cell)
    return add_object(grid, env, plan, room, cell | _MEANT, stride)


@helper
def start_in_room(grid: Any, env: Any, plan: Any, room: int, stride: int) -> bool:
    """`RoomGrid.place_agent`."""
    return place_agent(grid, env, corner_of(plan, room, stride), plan.size, stride)


@helper
def draw_unlock(grid: Any, env: Any, level: Any, plan: Any, stride: int) -> bool:
    """`UnlockEnv`, `UnlockPickupEnv` and `BlockedUnlockPickupEnv`: a locked door from room 0 to room 1."""
    if level.task == c.PICK_UP and not add_target(grid, env, plan, 1, make_cell(c.BOX, draw_color(env), 0), stride):
        return False
    add_door(grid, env, plan, 0, 0, c.ANY, 1)
    if level.task == c.OPEN_DOOR:
        grid[plan.place[0, 0]] |= _MEANT
    if level.blocked:
        grid[plan.place[0, 0] - 1] = make_cell(c.BALL, draw_color(env), 0)
    key = make_cell(c.KEY, plan.door_color, 0)
    return add_object(grid, env, plan, 0, key, stride) and start_in_room(grid, env, plan, 0, stride)


@helper
def draw_key_corridor(grid: Any, env: Any, plan: Any, stride: int) -> bool:
    """`KeyCorridorEnv`: the middle column is one corridor, the ball is in a locked room to the right of it."""
    for row in range(1, plan.rows):
        remove_wall(grid, plan, 3 * row + 1, 3, stride)
    room = 3 * integer_below(env, plan.rows) + 2
    add_door(grid, env, plan, room, 2, c.ANY, 1)
    key = make_cell(c.KEY, plan.door_color, 0)
    return (
        add_target(grid, env, plan, room, make_cell(c.BALL, draw_color(env), 0), stride)
        and add_object(grid, env, plan, 3 * integer_below(env, plan.rows), key, stride)
        and start_in_room(grid, env, plan, plan.rows // 2 * 3 + 1, stride)
        and connect_all(grid, env, plan, c.ANY, stride)
    )


@helper
def draw_maze(grid: Any, env: Any, level: Any, plan: Any, stride: int) -> bool:
    """`ObstructedMaze_Full` and its second version with `count` quarters, `ObstructedMaze_1Dlhb` with none.

    A quarter is a side room, its door to the middle, and its two locked doors to the corners. The agent starts in
    column `place` of the middle row.
    """
    colors = _COLORS.copy()
    shuffle_colors(env, colors)
    ball = make_cell(c.BALL, c.BLUE, 0)
    if level.count == 0:
        lock(grid, env, plan, 0, 0, colors[0], level.blocked, stride)
        return (
            add_key(grid, env, plan, 0, colors[0], level.boxed, stride)
            and add_target(grid, env, plan, 1, ball, stride)
            and start_in_room(grid, env, plan, 0, stride)
        )
    placed = True
    for i in range(level.count):
        room = neighbor(plan, _MIDDLE, i)
        add_door(grid, env, plan, _MIDDLE, i, colors[i], 0)
        for side in (i - 1, i + 1):
            lock(grid, env, plan, room, side % 4, colors[side % 6], level.blocked, stride)
            if not level.keys_last:
                placed &= add_key(grid, env, plan, room, colors[side % 6], level.boxed, stride)
        if level.keys_last:
            for side in (i - 1, i + 1):
                placed &= add_key(grid, env, plan, room, colors[side % 6], level.boxed, stride)
    return (
        placed
        and add_target(grid, env, plan, _CORNERS[integer_below(env, level.count)], ball, stride)
        and start_in_room(grid, env, plan, plan.columns + level.place, stride)
    )


@helper
def lock(grid: Any, env: Any, plan: Any, room: int, side: int, color: int, blocked: bool, stride: int) -> None:
    """A locked door. A ball that blocks it takes the place of whatever is there, as it does in minigrid."""
    add_door(grid, env, plan, room, side, color, 1)
    if blocked:
        grid[plan.place[room, side] - ahead(side, stride)] = make_cell(c.BALL, c.GREEN, 0)


@helper
def add_key(grid: Any, env: Any, plan: Any, room: int, color: int, boxed: bool, stride: int) -> bool:
    """A key, or a box with a key in it."""
    cell = make_cell(c.KEY, color, 0)
    if boxed:
        cell = make_cell(c.BOX, c.GREY, 0) | c.KEY << CONTENT_KIND_SHIFT | color << CONTENT_COLOR_SHIFT
    return add_object(grid, env, plan, room, cell, stride)
