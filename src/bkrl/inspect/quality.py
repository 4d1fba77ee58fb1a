"""What a potential is worth before any reinforcement learning: the facts of the potential report.

Everything is measured on the dataset the potential was built from; nothing here trains anything.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from bkrl.core.seeds import generator
from bkrl.core.spacing import end_to_end
from bkrl.data.dataset import Dataset
from bkrl.inspect.report import Changes, CourseExample, Report, Segments
from bkrl.potentials.protocol import Potential, Scaled
from bkrl.stats.ranks import area_under_curve, rank_correlation

SEGMENT = 10
"""Moments in the segments of solved and failed episodes that are compared."""
_EXAMPLES = 4
_EXAMPLE_STEPS = 60
_ENDS = 400
_COURSES = 40
_OTHERS = 2000  # windows that the ends of solved episodes are compared with


class Disputed(TypedDict):
    """A window that potentials place differently.

    places: by potential, the share of windows below it in that one's order; between: the two furthest apart.
    """

    episode: int
    step: int
    captions: list[str]
    actions: list[str]
    places: dict[str, float]
    phi: dict[str, float]
    between: list[str]


class Disagreement(TypedDict):
    """How potentials order the same windows: rank correlations (n, n), None where one of the two is constant."""

    names: list[str]
    matrix: list[list[float | None]]
    windows: list[Disputed]


@dataclass(frozen=True)
class Course:
    """Φ over the last steps of an episode: (n,) rows of the dataset, and Φ of each; `kind` says why it was chosen."""

    episode: int
    kind: str
    rows: NDArray[np.int64]
    phi: NDArray[np.float32]


def describe(potential: Scaled, dataset: Dataset, phi: NDArray[np.float32], training: Mapping[str, Any]) -> Report:
    """Facts for people and for the HTML report.

    Args:
        potential: the stored potential.
        dataset: what it was built from.
        phi: (M,) Φ on evenly spaced windows of the dataset.
        training: what its making found.
    """
    artefact = potential.artefact
    values, counts = np.unique(phi, return_counts=True)
    coverage = 1.0 - float(counts.max()) / len(phi)
    quantiles = {str(q): float(np.quantile(phi, q / 100)) for q in (1, 10, 25, 50, 75, 90, 99)}
    chosen = np.sort(np.random.Generator(np.random.PCG64(0)).permutation(dataset.num_episodes)[:_ENDS])
    solved = chosen[dataset.success[chosen]]
    ends = _phi(potential, dataset, dataset.first_row[solved] + dataset.lengths[solved])
    episodes = _whole_courses(potential, dataset, chosen)
    ordering = area_under_curve(ends, phi[:: max(1, len(phi) // _OTHERS)]) if len(ends) >= 5 else None
    orders = [
        rank_correlation(course.phi, np.arange(len(course.phi)))
        for course in episodes
        if dataset.success[course.episode] and len(course.phi) >= 5 and np.ptp(course.phi) > 0
    ]
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
        "phi": {"mean": float(phi.mean()), "std": float(phi.std()), "quantiles": quantiles},
        "ordering": ordering,
        "progress": float(np.mean(orders)) if orders else None,
        "step_change": step_change(one.phi for one in episodes),
        "segments": segments(potential, dataset),
        "foresight": foresight(potential, dataset),
        "sensitivity": sensitivity(potential, dataset),
        "training": dict(training),  # type: ignore[typeddict-item]  # each kind has figures of its own
        "examples": _examples(potential, dataset),
    }


def step_change(courses: Iterable[NDArray[np.float32]]) -> float:
    """How much Φ changes in a step: the mean over episodes of the mean over their steps."""
    return float(np.mean([float(np.abs(np.diff(phi)).mean()) for phi in courses]))


def segments(potential: Potential, dataset: Dataset, seed: int = 0) -> Segments:
    """How often the last moments before success are above moments of failed episodes, by the mean Φ of a segment.

    One segment of `SEGMENT` moments from each episode: the last ones before the end (which itself counts as Φ = 0 when
    it is terminal) of a solved one, ones from anywhere in a failed one.  It is the area under the ROC curve, with a
    95 % bootstrap over episodes.
    """
    rng = generator(seed, "quality", "segments")
    long = dataset.lengths >= SEGMENT
    kinds = [np.flatnonzero(long & chosen) for chosen in (dataset.success, ~dataset.success)]
    solved, failed = map(len, kinds)
    if min(solved, failed) < 5:
        return {"solved": solved, "failed": failed, "above": None, "low": None, "high": None}
    means = []
    for episodes, at_end in zip(kinds, (True, False), strict=True):
        room = dataset.lengths[episodes] - SEGMENT
        start = room if at_end else rng.integers(0, room + 1)
        rows = (dataset.first_row[episodes] + start)[:, None] + np.arange(SEGMENT)
        phi = _phi(potential, dataset, rows.ravel())
        means.append(phi.reshape(rows.shape).mean(axis=1))
    high, low = means
    drawn = [area_under_curve(rng.choice(high, len(high)), rng.choice(low, len(low))) for _ in range(500)]
    above, ends = area_under_curve(high, low), np.quantile(drawn, [0.025, 0.975])
    return {"solved": solved, "failed": failed, "above": above, "low": float(ends[0]), "high": float(ends[1])}


def foresight(potential: Potential, dataset: Dataset, gamma: float = 0.99, count: int = 4000) -> float | None:
    """Rank correlation of Φ with the discounted reward that followed in the recording; None where none ever did.

    It is the recorded policy's return and not the best one's, so it is a hint and not a measure of truth; it can be had
    in every env that pays.
    """
    if not dataset.rewards.any():
        return None
    follows, running = np.zeros(len(dataset.rewards)), 0.0
    ends = dataset.actions < 0
    for row in range(len(follows) - 1, -1, -1):
        running = 0.0 if ends[row] else float(dataset.rewards[row]) + gamma * running
        follows[row] = running
    acted = np.flatnonzero(~ends)
    rows = acted[end_to_end(len(acted), count)]
    return rank_correlation(_phi(potential, dataset, rows), follows[rows])


def sensitivity(potential: Potential, dataset: Dataset, count: int = 2000, seed: int = 0) -> dict[str, Changes]:
    """What Φ depends on: how it changes when `present`, `past` or `actions` are exchanged for another window's."""
    rows = end_to_end(len(dataset.actions), count)
    windows = dataset.windows(rows, potential.reads.horizon)
    phi = potential(windows)
    other = generator(seed, "quality", "sensitivity").permutation(len(rows))
    there = windows.valid[:, :-1] & windows.valid[other, :-1]  # only what both windows have is exchanged
    present, past = windows.observations.copy(), windows.observations.copy()
    present[:, -1] = windows.observations[other, -1]
    past[:, :-1][there] = windows.observations[other, :-1][there]
    acted = np.where(there, windows.actions[other], windows.actions)
    parts = {"present": windows.showing(present)}
    if potential.reads.horizon:
        parts["past"] = windows.showing(past)
        parts["actions"] = replace(windows, actions=acted)
    if potential.reads.mission and windows.missions is not None:
        parts["mission"] = replace(windows, missions=windows.missions[other])
    if potential.reads.memory and windows.memory is not None:
        parts["memory"] = replace(windows, memory=windows.memory[other])
    changes = {name: np.abs(potential(changed) - phi) for name, changed in parts.items()}
    return {name: {"changed": float((by > 0).mean()), "mean": float(by.mean())} for name, by in changes.items()}


