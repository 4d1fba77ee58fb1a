"""How well a potential orders states by what they are truly worth, before anything is trained with it.

Two truths are computed, not learnt: the exact optimal value on small levels (`optimal`), with every action and every
rearrangement of objects, and the length of the shortest way to success on the paper's levels, objects left where they
are. Each is compared by Spearman's rank correlation

* over all states, each as the first moment of an episode (a potential that needs a history has none there),
* over moments of play, with their histories,

for each task apart, and, because a potential is not told the task, with the mean value over the tasks of a layout.

Where Φ is constant it ranks nothing: there is no correlation then, and the mean over tasks counts 0, what tied states
drawn in any order would have on average; leaving the task out would flatter. A potential that is constant on every task
has no mean.

A potential is asked about the actions that it knows alone; tasks that take others are left out.

No function of the view alone can reach 1 where states that look the same are worth different things. The `ceiling` is
what the mean rank of each view reaches: the best of a potential without memory, *told* the task but not the object.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypedDict

import numpy as np
from numpy.typing import NDArray

from bkrl import envs
from bkrl.core.seeds import generator
from bkrl.core.spacing import end_to_end
from bkrl.data.distinct import distinct_rows
from bkrl.envs import toy
from bkrl.envs.babyai.constants import ACTION_NAMES, FORWARD, GO_TO, LEFT, PICK_UP, PICKUP, RIGHT
from bkrl.envs.babyai.levels import LEVELS
from bkrl.inspect.optimal import (
    Explorer,
    Moment,
    States,
    assign,
    distances,
    first_moments,
    objects_of,
    optimal_values,
    walk,
)
from bkrl.potentials.protocol import Potential, Scaled
from bkrl.stats.ranks import rank_correlation

SMALL: Final = "BabyAI-GoToLocalS5N2-v0"
SHARED: Final = "BabyAI-Text-GoToLocal-RedBall-S20"
PAPER: Final = tuple(name for name, level in LEVELS.items() if level.room_size == 20 and "Pretraining" not in name)
GAMMA: Final = 0.99
MISSIONS: Final = "not computed: Φ reads missions, and no sentence states the tasks of the levels that are solved"
MEMORY: Final = "not computed: Φ reads what happened in an episode, and the states that are solved have no past"
_PLAYED: Final = 4  # episodes of play in each layout
_KEPT: Final = 500  # states of a layout and task, at most, evenly spaced
_RESAMPLES: Final = 200


class Correlation(TypedDict):
    """Rank correlation with a 95 % interval over layouts; rho is None where there is nothing to rank, or where Φ is
    constant and ranks nothing of it.
    """

    rho: float | None
    low: float | None
    high: float | None
    constant: bool


class TaskWorth(TypedDict):
    """One task: over all states, in play (None where nothing was played), and the best that a view allows."""

    task: str
    layouts: int
    states: int
    states_rho: Correlation
    play_rho: Correlation | None
    ceiling: float


class LevelsWorth(TypedDict):
    """One table: what the truth is and where it was computed; `constant_…` names the tasks in which Φ is constant."""

    truth: str
    where: str
    tasks: list[TaskWorth]
    mean_states_rho: float | None
    mean_play_rho: float | None
    constant_states: list[str]
    constant_play: list[str]
    any_task: TaskWorth | None


class Worth(TypedDict):
    """What is known of a potential against the truth; a part is None where `note` says why."""

    small: LevelsWorth | None
    paper: LevelsWorth | None
    note: str


@dataclass
class _Pool:
    """What was measured of one task, layout by layout: Φ, the truth and the view's number."""

    phi: list[NDArray[np.float32]] = field(default_factory=list)
    truth: list[NDArray[np.float64]] = field(default_factory=list)
    views: list[NDArray[np.uint8]] = field(default_factory=list)
    played_phi: list[NDArray[np.float32]] = field(default_factory=list)
    played_truth: list[NDArray[np.float64]] = field(default_factory=list)

    def add(self, potential: Potential, views: NDArray[np.uint8], truth: NDArray[np.float64]) -> None:
        kept = end_to_end(len(views), _KEPT)
        self.phi.append(potential(first_moments(views[kept], potential.reads.horizon)))
        self.truth.append(truth[kept])
        self.views.append(views[kept])

    def join(self, parts: "_Pool") -> None:
        """Add the parts of one layout as one."""
        for name, found in vars(parts).items():
            if found:
                vars(self)[name].append(np.concatenate(found))

    def figures(self, task: str) -> TaskWorth:
        """One row of a table."""
        return {
            "task": task,
            "layouts": len(self.truth),
            "states": sum(map(len, self.truth)),
            "states_rho": _correlation(self.phi, self.truth),
            "play_rho": _correlation(self.played_phi, self.played_truth) if self.played_phi else None,
            "ceiling": ceiling(np.concatenate(self.views), np.concatenate(self.truth)),
        }


