"""Captions of Crafter: golden views, edges of the map, batches, clauses without captions."""

from __future__ import annotations

import numpy as np
import pytest

from bkrl.core.errors import InputError
from bkrl.envs import captioner, clause_reader, make_vec
from bkrl.envs.crafter import captions as module
from bkrl.envs.crafter import layout
from bkrl.envs.crafter.captions import caption_batch as caption
from bkrl.envs.crafter.rules import ITEMS
from bkrl.potentials.goal.texts import clauses


def observation(view=None, facing="right", sleeping=0, daylight=255, background="grass", **items):
    """A symbolic observation; `view` maps (x, y) relative to the player to the name of a cell."""
    row = np.zeros(layout.SIZE, np.uint8)
    row[layout.VIEW] = layout.CELL[background]
    row[layout.PLAYER_CELL] = layout.CELL["player"]
    for (x, y), name in (view or {}).items():
        row[layout.PLAYER_CELL + x + layout.VIEW_COLUMNS * y] = layout.CELL[name]
    row[layout.FACING] = layout.FACINGS.index(facing)
    row[layout.INVENTORY.start : layout.INVENTORY.start + 4] = 9
    for name, amount in items.items():
        row[layout.INDEX[name]] = amount
    row[layout.SLEEPING], row[layout.DAYLIGHT] = sleeping, daylight
    return row


VITALS = "Health 9/9, food 9/9, drink 9/9, energy 9/9."

GOLDEN = [
    (
        observation({(1, 0): "tree", (-2, 3): "water"}, wood=2, wood_pickaxe=1, food=7),
        "You face right, towards a tree. You see grass 1 step up, a tree 1 step right, "
        "water 2 steps left and 3 steps down. Health 9/9, food 7/9, drink 9/9, energy 9/9. "
        "You carry 2 wood and 1 wood pickaxe.",
    ),
    (
        observation({(0, -1): "cow", (3, 1): "cow"}, facing="up", stone=1, iron_sword=1, sapling=3),
        "You face up, towards a cow. You see a cow 1 step up, grass 1 step left. "
        f"{VITALS} You carry 3 sapling, 1 stone and 1 iron sword.",
    ),
    (
        observation({(0, 1): "table", (4, -3): "diamond"}, facing="down", daylight=100, background="path"),
        "You face down, towards a crafting table. You see a path 1 step up, a crafting table 1 step down, "
        f"a diamond 4 steps right and 3 steps up. It is night. {VITALS} You carry nothing.",
    ),
    (
        observation({(-1, 0): "zombie"}, facing="left", sleeping=1, daylight=10, energy=2),
        "You are asleep, and wake when rested or hurt. You face left, towards a zombie. "
        "You see grass 1 step up, a zombie 1 step left. It is night. "
        "Health 9/9, food 9/9, drink 9/9, energy 2/9. You carry nothing.",
    ),
    (
        observation({(1, 0): "ripe_plant", (2, 0): "plant"}, health=0),
        "You are dead. You face right, towards a ripe plant. You see grass 1 step up, a ripe plant 1 step right, "
        "a young plant 2 steps right. Health 0/9, food 9/9, drink 9/9, energy 9/9. You carry nothing.",
    ),
]


@pytest.mark.parametrize(("row", "text"), GOLDEN)
def test_golden_views(row, text):
    assert caption(row[None]) == [text]


def test_corner_of_the_map():
    outside = {(x, y): "outside" for x in range(-4, 5) for y in range(-3, 4) if x < 0 or y < 0}
    text = caption(observation(outside, facing="up")[None])[0]
    assert text.startswith("You face up, towards the edge of the world. You see the edge of the world 1 step up, ")
    assert "grass 1 step right" in text


@pytest.mark.parametrize("cell", range(layout.VIEW.stop))
def test_every_cell_has_its_direction(cell):
    if cell == layout.PLAYER_CELL:
        return
    x, y = cell % 9 - 4, cell // 9 - 3
    text = caption(observation({(x, y): "diamond"})[None])[0]
    place = text.split("a diamond ", 2)[-1].split(",")[0].split(".")[0]
    words = place.replace("and ", "").split()
    total = {"left": 0, "right": 0, "up": 0, "down": 0}
    for count, _, direction in zip(words[::3], words[1::3], words[2::3], strict=True):
        total[direction] = int(count)
    assert (total["right"] - total["left"], total["down"] - total["up"]) == (x, y)


def test_a_batch_is_the_captions_of_its_rows():
    rng = np.random.default_rng(0)
    rows = rng.integers(0, len(layout.CELL_NAMES), (50, layout.SIZE)).astype(np.uint8)
    rows[:, layout.FACING] %= 4
    alone = [caption(row[None])[0] for row in rows]
    assert caption(rows) == alone
    order = rng.permutation(50)
    assert caption(rows[order]) == [alone[i] for i in order]
    assert caption(rows[::-2]) == alone[::-2]


