"""What a potential is worth before any reinforcement learning: the facts of the potential report.

Everything is measured on the dataset the potential was built from; nothing here trains anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NotRequired, TypedDict

import numpy as np
from numpy.typing import NDArray

from bkrl.core.files import read_json
from bkrl.core.reporter import percent, percents
from bkrl.core.seeds import generator
from bkrl.core.spacing import end_to_end
from bkrl.data.dataset import Dataset
from bkrl.data.windows import Windows
from bkrl.potentials.protocol import Artefact, Potential, Scaled
from bkrl.runs.record import Run
from bkrl.stats.ranks import area_under_curve, rank_correlation, ranks

REPORT = "potential_report.json"
SEGMENT = 10
"""Moments in the segments of solved and failed episodes that are compared."""
_EXAMPLES = 4
_EXAMPLE_STEPS = 60
_ENDS = 400
_COURSES = 40


class _Segments(TypedDict):
    above: NotRequired[float | None]
    low: NotRequired[float | None]
    high: NotRequired[float | None]


class _Training(TypedDict):
    accuracy: NotRequired[float | None]
    accuracy_low: NotRequired[float | None]
    accuracy_high: NotRequired[float | None]
    similarity_retrieved: NotRequired[dict[str, float]]
    similarity_unrelated: NotRequired[dict[str, float]]


class _Phi(TypedDict):
    mean: float
    std: NotRequired[float]
    quantiles: dict[str, float]


class Example(TypedDict):
    """The course of Φ over the last steps of an episode."""

    episode: int
    success: bool
    phi: list[float]
    first_step: NotRequired[int]
    captions: NotRequired[list[str]]
    actions: NotRequired[list[str]]


class Report(TypedDict):
    """What is read of potential_report.json: `describe` says what it means; earlier versions wrote less."""

    horizon: NotRequired[int]
    windows: NotRequired[int]
    levels: NotRequired[int]
    coverage: NotRequired[float]
    scale: NotRequired[dict[str, float | None]]
    phi: NotRequired[_Phi]
    step_change: NotRequired[float | None]
    ordering: NotRequired[float | None]
    progress: NotRequired[float | None]
    segments: NotRequired[_Segments]
    training: NotRequired[_Training]
    examples: NotRequired[list[Example]]


def describe(
    potential: Scaled, dataset: Dataset, phi: NDArray[np.float32], training: Mapping[str, Any], others: int = 2000
) -> dict[str, Any]:
    """Facts for people and for the HTML report.

    Keys: kind, control, horizon, env_id, scale {lo, hi}, coverage (share of windows whose Φ is not the most frequent
    value), constancy (1 - coverage), levels (distinct values), phi {mean, std, quantiles}, step_change (mean |Φ' - Φ|
    inside episodes), ordering (how often the end of a successful episode is above another window; None with fewer
    than 5 of them), progress (mean rank correlation of Φ with time inside successful episodes; None without any),
    segments, foresight, sensitivity (see the functions of those names), training, examples [{episode, success, return,
    first_step, phi, captions, actions}].

    Args:
        potential: the stored potential.
        dataset: what it was built from.
        phi: (M,) Φ on evenly spaced windows of the dataset.
        training: what its making found.
        others: windows that successful ends are compared with.
    """
    return {
        **outline(potential.artefact, phi),
        **_episodes(potential, dataset, phi[:: max(1, len(phi) // others)]),
        "segments": segments(potential, dataset),
        "foresight": foresight(potential, dataset),
        "sensitivity": sensitivity(potential, dataset),
        "training": dict(training),
        "examples": _examples(potential, dataset),
    }


CHANCE = 0.5


def report_of(run: Run) -> Report | None:
    """The report of a train-rm run on its potential, where it has one; InputError when that is damaged."""
    report: Report | None = read_json(run.file(REPORT), Report) if REPORT in run.manifest["outputs"] else None
    return report


def doubts_of(run: Run) -> list[str]:
    """What a train-rm run's own report says against its Φ; nothing of a control, which is meant to be so."""
    report = report_of(run) if run.facts.get("control", "none") == "none" else None
    return [] if report is None else doubts(report)


