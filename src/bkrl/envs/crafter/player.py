"""The player's turn: `crafter/objects.py`, class Player."""

from typing import Any, Final

import numpy as np

from bkrl.core.jit import Int, helper
from bkrl.envs.crafter import state as c
from bkrl.envs.crafter.layout import CELL
from bkrl.envs.crafter.mt19937 import uniform
from bkrl.envs.crafter.rules import (
    ACHIEVEMENTS,
    AREA,
    COLLECT,
    ITEMS,
    MAKE,
    MAX_ITEM,
    PLACE,
    SAPLING_PROBABILITY,
    SWORDS,
    VERBS,
)

_NOOP: Final = VERBS.index("noop")
_MOVE_LEFT: Final = VERBS.index("move_left")
_MOVE_DOWN: Final = VERBS.index("move_down")
_DO: Final = VERBS.index("do")
_SLEEP: Final = VERBS.index("sleep")
_FIRST_PLACE: Final = VERBS.index(f"place_{next(iter(PLACE))}")
_FIRST_MAKE: Final = VERBS.index(f"make_{next(iter(MAKE))}")

# Rules as arrays, by material, by thing placed and by tool made
_NO_RULE: Final = -1
_COLLECT_TOOL: Final = np.full(len(CELL), _NO_RULE)
_COLLECT_ITEM: Final = np.full(len(CELL), _NO_RULE)
_COLLECT_LEAVES: Final = np.zeros(len(CELL), np.uint8)
for _name, (_tool, _item, _leaves) in COLLECT.items():
    _COLLECT_TOOL[CELL[_name]] = ITEMS.index(_tool) if _tool else _NO_RULE
    _COLLECT_ITEM[CELL[_name]] = ITEMS.index(_item)
    _COLLECT_LEAVES[CELL[_name]] = CELL[_leaves]
_PLACE_USES: Final = np.array([[uses.get(item, 0) for item in ITEMS] for uses, _ in PLACE.values()])
_PLACE_ON: Final = np.array([sum(1 << CELL[name] for name in on) for _, on in PLACE.values()])
_PLACE_PUTS: Final = np.array([CELL[name] for name in PLACE])
_MAKE_USES: Final = np.array([[uses.get(item, 0) for item in ITEMS] for uses, _ in MAKE.values()])
_MAKE_NEAR: Final = np.array([sum(1 << CELL[name] for name in near) for _, near in MAKE.values()])
_MAKE_GIVES: Final = np.array([ITEMS.index(name) for name in MAKE])

_COLLECTED: Final = np.array(
    [ACHIEVEMENTS.index(f"collect_{item}") if f"collect_{item}" in ACHIEVEMENTS else _NO_RULE for item in ITEMS]
)
_PLACED: Final = np.array([ACHIEVEMENTS.index(f"place_{name}") for name in PLACE])
_MADE: Final = np.array([ACHIEVEMENTS.index(f"make_{name}") for name in MAKE])
_EAT_COW: Final = ACHIEVEMENTS.index("eat_cow")
_EAT_PLANT: Final = ACHIEVEMENTS.index("eat_plant")
_DEFEAT_ZOMBIE: Final = ACHIEVEMENTS.index("defeat_zombie")
_DEFEAT_SKELETON: Final = ACHIEVEMENTS.index("defeat_skeleton")
_WAKE_UP: Final = ACHIEVEMENTS.index("wake_up")

_TABLE: Final = list(PLACE).index("table")
_WOOD: Final = ITEMS.index("wood")
_SWORDS: Final = np.array([(ITEMS.index(name), damage) for name, damage in SWORDS.items()])

_COW_FOOD: Final = 6
_PLANT_FOOD: Final = 4
PLANT_HEALTH: Final = 1
RIPE_AGE: Final = 300
"""A plant older than this is ripe."""

_HUNGRY_AFTER: Final = 25
_THIRSTY_AFTER: Final = 20
_TIRED_AFTER: Final = 30
_RESTED_AFTER: Final = -10
_HEALED_AFTER: Final = 25
_HARMED_AFTER: Final = -15


