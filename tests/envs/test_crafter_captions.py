"""Captions of Crafter: golden views, edges of the map, memo."""

from __future__ import annotations

import numpy as np
import pytest

from bkrl.envs.crafter import caption, layout
from bkrl.envs.crafter import captions as module
from bkrl.errors import InputError


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


def test_a_batch_is_the_captions_of_its_rows_whatever_the_memo_holds(monkeypatch):
    rng = np.random.default_rng(0)
    rows = rng.integers(0, len(layout.CELL_NAMES), (50, layout.SIZE)).astype(np.uint8)
    rows[:, layout.FACING] %= 4
    alone = [caption(row[None])[0] for row in rows]
    assert caption(rows) == alone
    module._memo.clear()
    monkeypatch.setattr(module, "_MEMO_LIMIT", 20)
    for _ in range(3):
        assert caption(rows[rng.permutation(50)[:30]]) is not None
        assert caption(rows) == alone
        assert len(module._memo) <= 20


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
    with pytest.raises(InputError, match="damaged"):
        caption(damaged[None])
