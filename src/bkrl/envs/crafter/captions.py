"""What a Crafter player sees and is, in sentences: a pure function of the symbolic observation.

    You face right, towards a tree. You see grass 1 step up, a tree 1 step right, water 2 steps left and 3 steps down.
    Health 9/9, food 7/9, drink 5/9, energy 9/9. You carry 2 wood and 1 wood pickaxe.

Directions are those of the map (up, down, left, right), as are the moves. Of each kind of thing the nearest in view is
named, nearest first (of equally near ones the upper, then the left one); the rim of the map is "the edge of the world".
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from bkrl.envs.crafter import layout
from bkrl.envs.crafter.layout import CELL, CELL_NAMES, FACED_CELL, FACINGS, VIEW_COLUMNS, VIEW_ROWS
from bkrl.envs.crafter.rules import ITEMS, MAX_ITEM, VITALS
from bkrl.errors import InputError

_ARTICLES: Final = {
    "outside": "the edge of the world",
    "water": "water",
    "grass": "grass",
    "stone": "stone",
    "path": "a path",
    "sand": "sand",
    "tree": "a tree",
    "lava": "lava",
    "coal": "coal",
    "iron": "iron",
    "diamond": "a diamond",
    "table": "a crafting table",
    "furnace": "a furnace",
    "player": "yourself",
    "cow": "a cow",
    "zombie": "a zombie",
    "skeleton": "a skeleton",
    "arrow": "an arrow",
    "plant": "a young plant",
    "ripe_plant": "a ripe plant",
}
_NAMES: Final = tuple(_ARTICLES[name] for name in CELL_NAMES)
_MEMO_LIMIT: Final = 1 << 16
_memo: dict[bytes, str] = {}


def _offset(cell: int) -> tuple[int, int]:
    """(x, y) of a cell of the view relative to the player."""
    return cell % VIEW_COLUMNS - VIEW_COLUMNS // 2, cell // VIEW_COLUMNS - VIEW_ROWS // 2


def _distance(cell: int) -> int:
    return sum(map(abs, _offset(cell)))


def _steps(count: int, direction: str) -> str:
    return f"{count} step{'s' if count > 1 else ''} {direction}"


def _where(cell: int) -> str:
    """ "2 steps left and 1 step up"."""
    dx, dy = _offset(cell)
    parts = [_steps(abs(dx), "left" if dx < 0 else "right")] if dx else []
    parts += [_steps(abs(dy), "up" if dy < 0 else "down")] if dy else []
    return " and ".join(parts)


_NEAREST_FIRST: Final = np.array(sorted(range(layout.VIEW.stop), key=lambda cell: (_distance(cell), cell)))
_PHRASES: Final = tuple(tuple(f"{name} {_where(int(cell))}" for cell in _NEAREST_FIRST) for name in _NAMES)
"""Phrase for [cell id][rank of the cell in `_NEAREST_FIRST`]."""
_ABSENT: Final = layout.VIEW.stop


def _sentences(row: NDArray[np.uint8], ranks: list[int]) -> str:
    """One caption. `ranks[id]`: rank of the nearest cell that holds `id`, `_ABSENT` when none does."""
    inventory = row[layout.INVENTORY].tolist()
    facing = int(row[layout.FACING])
    sentences = []
    if inventory[0] == 0:
        sentences.append("You are dead.")
    elif row[layout.SLEEPING]:
        sentences.append("You are asleep, and wake when rested or hurt.")
    sentences.append(f"You face {FACINGS[facing]}, towards {_NAMES[row[FACED_CELL[facing]]]}.")
    seen = sorted(
        (rank, cell_id) for cell_id, rank in enumerate(ranks) if rank != _ABSENT and cell_id != CELL["player"]
    )
    sentences.append(f"You see {', '.join(_PHRASES[i][rank] for rank, i in seen)}.")
    if row[layout.DAYLIGHT] < layout.NIGHT:
        sentences.append("It is night.")
    vitals = ", ".join(f"{name} {amount}/{MAX_ITEM}" for name, amount in zip(VITALS, inventory, strict=False))
    sentences.append(f"{vitals.capitalize()}.")
    carried = [
        f"{amount} {name.replace('_', ' ')}"
        for name, amount in zip(ITEMS[len(VITALS) :], inventory[len(VITALS) :], strict=True)
        if amount
    ]
    if len(carried) > 1:
        carried = [f"{', '.join(carried[:-1])} and {carried[-1]}"]
    sentences.append(f"You carry {carried[0] if carried else 'nothing'}.")
    return " ".join(sentences)


def caption_batch(observations: NDArray[np.uint8]) -> list[str]:
    """(B, 82) uint8 symbolic observations → B captions.

    Memoised by what the caption depends on (daylight counts as day or night only), up to 65,536 views.

    Raises:
        InputError: the array is not (B, 82) uint8, or a byte lies outside its range.
    """
    observations = np.asarray(observations)
    if observations.ndim != 2 or observations.shape[1] != layout.SIZE or observations.dtype != np.uint8:
        raise InputError(
            f"Crafter captions need symbolic observations (B, {layout.SIZE}) uint8, not "
            f"{observations.shape} {observations.dtype}; make the world with observation='symbolic'."
        )
    keyed = observations.copy()
    keyed[:, layout.DAYLIGHT] = np.where(keyed[:, layout.DAYLIGHT] < layout.NIGHT, 0, 255)
    keys = [row.tobytes() for row in keyed]
    fresh = {key: i for i, key in enumerate(keys) if key not in _memo}
    if fresh:
        _check(keyed)
        if len(_memo) + len(fresh) > _MEMO_LIMIT:
            texts = dict(zip(fresh, _captions(keyed[list(fresh.values())]), strict=True))
            texts |= {key: _memo[key] for key in keys if key in _memo}
            _memo.clear()
            _memo.update(list(texts.items())[:_MEMO_LIMIT])
            return [texts[key] for key in keys]
        _memo.update(zip(fresh, _captions(keyed[list(fresh.values())]), strict=True))
    return [_memo[key] for key in keys]


def _check(rows: NDArray[np.uint8]) -> None:
    if rows[:, layout.VIEW].max() >= len(CELL_NAMES) or rows[:, layout.FACING].max() >= len(FACINGS):
        raise InputError("A Crafter observation holds a cell or a facing that does not exist; the data are damaged.")


def _captions(rows: NDArray[np.uint8]) -> list[str]:
    """(B, 82) rows → B captions, the search for the nearest of each kind done for all rows at once."""
    nearest_first = rows[:, _NEAREST_FIRST]
    ranks = np.full((len(rows), len(CELL_NAMES)), _ABSENT)
    for cell_id in range(len(CELL_NAMES)):
        found = nearest_first == cell_id
        ranks[:, cell_id] = np.where(found.any(1), found.argmax(1), _ABSENT)
    return [_sentences(row, rank) for row, rank in zip(rows, ranks.tolist(), strict=True)]
