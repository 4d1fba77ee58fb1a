"""The row packer: how many things fit on a receptacle, and where they lie.

A receptacle is a rectangle, filled in rows along x that are stacked from small to large z. A thing is the rectangle of
its footprint, turned by 0 or 90 degrees. Rows of all receptacles of an env share one short table; the intervals of x
that are taken in a row are those of the things in it. Rules and numbers: `data/SOURCE.md`.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bkrl.core.jit import Int, helper, kernel

GAP: Final = 0.002
MARGIN: Final = 0.001
THINNEST: Final = 0.01
MOST_ROWS: Final = 32
"""Rows of all receptacles of an env together; 10 things never needed more than 10 in the episodes."""
NOWHERE: Final = -1

ROW: Final = np.dtype(
    [("receptacle", np.int16), ("bottom", np.float64), ("depth", np.float64), ("greatest", np.float64)], align=True
)
THING: Final = np.dtype(
    [
        ("model", np.int16),  # -1: the slot is empty
        ("kind", np.int16),  # class of objects
        ("receptacle", np.int16),  # NOWHERE while it is held
        ("start", np.int16),  # receptacle at the start
        ("row", np.int16),
        ("left", np.float64),  # the taken interval of x, from the receptacle's left side
        ("right", np.float64),
        ("x", np.float64),  # the middle of its footprint, in the house
        ("z", np.float64),
        ("y", np.float64),  # its middle
        ("half", np.float64, (3,)),  # half its sides along x, y, z as it lies
        ("wrong", np.uint8),  # misplaced at the start
        ("seen", np.uint8),  # 0 not yet, 1 before, 2 in this step
        ("seen_on", np.int16),  # the receptacle where it was seen last, NOWHERE: none
        ("picked", np.int16),  # how often
        ("placed", np.int16),
        ("walked", np.float64),  # the way it was carried, metres
        ("from_x", np.float64),  # where the agent stood at the first pick
        ("from_z", np.float64),
        ("to_x", np.float64),  # and at the last place
        ("to_z", np.float64),
    ],
    align=True,
)


@helper
def _free_from(things: Any, row: Int, after: float) -> float:
    """Where the free interval that begins at or after `after` begins: past all taken intervals that touch it."""
    at = after
    moved = True
    while moved:
        moved = False
        for thing in range(len(things)):
            one = things[thing]
            if one.model >= 0 and one.row == row and one.left <= at < one.right:
                at = one.right
                moved = True
    return at


@helper
def _free_to(things: Any, row: Int, begin: float, width: float) -> float:
    """Where the free interval that begins at `begin` ends."""
    end = width
    for thing in range(len(things)):
        one = things[thing]
        if one.model >= 0 and one.row == row and begin <= one.left < end:
            end = one.left
    return end


@helper
def _room_in_row(things: Any, row: Int, wide: float, width: float) -> float:
    """The left end of the first free interval of a row in which so wide a thing fits; -1: none."""
    begin = _free_from(things, row, 0.0)
    while begin < width:
        end = _free_to(things, row, begin, width)
        if begin + GAP + MARGIN + wide <= end:
            return begin
        if end >= width:
            return -1.0
        begin = _free_from(things, row, end)
    return -1.0


@helper
def find_room(rows: Any, things: Any, receptacle: Int, half: Any, long: float, short: float) -> tuple[Int, bool, float]:
    """Where a thing would go: the row, whether it is turned, and the left end of its interval.

    The row is NOWHERE where there is no room and MOST_ROWS where a new one must be opened. `half`: (2,) of the
    receptacle. A thing that is not turned has its long side along x; `short` is at most `long`.
    """
    width, height = 2 * half[0], 2 * half[1]
    best, best_row, best_turned, best_left = np.inf, NOWHERE, False, 0.0
    top = 0.0
    for row in range(len(rows)):
        if rows[row].receptacle != receptacle:
            continue
        top = rows[row].bottom + rows[row].depth
        for side in range(2):
            turned = side == 0
            wide, deep = (short, long) if turned else (long, short)
            misfit = abs(rows[row].depth - deep)
            if misfit >= best:
                continue
            fits = MARGIN + deep <= rows[row].depth
            if not fits and deep <= rows[row].greatest:
                fits = MARGIN + deep <= min(deep + GAP, rows[row].greatest)
            if not fits:
                continue
            left = _room_in_row(things, row, wide, width)
            if left >= 0:
                best, best_row, best_turned, best_left = misfit, row, turned, left
    if best_row != NOWHERE:
        return best_row, best_turned, best_left
    # A new row is as deep as the short side and then takes a thing as any row does: it may grow
    depth, left = short + GAP, height - top
    if depth < THINNEST or depth > left or rows[MOST_ROWS - 1].receptacle != NOWHERE:
        return NOWHERE, False, 0.0
    plain = GAP + MARGIN + long <= width
    turned = GAP + MARGIN + short <= width and MARGIN + long <= min(long + GAP, left)
    if turned and (not plain or abs(depth - long) <= depth - short):
        return MOST_ROWS, True, 0.0
    return (MOST_ROWS if plain else NOWHERE), False, 0.0


@helper
def put(
    rows: Any, things: Any, thing: Int, receptacle: Int, base: Any, half: Any, top: float, size: Any, where: Any
) -> None:
    """Lay a thing down where `find_room` found room: `where` is its answer, `size` the model's long, short, height."""
    row, turned, left = where
    long, short, height = size
    wide, deep = (short, long) if turned else (long, short)
    if row == MOST_ROWS:
        row, bottom = 0, 0.0
        while rows[row].receptacle != NOWHERE:
            if rows[row].receptacle == receptacle:
                bottom = rows[row].bottom + rows[row].depth
                rows[row].greatest = rows[row].depth
            row += 1
        new = rows[row]
        new.receptacle, new.bottom, new.greatest = receptacle, bottom, 2 * half[1] - bottom
        new.depth = min(deep + GAP, new.greatest)
    elif MARGIN + deep > rows[row].depth:
        rows[row].depth = min(deep + GAP, rows[row].greatest)
    one = things[thing]
    one.receptacle, one.row = receptacle, row
    one.left, one.right = left, left + GAP + MARGIN + wide + GAP
    one.x = base[0] - half[0] + left + GAP + MARGIN + wide / 2
    one.z = base[1] - half[1] + rows[row].bottom + MARGIN + deep / 2
    one.y = top + height / 2
    one.half[0], one.half[1], one.half[2] = wide / 2, height / 2, deep / 2


