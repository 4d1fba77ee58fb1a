"""Layouts of minigrid's levels with one room, which walls may divide, drawn as the `_gen_grid` methods in
`minigrid.envs` draw them.

The draws, their order and their bounds are minigrid's, so the same stream of random numbers gives the same layout and
is left in the same state. Coordinates (x, y) are minigrid's: columns and rows of the map, without the margin.
"""

from dataclasses import fields
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bkrl.core.jit import helper
from bkrl.envs.babyai import constants as c
from bkrl.envs.babyai.minigrid import levels
from bkrl.envs.babyai.pcg64 import integer_below, shuffle
from bkrl.envs.babyai.rooms import HEADINGS, NOWHERE, draw_color, draw_kind
from bkrl.envs.babyai.state import (
    COLOR_SHIFT,
    EMPTY_CELL,
    FIRST,
    MARGIN,
    SECOND,
    TRACKED_SHIFT,
    WALL_CELL,
    cell_at,
    color_of,
    kind_of,
    make_cell,
)

GOAL_CELL: Final = c.GOAL | c.GREEN << COLOR_SHIFT
LAVA_CELL: Final = c.LAVA | c.RED << COLOR_SHIFT
WORDING: Final = 1
"""Where in `target_kind` of an env's record the number of the mission's wording stands."""
_TRACKED: Final = 1 << TRACKED_SHIFT

MINIGRID_LEVEL = np.dtype(
    [(field.name, np.int64) for field in fields(levels.MiniGridLevel) if field.type in (int, bool)]
)


def minigrid_record(level: levels.MiniGridLevel) -> NDArray[Any]:
    """A level for the kernels: an array of one MINIGRID_LEVEL record."""
    record = np.zeros(1, MINIGRID_LEVEL)
    for name in MINIGRID_LEVEL.names or ():
        record[name] = vars(level)[name]
    return record


@helper
def place_of(x: int, y: int, stride: int) -> int:
    """The index of a cell in the padded grid."""
    return (MARGIN + y) * stride + MARGIN + x


@helper
def between(env: Any, low: int, high: int) -> int:
    """`MiniGridEnv._rand_int`: a uniform integer in [low, high)."""
    return low + integer_below(env, high - low)


@helper
def fill(grid: Any, x: int, y: int, width: int, height: int, cell: int, stride: int) -> None:
    """Set all cells of a rectangle."""
    for row in range(y, y + height):
        start = place_of(x, row, stride)
        for at in range(start, start + width):
            grid[at] = cell


@helper
def clear_map(grid: Any, env: Any, level: Any, stride: int) -> None:
    """One empty room as large as the map, nobody in it, and the facts of every episode of a level."""
    env.task[:] = c.NO_TASK
    env.task[0] = level.task
    env.max_steps, env.see_through = level.max_steps, level.see_through
    env.strict = env.in_sequence = env.target_is_plural = 0
    env.agent, env.heading, env.obstacles = NOWHERE, 0, 0
    for at in range(len(grid)):
        grid[at] = WALL_CELL
    fill(grid, 1, 1, level.width - 2, level.height - 2, EMPTY_CELL, stride)


@helper
def wall_in(grid: Any, x: int, y: int, width: int, height: int, stride: int) -> None:
    """`Grid.wall_rect`."""
    fill(grid, x, y, width, 1, WALL_CELL, stride)
    fill(grid, x, y + height - 1, width, 1, WALL_CELL, stride)
    fill(grid, x, y, 1, height, WALL_CELL, stride)
    fill(grid, x + width - 1, y, 1, height, WALL_CELL, stride)


@helper
def find_empty(grid: Any, env: Any, x: int, y: int, width: int, height: int, stride: int) -> int:
    """`MiniGridEnv.place_obj`: a random empty cell of a rectangle, not the agent's."""
    while True:
        column = between(env, x, x + width)
        at = place_of(column, between(env, y, y + height), stride)
        if kind_of(cell_at(grid, at)) == c.EMPTY and at != env.agent:
            return at


@helper
def start_in(grid: Any, env: Any, x: int, y: int, width: int, height: int, stride: int) -> None:
    """`MiniGridEnv.place_agent`: in a rectangle, with any heading."""
    env.agent = find_empty(grid, env, x, y, width, height, stride)
    env.heading = integer_below(env, HEADINGS)


@helper
def name_target(env: Any, target: int, cell: int) -> None:
    """What the mission calls its first or second object."""
    env.target_color[target], env.target_kind[target] = color_of(cell), kind_of(cell)