@helper
def player_turn(env: Any, objects: Any, action: Any, rules: Any) -> tuple[bool, bool]:
    """`Player.update`: act, then live for one step.

    Args:
        env, objects: see `state`.
        action: a row of `engine.action_table`.
        rules: an `engine.Switches`.

    Returns:
        Whether the game did what was asked (`eval_success`), and whether the action counts as a success by the
        permissive rule of typed actions (`action_success`).
    """
    player = objects[c.THE_PLAYER]
    facing = np.int64(env.facing)
    target_x = player.x + c.DIRECTIONS[facing, 0]
    target_y = player.y + c.DIRECTIONS[facing, 1]
    asked: Int = action[0]
    verb: Int = asked
    done = False
    permitted = _is_named(env, objects, action, target_x, target_y)
    if env.sleeping:
        if env.inventory[c.ENERGY] < MAX_ITEM:
            verb = _SLEEP
        else:
            env.sleeping = 0
            env.achievements[_WAKE_UP] += 1
    if verb == _NOOP:
        done = action[1] == c.NOTHING
    elif verb <= _MOVE_DOWN:
        done = _walk(env, objects, verb - _MOVE_LEFT)
    elif verb == _DO:
        done = _do(env, objects, action[1], target_x, target_y, rules)
    elif verb == _SLEEP:
        if env.inventory[c.ENERGY] < MAX_ITEM:
            env.sleeping = 1
            done = True
    elif verb < _FIRST_MAKE:
        done = _place(env, objects, verb - _FIRST_PLACE, target_x, target_y, rules.table_wood)
    else:
        done = _make(env, objects, verb - _FIRST_MAKE)
    done = done and verb == asked
    permitted = done or (permitted and verb == asked)
    _live(env)
    _heal_or_suffer(env)
    for item in range(len(ITEMS)):
        env.inventory[item] = max(0, min(np.int64(env.inventory[item]), MAX_ITEM))
    _wake_up_when_hurt(env)
    return done, permitted


@helper
def _is_named(env: Any, objects: Any, action: Any, x: Int, y: Int) -> bool:
    """Is the noun of a typed action faced, as a creature or as a material, or held?"""
    cell: Int = action[2]
    item: Int = action[3]
    if item != _NO_RULE and env.inventory[item] > 0:
        return True
    if cell == c.NOTHING or not c.inside(x, y):
        return False
    row = c.object_on(env, x, y)
    return bool(env.materials[x, y] == cell or (row != 0 and objects[row].kind == cell))


@helper
def _walk(env: Any, objects: Any, direction: Int) -> bool:
    """`_move`: turn, step if the cell is free, and die in lava. Returns whether the player moved."""
    env.facing = direction
    moved = c.move(
        env, objects, c.THE_PLAYER, c.DIRECTIONS[direction, 0], c.DIRECTIONS[direction, 1], c.PLAYER_WALKABLE_SET
    )
    player = objects[c.THE_PLAYER]
    if env.materials[player.x, player.y] == c.LAVA:
        env.inventory[c.HEALTH] = 0
    return bool(moved)


@helper
def _do(env: Any, objects: Any, target: Int, x: Int, y: Int, rules: Any) -> bool:
    """`do` to what is faced. A typed action has a target: a creature, or a material whatever stands on it."""
    row = c.object_on(env, x, y)
    if target == c.NOTHING:
        if row != 0:
            return bool(_do_object(env, objects, row, rules.base_damage))
        return bool(c.inside(x, y) and _do_material(env, x, y, rules.full_item_fails))
    if target > c.PLAYER:
        return bool(row != 0 and objects[row].kind == target and _do_object(env, objects, row, rules.base_damage))
    if c.inside(x, y) and env.materials[x, y] == target:
        return bool(_do_material(env, x, y, rules.full_item_fails))
    return False


@helper
def _damage(env: Any, base_damage: Int) -> Int:
    """Damage of the best sword held."""
    damage = base_damage
    for i in range(len(_SWORDS)):
        if env.inventory[_SWORDS[i, 0]]:
            damage = max(damage, _SWORDS[i, 1])
    return damage


@helper
def _do_object(env: Any, objects: Any, row: Int, base_damage: Int) -> bool:
    """Eat a ripe plant; strike a creature: True. What dies here is removed at its own turn."""
    thing = objects[row]
    kind = np.int64(thing.kind)
    if kind == c.PLANT:
        if thing.timer > RIPE_AGE:
            thing.timer = 0
            env.inventory[c.FOOD] += _PLANT_FOOD
            env.achievements[_EAT_PLANT] += 1
            return True
    elif kind in (c.COW, c.ZOMBIE, c.SKELETON):
        c.hurt(env, objects, row, _damage(env, base_damage))
        if thing.health <= 0:
            if kind == c.COW:
                env.inventory[c.FOOD] += _COW_FOOD
                env.achievements[_EAT_COW] += 1
                env.hunger = 0.0
            elif kind == c.ZOMBIE:
                env.achievements[_DEFEAT_ZOMBIE] += 1
            else:
                env.achievements[_DEFEAT_SKELETON] += 1
        return True
    return False


