"""The programs the rules annotator writes: sound numbers, run where every program runs, valuing what a person would."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from bkrl.data.windows import Windows
from bkrl.envs.crafter import layout
from bkrl.labelers.answers import parse_program
from bkrl.labelers.code import code_prompt
from bkrl.labelers.material import EnvCard
from bkrl.llm.rules import babyai, crafter
from bkrl.sandbox.pool import Sandbox, probation
from bkrl.text.prompts import SHIPPED

BABYAI = EnvCard("B", "babyai", ("left", "right", "forward", "pickup", "drop", "toggle", "done"))
CRAFTER = EnvCard("C", "crafter", ("noop", "move_left", "do"))
LAYOUT = SHIPPED.piece("layout_crafter", layout=layout)
PROMPTS = {
    "babyai": code_prompt(BABYAI, SHIPPED.piece("layout_babyai"), 5, [])[0][1],
    "crafter": code_prompt(CRAFTER, LAYOUT, 5, [])[0][1],
}
PROGRAMS = {
    **{f"babyai {n}": source for n, source in enumerate(babyai.programs(PROMPTS["babyai"]))},
    **{f"crafter {n}": source for n, source in enumerate(crafter.programs(PROMPTS["crafter"]))},
}
SHAPES = {"babyai": (7, 7, 3), "crafter": (layout.SIZE,)}
Value = Callable[[np.ndarray, list[int]], float]


@pytest.fixture(scope="module", params=PROGRAMS, ids=str)
def program(request: pytest.FixtureRequest) -> Iterator[tuple[str, Sandbox]]:
    family = request.param.split()[0]
    with Sandbox(PROGRAMS[request.param], SHAPES[family], 5) as sandbox:
        yield request.param, sandbox


def value(sandbox: Sandbox, observations: list[np.ndarray], actions: list[int] | None = None) -> float:
    """The value of a history that ends in the last observation; rows before it are not valid."""
    known, shape = len(observations), sandbox.obs_shape
    views = np.zeros((1, 6, *shape), np.uint8)
    views[0, 6 - known :] = observations
    moves = np.zeros((1, 5), np.int64)
    if actions:
        moves[0, 5 - len(actions) :] = actions
    valid = np.arange(6)[None] >= 6 - known
    return float(sandbox(Windows.of(views, moves, valid))[0])


def test_a_program_passes_every_behaviour_check(program: tuple[str, Sandbox]) -> None:
    _, sandbox = program
    rng = np.random.default_rng(0)
    valid = np.arange(6)[None] >= rng.integers(0, 6, 300)[:, None]
    shape = (300, 6, *sandbox.obs_shape)
    views = np.where(rng.random(shape) < 0.1, rng.integers(0, 10, shape), 1).astype(np.uint8)
    views[~valid] = 0
    windows = Windows.of(views, rng.integers(0, 7, (300, 5)) * valid[:, :-1], valid)
    probation(sandbox, windows)
    values, components = sandbox.evaluate(windows)
    assert np.isfinite(values).all()
    assert len(np.unique(values)) >= 4
    assert np.allclose(sum(components.values()), values)


def room(*things: tuple[int, int, int]) -> np.ndarray:
    view = np.zeros((7, 7, 3), np.uint8)
    view[..., 0] = 1
    for x, y, kind in things:
        view[x, y] = (kind, 0, 0)
    return view


def test_babyai_programs_value_approach_and_facing(program: tuple[str, Sandbox]) -> None:
    name, sandbox = program
    if not name.startswith("babyai"):
        return
    line = [value(sandbox, [room((3, y, 6))]) for y in (0, 2, 4, 5)]
    assert line == sorted(line)
    assert line[-1] > line[-2] + 0.2, "facing is worth a step of its own"
    assert value(sandbox, [room()]) < line[0]
    assert value(sandbox, [room((2, 6, 5))]) < line[-1], "beside is not in front"
    assert value(sandbox, [room((3, 5, 5))]) == value(sandbox, [room((3, 5, 7))]), "no kind is worth more"
    assert value(sandbox, [room((3, 5, 2))]) < line[-1], "a wall is nothing to approach"


def test_babyai_programs_after_the_first_value_useful_actions(program: tuple[str, Sandbox]) -> None:
    name, sandbox = program
    if not name.startswith("babyai") or name.endswith("0"):
        return
    empty = [room()] * 3
    idle = {action: value(sandbox, empty, [action, action]) for action in range(7)}
    assert idle[0] == idle[1] == idle[2] > idle[3] == idle[4] == idle[5] == idle[6]
    assert value(sandbox, empty, [0, 1]) < idle[0], "back and forth"
    wall = [room((3, 5, 2))] * 3
    assert value(sandbox, wall, [2, 2]) < value(sandbox, wall, [0, 0]), "against a wall"
    assert value(sandbox, [room((3, 5, 6))] * 3, [3, 3]) > value(sandbox, [room((3, 5, 6))] * 3, [6, 6])


def meadow(cells: dict[tuple[int, int], str] | None = None, facing: str = "up", **items: int) -> np.ndarray:
    """A meadow: `cells` by (row, column) from the player, everything well unless said otherwise."""
    row = np.zeros(layout.SIZE, np.uint8)
    row[layout.VIEW] = layout.CELL["grass"]
    row[layout.PLAYER_CELL] = layout.CELL["player"]
    for (down, right), name in (cells or {}).items():
        row[layout.PLAYER_CELL + 9 * down + right] = layout.CELL[name]
    row[layout.FACING] = layout.FACINGS.index(facing)
    for name in ("health", "food", "drink", "energy"):
        row[layout.INDEX[name]] = 9
    for name, amount in items.items():
        row[layout.INDEX[name]] = amount
    row[layout.DAYLIGHT] = 255
    return row


TREE, TABLE, BOTH = {(-1, 0): "tree"}, {(-1, 0): "table"}, {(-1, 0): "table", (0, 1): "furnace"}
STEPS = {
    "chop the last tree": (meadow(TREE), meadow(wood=1)),
    "chop again": (meadow(TREE, wood=3), meadow(TREE, wood=4)),
    "place a table": (meadow(wood=2), meadow(TABLE)),
    "make a wood pickaxe": (meadow(TABLE, wood=1), meadow(TABLE, wood_pickaxe=1)),
    "make a wood sword": (meadow(TABLE, wood=1), meadow(TABLE, wood_sword=1)),
    "mine stone": (meadow({(-1, 0): "stone"}, wood_pickaxe=1), meadow({(-1, 0): "path"}, wood_pickaxe=1, stone=1)),
    "mine coal": (meadow({(-1, 0): "coal"}, wood_pickaxe=1), meadow({(-1, 0): "path"}, wood_pickaxe=1, coal=1)),
    "make a stone pickaxe": (
        meadow(TABLE, wood_pickaxe=1, wood=1, stone=1),
        meadow(TABLE, wood_pickaxe=1, stone_pickaxe=1),
    ),
    "place a furnace": (meadow(TABLE, wood_pickaxe=1, stone=4), meadow(BOTH, wood_pickaxe=1)),
    "mine iron": (meadow({(-1, 0): "iron"}, stone_pickaxe=1), meadow({(-1, 0): "path"}, stone_pickaxe=1, iron=1)),
    "make an iron pickaxe": (
        meadow(BOTH, stone_pickaxe=1, wood=1, coal=1, iron=1),
        meadow(BOTH, stone_pickaxe=1, iron_pickaxe=1),
    ),
    "mine a diamond": (meadow({(-1, 0): "diamond"}, iron_pickaxe=1), meadow(iron_pickaxe=1, diamond=1)),
    "drink": (meadow({(-1, 0): "water"}, drink=3), meadow({(-1, 0): "water"}, drink=4)),
    "eat a cow": (meadow({(-1, 0): "cow"}, food=3), meadow(food=9)),
    "heal": (meadow(health=4), meadow(health=5)),
}


@pytest.mark.parametrize("step", STEPS)
def test_crafter_programs_never_punish_progress(program: tuple[str, Sandbox], step: str) -> None:
    name, sandbox = program
    if name.startswith("crafter"):
        before, after = STEPS[step]
        assert value(sandbox, [after]) > value(sandbox, [before])


def test_later_crafter_programs_value_being_near_what_is_useful(program: tuple[str, Sandbox]) -> None:
    name, sandbox = program
    if not name.startswith("crafter") or name.endswith("0"):
        return
    near, far = ({(-1, 0): thing} for thing in ("tree", "iron")), ({(-3, 0): thing} for thing in ("tree", "iron"))
    tree_near, iron_near = near
    tree_far, iron_far = far
    assert value(sandbox, [meadow(tree_near)]) > value(sandbox, [meadow(tree_far)]) > value(sandbox, [meadow()])
    assert value(sandbox, [meadow(iron_near)]) == value(sandbox, [meadow(iron_far)]), "iron is useless without the tool"
    owned = {"stone_pickaxe": 1}
    assert value(sandbox, [meadow(iron_near, **owned)]) > value(sandbox, [meadow(iron_far, **owned)])
    assert value(sandbox, [meadow({(-1, 0): "lava"})]) < value(sandbox, [meadow()])
    assert value(sandbox, [meadow({(0, 1): "zombie"})]) < value(sandbox, [meadow()])


def test_programs_are_read_back_from_the_reply() -> None:
    for source in PROGRAMS.values():
        assert parse_program(f"```python\n{source}\n```").strip() == source.strip()  # type: ignore[union-attr]
