"""The levels of `glam` on PyPI minigrid."""

from typing import Any

import numpy as np
from minigrid.core.world_object import Ball, WorldObj
from minigrid.envs.babyai.core.roomgrid_level import RejectSampling, RoomGridLevel
from minigrid.envs.babyai.core.verifier import (
    AfterInstr,
    BeforeInstr,
    GoToInstr,
    Instr,
    ObjDesc,
    OpenInstr,
    PickupInstr,
    PutNextInstr,
)
from numpy.typing import NDArray

from bkrl.envs.babyai.constants import COLOR_NAMES, KEY, TYPE_NAMES
from bkrl.envs.babyai.french import french_mission
from bkrl.envs.babyai.glam import GlamLevel, Pair, cases, repeats
from bkrl.envs.babyai.glam.crowds import DOUBLE, LOCKED_IN, SINGLE, crowd_of

Cell = tuple[int, int]


class GlamEnv(RoomGridLevel):
    """One of the levels of `glam`.

    Where "open" is among the kinds of tasks, the map has two rooms, of which other kinds have walls for the second.

    Attributes:
        task_kind: number of the running episode's kind in `level.task_kinds`.
        turn: what `task_mix` carries from one episode to the next: the kind of this env ("per-instance", -1 before the
            first episode), or of the next episode ("balanced").
    """

    def __init__(self, level: GlamLevel, **kwargs: Any) -> None:
        self.level = level
        self.task_kind, self.turn = 0, -1
        super().__init__(
            num_rows=1, num_cols=max(map(level.rooms, level.task_kinds)), room_size=level.room_size, **kwargs
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Start an episode. A seed restarts the stream of random numbers and the turns of `task_mix`."""
        if seed is None and self._np_random is None:
            seed = int(np.random.SeedSequence().generate_state(1)[0])
        if seed is not None:
            self.turn = self.level.first_turn(seed)
        return super().reset(seed=seed, options=options)

    def _gen_grid(self, width: int, height: int) -> None:
        self.task_kind = self._draw_kind()
        self.num_cols = self.level.rooms(self.level.task_kinds[self.task_kind])
        super()._gen_grid(width, height)
        if self.level.language == "fr":
            self.mission = french_mission(self.surface)

    def _draw_kind(self) -> int:
        count = len(self.level.task_kinds)
        if self.level.task_mix == "per-episode":
            return int(self._rand_int(0, count))
        if self.level.task_mix == "per-instance":
            self.turn = self.turn if self.turn >= 0 else int(self._rand_int(0, count))
            return self.turn
        kind, self.turn = self.turn, (self.turn + 1) % count
        return kind

    def gen_mission(self) -> None:
        """Draw agent, objects of the mission and distractors, in this order; for "open", see `_gen_open`."""
        kind = self.level.task_kinds[self.task_kind]
        if kind == "open":
            self._gen_open()
            return
        for x in range(self.room_size, self.grid.width):
            self.grid.vert_wall(x, 0)
        single = kind in ("goto", "pickup")
        spot, cells = self._draw_crowd(SINGLE if single else DOUBLE)
        if cells:
            self.agent_pos = np.array((1 + spot % (self.room_size - 2), 1 + spot // (self.room_size - 2)))
            self._check(cells)
            self.agent_dir = int(self._rand_int(0, 4))
        else:
            self.place_agent(0, 0)
        if single:
            pairs = [self._rand_elem(self.level.asked_for), *self._others(self.level.num_dists)]
            first = second = pairs[0]
        else:
            first, second, pairs = self._draw_two(may_equal=kind != "putnext")
        for pair in pairs:
            self._put(pair, 0, cells)
        self.check_objs_reachable()
        self.instrs = self._instruction(kind, _description(first), _description(second))

    def _instruction(self, kind: str, first: ObjDesc, second: ObjDesc) -> Instr:
        if kind == "goto":
            return GoToInstr(first)
        if kind == "pickup":
            return PickupInstr(first)
        if kind == "putnext":
            return PutNextInstr(first, second)
        earlier = PickupInstr(first)
        later = PickupInstr(second) if kind == "pickup-seq-pickup" else GoToInstr(second)
        then = kind == "pickup-then-goto" or (kind != "goto-after-pickup" and self._rand_bool())
        return BeforeInstr(earlier, later) if then else AfterInstr(later, earlier)

    def _gen_open(self) -> None:
        """One room is empty and locked; the key, the distractors and then the agent are put into the other."""
        spot, cells = self._draw_crowd(LOCKED_IN)
        locked = int(spot == (self.room_size - 2) ** 2) if cells else int(self._rand_int(0, 2))
        if cells:
            first = (1 - locked) * (self.room_size - 1)
            cells = [(first + x, y) for x, y in cells]
            door, y = self.room_grid[0][0].door_pos[0]
            self.agent_pos = np.array((door - 1 if locked else door + 1, y))
            self._check(cells)
            self.agent_pos = np.array((self.room_size - 1 + self.room_size // 2, self.room_size // 2))
        color = self._rand_elem(self.level.doors)
        self.add_door(locked, 0, door_idx=2 * locked, color=COLOR_NAMES[color], locked=True)
        things = [(color, KEY)]
        if not cells:  # the key has its place before anything else is drawn
            self._put(things.pop(), 1 - locked, cells)
        for pair in [*things, *self._others(self.level.num_dists)]:
            self._put(pair, 1 - locked, cells)
        self.place_agent(1 - locked, 0)
        self.check_objs_reachable()
        named = self.level.asks_for == "test" or self._rand_bool()
        self.instrs = OpenInstr(ObjDesc("door", COLOR_NAMES[color] if named else None))

    def _draw_crowd(self, use: int) -> tuple[int, list[Cell]]:
        """A spot of `glam.crowds` and the cells of objects in the left room; no cells where it is not crowded."""
        crowd = crowd_of(self.level)
        if not crowd.ends[use, -1]:
            return 0, []
        spot, count = divmod(self._bounded(crowd.ends[use]), crowd.first.shape[2] - 1)
        taken = 0
        for half in crowd.first[spot]:
            start, stop = half[count : count + 2].tolist()
            taken |= int(crowd.patterns[start + self._rand_int(0, stop - start)])
            count = crowd.counts[use] - count
        places = [(x, y) for y in range(crowd.width) for x in range(crowd.width)]
        return spot, [(1 + x, 1 + y) for x, y in places if taken >> x + y * (crowd.width + 1) & 1]

    def _check(self, cells: list[Cell]) -> None:
        """RejectSampling where objects in these cells could not all be reached from where the agent is."""
        if tuple(self.agent_pos.tolist()) in cells:
            raise RejectSampling("something lies where the agent begins")
        for cell in cells:
            self.grid.set(*cell, Ball())
        self.check_objs_reachable()
        for cell in cells:
            self.grid.set(*cell, None)

    def _put(self, pair: Pair, room: int, cells: list[Cell]) -> None:
        """An object in one of these cells, which is taken from the list, or, without cells, anywhere in the room."""
        color, thing = pair
        if not cells:
            self.add_object(room, 0, TYPE_NAMES[thing], COLOR_NAMES[color])
            return
        i = int(self._rand_int(0, len(cells)))
        cells[-1], cells[i] = cells[i], cells[-1]
        self.put_obj(WorldObj.decode(thing, color, 0), *cells.pop())

    def _others(self, count: int) -> list[Pair]:
        return [self._rand_elem(self.level.placed) for _ in range(count)]

    def _draw_two(self, may_equal: bool) -> tuple[Pair, Pair, list[Pair]]:
        """Two pairs that the mission may name, and the pairs of all objects, with these two first among them.

        The case of `glam.cases` is drawn first, then the pairs within it.
        """
        asked, n = self.level.asked_for, self.level.num_dists + 2
        case = self._weighted(cases(self.level, may_equal))
        first = self._rand_elem(asked)
        if case == 2:
            before = self._weighted(repeats(self.level))
            pairs = [first, *self._unlike(first, before), first, *self._others(n - 2 - before)]
            return first, first, pairs
        second = self._rand_elem([pair for pair in asked if pair != first] if case == 1 or not may_equal else asked)
        others = self._unlike(first, n - 2) if case == 1 else self._others(n - 2)
        return first, second, [first, second, *others]

    def _unlike(self, first: Pair, count: int) -> list[Pair]:
        others = [pair for pair in self.level.placed if pair != first]
        return [self._rand_elem(others) for _ in range(count)]

    def _weighted(self, weights: list[float]) -> int:
        return self._bounded(np.cumsum(weights))

    def _bounded(self, bounds: NDArray[np.float64]) -> int:
        return int(np.searchsorted(bounds, self._rand_float(0, bounds[-1]), side="right"))


def _description(pair: Pair) -> ObjDesc:
    color, kind = pair
    return ObjDesc(TYPE_NAMES[kind], COLOR_NAMES[color])
