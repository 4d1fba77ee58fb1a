"""Layouts and missions of GLAM's levels, drawn as `glam.reference.GlamEnv` draws them.

The draws, their order and their bounds are those of that class, so the same stream of random numbers gives the same
episode and is left in the same state.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bkrl.core.jit import helper
from bkrl.envs.babyai.constants import DOOR, GO_TO, KEY, LOCKED, NO_TASK, OPEN_DOOR, PICK_UP, PUT_NEXT
from bkrl.envs.babyai.glam import TASK_KINDS, TASK_MIXES, GlamLevel
from bkrl.envs.babyai.glam.crowds import DOUBLE, LOCKED_IN, SINGLE
from bkrl.envs.babyai.pcg64 import fraction, integer_below
from bkrl.envs.babyai.rooms import HEADINGS, all_reachable, clear_room, place_agent, place_object
from bkrl.envs.babyai.state import (
    EMPTY_CELL,
    FIRST,
    MARGIN,
    MEMBER_SHIFT,
    SECOND,
    TRACKED_SHIFT,
    cell_at,
    is_target,
    make_cell,
)

GOTO, PICKUP, OPEN, PUTNEXT, SEQ, THEN, AFTER, TWO_PICKUPS = range(len(TASK_KINDS))
PER_EPISODE, PER_INSTANCE, BALANCED = range(len(TASK_MIXES))
_ANY: Final = -1
_AT_ONCE, _AGAIN, _TWICE = range(3)

GLAM_LEVEL = np.dtype(
    [
        ("room_size", np.int64),
        ("num_dists", np.int64),
        ("mix", np.int64),
        ("always_named", np.int64),
        ("num_kinds", np.int64),
        ("kinds", np.int64, (len(TASK_KINDS),)),
        ("num_asked", np.int64),
        ("asked", np.int64, (18, 2)),
        ("num_placed", np.int64),
        ("placed", np.int64, (18, 2)),
        ("num_doors", np.int64),
        ("doors", np.int64, (6,)),
    ]
)
EPISODE = np.dtype([("turn", np.int64), ("kind", np.int64), ("form", np.int64)])
"""What an env's record has no place for: `turn` and `kind` as in `GlamEnv`; `form`: 1 where a sequence has "then", and
where a door is named."""


def glam_record(level: GlamLevel) -> NDArray[Any]:
    """A level for the kernels: an array of one GLAM_LEVEL record."""
    record = np.zeros(1, GLAM_LEVEL)
    names = list(TASK_KINDS)
    record["room_size"], record["num_dists"] = level.room_size, level.num_dists
    record["mix"], record["always_named"] = TASK_MIXES.index(level.task_mix), level.asks_for == "test"
    for name, values in (
        ("kinds", [names.index(kind) for kind in level.task_kinds]),
        ("asked", level.asked_for),
        ("placed", level.placed),
        ("doors", level.doors),
    ):
        record[f"num_{name}"] = len(values)
        record[name][0, : len(values)] = values
    return record


@helper
def generate_glam(
    grid: Any, env: Any, level: Any, episode: Any, case_ends: Any, repeat_ends: Any, crowd: Any, stride: int
) -> None:
    """`GlamEnv._gen_grid`: the kind of task, then layouts until one passes; then the mission."""
    if level.mix == PER_EPISODE:
        episode.kind = integer_below(env, level.num_kinds)
    elif level.mix == PER_INSTANCE:
        if episode.turn < 0:
            episode.turn = integer_below(env, level.num_kinds)
        episode.kind = episode.turn
    else:
        episode.kind = episode.turn
        episode.turn = (episode.turn + 1) % level.num_kinds
    kind = level.kinds[episode.kind]
    while True:
        if kind == OPEN:
            drawn = draw_open(grid, env, level, crowd, stride)
        else:
            drawn = draw_room(grid, env, level, kind, case_ends, repeat_ends, crowd, stride)
        if not (drawn and all_reachable(grid, env.agent, stride)):
            continue
        episode.form = 0
        if kind == OPEN:
            episode.form = 1 if level.always_named else integer_below(env, 2) == 0
        elif kind in (SEQ, TWO_PICKUPS):
            episode.form = integer_below(env, 2) == 0
        elif kind == THEN:
            episode.form = 1
        if kind != PUTNEXT or not already_next(grid, env, stride):
            break
    set_glam_mission(grid, env, level, kind, episode.form)


@helper
def draw_open(grid: Any, env: Any, level: Any, crowd: Any, stride: int) -> bool:
    """`GlamEnv._gen_open`, with what `RoomGrid._gen_grid` draws for two rooms."""
    size, left = level.room_size, MARGIN * stride + MARGIN
    row = integer_below(env, size - 2)
    taken = 0
    if crowd.ends[LOCKED_IN, -1] > 0:
        spot, taken = draw_crowd(env, crowd, LOCKED_IN)
        locked = 1 if spot == crowd.width * crowd.width else 0
        if not all_beside(crowd, taken, 1 << (row * (crowd.width + 1) + locked * (crowd.width - 1))):
            return False
    else:
        locked = integer_below(env, 2)
    corner = left + (1 - locked) * (size - 1)
    clear_room(grid, size, stride)
    for y in range(1, size - 1):
        start = (MARGIN + y) * stride + MARGIN + size
        grid[start : start + size - 2] = EMPTY_CELL
    color = level.doors[integer_below(env, level.num_doors)]
    grid[left + (1 + row) * stride + size - 1] = make_cell(DOOR, color, LOCKED)
    env.target_color[FIRST], env.target_kind[FIRST] = color, DOOR
    # Until it is placed, the agent stands in the middle of the right room.
    env.agent = left + size // 2 * stride + size - 1 + size // 2
    if taken > 0:
        numbers = np.empty(level.num_dists + 1, np.int64)
        numbers[0] = color << 4 | KEY
        fill(env, level, numbers, 1, len(numbers), _ANY)
        scatter(grid, env, crowd, numbers, taken, corner, stride)
        return place_agent(grid, env, corner, size, stride)
    if not place_object(grid, env, make_cell(KEY, color, 0), corner, size, stride):
        return False
    numbers = np.empty(level.num_dists, np.int64)
    fill(env, level, numbers, 0, level.num_dists, _ANY)
    for number in numbers:
        if not place_object(grid, env, make_cell(number & 15, number >> 4, 0), corner, size, stride):
            return False
    return place_agent(grid, env, corner, size, stride)


@helper
def draw_room(
    grid: Any, env: Any, level: Any, kind: int, case_ends: Any, repeat_ends: Any, crowd: Any, stride: int
) -> bool:
    """`GlamEnv.gen_mission` up to the test of what can be reached, for the kinds with one room."""
    size, count = level.room_size, level.num_dists + 1
    corner = MARGIN * stride + MARGIN
    use = SINGLE if kind in (GOTO, PICKUP) else DOUBLE
    taken = 0
    if crowd.ends[use, -1] > 0:
        spot, taken = draw_crowd(env, crowd, use)
        x, y = spot % crowd.width, spot // crowd.width
        if not all_beside(crowd, taken, 1 << (y * (crowd.width + 1) + x)):
            return False
        env.agent = corner + (1 + y) * stride + 1 + x
        env.heading = integer_below(env, HEADINGS)
        clear_room(grid, size, stride)
    else:
        clear_room(grid, size, stride)
        if not place_agent(grid, env, corner, size, stride):
            return False
    numbers = np.empty(level.num_dists + 2, np.int64)  # of the objects: 16 * colour + kind
    if kind in (GOTO, PICKUP):
        numbers[0] = draw_pair(env, level.asked, level.num_asked, _ANY)
        second = numbers[0]
        fill(env, level, numbers, 1, count, _ANY)
    else:
        count += 1
        second = draw_two(env, level, kind != PUTNEXT, case_ends, repeat_ends, numbers)
    env.target_color[FIRST], env.target_kind[FIRST] = numbers[0] >> 4, numbers[0] & 15
    env.target_color[SECOND], env.target_kind[SECOND] = second >> 4, second & 15
    if taken > 0:
        scatter(grid, env, crowd, numbers, taken, corner, stride)
        return True
    for i in range(count):
        if not place_object(grid, env, make_cell(numbers[i] & 15, numbers[i] >> 4, 0), corner, size, stride):
            return False
    return True


@helper
def scatter(grid: Any, env: Any, crowd: Any, numbers: Any, taken: int, corner: int, stride: int) -> None:
    """`GlamEnv._put` of objects (16 * colour + kind) into the taken cells of a room."""
    cells = np.empty(len(numbers), np.int64)  # of the grid; the first `left` are still free
    left = 0
    for y in range(crowd.width):
        for x in range(crowd.width):
            if taken >> (y * (crowd.width + 1) + x) & 1:
                cells[left] = corner + (1 + y) * stride + 1 + x
                left += 1
    for number in numbers:
        if left > 0:
            at = integer_below(env, left)
            left -= 1
            grid[cells[at]] = make_cell(number & 15, number >> 4, 0)
            cells[at] = cells[left]


@helper
def draw_crowd(env: Any, crowd: Any, use: int) -> Any:
    """`GlamEnv._draw_crowd`: a spot, and the occupied cells of two halves."""
    C = crowd.first.shape[2] - 1
    place = weighted(env, crowd.ends[use])
    spot, count, taken = place // C, place % C, 0
    for half in range(2):
        start, stop = crowd.first[spot, half, count], crowd.first[spot, half, count + 1]
        taken |= crowd.patterns[start + integer_below(env, stop - start)]
        count = crowd.counts[use] - count
    return spot, taken


@helper
def all_beside(crowd: Any, taken: int, start: int) -> bool:
    """Whether each taken cell is beside one that can be walked to from a cell, which must be free."""
    free, down = crowd.room & ~taken, crowd.width + 1
    reached, beside, before = start & free, 0, -1
    while reached != before:
        before = reached
        beside = reached << 1 | reached >> 1 | reached << down | reached >> down
        reached |= beside & free
    return taken & ~beside == 0


@helper
def draw_two(env: Any, level: Any, may_equal: bool, case_ends: Any, repeat_ends: Any, numbers: Any) -> int:
    """`GlamEnv._draw_two`: fills in `numbers`, the mission's first object in front; returns its second."""
    n = len(numbers)
    case = weighted(env, case_ends[1 if may_equal else 0])
    first = numbers[0] = draw_pair(env, level.asked, level.num_asked, _ANY)
    if case == _TWICE:
        before = weighted(env, repeat_ends)
        fill(env, level, numbers, 1, 1 + before, first)
        numbers[1 + before] = first
        fill(env, level, numbers, 2 + before, n, _ANY)
        return first
    unlike = case == _AGAIN or not may_equal
    second = numbers[1] = draw_pair(env, level.asked, level.num_asked, first if unlike else _ANY)
    fill(env, level, numbers, 2, n, first if case == _AGAIN else _ANY)
    return second