@helper
def take(rows: Any, things: Any, thing: Int) -> None:
    """Lift a thing: its interval is free, and rows at the end of its receptacle without things vanish."""
    one = things[thing]
    receptacle = np.int64(one.receptacle)
    one.receptacle, one.row = NOWHERE, NOWHERE
    row = MOST_ROWS - 1
    while row >= 0:
        if rows[row].receptacle == receptacle:
            for other in range(len(things)):
                if things[other].model >= 0 and things[other].row == row:
                    return
            _remove_row(rows, things, row)
        row -= 1


@helper
def _remove_row(rows: Any, things: Any, row: Int) -> None:
    """Close the gap in the table of rows."""
    for later in range(row, MOST_ROWS - 1):
        here, there = rows[later], rows[later + 1]
        here.receptacle, here.bottom = there.receptacle, there.bottom
        here.depth, here.greatest = there.depth, there.greatest
    rows[MOST_ROWS - 1].receptacle = NOWHERE
    for other in range(len(things)):
        if things[other].row > row:
            things[other].row -= 1


@kernel
def has_room(rows: Any, things: Any, receptacle: Int, half: Any, size: Any) -> bool:
    """`find_room` as a question, for Python; size: long, short, height."""
    return find_room(rows, things, receptacle, half, size[0], size[1])[0] != NOWHERE


@kernel
def put_down(
    rows: Any, things: Any, slot: Int, model: Int, receptacle: Int, base: Any, half: Any, top: float, size: Any
) -> bool:
    """Fill a slot with a new thing and lay it down, for Python; False, and no change, where there is no room."""
    where = find_room(rows, things, receptacle, half, size[0], size[1])
    if where[0] == NOWHERE:
        return False
    things[slot].model = model
    put(rows, things, slot, receptacle, base, half, top, size, where)
    return True


def empty_tables(slots: int = 10) -> tuple[NDArray[Any], NDArray[Any]]:
    """Rows and things of a house in which nothing lies."""
    rows, things = np.zeros(MOST_ROWS, ROW), np.zeros(slots, THING)
    rows["receptacle"] = NOWHERE
    for field in ("model", "receptacle", "row"):
        things[field] = NOWHERE
    return rows, things