def disagreement(
    potentials: Mapping[str, Potential], dataset: Dataset, count: int = 4000, shown: int = 6
) -> Disagreement:
    """How differently several potentials order the same windows, with the windows whose places in two orders are
    furthest apart, at most one of an episode and one of a caption.
    """
    from scipy.stats import rankdata

    longest = max(potential.reads.horizon for potential in potentials.values())
    rows = end_to_end(len(dataset.actions), count)
    phi = {name: _phi(potential, dataset, rows) for name, potential in potentials.items()}
    names = list(phi)
    matrix = [
        [None if np.ptp(phi[a]) == 0 or np.ptp(phi[b]) == 0 else rank_correlation(phi[a], phi[b]) for b in names]
        for a in names
    ]
    places = {name: (rankdata(values) - 0.5) / len(values) for name, values in phi.items()}
    couples = [(a, b) for i, a in enumerate(names) for b in names[:i]]
    gaps = np.stack([np.abs(places[a] - places[b]) for a, b in couples])
    windows: list[Disputed] = []
    seen: set[tuple[str, int]] = set()
    for place in np.argsort(-gaps.max(axis=0), kind="stable"):
        row = int(rows[place])
        marks = {("episode", int(dataset.episode_of_row[row])), ("caption", int(dataset.caption_ids[row]))}
        if marks & seen:
            continue
        seen |= marks
        captions, actions = in_words(dataset, np.arange(row - min(int(dataset.ages[row]), longest), row + 1))
        windows.append(
            {
                "episode": int(dataset.episode_of_row[row]),
                "step": int(dataset.ages[row]),
                "captions": captions,
                "actions": actions,
                "places": {name: float(places[name][place]) for name in names},
                "phi": {name: float(phi[name][place]) for name in names},
                "between": list(couples[int(gaps[:, place].argmax())]),
            }
        )
        if len(windows) == shown:
            break
    return {"names": names, "matrix": matrix, "windows": windows}


