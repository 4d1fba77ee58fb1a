"""Small pictures of BabyAI views, cell by cell, as minigrid draws them; the agent looks up from the lowest row."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from bkrl.envs.babyai.constants import EMPTY, UNSEEN

TILE: Final = 16
"""Pixels a side of a tile."""
_AGENT: Final = 1 << 12
_UP: Final = 3  # minigrid's heading for it


def tile_maps(observations: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Views (N, S, S, 3) as tile numbers (N, S rows, S columns) and the T tiles used, (T, 16, 16, 4) RGBA.

    What the agent cannot see is transparent.
    """
    cells = observations.astype(np.int64).transpose(0, 2, 1, 3)
    codes = cells[..., 0] << 8 | cells[..., 1] << 4 | cells[..., 2]
    codes[:, -1, codes.shape[2] // 2] |= _AGENT
    used, maps = np.unique(codes, return_inverse=True)
    tiles = [_tile(int(code)) for code in used]
    return maps.reshape(codes.shape), np.array(tiles, np.uint8).reshape(-1, TILE, TILE, 4)


def _tile(code: int) -> NDArray[np.uint8]:
    from minigrid.core.grid import Grid
    from minigrid.core.world_object import WorldObj

    kind, colour, state = code >> 8 & 15, code >> 4 & 15, code & 15
    thing = None if kind in (UNSEEN, EMPTY) else WorldObj.decode(kind, colour, state)
    heading = _UP if code & _AGENT else None
    drawn = Grid.render_tile(thing, agent_dir=heading, tile_size=TILE, subdivs=3)
    opacity = 0 if kind == UNSEEN and heading is None else 255
    return np.concatenate([drawn, np.full((TILE, TILE, 1), opacity, np.uint8)], axis=2)
