"""ELLM's text observation of Crafter: a sentence of what is seen, one of what is held, one of how the player feels.

    you see grass, and tree. you are targeting tree. you have in your inventory wood. you feel thirsty.

Counts, places and distances are not said, so there are few texts and many observations for each. A text has a number
(its key), which is found without writing it: what is to be known of a text is looked up by its key.
Source: Du et al. 2023 (arXiv 2302.06692), the code release; its words, commas and omissions are kept.
"""

from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from bkrl.core.jit import kernel
from bkrl.envs.crafter import layout
from bkrl.envs.crafter.layout import CELL_NAMES, FACED_CELL
from bkrl.envs.crafter.rules import ITEMS, MAX_ITEM, VITALS

_CALLED: Final = {"table": "crafting table", "ripe_plant": "plant"}
_UNSEEN: Final = ("outside", "player", "sand", "arrow")
WORDS: Final = tuple(sorted({_CALLED.get(name, name) for name in CELL_NAMES if name not in _UNSEEN}))
"""What the first sentence can name."""
_UNTARGETED: Final = ("outside", "player", "path", "sand", "lava")
TARGETS: Final = ("", *(name for name in CELL_NAMES if name not in (*_UNTARGETED, "ripe_plant")))
"""What can be targeted; "" is nothing. A table is called "table" here, as in the release."""
HELD: Final = ITEMS[len(VITALS) :]
FEELINGS: Final = ("hurt", "hungry", "thirsty", "sleepy")

# A key, from its lowest bit: a bit for each word, five bits of target, a bit for each item, one for each feeling
_TARGET_AT: Final = len(WORDS)
HELD_AT: Final = _TARGET_AT + 5
FEELINGS_AT: Final = HELD_AT + len(HELD)
KEY_BITS: Final = FEELINGS_AT + len(FEELINGS)

_BIT_OF_CELL: Final = np.array(
    [1 << WORDS.index(_CALLED.get(name, name)) if name not in _UNSEEN else 0 for name in CELL_NAMES]
    + [0] * (256 - len(CELL_NAMES)),
    np.int64,
)
_TARGET_OF_CELL: Final = np.array(
    [TARGETS.index(_CALLED["ripe_plant"] if name == "ripe_plant" else name) if name not in _UNTARGETED else 0
     for name in CELL_NAMES] + [0] * (256 - len(CELL_NAMES)),
    np.int64,
)  # fmt: skip
_FACED_CELL: Final = np.array(FACED_CELL)
_FACING: Final = layout.FACING  # the view lies before it, feelings and items behind it
_NUM_VITALS, _NUM_HELD = len(VITALS), len(HELD)


def text_keys(observations: NDArray[np.uint8]) -> NDArray[np.int64]:
    """(B, 82) symbolic observations → (B,) keys of their texts. Equal keys are equal texts."""
    keys = np.empty(len(observations), np.int64)
    _read_keys(np.ascontiguousarray(observations), keys)
    return keys


@kernel
def _read_keys(observations, keys):  # type: ignore[no-untyped-def]
    for b in range(len(observations)):
        row = observations[b]
        key = _TARGET_OF_CELL[row[_FACED_CELL[row[_FACING] & 3]]] << _TARGET_AT
        for cell in range(_FACING):
            key |= _BIT_OF_CELL[row[cell]]
        for i in range(_NUM_VITALS):
            key |= np.int64(row[_FACING + 1 + i] < MAX_ITEM) << (FEELINGS_AT + i)
        for i in range(_NUM_HELD):
            key |= np.int64(row[_FACING + 1 + _NUM_VITALS + i] > 0) << (HELD_AT + i)
        keys[b] = key


def _bits(key: int, start: int, names: tuple[str, ...]) -> list[str]:
    return [name for i, name in enumerate(names) if key >> start + i & 1]


def read_key(key: int) -> tuple[list[str], list[str], list[str]]:
    """The words in view, the items held, and the feelings that a key stands for."""
    return _bits(key, 0, WORDS), _bits(key, HELD_AT, HELD), _bits(key, FEELINGS_AT, FEELINGS)


def held_as(item: str) -> str:
    """What a text calls an item of the inventory."""
    return "plant" if item == "sapling" else item


@lru_cache(1 << 16)
def sentences_of_key(key: int) -> tuple[str, str, str]:
    """What is seen (with what is targeted), what is held, how the player feels; "" for an empty sentence.

    (tree and grass in view, facing the tree, holding wood, drink at 8) →
    ("you see grass, and tree. you are targeting tree.", "you have in your inventory wood.", "you feel thirsty.")
    """
    words, held, feelings = read_key(key)
    if len(words) > 1:
        words[-1] = f"and {words[-1]}"
    seen = f"you see {', '.join(words)}."
    target = TARGETS[key >> _TARGET_AT & 31]
    if target:
        seen += f" you are targeting {target}."
    return (
        seen,
        f"you have in your inventory {', '.join(map(held_as, held))}." if held else "",
        f"you feel {', '.join(feelings)}." if feelings else "",
    )


def caption_batch(observations: NDArray[np.uint8]) -> list[str]:
    """(B, 82) symbolic observations → B texts, the sentences that are not empty divided by spaces."""
    return [" ".join(filter(None, sentences_of_key(key))) for key in text_keys(observations).tolist()]
