"""Oracle potentials: what knowing the task would be worth, seen by the same eyes. Controls, never a claim.

An oracle is a program like those of BK-Code, written from a task's true target: minus the steps to the nearest target
in sight. It sees what the policy sees and nothing else.
"""

from __future__ import annotations

from bkrl.core.errors import UsageError
from bkrl.core.registry import did_you_mean
from bkrl.envs.babyai.levels import LEVELS
from bkrl.envs.crafter import layout
from bkrl.envs.crafter.rules import GAMES

_BABYAI = '''"""Knows the task: be near a target that is in sight."""

FAR = 14


def potential(observations, actions, valid):
    now = observations[:, -1]
    steps = np.abs(np.arange(7) - 3)[:, None] + (6 - np.arange(7))[None, :]
    wanted = np.zeros(now.shape[:3], dtype=bool)
{targets}
    wanted[:, 3, 6] = False
    return -np.where(wanted, steps, FAR).min(axis=(1, 2)).astype(float)
'''

_CRAFTER = '''"""Knows the task: have the wood it takes, and be near what it is done with."""

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


def oracle_program(env_id: str) -> str:
    """The program of an oracle for a task; UsageError where none is known."""
    if env_id in LEVELS:
        lines = [
            f"    wanted = wanted | ((now[..., 0] == {kind}) & (now[..., 1] == {colour}))"
            for target in LEVELS[env_id].targets
            for kind in target.kinds
            for colour in target.colors
        ]
        return _BABYAI.format(targets="\n".join(lines))
    tasks = GAMES[env_id].tasks if env_id in GAMES else ()
    if len(tasks) == 1 and tasks[0] in _DONE_WITH:
        thing, needed = _DONE_WITH[tasks[0]]
        return _CRAFTER.format(
            wood=layout.INDEX["wood"],
            needed=needed,
            first=int(thing != "tree"),
            cells=layout.VIEW.stop,
            columns=layout.VIEW_COLUMNS,
            rows=layout.VIEW_ROWS,
            target=layout.CELL[thing],
        )
    known = [*LEVELS, *(name for name, game in GAMES.items() if len(game.tasks) == 1 and game.tasks[0] in _DONE_WITH)]
    raise UsageError(f"No oracle is known for '{env_id}': name a task with --task.{did_you_mean(env_id, known)}")
