"""Programs that know a Crafter task: have the wood it takes, then be near what it is done with."""

from __future__ import annotations

from bkrl.envs.crafter import layout
from bkrl.envs.crafter.rules import GAMES

_PROGRAM = '''"""Knows the task: have the wood it takes, and be near what it is done with."""

WOOD = {wood}
NEEDED = {needed}
FAR = 8


def potential(observations, actions, valid):
    now = observations[:, -1]
    index = np.arange({cells})
    steps = np.abs(index % {columns} - {columns} // 2) + np.abs(index // {columns} - {rows} // 2)
    nearest = np.where(now[:, :{cells}] == {target}, steps, FAR).min(axis=1)
    stock = np.minimum(now[:, WOOD], NEEDED)
    return (stock * (FAR + 1) - nearest * (stock >= NEEDED * {first})).astype(float)
'''

# achievement → what it is done with, and the wood it takes first
_DONE_WITH = {
    "collect_drink": ("water", 0),
    "eat_cow": ("cow", 0),
    "place_table": ("tree", 1),
    "make_wood_pickaxe": ("table", 1),
}


def oracles() -> dict[str, str]:
    """Task → program, for the tasks of one achievement that are known."""
    tasks = {env_id: game.tasks[0] for env_id, game in GAMES.items() if len(game.tasks) == 1}
    return {env_id: _program(*_DONE_WITH[task]) for env_id, task in tasks.items() if task in _DONE_WITH}


def _program(thing: str, needed: int) -> str:
    return _PROGRAM.format(
        wood=layout.INDEX["wood"],
        needed=needed,
        first=int(thing != "tree"),
        cells=layout.VIEW.stop,
        columns=layout.VIEW_COLUMNS,
        rows=layout.VIEW_ROWS,
        target=layout.CELL[thing],
    )
