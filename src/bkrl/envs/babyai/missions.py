"""When a mission is done: minigrid's instruction verifiers on member and tracked bits.

Source: `minigrid.envs.babyai.core.verifier`. "B after you A" is kept as the sequence A, B.
"""

from typing import Any, Final

from bkrl.core.jit import helper
from bkrl.envs.babyai.constants import DOOR, DROP, GO_TO, NO_TASK, OPEN, OPEN_DOOR, PICK_UP, PICKUP, TOGGLE
from bkrl.envs.babyai.state import (
    MEMBER_MASK,
    MEMBER_SHIFT,
    NOTHING_CARRIED,
    OBJECT_MASK,
    TRACKED_SHIFT,
    ahead,
    cell_at,
    kind_of,
    state_of,
)

CONTINUE: Final = 0
SUCCESS: Final = 1
FAILURE: Final = 2


@helper
def refers(cell: int, description: int) -> bool:
    """Whether a description of the mission means this object."""
    return (cell >> (MEMBER_SHIFT + description)) & 1 != 0


@helper
def is_tracked(cell: int, description: int) -> bool:
    """Whether a description holds this cell for the place of one of its objects."""
    return (cell >> (TRACKED_SHIFT + description)) & 1 != 0


@helper
def track(grid: Any, env: Any) -> None:
    """`RoomGridLevel.update_objs_poss`, after every drop action: look again where the objects are."""
    if env.stale:
        for at in range(len(grid)):
            cell = cell_at(grid, at)
            grid[at] = (cell & OBJECT_MASK) | (cell & MEMBER_MASK) << (TRACKED_SHIFT - MEMBER_SHIFT)
        env.stale = 0


@helper
def verify_mission(grid: Any, env: Any, action: int, carried_before: int, stride: int) -> int:
    """`Instr.verify` of the whole mission, after an action. Of a sequence the first clause must be done first; when it
    is, the same action counts for the second (`BeforeInstr.verify`, `AfterInstr.verify`)."""
    if env.task[0] == NO_TASK:
        return CONTINUE
    if not env.in_sequence:
        return verify_clause(grid, env, 0, action, carried_before, stride)
    if not env.first_clause_done:
        status = verify_clause(grid, env, 0, action, carried_before, stride)
        if status != SUCCESS:
            return status
        env.first_clause_done = 1
    return verify_clause(grid, env, 1, action, carried_before, stride)


@helper
def verify_clause(grid: Any, env: Any, clause: int, action: int, carried_before: int, stride: int) -> int:
    """One task, or `AndInstr.verify`: both tasks, in any order; a failure of one of the two does not count."""
    first, second = 2 * clause, 2 * clause + 1
    if env.task[second] == NO_TASK:
        return verify_task(grid, env, first, action, carried_before, stride)
    for task in (first, second):
        if not (env.done >> task) & 1 and verify_task(grid, env, task, action, carried_before, stride) == SUCCESS:
            env.done |= 1 << task
    return SUCCESS if (env.done >> first) & 1 and (env.done >> second) & 1 else CONTINUE


@helper
def verify_task(grid: Any, env: Any, task: int, action: int, carried_before: int, stride: int) -> int:
    """`ActionInstr.verify` for one task."""
    front = env.agent + ahead(env.heading, stride)
    # A verifier learns what is carried when it is first asked; until then it believes the hands to be empty.
    if not (env.watched >> task) & 1:
        carried_before = NOTHING_CARRIED
        env.watched |= 1 << task
    strict = (env.strict >> task) & 1 != 0
    kind = env.task[task]
    if kind == GO_TO:
        return verify_go_to(grid, task, front)
    if kind == PICK_UP:
        return verify_pick_up(env, task, action, carried_before, strict)
    if kind == OPEN_DOOR:
        return verify_open(grid, task, action, front, strict)
    return verify_put_next(grid, env, task, action, carried_before, front, stride, strict)


@helper
def verify_go_to(grid: Any, task: int, front: int) -> int:
    """`GoToInstr`: any action counts while the cell in front is tracked."""
    return SUCCESS if is_tracked(cell_at(grid, front), 2 * task) else CONTINUE


@helper
def verify_pick_up(env: Any, task: int, action: int, carried_before: int, strict: bool) -> int:
    """`PickupInstr`: the object was taken with empty hands. Strict: taking anything else fails."""
    if action != PICKUP:
        return CONTINUE
    carrying = env.carrying
    if carried_before == NOTHING_CARRIED and refers(carrying, 2 * task):
        return SUCCESS
    return FAILURE if strict and carrying != NOTHING_CARRIED else CONTINUE


@helper
def verify_open(grid: Any, task: int, action: int, front: int, strict: bool) -> int:
    """`OpenInstr`: after a toggle the door in front is meant and open. Strict: toggling another door fails."""
    if action != TOGGLE:
        return CONTINUE
    cell = cell_at(grid, front)
    if kind_of(cell) == DOOR:
        if refers(cell, 2 * task) and state_of(cell) == OPEN:
            return SUCCESS
        if strict:
            return FAILURE
    return CONTINUE


@helper
def verify_put_next(
    grid: Any, env: Any, task: int, action: int, carried_before: int, front: int, stride: int, strict: bool
) -> int:
    """`PutNextInstr`: the object carried before has been dropped beside (not diagonally) a tracked cell of the other.
    Strict: carrying anything after a pickup action fails."""
    if strict and action == PICKUP and env.carrying != NOTHING_CARRIED:
        return FAILURE
    dropped = action == DROP and carried_before != NOTHING_CARRIED and env.carrying == NOTHING_CARRIED
    if dropped and refers(carried_before, 2 * task):
        for beside in (front - 1, front + 1, front - stride, front + stride):
            if is_tracked(cell_at(grid, beside), 2 * task + 1):
                return SUCCESS
    return CONTINUE
