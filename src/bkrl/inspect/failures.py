"""What is known to spoil shaping, looked for on a dataset before anything is trained.

Three failures of rewards that language models make (2605.28918):

* flooding: Φ stands near its top most of the time in episodes that fail, so that nothing is left to be gained;
* misread: Φ is against what the env itself counts: it falls at needed sub-goals, or ends in success lie low;
* weak: up to the moment before success Φ rises by less than it changes in a single step.

And the plan: sub-goals (what memory counts) are needed if solved episodes hold them (`NEEDED` of them) and failed ones
often do not; which of these raise Φ, and which others do, to no purpose?
"""

from typing import Final, TypedDict

import numpy as np
from numpy.typing import NDArray

from bkrl.core.reporter import percent
from bkrl.core.spacing import end_to_end
from bkrl.data.dataset import Dataset
from bkrl.envs import memory_of
from bkrl.inspect.quality import course, step_change
from bkrl.inspect.report import CHANCE, Report
from bkrl.potentials.protocol import Potential
from bkrl.stats.intervals import t_interval

NEEDED: Final = 0.95
LEAST: Final = 5
"""Episodes of a kind, below which nothing is said of them."""
TOP: Final = -0.1
"""Φ, from −1 to 0, above which it has hardly anything left to rise by."""
_EPISODES: Final = 40


class SubgoalPlan(TypedDict):
    """Sub-goals by the memory's names: needed, needed and raising Φ, raising Φ and seldom in solved episodes."""

    needed: list[str]
    covered: list[str]
    superfluous: list[str]


class Failures(TypedDict):
    """Clauses on the failures that were found, by their names; the plan is None where it is not known."""

    found: dict[str, str]
    plan: SubgoalPlan | None


def failures(potential: Potential, dataset: Dataset, report: Report) -> Failures:
    """Look for all of them in experience of the task that is to be learnt. `report`: what else was measured there."""
    if report["coverage"] == 0:
        return {"found": {}, "plan": None}
    kinds = [np.flatnonzero(one) for one in (dataset.success, ~dataset.success)]
    solved, failed = (kind[end_to_end(len(kind), _EPISODES)].tolist() for kind in kinds)
    courses = {one: course(potential, dataset, one, int(dataset.lengths[one])).phi for one in (*solved, *failed)}
    found: dict[str, str] = {}
    if len(failed) >= LEAST:
        high = float(np.mean(np.concatenate([courses[one] for one in failed]) > TOP))
        if high >= 0.5:
            found["flooding"] = f"Φ lies above {TOP} in {percent(high)} of the moments of episodes that failed"
    few = min(len(solved), len(failed)) < LEAST  # what is needed shows beside episodes that failed
    plan, against = (None, []) if few else _plan(dataset, solved, failed, courses)
    ordering = report["ordering"]
    if ordering is not None and ordering <= CHANCE:
        against.insert(0, f"ends in success lie above other windows in {percent(ordering)} of cases alone")
    if against:
        found["misread"] = "; ".join(against)
    risen = float(np.mean([courses[one][-2] - courses[one][0] for one in solved])) if len(solved) >= LEAST else np.inf
    if risen < (step := step_change(courses.values())):
        found["weak"] = (
            f"from the start of solved episodes to just before success Φ changes by {risen:+.3f}, and by {step:.3f} in "
            "a single step"
        )
    return {"found": found, "plan": plan}


def _plan(
    dataset: Dataset, solved: list[int], failed: list[int], courses: dict[int, NDArray[np.float32]]
) -> tuple[SubgoalPlan | None, list[str]]:
    """The plan, and clauses on needed sub-goals at which Φ falls; None and none where there is no memory."""
    memory, named = dataset.memory, memory_of(dataset.env_id)
    if memory is None or named is None:
        return None, []
    ends = dataset.first_row + dataset.lengths
    won, lost = ((memory[ends[kind]] > 0).mean(0) for kind in (solved, failed))
    plan: SubgoalPlan = {"needed": [], "covered": [], "superfluous": []}
    against = []
    for field, (name, goal) in enumerate(zip(named.names, named.goals, strict=True)):
        rises = []
        for episode, phi in courses.items():
            at = int((memory[dataset.first_row[episode] : ends[episode] + 1, field] > 0).argmax())  # 0: never
            rises += [phi[at] - phi[at - 1]] if at else []
        change = t_interval(np.array(rises)) if len(rises) >= LEAST else None
        raised = change is not None and change.low > 0
        if won[field] >= NEEDED > lost[field]:
            plan["needed"].append(name)
            plan["covered"] += [name] if raised else []
            if change is not None and change.high < 0:
                against.append(f"Φ changes by {change.estimate:+.2f} where '{goal}' is reached, which the task needs")
        elif raised and won[field] < 0.5:
            plan["superfluous"].append(name)
    return plan, against
