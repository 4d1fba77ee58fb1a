"""The player's turn: `crafter/objects.py`, class Player."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from bkrl.core.jit import Int, helper
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
    VERBS,
)
from bkrl.envs.crafter.state import (
    COW,
    DIRECTIONS,
    DRINK,
    ENERGY,
    FOOD,
    GRASS,
    HEALTH,
    LAVA,
    NOTHING,
    PLANT,
    PLAYER_WALKABLE_SET,
    SKELETON,
    THE_PLAYER,
    WATER,
    ZOMBIE,
    add,
    hurt,
    inside,
    move,
    object_on,
    set_material,
)

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

_WOOD_SWORD: Final = ITEMS.index("wood_sword")
_STONE_SWORD: Final = ITEMS.index("stone_sword")
_IRON_SWORD: Final = ITEMS.index("iron_sword")
_WOOD_SWORD_DAMAGE: Final = 2
_STONE_SWORD_DAMAGE: Final = 3
_IRON_SWORD_DAMAGE: Final = 5

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
def player_turn(world: Any, objects: Any, verb: Int, base_damage: Int, full_item_fails: bool) -> None:
    """`Player.update`: act, then live for one step."""
    player = objects[THE_PLAYER]
    facing = np.int64(world.facing)
    target_x = player.x + DIRECTIONS[facing, 0]
    target_y = player.y + DIRECTIONS[facing, 1]
    if world.sleeping:
        if world.inventory[ENERGY] < MAX_ITEM:
            verb = _SLEEP
        else:
            world.sleeping = 0
            world.achievements[_WAKE_UP] += 1
    if _MOVE_LEFT <= verb <= _MOVE_DOWN:
        _walk(world, objects, verb - _MOVE_LEFT)
    elif verb == _DO:
        row = object_on(world, target_x, target_y)
        if row != 0:
            _do_object(world, objects, row, base_damage)
        elif inside(target_x, target_y):
            _do_material(world, target_x, target_y, full_item_fails)
    elif verb == _SLEEP:
        if world.inventory[ENERGY] < MAX_ITEM:
            world.sleeping = 1
    elif _FIRST_PLACE <= verb < _FIRST_MAKE:
        _place(world, objects, verb - _FIRST_PLACE, target_x, target_y)
    elif verb >= _FIRST_MAKE:
        _make(world, objects, verb - _FIRST_MAKE)
    _live(world)
    _heal_or_suffer(world)
    for item in range(len(ITEMS)):
        world.inventory[item] = max(0, min(np.int64(world.inventory[item]), MAX_ITEM))
    _wake_up_when_hurt(world)


@helper
def _walk(world: Any, objects: Any, direction: Int) -> None:
    """`_move`: turn, step if the cell is free, and die in lava."""
    world.facing = direction
    move(world, objects, THE_PLAYER, DIRECTIONS[direction, 0], DIRECTIONS[direction, 1], PLAYER_WALKABLE_SET)
    player = objects[THE_PLAYER]
    if world.materials[player.x, player.y] == LAVA:
        world.inventory[HEALTH] = 0


@helper
def _damage(world: Any, base_damage: Int) -> Int:
    """Damage of the best sword held."""
    damage = base_damage
    if world.inventory[_WOOD_SWORD]:
        damage = max(damage, _WOOD_SWORD_DAMAGE)
    if world.inventory[_STONE_SWORD]:
        damage = max(damage, _STONE_SWORD_DAMAGE)
    if world.inventory[_IRON_SWORD]:
        damage = max(damage, _IRON_SWORD_DAMAGE)
    return damage


@helper
def _do_object(world: Any, objects: Any, row: Int, base_damage: Int) -> None:
    """Eat a ripe plant; strike a creature. What dies here is removed at its own turn."""
    thing = objects[row]
    kind = np.int64(thing.kind)
    if kind == PLANT:
        if thing.timer > RIPE_AGE:
            thing.timer = 0
            world.inventory[FOOD] += _PLANT_FOOD
            world.achievements[_EAT_PLANT] += 1
    elif kind in (COW, ZOMBIE, SKELETON):
        hurt(world, objects, row, _damage(world, base_damage))
        if thing.health <= 0:
            if kind == COW:
                world.inventory[FOOD] += _COW_FOOD
                world.achievements[_EAT_COW] += 1
                world.hunger = 0.0
            elif kind == ZOMBIE:
                world.achievements[_DEFEAT_ZOMBIE] += 1
            else:
                world.achievements[_DEFEAT_SKELETON] += 1


@helper
def _do_material(world: Any, x: Int, y: Int, full_item_fails: bool) -> None:
    """Collect from the faced cell. A draw is made whether or not the yield is certain."""
    material = np.int64(world.materials[x, y])
    if material == WATER:
        world.thirst = 0.0
    item, tool = _COLLECT_ITEM[material], _COLLECT_TOOL[material]
    if item == _NO_RULE or (tool != _NO_RULE and world.inventory[tool] < 1):
        return
    set_material(world, x, y, _COLLECT_LEAVES[material])
    probability = SAPLING_PROBABILITY if material == GRASS else 1.0
    if uniform(world) <= probability and not (full_item_fails and world.inventory[item] == MAX_ITEM):
        world.inventory[item] += 1
        world.achievements[_COLLECTED[item]] += 1


@helper
def _pay(world: Any, uses: Any) -> bool:
    """Take what something costs, if all of it is held."""
    for item in range(len(ITEMS)):
        if world.inventory[item] < uses[item]:
            return False
    for item in range(len(ITEMS)):
        world.inventory[item] -= uses[item]
    return True


@helper
def _place(world: Any, objects: Any, thing: Int, x: Int, y: Int) -> None:
    """Put a stone, table, furnace or sapling on the faced cell."""
    if not inside(x, y) or world.object_at[x, y] != 0:
        return
    if (_PLACE_ON[thing] >> np.int64(world.materials[x, y])) & 1 == 0 or not _pay(world, _PLACE_USES[thing]):
        return
    if _PLACE_PUTS[thing] == PLANT:
        add(world, objects, PLANT, x, y, PLANT_HEALTH, 0)
    else:
        set_material(world, x, y, _PLACE_PUTS[thing])
    world.achievements[_PLACED[thing]] += 1


@helper
def _make(world: Any, objects: Any, tool: Int) -> None:
    """Make a tool next to what it takes. At x = 0 and y = 0 crafter's look around comes back empty: nothing is made."""
    player = objects[THE_PLAYER]
    near: Int = NOTHING
    if player.x > 0 and player.y > 0:
        for x in range(player.x - 1, min(player.x + 2, AREA)):
            for y in range(player.y - 1, min(player.y + 2, AREA)):
                near |= 1 << np.int64(world.materials[x, y])
    if near & _MAKE_NEAR[tool] != _MAKE_NEAR[tool] or not _pay(world, _MAKE_USES[tool]):
        return
    world.inventory[_MAKE_GIVES[tool]] += 1
    world.achievements[_MADE[tool]] += 1