@helper
def fill(env: Any, level: Any, numbers: Any, start: int, stop: int, unlike: int) -> None:
    """Distractors for these places, each unlike one object."""
    for i in range(start, stop):
        numbers[i] = draw_pair(env, level.placed, level.num_placed, unlike)


@helper
def draw_pair(env: Any, pairs: Any, count: int, unlike: int) -> int:
    """One of the first `count` pairs, as 16 * colour + kind, that is not `unlike`, which is one of them or _ANY."""
    drawn = integer_below(env, count if unlike == _ANY else count - 1)
    for i in range(count):
        number = pairs[i, 0] << 4 | pairs[i, 1]
        if number != unlike:
            if drawn == 0:
                return number
            drawn -= 1
    return _ANY


@helper
def weighted(env: Any, ends: Any) -> int:
    """`GlamEnv._weighted`, of cumulated weights."""
    place = fraction(env) * ends[-1]
    number, stop = 0, len(ends)
    while number < stop:
        middle = (number + stop) // 2
        if ends[middle] <= place:
            number = middle + 1
        else:
            stop = middle
    return number


@helper
def already_next(grid: Any, env: Any, stride: int) -> bool:
    """`PutNextInstr.objs_next`."""
    for at in range(stride, len(grid) - stride):
        if is_target(env, cell_at(grid, at), FIRST):
            for beside in (at + 1, at - 1, at + stride, at - stride):
                if is_target(env, cell_at(grid, beside), SECOND):
                    return True
    return False