def doubts(report: Mapping[str, Any]) -> list[str]:
    """What in a potential's report says that its Φ may mislead: clauses with their figures, none where nothing does.

    Only what is no better than chance is named. None of it is a proof: a potential may order states well and still slow
    learning down, or the other way round.
    """
    found = []
    if report.get("ordering") is not None and report["ordering"] <= CHANCE:
        found.append(f"it puts ends in success above other windows in {percent(report['ordering'])} of cases")
    above, low, high = (report.get("segments", {}).get(name) for name in ("above", "low", "high"))
    if above is not None and low is not None and high is not None and high <= CHANCE:
        interval = percents(low, high)
        found.append(
            f"it puts the last moments before success above moments of failed episodes in {percent(above)} "
            f"of cases (95 % interval {interval})"
        )
    training = report.get("training", {})
    accuracy, low, high = (training.get(f"accuracy{end}") for end in ("", "_low", "_high"))
    if accuracy is not None and low is not None and high is not None and low <= CHANCE:
        interval = percents(low, high)
        found.append(
            f"its network orders {percent(accuracy)} of unseen pairs as they are labelled (95 % interval {interval})"
        )
    found = [f"{one}, where chance is {percent(CHANCE)}" for one in found]
    retrieved, unrelated = (training.get(f"similarity_{kind}", {}).get("50") for kind in ("retrieved", "unrelated"))
    if retrieved is not None and unrelated is not None and retrieved <= unrelated:
        found.append(
            f"the goals retrieved for a moment are no nearer to it (median similarity {retrieved:.3f}) than goals of "
            f"unrelated moments ({unrelated:.3f})"
        )
    return found


def outline(artefact: Artefact, phi: NDArray[np.float32]) -> dict[str, Any]:
    """What (M,) values of Φ say by themselves: the first keys of `describe`, up to `phi`."""
    values, counts = np.unique(phi, return_counts=True)
    coverage = 1.0 - float(counts.max()) / len(phi)
    return {
        "kind": artefact.kind,
        "control": artefact.control,
        "horizon": artefact.horizon,
        "env_id": artefact.env_id,
        "scale": {"lo": artefact.scale.lo, "hi": artefact.scale.hi},
        "windows": len(phi),
        "coverage": coverage,
        "constancy": 1.0 - coverage,
        "levels": len(values),
        "phi": {
            "mean": float(phi.mean()),
            "std": float(phi.std()),
            "quantiles": {str(q): float(np.quantile(phi, q / 100)) for q in (1, 10, 25, 50, 75, 90, 99)},
        },
    }


def _episodes(potential: Scaled, dataset: Dataset, others: NDArray[np.float32]) -> dict[str, Any]:
    rng = np.random.Generator(np.random.PCG64(0))
    chosen = np.sort(rng.permutation(dataset.num_episodes)[:_ENDS])
    ends = dataset.first_row[chosen] + dataset.lengths[chosen]
    solved = dataset.success[chosen]
    ordering = None
    if solved.sum() >= 5:
        at_end = potential(dataset.windows(ends[solved], potential.horizon))
        ordering = area_under_curve(at_end, others)
    changes, orders = [], []
    for episode in chosen[end_to_end(len(chosen), _COURSES)]:  # early episodes and late ones
        course = _course(potential, dataset, int(episode), int(dataset.lengths[episode]))
        changes.append(float(np.abs(np.diff(course)).mean()))
        if dataset.success[episode] and len(course) >= 5 and np.ptp(course) > 0:
            orders.append(rank_correlation(course, np.arange(len(course))))
    return {
        "ordering": ordering,
        "progress": float(np.mean(orders)) if orders else None,
        "step_change": float(np.mean(changes)),
    }


