"""The levels of BabyAI, as data: the steps by which minigrid draws a layout and its mission.

Sources: `minigrid.envs.babyai` for the steps and their order, `minigrid.register_minigrid_envs` for ids and sizes. A
test compares the table with the installed package. `generate` follows the steps.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from bkrl.envs.babyai import constants as c

# What a step does.
(
    AGENT,  # stands in a room; outside_locked: not in the locked one
    OBJECT,  # one object in a room; boxed: in a box, whose colour is one of `among`
    DOOR,
    DISTRACTORS,  # a number of objects; unique: unlike all others; everywhere: so many in each room
    CONNECT,  # doors until all rooms are connected; spare_color: half of the time without the last door's colour
    OPENING,  # no wall between two rooms
    LOCKED_ROOM,  # with a chance: a locked door, and its key in another room
    BLOCK,  # a ball before the last door, in place of whatever is there
    COLORS,  # so many different ones of `among`
    DRAW_KIND,  # one of `among`
    DRAW_ROOM,  # one of `among`, by number
    PAINT_GREY,  # the things added last
    REACHABLE,  # reject the layout unless all things can be reached
    UNREACHABLE,  # reject it if all can
    NO_RED_OR_BLUE_BALL,  # among the things added last
    CHOOSE,  # `choose` different ones of the things added last
    CHOOSE_DOOR,  # a door of some room
    FIRST,  # choose the thing that was added first
    SWAP,  # half of the time the two things chosen change places
    TASK,  # the next task of the mission, about the things chosen
    ORDER,  # two tasks: the first, first then second, or second before first
    SENTENCE,  # a mission of `LevelGen`
) = range(22)
WITH_DOORS: Final = frozenset({DOOR, CONNECT, OPENING, LOCKED_ROOM, BLOCK, CHOOSE_DOOR, ORDER, SENTENCE})
"""The steps of levels with doors, and of missions that are more than one task."""

SAME: Final = -2
"""A room: that of the last DOOR or DRAW_ROOM; a colour: that of this door; a kind: the one drawn by DRAW_KIND."""
DRAWN: Final = -3
"""DRAWN - i: the i-th of the colours drawn by COLORS."""

# How a task names its object; the last two draw one of the first three, or one of the two before them.
KIND_ONLY, COLOR_ONLY, KIND_AND_COLOR, PLACE_ONLY, KIND_COLOR_OR_BOTH, COLOR_OR_PLACE = range(6)

EITHER: Final = -1
"""Of a task's action: half of the time "go to", otherwise "open" for a door and "pick up" for an object."""

# Forms of a clause.
ACTION, AND, SEQUENCE = range(3)


class Step(NamedTuple):
    """One step; fields that mean nothing to it are ignored."""

    op: int
    column: int = c.ANY
    row: int = c.ANY
    side: int = c.ANY
    kind: int = c.ANY
    color: int = c.ANY
    locked: int = c.ANY
    number: int = 0
    skip: int = 0  # things added last that are not counted
    choose: int = 1
    flag: int = 0  # outside_locked, boxed, unique, spare_color, or strict
    everywhere: int = 0
    action: int = 0
    clause: int = 0
    first: int = 0  # which of the things chosen
    second: int = 0  # of PUT_NEXT: the one beside which it is put
    says: int = KIND_AND_COLOR
    among: tuple[int, ...] = ()


@dataclass(frozen=True)
class Recipe:
    """One level.

    Attributes:
        family: the class in minigrid.
        steps: how a layout is drawn.
        size: of a room, walls included.
        max_steps: None: size² for each room and each place that the mission sends the agent to.
        open_doors: all doors are open in the end.
        carrying: the agent begins with the object of the mission in its hands.
        unblocking: the mission names no key that a locked door needs (`LevelGen.unblocking`).

        The others are those of `LevelGen`, for SENTENCE:
        actions, forms: what a mission is made of.
        locations: objects may be named by their place.
        unlocking: objects in the locked room may be meant.
        locked_chance: of a locked room.
    """

    family: str
    steps: tuple[Step, ...]
    size: int = 8
    columns: int = 3
    rows: int = 3
    max_steps: int | None = None
    open_doors: bool = False
    carrying: bool = False
    unblocking: bool = False
    actions: tuple[int, ...] = (c.GO_TO, c.PICK_UP, c.OPEN_DOOR, c.PUT_NEXT)
    forms: tuple[int, ...] = (ACTION, AND, SEQUENCE)
    locations: bool = True
    unlocking: bool = True
    locked_chance: float = 0.5

    @property
    def longest(self) -> int:
        """The step limit of the longest mission."""
        if self.max_steps is not None:
            return self.max_steps
        tasks = [step.action for step in self.steps if step.op == TASK]
        places = sum(2 if action == c.PUT_NEXT else 1 for action in tasks)
        if not tasks:
            clauses = {ACTION: 1, AND: 2, SEQUENCE: 4}
            places = max(clauses[form] for form in self.forms) * (2 if c.PUT_NEXT in self.actions else 1)
        return places * self.size**2 * self.columns * self.rows


