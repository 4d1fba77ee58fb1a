"""The mission of a layout: which objects it names and how; drawn as minigrid draws it, checked, and put into words.

Sources: `LevelGen.rand_instr` and `rand_obj`, `RoomGridLevel.validate_instrs`, `ObjDesc` and the `surface` methods of
`minigrid.envs.babyai.core.verifier`.
"""

from typing import Any, Final

import numpy as np

from bkrl.core.jit import helper
from bkrl.envs.babyai import constants as c
from bkrl.envs.babyai.pcg64 import integer_below
from bkrl.envs.babyai.recipes import ACTION, AND, SEQUENCE
from bkrl.envs.babyai.rooms import NOWHERE, inside, room_at
from bkrl.envs.babyai.state import MAX_TASKS, MEMBER_SHIFT, TRACKED_SHIFT, ahead, cell_at, color_of, kind_of, state_of

LEFT_OF, RIGHT_OF, IN_FRONT, BEHIND = range(4)
_PLACES: Final = (" on your left", " on your right", " in front of you", " behind you")
_VERBS: Final = {c.GO_TO: "go to", c.PICK_UP: "pick up", c.OPEN_DOOR: "open", c.PUT_NEXT: "put"}

MISSION = np.dtype(
    [
        # Of description 2 t of task t and, for the object beside which another is put, of 2 t + 1; ANY: not said
        ("kind", np.int8, (2 * MAX_TASKS,)),
        ("color", np.int8, (2 * MAX_TASKS,)),
        ("place", np.int8, (2 * MAX_TASKS,)),
        ("plural", np.uint8),  # bit d: description d fits several objects
        ("second_first", np.uint8),  # "second after you first"
    ]
)
"""What a mission says, beside the tasks in an env's record."""

_MAX_TRIES: Final = 100
_COLORS: Final = np.array((c.ANY, *c.COLORS_AS_DRAWN))
_DESCRIBED: Final = np.array((c.BOX, c.BALL, c.KEY, c.DOOR))
_ALL_KINDS: Final = 4
_NOT_DOORS: Final = 3
_DOORS: Final = 1


@helper
def clear_mission(env: Any, mission: Any) -> None:
    """No tasks yet."""
    env.task[:] = c.NO_TASK
    env.in_sequence = env.strict = 0
    mission.kind[:] = mission.color[:] = mission.place[:] = c.ANY
    mission.plural = mission.second_first = 0


@helper
def draw_sentence(grid: Any, env: Any, plan: Any, mission: Any, level: Any, stride: int) -> bool:
    """`LevelGen.rand_instr`; False where no object was found."""
    form = level.forms[integer_below(env, level.num_forms)]
    if form != SEQUENCE:
        return draw_clause(grid, env, plan, mission, level, 0, form, stride)
    for clause in range(2):
        form = AND if integer_below(env, 2) else ACTION
        if not draw_clause(grid, env, plan, mission, level, clause, form, stride):
            return False
    env.in_sequence = 1
    if integer_below(env, 2):
        second_first(env, mission)
    return True


@helper
def second_first(env: Any, mission: Any) -> None:
    """What was drawn as "A, B" becomes "A after you B": B is to be done first."""
    mission.second_first = 1
    for t in range(2):
        env.task[t], env.task[t + 2] = env.task[t + 2], env.task[t]
    for d in range(4):
        mission.kind[d], mission.kind[d + 4] = mission.kind[d + 4], mission.kind[d]
        mission.color[d], mission.color[d + 4] = mission.color[d + 4], mission.color[d]
        mission.place[d], mission.place[d + 4] = mission.place[d + 4], mission.place[d]


@helper
def draw_clause(grid: Any, env: Any, plan: Any, mission: Any, level: Any, clause: int, form: int, stride: int) -> bool:
    """One task, or two joined by "and"."""
    for task in range(2 * clause, 2 * clause + (2 if form == AND else 1)):
        action = level.actions[integer_below(env, level.num_actions)]
        env.task[task] = action
        kinds = _ALL_KINDS if action == c.GO_TO else _DOORS if action == c.OPEN_DOOR else _NOT_DOORS
        if not draw_description(grid, env, plan, mission, level, 2 * task, kinds, stride):
            return False
        if action == c.PUT_NEXT and not draw_description(
            grid, env, plan, mission, level, 2 * task + 1, _ALL_KINDS, stride
        ):
            return False
    return True


@helper
def draw_description(grid: Any, env: Any, plan: Any, mission: Any, level: Any, d: int, kinds: int, stride: int) -> bool:
    """`LevelGen.rand_obj`: words that fit some object."""
    for _ in range(_MAX_TRIES + 1):
        mission.color[d] = _COLORS[integer_below(env, len(_COLORS))]
        mission.kind[d] = c.DOOR if kinds == _DOORS else _DESCRIBED[integer_below(env, kinds)]
        mission.place[d] = c.ANY
        if level.locations and integer_below(env, 2) == 0:
            mission.place[d] = integer_below(env, len(_PLACES))
        for i in range(plan.num_things):
            at = plan.things[i]
            meant = level.unlocking or plan.locked_room == NOWHERE or not inside(plan, plan.locked_room, at, stride)
            if meant and fits(grid, env, plan, mission, d, at, stride):
                return True
    return False


