"""Captions against golden views, by hand from the sentence forms."""

from __future__ import annotations

import numpy as np
import pytest

from bkrl.core.errors import InputError, UsageError
from bkrl.envs.babyai.captions import REMEMBERED_VIEWS, RoomCaptioner, caption
from bkrl.envs.babyai.constants import (
    BALL,
    BLUE,
    BOX,
    CLOSED,
    DOOR,
    FLOOR,
    GOAL,
    GREEN,
    GREY,
    KEY,
    LAVA,
    LOCKED,
    OPEN,
    PURPLE,
    RED,
    UNSEEN,
    WALL,
    YELLOW,
)


def view(*cells: tuple[int, int, tuple[int, int, int]]) -> np.ndarray:
    """An empty visible room with the given (x, y, (type, colour, state)) in it."""
    out = np.zeros((7, 7, 3), np.uint8)
    out[..., 0] = 1
    for x, y, cell in cells:
        out[x, y] = cell
    return out


GOLDEN_ENGLISH = [
    (view(), "You see nothing."),
    (view((3, 6, (KEY, BLUE, 0))), "You carry a blue key."),
    (view((3, 5, (WALL, GREY, 0))), "You see a wall 1 step forward."),
    (view((3, 0, (WALL, GREY, 0))), "You see a wall 6 steps forward."),
    (view((0, 6, (WALL, GREY, 0))), "You see a wall 3 steps left."),
    (view((4, 6, (WALL, GREY, 0))), "You see a wall 1 step right."),
    (view((2, 5, (WALL, GREY, 0))), "You see nothing."),  # walls off the three rays are not described
    (view((3, 3, (BALL, RED, 0))), "You see a red ball 3 steps forward."),
    (view((2, 6, (BOX, GREY, 0))), "You see a grey box 1 step left."),
    (view((6, 6, (KEY, YELLOW, 0))), "You see a yellow key 3 steps right."),
    (view((1, 4, (KEY, GREY, 0))), "You see a grey key 2 steps left and 2 steps forward."),
    (view((6, 5, (DOOR, PURPLE, LOCKED))), "You see a locked purple door 3 steps right and 1 step forward."),
    (view((3, 5, (DOOR, RED, OPEN))), "You see an open red door 1 step forward."),
    (view((3, 5, (DOOR, RED, CLOSED))), "You see a closed red door 1 step forward."),
    (view((4, 0, (GOAL, GREEN, 0))), "You see a green goal 1 step right and 6 steps forward."),
    (view((3, 5, (LAVA, RED, 0))), "You see lava 1 step forward."),
    (view((3, 5, (FLOOR, BLUE, 0))), "You see a blue floor tile 1 step forward."),
    # A wall behind an object on its ray is still seen.
    (
        view((3, 4, (BALL, GREEN, 0)), (3, 2, (WALL, GREY, 0))),
        "You see a wall 4 steps forward. You see a green ball 2 steps forward.",
    ),
    # Order: carried, wall ahead, left, right, then column by column, far to near.
    (
        view(
            (3, 6, (BALL, RED, 0)),
            (3, 1, (WALL, GREY, 0)),
            (1, 6, (WALL, GREY, 0)),
            (6, 6, (WALL, GREY, 0)),
            (5, 2, (BOX, BLUE, 0)),
            (2, 5, (KEY, RED, 0)),
            (2, 3, (BALL, BLUE, 0)),
        ),
        "You carry a red ball. You see a wall 5 steps forward. You see a wall 2 steps left. "
        "You see a wall 3 steps right. You see a blue ball 1 step left and 3 steps forward. "
        "You see a red key 1 step left and 1 step forward. You see a blue box 2 steps right and 4 steps forward.",
    ),
]