def segments(potential: Potential, dataset: Dataset, seed: int = 0) -> dict[str, Any]:
    """How often the last moments before success are above moments of failed episodes, by the mean Φ of a segment.

    One segment of `SEGMENT` moments from each episode: the last ones before the end (which itself counts as Φ = 0 when
    it is terminal) of a solved one, ones from anywhere in a failed one.  {solved, failed, above, low, high}: counts,
    and the area under the ROC curve with a 95 % bootstrap over episodes, None with fewer than 5 of either.
    """
    rng = generator(seed, "quality", "segments")
    long = dataset.lengths >= SEGMENT
    kinds = [np.flatnonzero(long & chosen) for chosen in (dataset.success, ~dataset.success)]
    counts = {"solved": len(kinds[0]), "failed": len(kinds[1])}
    if min(counts.values()) < 5:
        return counts | {"above": None, "low": None, "high": None}
    means = []
    for episodes, solved in zip(kinds, (True, False), strict=True):
        room = dataset.lengths[episodes] - SEGMENT
        start = room if solved else rng.integers(0, room + 1)
        rows = (dataset.first_row[episodes] + start)[:, None] + np.arange(SEGMENT)
        phi = potential(dataset.windows(rows.ravel(), potential.horizon))
        means.append(phi.reshape(rows.shape).mean(axis=1))
    high, low = means
    drawn = [area_under_curve(rng.choice(high, len(high)), rng.choice(low, len(low))) for _ in range(500)]
    bounds = np.quantile(drawn, [0.025, 0.975])
    return counts | {"above": area_under_curve(high, low), "low": float(bounds[0]), "high": float(bounds[1])}


def foresight(potential: Potential, dataset: Dataset, gamma: float = 0.99, count: int = 4000) -> float | None:
    """Rank correlation of Φ with the discounted reward that followed in the recording; None where none ever did.

    It is the recorded policy's return and not the best one's, so it is a hint and not a measure of truth; it can be had
    in every world that pays.
    """
    if not dataset.rewards.any():
        return None
    follows = np.zeros(len(dataset.rewards))
    running = 0.0
    ends = dataset.actions < 0
    for row in range(len(follows) - 1, -1, -1):
        running = 0.0 if ends[row] else float(dataset.rewards[row]) + gamma * running
        follows[row] = running
    acted = np.flatnonzero(~ends)
    rows = acted[end_to_end(len(acted), count)]
    return rank_correlation(potential(dataset.windows(rows, potential.horizon)), follows[rows])


def sensitivity(potential: Potential, dataset: Dataset, count: int = 2000, seed: int = 0) -> dict[str, Any]:
    """What Φ depends on: {present, past, actions}, each {changed, mean}: in what share of windows Φ changes, and by how
    much on average, when that part is exchanged for another window's.
    """
    rows = end_to_end(len(dataset.actions), count)
    windows = dataset.windows(rows, potential.horizon)
    phi = potential(windows)
    other = generator(seed, "quality", "sensitivity").permutation(len(rows))
    there = windows.valid[:, :-1] & windows.valid[other, :-1]  # only what both windows have is exchanged
    present, past = windows.observations.copy(), windows.observations.copy()
    present[:, -1] = windows.observations[other, -1]
    past[:, :-1][there] = windows.observations[other, :-1][there]
    acted = np.where(there, windows.actions[other], windows.actions)
    parts = {"present": Windows(present, windows.actions, windows.valid)}
    if potential.horizon:
        parts["past"] = Windows(past, windows.actions, windows.valid)
        parts["actions"] = Windows(windows.observations, acted, windows.valid)
    changes = {name: np.abs(potential(changed) - phi) for name, changed in parts.items()}
    return {name: {"changed": float((by > 0).mean()), "mean": float(by.mean())} for name, by in changes.items()}