def _agent(column: int = c.ANY, row: int = c.ANY, outside_locked: bool = False) -> Step:
    return Step(AGENT, column, row, flag=outside_locked)


def _object(column: int, row: int, kind: int = c.ANY, color: int = c.ANY) -> Step:
    return Step(OBJECT, column, row, kind=kind, color=color)


def _door(column: int, row: int, side: int = c.ANY, color: int = c.ANY, locked: int = c.ANY) -> Step:
    return Step(DOOR, column, row, side, color=color, locked=locked)


def _distractors(count: int, column: int = c.ANY, row: int = c.ANY, unique: bool = False) -> Step:
    return Step(DISTRACTORS, column, row, number=count, flag=unique)


def _choose(count: int, choose: int = 1, skip: int = 0) -> Step:
    return Step(CHOOSE, number=count, choose=choose, skip=skip)


def _task(action: int, says: int = KIND_AND_COLOR, **more: Any) -> Step:
    return Step(TASK, action=action, says=says, **more)


_ANYWHERE: Final = _agent()
_IN_THE_MIDDLE: Final = _agent(1, 1)
_THE_FIRST: Final = Step(FIRST)
_REACHABLE: Final = Step(REACHABLE)
_RED_BALL: Final = _object(0, 0, c.BALL, c.RED)
_FOUR_DOORS: Final = (_door(1, 1),) * 4
_ONE_BALL: Final = _object(0, 0, c.BALL), _ANYWHERE, _THE_FIRST, _task(c.PICK_UP, KIND_ONLY)


def _room(family: str, size: int, *steps: Step) -> Recipe:
    return Recipe(family, steps, size, 1, 1)


def _red_ball(family: str, *after: Step, count: int = 7) -> Recipe:
    return _room(family, 8, _ANYWHERE, _RED_BALL, _distractors(count), *after, _REACHABLE, _THE_FIRST, _task(c.GO_TO))


def _go_to_local(size: int = 8, count: int = 8) -> Recipe:
    return _room("GoToLocal", size, _ANYWHERE, _distractors(count), _REACHABLE, _choose(count), _task(c.GO_TO))


def _maze(family: str, count: int, action: int, size: int = 8, side: int = 3, open_doors: bool = False) -> Recipe:
    steps = _ANYWHERE, Step(CONNECT), _distractors(count), _REACHABLE, _choose(count), _task(action)
    return Recipe(family, steps, size, side, side, open_doors=open_doors)


def _locked_room(family: str, each: int, *after: Step, spare_color: bool = False) -> Recipe:
    """minigrid means to keep the key and the distractors out of the locked room, but compares NumPy's integers with
    `is`, which holds for none."""
    return Recipe(
        family,
        (
            _door(c.ANY, c.ANY, locked=1),
            _object(c.ANY, c.ANY, c.KEY, SAME),
            Step(CONNECT, flag=spare_color),
            Step(DISTRACTORS, number=each, everywhere=1),
            _agent(outside_locked=True),
            _REACHABLE,
            *after,
        ),
    )


def _open_door(says: int = COLOR_OR_PLACE, strict: bool = False) -> Recipe:
    doors = (_door(1, 1, side, DRAWN - side, 0) for side in range(4))
    steps = Step(COLORS, number=4, among=c.COLORS_AS_DRAWN), *doors, _THE_FIRST, _task(c.OPEN_DOOR, says, flag=strict)
    return Recipe("OpenDoor", (*steps, _IN_THE_MIDDLE))


def _two_doors(first: int = DRAWN, second: int = DRAWN - 1, strict: bool = False) -> Recipe:
    steps = (
        Step(COLORS, number=2, among=c.COLORS_AS_DRAWN),
        _door(1, 1, 2, first, 0),
        _door(1, 1, 0, second, 0),
        _IN_THE_MIDDLE,
        _THE_FIRST,
        _choose(1),
        _task(c.OPEN_DOOR, flag=strict),
        _task(c.OPEN_DOOR, clause=1, first=1),
    )
    return Recipe("OpenTwoDoors", steps, 6, max_steps=20 * 36)