@helper
def draw_hall(grid: Any, env: Any, level: Any, stride: int) -> None:
    """`EmptyEnv`, and `DynamicObstaclesEnv` with `count` obstacles."""
    width, height = level.width, level.height
    grid[place_of(width - 2, height - 2, stride)] = GOAL_CELL
    env.agent = place_of(1, 1, stride)
    if level.anywhere:
        env.agent = NOWHERE
        start_in(grid, env, 0, 0, width, height, stride)
    for i in range(level.count):
        at = find_empty(grid, env, 0, 0, width, height, stride)
        grid[at] = make_cell(c.BALL, c.BLUE, 0)
        place = (at // stride - MARGIN) * 16 + at % stride - MARGIN
        env.obstacles |= np.uint64(place) << np.uint64(8 * i)


@helper
def draw_lava(grid: Any, env: Any, level: Any, stride: int) -> None:
    """`DistShiftEnv`, with the second strip of lava in row `place`, and `LavaGapEnv`."""
    width, height = level.width, level.height
    env.agent = place_of(1, 1, stride)
    if level.layout == levels.DIST_SHIFT:
        grid[place_of(width - 2, 1, stride)] = GOAL_CELL
        fill(grid, 3, 1, width - 6, 1, LAVA_CELL, stride)
        fill(grid, 3, level.place, width - 6, 1, LAVA_CELL, stride)
    else:
        grid[place_of(width - 2, height - 2, stride)] = GOAL_CELL
        x = between(env, 2, width - 2)
        y = between(env, 1, height - 1)
        fill(grid, x, 1, 1, height - 2, LAVA_CELL, stride)
        grid[place_of(x, y, stride)] = EMPTY_CELL


@helper
def draw_crossing(grid: Any, env: Any, level: Any, stride: int) -> None:
    """`CrossingEnv`: `count` rivers of `kind`, and one way from corner to corner through them."""
    size, count = level.width, level.count
    env.agent = place_of(1, 1, stride)
    grid[place_of(size - 2, size - 2, stride)] = GOAL_CELL
    each = (size - 3) // 2  # rivers that could run in one direction: in column or row 2, 4, ...
    rivers = np.arange(2 * each)  # the vertical ones, then the horizontal ones
    shuffle(env, rivers)
    # Where rivers and the outer walls are, in order: columns of the vertical rivers, rows of the horizontal ones.
    limits = np.zeros((2, count + 2), np.int64)
    numbers = np.zeros(2, np.int64)
    cell = LAVA_CELL if level.kind == c.LAVA else WALL_CELL
    for river in range(2 * each):
        flat, at = river // each, 2 + 2 * (river % each)
        for i in range(count):
            if rivers[i] == river:
                numbers[flat] += 1
                limits[flat, numbers[flat]] = at
                if flat:
                    fill(grid, 1, at, size - 2, 1, cell, stride)
                else:
                    fill(grid, at, 1, 1, size - 2, cell, stride)
    for flat in range(2):
        limits[flat, numbers[flat] + 1] = size - 1
    # The way leads to the right through each vertical river (0), and down through each horizontal one (1).
    way = np.arange(count)
    for i in range(count):
        way[i] = i >= numbers[0]
    shuffle(env, way)
    room = np.zeros(2, np.int64)
    for flat in way:
        across = 1 - flat
        river = limits[flat, room[flat] + 1]
        gap = between(env, limits[across, room[across]] + 1, limits[across, room[across] + 1])
        at = place_of(gap, river, stride) if flat else place_of(river, gap, stride)
        grid[at] = EMPTY_CELL
        room[flat] += 1


@helper
def draw_door_key(grid: Any, env: Any, width: int, height: int, stride: int) -> None:
    """`DoorKeyEnv`."""
    grid[place_of(width - 2, height - 2, stride)] = GOAL_CELL
    split = between(env, 2, width - 2)
    fill(grid, split, 0, 1, height, WALL_CELL, stride)
    start_in(grid, env, 0, 0, split, height, stride)
    grid[place_of(split, between(env, 1, height - 2), stride)] = make_cell(c.DOOR, c.YELLOW, c.LOCKED)
    grid[find_empty(grid, env, 0, 0, split, height, stride)] = make_cell(c.KEY, c.YELLOW, 0)


@helper
def draw_objects(grid: Any, env: Any, level: Any, stride: int) -> None:
    """`FetchEnv`, `GoToObjectEnv`, `PutNearEnv`: `count` objects, one or two of which the mission names."""
    width, height, count, task = level.width, level.height, level.count, level.task
    cells, places = np.zeros(count, np.int64), np.zeros(count, np.int64)
    placed = 0
    while placed < count:
        kind = draw_kind(env) if task != c.FETCH else c.BALL if integer_below(env, 2) else c.KEY
        cell = make_cell(kind, draw_color(env), 0)
        if task != c.FETCH and cell in cells[:placed]:
            continue
        at = find_empty(grid, env, 0, 0, width, height, stride)
        while task == c.PUT_NEAR and near_any(at, places[:placed], stride):
            at = find_empty(grid, env, 0, 0, width, height, stride)
        grid[at] = cells[placed] = cell
        places[placed] = at
        placed += 1
    start_in(grid, env, 0, 0, width, height, stride)
    first = integer_below(env, count)
    second = first
    while task == c.PUT_NEAR and second == first:
        second = integer_below(env, count)
    if task == c.FETCH:
        env.target_kind[WORDING] = integer_below(env, len(levels.FETCH_WORDINGS))
    elif task == c.PUT_NEAR:
        for row in (-stride, 0, stride):
            for column in (-1, 0, 1):
                grid[places[second] + row + column] |= _TRACKED
    else:
        mark_beside(grid, places[first], 0, stride)
    name_target(env, FIRST, cells[first])
    name_target(env, SECOND, cells[second])


@helper
def near_any(at: int, places: Any, stride: int) -> bool:
    """Whether a cell is one of these or touches one, if only with a corner."""
    near = False
    for place in places:
        near |= abs(at // stride - place // stride) <= 1 and abs(at % stride - place % stride) <= 1
    return near


@helper
def mark_beside(grid: Any, at: int, bit: int, stride: int) -> None:
    """Track the four cells beside one."""
    for beside in (at - 1, at + 1, at - stride, at + stride):
        grid[beside] |= _TRACKED << bit


@helper
def draw_doors(grid: Any, env: Any, most_columns: int, most_rows: int, stride: int) -> None:
    """`GoToDoorEnv`: a room of any size in a corner of the map; what is beyond its walls is empty."""
    fill(grid, 0, 0, most_columns, most_rows, EMPTY_CELL, stride)
    width = between(env, 5, most_columns + 1)
    height = between(env, 5, most_rows + 1)
    wall_in(grid, 0, 0, width, height, stride)
    places, colors = np.empty(4, np.int64), np.full(4, -1)
    places[0] = place_of(between(env, 2, width - 2), 0, stride)
    places[1] = place_of(between(env, 2, width - 2), height - 1, stride)
    places[2] = place_of(0, between(env, 2, height - 2), stride)
    places[3] = place_of(width - 1, between(env, 2, height - 2), stride)
    drawn = 0
    while drawn < 4:
        color = draw_color(env)
        if color not in colors:
            colors[drawn] = color
            grid[places[drawn]] = make_cell(c.DOOR, color, c.CLOSED)
            drawn += 1
    start_in(grid, env, 0, 0, width, height, stride)
    target = integer_below(env, 4)
    name_target(env, FIRST, make_cell(c.DOOR, colors[target], 0))
    mark_beside(grid, places[target], 0, stride)


@helper
def draw_memory(grid: Any, env: Any, level: Any, stride: int) -> None:
    """`MemoryEnv`: bit 0 is tracked where the agent has to go, bit 1 where it must not."""
    width, height = level.width, level.height
    middle = height // 2
    end = between(env, 4, width - 2) if level.anywhere else width - 3
    for side in (-1, 1):
        fill(grid, 1, middle + 2 * side, 4, 1, WALL_CELL, stride)
        grid[place_of(4, middle + side, stride)] = WALL_CELL
        fill(grid, 5, middle + side, max(0, end - 5), 1, WALL_CELL, stride)
    fill(grid, end, 0, 1, height, WALL_CELL, stride)
    fill(grid, end + 2, 0, 1, height, WALL_CELL, stride)
    grid[place_of(end, middle, stride)] = EMPTY_CELL
    env.agent = place_of(between(env, 1, end + 1), middle, stride)
    shown = integer_below(env, 2)
    grid[place_of(1, middle - 1, stride)] = make_cell(c.BALL if shown else c.KEY, c.GREEN, 0)
    above = 1 - integer_below(env, 2)
    grid[place_of(end + 1, middle - 2, stride)] = make_cell(c.BALL if above else c.KEY, c.GREEN, 0)
    grid[place_of(end + 1, middle + 2, stride)] = make_cell(c.KEY if above else c.BALL, c.GREEN, 0)
    grid[place_of(end + 1, middle - 1, stride)] |= _TRACKED << (shown != above)
    grid[place_of(end + 1, middle + 1, stride)] |= _TRACKED << (shown == above)


@helper
def draw_red_blue_doors(grid: Any, env: Any, size: int, stride: int) -> None:
    """`RedBlueDoorEnv`: the agent's room is in the middle, with a door in either side wall."""
    left = size // 2
    wall_in(grid, left, 0, size, size, stride)
    start_in(grid, env, left, 0, size, size, stride)
    for x, color in ((left, c.RED), (left + size - 1, c.BLUE)):
        grid[place_of(x, between(env, 1, size - 1), stride)] = make_cell(c.DOOR, color, c.CLOSED)


@helper
def generate_hall(grid: Any, env: Any, level: Any, stride: int) -> None:
    """A new episode of a level with one room."""
    clear_map(grid, env, level, stride)
    layout = level.layout
    if layout == levels.HALL:
        draw_hall(grid, env, level, stride)
    elif layout == levels.CROSSING:
        draw_crossing(grid, env, level, stride)
    elif layout == levels.DOOR_KEY:
        draw_door_key(grid, env, level.width, level.height, stride)
    elif layout == levels.OBJECTS:
        draw_objects(grid, env, level, stride)
    elif layout == levels.DOORS:
        draw_doors(grid, env, level.width, level.height, stride)
    elif layout == levels.MEMORY:
        draw_memory(grid, env, level, stride)
    elif layout == levels.RED_BLUE_DOORS:
        draw_red_blue_doors(grid, env, level.height, stride)
    else:
        draw_lava(grid, env, level, stride)
