"""What an agent in Crafter has done in its episode, found from its symbols and actions alone.

Fields count the 22 achievements and the cells it has entered. What the engine does in the dark is found by the rules:
a thing is collected where the faced cell is of its material, a tool is made where the inventory says so. With the bare
hand under the original rules a creature takes several blows; it counts as defeated once a blow has left none of its
kind on the struck cell or beside it, which is what the agent can see.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bkrl.core.jit import helper, kernel
from bkrl.envs.crafter import rules
from bkrl.envs.crafter.layout import (
    CELL,
    FACED_CELL,
    FACING,
    FACING_STEPS,
    INVENTORY,
    SLEEPING,
    VIEW_COLUMNS,
    VIEW_ROWS,
)
from bkrl.envs.crafter.rules import ACHIEVEMENTS, AREA, COLLECT, ITEMS, MAKE, MAX_ITEM, PLACE, VERBS, WALKABLE, RuleSet
from bkrl.envs.memory import count

NAMES: Final = (*ACHIEVEMENTS, "cells_visited")
_SAID: Final = {"collect_drink": "drink water", "wake_up": "sleep", "cells_visited": "explore the world"}
GOALS: Final = tuple(_SAID.get(name, name.replace("_", " ")) for name in NAMES)
"""What the fields count, said as goals."""
_VISITED: Final = len(ACHIEVEMENTS)
_X, _Y, _BEGUN, _MAP = _VISITED + 1, _VISITED + 2, _VISITED + 3, _VISITED + 4

_NONE: Final = -1
_DO, _MOVE_LEFT, _MOVE_DOWN = VERBS.index("do"), VERBS.index("move_left"), VERBS.index("move_down")
_PLAYER_FACES: Final = np.array(FACED_CELL)
_TURNED: Final = np.array(FACING_STEPS)
_ENERGY: Final = INVENTORY.start + ITEMS.index("energy")
_SWORDS: Final = np.array([(INVENTORY.start + ITEMS.index(name), damage) for name, damage in rules.SWORDS.items()])
_RIPE: Final = CELL["ripe_plant"]
_EAT_PLANT, _WAKE_UP = ACHIEVEMENTS.index("eat_plant"), ACHIEVEMENTS.index("wake_up")
_SAPLING: Final = INVENTORY.start + ITEMS.index("sapling")
_COLLECT_SAPLING: Final = ACHIEVEMENTS.index("collect_sapling")

# By the cell that is faced: what is collected there, with which tool, and which creature it is.
_ITEM: Final = np.full(len(CELL), _NONE)
_TOOL: Final = np.full(len(CELL), _NONE)
_COLLECTED: Final = np.full(len(CELL), _NONE)
for _material, (_tool, _item, _leaves) in COLLECT.items():
    if _item != "sapling":  # grass gives one by chance: the inventory says so
        _ITEM[CELL[_material]] = INVENTORY.start + ITEMS.index(_item)
        _TOOL[CELL[_material]] = INVENTORY.start + ITEMS.index(_tool) if _tool else _NONE
        _COLLECTED[CELL[_material]] = ACHIEVEMENTS.index(f"collect_{_item}")
_HEALTH: Final = np.full(len(CELL), _NONE)
_DEFEATED: Final = np.full(len(CELL), _NONE)
for _name, _points in rules.HEALTH.items():
    _HEALTH[CELL[_name]] = _points
    _DEFEATED[CELL[_name]] = ACHIEVEMENTS.index("eat_cow" if _name == "cow" else f"defeat_{_name}")
_CAN_ENTER: Final = np.array([name in (*WALKABLE, "lava") for name in CELL])

# By verb: the item whose number falls when a thing is placed, rises when a tool is made, and the achievement.
_FALLS: Final = np.full(len(VERBS), _NONE)
_RISES: Final = np.full(len(VERBS), _NONE)
_ACHIEVED: Final = np.full(len(VERBS), _NONE)
for _name, (_uses, _) in PLACE.items():
    _FALLS[VERBS.index(f"place_{_name}")] = INVENTORY.start + ITEMS.index(next(iter(_uses)))
    _ACHIEVED[VERBS.index(f"place_{_name}")] = ACHIEVEMENTS.index(f"place_{_name}")
for _tool_name in MAKE:
    _RISES[VERBS.index(f"make_{_tool_name}")] = INVENTORY.start + ITEMS.index(_tool_name)
    _ACHIEVED[VERBS.index(f"make_{_tool_name}")] = ACHIEVEMENTS.index(f"make_{_tool_name}")


class SurvivalMemory:
    """See `EpisodeMemory`.

    Args:
        rules: whose actions are no typed ones.
    """

    names, goals = NAMES, GOALS
    size = _MAP + AREA * AREA

    def __init__(self, rules: RuleSet) -> None:
        self._verbs = np.array(rules.verbs)
        self._base_damage, self._full_item_fails = rules.base_damage, rules.full_item_fails

    def update(
        self, kept: NDArray[np.uint8], before: NDArray[np.uint8], actions: NDArray[np.int64], after: NDArray[np.uint8]
    ) -> None:
        _update(kept, before, self._verbs[actions], after, self._base_damage, self._full_item_fails)


@kernel
def _update(kept, before, verbs, after, base_damage, full_item_fails):  # type: ignore[no-untyped-def]
    for n in range(kept.shape[0]):
        one, was, now, verb = kept[n], before[n], after[n], verbs[n]
        if not one[_BEGUN]:
            one[_BEGUN] = 1
            one[_MAP] = 1
        if was[SLEEPING]:
            if was[_ENERGY] < MAX_ITEM:
                continue  # asleep, whatever it wanted to do
            count(one, _WAKE_UP)
        if verb == _DO:
            _do(one, was, now, base_damage, full_item_fails)
        elif _MOVE_LEFT <= verb <= _MOVE_DOWN:
            _walk(one, was, verb - _MOVE_LEFT)
        elif _ACHIEVED[verb] != _NONE:
            falls, rises = _FALLS[verb], _RISES[verb]
            if (falls != _NONE and now[falls] < was[falls]) or (rises != _NONE and now[rises] > was[rises]):
                count(one, _ACHIEVED[verb])


@helper
def _walk(one: Any, was: Any, direction: Any) -> None:
    """A step, if the cell is free; the map wraps round, and is as large as the world."""
    if not _CAN_ENTER[min(was[_PLAYER_FACES[direction]], len(_CAN_ENTER) - 1)]:
        return
    one[_X] = (np.int64(one[_X]) + _TURNED[direction, 0]) % AREA
    one[_Y] = (np.int64(one[_Y]) + _TURNED[direction, 1]) % AREA
    place = _MAP + np.int64(one[_X]) * AREA + one[_Y]
    if not one[place]:
        one[place] = 1
        count(one, _VISITED)


@helper
def _do(one: Any, was: Any, now: Any, base_damage: Any, full_item_fails: Any) -> None:
    """What `do` did to the faced cell."""
    at = _PLAYER_FACES[min(was[FACING], len(_PLAYER_FACES) - 1)]
    cell = min(was[at], len(_ITEM) - 1)
    if cell == _RIPE:
        count(one, _EAT_PLANT)
    elif _ITEM[cell] != _NONE:
        has_tool = _TOOL[cell] == _NONE or was[_TOOL[cell]] > 0
        if has_tool and not (full_item_fails and was[_ITEM[cell]] == MAX_ITEM):
            count(one, _COLLECTED[cell])
    elif _HEALTH[cell] != _NONE:
        damage = base_damage
        for i in range(len(_SWORDS)):
            if was[_SWORDS[i, 0]]:
                damage = max(damage, _SWORDS[i, 1])
        if damage >= _HEALTH[cell] or not _is_near(now, at, cell):
            count(one, _DEFEATED[cell])
    elif now[_SAPLING] > was[_SAPLING]:
        count(one, _COLLECT_SAPLING)


@helper
def _is_near(now: Any, at: Any, cell: Any) -> bool:
    """Whether such a cell is at a place of the view or beside it; the player has not moved."""
    row, column = at // VIEW_COLUMNS, at % VIEW_COLUMNS
    for r in range(max(row - 1, 0), min(row + 2, VIEW_ROWS)):
        for c in range(max(column - 1, 0), min(column + 2, VIEW_COLUMNS)):
            if now[r * VIEW_COLUMNS + c] == cell:
                return True
    return False