def measure(potential: Potential, family: str, layouts: int = 6, seed: int = 0) -> Worth:
    """Everything this module knows about a potential.

    Args:
        potential: its horizon and units must be those of the family. Of one that reads missions or memory nothing is
            computed: tasks are assigned here, no sentence states them, and states have no past.
        family: the name of a family of envs; nothing is computed where it has no `exact` values.
        layouts: drawn of each level, by the seeds `seed`, `seed` + 1, …
        seed: of layouts and play.
    """
    known = envs.family(family)
    unknown = MISSIONS if potential.reads.mission else MEMORY if potential.reads.memory else ""
    if unknown or known.exact not in ("tables", "rooms"):
        return {"small": None, "paper": None, "note": unknown or known.inexact}
    if known.exact == "tables":
        return {"small": _toys(potential), "paper": None, "note": "the toy worlds are tables, solved exactly"}
    return {"small": _small(potential, layouts, seed), "paper": _paper(potential, layouts, seed), "note": ""}


def _known(potential: Potential) -> list[int]:
    """The engine's actions that a potential knows; those that an env has beyond the engine's do nothing."""
    names = potential.artefact.action_names if isinstance(potential, Scaled) else ACTION_NAMES
    return [*range(min(len(names), len(ACTION_NAMES)))]


def _small(potential: Potential, layouts: int, seed: int) -> LevelsWorth:
    """Going to and picking up each object of small rooms, every action allowed that the potential knows."""
    explorer, known = Explorer(SMALL), _known(potential)
    pools: dict[str, _Pool] = {}
    together = _Pool()
    for number in range(seed, seed + layouts):
        moment = explorer.draw(number)
        found: list[tuple[States, NDArray[np.float64]]] = []
        for task in (GO_TO, PICK_UP) if PICKUP in known else (GO_TO,):
            parts = _Pool()
            for kind, color in objects_of(moment):
                states = explorer.explore(assign(moment, task, kind, color), known)
                if states is None:
                    continue
                values = optimal_values(states, GAMMA)
                rng = generator(seed, "worth", SMALL, number, task, kind, color)
                _measure(parts, potential, states, values, rng)
                found.append((states, values))
            if parts.truth:
                pools.setdefault("go to" if task == GO_TO else "pick up", _Pool()).join(parts)
        _measure_together(together, potential, found)
    return _table("exact optimal value, every action", f"{SMALL}, rooms of 5×5 with two objects", pools, together)


def _paper(potential: Potential, layouts: int, seed: int) -> LevelsWorth:
    """The shortest way to success in the paper's rooms of 20×20, objects left where they are."""
    pools: dict[str, _Pool] = {}
    together = _Pool()
    for env_id in PAPER:
        explorer = Explorer(env_id)
        actions = [LEFT, RIGHT, FORWARD] + ([PICKUP] if LEVELS[env_id].task == "pick up" else [])
        if not {*actions} <= {*_known(potential)}:
            continue
        pool = pools.setdefault(env_id.removeprefix("BabyAI-Text-"), _Pool())
        for number in range(seed, seed + layouts):
            moment = explorer.draw(number)
            states = explorer.explore(moment, actions, still=True)
            if states is not None:
                _measure(pool, potential, states, -distances(states), generator(seed, "worth", env_id, number))
            if env_id == SHARED:
                _measure_together(together, potential, _each_object(explorer, moment))
    truth = "minus the fewest actions to success, objects left where they are"
    return _table(truth, "the published BabyAI-Text levels, rooms of 20×20", pools, together)


def _each_object(explorer: Explorer, moment: Moment) -> list[tuple[States, NDArray[np.float64]]]:
    """Going to each object of one layout."""
    found = []
    for kind, color in objects_of(moment):
        states = explorer.explore(assign(moment, GO_TO, kind, color), [LEFT, RIGHT, FORWARD], still=True)
        if states is not None:
            found.append((states, optimal_values(states, GAMMA)))
    return found


