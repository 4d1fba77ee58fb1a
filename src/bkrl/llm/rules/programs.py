"""The programs that the rules annotator writes when it is asked for a potential. They run only in the sandbox."""

from collections.abc import Mapping
from typing import Any

_HEAD = '''
FAR = 14  # actions to face the farthest visible thing, and a little more


def nearest(view):
    """Actions to face the nearest door, key, ball, box or goal of views (B, 7, 7, 3); FAR where none is in sight."""
    side = np.abs(np.arange(7) - 3)[:, None]
    ahead = (6 - np.arange(7))[None, :]
    to_face = side + ahead - 1 + (side > 0)
    kind = view[..., 0]
    thing = (kind >= 4) & (kind <= 8)
    thing[:, 3, 6] = False  # carried, not lying in the room
    return np.where(thing, to_face, FAR).min(axis=(1, 2))
'''

_WASTE = '''

def wasted(observations, actions, valid):
    """How many of the remembered actions could do nothing useful, by kind of waste."""
    kind = observations[..., 0]
    front = kind[:, :-1, 3, 5]
    door_open = observations[:, :-1, 3, 5, 2] == 0
    carried = kind[:, :-1, 3, 6]
    carries = (carried >= 5) & (carried <= 7)
    portable = (front >= 5) & (front <= 7)
    free = (front == 1) | (front == 3) | (front == 8) | ((front == 4) & door_open)
    bump = (actions == 2) & ~free
    useless = (
        ((actions == 3) & ~(portable & ~carries))
        | ((actions == 4) & ~(carries & (front == 1)))
        | ((actions == 5) & ~((front == 4) & ~door_open))
        | (actions == 6)
    )
    known = valid[:, :-1]
    back = np.zeros(actions.shape, dtype=bool)
    undone = ((actions[:, :-1] == 0) & (actions[:, 1:] == 1)) | ((actions[:, :-1] == 1) & (actions[:, 1:] == 0))
    back[:, 1:] = undone & known[:, :-1]
    return (bump & known).sum(axis=1), (useless & known).sum(axis=1), (back & known).sum(axis=1)
'''

_FIRST = """

def potential(observations, actions, valid):
    steps = nearest(observations[:, -1])
    near = 1.0 - steps / FAR
    facing = (steps == 0).astype(float)
    return 0.7 * near + 0.3 * facing, {"near": 0.7 * near, "facing": 0.3 * facing}
"""

_SECOND = """

def potential(observations, actions, valid):
    steps = nearest(observations[:, -1])
    near = 1.0 - steps / FAR
    facing = (steps == 0).astype(float)
    bump, useless, back = wasted(observations, actions, valid)
    parts = {
        "near": 0.7 * near,
        "facing": 0.3 * facing,
        "bump": -0.03 * bump,
        "useless": -0.03 * useless,
        "back_and_forth": -0.02 * back,
    }
    return sum(parts.values()), parts
"""

_THIRD = """

def potential(observations, actions, valid):
    now = observations[:, -1]
    kind = now[..., 0]
    steps = nearest(now)
    near = 1.0 - steps / FAR
    facing = (steps == 0).astype(float)
    seen = (kind != 0).mean(axis=(1, 2))
    things = np.minimum(((kind >= 4) & (kind <= 8)).sum(axis=(1, 2)), 3) / 3.0
    bump, useless, back = wasted(observations, actions, valid)
    parts = {
        "near": 0.6 * near,
        "facing": 0.3 * facing,
        "seen": 0.1 * seen,
        "choice": 0.1 * things,
        "bump": -0.03 * bump,
        "useless": -0.03 * useless,
        "back_and_forth": -0.02 * back,
    }
    return sum(parts.values()), parts
"""

BABYAI = (
    '"""Be near something, best of all in front of it and facing it."""\n' + _HEAD + _FIRST,
    '"""Be near something and face it; do not waste actions on what has no effect."""\n' + _HEAD + _WASTE + _SECOND,
    '"""Be near something and face it, look where there is much to see, and do not waste actions."""\n'
    + _HEAD
    + _WASTE
    + _THIRD,
)

