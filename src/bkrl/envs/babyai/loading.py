"""From a minigrid environment to the arrays: how every level without native generation gets its layouts.

minigrid draws the layout from the env's own stream; what it built is written into the grid and the record. Envs
whose rules go beyond `rules` and `missions` (moving obstacles, levels with a `step` of their own) cannot be loaded;
`why_not` says why.
"""

from typing import Any, Final

import numpy as np
from minigrid.core.world_object import Ball, Box, Door, Floor, Goal, Key, Lava, Wall, WorldObj
from minigrid.envs.babyai.core import verifier
from minigrid.envs.babyai.core.roomgrid_level import RoomGridLevel
from minigrid.envs.babyai.core.verifier import (
    AfterInstr,
    AndInstr,
    BeforeInstr,
    GoToInstr,
    Instr,
    ObjDesc,
    OpenInstr,
    PickupInstr,
    PutNextInstr,
)
from minigrid.minigrid_env import MiniGridEnv
from numpy.typing import NDArray

from bkrl.core.errors import RunFailed
from bkrl.envs.babyai.constants import ACTION_NAMES, GO_TO, NO_TASK, OPEN_DOOR, PICK_UP, PUT_NEXT, VIEW
from bkrl.envs.babyai.state import (
    COLOR_SHIFT,
    CONTENT_COLOR_SHIFT,
    CONTENT_KIND_SHIFT,
    EMPTY_CELL,
    ENV,
    MARGIN,
    MEMBER_SHIFT,
    NOTHING_CARRIED,
    STATE_SHIFT,
    TRACKED_SHIFT,
)

_TASKS: Final = {GoToInstr: GO_TO, PickupInstr: PICK_UP, OpenInstr: OPEN_DOOR, PutNextInstr: PUT_NEXT}
_OBJECTS: Final = (Wall, Floor, Door, Key, Ball, Box, Goal, Lava)


class Inexpressible(RunFailed):
    """A layout holds something the engine has no rule for."""


def why_not(env: MiniGridEnv) -> str | None:
    """Why an environment cannot run on the engine, in a few words; None if it can. Resets the environment."""
    cls = type(env)
    if cls.step not in (MiniGridEnv.step, RoomGridLevel.step):
        return "it has a step of its own"
    for method in ("_reward", "gen_obs", "gen_obs_grid", "place_agent", "render"):
        if getattr(cls, method).__module__ not in ("minigrid.minigrid_env", "minigrid.core.roomgrid"):
            return f"it has a {method} of its own"
    if env.agent_view_size != VIEW or env.action_space.n != len(ACTION_NAMES):
        return "its view or its actions differ"
    if verifier.use_done_actions:
        return "BABYAI_DONE_ACTIONS asks for done actions"
    env.reset(seed=0)
    try:
        load(env, np.zeros((env.height + 2 * MARGIN, env.width + 2 * MARGIN), np.uint32), np.zeros(1, ENV)[0])
    except Inexpressible as error:
        return str(error)
    return None


def load(env: MiniGridEnv, grid: NDArray[np.uint32], record: Any) -> None:
    """Write the episode a minigrid environment has just begun into a grid (H + 2 MARGIN, W + 2 MARGIN) and a record.

    The stream of random numbers in the record stays as it is. Raises Inexpressible for what the rules do not cover.
    """
    members: dict[int, int] = {}  # id of an object → its member bits
    inner = grid[MARGIN : MARGIN + env.height, MARGIN : MARGIN + env.width]
    tracked = np.zeros_like(inner)
    record["task"], record["in_sequence"], record["strict"] = NO_TASK, 0, 0
    if isinstance(env, RoomGridLevel):
        for task, instruction in _tasks(env.instrs, record):
            record["task"][task] = _TASKS[type(instruction)]
            record["strict"] |= bool(vars(instruction).get("strict", False)) << task
            for bit, description in enumerate(_descriptions(instruction), start=2 * task):
                for thing in description.obj_set:
                    members[id(thing)] = members.get(id(thing), 0) | 1 << bit
                for x, y in description.obj_poss:
                    tracked[y, x] |= 1 << bit
    cells = [_cell(thing, members) for thing in env.grid.grid]
    inner[:] = np.array(cells, np.uint32).reshape(env.height, env.width)
    record["stale"] = bool((tracked != inner >> MEMBER_SHIFT).any())
    inner |= tracked << TRACKED_SHIFT
    x, y = (int(i) for i in env.agent_pos)
    record["agent"] = (y + MARGIN) * grid.shape[1] + x + MARGIN
    record["heading"] = env.agent_dir
    record["carrying"] = _cell(env.carrying, members) if env.carrying is not None else NOTHING_CARRIED
    record["see_through"] = env.see_through_walls
    record["max_steps"] = env.max_steps
    record["steps"], record["episode_return"] = 0, 0.0
    record["done"] = record["watched"] = record["first_clause_done"] = 0


def _tasks(instruction: Instr, env: Any) -> list[tuple[int, Instr]]:
    """The tasks of a mission with their numbers: two for each clause, the clause to be done first coming first."""
    clauses = [instruction]
    if isinstance(instruction, (BeforeInstr, AfterInstr)):
        if instruction.strict:
            raise Inexpressible("it has a strict sequence")
        clauses = [instruction.instr_a, instruction.instr_b]
        if isinstance(instruction, AfterInstr):
            clauses.reverse()
        env["in_sequence"] = 1
    tasks = []
    for number, clause in enumerate(clauses):
        parts = [clause.instr_a, clause.instr_b] if isinstance(clause, AndInstr) else [clause]
        tasks += [(2 * number + i, part) for i, part in enumerate(parts)]
    for _, task in tasks:
        if type(task) not in _TASKS:
            raise Inexpressible(f"it has the instruction {type(task).__name__}")
    return tasks


def _descriptions(instruction: Instr) -> list[ObjDesc]:
    if isinstance(instruction, PutNextInstr):
        return [instruction.desc_move, instruction.desc_fixed]
    return [instruction.desc]


def _cell(thing: WorldObj | None, members: dict[int, int]) -> int:
    if thing is None:
        return EMPTY_CELL
    if type(thing) not in _OBJECTS:
        raise Inexpressible(f"it has the object {type(thing).__name__}")
    kind, color, state = thing.encode()
    cell = kind | color << COLOR_SHIFT | state << STATE_SHIFT | members.get(id(thing), 0) << MEMBER_SHIFT
    if isinstance(thing, Door) and thing.is_open and thing.is_locked:
        raise Inexpressible("it has a door that is open and locked")
    content = thing.contains
    if content is not None:
        if type(content) not in (Key, Ball, Box) or content.contains is not None:
            raise Inexpressible("it has a box with more than one thing in it")
        kind, color, _ = content.encode()
        cell |= kind << CONTENT_KIND_SHIFT | color << CONTENT_COLOR_SHIFT
    return cell
