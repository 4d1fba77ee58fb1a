"""The symbolic observation of Crafter: what the player sees and knows of itself, as 82 bytes.

| bytes | what |
|---|---|
| 0–62 | the local view, 7 rows (top to bottom) of 9 cells (left to right): `obs[:63].reshape(7, 9)[row, column]`; the player is at row 3, column 4 |
| 63 | facing: 0 left, 1 right, 2 up, 3 down |
| 64–79 | health, food, drink, energy, then the inventory, each 0–9, in the order of `rules.ITEMS` |
| 80 | 1 while asleep |
| 81 | daylight: floor(255 × daylight), 255 at noon; below 128 it is night and the picture is noisy |

A cell holds 0 outside the map, a material (1–12) or the object standing on it (13–19); these are the ids of
crafter's own semantic map, with one addition: a ripe plant, which the picture tells from a young one, is 19. Nothing
here is hidden from a player who looks at the 64×64 picture, save that the night's noise does not blur it.
"""  # noqa: E501

from typing import Final

import numpy as np
from numpy.typing import NDArray

from bkrl.envs.crafter.rules import ITEMS, MATERIALS

VIEW_ROWS: Final = 7
VIEW_COLUMNS: Final = 9
VIEW: Final = slice(0, VIEW_ROWS * VIEW_COLUMNS)
PLAYER_CELL: Final = (VIEW_ROWS // 2) * VIEW_COLUMNS + VIEW_COLUMNS // 2
FACING: Final = VIEW.stop
INVENTORY: Final = slice(FACING + 1, FACING + 1 + len(ITEMS))
SLEEPING: Final = INVENTORY.stop
DAYLIGHT: Final = SLEEPING + 1
SIZE: Final = DAYLIGHT + 1
OBS_SHAPE: Final = (SIZE,)

OBJECTS: Final = ("player", "cow", "zombie", "skeleton", "arrow", "plant", "ripe_plant")
CELL_NAMES: Final = ("outside", *MATERIALS, *OBJECTS)
"""Name of each cell id, by id."""
CELL: Final = {name: i for i, name in enumerate(CELL_NAMES)}

FACINGS: Final = ("left", "right", "up", "down")
FACING_STEPS: Final = ((-1, 0), (1, 0), (0, -1), (0, 1))
"""(x, y) of one step in each direction; x grows to the right, y downwards."""
FACED_CELL: Final = tuple(PLAYER_CELL + dx + VIEW_COLUMNS * dy for dx, dy in FACING_STEPS)
"""For each facing, the index of the cell in front of the player."""

NIGHT: Final = 128
"""Daylight bytes below this are night."""

FIELDS: Final = (
    *((f"cell at row {i // VIEW_COLUMNS}, column {i % VIEW_COLUMNS}", i) for i in range(VIEW.stop)),
    ("facing", FACING),
    *((name, INVENTORY.start + i) for i, name in enumerate(ITEMS)),
    ("sleeping", SLEEPING),
    ("daylight", DAYLIGHT),
)
"""(name, index) of every byte."""
INDEX: Final = dict(FIELDS)
"""Index by name: `INDEX["wood"]`, `INDEX["facing"]`."""


def local_view(semantic: NDArray[np.uint8], x: int, y: int) -> NDArray[np.uint8]:
    """(63,) cells around (x, y) of a (64, 64) map indexed [x, y]; 0 where the view leaves the map."""
    half_w, half_h = VIEW_COLUMNS // 2, VIEW_ROWS // 2
    padded = np.pad(semantic, ((half_w, half_w), (half_h, half_h)))
    return np.ascontiguousarray(padded[x : x + VIEW_COLUMNS, y : y + VIEW_ROWS].T).reshape(-1)