_MEANT = '''
NOUNS = {nouns}  # words of missions, and the kinds of objects that they name
COLOURS = {colours}


def meant(view, mission):
    """Which squares of views (B, 7, 7, 3) show what the mission names: a noun, and the colour before it, if any."""
    kind = np.zeros(mission.shape, dtype=int)
    for word, number in NOUNS:
        kind = np.where(mission == word, number, kind)
    colour = np.full(mission.shape, -1)
    for word, number in COLOURS:
        colour = np.where(mission == word, number, colour)
    before = np.concatenate([np.full((len(mission), 1), -1), colour[:, :-1]], axis=1)
    found = np.zeros(view.shape[:3], dtype=bool)
    for place in range(mission.shape[1]):
        noun, shade = kind[:, place, None, None], before[:, place, None, None]
        found = found | ((noun > 0) & (view[..., 0] == noun) & ((shade < 0) | (view[..., 1] == shade)))
    return found


'''


def of_missions(program: str, words: dict[str, int]) -> str:
    """One of the programs of BabyAI, to which only what the mission names is a thing."""
    nouns = tuple((words[name], kind) for kind, name in enumerate(("door", "key", "ball", "box"), 4) if name in words)
    shades = ("red", "green", "blue", "purple", "yellow", "grey")
    colours = tuple((words[name], number) for number, name in enumerate(shades) if name in words)
    named = _MEANT.format(nouns=nouns, colours=colours).strip()
    for old, new in (
        ("def nearest(view):", f"{named}\n\n\ndef nearest(view, mission):"),
        ("thing = (kind >= 4) & (kind <= 8)", "thing = meant(view, mission)"),
        ("the nearest door, key, ball, box or goal", "the nearest thing that the mission names"),
        ("nearest(observations[:, -1])", "nearest(observations[:, -1], mission)"),
        ("nearest(now)", "nearest(now, mission)"),
        ("def potential(observations, actions, valid):", "def potential(observations, actions, valid, mission):"),
    ):
        program = program.replace(old, new)
    return program


_CRAFTER_HEAD = '''
CELL = {cells}
ITEM = {items}
VIEW = {view}  # cells in sight, {columns} in a row
FAR = 8


def count(now, name, most):
    """How many of an item the agent has, at most `most`."""
    return np.minimum(now[:, ITEM[name]], most)


def sight(now, name):
    return (now[:, :VIEW] == CELL[name]).any(axis=1)


def progress(now):
    """How far the tech tree has been climbed; the materials a step costs are always worth less than it gives."""
    stock = 0.08 * count(now, "wood", 5) + 0.08 * count(now, "stone", 5) + 0.03 * count(now, "sapling", 1)
    stock = stock + 0.12 * count(now, "coal", 2) + 0.20 * count(now, "iron", 2) + 0.60 * count(now, "diamond", 1)
    wooden = 0.25 * count(now, "wood_pickaxe", 1) + 0.20 * count(now, "wood_sword", 1)
    stony = 0.35 * count(now, "stone_pickaxe", 1) + 0.30 * count(now, "stone_sword", 1)
    iron = 0.70 * count(now, "iron_pickaxe", 1) + 0.60 * count(now, "iron_sword", 1)
    table = sight(now, "table") | (wooden + stony + iron > 0)
    furnace = sight(now, "furnace") | (iron > 0)
    return stock + wooden + stony + iron + 0.30 * table + 0.40 * furnace


def comfort(now):
    """0 when nothing is lacking; the lower something is, the more a little of it is worth."""
    lack = -0.02 * (9 - now[:, ITEM["health"]]) - 0.03 * np.maximum(0, 5 - now[:, ITEM["health"]])
    for name in ("food", "drink", "energy"):
        lack = lack - 0.01 * (9 - now[:, ITEM[name]]) - 0.02 * np.maximum(0, 6 - now[:, ITEM[name]])
    return lack
'''

