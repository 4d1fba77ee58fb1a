"""What the agent sees: the occluded 7×7 view.

Source: `MiniGridEnv.gen_obs_grid`, `Grid.process_vis`, `Grid.encode`.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bkrl.core.jit import helper
from bkrl.envs.babyai.constants import AGENT_X, AGENT_Y, EMPTY, UNSEEN, VIEW
from bkrl.envs.babyai.rules import hides
from bkrl.envs.babyai.state import NOTHING_CARRIED, ahead, cell_at, color_of, kind_of, state_of

_ROW: Final = (1 << VIEW) - 1
_CELL_BYTES: Final = 3
_COLUMN_BYTES: Final = VIEW * _CELL_BYTES


def _spread_of_light() -> NDArray[np.uint16]:
    """For each row of the view, as [lit cells, hiding cells] in bits: which are lit in the end, and which above them.

    `Grid.process_vis`: from the row nearest the agent upwards, light goes through each row once to the right and once
    to the left. A lit cell that hides nothing lights its neighbour in that direction, the cell above it and the one
    above the neighbour. The result holds the row in bits 0-6 and the light it throws on the row above in bits 7-13.
    """
    table = np.zeros((1 << VIEW, 1 << VIEW), np.uint16)
    for lit_below in range(1 << VIEW):
        for hiding in range(1 << VIEW):
            lit, above = lit_below, 0
            for cells, side in ((range(VIEW - 1), 1), (range(VIEW - 1, 0, -1), -1)):
                for x in cells:
                    if lit >> x & 1 and not hiding >> x & 1:
                        lit |= 1 << (x + side)
                        above |= 1 << x | 1 << (x + side)
            table[lit_below, hiding] = lit | above << VIEW
    return table.ravel()


_SPREAD: Final = _spread_of_light()


@helper
def observe(grid: Any, env: Any, stride: int, out: Any) -> None:
    """Write the view of one env. `out`: (147,) uint8, the (7, 7, 3) view [x, y, (type, colour, state)] laid flat."""
    forward = ahead(env.heading, stride)
    right = ahead((env.heading + 1) % 4, stride)
    lit: Any = 1 << AGENT_X
    for y in range(AGENT_Y, -1, -1):
        leftmost = env.agent + forward * (AGENT_Y - y) - right * AGENT_X
        hiding = 0
        for x in range(VIEW):
            if hides(cell_at(grid, leftmost + right * x)):
                hiding |= 1 << x
        spread = np.int64(_SPREAD[lit << VIEW | hiding])
        seen = _ROW if env.see_through else spread & _ROW
        for x in range(VIEW):
            cell = cell_at(grid, leftmost + right * x) if (seen >> x) & 1 else UNSEEN
            _show(cell, out, x * _COLUMN_BYTES + y * _CELL_BYTES)
        lit = spread >> VIEW
    in_hand = EMPTY if env.carrying == NOTHING_CARRIED else env.carrying
    _show(in_hand, out, AGENT_X * _COLUMN_BYTES + AGENT_Y * _CELL_BYTES)


@helper
def _show(cell: int, out: Any, at: int) -> None:
    out[at] = kind_of(cell)
    out[at + 1] = color_of(cell)
    out[at + 2] = state_of(cell)