@helper
def _do_material(env: Any, x: Int, y: Int, full_item_fails: bool) -> bool:
    """Collect from the faced cell. A draw is made whether or not the yield is certain. Returns whether it yielded."""
    material = np.int64(env.materials[x, y])
    if material == c.WATER:
        env.thirst = 0.0
    item, tool = _COLLECT_ITEM[material], _COLLECT_TOOL[material]
    if item == _NO_RULE or (tool != _NO_RULE and env.inventory[tool] < 1):
        return False
    c.set_material(env, x, y, _COLLECT_LEAVES[material])
    probability = SAPLING_PROBABILITY if material == c.GRASS else 1.0
    if uniform(env) <= probability and not (full_item_fails and env.inventory[item] == MAX_ITEM):
        env.inventory[item] += 1
        env.achievements[_COLLECTED[item]] += 1
        return True
    return False


@helper
def _pay(env: Any, uses: Any) -> bool:
    """Take what something costs, if all of it is held."""
    for item in range(len(ITEMS)):
        if env.inventory[item] < uses[item]:
            return False
    for item in range(len(ITEMS)):
        env.inventory[item] -= uses[item]
    return True


@helper
def _pay_wood(env: Any, amount: Int) -> bool:
    """Take the wood for a table, which is not the same in all rule sets, if it is held."""
    if env.inventory[_WOOD] < amount:
        return False
    env.inventory[_WOOD] -= amount
    return True


@helper
def _place(env: Any, objects: Any, thing: Int, x: Int, y: Int, table_wood: Int) -> bool:
    """Put a stone, table, furnace or sapling on the faced cell. Returns whether it stands there now."""
    if not c.inside(x, y) or env.object_at[x, y] != 0:
        return False
    if (_PLACE_ON[thing] >> np.int64(env.materials[x, y])) & 1 == 0:
        return False
    if not (_pay_wood(env, table_wood) if thing == _TABLE else _pay(env, _PLACE_USES[thing])):
        return False
    if _PLACE_PUTS[thing] == c.PLANT:
        c.add(env, objects, c.PLANT, x, y, PLANT_HEALTH, 0)
    else:
        c.set_material(env, x, y, _PLACE_PUTS[thing])
    env.achievements[_PLACED[thing]] += 1
    return True


@helper
def _make(env: Any, objects: Any, tool: Int) -> bool:
    """Make a tool next to what it takes. At x = 0 and y = 0 crafter's look around comes back empty: nothing is made."""
    player = objects[c.THE_PLAYER]
    near: Int = c.NOTHING
    if player.x > 0 and player.y > 0:
        for x in range(player.x - 1, min(player.x + 2, AREA)):
            for y in range(player.y - 1, min(player.y + 2, AREA)):
                near |= 1 << np.int64(env.materials[x, y])
    if near & _MAKE_NEAR[tool] != _MAKE_NEAR[tool] or not _pay(env, _MAKE_USES[tool]):
        return False
    env.inventory[_MAKE_GIVES[tool]] += 1
    env.achievements[_MADE[tool]] += 1
    return True


@helper
def _live(env: Any) -> None:
    """`_update_life_stats`: hunger, thirst and fatigue."""
    pace = 0.5 if env.sleeping else 1.0
    env.hunger += pace
    if env.hunger > _HUNGRY_AFTER:
        env.hunger = 0.0
        env.inventory[c.FOOD] -= 1
    env.thirst += pace
    if env.thirst > _THIRSTY_AFTER:
        env.thirst = 0.0
        env.inventory[c.DRINK] -= 1
    if env.sleeping:
        env.fatigue = min(env.fatigue - 1, 0.0)
    else:
        env.fatigue += 1
    if env.fatigue < _RESTED_AFTER:
        env.fatigue = 0.0
        env.inventory[c.ENERGY] += 1
    if env.fatigue > _TIRED_AFTER:
        env.fatigue = 0.0
        env.inventory[c.ENERGY] -= 1


@helper
def _heal_or_suffer(env: Any) -> None:
    """`_degen_or_regen_health`."""
    inventory = env.inventory
    if inventory[c.FOOD] > 0 and inventory[c.DRINK] > 0 and (inventory[c.ENERGY] > 0 or env.sleeping):
        env.recover += 2.0 if env.sleeping else 1.0
    else:
        env.recover -= 0.5 if env.sleeping else 1.0
    if env.recover > _HEALED_AFTER:
        env.recover = 0.0
        inventory[c.HEALTH] = max(0, inventory[c.HEALTH] + 1)
    if env.recover < _HARMED_AFTER:
        env.recover = 0.0
        inventory[c.HEALTH] = max(0, inventory[c.HEALTH] - 1)


@helper
def _wake_up_when_hurt(env: Any) -> None:
    if env.inventory[c.HEALTH] < env.health_felt:
        env.sleeping = 0
    env.health_felt = env.inventory[c.HEALTH]