def _doors_in_order(count: int, strict: bool = False) -> Recipe:
    steps = (
        Step(COLORS, number=count, among=c.COLORS_AS_DRAWN),
        *(_door(1, 1, color=DRAWN - i, locked=0) for i in range(count)),
        _IN_THE_MIDDLE,
        _choose(count, 2),
        _task(c.OPEN_DOOR, flag=strict),
        _task(c.OPEN_DOOR, clause=1, first=1, flag=strict),
        Step(ORDER),
    )
    return Recipe("OpenDoorsOrder", steps, 6, max_steps=20 * 36)


def _pick_up_among(strict: bool = False) -> Recipe:
    return _room(
        "PickupDist", 7, _distractors(5, unique=True), _agent(0, 0), _choose(5),
        _task(c.PICK_UP, KIND_COLOR_OR_BOTH, flag=strict),
    )  # fmt: skip


def _put_next_local(size: int = 8, count: int = 8) -> Recipe:
    return _room(
        "PutNextLocal", size, _ANYWHERE, _distractors(count, unique=True), _REACHABLE, _choose(count, 2),
        _task(c.PUT_NEXT, second=1),
    )  # fmt: skip


def _two_halves(count: int) -> tuple[Step, ...]:
    halves = (_distractors(count, column, 0, unique=True) for column in range(2))
    return _agent(0, 0), *halves, Step(OPENING, 0, 0, 0)


def _put_next(size: int, count: int, carrying: bool = False) -> Recipe:
    steps = *_two_halves(count), _choose(count, skip=count), _choose(count), Step(SWAP), _task(c.PUT_NEXT, second=1)
    return Recipe("PutNext", steps, size, 2, 1, 8 * size**2, carrying=carrying)


def _two_across(size: int, count: int) -> Recipe:
    tasks = _task(c.PUT_NEXT, first=0, second=2), _task(c.PUT_NEXT, clause=1, first=3, second=1)
    steps = *_two_halves(count), _choose(count, 2, skip=count), _choose(count, 2), *tasks
    return Recipe("MoveTwoAcross", steps, size, 2, 1, 16 * size**2)


def _unlock_local(*distractors: Step) -> Recipe:
    steps = _door(1, 1, locked=1), _object(1, 1, c.KEY, SAME), *distractors, _IN_THE_MIDDLE, _THE_FIRST
    return Recipe("UnlockLocal", (*steps, _task(c.OPEN_DOOR, KIND_ONLY)))


def _unlock_pickup(*distractors: Step, max_steps: int | None = None) -> Recipe:
    door = _door(0, 0, 0, locked=1), _object(0, 0, c.KEY, SAME)
    steps = _object(1, 0, c.BOX), *door, *distractors, _agent(0, 0), _THE_FIRST, _task(c.PICK_UP)
    return Recipe("UnlockPickup", steps, 6, 2, 1, max_steps)


def _blocked_unlock_pickup(says: int) -> Recipe:
    door = _door(0, 0, 0, locked=1), Step(BLOCK, side=0), _object(0, 0, c.KEY, SAME)
    steps = _object(1, 0, c.BOX), *door, _agent(0, 0), _THE_FIRST, _task(c.PICK_UP, says)
    return Recipe("BlockedUnlockPickup", steps, 6, 2, 1, 16 * 36)


_UNLOCK_TO_UNLOCK: Final = Recipe(
    "UnlockToUnlock",
    (
        Step(COLORS, number=2, among=c.COLORS_AS_DRAWN),
        _door(0, 0, 0, DRAWN, 1),
        _object(2, 0, c.KEY, DRAWN),
        _door(1, 0, 0, DRAWN - 1, 1),
        _object(1, 0, c.KEY, DRAWN - 1),
        _object(0, 0, c.BALL),
        _agent(1, 0),
        _choose(1),
        _task(c.PICK_UP, KIND_ONLY),
    ),
    6, 3, 1, 30 * 36,
)  # fmt: skip
_KEY_IN_BOX: Final = Recipe(
    "KeyInBox",
    (
        _door(1, 1, locked=1),
        Step(OBJECT, 1, 1, kind=c.KEY, color=SAME, flag=1, among=c.COLORS_AS_DRAWN),
        _IN_THE_MIDDLE,
        _THE_FIRST,
        _task(c.OPEN_DOOR, KIND_ONLY),
    ),
)
_ACTION_OBJ_DOOR: Final = Recipe(
    "ActionObjDoor",
    (_distractors(5, 1, 1, unique=True), *(_door(1, 1, locked=0),) * 4, _IN_THE_MIDDLE, _choose(9), _task(EITHER)),
    7,
)
_PICKUP_ABOVE: Final = Recipe(
    "PickupAbove",
    (_object(1, 0), _door(1, 1, 3, locked=0), _IN_THE_MIDDLE, Step(CONNECT), _THE_FIRST, _task(c.PICK_UP)),
    6,
    max_steps=8 * 36,
)


