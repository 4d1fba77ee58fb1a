"""The rules of Crafter as data: what both the reference and the engine read, and where each rule set comes from.

Three rule sets share one env (terrain, creatures, balance, daylight, tech tree):

* `ORIGINAL`: PyPI crafter 1.8.3 (Hafner 2021, arXiv 2109.06780), its `data.yaml`, `objects.py` and `env.py`. A test
  compares every table below with the installed package.
* `TEXT`: the text-Crafter in the code release of "Improving Sample Efficiency of Reinforcement Learning with
  Background Knowledge from Large Language Models" (arXiv 2407.03964, commit 5f62882), itself a relative of the env
  of ELLM (Du et al. 2023). It differs from `ORIGINAL` in exactly this:

  1. 20 actions: `do` is replaced by `eat`, `drink`, `attack` and `collect`, and all four do what `do` does (the
     release does not check the verb against what is faced).
  2. The bare hand deals 5 damage instead of 1, so every creature dies in one hit.
  3. Collecting an item of which 9 are held gives nothing and unlocks nothing; the tile has changed by then all the
     same. (Originally the achievement still counts.)
  4. Unlocking the last rewarded achievement ends the episode: all 22 in `Crafter-Text-Reward`, one in a task env.
     Task envs pay 1 for their achievement and nothing for health.

  Two things of the release are *not* kept: success ends an episode with terminated=True (there: `truncated`), and
  reset does not play a hidden `noop` before the first observation. Whatever is not listed follows `ORIGINAL`,
  table cost of 2 wood included (ELLM's own copy asks for 1).

* `TYPED`: the env of ELLM (Du et al. 2023, arXiv 2302.06692, commit e068cf4), in three sizes of its action set
  (`typed_actions`). It differs from `ORIGINAL` in exactly this:

  1. Actions are a verb and a noun, and do something only where both fit what is faced. `chop`, `mine` and `drink`
     read the material, also when a creature stands on it; `eat` and `attack` read the creature.
  2. A table costs 1 wood. 2. and 3. of `TEXT` hold.
  3. Every step says whether its action succeeded, by two rules: `eval_success` is true where the game did what was
     asked; `action_success` also where the noun is faced or held. While the player sleeps only `sleep` succeeds.
  4. An episode has 400 steps. A step pays 1 when it unlocks something new, and nothing for health.

  `Crafter-Typed-Original` has 1. and 3. alone.
"""

from dataclasses import dataclass, replace
from typing import Final

from bkrl.envs.crafter.typed_actions import ACTION_SETS, TASK_NAMES

AREA: Final = 64  # cells a side
CHUNK: Final = 12  # cells a side of a balance chunk; the last row and column of chunks are 4 wide
MAX_STEPS: Final = 10_000
TYPED_STEPS: Final = 400
MAX_ITEM: Final = 9  # of every item, health and hunger included
SAPLING_PROBABILITY: Final = 0.1

MATERIALS: Final = (
    "water", "grass", "stone", "path", "sand", "tree", "lava", "coal", "iron", "diamond", "table", "furnace",
)  # fmt: skip
"""Material i has the id i + 1 in the maps; 0 is what lies outside."""

WALKABLE: Final = ("grass", "path", "sand")

_TOOLS = [f"{material}_{tool}" for tool in ("pickaxe", "sword") for material in ("wood", "stone", "iron")]
ITEMS: Final = ("health", "food", "drink", "energy", "sapling", "wood", "stone", "coal", "iron", "diamond", *_TOOLS)
VITALS: Final = ITEMS[:4]
"""These start at 9, all other items at 0."""

COLLECT: Final[dict[str, tuple[str | None, str, str]]] = {
    "tree": (None, "wood", "grass"),
    "stone": ("wood_pickaxe", "stone", "path"),
    "coal": ("wood_pickaxe", "coal", "path"),
    "iron": ("stone_pickaxe", "iron", "path"),
    "diamond": ("iron_pickaxe", "diamond", "path"),
    "water": (None, "drink", "water"),
    "grass": (None, "sapling", "grass"),
}
"""Material: (tool needed, item received, material left behind). Grass yields with `SAPLING_PROBABILITY`."""

PLACE: Final[dict[str, tuple[dict[str, int], tuple[str, ...]]]] = {
    "stone": ({"stone": 1}, ("grass", "sand", "path", "water", "lava")),
    "table": ({"wood": 2}, ("grass", "sand", "path")),
    "furnace": ({"stone": 4}, ("grass", "sand", "path")),
    "plant": ({"sapling": 1}, ("grass",)),
}
"""Thing: (items used, materials it can stand on)."""

MAKE: Final[dict[str, tuple[dict[str, int], tuple[str, ...]]]] = {
    "wood_pickaxe": ({"wood": 1}, ("table",)),
    "stone_pickaxe": ({"wood": 1, "stone": 1}, ("table",)),
    "iron_pickaxe": ({"wood": 1, "coal": 1, "iron": 1}, ("table", "furnace")),
    "wood_sword": ({"wood": 1}, ("table",)),
    "stone_sword": ({"wood": 1, "stone": 1}, ("table",)),
    "iron_sword": ({"wood": 1, "coal": 1, "iron": 1}, ("table", "furnace")),
}
"""Tool: (items used, materials that must be within one cell)."""

