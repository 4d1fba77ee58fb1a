"""When runs first reach a threshold, where some never do: steps, their restricted mean, and the ratio of two methods.

A run that never got there is censored at the last step looked at. Nothing is made up for it: its steps count as a lower
bound, and a ratio says in which direction that may have moved it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from bkrl.stats.intervals import FEW_SEEDS, Interval, bootstrap, interval, student_975, unknown
from bkrl.stats.variance import (
    FEW_DATASETS,
    Origin,
    both_resampled,
    nested_interval,
    ratio_over_datasets,
    several,
    uneven,
)


@dataclass(frozen=True)
class Crossing:
    """When one run reached a threshold: ``steps`` (env steps), or ``censored`` at ``steps``, the last one looked at.

    ``grid``: env steps since the evaluation before it; no crossing is known more finely.
    """

    steps: float
    censored: bool
    grid: float = field(default=0.0, compare=False)


def steps_to_threshold(steps: np.ndarray, values: np.ndarray, threshold: float) -> Crossing:
    """First evaluation that is at least ``threshold``.

    ``steps`` (E,) increasing env steps, ``values`` (E,). Nothing is interpolated: the crossing is an evaluation that
    was made. NaN evaluations are dropped. A run that never gets there is censored.
    """
    kept = np.isfinite(values)
    s, v = steps[kept], values[kept]
    if s.size == 0:
        return Crossing(0.0, True)
    hit = np.flatnonzero(v >= threshold - 1e-9)
    place = int(hit[0]) if hit.size else len(s) - 1
    there = max(place, 1)  # before the first evaluation stands none: it has the steps to the next
    return Crossing(float(s[place]), not hit.size, float(s[there] - s[there - 1]) if len(s) > 1 else 0.0)


@dataclass(frozen=True)
class StepsSummary:
    """Steps to a threshold over several runs, all looked at up to ``horizon`` steps.

    ``restricted``: interval of the mean of min(steps, horizon), the restricted mean of survival analysis; a lower
    bound of the mean whenever ``censored`` > 0. ``grid``: env steps between the evaluations at which the runs crossed.
    """

    restricted: Interval
    censored: int
    n: int
    horizon: float
    grid: float = 0.0


def restrict(crossings: Sequence[Crossing], horizon: float) -> tuple[np.ndarray, np.ndarray]:
    """Cut runs at a common ``horizon``: ``times`` (n,) = min(steps, horizon) and ``censored`` (n,) bool."""
    times = np.array([min(c.steps, horizon) for c in crossings], dtype=np.float64)
    censored = np.array([c.censored or c.steps > horizon for c in crossings], dtype=bool)
    return times, censored


def _coarsest(crossings: Sequence[Crossing]) -> float:
    return max((one.grid for one in crossings), default=0.0)


def summarise_steps(
    crossings: Sequence[Crossing], horizon: float, rng: np.random.Generator, origins: Sequence[Origin] = ()
) -> StepsSummary:
    """Summary over runs that were all followed for at least ``horizon`` steps (censoring at one common time).

    ``origins``: what each run rests on; with several datasets the interval speaks of another one.
    """
    if not crossings:
        raise ValueError("steps to a threshold need at least one run")
    times, censored = restrict(crossings, horizon)
    restricted = nested_interval(times, origins, rng, cut=0.0).clipped(horizon)
    return StepsSummary(restricted, int(censored.sum()), len(times), horizon, _coarsest(crossings))


def bounded(value: float, bound: str) -> str:
    """A ratio of steps with what censoring does to it: "at most 0.45", "not known"."""
    return "not known" if bound == "unknown" else f"{bound} {value:.2f}".strip()


@dataclass(frozen=True)
class StepsRatio(Interval):
    """Restricted mean steps of A over those of B. ``bound`` says what censoring does to the estimate, ``text`` is the
    ratio with that in words, ``grid`` are the env steps between the evaluations of either side.

    ``bound``: ``""`` exact; ``"at least"``: some A never got there, the true ratio is larger; ``"at most"``: some B
    never got there, the true ratio is smaller; ``"unknown"``: both.
    """

    bound: str
    text: str
    censored: tuple[int, int]
    grid: float = 0.0

    @classmethod
    def of(cls, found: Interval, bound: str, censored: tuple[int, int], grid: float = 0.0) -> StepsRatio:
        """From the interval of the ratio."""
        return cls(**vars(found), bound=bound, text=bounded(found.estimate, bound), censored=censored, grid=grid)

    def __str__(self) -> str:
        return self.text + self.spread("{:.2f}".format, self.grid)

    @property
    def side(self) -> int:
        """On which side of 1 the interval lies where censoring cannot have put it there: 1 if A took fewer steps, -1 if
        more, 0 if neither is shown.
        """
        fewer = self.high < 1 and self.bound in ("", "at most")  # without an interval both are false
        more = self.low > 1 and self.bound in ("", "at least")
        return fewer - more


def steps_ratio(
    a: Sequence[Crossing],
    b: Sequence[Crossing],
    horizon: float,
    rng: np.random.Generator,
    *,
    origins: tuple[Sequence[Origin], Sequence[Origin]] = ((), ()),
) -> StepsRatio:
    """Ratio of restricted mean steps-to-threshold, A over B, both followed for ``horizon`` steps.

    Interval: percentile bootstrap over runs, A and B resampled independently; below ``FEW_SEEDS`` runs on either side
    the delta method on log means with Student's t at the smaller side's degrees of freedom (conservative). With
    ``origins``, where a side rests on several datasets these are resampled, and runs within them; below
    ``FEW_DATASETS``, or ``FEW_SEEDS`` runs of the other, there is `ratio_over_datasets` instead. Datasets that both
    sides share are drawn for both at once.

    No interval with one run on a side, with few runs that do not differ on either side (the spread is not zero, it was
    not seen), and where so many runs of B were there before their first step that the ratio has no upper end.
    """
    if not a or not b or horizon <= 0:
        raise ValueError("a ratio of steps needs runs on both sides and a positive horizon")
    (ta, ca), (tb, cb) = restrict(a, horizon), restrict(b, horizon)
    if tb.mean() <= 0:
        raise ValueError("the runs of the baseline reached the threshold before their first step")
    bound = "unknown" if ca.any() and cb.any() else "at least" if ca.any() else "at most" if cb.any() else ""
    datasets = several(*origins)
    n = min(len(ta), len(tb), *([datasets] if datasets else []))
    estimate = float(ta.mean() / tb.mean())
    if weights := uneven(*origins):
        estimate = float(weights[0] @ ta / (weights[1] @ tb))
    found = unknown(estimate, n)
    if 0 < datasets < FEW_DATASETS or (datasets and n < FEW_SEEDS):
        found = ratio_over_datasets(ta, tb, origins)
    elif n >= FEW_SEEDS:
        with np.errstate(divide="ignore", invalid="ignore"):  # draws in which all runs of B took no step
            drawn = bootstrap(
                [ta, tb],
                rng,
                lambda s: s[0].mean(axis=-1) / s[1].mean(axis=-1),
                indices=both_resampled(*origins, rng) if datasets else None,
            )
        found = replace(drawn, estimate=estimate) if math.isfinite(drawn.high) else found
    elif n > 1 and estimate > 0:
        variance = sum(float(x.var(ddof=1)) / (len(x) * float(x.mean()) ** 2) for x in (ta, tb))
        if variance > 0:
            half = student_975(n - 1) * math.sqrt(variance)
            found = interval(estimate, estimate * math.exp(-half), estimate * math.exp(half), n, "t")
    return StepsRatio.of(found, bound, (int(ca.sum()), int(cb.sum())), _coarsest([*a, *b]))