def plain(row: np.ndarray) -> str:
    """A caption put together with no table and no array: what the module's must be."""
    cells = {}
    for i in sorted(range(63), key=lambda i: (abs(i % 9 - 4) + abs(i // 9 - 3), i)):
        x, y = i % 9 - 4, i // 9 - 3
        ways = [(abs(x), "left" if x < 0 else "right"), (abs(y), "up" if y < 0 else "down")]
        steps = " and ".join(f"{n} step{'s' if n > 1 else ''} {way}" for n, way in ways if n)
        cells.setdefault(int(row[i]), steps)
    names = [module._ARTICLES[name] for name in layout.CELL_NAMES]
    items = {name.replace("_", " "): int(row[layout.INDEX[name]]) for name in ITEMS}
    facing = int(row[63])
    sentences = [["You are dead"]] if items["health"] == 0 else []
    if items["health"] and row[80]:
        sentences.append(["You are asleep", "and wake when rested or hurt"])
    sentences.append([f"You face {layout.FACINGS[facing]}", f"towards {names[row[layout.FACED_CELL[facing]]]}"])
    seen = ", ".join(f"{names[cell]} {steps}" for cell, steps in cells.items() if cell != 13)
    sentences.append([f"You see {seen}"])
    if row[81] < 128:
        sentences.append(["It is night"])
    sentences.append([f"{name} {items.pop(name)}/9" for name in ("health", "food", "drink", "energy")])
    sentences[-1][0] = sentences[-1][0].capitalize()
    held = [f"{amount} {name}" for name, amount in items.items() if amount] or ["nothing"]
    if len(held) > 1:
        held[-2:] = [" and ".join(held[-2:])]
    sentences.append([f"You carry {held[0]}", *held[1:]])
    return " ".join(", ".join(parts) + "." for parts in sentences)


def played(steps: int) -> np.ndarray:
    """Views of random play, each once."""
    envs = make_vec("Crafter-Text-Reward", 8)
    rng = np.random.default_rng(0)
    views = [envs.reset(seed=0)[0].copy()]
    views += [envs.step(rng.integers(0, 20, 8))[0].copy() for _ in range(steps)]
    return np.unique(np.concatenate(views), axis=0)


def drawn(count: int, amounts: int, cells: int) -> np.ndarray:
    """Views of random bytes: `amounts` values of an item, of which one carries few, and `cells` kinds of cell."""
    rng = np.random.default_rng(amounts)
    rows = rng.integers(0, amounts, (count, layout.SIZE)).astype(np.uint8)
    rows[:, layout.VIEW] = rng.integers(13, 13 + cells, (count, 63)) % 20
    rows[:, layout.FACING] %= 4
    rows[:, layout.INVENTORY] *= rng.random((count, len(ITEMS))) < rng.random((count, 1))
    rows[:, layout.SLEEPING] = rng.integers(0, 2, count)
    rows[:, layout.DAYLIGHT] = rng.integers(0, 256, count)
    return rows


VIEWS = {"played": lambda: played(150), "drawn": lambda: drawn(400, 10, 20), "odd": lambda: drawn(400, 256, 2)}


@pytest.mark.parametrize("views", VIEWS)
def test_captions_and_clauses_are_what_a_plain_reading_says(views):
    rows = VIEWS[views]()
    texts = caption(rows)
    assert texts == [plain(row) for row in rows]
    reader = clause_reader("Crafter-Text-EatCow")
    read = reader(rows)
    said = [[clauses(reader.texts[number]) for number in one[one >= 0]] for one in read]
    assert [[part for (part,) in parts] for parts in said] == [clauses(text) for text in texts]
    assert all((one[np.argmin(one >= 0) :] < 0).all() for one in read if (one < 0).any())
    assert reader(rows[:0]).shape == (0, read.shape[1])


def test_envs_without_a_reader_say_so():
    assert clause_reader("BabyAI-Text-GoToLocal-RedBall-S20") is None


def test_daylight_counts_as_day_or_night_only():
    texts = caption(np.stack([observation(daylight=light) for light in (0, 127, 128, 255)]))
    assert texts[0] == texts[1]
    assert texts[2] == texts[3]
    assert texts[1] != texts[2]


def test_bad_observations_are_refused():
    with pytest.raises(InputError, match="symbolic"):
        caption(np.zeros((2, 64, 64, 3), np.uint8))
    with pytest.raises(InputError, match="uint8"):
        caption(observation()[None].astype(np.int64))
    damaged = observation()
    damaged[0] = 77
    for read in (caption, clause_reader("CrafterReward-v1")):
        with pytest.raises(InputError, match="damaged"):
            read(damaged[None])
        with pytest.raises(InputError, match="uint8"):
            read(observation()[None].astype(np.int64))


@pytest.mark.parametrize("language", ["en", "ellm", "balrog", "balrog-precise"])
def test_bad_observations_are_refused_in_any_wording(language):
    damaged = observation()
    damaged[layout.FACING] = 4
    with pytest.raises(InputError, match="symbolic"):
        captioner("CrafterReward-v1", language)(np.zeros((1, 64, 64, 3), np.uint8))
    with pytest.raises(InputError, match="damaged"):
        captioner("CrafterReward-v1", language)(damaged[None])
    assert captioner("CrafterReward-v1", language)(damaged[None][:0]) == []