_CRAFTER_NEAR = '''

def near(now, name):
    """1 next to the nearest of its kind, falling to 0 where none is in sight."""
    index = np.arange(VIEW)
    steps = np.abs(index % {columns} - {columns} // 2) + np.abs(index // {columns} - {rows} // 2)
    nearest = np.where(now[:, :VIEW] == CELL[name], steps, FAR + 1).min(axis=1)
    return np.clip(1.0 - (nearest - 1) / FAR, 0.0, 1.0)


def useful(now):
    """Nearness to the most useful thing in sight, given what the agent owns and lacks."""
    wood = now[:, ITEM["wood"]] > 0
    stone = now[:, ITEM["stone"]] > 0
    first = now[:, ITEM["wood_pickaxe"]] > 0
    second = now[:, ITEM["stone_pickaxe"]] > 0
    third = now[:, ITEM["iron_pickaxe"]] > 0
    make_first = wood & ~(first & (now[:, ITEM["wood_sword"]] > 0))
    make_second = wood & stone & ~(second & (now[:, ITEM["stone_sword"]] > 0))
    ready = wood & (now[:, ITEM["coal"]] > 0) & (now[:, ITEM["iron"]] > 0)
    best = near(now, "tree") * np.where(now[:, ITEM["wood"]] < 5, 0.8, 0.2)
    for name, worth in (
        ("water", np.where(now[:, ITEM["drink"]] < 6, 0.9, 0.4)),
        ("cow", np.where(now[:, ITEM["food"]] < 6, 0.9, 0.4)),
        ("ripe_plant", np.where(now[:, ITEM["food"]] < 6, 0.9, 0.5)),
        ("table", 0.9 * (make_first | make_second | ready)),
        ("furnace", 0.9 * ready),
        ("stone", 0.7 * first),
        ("coal", 0.8 * first),
        ("iron", 0.9 * second),
        ("diamond", 1.0 * third),
    ):
        best = np.maximum(best, near(now, name) * worth)
    return best


def danger(now):
    """0 when safe; rises as monsters come close or lava is underfoot's neighbour."""
    close = np.maximum(near(now, "zombie"), near(now, "skeleton")) > 0.8
    lava = near(now, "lava") >= 1.0
    return 0.5 * close + 0.5 * lava
'''

_CRAFTER_FIRST = """

def potential(observations, actions, valid):
    now = observations[:, -1]
    parts = {{"progress": progress(now), "comfort": comfort(now)}}
    return parts["progress"] + parts["comfort"], parts
"""

_CRAFTER_SECOND = """

def potential(observations, actions, valid):
    now = observations[:, -1]
    parts = {{
        "progress": progress(now),
        "comfort": comfort(now),
        "useful": 0.06 * useful(now),
        "danger": -0.05 * danger(now),
    }}
    return sum(parts.values()), parts
"""

_CRAFTER_THIRD = '''

def faces(now):
    """Whether the agent faces something it can use."""
    rows = np.arange(len(now))
    ahead = np.array({faced})[np.clip(now[:, {facing}], 0, {last_facing})]
    cell = now[rows, ahead]
    first = now[:, ITEM["wood_pickaxe"]] > 0
    second = now[:, ITEM["stone_pickaxe"]] > 0
    third = now[:, ITEM["iron_pickaxe"]] > 0
    good = (cell == CELL["tree"]) | (cell == CELL["water"]) | (cell == CELL["cow"]) | (cell == CELL["ripe_plant"])
    good = good | (((cell == CELL["stone"]) | (cell == CELL["coal"])) & first)
    return good | ((cell == CELL["iron"]) & second) | ((cell == CELL["diamond"]) & third)


def idle(observations, actions, valid):
    """Share of the remembered actions after which nothing in sight or in hand had changed."""
    same = (observations[:, 1:, : {daylight}] == observations[:, :-1, : {daylight}]).all(axis=2)
    return (same & valid[:, :-1]).mean(axis=1)


def potential(observations, actions, valid):
    now = observations[:, -1]
    parts = {{
        "progress": progress(now),
        "comfort": comfort(now),
        "useful": 0.06 * useful(now),
        "facing": 0.02 * faces(now),
        "danger": -0.05 * danger(now),
        "idle": -0.02 * idle(observations, actions, valid),
    }}
    return sum(parts.values()), parts
'''


def crafter_programs(layout: Mapping[str, Any]) -> list[str]:
    """Three potentials for Crafter, with the numbers of the layout that the prompt gave (`crafter.layout_of`)."""
    names = ("water", "stone", "tree", "lava", "coal", "iron", "diamond", "table", "furnace")
    creatures = ("cow", "zombie", "skeleton", "ripe_plant")
    numbers = {
        **layout,
        "cells": {name: layout["cells"][name] for name in (*names, *creatures)},
        "view": layout["columns"] * layout["rows"],
        "last_facing": len(layout["faced"]) - 1,
        "daylight": max(layout["items"].values()) + 2,
    }
    head, near = _CRAFTER_HEAD.format(**numbers), _CRAFTER_NEAR.format(**numbers)
    first, second, third = (text.format(**numbers) for text in (_CRAFTER_FIRST, _CRAFTER_SECOND, _CRAFTER_THIRD))
    return [
        '"""Climb the tech tree and stay well."""\n' + head + first,
        '"""Climb the tech tree, stay well, and be near what is useful now."""\n' + head + near + second,
        '"""Climb the tech tree, stay well, be near and face what is useful now, and do not idle."""\n'
        + head
        + near
        + third,
    ]
