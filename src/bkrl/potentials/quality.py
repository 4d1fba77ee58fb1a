"""What a potential is worth before any reinforcement learning: the facts of the potential report.

Everything is measured on the dataset the potential was built from; nothing here trains anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bkrl.dataset import Dataset
from bkrl.potentials.protocol import Scaled

_EXAMPLES = 4
_EXAMPLE_STEPS = 60
_ENDS = 400


def describe(
    potential: Scaled, dataset: Dataset, phi: NDArray[np.float32], training: Mapping[str, Any], others: int = 2000
) -> dict[str, Any]:
    """Facts for people and for the HTML report.

    Keys: kind, control, horizon, env_id, scale {lo, hi}, coverage (share of windows whose Φ is not the most frequent
    value), constancy (1 - coverage), levels (distinct values), phi {mean, std, quantiles}, step_change (mean |Φ' - Φ|
    inside episodes), ordering (how often the end of a successful episode is above another window; None with fewer
    than 5 of
    them), progress (mean rank correlation of Φ with time inside successful episodes; None without any), training,
    examples [{episode, success, return, first_step, phi, captions, actions}].

    Args:
        potential: the stored potential.
        dataset: what it was built from.
        phi: (M,) Φ on evenly spaced windows of the dataset.
        training: what its making found.
        others: windows that successful ends are compared with.
    """
    values, counts = np.unique(phi, return_counts=True)
    coverage = 1.0 - float(counts.max()) / len(phi)
    artefact = potential.artefact
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
        **_episodes(potential, dataset, phi[:: max(1, len(phi) // others)]),
        "training": dict(training),
        "examples": _examples(potential, dataset),
    }


def _episodes(potential: Scaled, dataset: Dataset, others: NDArray[np.float32]) -> dict[str, Any]:
    rng = np.random.Generator(np.random.PCG64(0))
    chosen = np.sort(rng.permutation(dataset.num_episodes)[:_ENDS])
    ends = dataset.first_row[chosen] + dataset.lengths[chosen]
    solved = dataset.success[chosen]
    ordering = None
    if solved.sum() >= 5:
        at_end = potential(dataset.windows(ends[solved], potential.horizon))
        above = (at_end[:, None] > others).mean() + 0.5 * (at_end[:, None] == others).mean()
        ordering = float(above)
    changes, ranks = [], []
    for episode in chosen[:40]:
        course = _course(potential, dataset, int(episode), int(dataset.lengths[episode]))
        changes.append(float(np.abs(np.diff(course)).mean()))
        if dataset.success[episode] and len(course) >= 5 and np.ptp(course) > 0:
            ranks.append(rank_correlation(course, np.arange(len(course))))
    return {
        "ordering": ordering,
        "progress": float(np.mean(ranks)) if ranks else None,
        "step_change": float(np.mean(changes)),
    }


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


def _course(potential: Scaled, dataset: Dataset, episode: int, steps: int) -> NDArray[np.float32]:
    """(steps + 1,) Φ over the last steps of an episode."""
    last = int(dataset.first_row[episode] + dataset.lengths[episode])
    return potential(dataset.windows(np.arange(last - steps, last + 1), potential.horizon))


def rank_correlation(a: NDArray[Any], b: NDArray[Any]) -> float:
    """Spearman's rank correlation, ties at their mean rank; 0 where one side is constant."""
    x, y = _ranks(a), _ranks(b)
    spread = float(x.std() * y.std())
    return 0.0 if spread == 0 else float(((x - x.mean()) * (y - y.mean())).mean() / spread)


def _ranks(values: NDArray[Any]) -> NDArray[np.float64]:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts).astype(np.float64)
    return (last - (counts - 1) / 2.0)[inverse]
