"""What the rules annotator says of actions in Crafter, as a function `advice` for the programs it writes.

It knows what things are good for, as anybody who has read of the game does: which tool takes which material, what is
made at a table, to eat and drink in time, to turn to monsters, to keep off lava, to go on in one direction where
nothing useful is in sight. No task is assumed. It runs only in the sandbox.
"""

from collections.abc import Mapping
from typing import Any

_ADVICE = '''
CELL = {cells}
ITEM = {items}
ACTION = {actions}
USES = {uses}  # actions that use the faced cell, by what they are for
BESIDE = {faced}  # the cells to the left, to the right, above and below
VIEW = {view}  # cells in sight, {columns} in a row


def has(now, name, least):
    return now[:, ITEM[name]] >= least


def in_sight(now, name, most):
    """Whether one of its kind is at most so many rows and columns away."""
    index = np.arange(VIEW)
    away = np.maximum(np.abs(index % {columns} - {columns} // 2), np.abs(index // {columns} - {rows} // 2))
    return ((now[:, :VIEW] == CELL[name]) & (away <= most)).any(axis=1)


def ready(now):
    """For each tool whether it is lacking and its materials are held."""
    wood, stone = has(now, "wood", 1), has(now, "wood", 1) & has(now, "stone", 1)
    iron = wood & has(now, "coal", 1) & has(now, "iron", 1) & in_sight(now, "furnace", 4)
    tools = {{}}
    for kind, materials in (("wood", wood), ("stone", stone), ("iron", iron)):
        for tool in ("pickaxe", "sword"):
            tools[kind + "_" + tool] = materials & ~has(now, kind + "_" + tool, 1)
    tools["stone_sword"] = tools["stone_sword"] & has(now, "stone_pickaxe", 1)
    tools["iron_sword"] = tools["iron_sword"] & has(now, "iron_pickaxe", 1)
    return tools


def worth(now):
    """(B, VIEW) how good it is to use each cell in sight, with what the agent has and lacks."""
    first, second = has(now, "wood_pickaxe", 1), has(now, "stone_pickaxe", 1)
    hungry, thirsty = ~has(now, "food", 6), ~has(now, "drink", 6)
    tools = ready(now)
    makes = np.zeros(len(now), dtype=bool)
    for name in tools:
        makes = makes | tools[name]
    total = np.zeros((len(now), VIEW))
    for name, good in (
        ("tree", np.where(has(now, "wood", 5), 0.0, 0.7)),
        ("water", np.where(thirsty, 0.95, np.where(has(now, "drink", 9), 0.0, 0.4))),
        ("cow", np.where(hungry, 0.95, np.where(has(now, "food", 9), 0.0, 0.4))),
        ("ripe_plant", np.where(has(now, "food", 9), 0.5, 0.95)),
        ("stone", np.where(first & ~has(now, "stone", 6), 0.6, 0.0)),
        ("coal", np.where(first & ~has(now, "coal", 3), 0.8, 0.0)),
        ("iron", np.where(second & ~has(now, "iron", 3), 0.95, 0.0)),
        ("diamond", np.where(has(now, "iron_pickaxe", 1), 1.0, 0.0)),
        ("zombie", np.where(in_sight(now, "zombie", 2), 0.85, 0.0)),
        ("skeleton", np.where(in_sight(now, "skeleton", 3), 0.85, 0.0)),
        ("table", np.where(makes & ~in_sight(now, "table", 1), 0.9, 0.0)),
    ):
        total = total + good[:, None] * (now[:, :VIEW] == CELL[name])
    return total


def free(cell):
    return (cell == CELL["grass"]) | (cell == CELL["sand"]) | (cell == CELL["path"])


def moves(now, goods):
    """(B, 4) towards the best cell in sight, else straight on; never against what is in the way, nor into lava."""
    index = np.arange(VIEW)
    right, down = index % {columns} - {columns} // 2, index // {columns} - {rows} // 2
    value = np.where(goods > 0, goods - 0.05 * (np.abs(right) + np.abs(down)), 0.0)
    sides = []
    for there in (right < 0, right > 0, down < 0, down > 0):
        sides.append(np.where(there[None, :], value, 0.0).max(axis=1))
    best = np.stack(sides, axis=1)
    top = best.max(axis=1, keepdims=True)
    ahead = np.arange(4)[None, :] == now[:, {facing}, None]
    told = np.where(top > 0, np.where(best >= top - 0.001, 0.0, -0.8), np.where(ahead, 0.0, -0.5))
    beside = now[:, np.array(BESIDE)]
    shut = ~free(beside) & (goods[:, np.array(BESIDE)] <= 0)
    return np.where(shut, np.where(beside == CELL["lava"], -1.5, -1.0), told)


def advice(observations, actions, valid, memory):
    now = observations[:, -1]
    goods, rows = worth(now), np.arange(len(now))
    at = np.array(BESIDE)[np.clip(now[:, {facing}], 0, 3)]
    faced, use = now[rows, at], goods[rows, at] > 0
    told = np.full((len(now), {count}), -1.0)
    told[:, ACTION["move_left"] : ACTION["move_down"] + 1] = moves(now, goods)
    for name, cells in USES.items():
        fits = np.zeros(len(now), dtype=bool)
        for cell in cells:
            fits = fits | (faced == CELL[cell])
        told[:, ACTION[name]] = np.maximum(told[:, ACTION[name]], np.where(fits & use, 0.2, -1.0))
        if "grass" in cells:
            lacks = (faced == CELL["grass"]) & ~has(now, "sapling", 1)
            told[:, ACTION[name]] = np.where(lacks, -0.4, told[:, ACTION[name]])
    tools, at_table = ready(now), in_sight(now, "table", 1)
    needs = np.zeros(len(now), dtype=bool)
    for name, can in tools.items():
        by = at_table & in_sight(now, "furnace", 1) if name[:4] == "iron" else at_table
        told[:, ACTION["make_" + name]] = np.where(can & by, 0.2, -1.0)
        needs = needs | can
    room = free(faced)
    table = room & needs & has(now, "wood", 4) & ~in_sight(now, "table", 4)
    told[:, ACTION["place_table"]] = np.where(table, 0.2, -1.0)
    furnace = room & has(now, "stone", 4) & in_sight(now, "table", 4) & ~in_sight(now, "furnace", 4)
    told[:, ACTION["place_furnace"]] = np.where(furnace, 0.2, -1.0)
    told[:, ACTION["place_plant"]] = np.where(has(now, "sapling", 1) & (faced == CELL["grass"]), 0.2, -1.0)
    told[:, ACTION["place_stone"]] = np.where((room | (faced == CELL["lava"])) & has(now, "stone", 5), -0.3, -1.0)
    tired = ~has(now, "energy", 4)
    told[:, ACTION["sleep"]] = np.where(tired, 0.2, -1.0)
    return told
'''

_USES = {
    "collect": ("tree", "stone", "coal", "iron", "diamond", "grass"),
    "drink": ("water",),
    "eat": ("cow", "ripe_plant"),
    "attack": ("zombie", "skeleton"),
}


def advice_of(layout: Mapping[str, Any]) -> str:
    """The function, with the numbers of the layout that the prompt gave (`crafter.layout_of`)."""
    everything = tuple(cell for kinds in _USES.values() for cell in kinds)
    uses = {"do": everything} if "do" in layout["actions"] else _USES
    return _ADVICE.format(**layout, uses=uses, view=layout["columns"] * layout["rows"], count=len(layout["actions"]))
