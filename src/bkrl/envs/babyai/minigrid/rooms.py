"""Layouts of minigrid's levels with several rooms, but those by recipe; see `halls`."""

from typing import Any, Final

import numpy as np

from bkrl.core.jit import helper
from bkrl.envs.babyai import constants as c
from bkrl.envs.babyai.minigrid import levels
from bkrl.envs.babyai.minigrid.halls import (
    GOAL_CELL,
    between,
    clear_map,
    fill,
    find_empty,
    name_target,
    place_of,
    start_in,
    wall_in,
)
from bkrl.envs.babyai.pcg64 import integer_below
from bkrl.envs.babyai.rooms import draw_color, draw_kind, draw_some
from bkrl.envs.babyai.state import EMPTY_CELL, FIRST, SECOND, WALL_CELL, make_cell

_COLORS: Final = np.array(c.COLORS_AS_DRAWN)


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
    colors = np.empty(len(_COLORS), np.int64)
    draw_some(env, _COLORS, len(_COLORS), len(_COLORS), colors)
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
def generate_rooms(grid: Any, env: Any, level: Any, stride: int) -> None:
    """A new episode of a level with several rooms."""
    clear_map(grid, env, level, stride)
    if level.layout == levels.GRID_OF_ROOMS:
        draw_grid_of_rooms(grid, env, level, stride)
    elif level.layout == levels.LOCKED_ROOM:
        draw_locked_room(grid, env, level.width, level.height, stride)
    else:
        draw_multi_room(grid, env, level, stride)
