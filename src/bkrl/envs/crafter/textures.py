"""Tiles for the renderer, drawn once by crafter's own code from the textures in its package.

Every cell of the picture is one of few 7×7 tiles: a material, or an object on a material; every field of the inventory
one of 160. Blending, resizing and colour conversion are thus done by crafter, NumPy and Pillow themselves, and equal by
construction; what is left for the kernels is light and noise.
"""

from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bkrl.core.jit import kept_where_possible
from bkrl.envs.crafter.layout import FACINGS, VIEW_COLUMNS, VIEW_ROWS
from bkrl.envs.crafter.rules import ITEMS, MATERIALS, MAX_ITEM

UNIT: Final = 7
"""Pixels a side of a tile: 64 // 9."""

SPRITES: Final = (
    None, *(f"player-{shown}" for shown in (*FACINGS, "sleep")), "cow", "zombie", "skeleton",
    *(f"arrow-{shown}" for shown in FACINGS), "plant", "plant-ripe",
)  # fmt: skip
"""What can stand on a material; None is the bare material."""


class Tiles(NamedTuple):
    """What the renderer looks up.

    Attributes:
        cells: (sprites, 1 + materials, 7, 7, 3) uint8, [y, x] within a tile; material 0 is the grey outside the map.
        fields: (items · 10 · 7 · 7 · 3 + 3) uint8: an item and its amount, [y, x] in a field, in one row, and 3 bytes.
        vignette: (63, 49) float64: weight of the night's noise at pixel [x, y], from the centre outwards.
    """

    cells: NDArray[np.uint8]
    fields: NDArray[np.uint8]
    vignette: NDArray[np.float64]


@cache
def tiles() -> Tiles:
    """The tiles, made at the first call."""
    with kept_where_possible("opensimplex"):
        from crafter import constants, engine

    textures = engine.Textures(constants.root / "assets")
    unit = np.array([UNIT, UNIT])
    cells = np.full((len(SPRITES), 1 + len(MATERIALS), UNIT, UNIT, 3), 127, np.uint8)
    for m, material in enumerate(MATERIALS):
        for s, sprite in enumerate(SPRITES):
            engine._draw(cells[s, 1 + m], np.zeros(2, int), textures.get(material, unit))
            if sprite is not None:
                engine._draw_alpha(cells[s, 1 + m], np.zeros(2, int), textures.get(sprite, unit))
    items = np.zeros((len(ITEMS), MAX_ITEM + 1, UNIT, UNIT, 3), np.uint8)
    draw_items = engine.ItemView(textures, [1, 1])
    for i, item in enumerate(ITEMS):
        for amount in range(1, MAX_ITEM + 1):
            items[i, amount] = draw_items({item: amount}, unit)
    local_view: Any = engine.LocalView.__new__(engine.LocalView)  # only its vignette is wanted, which needs no env
    vignette = local_view._vignette((UNIT * VIEW_COLUMNS, UNIT * VIEW_ROWS, 3), 0.5)
    upright = (0, 1, 3, 2, 4)  # crafter draws [x, y]
    return Tiles(
        np.ascontiguousarray(cells.transpose(upright)),
        np.append(items.transpose(upright), np.zeros(3, np.uint8)),
        np.ascontiguousarray(vignette),
    )