@helper
def fits(grid: Any, env: Any, plan: Any, mission: Any, d: int, at: int, stride: int) -> bool:
    """Whether a description means what is in a cell (`ObjDesc.find_matching_objs`). A place is one in the agent's room,
    seen from where the agent begins."""
    cell, place = cell_at(grid, at), mission.place[d]
    if (mission.kind[d] != c.ANY and kind_of(cell) != mission.kind[d]) or (
        mission.color[d] != c.ANY and color_of(cell) != mission.color[d]
    ):
        return False
    if place == c.ANY:
        return True
    if not inside(plan, room_at(plan, env.agent, stride), at, stride):
        return False
    right, down = at % stride - env.agent % stride, at // stride - env.agent // stride
    heading = env.heading
    if place in (LEFT_OF, RIGHT_OF):
        heading = (heading + (3 if place == LEFT_OF else 1)) % 4
    elif place == BEHIND:
        heading = (heading + 2) % 4
    towards = right if heading % 2 == 0 else down
    return towards > 0 if heading < 2 else towards < 0


@helper
def mark(grid: Any, env: Any, plan: Any, mission: Any, stride: int) -> None:
    """`Instr.reset_verifier`: which objects the mission means, and where they are."""
    env.target_is_plural = 0
    for task in range(MAX_TASKS):
        if env.task[task] != c.NO_TASK:
            for d in range(2 * task, 2 * task + (2 if env.task[task] == c.PUT_NEXT else 1)):
                bits = 1 << (MEMBER_SHIFT + d) | 1 << (TRACKED_SHIFT + d)
                # Walls are grey, and "a grey object" may be one: there are always several.
                found = 2 if mission.kind[d] == c.ANY and mission.color[d] == c.GREY else 0
                for i in range(plan.num_things):
                    if fits(grid, env, plan, mission, d, plan.things[i], stride):
                        grid[plan.things[i]] = cell_at(grid, plan.things[i]) | bits
                        found += 1
                if found > 1:
                    mission.plural |= 1 << d
            env.target_kind[task], env.target_color[task] = mission.kind[2 * task], mission.color[2 * task]
            env.target_is_plural |= (mission.plural >> (2 * task) & 1) << task


@helper
def is_valid(grid: Any, env: Any, plan: Any, mission: Any, unblocking: bool, stride: int) -> bool:
    """`RoomGridLevel.validate_instrs`, after `mark`."""
    for task in range(MAX_TASKS):
        if env.task[task] == c.PUT_NEXT and not is_apart(grid, plan, task, stride):
            return False
    if unblocking:
        for i in range(plan.num_things):
            door = cell_at(grid, plan.things[i])
            if kind_of(door) == c.DOOR and state_of(door) == c.LOCKED:
                for d in range(2 * MAX_TASKS):
                    if mission.kind[d] == c.KEY and mission.color[d] == color_of(door):
                        return False
    return True


@helper
def is_apart(grid: Any, plan: Any, task: int, stride: int) -> bool:
    """Whether no object is both to be put and to be put beside, and none is already beside another."""
    moved, fixed = MEMBER_SHIFT + 2 * task, MEMBER_SHIFT + 2 * task + 1
    for i in range(plan.num_things):
        at = plan.things[i]
        if (cell_at(grid, at) >> moved) & 1:
            if (cell_at(grid, at) >> fixed) & 1:
                return False
            for heading in range(4):
                if (cell_at(grid, at + ahead(heading, stride)) >> fixed) & 1:
                    return False
    return True


def in_words(tasks: list[int], in_sequence: int, mission: Any) -> str:
    """A mission in minigrid's words: "the" where one object is meant, "a" where several are.

    `tasks` and `in_sequence` are those of an env's record, `mission` is a MISSION record as a tuple.
    """
    kinds, colors, places, plural, after = mission

    def noun(d: int) -> str:
        kind = c.TYPE_NAMES[kinds[d]] if kinds[d] != c.ANY else "object"
        color = f"{c.COLOR_NAMES[colors[d]]} " if colors[d] != c.ANY else ""
        place = _PLACES[places[d]] if places[d] != c.ANY else ""
        return f"{'a' if plural >> d & 1 else 'the'} {color}{kind}{place}"

    def words(task: int) -> str:
        beside = f" next to {noun(2 * task + 1)}" if tasks[task] == c.PUT_NEXT else ""
        return f"{_VERBS[tasks[task]]} {noun(2 * task)}{beside}"

    clauses = [
        " and ".join(words(task) for task in (first, first + 1) if tasks[task] != c.NO_TASK)
        for first in ((0, 2) if in_sequence else (0,))
    ]
    return f"{clauses[1]} after you {clauses[0]}" if after else ", then ".join(clauses)