@helper
def _live(world: Any) -> None:
    """`_update_life_stats`: hunger, thirst and fatigue."""
    pace = 0.5 if world.sleeping else 1.0
    world.hunger += pace
    if world.hunger > _HUNGRY_AFTER:
        world.hunger = 0.0
        world.inventory[FOOD] -= 1
    world.thirst += pace
    if world.thirst > _THIRSTY_AFTER:
        world.thirst = 0.0
        world.inventory[DRINK] -= 1
    if world.sleeping:
        world.fatigue = min(world.fatigue - 1, 0.0)
    else:
        world.fatigue += 1
    if world.fatigue < _RESTED_AFTER:
        world.fatigue = 0.0
        world.inventory[ENERGY] += 1
    if world.fatigue > _TIRED_AFTER:
        world.fatigue = 0.0
        world.inventory[ENERGY] -= 1


@helper
def _heal_or_suffer(world: Any) -> None:
    """`_degen_or_regen_health`."""
    inventory = world.inventory
    if inventory[FOOD] > 0 and inventory[DRINK] > 0 and (inventory[ENERGY] > 0 or world.sleeping):
        world.recover += 2.0 if world.sleeping else 1.0
    else:
        world.recover -= 0.5 if world.sleeping else 1.0
    if world.recover > _HEALED_AFTER:
        world.recover = 0.0
        inventory[HEALTH] = max(0, inventory[HEALTH] + 1)
    if world.recover < _HARMED_AFTER:
        world.recover = 0.0
        inventory[HEALTH] = max(0, inventory[HEALTH] - 1)


@helper
def _wake_up_when_hurt(world: Any) -> None:
    if world.inventory[HEALTH] < world.health_felt:
        world.sleeping = 0
    world.health_felt = world.inventory[HEALTH]
