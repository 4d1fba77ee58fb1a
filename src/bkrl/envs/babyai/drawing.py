"""Pictures of whole envs as minigrid draws them, drawn again only where they have changed."""

from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from bkrl.envs.babyai.constants import EMPTY
from bkrl.envs.babyai.state import COLOR_MASK, COLOR_SHIFT, KIND_MASK, STATE_MASK, STATE_SHIFT


def parts(cell: int) -> tuple[int, int, int]:
    """Kind, colour and state of a cell."""
    return cell & KIND_MASK, cell >> COLOR_SHIFT & COLOR_MASK, cell >> STATE_SHIFT & STATE_MASK


class Canvas:
    """Draws envs of one id, and remembers what it has drawn: from step to step few tiles change."""

    def __init__(self, env_id: str) -> None:
        from bkrl.envs.babyai.reference import make_minigrid

        self._minigrid: Any = make_minigrid(env_id, render_mode="rgb_array")
        self._cells = np.zeros((0, 0), np.uint32)
        self._keys = np.zeros((0, 0), np.int64)
        self._picture = np.zeros((0, 0, 3), np.uint8)

    def draw(
        self, cells: NDArray[np.uint32], position: tuple[int, int], heading: int, carrying: int
    ) -> NDArray[np.uint8]:
        """(H, W, 3) uint8, what the agent sees lighter.

        Args:
            cells: (rows, columns) the map.
            position: column and row of the agent.
            heading: where it looks.
            carrying: the cell it carries.
        """
        from minigrid.core.grid import Grid

        minigrid = self._minigrid
        if self._cells.shape != cells.shape:
            rows, columns = cells.shape
            minigrid.grid = Grid(columns, rows)  # empty, as the cells are
            minigrid.width, minigrid.height = columns, rows  # options of a level may change them
            minigrid.grid.render = self._render
            self._cells, self._keys = np.zeros_like(cells), np.full(cells.shape, -1, np.int64)
            self._picture = np.zeros((rows * minigrid.tile_size, columns * minigrid.tile_size, 3), np.uint8)
        for row, column in np.argwhere(self._cells != cells).tolist():
            minigrid.grid.set(column, row, _thing(int(cells[row, column])))
        self._cells = cells.copy()
        minigrid.agent_pos, minigrid.agent_dir, minigrid.carrying = position, heading, _thing(carrying)
        return cast(NDArray[np.uint8], minigrid.get_frame(minigrid.highlight, minigrid.tile_size))

    def _render(
        self,
        tile_size: int,
        agent_pos: tuple[int, int],
        agent_dir: int,
        highlight_mask: NDArray[np.bool_] | None = None,
    ) -> NDArray[np.uint8]:
        """`Grid.render`; tiles that look as they did are left as they are."""
        grid = self._minigrid.grid
        lighter = np.zeros(self._cells.shape, bool) if highlight_mask is None else highlight_mask.T
        keys = self._cells.astype(np.int64) << 4 | lighter << 3
        column, row = agent_pos
        keys[row, column] |= agent_dir + 1
        for j, i in np.argwhere(keys != self._keys).tolist():
            here = agent_dir if (i, j) == (column, row) else None
            tile = grid.render_tile(grid.get(i, j), agent_dir=here, highlight=bool(lighter[j, i]), tile_size=tile_size)
            self._picture[j * tile_size : (j + 1) * tile_size, i * tile_size : (i + 1) * tile_size] = tile
        self._keys = keys
        return self._picture.copy()


def _thing(cell: int) -> Any:
    """The minigrid object of a cell, for drawing."""
    from minigrid.core.world_object import WorldObj

    kind, color, state = parts(cell)
    return WorldObj.decode(kind, color, state) if kind > EMPTY else None
