"""The state of many envs as arrays: a grid of packed cells and one record for each env.

A cell is one integer that moves as a whole when its object moves:

    bits  0-3   type            bits  9-12  type of what a box contains (0: nothing)
    bits  4-6   colour          bits 13-15  colour of what a box contains
    bits  7-8   door state      bits 16-23  member: bit d is set on the objects description d of the mission refers to
                                bits 24-31  tracked: bit d is set on the cells that description d holds for their places

minigrid's verifier compares objects by identity and remembers where they stood when something was last dropped. The
member bits travel with an object, the tracked bits stay with the cell, and this is all the identity the rules need.

A grid is stored row by row with a border of walls `MARGIN` cells wide on every side, so that looking past the map's
edge needs no special case: what is outside is wall, as in minigrid.
"""

from typing import Any, Final

import numpy as np

from bkrl.core.jit import helper
from bkrl.envs.babyai.constants import EMPTY, GREY, VIEW, WALL

MARGIN: Final = VIEW - 1

COLOR_SHIFT: Final = 4
STATE_SHIFT: Final = 7
CONTENT_KIND_SHIFT: Final = 9
CONTENT_COLOR_SHIFT: Final = 13
MEMBER_SHIFT: Final = 16
TRACKED_SHIFT: Final = 24
KIND_MASK: Final = 0xF
COLOR_MASK: Final = 0x7
STATE_MASK: Final = 0x3
MEMBER_MASK: Final = 0xFF << MEMBER_SHIFT
TRACKED_MASK: Final = 0xFF << TRACKED_SHIFT
OBJECT_MASK: Final = (1 << TRACKED_SHIFT) - 1

EMPTY_CELL: Final = EMPTY
WALL_CELL: Final = WALL | GREY << COLOR_SHIFT
NOTHING_CARRIED: Final = 0

# A mission is one clause, or two in sequence; a clause is one task, or two that both have to be done. Task t of clause
# c is number 2 c + t; its descriptions are bits 2 (2 c + t) and, for the fixed object of "put next to", the bit after.
MAX_TASKS: Final = 4

FIRST: Final = 0
SECOND: Final = 2
"""Where in `target_color`, `target_kind` and `target_is_plural` of a record the mission's two objects stand."""

ENV = np.dtype(
    [
        # PCG64 (see `pcg64`)
        ("rng_high", np.uint64),
        ("rng_low", np.uint64),
        ("rng_increment_high", np.uint64),
        ("rng_increment_low", np.uint64),
        ("rng_spare", np.uint32),
        ("rng_has_spare", np.uint8),
        ("seeded", np.uint8),
        # The running episode
        ("steps", np.int32),
        ("max_steps", np.int32),
        ("episode_return", np.float64),
        ("agent", np.int32),  # index into the padded grid
        ("heading", np.uint8),  # 0 right (+x), 1 down (+y), 2 left, 3 up
        ("see_through", np.uint8),  # walls do not hide what is behind them
        ("stale", np.uint8),  # some cell's tracked bits differ from its member bits
        ("in_sequence", np.uint8),  # the mission has two clauses
        ("carrying", np.uint32),  # a cell, or NOTHING_CARRIED
        ("obstacles", np.uint64),  # that move, a byte each: 16 y + x; 0 is none
        # The mission: for each task what it is, and one bit in each of the flags
        ("task", np.uint8, (MAX_TASKS,)),
        ("target_kind", np.uint8, (MAX_TASKS,)),
        ("target_color", np.uint8, (MAX_TASKS,)),
        ("target_is_plural", np.uint8),
        ("strict", np.uint8),
        ("done", np.uint8),
        ("watched", np.uint8),
        ("first_clause_done", np.uint8),
    ],
    align=True,
)


@helper
def kind_of(cell: int) -> int:
    """The type in a cell."""
    return cell & KIND_MASK


@helper
def color_of(cell: int) -> int:
    """The colour in a cell."""
    return (cell >> COLOR_SHIFT) & COLOR_MASK


@helper
def state_of(cell: int) -> int:
    """The door state in a cell."""
    return (cell >> STATE_SHIFT) & STATE_MASK


@helper
def make_cell(kind: int, color: int, state: int) -> int:
    """A cell that nothing in the mission refers to."""
    return kind | color << COLOR_SHIFT | state << STATE_SHIFT


@helper
def cell_at(grid: Any, at: int) -> int:
    """What is in a cell, as numba's usual integer."""
    cell: Any = np.int64(grid[np.uint64(at)])  # numba would look whether a signed index counts from the end
    return cell


@helper
def is_target(env: Any, cell: int, target: int) -> bool:
    """Whether a cell holds what the mission calls its first or second object."""
    return kind_of(cell) == env.target_kind[target] and color_of(cell) == env.target_color[target]


@helper
def put(grid: Any, at: int, cell: int) -> None:
    """Replace what is in a cell; what is tracked there stays tracked."""
    grid[at] = (cell & OBJECT_MASK) | (cell_at(grid, at) & TRACKED_MASK)


@helper
def ahead(heading: int, stride: int) -> int:
    """The distance in the grid to the cell in front of an agent."""
    distance = stride if heading & 1 else 1
    return -distance if heading & 2 else distance