@helper
def set_glam_mission(grid: Any, env: Any, level: Any, kind: int, form: int) -> None:
    """The instructions of the mission, and which objects it means."""
    env.task[:] = NO_TASK
    env.strict = 0
    env.target_is_plural = 0
    env.in_sequence = kind in (SEQ, THEN, AFTER, TWO_PICKUPS)
    rooms, places = 1, 2
    if kind == GOTO:
        env.task[0], places = GO_TO, 1
    elif kind == OPEN:
        env.task[0], rooms, places = OPEN_DOOR, 2, 1
    elif kind == PUTNEXT:
        env.task[0] = PUT_NEXT
    else:
        env.task[0] = PICK_UP
        if kind == PICKUP:
            places = 1
        else:
            env.task[2] = PICK_UP if kind == TWO_PICKUPS else GO_TO
    env.max_steps = places * rooms * level.room_size * level.room_size
    mark(grid, env, FIRST, 0)
    if kind == PUTNEXT:
        mark(grid, env, SECOND, 1)
    elif env.in_sequence:
        mark(grid, env, SECOND, 4)


@helper
def mark(grid: Any, env: Any, target: int, description: int) -> None:
    """Every object of a target's colour and type is meant by this description."""
    found = 0
    for at in range(len(grid)):
        cell = cell_at(grid, at)
        if is_target(env, cell, target):
            grid[at] = cell | 1 << (MEMBER_SHIFT + description) | 1 << (TRACKED_SHIFT + description)
            found += 1
    if found > 1:
        env.target_is_plural |= 1 << target
