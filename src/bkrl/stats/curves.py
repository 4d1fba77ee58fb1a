"""Learning curves: from metrics to one grid, summarised over seeds.

Every interval is pointwise over whole runs: the resampling unit is a seed, never an evaluation. Nothing is
extrapolated: the grid ends where the shortest run ends.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bkrl.stats import intervals

Series = tuple[np.ndarray, np.ndarray]
"""``steps`` (E,) increasing env steps and ``values`` (E,) of one metric of one run."""
FINAL_SHARE = 0.1


@dataclass(frozen=True)
class Band:
    """One line of a figure: ``centre``, ``low``, ``high`` (G,) over ``steps`` (G,); the interval is NaN for one run."""

    label: str
    steps: np.ndarray
    centre: np.ndarray
    low: np.ndarray
    high: np.ndarray
    n: int
    method: str


def series_of(rows: Iterable[Mapping[str, Any]]) -> dict[str, Series]:
    """All metrics of a run from the lines of its ``metrics.jsonl`` (`Run.metrics()`), each sorted by step.

    Values that are null or not finite are left out. Where a step was logged twice (a run that went on from a
    checkpoint) the later line holds.
    """
    found: dict[str, dict[float, float]] = {}
    for row in rows:
        for key, value in row.items():
            number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            if number and key != "step":
                found.setdefault(key, {})[float(row["step"])] = float(value)
    return {
        key: (np.array(sorted(points)), np.array([points[s] for s in sorted(points)]))
        for key, points in sorted(found.items())
    }


def on_grid(curves: Sequence[Series], points: int = 200) -> Series:
    """``steps`` (G,) and ``values`` (n, G) of several runs on a common grid.

    Runs evaluated at the same steps are taken as they are. Otherwise they are interpolated linearly on at most
    ``points`` equal steps between the latest first and the earliest last evaluation. Evaluations that are not finite
    are dropped.
    """
    if not curves:
        raise ValueError("a grid needs at least one curve")
    finite = [(steps[np.isfinite(values)], values[np.isfinite(values)]) for steps, values in curves]
    if any(s.size == 0 for s, _ in finite):
        raise ValueError("a curve without any finite value cannot be put on a grid")
    start, end = max(float(s[0]) for s, _ in finite), min(float(s[-1]) for s, _ in finite)
    if end < start:
        raise ValueError("the runs share no range of steps")
    cut = [(s[(s >= start) & (s <= end)], v[(s >= start) & (s <= end)]) for s, v in finite]
    if all(np.array_equal(s, cut[0][0]) for s, _ in cut) and len(cut[0][0]) <= points:
        return cut[0][0], np.stack([v for _, v in cut])
    longest = min(points, max(2, max(len(s) for s, _ in cut)))
    grid = np.linspace(start, end, longest) if end > start else np.array([start])
    return grid, np.stack([np.interp(grid, s, v) for s, v in finite])


def band(label: str, curves: Sequence[Series], rng: np.random.Generator, *, repetitions: int = 1000) -> Band:
    """Interquartile mean with a 95 % bootstrap band from 5 seeds on; mean with Student's t below; the line alone for
    one seed.
    """
    grid, values = on_grid(curves)
    n = len(values)
    if n >= intervals.FEW_SEEDS:
        draws = values[rng.integers(0, n, size=(repetitions, n))]
        low, high = np.quantile(intervals.interquartile_mean(draws, axis=1), intervals.ENDS, axis=0)
        return Band(label, grid, intervals.interquartile_mean(values, axis=0), low, high, n, "bootstrap")
    centre = values.mean(axis=0)
    half = intervals.student_975(n - 1) * values.std(axis=0, ddof=1) / math.sqrt(n) if n > 1 else math.nan
    return Band(label, grid, centre, centre - half, centre + half, n, "t" if n > 1 else "none")


def final_and_average(steps: np.ndarray, values: np.ndarray, horizon: float) -> tuple[float, float]:
    """A curve at its end, and on average over the first `horizon` steps (the area under it divided by its width).

    The end is the mean over evaluations in the last `FINAL_SHARE` of those steps, or the last one before them; of a
    curve that begins later its first.
    """
    inside = steps <= max(horizon, steps[0])
    s, v = steps[inside], values[inside]
    final = float(v[s >= min(horizon - FINAL_SHARE * horizon, s[-1])].mean())
    if s[-1] < horizon < steps[-1]:  # evaluations on both sides: the curve is cut between them
        s, v = np.append(s, horizon), np.append(v, np.interp(horizon, steps, values))
    width = float(s[-1] - s[0])
    return final, float(np.trapezoid(v, s) / width) if width > 0 else float(v.mean())
