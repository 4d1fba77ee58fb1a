"""How far a world is from success: the fewest actions from its full state, objects left where they lie.

Success follows from where the agent stands and looks (its pose) and from how far the mission is (its stage), so one
breadth-first search backwards from success, over poses and stages, answers for every state of a layout. The answers are
kept until something on the map changes. Stages are numbered so that each leads to the next:

* "go to" has the last place to be reached as stage 1; of "go to, then go to" stage 0 has the first.
* "pick up" needs empty hands, stage 1; in stage 0 what is carried must be put down first, and is then left out of
  account as an obstacle.

Picking up what stands in the way is not considered: this is the distance that `potentials.worth` measures by trying
every action on the engine.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from bkrl.core.jit import helper, kernel
from bkrl.envs.babyai.constants import EMPTY
from bkrl.envs.babyai.missions import is_tracked, refers
from bkrl.envs.babyai.rules import can_enter
from bkrl.envs.babyai.state import NOTHING_CARRIED, PICK_UP, ahead, cell_at, kind_of

HEADINGS: Final = 4
STAGES: Final = 2
NO_WAY: Final = -1
_SUCCESS: Final = STAGES
_TURNS: Final = (0, 1, 3)  # headings that an action by which the agent stays can have come from, from its own
_SECOND_CLAUSE: Final = 4  # the description of its first task, see `state.MAX_TASKS`


@kernel
def measure_worlds(
    grids: Any, worlds: Any, stride: int, known: Any, away: Any, waiting: Any, found: Any, start: int, stop: int
) -> None:
    """The distance of each world.

    Args:
        grids, worlds, stride: the worlds, see `state`.
        known: (N, cells) uint32, the maps `away` was computed on; all 0 in the beginning.
        away: (N, STAGES, cells * HEADINGS) int16, actions to success or NO_WAY.
        waiting: (N, STAGES * cells * HEADINGS) int32, room for the search.
        found: (N,) float32, written: the fewest actions to success, infinite where there is no way.
    """
    for n in range(start, stop):
        grid, world = grids[n], worlds[n]
        changed = False
        for at in range(len(grid)):
            changed |= grid[at] != known[n, at]
        picks_up = world.task[0] == PICK_UP
        if changed:
            known[n] = grid
            away[n] = NO_WAY
            if picks_up:
                search_pick_up(grid, stride, away[n], waiting[n])
            else:
                search_go_to(grid, world.in_sequence != 0, stride, away[n], waiting[n])
        if picks_up:
            stage = 1 if world.carrying == NOTHING_CARRIED else 0
        else:
            stage = 0 if world.in_sequence and not world.first_clause_done else 1
        steps = away[n, stage, world.agent * HEADINGS + world.heading]
        found[n] = steps if steps != NO_WAY else float("inf")


@helper
def search_go_to(grid: Any, in_sequence: bool, stride: int, away: Any, waiting: Any) -> None:
    """Distances for a mission that is done by facing a tracked cell after some action."""
    poses = HEADINGS * len(grid)
    faces = np.zeros(poses, np.uint8)
    end = 0
    for at in range(len(grid)):
        goals = goals_in(cell_at(grid, at), in_sequence)
        if goals != 0:
            for heading in range(HEADINGS):
                before = at - ahead(heading, stride)
                if can_enter(cell_at(grid, before)):
                    faces[before * HEADINGS + heading] = goals
    for pose in range(poses):
        if faces[pose] != 0:
            for stage in range(STAGES):
                if stage_after(stage, faces[pose]) == _SUCCESS:
                    end = reach_from_before(grid, stride, away, waiting, end, stage, pose, 1)
    done = 0
    while done < end:
        reached = 1 if waiting[done] >= poses else 0
        pose = waiting[done] - reached * poses
        done += 1
        for stage in range(reached + 1):
            if stage_after(stage, faces[pose]) == reached:
                end = reach_from_before(grid, stride, away, waiting, end, stage, pose, away[reached, pose] + 1)


@helper
def goals_in(cell: int, in_sequence: bool) -> int:
    """Which places to be reached are held to be here, as bits: 1 the first of a sequence, 2 the last or only one."""
    first, last = is_tracked(cell, 0), is_tracked(cell, _SECOND_CLAUSE)
    if not in_sequence:
        return 2 if first else 0
    return (1 if first else 0) + (2 if last else 0)


@helper
def stage_after(stage: int, faced: int) -> int:
    """The stage of "go to" after an action that ended facing these goals."""
    if stage == 0 and faced & 1:
        stage = 1
    return _SUCCESS if stage == 1 and faced & 2 else stage


@helper
def search_pick_up(grid: Any, stride: int, away: Any, waiting: Any) -> None:
    """Distances for a mission that is done by picking up an object it means."""
    end = 0
    for at in range(len(grid)):
        if can_enter(cell_at(grid, at)):
            for heading in range(HEADINGS):
                if refers(cell_at(grid, at + ahead(heading, stride)), 0):
                    end = reach(away, waiting, end, 1, at * HEADINGS + heading, 1)
    poses, done = HEADINGS * len(grid), 0
    while done < end:
        stage = 1 if waiting[done] >= poses else 0
        pose = waiting[done] - stage * poses
        done += 1
        steps = away[stage, pose] + 1
        end = reach_from_before(grid, stride, away, waiting, end, stage, pose, steps)
        at, heading = pose // HEADINGS, pose % HEADINGS
        if stage == 1 and kind_of(cell_at(grid, at + ahead(heading, stride))) == EMPTY:
            end = reach(away, waiting, end, 0, pose, steps)


@helper
def reach_from_before(
    grid: Any, stride: int, away: Any, waiting: Any, end: int, stage: int, pose: int, steps: int
) -> int:
    """Reach all poses from which one action leads to `pose`: by staying, turning, or stepping forward."""
    at, heading = pose // HEADINGS, pose % HEADINGS
    behind = at - ahead(heading, stride)
    ways = len(_TURNS) + (1 if can_enter(cell_at(grid, behind)) else 0)
    for way in range(ways):
        if way < len(_TURNS):
            before = at * HEADINGS + (heading + _TURNS[way]) % HEADINGS
        else:
            before = behind * HEADINGS + heading
        if away[stage, before] == NO_WAY:  # `reach`, written out: a call takes longer than what it does
            away[stage, before] = steps
            waiting[end] = stage * away.shape[1] + before
            end += 1
    return end


@helper
def reach(away: Any, waiting: Any, end: int, stage: int, pose: int, steps: int) -> int:
    """Note a state's distance, unless a shorter one is known, and let it wait to be searched from."""
    if away[stage, pose] == NO_WAY:
        away[stage, pose] = steps
        waiting[end] = stage * away.shape[1] + pose
        end += 1
    return end
