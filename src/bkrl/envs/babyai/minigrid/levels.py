"""The levels of minigrid that are not BabyAI's, as data: a layout and its sizes, what to do there, for how long.

Sources: `minigrid.register_minigrid_envs` for ids and sizes, the modules of `minigrid.envs` for step limits and
missions; a test compares the table with the installed package. The ids of the WFC family are not here: another
package's solver draws their layouts, from pictures.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from bkrl.envs.babyai import constants as c
from bkrl.envs.babyai.recipes import MINIGRID_RECIPES, Recipe

# Layouts with one room, which `halls` draws, from GRID_OF_ROOMS on those of `rooms`, and those that
# are drawn by steps (`recipes.MINIGRID_RECIPES`).
(
    HALL,
    CROSSING,
    DIST_SHIFT,
    LAVA_GAP,
    DOOR_KEY,
    OBJECTS,
    DOORS,
    MEMORY,
    RED_BLUE_DOORS,
    GRID_OF_ROOMS,
    LOCKED_ROOM,
    MULTI_ROOM,
    BY_RECIPE,
) = range(13)

_GOAL: Final = "get to the green goal square"
_THROUGH_LAVA: Final = f"avoid the lava and {_GOAL}"
_PICK_UP: Final = "pick up the {color} {kind}"
FETCH_WORDINGS: Final = ("get a", "go get a", "fetch a", "go fetch a", "you must fetch a")


@dataclass(frozen=True)
class MiniGridLevel:
    """One id.

    Attributes:
        layout: one of the numbers above.
        mission: may name {color} and {kind} of the first object, {other_color} and {other_kind} of the second, and
            {wording}, one of `FETCH_WORDINGS`.
        task: what is to be done beside reaching a goal, one of the numbers of `constants`.
        see_through: walls hide nothing.
        count: how many objects, obstacles, crossings or rooms (a side, in a chain).
        size: the longest side of a room, walls included.
        place: the row or column that differs between the ids of a layout.
        kind: what the crossings are made of.
        anywhere: the agent starts anywhere, or a hallway ends anywhere.
        recipe: of layout BY_RECIPE.
    """

    env_id: str
    layout: int
    width: int
    height: int
    max_steps: int
    mission: str
    task: int = c.NO_TASK
    see_through: bool = False
    count: int = 0
    size: int = 0
    place: int = 0
    kind: int = 0
    anywhere: bool = False
    recipe: Recipe | None = None


def _square(name: str, layout: int, side: int, factor: int, mission: str, **more: Any) -> MiniGridLevel:
    """A square map whose step limit is a multiple of its area."""
    return MiniGridLevel(f"MiniGrid-{name}-v0", layout, side, side, factor * side**2, mission, **more)


def _rooms(
    name: str, layout: int, columns: int, rows: int, max_steps: int, mission: str, size: int = 6, **more: Any
) -> MiniGridLevel:
    """A grid of rooms of `size` cells a side; neighbours share a wall."""
    width, height = columns * (size - 1) + 1, rows * (size - 1) + 1
    return MiniGridLevel(f"MiniGrid-{name}", layout, width, height, max_steps, mission, size=size, **more)


def _single_rooms() -> Iterator[MiniGridLevel]:
    for n in (5, 6, 8, 16):
        yield _square(f"Empty-{n}x{n}", HALL, n, 4, _GOAL, see_through=True)
        yield _square(f"DoorKey-{n}x{n}", DOOR_KEY, n, 10, "use the key to open the door and then get to the goal")
    for n in (5, 6):
        yield _square(f"Empty-Random-{n}x{n}", HALL, n, 4, _GOAL, see_through=True, anywhere=True)
    for name, n, count, anywhere in (
        ("5x5", 5, 2, False),
        ("Random-5x5", 5, 2, True),
        ("6x6", 6, 3, False),
        ("Random-6x6", 6, 3, True),
        ("8x8", 8, 4, False),
        ("16x16", 16, 8, False),
    ):
        name = f"Dynamic-Obstacles-{name}"
        yield _square(name, HALL, n, 4, _GOAL, task=c.AVOID, see_through=True, count=count, anywhere=anywhere)
    for n, count in ((9, 1), (9, 2), (9, 3), (11, 5)):
        for name, kind, mission in (
            ("Lava", c.LAVA, _THROUGH_LAVA),
            ("Simple", c.WALL, f"find the opening and {_GOAL}"),
        ):
            yield _square(f"{name}CrossingS{n}N{count}", CROSSING, n, 4, mission, count=count, kind=kind)
    for i, row in ((1, 2), (2, 5)):
        yield MiniGridLevel(f"MiniGrid-DistShift{i}-v0", DIST_SHIFT, 9, 7, 252, _GOAL, see_through=True, place=row)
    for n in (5, 6, 7):
        yield _square(f"LavaGapS{n}", LAVA_GAP, n, 4, _THROUGH_LAVA)
    for n, count in ((5, 2), (6, 2), (8, 3)):
        mission = "{wording} {color} {kind}"
        yield _square(f"Fetch-{n}x{n}-N{count}", OBJECTS, n, 5, mission, task=c.FETCH, see_through=True, count=count)
        yield _square(f"GoToDoor-{n}x{n}", DOORS, n, 4, "go to the {color} door", task=c.GO_BESIDE, see_through=True)
    for n, count in ((6, 2), (8, 3)):
        mission = "go to the {color} {kind}"
        yield _square(f"GoToObject-{n}x{n}-N2", OBJECTS, n, 5, mission, task=c.GO_BESIDE, see_through=True, count=2)
        name, mission = (
            f"MiniGrid-PutNear-{n}x{n}-N{count}-v0",
            "put the {color} {kind} near the {other_color} {other_kind}",
        )
        yield MiniGridLevel(name, OBJECTS, n, n, 5 * n, mission, task=c.PUT_NEAR, see_through=True, count=count)
    for n, anywhere in ((7, False), (9, False), (11, False), (13, False), (13, True), (17, True)):
        name, mission = f"MemoryS{n}", "go to the matching object at the end of the hallway"
        yield _square(name + "Random" * anywhere, MEMORY, n, 5, mission, task=c.MATCH, anywhere=anywhere)
    for n in (6, 8):
        name, mission = f"MiniGrid-RedBlueDoors-{n}x{n}-v0", "open the red door then the blue door"
        yield MiniGridLevel(name, RED_BLUE_DOORS, 2 * n, n, 20 * n**2, mission, task=c.RED_THEN_BLUE)


def _several_rooms() -> Iterator[MiniGridLevel]:
    yield MiniGridLevel("MiniGrid-FourRooms-v0", GRID_OF_ROOMS, 19, 19, 100, "reach the goal", count=2, size=9)
    yield MiniGridLevel("MiniGrid-Playground-v0", GRID_OF_ROOMS, 19, 19, 100, "", count=3, size=6)
    mission = "get the {color} key from the {other_color} room, unlock the {color} door and go to the goal"
    yield MiniGridLevel("MiniGrid-LockedRoom-v0", LOCKED_ROOM, 19, 19, 190, mission)
    for name, count, size in (("N2-S4-v0", 2, 4), ("N4-S5-v0", 6, 5), ("N4-S5-v1", 4, 5), ("N6-v0", 6, 10)):
        name, mission = f"MiniGrid-MultiRoom-{name}", "traverse the rooms to get to the goal"
        yield MiniGridLevel(name, MULTI_ROOM, 25, 25, 20 * count, mission, count=count, size=size)
    for name, recipe in MINIGRID_RECIPES.items():
        mission, task = ("open the door", c.OPEN_DOOR) if name == "Unlock-v0" else (_PICK_UP, c.PICK_UP)
        shape = recipe.columns, recipe.rows, recipe.longest
        yield _rooms(name, BY_RECIPE, *shape, mission, recipe.size, task=task, recipe=recipe)


MINIGRID_LEVELS: dict[str, MiniGridLevel] = {level.env_id: level for level in (*_single_rooms(), *_several_rooms())}