GOLDEN_COMPAT = [
    (view(), ""),
    (view((3, 5, (DOOR, RED, OPEN))), "You see a open red door 1 step forward."),
    (view((3, 4, (BALL, GREEN, 0)), (3, 2, (WALL, GREY, 0))), "You see a green ball 2 steps forward."),
    (view((3, 4, (UNSEEN, 0, 0)), (3, 2, (WALL, GREY, 0))), "You see a wall 4 steps forward."),
    (view((0, 6, (WALL, GREY, 0)), (1, 6, (BALL, RED, 0))), "You see a red ball 2 steps left."),
    (view((3, 5, (LAVA, RED, 0))), "You see a red lava 1 step forward."),
]

GOLDEN_FRENCH = [
    (view(), "Tu ne vois rien."),
    (view((3, 6, (KEY, GREEN, 0))), "Tu portes une clef verte."),
    (view((3, 5, (WALL, GREY, 0))), "Tu vois un mur à 1 pas devant."),
    (view((0, 6, (WALL, GREY, 0))), "Tu vois un mur à 3 pas à gauche."),
    (view((5, 6, (WALL, GREY, 0))), "Tu vois un mur à 2 pas à droite."),
    (view((1, 4, (BOX, PURPLE, 0))), "Tu vois une boîte violette 2 pas à gauche et 2 pas devant."),
    (view((4, 6, (BALL, GREY, 0))), "Tu vois une balle grise 1 pas à droite."),
    (view((3, 2, (DOOR, BLUE, LOCKED))), "Tu vois une porte bleue fermée à clef 4 pas devant."),
    (view((3, 2, (DOOR, BLUE, OPEN))), "Tu vois une porte bleue ouverte 4 pas devant."),
    (view((3, 2, (GOAL, GREEN, 0))), "Tu vois un but vert 4 pas devant."),
    (view((3, 2, (LAVA, RED, 0))), "Tu vois de la lave 4 pas devant."),
]

GOLDEN_FRENCH_COMPAT = [
    (view((3, 6, (KEY, GREEN, 0))), "Tu portes une key green."),
    (view((3, 2, (GOAL, GREEN, 0))), "Tu vois une but verte 4 pas devant."),
]


@pytest.mark.parametrize(
    ("golden", "language", "compat"),
    [
        (GOLDEN_ENGLISH, "en", False),
        (GOLDEN_COMPAT, "en", True),
        (GOLDEN_FRENCH, "fr", False),
        (GOLDEN_FRENCH_COMPAT, "fr", True),
    ],
)
def test_golden(golden: list[tuple[np.ndarray, str]], language: str, compat: bool) -> None:
    views = np.stack([v for v, _ in golden])
    assert caption(views, language, compat) == [text for _, text in golden]


def test_repeated_views_and_empty_batches() -> None:
    views = np.stack([v for v, _ in GOLDEN_ENGLISH])
    once = caption(views)
    assert caption(views[[3, 3, 5]]) == [once[3], once[3], once[5]]
    assert caption(views[:0]) == []
    assert caption(np.asfortranarray(views)) == once


def test_memory_of_views_is_bounded() -> None:
    captioner = RoomCaptioner()
    rng = np.random.default_rng(0)
    for _ in range(3):
        views = np.zeros((REMEMBERED_VIEWS // 2 + 1, 7, 7, 3), np.uint8)
        views[:, :3, :3, 0] = rng.integers(BALL, BOX + 1, (len(views), 3, 3))
        views[:, :3, :3, 1] = rng.integers(0, 6, (len(views), 3, 3))
        captioner(views)
        assert len(captioner._remembered) <= REMEMBERED_VIEWS


def test_bad_input() -> None:
    with pytest.raises(InputError, match=r"\(B, 7, 7, 3\)"):
        caption(np.zeros((7, 7, 3), np.uint8))
    with pytest.raises(InputError, match="uint8"):
        caption(np.zeros((1, 7, 7, 3), np.float32))
    for cell in ((11, 0, 0), (BALL, 6, 0), (DOOR, 0, 3)):
        with pytest.raises(InputError, match="raw observations"):
            caption(view((3, 3, cell))[None])
    with pytest.raises(UsageError, match="'en' or 'fr'"):
        caption(view()[None], "de")
