"""What a Crafter player sees and is, in sentences: a pure function of the symbolic observation.

    You face right, towards a tree. You see grass 1 step up, a tree 1 step right, water 2 steps left and 3 steps down.
    Health 9/9, food 7/9, drink 5/9, energy 9/9. You carry 2 wood and 1 wood pickaxe.

Directions are those of the map (up, down, left, right), as are the moves. Of each kind of thing the nearest in view is
named, nearest first (of equally near ones the upper, then the left one); the rim of the map is "the edge of the world".

A caption is a chain of pieces from one table. Which pieces a view has is found without writing any text, so that who
wants to know what is said (`CrafterClauses`) need not read it.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from bkrl.core.errors import InputError
from bkrl.core.jit import Int, kernel
from bkrl.envs.crafter import layout
from bkrl.envs.crafter.layout import CELL, CELL_NAMES, FACED_CELL, FACINGS, VIEW_COLUMNS, VIEW_ROWS
from bkrl.envs.crafter.rules import ITEMS, MAX_ITEM, VITALS

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


def _offset(cell: int) -> tuple[int, int]:
    """(x, y) of a cell of the view relative to the player."""
    return cell % VIEW_COLUMNS - VIEW_COLUMNS // 2, cell // VIEW_COLUMNS - VIEW_ROWS // 2


def _steps(count: int, direction: str) -> str:
    return f"{count} step{'s' if count > 1 else ''} {direction}"


def _where(cell: int) -> str:
    """ "2 steps left and 1 step up"."""
    dx, dy = _offset(cell)
    parts = [_steps(abs(dx), "left" if dx < 0 else "right")] if dx else []
    parts += [_steps(abs(dy), "up" if dy < 0 else "down")] if dy else []
    return " and ".join(parts)


_CELLS: Final = layout.VIEW.stop
_AMOUNTS: Final = 256  # a byte each
_NEAREST_FIRST: Final = np.array(sorted(range(_CELLS), key=lambda cell: (sum(map(abs, _offset(cell))), cell)))
_FACED_CELL: Final = np.array(FACED_CELL)
_PIECES: Final[list[str]] = []
"""Every piece a caption can have, with what parts it from the one before: a sentence's end, a comma or "and"."""


def _pieces(*texts: str) -> int:
    """Add to the table; the number of the first."""
    _PIECES.extend(texts)
    return len(_PIECES) - len(texts)


_PHRASES: Final = [f"{name} {_where(int(cell))}" for name in _NAMES for cell in _NEAREST_FIRST]
_COUNTED: Final = [f"{n} {item.replace('_', ' ')}" for item in ITEMS[len(VITALS) :] for n in range(_AMOUNTS)]
_DEAD: Final = _pieces(". You are dead")
_ASLEEP: Final = _pieces(". You are asleep", ", and wake when rested or hurt")
_FACE: Final = _pieces(*(f". You face {facing}" for facing in FACINGS))
_TOWARDS: Final = _pieces(*(f", towards {name}" for name in _NAMES))
_SEE: Final = _pieces(*(f". You see {phrase}" for phrase in _PHRASES))
_SEE_TOO: Final = _pieces(*(f", {phrase}" for phrase in _PHRASES))
_NIGHT: Final = _pieces(". It is night")
_VITALS: Final = _pieces(
    *(f". {VITALS[0].capitalize()} {n}/{MAX_ITEM}" for n in range(_AMOUNTS)),
    *(f", {name} {n}/{MAX_ITEM}" for name in VITALS[1:] for n in range(_AMOUNTS)),
)
_CARRY_NOTHING: Final = _pieces(". You carry nothing")
_CARRY: Final = _pieces(*(f". You carry {counted}" for counted in _COUNTED))
_CARRY_TOO: Final = _pieces(*(f", {counted}" for counted in _COUNTED))
_CARRY_LAST: Final = _pieces(*(f" and {counted}" for counted in _COUNTED))
_PLAYER: Final = CELL["player"]
_HEALTH, _FACING, _SLEEPING, _DAYLIGHT = layout.INVENTORY.start, layout.FACING, layout.SLEEPING, layout.DAYLIGHT
_DAY: Final = layout.NIGHT
_NUM_VITALS, _NUM_ITEMS = len(VITALS), len(ITEMS)
_MOST: Final = 2 + 2 + len(CELL_NAMES) + 1 + len(ITEMS)


