"""What the rules annotator makes of the memory of episodes: programs that read it, and the worth of what was done, for
comparing segments. Sub-goals of an env are each worth something the first time. No task is assumed: what is counted
here is on the way to any task.

Values of programs lie between 0 and 1, as the prompt asks, and rise by the same whatever was done before.
"""

import re
from collections.abc import Mapping

from bkrl.llm.rules.crafter import layout_of
from bkrl.llm.rules.survival import advice_of

_COLUMNS = re.compile(r"^Columns of memory are numbers: (.+?)\. All are 0", re.MULTILINE)

_HEAD = '''
FIELD = {fields}
WORTH = {worth}  # of each step towards it, and how many steps count
GROUPS = {groups}


def done(memory, names):
    """For each of the names how much of it was done, weighted; all of them together come to 1."""
    total = 0.0
    for name, (worth, steps) in WORTH.items():
        total = total + worth * steps
    parts = {{}}
    for name in names:
        worth, steps = WORTH[name]
        parts[name] = worth * np.minimum(memory[:, FIELD[name]], steps) / total
    return parts


def grouped(memory):
    """The sum, and the part of each group."""
    parts = {{}}
    for group, names in GROUPS.items():
        parts[group] = sum(done(memory, names).values())
    return sum(parts.values()), parts


def potential(observations, actions, valid, memory):
    return grouped(memory)
'''

_ROOMS = {
    "cells_visited": (0.002, 60),
    "cells_seen": (0.002, 120),
    "doors_opened": (0.05, 6),
    "doors_unlocked": (0.15, 2),
    "keys_picked_up": (0.10, 2),
    "boxes_opened": (0.06, 2),
    "balls_picked_up": (0.04, 2),
    "boxes_picked_up": (0.04, 2),
}
_SURVIVAL = {
    "cells_visited": (0.0005, 100),
    "collect_wood": (0.02, 6),
    "place_table": (0.08, 1),
    "make_wood_pickaxe": (0.10, 1),
    "make_wood_sword": (0.03, 1),
    "collect_stone": (0.02, 6),
    "make_stone_pickaxe": (0.12, 1),
    "make_stone_sword": (0.03, 1),
    "collect_coal": (0.06, 2),
    "place_furnace": (0.08, 1),
    "collect_iron": (0.10, 2),
    "make_iron_pickaxe": (0.12, 1),
    "make_iron_sword": (0.05, 1),
    "collect_diamond": (0.10, 1),
    "collect_sapling": (0.03, 1),
    "place_plant": (0.04, 1),
    "eat_plant": (0.10, 1),
    "collect_drink": (0.005, 4),
    "eat_cow": (0.01, 2),
    "wake_up": (0.02, 1),
    "defeat_zombie": (0.01, 2),
    "defeat_skeleton": (0.02, 1),
    "place_stone": (0.01, 1),
}
_STEPS: dict[str, tuple[dict[str, tuple[float, int]], tuple[dict[str, tuple[str, ...]], ...]]] = {
    "BabyAI": (
        _ROOMS,
        (
            {"search": ("cells_visited", "cells_seen")},
            {"doors": ("doors_opened", "doors_unlocked"), "keys": ("keys_picked_up",)},
            {"things": ("boxes_opened", "balls_picked_up", "boxes_picked_up")},
        ),
    ),
    "Crafter": (
        _SURVIVAL,
        (
            {
                "wood": ("collect_wood", "place_table", "make_wood_pickaxe", "make_wood_sword"),
                "stone": ("collect_stone", "make_stone_pickaxe", "make_stone_sword", "place_furnace", "place_stone"),
            },
            {
                "iron": ("collect_coal", "collect_iron", "make_iron_pickaxe", "make_iron_sword", "collect_diamond"),
                "plant": ("collect_sapling", "place_plant", "eat_plant"),
            },
            {
                "living": ("collect_drink", "eat_cow", "wake_up", "defeat_zombie", "defeat_skeleton"),
                "search": ("cells_visited",),
            },
        ),
    ),
}


def worth_of(family: str, done: Mapping[str, int]) -> float:
    """Between 0 and 1, how much of the sub-goals of an env was done; 0 where none are known. `family`: see below."""
    worth = _STEPS[family][0] if family in _STEPS else {}
    total = sum(each * steps for each, steps in worth.values())
    return sum(each * min(done.get(name, 0), steps) for name, (each, steps) in worth.items()) / (total or 1.0)


def programs_of_memory(family: str, prompt: str) -> list[str] | None:
    """Programs from few sub-goals to all; None where the prompt offers no memory. `family`: a key of `KNOWLEDGE`."""
    found = _COLUMNS.search(prompt)
    if found is None or family not in _STEPS:
        return None
    fields = {name: int(number) for number, name in re.findall(r"(\d+) (\w+)", found[1])}
    worth, steps = _STEPS[family]
    groups: dict[str, tuple[str, ...]] = {}
    programs, said = [], advice_of(layout_of(prompt)) if family == "Crafter" else ""
    for more in steps:
        groups |= more
        named = [name for names in groups.values() for name in names]
        text = _HEAD.format(
            fields=repr({name: fields[name] for name in named}),
            worth=repr({name: worth[name] for name in named}),
            groups=repr(groups),
        )
        text += said
        programs.append(f'"""Sub-goals on the way to any task, each the first time: {", ".join(groups)}."""\n{text}')
    return programs
