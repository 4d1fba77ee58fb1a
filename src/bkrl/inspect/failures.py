"""What is known to spoil shaping, looked for on a dataset before anything is trained.

Three failures of rewards that language models make (2605.28918), for exact shaping γΦ' − Φ with Φ = 0 at a true end:

* flooding: an episode that fails is paid no less, all in all, than one that succeeds;
* misread: Φ is against what the env itself counts: it falls at needed sub-goals, or ends in success lie low;
* weak: what sets moments before success apart drowns in how Φ varies.

And the plan: sub-goals (what memory counts) are needed if solved episodes hold them (`NEEDED` of them) and failed ones
often do not; which of these raise Φ, and which others do, to no purpose?
"""

from typing import Final, TypedDict

import numpy as np
from numpy.typing import NDArray

from bkrl.core.reporter import percent, percents
from bkrl.core.spacing import end_to_end
from bkrl.data.dataset import Dataset
from bkrl.envs import memory_of
from bkrl.inspect.report import CHANCE, Report
from bkrl.potentials.protocol import Potential
from bkrl.stats.intervals import t_interval

NEEDED: Final = 0.95
LEAST: Final = 5
"""Episodes of a kind, below which nothing is said of them."""
_EPISODES: Final = 100
_GAMMA: Final = 0.99


class Plan(TypedDict):
    """Sub-goals by the memory's names: needed, needed and raising Φ, raising Φ and seldom in solved episodes."""

    needed: list[str]
    covered: list[str]
    superfluous: list[str]


class Failures(TypedDict):
    """Clauses on the failures that were found, by their names; the plan is None where it is not known."""

    found: dict[str, str]
    plan: Plan | None


def failures(potential: Potential, dataset: Dataset, report: Report) -> Failures:
    """Look for all of them in experience of the task that is to be learnt. `report`: what else was measured there."""
    if report["coverage"] == 0:
        return {"found": {}, "plan": None}
    kinds = [np.flatnonzero(one) for one in (dataset.success, ~dataset.success)]
    solved, failed = (kind[end_to_end(len(kind), _EPISODES)].tolist() for kind in kinds)
    courses = {one: _course(potential, dataset, one) for one in (*solved, *failed)}
    found: dict[str, str] = {}
    if min(len(solved), len(failed)) >= LEAST:
        paid = {one: dataset.returns[one] + (_GAMMA * phi[1:] - phi[:-1]).sum() for one, phi in courses.items()}
        won, lost = (float(np.mean([paid[one] for one in kind])) for kind in (solved, failed))
        if lost >= won:
            found["flooding"] = (
                f"with exact shaping a failed episode is paid {lost:.2f} in all, its reward included, and a solved one "
                f"{won:.2f}"
            )
    plan, against = (None, []) if len(solved) < LEAST else _plan(dataset, solved, failed, courses)
    ordering, segments = report["ordering"], report["segments"]
    if ordering is not None and ordering <= CHANCE:
        against.insert(0, f"ends in success lie above other windows in {percent(ordering)} of cases alone")
    if against:
        found["misread"] = "; ".join(against)
    above, low, high = (segments[name] for name in ("above", "low", "high"))
    if above is not None and low is not None and high is not None and low <= CHANCE:
        found["weak"] = (
            f"the last moments before success lie above moments of failed episodes in {percent(above)} of cases "
            f"({percents(low, high)}), which is not shown to be more than chance"
        )
    return {"found": found, "plan": plan}


def _course(potential: Potential, dataset: Dataset, episode: int) -> NDArray[np.float64]:
    """(T + 1,) Φ over a whole episode, 0 at its end where that is a true one."""
    rows = dataset.first_row[episode] + np.arange(dataset.lengths[episode] + 1)
    phi = potential(dataset.windows(rows, potential.reads.horizon)).astype(np.float64)
    phi[-1] *= not dataset.terminated[episode]
    return phi


def _plan(
    dataset: Dataset, solved: list[int], failed: list[int], courses: dict[int, NDArray[np.float64]]
) -> tuple[Plan | None, list[str]]:
    """The plan, and clauses on needed sub-goals at which Φ falls; None and none where there is no memory."""
    memory, named = dataset.memory, memory_of(dataset.env_id)
    if memory is None or named is None:
        return None, []
    ends = dataset.first_row + dataset.lengths
    won, lost = ((memory[ends[kind]] > 0).mean(0) if kind else np.zeros(memory.shape[1]) for kind in (solved, failed))
    plan: Plan = {"needed": [], "covered": [], "superfluous": []}
    against = []
    for field, (name, goal) in enumerate(zip(named.names, named.goals, strict=True)):
        rises = []
        for episode, phi in courses.items():
            at = int((memory[dataset.first_row[episode] : ends[episode], field] > 0).argmax())  # 0: never
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