SWORDS: Final = {"wood_sword": 2, "stone_sword": 3, "iron_sword": 5}
"""Damage of each; the best one held counts."""
HEALTH: Final = {"cow": 3, "zombie": 5, "skeleton": 3}
"""Of creatures, when they come."""

_CRAFTS = (*(f"place_{thing}" for thing in PLACE), *(f"make_{tool}" for tool in MAKE))
_COLLECTED = [f"collect_{item}" for _, item, _ in COLLECT.values()]
_LIVING = ("defeat_skeleton", "defeat_zombie", "eat_cow", "eat_plant", "wake_up")
ACHIEVEMENTS: Final = tuple(sorted((*_COLLECTED, *_CRAFTS, *_LIVING)))

_MOVES = ("move_left", "move_right", "move_up", "move_down")
VERBS: Final = ("noop", *_MOVES, "do", "sleep", *_CRAFTS)
"""What the player can do, by the original names and in their order; an action of any rule set is one of these."""


@dataclass(frozen=True)
class RuleSet:
    """What two rule sets may differ in.

    Attributes:
        name: "original", "text", or "typed-" and what kind.
        actions: action names in the order of their indices.
        verbs: for each action, the index in `VERBS` of what it does.
        base_damage: damage of the bare hand.
        full_item_fails: collecting an item of which `MAX_ITEM` are held gives and unlocks nothing.
        ends_on_success: the episode terminates when every rewarded achievement has been unlocked.
        table_wood: wood that a table costs.
        typed: the `ACTION_SETS` key of typed actions, "" for others.
    """

    name: str
    actions: tuple[str, ...]
    verbs: tuple[int, ...]
    base_damage: int
    full_item_fails: bool
    ends_on_success: bool
    table_wood: int = 2
    typed: str = ""


ORIGINAL: Final = RuleSet("original", VERBS, tuple(range(len(VERBS))), 1, False, False)

_TEXT_ACTIONS = ("noop", *_MOVES, "eat", "drink", "attack", "collect", "sleep", *_CRAFTS)
TEXT: Final = RuleSet(
    "text", _TEXT_ACTIONS, tuple(VERBS.index(name if name in VERBS else "do") for name in _TEXT_ACTIONS), 5, True, True
)
TYPED: Final = {
    size: RuleSet(
        f"typed-{size}",
        tuple(action.name for action in actions),
        tuple(VERBS.index(action.verb) for action in actions),
        base_damage=5,
        full_item_fails=True,
        ends_on_success=False,
        table_wood=1,
        typed=size,
    )
    for size, actions in ACTION_SETS.items()
}


@dataclass(frozen=True)
class Game:
    """A rule set and what it pays for.

    Attributes:
        rules: the rule set.
        tasks: achievements whose first unlocking pays 1 (at most 1 a step); unlocking all of them is success.
        health_reward: a tenth of every change in health is paid as well.
        pays: False pays nothing at all.
        max_steps: actions after which an episode is truncated.
        task: the name of one of `tasks.TASKS`, which then decides what is paid and what is success; "" for none.
    """

    rules: RuleSet
    tasks: tuple[str, ...]
    health_reward: bool
    pays: bool
    max_steps: int = MAX_STEPS
    task: str = ""


TYPED_ORIGINAL: Final = replace(
    TYPED["harder"], name="typed-original", base_damage=1, full_item_fails=False, table_wood=2
)
"""Actions of `TYPED` in an env that is `ORIGINAL` in all else, so that what has goals can be measured there."""

GAMES: Final = {
    "Crafter-Text-Reward": Game(TEXT, ACHIEVEMENTS, True, True),
    "Crafter-Text-PlaceCraftingTable": Game(TEXT, ("place_table",), False, True),
    "Crafter-Text-MakeWoodPickAxe": Game(TEXT, ("make_wood_pickaxe",), False, True),
    "Crafter-Text-CollectStone": Game(TEXT, ("collect_stone",), False, True),
    "Crafter-Text-PlaceFurnace": Game(TEXT, ("place_furnace",), False, True),
    "Crafter-Text-CollectDrink": Game(TEXT, ("collect_drink",), False, True),
    "Crafter-Text-EatCow": Game(TEXT, ("eat_cow",), False, True),
    "Crafter-Text-MakeStonePickaxe": Game(TEXT, ("make_stone_pickaxe",), False, True),
    "Crafter-Text-CollectCoal": Game(TEXT, ("collect_coal",), False, True),
    "Crafter-Text-CollectIron": Game(TEXT, ("collect_iron",), False, True),
    "Crafter-Text-EatPlant": Game(TEXT, ("eat_plant",), False, True),
    "CrafterReward-v1": Game(ORIGINAL, ACHIEVEMENTS, True, True),
    "CrafterNoReward-v1": Game(ORIGINAL, ACHIEVEMENTS, True, False),
    **{
        f"Crafter-Typed-{size.capitalize()}": Game(TYPED[size], ACHIEVEMENTS, False, True, TYPED_STEPS)
        for size in TYPED
    },
    "Crafter-Typed-Original": Game(TYPED_ORIGINAL, ACHIEVEMENTS, True, True),
    **{
        f"Crafter-Typed-{name.title().replace(' ', '')}": Game(
            TYPED["harder"], ACHIEVEMENTS, False, False, TYPED_STEPS, name
        )
        for name in TASK_NAMES
    },
}
"""The ids, with what each is."""
