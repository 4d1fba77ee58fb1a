"""Small pictures of Crafter's local view from the symbolic observation, with crafter's own textures.

The observation does not say what an object stands on: skeletons and arrows are drawn on a path, all others on grass.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from bkrl.envs.crafter.layout import CELL, FACING, OBJECTS, SLEEPING, VIEW, VIEW_COLUMNS, VIEW_ROWS
from bkrl.envs.crafter.textures import SPRITES, UNIT, tiles

TILE: Final = UNIT
_PLAYER: Final = 64
_ASLEEP: Final = 4
_FIRST_FACING: Final = SPRITES.index("player-left")
_SPRITE: Final = {"arrow": "arrow-up", "ripe_plant": "plant-ripe"}
"""Where they are not called as the objects are."""


def tile_maps(observations: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Observations (N, 82) as tile numbers (N, 7 rows, 9 columns) and the T tiles used, (T, 7, 7, 4) RGBA."""
    codes = observations[:, VIEW].astype(np.int64).reshape(-1, VIEW_ROWS, VIEW_COLUMNS)
    player = _PLAYER + np.where(observations[:, SLEEPING] > 0, _ASLEEP, observations[:, FACING]).astype(np.int64)
    codes = np.where(codes == CELL["player"], player[:, None, None], codes)
    used, maps = np.unique(codes, return_inverse=True)
    drawn = np.array([_tile(int(code)) for code in used], np.uint8).reshape(-1, TILE, TILE, 3)
    opaque = np.full((*drawn.shape[:-1], 1), 255, np.uint8)
    return maps.reshape(codes.shape), np.concatenate([drawn, opaque], axis=3)


def _tile(code: int) -> NDArray[np.uint8]:
    if code >= _PLAYER:
        return tiles().cells[_FIRST_FACING + code - _PLAYER, CELL["grass"]]
    for name in OBJECTS:
        if code == CELL[name]:
            ground = "path" if name in ("skeleton", "arrow") else "grass"
            return tiles().cells[SPRITES.index(_SPRITE.get(name, name)), CELL[ground]]
    return tiles().cells[0, code]