def disagreement(
    potentials: Mapping[str, Potential], dataset: Dataset, count: int = 4000, shown: int = 6
) -> dict[str, Any]:
    """How differently several potentials order the same windows.

    {names, matrix, windows}: rank correlations (n, n), None where one of the two is constant; and the windows whose
    places in two orders are furthest apart, at most one of an episode: {episode, step, captions, actions, places {name:
    share of windows below}, phi {name: Φ}, between [two names]}.
    """
    longest = max(potential.horizon for potential in potentials.values())
    rows = end_to_end(len(dataset.actions), count)
    phi = {name: potential(dataset.windows(rows, potential.horizon)) for name, potential in potentials.items()}
    names = list(phi)
    matrix = [
        [None if np.ptp(phi[a]) == 0 or np.ptp(phi[b]) == 0 else rank_correlation(phi[a], phi[b]) for b in names]
        for a in names
    ]
    places = {name: (ranks(values) - 0.5) / len(values) for name, values in phi.items()}
    couples = [(a, b) for i, a in enumerate(names) for b in names[:i]]
    gaps = np.stack([np.abs(places[a] - places[b]) for a, b in couples])
    windows: list[dict[str, Any]] = []
    seen: set[tuple[str, int]] = set()
    for place in np.argsort(-gaps.max(axis=0), kind="stable"):
        row = int(rows[place])
        marks = {("episode", int(dataset.episode_of_row[row])), ("caption", int(dataset.caption_ids[row]))}
        if marks & seen:
            continue
        seen |= marks
        past = np.arange(row - min(int(dataset.ages[row]), longest), row + 1)
        windows.append(
            {
                "episode": int(dataset.episode_of_row[row]),
                "step": int(dataset.ages[row]),
                "captions": [dataset.caption(int(one)) for one in past],
                "actions": [dataset.action_names[action] for action in dataset.actions[past[:-1]]],
                "places": {name: float(places[name][place]) for name in names},
                "phi": {name: float(phi[name][place]) for name in names},
                "between": list(couples[int(gaps[:, place].argmax())]),
            }
        )
        if len(windows) == shown:
            break
    return {"names": names, "matrix": matrix, "windows": windows}


def courses(potential: Potential, dataset: Dataset, longest: int = 120) -> list[dict[str, Any]]:
    """Φ over one solved and one failed episode, or those of best and worst return where there is only one kind.

    The middle one of each kind, by number, is taken, so that nobody looked for a good one: {episode, kind, return,
    rows, phi}, `rows` of the dataset; of an episode with more than `longest` steps the last ones.
    """
    kinds = {"solved": np.flatnonzero(dataset.success), "not solved": np.flatnonzero(~dataset.success)}
    if not all(map(len, kinds.values())):
        order = np.argsort(dataset.returns, kind="stable")
        kinds = {"best return": order[-1:], "worst return": order[:1]}
    found = []
    for kind, episodes in kinds.items():
        episode = int(episodes[len(episodes) // 2])
        steps = min(int(dataset.lengths[episode]), longest)
        last = int(dataset.first_row[episode] + dataset.lengths[episode])
        found.append(
            {
                "episode": episode,
                "kind": kind,
                "return": float(dataset.returns[episode]),
                "rows": np.arange(last - steps, last + 1),
                "phi": _course(potential, dataset, episode, steps),
            }
        )
    return found


def _examples(potential: Scaled, dataset: Dataset) -> list[dict[str, Any]]:
    """Courses of Φ over a few episodes, solved ones first: the last steps of each, with what was seen and done."""
    solved, failed = np.flatnonzero(dataset.success), np.flatnonzero(~dataset.success)
    half = _EXAMPLES // 2
    episodes = [*solved[-half:], *failed[-(_EXAMPLES - min(half, len(solved))) :]]
    examples = []
    for episode in (int(one) for one in episodes):
        steps = min(int(dataset.lengths[episode]), _EXAMPLE_STEPS)
        last = int(dataset.first_row[episode] + dataset.lengths[episode])
        rows = np.arange(last - steps, last + 1)
        examples.append(
            {
                "episode": episode,
                "success": bool(dataset.success[episode]),
                "return": float(dataset.returns[episode]),
                "first_step": int(dataset.lengths[episode]) - steps,
                "phi": [round(float(value), 4) for value in _course(potential, dataset, episode, steps)],
                "captions": [dataset.caption(int(row)) for row in rows],
                "actions": [dataset.action_names[action] for action in dataset.actions[rows[:-1]]],
            }
        )
    return examples


def _course(potential: Potential, dataset: Dataset, episode: int, steps: int) -> NDArray[np.float32]:
    """(steps + 1,) Φ over the last steps of an episode."""
    last = int(dataset.first_row[episode] + dataset.lengths[episode])
    return potential(dataset.windows(np.arange(last - steps, last + 1), potential.horizon))
