"""Small pictures of what an agent saw, packed for a page: every tile and every distinct view is there once.

A view is a string with one character for each cell, row by row; the character's place in `ALPHABET` is the tile's
number in the atlas, a strip of tiles as one PNG. The page's script draws them.
"""

import base64
import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bkrl import envs

_PLAIN = [chr(i) for i in range(0x23, 0x7F) if chr(i) not in "&'<>\\"]
ALPHABET = "".join([*_PLAIN, *map(chr, range(0x100, 0x800))])
"""Characters that stand for themselves in JSON and in HTML."""


@dataclass(frozen=True)
class Pictures:
    """N observations as pictures.

    Attributes:
        rows, columns: cells of a view; tile: pixels a side of a cell.
        atlas: data URI of the tiles side by side.
        views: M distinct views as strings.
        number: (N,) which of them each observation is.
    """

    rows: int
    columns: int
    tile: int
    atlas: str
    views: list[str]
    number: NDArray[np.int64]

    def to_json(self) -> Mapping[str, Any]:
        """What the page's script needs."""
        return {
            "rows": self.rows,
            "columns": self.columns,
            "tile": self.tile,
            "atlas": self.atlas,
            "alphabet": ALPHABET[: 1 + max((ALPHABET.index(c) for c in set("".join(self.views))), default=0)],
            "views": self.views,
        }


def pack(family: str, observations: NDArray[np.uint8]) -> Pictures | None:
    """Pictures of observations (N, *obs_shape) of a family of envs; None where there is no way to draw them."""
    drawn = envs.family(family).tile_maps(observations) if len(observations) else None
    if drawn is None or len(drawn[1]) > len(ALPHABET):
        return None
    maps, tiles = drawn
    characters = np.array(list(ALPHABET))[maps.reshape(len(maps), -1)]
    texts = ["".join(row) for row in characters]
    views = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    return Pictures(
        rows=maps.shape[1],
        columns=maps.shape[2],
        tile=tiles.shape[1],
        atlas=png_uri(np.concatenate(tiles, axis=1)),
        views=list(views),
        number=np.array([views[text] for text in texts], np.int64),
    )


def stitched(maps: NDArray[np.integer], tiles: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """(n, rows, columns) numbers of tiles, (m, side, side, channels) → (n, height, width, channels) pixels."""
    n, rows, columns = maps.shape
    side = tiles.shape[1]
    return tiles[maps].transpose(0, 1, 3, 2, 4, 5).reshape(n, rows * side, columns * side, -1)


def png_uri(pixels: NDArray[np.uint8]) -> str:
    """A PNG as data URI from (height, width, 3) RGB or (height, width, 4) RGBA."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels, "RGBA" if pixels.shape[2] == 4 else "RGB").save(file, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")
