"""BALROG's texts of Crafter, by hand; the release was compared over 2,082 observations, rims of the map included."""

from __future__ import annotations

import numpy as np
import pytest

from bkrl.envs import captioner
from bkrl.envs.crafter import layout
from bkrl.envs.crafter.balrog import contexts
from bkrl.envs.crafter.layout import CELL, FACINGS

MIDDLE = (4, 3)


def view(ground="grass", facing="up", things=(), **held):
    """(82,) an observation: what lies at (dx, dy) from the player, all else being ground."""
    row = np.zeros(layout.SIZE, np.uint8)
    cells = np.full((layout.VIEW_ROWS, layout.VIEW_COLUMNS), CELL[ground], np.uint8)
    for (dx, dy), name in things:
        cells[MIDDLE[1] + dy, MIDDLE[0] + dx] = CELL[name]
    cells[MIDDLE[1], MIDDLE[0]] = CELL["player"]
    row[layout.VIEW] = cells.ravel()
    row[layout.FACING] = FACINGS.index(facing)
    for name in ("health", "food", "drink", "energy"):
        row[layout.INDEX[name]] = 9
    for name, count in held.items():
        row[layout.INDEX[name]] = count
    return row


def seen(row, precise=False):
    return contexts(row, precise)[0]


def test_the_protocols_text():
    row = view(things=[((-1, -2), "tree"), ((3, -1), "tree"), ((0, 1), "cow")], facing="down", wood=2, drink=5)
    assert captioner("CrafterReward-v1", "balrog")(row[None]) == [
        "You see:\n- grass 1 step to your west\n- tree 3 steps to your north-west\n- cow 1 step to your south\n\n"
        "You face cow at your front.\n\n"
        "Your status:\n- health: 9/9\n- food: 9/9\n- drink: 5/9\n- energy: 9/9\n\nYour inventory:\n- wood: 2"
    ]


def test_the_precise_text_leaves_out_ground_and_the_inside_of_lakes():
    lake = [((dx, dy), "water") for dx in (1, 2, 3) for dy in (-1, 0, 1)]
    text = seen(view(things=[*lake, ((-1, -2), "tree")], facing="left"), precise=True)
    assert text == (
        "You see:\n- tree 2 steps north and 1 step west\n- water 1 step north and 1 step east\n\n"
        "You face nothing at your front."
    )
    # Nearest by the first number: one step north and two east goes before two steps east
    wide = [((dx, dy), "water") for dx in (2, 3, 4) for dy in range(-3, 4)]
    assert "- water 1 step north and 2 steps east" in seen(view(things=wide), precise=True)
    # Nothing but water in view has no rim
    everywhere = [((dx, dy), "water") for dx in range(-4, 5) for dy in range(-3, 4)]
    assert "3 steps" not in seen(view("water", things=everywhere), precise=True)


def test_states_of_the_player():
    assert seen(view(sleeping=1)).startswith(
        "You are sleeping, and will not be able take actions until energy is full."
    )
    assert seen(view(health=0)).startswith("You died.")
    assert contexts(view())[1].endswith("You have nothing in your inventory.")
    assert "- plant 1 step to your east" in seen(view(things=[((1, 0), "ripe_plant")]))


@pytest.mark.parametrize("side", ["left", "top"])
def test_nothing_is_seen_where_the_view_leaves_the_map_on_the_left_or_above(side):
    outside = [((-4, dy), "outside") for dy in range(-3, 4)]
    if side == "top":
        outside = [((dx, -3), "outside") for dx in range(-4, 5)]
    assert seen(view(things=outside)) == "You see nothing away from you.\n\nYou face nothing at your front."


def test_what_is_faced_at_the_other_rims():
    right = [((dx, dy), "outside") for dx in (3, 4) for dy in range(-3, 4)]
    assert seen(view(things=right, facing="right")).endswith("You face grass at your front.")
    below = [((dx, dy), "outside") for dx in range(-4, 5) for dy in (2, 3)]
    assert seen(view(things=below, facing="right")).endswith("You face nothing at your front.")
    assert seen(view(things=below, facing="left")).endswith("You face grass at your front.")
