"""What makes sense where in typed Crafter: situations by number, and the deeds that each is good for.

A situation is what ELLM's text observation tells (`sentences.text_keys`), and the counts that decide a deed: whether
the stone held is enough for a furnace, and the wood held too little for a table, where that costs more than 1.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from bkrl.envs.crafter import layout
from bkrl.envs.crafter.rules import COLLECT, MAKE, PLACE, RuleSet
from bkrl.envs.crafter.sentences import (
    FEELINGS,
    FEELINGS_AT,
    HELD,
    HELD_AT,
    KEY_BITS,
    WORDS,
    held_as,
    read_key,
    sentences_of_key,
    text_keys,
)
from bkrl.envs.crafter.tasks import composition
from bkrl.envs.crafter.typed_actions import ACTION_SETS, VALID, synonyms

_FURNACE_STONE: Final = PLACE["furnace"][0]["stone"]
_STONE, _WOOD = layout.INDEX["stone"], layout.INDEX["wood"]
_ENOUGH: Final = 1 << KEY_BITS
_LITTLE_WOOD: Final = _ENOUGH << 1
_CREATURES: Final = ("zombie", "skeleton", "cow")
_PARTS: Final = (
    *((f"you see {word}.", bit) for bit, word in enumerate(WORDS)),
    *((f"you have in your inventory {held_as(item)}.", HELD_AT + i) for i, item in enumerate(HELD)),
    ("you feel sleepy.", FEELINGS_AT + FEELINGS.index("sleepy")),
)
"""What a situation can tell of one thing, and the bit of its number that tells it."""


class TypedSituations:
    """See `family.GoalSpace`. The goals that make sense are those of the symbolic oracle of the release.

    It looks at what is visible and held, not at what is faced, how far a table is, or whether a plant is ripe. Its
    defect, that a second table is asked for by its other name, is mended.
    """

    wording = "ellm"
    parts = tuple(sentence for sentence, _ in _PARTS)

    def __init__(self, rules: RuleSet) -> None:
        self.deeds = tuple(action.deed for action in ACTION_SETS[rules.typed])
        self.possible = tuple(deed for deed in VALID if deed in self.deeds)
        self.same = tuple(synonyms(deed) for deed in self.deeds)
        self._table_wood = rules.table_wood
        self.sensible = lru_cache(1 << 12)(self._sensible)  # asked for by the book, and at once by the oracle

    def keys(self, symbols: NDArray[np.uint8]) -> NDArray[np.int64]:
        """(B, 82) → (B,)."""
        keys, wood = text_keys(symbols), symbols[:, _WOOD]
        keys |= np.where(symbols[:, _STONE] >= _FURNACE_STONE, _ENOUGH, 0)
        return keys | np.where((wood > 0) & (wood < self._table_wood), _LITTLE_WOOD, 0)

    def composition(self, deeds: Sequence[str]) -> tuple[str, ...]:
        return composition(*deeds, table_wood=self._table_wood)

    def text(self, key: int) -> tuple[str, ...]:
        """Its sentences, the one about feelings only where the player is sleepy, as in the release's prompt."""
        seen, held, feels = sentences_of_key(key & (_ENOUGH - 1))
        return tuple(filter(None, (seen, held, "you feel sleepy." if "sleepy" in feels else "")))

    def parts_of(self, key: int) -> tuple[int, ...]:
        """See `family.GoalSpace`. What is targeted is left out: it is in view, too."""
        return tuple(place for place, (_, bit) in enumerate(_PARTS) if key >> bit & 1)

    def _sensible(self, key: int) -> tuple[str, ...]:
        """The deeds that make sense there."""
        words, held, feelings = read_key(key & (_ENOUGH - 1))
        deeds = [f"attack {name}" for name in _CREATURES if name in words]
        deeds += [deed for deed, word in (("eat plant", "plant"), ("eat cow", "cow")) if word in words]
        for material, (tool, item, _) in COLLECT.items():
            verb = {"drink": "drink", "wood": "chop", "sapling": "chop"}.get(item, "mine")
            if material in words and (tool is None or tool in held):
                deeds.append(f"{verb} {material}")
        deeds += ["sleep"] if "sleepy" in feelings else []
        deeds += ["place stone"] if "stone" in held else []
        if "wood" in held and not key & _LITTLE_WOOD and "crafting table" not in words:
            deeds += ["place crafting table", "make crafting table"]
        deeds += ["place furnace"] if key & _ENOUGH else []
        deeds += ["place plant"] if "sapling" in held else []
        for tool, (uses, near) in MAKE.items():
            stations = {"table": "crafting table"}
            if all(item in held for item in uses) and all(stations.get(one, one) in words for one in near):
                deeds.append(f"make {tool.replace('_', ' ')}")
        return tuple(deed for deed in deeds if deed in self.deeds)