def _measure(
    pool: _Pool, potential: Potential, states: States, truth: NDArray[np.float64], rng: np.random.Generator
) -> None:
    pool.add(potential, states.observations, truth)
    met, windows = walk(states, potential.reads.horizon, _PLAYED, rng)
    pool.played_phi.append(potential(windows))
    pool.played_truth.append(truth[met])


def _measure_together(pool: _Pool, potential: Potential, found: Sequence[tuple[States, NDArray[np.float64]]]) -> None:
    """The mean value over tasks of each scene that every task knows; a scene that solves a task is worth 1 for it."""
    if not found:
        return
    worth = [
        dict.fromkeys(states.arrivals, 1.0) | dict(zip(states.things, values.tolist(), strict=True))
        for states, values in found
    ]
    shown = {thing: view for states, _ in found for thing, view in zip(states.things, states.observations, strict=True)}
    scenes = sorted(thing for thing in shown if all(thing in one for one in worth))
    if len(scenes) > 1:
        mean = np.array([np.mean([one[thing] for one in worth]) for thing in scenes])
        pool.add(potential, np.stack([shown[thing] for thing in scenes]), mean)


def _toys(potential: Potential) -> LevelsWorth | None:
    """The toy envs whose actions the potential was made for; their one table is one layout."""
    wanted = potential.artefact.action_names if isinstance(potential, Scaled) else None
    pools: dict[str, _Pool] = {}
    for facts in toy.FAMILY.specs():
        if wanted is not None and facts.action_names != tuple(wanted):
            continue
        table = toy.table(facts.env_id)
        acted = np.flatnonzero((table.next_state != np.arange(table.num_states)[:, None]).any(1))
        if len(acted) < 2:
            continue
        values = toy.optimal_values(table, GAMMA).max(1)[acted]
        pools[facts.env_id] = _Pool()
        pools[facts.env_id].add(potential, acted.astype(np.uint8)[:, None], values)
    return _table("exact optimal value", "the toy worlds", pools, _Pool()) if pools else None


def _table(truth: str, where: str, pools: dict[str, _Pool], together: _Pool) -> LevelsWorth:
    tasks = [pool.figures(task) for task, pool in pools.items() if pool.truth]
    return {
        "truth": truth,
        "where": where,
        "tasks": tasks,
        "mean_states_rho": _mean(row["states_rho"] for row in tasks),
        "mean_play_rho": _mean(row["play_rho"] for row in tasks),
        "constant_states": [row["task"] for row in tasks if row["states_rho"]["constant"]],
        "constant_play": [row["task"] for row in tasks if row["play_rho"] is not None and row["play_rho"]["constant"]],
        "any_task": together.figures("mean value over the tasks of a layout") if together.truth else None,
    }


def _mean(figures: Iterable[Correlation | None]) -> float | None:
    there = [figure for figure in figures if figure is not None]
    known = [figure["rho"] for figure in there if figure["rho"] is not None]
    flat = sum(figure["constant"] for figure in there)
    return float(np.sum(known) / (len(known) + flat)) if known else None


def _correlation(phi: Sequence[NDArray[np.float32]], truth: Sequence[NDArray[np.float64]]) -> Correlation:
    """All layouts together, with a percentile bootstrap over layouts where there are at least 3."""
    all_phi, all_truth = np.concatenate(phi), np.concatenate(truth)
    found: Correlation = {"rho": None, "low": None, "high": None, "constant": False}
    if np.ptp(all_truth) == 0:
        return found
    if np.ptp(all_phi) == 0:
        return {**found, "constant": True}
    found["rho"] = rank_correlation(all_phi, all_truth)
    if len(phi) >= 3:
        rng = np.random.Generator(np.random.PCG64(0))
        drawn = []
        for _ in range(_RESAMPLES):
            picked = rng.integers(0, len(phi), len(phi))
            resampled = (np.concatenate([part[i] for i in picked]) for part in (phi, truth))
            drawn.append(rank_correlation(*resampled))
        found["low"], found["high"] = (float(end) for end in np.quantile(drawn, [0.025, 0.975]))
    return found


def ceiling(views: NDArray[np.uint8], truth: NDArray[np.float64]) -> float:
    """Correlation of each view's mean rank with the rank of the truth: no function of the view has a higher one."""
    from scipy.stats import rankdata

    ranked = rankdata(truth)
    _, inverse = distinct_rows(views)
    means = np.bincount(inverse, ranked) / np.bincount(inverse)
    return float(np.corrcoef(means[inverse], ranked)[0, 1]) if np.ptp(means) else 0.0