@kernel
def _read(rows, nearest_first, faced_cell, pieces, counts):  # type: ignore[no-untyped-def]
    """pieces[b, :counts[b]]: the pieces of the caption of rows[b], in order."""
    for b in range(rows.shape[0]):
        row, piece = rows[b], pieces[b]
        count = 0
        if row[_HEALTH] == 0:
            piece[0] = _DEAD
            count = 1
        elif row[_SLEEPING]:
            piece[0] = _ASLEEP
            piece[1] = _ASLEEP + 1
            count = 2
        facing = row[_FACING]
        piece[count] = _FACE + facing
        piece[count + 1] = _TOWARDS + row[faced_cell[facing]]
        count += 2
        first = _SEE
        named = 0
        for rank in range(_CELLS):
            cell: Int = np.int64(row[nearest_first[rank]])
            if cell == _PLAYER or named >> cell & 1:
                continue
            named |= 1 << cell
            piece[count] = first + cell * _CELLS + rank
            count += 1
            first = _SEE_TOO
        if row[_DAYLIGHT] < _DAY:
            piece[count] = _NIGHT
            count += 1
        for i in range(_NUM_VITALS):
            piece[count] = _VITALS + i * _AMOUNTS + row[_HEALTH + i]
            count += 1
        before = count
        for i in range(_NUM_VITALS, _NUM_ITEMS):
            amount = row[_HEALTH + i]
            if amount:
                first = _CARRY if count == before else _CARRY_TOO
                piece[count] = first + (i - _NUM_VITALS) * _AMOUNTS + amount
                count += 1
        if count == before:
            piece[count] = _CARRY_NOTHING
            count += 1
        elif count > before + 1:
            piece[count - 1] += _CARRY_LAST - _CARRY_TOO
        counts[b] = count


def _pieces_of(rows: NDArray[np.uint8]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """(B, 82) rows → (B, most) numbers of pieces, and how many of them count."""
    pieces = np.full((len(rows), _MOST), -1, np.int32)
    counts = np.zeros(len(rows), np.int64)
    _read(rows, _NEAREST_FIRST, _FACED_CELL, pieces, counts)
    return pieces, counts


def caption_batch(observations: NDArray[np.uint8]) -> list[str]:
    """(B, 82) uint8 symbolic observations → B captions.

    Raises:
        InputError: the array is not (B, 82) uint8, or a byte lies outside its range.
    """
    pieces, counts = _pieces_of(checked(observations).copy())  # the kernel is compiled for one kind of array alone
    chains = (numbers[:count] for numbers, count in zip(pieces.tolist(), counts.tolist(), strict=True))
    return ["".join([_PIECES[number] for number in chain])[2:] + "." for chain in chains]


def checked(observations: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Observations that can be captioned; InputError where the array is not (B, 82) uint8, or a byte out of range."""
    observations = np.asarray(observations)
    if observations.ndim != 2 or observations.shape[1] != layout.SIZE or observations.dtype != np.uint8:
        raise InputError(
            f"Crafter captions need symbolic observations (B, {layout.SIZE}) uint8, not "
            f"{observations.shape} {observations.dtype}; make the env with observation='symbolic'."
        )
    most = observations[:, : layout.FACING + 1].max(0, initial=0)
    if most[layout.VIEW].max() >= len(CELL_NAMES) or most[_FACING] >= len(FACINGS):
        raise InputError("A Crafter observation holds a cell or a facing that does not exist; the data are damaged.")
    return observations


class CrafterClauses:
    """Which clauses (the parts between commas and full stops) the caption of a view has, without writing it.

    Attributes:
        texts: of the clauses; more are added as views come that need them.
    """

    def __init__(self) -> None:
        self.texts = [piece[2:] for piece in _PIECES]
        self._joined: dict[int, int] = {}

    def __call__(self, views: NDArray[np.uint8]) -> NDArray[np.int32]:
        """(B, 82) uint8 → (B, most) numbers of `texts` in the caption's order, -1 after the last.

        Raises:
            InputError: the array is not (B, 82) uint8, or a byte lies outside its range.
        """
        pieces, counts = _pieces_of(checked(views))
        # "1 stone and 1 iron sword" is one clause of two pieces
        rows = np.arange(len(views))
        last = pieces[rows, counts - 1]
        joined = last >= _CARRY_LAST
        rows, last, places = rows[joined], last[joined], counts[joined] - 1
        pairs, inverse = np.unique(pieces[rows, places - 1].astype(np.int64) * len(_PIECES) + last, return_inverse=True)
        pieces[rows, places - 1] = np.array([self._join(pair) for pair in pairs.tolist()], np.int32)[inverse]
        pieces[rows, places] = -1
        return pieces

    def _join(self, pair: int) -> int:
        number = self._joined.get(pair)
        if number is None:
            first, last = divmod(pair, len(_PIECES))
            number = self._joined[pair] = len(self.texts)
            self.texts.append(self.texts[first] + _PIECES[last])
        return number