def courses(potential: Potential, dataset: Dataset, longest: int = 120) -> list[Course]:
    """Φ over the last `longest` steps of one solved and one failed episode, or of those of best and worst return where
    there is only one kind. The middle one of each kind, by number, is taken, so that no good one is looked for.
    """
    kinds = {"solved": np.flatnonzero(dataset.success), "not solved": np.flatnonzero(~dataset.success)}
    if not all(map(len, kinds.values())):
        order = np.argsort(dataset.returns, kind="stable")
        kinds = {"best return": order[-1:], "worst return": order[:1]}
    middle = {kind: int(episodes[len(episodes) // 2]) for kind, episodes in kinds.items()}
    return [course(potential, dataset, episode, longest, kind) for kind, episode in middle.items()]


def in_words(dataset: Dataset, rows: NDArray[np.int64]) -> tuple[list[str], list[str]]:
    """What was seen at n consecutive rows of an episode, and what was done between them (n - 1)."""
    captions = [dataset.caption(int(row)) for row in rows]
    return captions, [dataset.action_names[action] for action in dataset.actions[rows[:-1]]]


def _examples(potential: Scaled, dataset: Dataset) -> list[CourseExample]:
    """Courses of Φ over a few episodes, solved ones first: the last steps of each, with what was seen and done."""
    solved, failed = np.flatnonzero(dataset.success), np.flatnonzero(~dataset.success)
    half = _EXAMPLES // 2
    examples: list[Any] = []
    for episode in (*solved[-half:], *failed[-(_EXAMPLES - min(half, len(solved))) :]):
        shown = course(potential, dataset, int(episode), _EXAMPLE_STEPS)
        captions, actions = in_words(dataset, shown.rows)
        examples.append(
            {
                "episode": shown.episode,
                "success": bool(dataset.success[episode]),
                "return": float(dataset.returns[episode]),
                "first_step": int(dataset.ages[shown.rows[0]]),
                "phi": [round(float(value), 4) for value in shown.phi],
                "captions": captions,
                "actions": actions,
            }
        )
    return examples


def _phi(potential: Potential, dataset: Dataset, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """(R,) Φ of the windows that end at `rows`."""
    return potential(dataset.windows(rows, potential.reads.horizon))


def _whole_courses(potential: Potential, dataset: Dataset, episodes: NDArray[np.int64]) -> list[Course]:
    """Φ over the whole of a few of (E,) episodes, early ones and late ones."""
    few = episodes[end_to_end(len(episodes), _COURSES)]
    return [course(potential, dataset, int(episode), int(dataset.lengths[episode])) for episode in few]


def course(potential: Potential, dataset: Dataset, episode: int, longest: int, kind: str = "") -> Course:
    """Φ over at most the last `longest` steps of an episode."""
    last = int(dataset.first_row[episode] + dataset.lengths[episode])
    rows = np.arange(last - min(int(dataset.lengths[episode]), longest), last + 1)
    return Course(episode, kind, rows, _phi(potential, dataset, rows))
