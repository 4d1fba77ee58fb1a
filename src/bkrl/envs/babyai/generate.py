"""Layouts and missions, drawn as minigrid draws them: the steps of a recipe, again and again until a layout passes.

Source: `RoomGridLevel._gen_grid` and `reset`.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bkrl.core.jit import helper, write
from bkrl.envs.babyai import constants as c
from bkrl.envs.babyai import recipes
from bkrl.envs.babyai.pcg64 import fraction, integer_below
from bkrl.envs.babyai.rooms import (
    DOORWAY,
    NOWHERE,
    add_distractor,
    add_door,
    add_object,
    add_thing,
    all_reachable,
    begin_rooms,
    connect_all,
    corner_of,
    draw_color,
    draw_kind,
    draw_room,
    draw_some,
    place_agent,
    remove_wall,
    room_at,
)
from bkrl.envs.babyai.sentences import clear_mission, draw_sentence, is_valid, mark, second_first
from bkrl.envs.babyai.state import (
    CONTENT_COLOR_SHIFT,
    CONTENT_KIND_SHIFT,
    EMPTY_CELL,
    MAX_TASKS,
    NOTHING_CARRIED,
    OBJECT_MASK,
    STATE_MASK,
    STATE_SHIFT,
    ahead,
    cell_at,
    color_of,
    kind_of,
    make_cell,
    put,
)

_LISTS: Final = {"among": 6, "actions": 4, "forms": 3}
STEP = np.dtype(
    [
        *((name, np.int64) for name in recipes.Step._fields if name != "among"),
        ("among", np.int64, (_LISTS["among"],)),
        ("num_among", np.int64),
    ]
)
LEVEL = np.dtype(
    [
        *((name, np.int64) for name in ("size", "columns", "rows", "max_steps")),
        *((name, np.bool_) for name in ("open_doors", "carrying", "unblocking", "locations", "unlocking")),
        ("locked_chance", np.float64),
        ("actions", np.int64, (_LISTS["actions"],)),
        ("num_actions", np.int64),
        ("forms", np.int64, (_LISTS["forms"],)),
        ("num_forms", np.int64),
    ]
)


def records_of(recipe: recipes.Recipe) -> tuple[NDArray[Any], NDArray[Any]]:
    """A recipe for the kernels: an array of one LEVEL record and one of STEP records."""
    steps = np.zeros(len(recipe.steps), STEP)
    for record, step in zip(steps, recipe.steps, strict=True):
        _fill(record, step._asdict())
    level = np.zeros(1, LEVEL)
    _fill(level[0], vars(recipe) | {"max_steps": recipe.max_steps or 0})
    return level, steps


def _fill(record: Any, values: dict[str, Any]) -> None:
    for name in values.keys() & set(record.dtype.names):
        if name in _LISTS:
            record[name][: len(values[name])] = values[name]
            record[f"num_{name}"] = len(values[name])
        else:
            record[name] = values[name]


@helper
def generate(
    grid: Any, env: Any, plan: Any, mission: Any, level: Any, steps: Any, template: Any, doors: Any, stride: int
) -> None:
    """Draw a layout and its mission, again and again until both pass.

    doors: None for a recipe without a step `WITH_DOORS`: numba then does not compile what these steps do.
    """
    while not draw_layout(grid, env, plan, mission, level, steps, template, doors, stride):
        pass
    if level.open_doors:
        for i in range(plan.num_things):
            at = plan.things[i]
            if kind_of(cell_at(grid, at)) == c.DOOR:
                grid[at] = (cell_at(grid, at) & ~(STATE_MASK << STATE_SHIFT)) | c.OPEN << STATE_SHIFT
    env.max_steps = level.max_steps
    if level.max_steps == 0:
        for task in range(MAX_TASKS):
            places = 0 if env.task[task] == c.NO_TASK else 2 if env.task[task] == c.PUT_NEXT else 1
            env.max_steps += places * level.size * level.size * level.columns * level.rows


@helper
def draw_layout(
    grid: Any, env: Any, plan: Any, mission: Any, level: Any, steps: Any, template: Any, doors: Any, stride: int
) -> bool:
    """`RoomGrid._gen_grid`, the level's `gen_mission` and `validate_instrs`; False where the layout is rejected."""
    write(grid, template)
    begin_rooms(env, plan, level.columns, level.rows, level.size, stride)
    clear_mission(env, mission)
    for s in range(len(steps)):
        if not follow(grid, env, plan, mission, level, steps[s], doors, stride):
            return False
    mark(grid, env, plan, mission, stride)
    return is_valid(grid, env, plan, mission, level.unblocking, stride)