def _find_object(size: int) -> Recipe:
    steps = _object(c.ANY, c.ANY), _IN_THE_MIDDLE, Step(CONNECT), _THE_FIRST, _task(c.PICK_UP, KIND_ONLY)
    return Recipe("FindObjS5", steps, size, max_steps=20 * size**2)


def _key_corridor(size: int = 6, rows: int = 3, says: int = KIND_ONLY) -> Recipe:
    steps = (
        *(Step(OPENING, 1, row, 3) for row in range(1, rows)),
        _door(2, c.ANY, 2, locked=1),
        _object(SAME, SAME, c.BALL),
        _choose(1),
        _object(0, c.ANY, c.KEY, SAME),
        _agent(1, rows // 2),
        Step(CONNECT),
        _task(c.PICK_UP, says),
    )
    return Recipe("KeyCorridor", steps, size, 3, rows, 30 * size**2)


def _obstructed_maze(visited: int, quarters: int, column: int, boxed: bool, blocked: bool, keys_last: bool) -> Recipe:
    """`ObstructedMaze_Full`; without quarters `ObstructedMaze_1Dlhb`.

    A quarter is a side room, its door to the middle, and its two locked doors to the corners. The agent starts in this
    column of the middle row. Keys may lie in boxes; they are placed last where no ball may take their place.
    """

    def lock(room: tuple[int, int], side: int, color: int) -> list[Step]:
        block = [Step(BLOCK, side=side, color=c.GREEN)] if blocked else []
        return [_door(*room, side, color, locked=1), *block]

    def key(color: int) -> Step:
        return Step(OBJECT, SAME, SAME, kind=c.KEY, color=color, flag=boxed, among=(c.GREY,))

    steps = [Step(COLORS, number=6, among=c.COLORS_AS_DRAWN)]
    if quarters == 0:
        steps += *lock((0, 0), 0, DRAWN), key(DRAWN), _object(1, 0, c.BALL, c.BLUE)
    for i, room in enumerate(_SIDE_ROOMS[:quarters]):
        steps.append(_door(1, 1, i, DRAWN - i, locked=0))
        keys: list[Step] = []
        for side in (i - 1, i + 1):
            steps += lock(room, side % 4, DRAWN - side % 6)
            (keys if keys_last else steps).append(key(DRAWN - side % 6))
        steps += keys
    if quarters > 0:
        steps += Step(DRAW_ROOM, among=_CORNERS[:quarters]), _object(SAME, SAME, c.BALL, c.BLUE)
    steps += _choose(1), _agent(column, 1 if quarters else 0), _task(c.PICK_UP)
    columns, rows = (3, 3) if quarters else (2, 1)
    return Recipe("ObstructedMaze", tuple(steps), 6, columns, rows, 4 * visited * 36)


def _generated(
    family: str, size: int = 8, columns: int = 3, rows: int = 3, count: int = 18, unblocking: bool = True, **more: Any
) -> Recipe:
    """`LevelGen.gen_mission`."""
    steps = Step(LOCKED_ROOM), Step(CONNECT), _distractors(count), _agent(outside_locked=True)
    reachable = () if unblocking else (_REACHABLE,)
    return Recipe(
        family, (*steps, *reachable, Step(SENTENCE)), size, columns, rows, unblocking=unblocking, **more
    )  # fmt: skip


def _go_to_seq(**sizes: Any) -> Recipe:
    return _generated("GoToSeq", unblocking=False, actions=(c.GO_TO,), locations=False, locked_chance=0.0, **sizes)


def _synth(**sizes: Any) -> Recipe:
    return _generated("Synth", forms=(ACTION,), locations=False, unlocking=False, **sizes)


_SIDE_ROOMS: Final = ((2, 1), (1, 2), (0, 1), (1, 0))
_CORNERS: Final = (2, 8, 6, 0)
"""Rooms of a maze in which the ball may lie: top right, bottom right, bottom left, top left."""
_CORRIDORS: Final = ((3, 1), (3, 2), (3, 3), (4, 3), (5, 3), (6, 3))

_NAMED: Final[Mapping[str, Recipe]] = {
    "GoToRedBallGrey": _red_ball("GoToRedBallGrey", Step(PAINT_GREY, number=7)),
    "GoToRedBall": _red_ball("GoToRedBall"),
    "GoToRedBallNoDists": _red_ball("GoToRedBallNoDists", count=0),
    **{
        f"GoToObj{suffix}": _room("GoToObj", size, _ANYWHERE, _distractors(1), _THE_FIRST, _task(c.GO_TO))
        for suffix, size in (("", 8), ("S4", 4), ("S6-v1", 6))
    },
    "GoToLocal": _go_to_local(),
    **{
        f"GoToLocalS{size}N{count}": _go_to_local(size, count)
        for size, counts in ((5, (2,)), (6, (2, 3, 4)), (7, (4, 5)), (8, (2, 3, 4, 5, 6, 7)))
        for count in counts
    },
    "GoTo": _maze("GoTo", 18, c.GO_TO),
    "GoToOpen": _maze("GoTo", 18, c.GO_TO, open_doors=True),
    "GoToObjMaze": _maze("GoTo", 1, c.GO_TO),
    "GoToObjMazeOpen": _maze("GoTo", 1, c.GO_TO, open_doors=True),
    "GoToObjMazeS4R2": _maze("GoTo", 1, c.GO_TO, 4, 2),
    **{f"GoToObjMazeS{size}": _maze("GoTo", 1, c.GO_TO, size) for size in (4, 5, 6, 7)},
    "GoToImpUnlock": _locked_room(
        "GoToImpUnlock", 2, Step(DISTRACTORS, SAME, SAME, number=1), _choose(1), _task(c.GO_TO)
    ),
    "GoToSeq": _go_to_seq(),
    "GoToSeqS5R2": _go_to_seq(size=5, columns=2, rows=2, count=4),
    "GoToRedBlueBall": _room(
        "GoToRedBlueBall", 8, _ANYWHERE, _distractors(7), Step(NO_RED_OR_BLUE_BALL, number=7),
        Step(COLORS, number=1, among=(c.RED, c.BLUE)), _object(0, 0, c.BALL, DRAWN), _REACHABLE, _choose(1),
        _task(c.GO_TO),
    ),
    "GoToDoor": Recipe("GoToDoor", (*_FOUR_DOORS, _IN_THE_MIDDLE, _choose(4), _task(c.GO_TO)), 7),
    "GoToObjDoor": Recipe(
        "GoToObjDoor",
        (_IN_THE_MIDDLE, _distractors(8, 1, 1), *_FOUR_DOORS, _REACHABLE, _choose(12), _task(c.GO_TO)),
    ),
    "Open": Recipe(
        "Open",
        (_ANYWHERE, Step(CONNECT), _distractors(18), _REACHABLE, Step(CHOOSE_DOOR), _task(c.OPEN_DOOR)),
    ),
    "OpenRedDoor": Recipe(
        "OpenRedDoor", (_door(0, 0, 0, c.RED, 0), _agent(0, 0), _THE_FIRST, _task(c.OPEN_DOOR)), 5, 2, 1
    ),
    "OpenDoor": _open_door(),
    "OpenDoorDebug": _open_door(strict=True),
    "OpenDoorColor": _open_door(KIND_AND_COLOR),
    "OpenDoorLoc": _open_door(PLACE_ONLY),
    "OpenTwoDoors": _two_doors(),
    "OpenRedBlueDoors": _two_doors(c.RED, c.BLUE),
    "OpenRedBlueDoorsDebug": _two_doors(c.RED, c.BLUE, strict=True),
    **{
        f"OpenDoorsOrderN{count}{'Debug' if strict else ''}": _doors_in_order(count, strict)
        for strict in (False, True)
        for count in (2, 4)
    },
    "Pickup": _maze("Pickup", 18, c.PICK_UP),
    "UnblockPickup": Recipe(
        "UnblockPickup",
        (_ANYWHERE, Step(CONNECT), _distractors(20), Step(UNREACHABLE), _choose(20), _task(c.PICK_UP)),
    ),
    "PickupLoc": _generated(
        "PickupLoc", 8, 1, 1, 8, unblocking=False, actions=(c.PICK_UP,), forms=(ACTION,), locked_chance=0.0
    ),
    "PickupDist": _pick_up_among(),
    "PickupDistDebug": _pick_up_among(strict=True),
    "PickupAbove": _PICKUP_ABOVE,
    "PutNextLocal": _put_next_local(),
    "PutNextLocalS5N3": _put_next_local(5, 3),
    "PutNextLocalS6N4": _put_next_local(6, 4),
    **{f"PutNextS{size}N{count}": _put_next(size, count) for size, count in ((4, 1), (5, 2), (5, 1), (6, 3), (7, 4))},
    **{
        f"PutNextS{size}N{count}Carrying": _put_next(size, count, carrying=True)
        for size, count in ((5, 2), (6, 3), (7, 4))
    },
    "Unlock": _locked_room("Unlock", 3, _THE_FIRST, _task(c.OPEN_DOOR), spare_color=True),
    "UnlockLocal": _unlock_local(),
    "UnlockLocalDist": _unlock_local(_distractors(3, 1, 1, unique=True)),
    "KeyInBox": _KEY_IN_BOX,
    "UnlockPickup": _unlock_pickup(),
    "UnlockPickupDist": _unlock_pickup(_distractors(4, unique=True)),
    "BlockedUnlockPickup": _blocked_unlock_pickup(KIND_ONLY),
    "UnlockToUnlock": _UNLOCK_TO_UNLOCK,
    "ActionObjDoor": _ACTION_OBJ_DOOR,
    **{f"FindObjS{size}": _find_object(size) for size in (5, 6, 7)},
    "KeyCorridor": _key_corridor(),
    **{f"KeyCorridorS{size}R{rows}": _key_corridor(size, rows) for size, rows in _CORRIDORS},
    **{f"OneRoomS{size}": _room("OneRoomS8", size, *_ONE_BALL) for size in (8, 12, 16, 20)},
    "MoveTwoAcrossS5N2": _two_across(5, 2),
    "MoveTwoAcrossS8N9": _two_across(8, 9),
    "Synth": _synth(),
    "SynthS5R2": _synth(size=5, rows=2),
    "SynthLoc": _generated("SynthLoc", forms=(ACTION,), unlocking=False),
    "SynthSeq": _generated("SynthSeq", unlocking=False),
    "MiniBossLevel": _generated("MiniBossLevel", 5, 2, 2, 7, locked_chance=0.25),
    "BossLevel": _generated("BossLevel"),
    "BossLevelNoUnlock": _generated("BossLevelNoUnlock", unlocking=False, locked_chance=0.0),
}  # fmt: skip

RECIPES: Final[Mapping[str, Recipe]] = {
    f"BabyAI-{name}" if "-v" in name else f"BabyAI-{name}-v0": recipe for name, recipe in _NAMED.items()
}

_UNLOCK: Final = _door(0, 0, 0, locked=1), _object(0, 0, c.KEY, SAME), _agent(0, 0), _THE_FIRST
MINIGRID_RECIPES: Final[Mapping[str, Recipe]] = {
    "Unlock-v0": Recipe("UnlockEnv", (*_UNLOCK, _task(c.OPEN_DOOR, KIND_ONLY)), 6, 2, 1, 8 * 36),
    "UnlockPickup-v0": _unlock_pickup(max_steps=8 * 36),
    "BlockedUnlockPickup-v0": _blocked_unlock_pickup(KIND_AND_COLOR),
    **{f"KeyCorridorS{size}R{rows}-v0": _key_corridor(size, rows, KIND_AND_COLOR) for size, rows in _CORRIDORS},
    **{
        f"ObstructedMaze-{name}-v{version}": _obstructed_maze(visited, quarters, column, boxed, blocked, version > 0)
        for name, visited, quarters, column, boxed, blocked, versions in (
            ("1Dl", 2, 0, 0, False, False, 1),
            ("1Dlh", 2, 0, 0, True, False, 1),
            ("1Dlhb", 2, 0, 0, True, True, 1),
            ("2Dl", 4, 1, 2, False, False, 1),
            ("2Dlh", 4, 1, 2, True, False, 1),
            ("2Dlhb", 4, 1, 2, True, True, 2),
            ("1Q", 5, 1, 1, True, True, 2),
            ("2Q", 11, 2, 2, True, True, 2),
            ("Full", 25, 4, 1, True, True, 2),
        )
        for version in range(versions)
    },
}
"""Levels of `minigrid.levels` that are drawn as BabyAI's are."""
