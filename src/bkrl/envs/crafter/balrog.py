"""BALROG's text observation of Crafter, string for string: what a language model is shown in that benchmark.

    You see:
    - grass 1 step to your west
    - tree 3 steps to your north-east

    You face grass at your front.

    Your status:
    - health: 9/9
    ...

Source: Paglieri et al. 2024 (arXiv 2411.13543), the wrapper of its code release (MIT), itself after SmartPlay (Wu et
al. 2024). "balrog" is what its protocol shows: of each kind the nearest, with its distance and the quarter it lies in.
"balrog-precise" is the wrapper's other setting: steps in each direction, no grass, sand or path, of water the rim.

Kept as published: a kind is nearest by the first number of its line; kinds stand in the order in which the view, read
column by column, first has them; where the view leaves the map on the left or above, nothing is seen at all; and what
is faced is not known where the view has fewer columns or rows than that. At the far right rim, where the release
breaks off with an error, nothing is faced.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from bkrl.envs.crafter import layout
from bkrl.envs.crafter.layout import CELL_NAMES, FACING_STEPS, VIEW_COLUMNS, VIEW_ROWS
from bkrl.envs.crafter.rules import ITEMS, MAX_ITEM, VITALS

_MIDDLE: Final = (VIEW_COLUMNS // 2, VIEW_ROWS // 2)
_NAMES: Final = tuple("plant" if name == "ripe_plant" else name for name in CELL_NAMES)
_UNSAID: Final = ("grass", "sand", "path")


def caption_batch(observations: NDArray[np.uint8], precise: bool = False) -> list[str]:
    """(B, 82) symbolic observations → B texts: the view, an empty line, then status and inventory."""
    return ["\n\n".join(contexts(row, precise)) for row in observations]


def contexts(row: NDArray[np.uint8], precise: bool = False) -> tuple[str, str]:
    """The long-term and the short-term context of one observation (82,), as the wrapper calls them."""
    held = row[layout.INVENTORY].tolist()
    status = "\n".join(f"- {name}: {count}/{MAX_ITEM}" for name, count in zip(VITALS, held, strict=False))
    items = [f"- {name}: {count}" for name, count in zip(ITEMS, held, strict=True) if name not in VITALS and count]
    carried = "\n".join(["Your inventory:", *items]) if items else "You have nothing in your inventory."
    happens = ""
    if row[layout.SLEEPING]:
        happens = "You are sleeping, and will not be able take actions until energy is full.\n\n"
    elif held[0] == 0:
        happens = "You died.\n\n"
    return f"{happens}\n\n{_surroundings(row, precise)}".strip(), f"Your status:\n{status}\n\n{carried}"


def _surroundings(row: NDArray[np.uint8], precise: bool) -> str:
    cells = row[layout.VIEW].reshape(VIEW_ROWS, VIEW_COLUMNS).T  # [x, y]
    if not cells[0].any() or not cells[:, 0].any():  # a slice with a negative start is empty
        return "You see nothing away from you.\n\nYou face nothing at your front."
    cells = cells[cells.any(1)][:, cells.any(0)]  # 0 is what lies outside the map
    columns, rows = cells.shape
    step = FACING_STEPS[row[layout.FACING]]
    x, y = _MIDDLE[0] + step[0], _MIDDLE[1] + step[1]
    # The release holds x against the number of rows, and y against that of columns
    known = x < min(rows, columns) and y < min(rows, columns)
    faced = _NAMES[cells[x, y]] if known else "nothing"
    if precise and faced in _UNSAID:
        faced = "nothing"
    nearest: dict[str, tuple[int, str]] = {}
    for x, y in np.ndindex(columns, rows):
        name = _NAMES[cells[x, y]]
        if name == "player" or (precise and (name in _UNSAID or (name == "water" and _inside(cells, x, y)))):
            continue
        distance, place = _place(x - _MIDDLE[0], y - _MIDDLE[1], precise)
        if name not in nearest or distance < nearest[name][0]:
            nearest[name] = distance, place
    seen = "\n".join(["You see:", *(f"- {name} {place}" for name, (_, place) in nearest.items())])
    return f"{seen if nearest else 'You see nothing away from you.'}\n\nYou face {faced} at your front."


def _inside(cells: NDArray[np.uint8], x: int, y: int) -> bool:
    """Whether the cells beside one, as far as they are in view, are as it is."""
    beside = [(x - 1, y), (x + 1, y), (x, y - 1), (x, y + 1)]
    within = [(i, j) for i, j in beside if 0 <= i < cells.shape[0] and 0 <= j < cells.shape[1]]
    return all(_NAMES[cells[place]] == "water" for place in within)


def _place(dx: int, dy: int, precise: bool) -> tuple[int, str]:
    """The distance that counts, and the words: (-1, -2) → 3, "3 steps to your north-west"."""
    steps = [(abs(dy), "north" if dy < 0 else "south"), (abs(dx), "west" if dx < 0 else "east")]
    ways = [(count, way) for count, way in steps if count]
    if precise:
        return ways[0][0], " and ".join(f"{_steps(count)} {way}" for count, way in ways)
    distance = abs(dx) + abs(dy)
    return distance, f"{_steps(distance)} to your {'-'.join(way for _, way in ways)}"


def _steps(count: int) -> str:
    return f"{count} step{'s' if count > 1 else ''}"