@helper
def follow(grid: Any, env: Any, plan: Any, mission: Any, level: Any, step: Any, doors: Any, stride: int) -> bool:
    """One step."""
    op = step.op
    if op == recipes.AGENT:
        return add_agent(grid, env, plan, step, stride)
    if op == recipes.OBJECT:
        return add_step_object(grid, env, plan, step, stride)
    if op == recipes.DISTRACTORS:
        return add_distractors(grid, env, plan, step, stride)
    if op == recipes.DRAW_KIND:
        plan.kind = step.among[integer_below(env, step.num_among)]
    elif op == recipes.DRAW_ROOM:
        plan.room = step.among[integer_below(env, step.num_among)]
    elif op == recipes.COLORS:
        draw_some(env, step.among, step.num_among, step.number, plan.colors)
    elif op == recipes.PAINT_GREY:
        for i in range(plan.num_things - step.number, plan.num_things):
            grid[plan.things[i]] = make_cell(kind_of(cell_at(grid, plan.things[i])), c.GREY, 0)
    elif op == recipes.REACHABLE:
        return all_reachable(grid, env.agent, stride)
    elif op == recipes.UNREACHABLE:
        return not all_reachable(grid, env.agent, stride)
    elif op == recipes.NO_RED_OR_BLUE_BALL:
        for i in range(plan.num_things - step.number, plan.num_things):
            cell = cell_at(grid, plan.things[i])
            if kind_of(cell) == c.BALL and color_of(cell) in (c.RED, c.BLUE):
                return False
    elif op == recipes.CHOOSE:
        start = plan.num_things - step.skip - step.number
        draw_some(env, plan.things[start:], step.number, step.choose, plan.chosen[plan.num_chosen :])
        plan.num_chosen += step.choose
    elif op == recipes.FIRST:
        plan.chosen[plan.num_chosen] = plan.things[0]
        plan.num_chosen += 1
    elif op == recipes.SWAP:
        if integer_below(env, 2) == 0:
            plan.chosen[0], plan.chosen[1] = plan.chosen[1], plan.chosen[0]
    elif op == recipes.TASK:
        set_task(grid, env, plan, mission, step)
    elif doors is not None:
        return follow_with_doors(grid, env, plan, mission, level, step, stride)
    return True


@helper
def follow_with_doors(grid: Any, env: Any, plan: Any, mission: Any, level: Any, step: Any, stride: int) -> bool:
    """One of `recipes.WITH_DOORS`."""
    op = step.op
    if op == recipes.DOOR:
        plan.room = room_of(env, plan, step)
        add_door(grid, env, plan, plan.room, step.side, color_said(plan, step.color), step.locked)
        if plan.locked[plan.room]:
            plan.locked_room = plan.room
    elif op == recipes.CONNECT:
        without = plan.door_color if step.flag and integer_below(env, 2) == 0 else c.ANY
        return connect_all(grid, env, plan, without, stride)
    elif op == recipes.OPENING:
        remove_wall(grid, plan, room_of(env, plan, step), step.side, stride)
    elif op == recipes.LOCKED_ROOM:
        if fraction(env) < level.locked_chance:
            return add_locked_room(grid, env, plan, stride)
    elif op == recipes.BLOCK:
        color = draw_color(env) if step.color == c.ANY else step.color
        at = plan.place[plan.room, step.side] - ahead(step.side, stride)
        add_thing(grid, plan, at, make_cell(c.BALL, color, 0))
    elif op == recipes.SENTENCE:
        return draw_sentence(grid, env, plan, mission, level, stride)
    elif op == recipes.CHOOSE_DOOR:
        plan.chosen[0] = draw_side_with_door(env, plan)
    else:
        order = integer_below(env, 3)
        if order == 0:
            env.in_sequence, env.task[2] = 0, c.NO_TASK
            env.strict &= 1
        elif order == 2:
            second_first(env, mission)
    return True


@helper
def room_of(env: Any, plan: Any, step: Any) -> int:
    """The room that a step names."""
    if step.column == recipes.SAME:
        return plan.room
    return draw_room(env, plan, step.column, step.row)


@helper
def color_said(plan: Any, color: int) -> int:
    """The colour that a step names; ANY stays."""
    if color == recipes.SAME:
        return plan.door_color
    return color if color >= c.ANY else plan.colors[recipes.DRAWN - color]


@helper
def add_agent(grid: Any, env: Any, plan: Any, step: Any, stride: int) -> bool:
    """`RoomGrid.place_agent`."""
    while True:
        room = room_of(env, plan, step)
        if not place_agent(grid, env, corner_of(plan, room, stride), plan.size, stride):
            return False
        if not step.flag or room_at(plan, env.agent, stride) != plan.locked_room:
            return True


