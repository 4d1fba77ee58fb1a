"""The typed verbs of ELLM's Crafter as data: which actions there are, and what each does in the game.

An action is a verb and, mostly, a noun: "chop tree". Of the 139 pairs of `harder`, 29 do something; the other 110 let
time pass. Source: Du et al. 2023 (arXiv 2302.06692) and its code release, whose names and order these are.
"""

from dataclasses import dataclass
from typing import Final

PLAIN_VERBS: Final = ("do nothing", "move left", "move right", "move up", "move down", "sleep")
VERBS_WITH_NOUN: Final = ("mine", "eat", "attack", "chop", "drink", "place", "make")
NOUNS: Final = (
    "zombie", "skeleton", "cow", "tree", "stone", "coal", "iron", "diamond", "water", "grass", "crafting table",
    "furnace", "plant", "wood pickaxe", "stone pickaxe", "iron pickaxe", "wood sword", "stone sword", "iron sword",
)  # fmt: skip
BUSH: Final = "bush"
"""The twentieth noun of the paper's 260 pairs; the released rules have no bush."""

EASIER: Final = (
    *PLAIN_VERBS[:5], "eat plant", "attack zombie", "attack skeleton", "attack cow", "chop tree", "mine stone",
    "mine coal", "mine iron", "mine diamond", "drink water", "chop grass", "sleep", "place stone",
    "place crafting table", "place furnace", "place plant", "make wood pickaxe", "make stone pickaxe",
    "make iron pickaxe", "make wood sword", "make stone sword", "make iron sword",
)  # fmt: skip

TASK_NAMES: Final = (
    *EASIER[5:], "plant row", "make workshop", "deforestation", "vegetarianism", "chop grass with wood pickaxe",
    "work and sleep", "gardening", "wilderness survival", "survival",
)  # fmt: skip
"""The tasks of `tasks.TASKS`: every deed but moving and waiting, and the composed ones of the release."""

SYNONYMS: Final = {"eat cow": "attack cow", "make crafting table": "place crafting table"}
"""Two names of one deed; what is said of one holds for the other."""

VALID: Final = (*EASIER, *SYNONYMS)
"""The 29 names that do something."""

_MATERIALS: Final = ("tree", "stone", "coal", "iron", "diamond", "water", "grass", "furnace")
_CREATURES: Final = ("zombie", "skeleton", "cow", "plant")
_VERB_OF: Final = {"do nothing": "noop", "place crafting table": "place_table"}


@dataclass(frozen=True)
class TypedAction:
    """One typed action.

    Attributes:
        name: as published; unique among the actions of its set.
        deed: what it says: the name without a noun that its verb does not take. Captions of transitions are deeds.
        verb: what the player does, a name of `rules.VERBS`.
        target: the cell that must be faced for it, a name of `layout.CELL_NAMES`; "" for any.
        noun_cell: the faced cell that makes the action a permissive success, "" for none.
        noun_item: the item that makes it one when it is held, "" for none.
    """

    name: str
    deed: str
    verb: str
    target: str = ""
    noun_cell: str = ""
    noun_item: str = ""


def synonyms(deed: str) -> tuple[str, ...]:
    """The names of one deed, itself first: "eat cow" → ("eat cow", "attack cow")."""
    same = {deed, SYNONYMS.get(deed, deed), *(new for new, old in SYNONYMS.items() if old == deed)}
    return (deed, *sorted(same - {deed}))


def _action(name: str, deed: str) -> TypedAction:
    verb, _, noun = deed.partition(" ")
    if deed in PLAIN_VERBS:
        return TypedAction(name, deed, _VERB_OF.get(deed, deed.replace(" ", "_")))
    game = SYNONYMS.get(deed, deed)
    if deed not in VALID:
        does, target = "noop", ""
    elif verb in ("place", "make"):
        does, target = _VERB_OF.get(game, game.replace(" ", "_")), ""
    else:
        does, target = "do", noun
    # A held sapling is no "plant", and a table on the map is called "table": neither noun matches there
    cell = noun if noun in (*_MATERIALS, *_CREATURES) else ""
    item = noun.replace(" ", "_") if noun not in (*_CREATURES, "tree", "water", "grass", "furnace", BUSH) else ""
    return TypedAction(name, deed, does, target, cell, "" if item == "crafting_table" else item)


def _pairs() -> tuple[TypedAction, ...]:
    plain = [_action(verb, verb) for verb in PLAIN_VERBS]
    return (*plain, *(_action(f"{verb} {noun}", f"{verb} {noun}") for verb in VERBS_WITH_NOUN for noun in NOUNS))


def _product() -> tuple[TypedAction, ...]:
    nouns = (*NOUNS, BUSH)
    plain = [_action(f"{verb} ({noun})", verb) for verb in PLAIN_VERBS for noun in nouns]
    return (*plain, *(_action(f"{verb} {noun}", f"{verb} {noun}") for verb in VERBS_WITH_NOUN for noun in nouns))


ACTION_SETS: Final = {"easier": tuple(_action(name, name) for name in EASIER), "harder": _pairs(), "full": _product()}
"""27 names, 6 + 7 × 19 = 139 pairs (the release, and what the paper's results are of), 13 × 20 = 260 (the paper)."""
