"""The turns of cows, zombies, skeletons, arrows and plants: `crafter/objects.py`.

A creature whose health is gone is removed at the start of its turn and still plays the rest of it once: it draws, a
dying zombie strikes and a dying skeleton shoots.
"""

from typing import Any, Final

import numpy as np

from bkrl.core.jit import Int, helper
from bkrl.envs.crafter import state as c
from bkrl.envs.crafter.mt19937 import randint, uniform
from bkrl.envs.crafter.player import RIPE_AGE

_ZOMBIE_SIGHT: Final = 8
_ZOMBIE_COOLDOWN: Final = 5
_ZOMBIE_DAMAGE: Final = 2
_ZOMBIE_DAMAGE_ASLEEP: Final = 7
_SKELETON_FLEES_WITHIN: Final = 3
_SKELETON_SHOOTS_WITHIN: Final = 5
_SKELETON_SIGHT: Final = 8
_SKELETON_RELOAD: Final = 4
_ARROW_DAMAGE: Final = 2


@helper
def creature_turn(env: Any, objects: Any, row: Int) -> None:
    """`update` of the object in this row, which is not the player."""
    kind = np.int64(objects[row].kind)
    if kind == c.COW:
        cow_turn(env, objects, row)
    elif kind == c.ZOMBIE:
        zombie_turn(env, objects, row)
    elif kind == c.SKELETON:
        skeleton_turn(env, objects, row)
    elif kind == c.ARROW:
        arrow_turn(env, objects, row)
    elif kind == c.PLANT:
        plant_turn(env, objects, row)


@helper
def distance_to_player(objects: Any, row: Int) -> Int:
    """Steps between an object and the player (Manhattan distance)."""
    player, thing = objects[c.THE_PLAYER], objects[row]
    return abs(np.int64(player.x) - thing.x) + abs(np.int64(player.y) - thing.y)


@helper
def _toward_player(objects: Any, row: Int, long_axis: bool) -> tuple[Int, Int]:
    """One step towards the player along the longer axis or the shorter one; (0, 0) where that has no way to go."""
    player, thing = objects[c.THE_PLAYER], objects[row]
    dx, dy = np.int64(player.x) - thing.x, np.int64(player.y) - thing.y
    along_x = abs(dx) > abs(dy) if long_axis else abs(dx) <= abs(dy)
    return (np.sign(dx), np.int64(0)) if along_x else (np.int64(0), np.sign(dy))


@helper
def _wander(env: Any, objects: Any, row: Int) -> None:
    """A step in a random direction, if it is free."""
    direction = randint(env, 4)
    c.move(env, objects, row, c.DIRECTIONS[direction, 0], c.DIRECTIONS[direction, 1], c.WALKABLE_SET)


@helper
def _remove_if_dead(env: Any, objects: Any, row: Int) -> None:
    if objects[row].health <= 0:
        c.remove(env, objects, row)


@helper
def cow_turn(env: Any, objects: Any, row: Int) -> None:
    """Wander half of the time."""
    _remove_if_dead(env, objects, row)
    if uniform(env) < 0.5:
        _wander(env, objects, row)


@helper
def zombie_turn(env: Any, objects: Any, row: Int) -> None:
    """Come nearer when near, mostly; strike when adjacent, with a pause after each blow."""
    zombie = objects[row]
    _remove_if_dead(env, objects, row)
    if distance_to_player(objects, row) <= _ZOMBIE_SIGHT and uniform(env) < 0.9:
        dx, dy = _toward_player(objects, row, uniform(env) < 0.8)
        c.move(env, objects, row, dx, dy, c.WALKABLE_SET)
    else:
        _wander(env, objects, row)
    if distance_to_player(objects, row) <= 1:
        if zombie.timer > 0:
            zombie.timer -= 1
        else:
            c.hurt(env, objects, c.THE_PLAYER, _ZOMBIE_DAMAGE_ASLEEP if env.sleeping else _ZOMBIE_DAMAGE)
            zombie.timer = _ZOMBIE_COOLDOWN


@helper
def skeleton_turn(env: Any, objects: Any, row: Int) -> None:
    """Keep away when close, shoot when less close, come nearer when in sight, else wander now and then."""
    skeleton = objects[row]
    _remove_if_dead(env, objects, row)
    skeleton.timer = max(0, np.int64(skeleton.timer) - 1)
    distance = distance_to_player(objects, row)
    if distance <= _SKELETON_FLEES_WITHIN:
        dx, dy = _toward_player(objects, row, uniform(env) < 0.6)
        if c.move(env, objects, row, -dx, -dy, c.WALKABLE_SET):
            return
    if distance <= _SKELETON_SHOOTS_WITHIN and uniform(env) < 0.5:
        _shoot(env, objects, row)
    elif distance <= _SKELETON_SIGHT and uniform(env) < 0.3:
        dx, dy = _toward_player(objects, row, uniform(env) < 0.6)
        c.move(env, objects, row, dx, dy, c.WALKABLE_SET)
    elif uniform(env) < 0.2:
        _wander(env, objects, row)


@helper
def _shoot(env: Any, objects: Any, row: Int) -> None:
    """Loose an arrow towards the player, unless still reloading or blocked."""
    skeleton = objects[row]
    dx, dy = _toward_player(objects, row, True)
    if skeleton.timer > 0 or (dx == 0 and dy == 0):
        return
    x, y = skeleton.x + dx, skeleton.y + dy
    if c.is_free(env, x, y, c.ARROW_WALKABLE_SET):
        direction = np.int64(0)
        while c.DIRECTIONS[direction, 0] != dx or c.DIRECTIONS[direction, 1] != dy:
            direction += 1
        c.add(env, objects, c.ARROW, x, y, 0, direction)
        skeleton.timer = _SKELETON_RELOAD


@helper
def arrow_turn(env: Any, objects: Any, row: Int) -> None:
    """Fly on; hit what is in the way. Tables and furnaces break into path."""
    arrow = objects[row]
    direction = np.int64(arrow.timer)
    dx, dy = c.DIRECTIONS[direction, 0], c.DIRECTIONS[direction, 1]
    x, y = arrow.x + dx, arrow.y + dy
    target = c.object_on(env, x, y)
    if target != 0:
        c.hurt(env, objects, target, _ARROW_DAMAGE)
        c.remove(env, objects, row)
    elif not c.move(env, objects, row, dx, dy, c.ARROW_WALKABLE_SET):
        c.remove(env, objects, row)
        if c.inside(x, y) and (env.materials[x, y] == c.TABLE or env.materials[x, y] == c.FURNACE):
            c.set_material(env, x, y, c.PATH)


@helper
def plant_turn(env: Any, objects: Any, row: Int) -> None:
    """Grow; be eaten by any creature that stands next to it."""
    plant = objects[row]
    if plant.timer <= RIPE_AGE:  # riper than ripe it cannot be, and 16 bits would run over
        plant.timer += 1
    for direction in range(4):
        near = c.object_on(env, plant.x + c.DIRECTIONS[direction, 0], plant.y + c.DIRECTIONS[direction, 1])
        kind = np.int64(objects[near].kind) if near != 0 else c.NOTHING
        if kind in (c.ZOMBIE, c.SKELETON, c.COW):
            c.hurt(env, objects, row, 1)
            break
    _remove_if_dead(env, objects, row)


@helper
def is_ripe(plant: Any) -> bool:
    """Is this plant ready to be eaten?"""
    return plant.kind == c.PLANT and plant.timer > RIPE_AGE