@helper
def add_step_object(grid: Any, env: Any, plan: Any, step: Any, stride: int) -> bool:
    """`RoomGrid.add_object`, or a box with the object in it."""
    room = room_of(env, plan, step)
    if step.flag:
        content = step.kind << CONTENT_KIND_SHIFT | color_said(plan, step.color) << CONTENT_COLOR_SHIFT
        box = make_cell(c.BOX, step.among[integer_below(env, step.num_among)], 0)
        return add_object(grid, env, plan, room, box | content, stride)
    kind = draw_kind(env) if step.kind == c.ANY else plan.kind if step.kind == recipes.SAME else step.kind
    color = draw_color(env) if step.color == c.ANY else color_said(plan, step.color)
    return add_object(grid, env, plan, room, make_cell(kind, color, 0), stride)


@helper
def add_distractors(grid: Any, env: Any, plan: Any, step: Any, stride: int) -> bool:
    """`RoomGrid.add_distractors`, in one room, in all, or in each, column by column."""
    column, row = step.column, step.row
    if column == recipes.SAME:
        column, row = plan.room % plan.columns, plan.room // plan.columns
    rooms = plan.columns * plan.rows if step.everywhere else 1
    for i in range(rooms):
        if step.everywhere:
            column, row = i // plan.rows, i % plan.rows
        for _ in range(step.number):
            if not add_distractor(grid, env, plan, column, row, step.flag, stride):
                return False
    return True


@helper
def add_locked_room(grid: Any, env: Any, plan: Any, stride: int) -> bool:
    """`LevelGen.add_locked_room`."""
    while True:
        plan.locked_room = draw_room(env, plan, c.ANY, c.ANY)
        side = integer_below(env, 4)
        if plan.place[plan.locked_room, side] != NOWHERE:
            break
    add_door(grid, env, plan, plan.locked_room, side, c.ANY, 1)
    while True:
        room = draw_room(env, plan, c.ANY, c.ANY)
        if room != plan.locked_room:
            return add_object(grid, env, plan, room, make_cell(c.KEY, plan.door_color, 0), stride)


@helper
def draw_side_with_door(env: Any, plan: Any) -> int:
    """A door as seen from some room: each is there twice."""
    doors = 0
    for room in range(plan.columns * plan.rows):
        for side in range(4):
            doors += plan.side[room, side] == DOORWAY
    drawn = integer_below(env, doors)
    for i in range(plan.columns * plan.rows):
        room = i % plan.rows * plan.columns + i // plan.rows  # column by column
        for side in range(4):
            if plan.side[room, side] == DOORWAY:
                if drawn == 0:
                    return plan.place[room, side]
                drawn -= 1
    return NOWHERE


@helper
def set_task(grid: Any, env: Any, plan: Any, mission: Any, step: Any) -> None:
    """The next task, and how it names the things chosen."""
    task, action = 2 * step.clause, step.action
    cell = cell_at(grid, plan.chosen[step.first])
    if action == recipes.EITHER:
        is_door = kind_of(cell) == c.DOOR
        action = c.GO_TO if integer_below(env, 2) == 0 else c.OPEN_DOOR if is_door else c.PICK_UP
    env.task[task] = action
    env.in_sequence |= step.clause
    env.strict |= (step.flag != 0) << task
    says = step.says
    if says == recipes.KIND_COLOR_OR_BOTH:
        says = integer_below(env, 3)
    elif says == recipes.COLOR_OR_PLACE:
        says = recipes.KIND_AND_COLOR + integer_below(env, 2)
    if says != recipes.COLOR_ONLY:
        mission.kind[2 * task] = kind_of(cell)
    if says in (recipes.COLOR_ONLY, recipes.KIND_AND_COLOR):
        mission.color[2 * task] = color_of(cell)
    elif says == recipes.PLACE_ONLY:
        mission.place[2 * task] = integer_below(env, 4)
    if action == c.PUT_NEXT:
        cell = cell_at(grid, plan.chosen[step.second])
        mission.kind[2 * task + 1], mission.color[2 * task + 1] = kind_of(cell), color_of(cell)


@helper
def begin_episode(env: Any) -> None:
    """What every episode starts with; `fill_hands` comes after the first view."""
    env.steps = 0
    env.episode_return = 0.0
    env.carrying = NOTHING_CARRIED
    env.stale = 0
    env.done = 0
    env.watched = 0
    env.first_clause_done = 0


@helper
def fill_hands(grid: Any, env: Any, plan: Any) -> None:
    """`PutNext.reset`: the agent begins with the object in its hands, where it was is remembered."""
    env.carrying = cell_at(grid, plan.chosen[0]) & OBJECT_MASK
    put(grid, plan.chosen[0], EMPTY_CELL)
    env.stale = 1
