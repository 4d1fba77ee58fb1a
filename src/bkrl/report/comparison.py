"""From single runs to rows of a table: who is pooled with whom, and each method against plain PPO in the same world.

Runs are pooled over seeds only when they agree in everything else; worlds are never pooled. What sets runs of one
algorithm apart (a control, another annotator, another setting) becomes part of their label.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from bkrl.report import statistics as st
from bkrl.report.curves import Curve, Series
from bkrl.rng import generator

BASELINE = "ppo"
SUCCESS, RETURN, LENGTH = "eval/success_rate", "eval/return", "eval/length"
FINAL_SHARE = 0.1
"""Final success is the mean over evaluations in this last share of the steps compared."""


@dataclass(frozen=True)
class Trained:
    """One training run, as far as a comparison needs it. `settings`: what must agree for runs to be pooled."""

    key: str
    env: str
    alg: str
    seed: int
    settings: Mapping[str, str]
    series: Mapping[str, Series]
    control: str = "none"
    annotator: str = ""
    collect_steps: int = 0
    potential: str = ""


@dataclass(frozen=True)
class Group:
    """Runs of one method in one world, differing in seed (and in the draw of labels) alone."""

    env: str
    alg: str
    label: str
    control: str
    runs: tuple[Trained, ...]

    @property
    def is_baseline(self) -> bool:
        return self.label == BASELINE

    @property
    def is_control(self) -> bool:
        return self.control != "none"


@dataclass(frozen=True)
class Row:
    """A line of the results table. Shares in [0, 1], steps in environment steps; None where it cannot be said."""

    group: Group
    n: int
    final: st.Interval
    average: st.Interval
    steps: st.StepsSummary
    ratio: st.StepsRatio | None = None
    improvement: st.Interval | None = None
    paired: st.PairedTest | None = None
    p_holm: float | None = None
    ratio_with_collection: float | None = None


@dataclass(frozen=True)
class Comparison:
    """All methods in one world, looked at up to `horizon` steps (the shortest run's last evaluation)."""

    env: str
    horizon: float
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = field(default=())

    @property
    def baseline(self) -> Row | None:
        return next((row for row in self.rows if row.group.is_baseline), None)


def group_runs(runs: Sequence[Trained]) -> tuple[list[Group], list[str]]:
    """Groups in table order (baseline, methods, controls; worlds by name), and sentences about what was left out."""
    notes: list[str] = []
    groups: list[Group] = []
    for env in sorted({run.env for run in runs}):
        here = [run for run in runs if run.env == env]
        for alg in sorted({run.alg for run in here}, key=lambda alg: (alg != BASELINE, alg)):
            same = [run for run in here if run.alg == alg]
            by_label: dict[str, list[Trained]] = {}
            for run, label in zip(same, _labels(same), strict=True):
                by_label.setdefault(label, []).append(run)
            for label, members in by_label.items():
                kept, dropped = _distinct(members)
                notes += [
                    f"{one.key} repeats {env}, {label}, seed {one.seed} with the same potential; it is counted once."
                    for one in dropped
                ]
                groups.append(Group(env, alg, label, kept[0].control, tuple(kept)))
    groups.sort(key=lambda g: (g.env, not g.is_baseline, g.is_control, g.label))
    return groups, notes


def _labels(runs: Sequence[Trained]) -> list[str]:
    """One label for each run of an algorithm in a world: the algorithm, and what sets it apart from the most common."""
    keys = sorted({key for run in runs for key in run.settings})
    usual = {key: Counter(run.settings.get(key, "") for run in runs).most_common() for key in keys}
    # The value most runs have needs no mention; ties go to the first in the alphabet, so that labels are stable.
    common = {key: min(value for value, count in counts if count == counts[0][1]) for key, counts in usual.items()}
    annotators = {run.annotator for run in runs if run.annotator and not run.control.endswith("labels")}
    labels = []
    for run in runs:
        parts = [] if run.control == "none" else [run.control]
        if len(annotators) > 1 and run.annotator and not run.control.endswith("labels"):
            parts.append(run.annotator)
        parts += [
            f"{key}={run.settings.get(key, '')}" for key in keys if run.settings.get(key, "") != common.get(key, "")
        ]
        labels.append(run.alg + (f" ({', '.join(parts)})" if parts else ""))
    return labels


def _distinct(runs: Sequence[Trained]) -> tuple[list[Trained], list[Trained]]:
    """Runs without those that repeat a seed with the same potential: they would add no information to n."""
    kept: dict[tuple[int, str], Trained] = {}
    dropped = []
    for run in sorted(runs, key=lambda run: (run.seed, run.potential, run.key)):
        if (run.seed, run.potential) in kept:
            dropped.append(run)
        else:
            kept[run.seed, run.potential] = run
    return list(kept.values()), dropped


def compare(env: str, groups: Sequence[Group], threshold: float) -> Comparison:
    """The rows of one world. Every random draw is named after the world and the method: same runs, same numbers."""
    notes = []
    lasts = {run.key: float(run.series[SUCCESS][0][-1]) for group in groups for run in group.runs}
    horizon = min(lasts.values())
    longer = sorted({group.label for group in groups for run in group.runs if lasts[run.key] > horizon})
    if longer:
        notes.append(
            f"Runs in {env} were trained for different lengths; all numbers look at the first {horizon:,.0f} steps "
            f"only (longer: {', '.join(longer)})."
        )
    rows = [_row(group, horizon, threshold) for group in groups]
    base = next((row for row in rows if row.group.is_baseline), None)
    if base is not None:
        rows = [row if row is base else _against(row, base, horizon, threshold) for row in rows]
        p_values = [row.paired.p for row in rows if row.paired is not None]
        adjusted = iter(st.holm(p_values))
        rows = [row if row.paired is None else replace(row, p_holm=next(adjusted)) for row in rows]
    return Comparison(env, horizon, tuple(rows), tuple(notes))


def curves_of(group: Group, metric: str) -> list[Curve]:
    """The runs' curves of one metric; runs without it are left out."""
    found = []
    for run in group.runs:
        steps, values = run.series.get(metric, (np.array([]), np.array([])))
        if np.isfinite(values).any():
            found.append(Curve(run.seed, steps, values))
    return found


def _row(group: Group, horizon: float, threshold: float) -> Row:
    rng = generator(0, "report", group.env, group.label)
    finals, averages = np.array([_final_and_average(run, horizon) for run in group.runs]).T
    crossings = [_crossing(run, threshold) for run in group.runs]
    return Row(
        group,
        len(group.runs),
        share(st.centre_interval(finals, rng)),
        share(st.centre_interval(averages, rng)),
        st.summarise_steps(crossings, horizon, rng),
    )


def _against(row: Row, base: Row, horizon: float, threshold: float) -> Row:
    rng = generator(0, "report", "against", row.group.env, row.group.label)
    ours, theirs = ([_crossing(run, threshold) for run in side.group.runs] for side in (row, base))
    ratio = with_collection = None
    someone_got_there = row.steps.censored < row.n or base.steps.censored < base.n
    if someone_got_there and base.steps.restricted.estimate > 0:
        ratio = st.steps_ratio(ours, theirs, horizon, rng)
        collected = np.mean([run.collect_steps for run in row.group.runs])
        if collected > 0:
            with_collection = float((row.steps.restricted.estimate + collected) / base.steps.restricted.estimate)
    averages = [{run.seed: _final_and_average(run, horizon)[1] for run in side.group.runs} for side in (row, base)]
    paired = None
    # Several runs of one seed (several draws of labels) have no single partner.
    one_each = all(len(mine) == side.n for mine, side in zip(averages, (row, base), strict=True))
    if one_each and len(set(averages[0]) & set(averages[1])) >= 2:
        paired = st.paired_test(averages[0], averages[1], rng)
    improvement = None
    if min(row.n, base.n) >= st.FEW_SEEDS:  # a bootstrap of fewer would look far too sure
        improvement = st.probability_of_improvement(
            [np.array([_final_and_average(run, horizon)[1] for run in row.group.runs])],
            [np.array([_final_and_average(run, horizon)[1] for run in base.group.runs])],
            rng,
        )
    return replace(row, ratio=ratio, improvement=improvement, paired=paired, ratio_with_collection=with_collection)


def _final_and_average(run: Trained, horizon: float) -> tuple[float, float]:
    """Success at the end, and on average over training (the area under the curve divided by its width)."""
    steps, values = run.series[SUCCESS]
    inside = steps <= horizon
    steps, values = steps[inside], values[inside]
    final = float(values[steps >= horizon - FINAL_SHARE * horizon].mean())
    width = float(steps[-1] - steps[0])
    average = float(np.trapezoid(values, steps) / width) if width > 0 else float(values.mean())
    return final, average


def _crossing(run: Trained, threshold: float) -> st.Crossing:
    return st.steps_to_threshold(*run.series[SUCCESS], threshold)


def share(interval: st.Interval) -> st.Interval:
    """An interval of a share cannot leave [0, 1]; Student's t does not know that."""
    low, high = (x if math.isnan(x) else min(1.0, max(0.0, x)) for x in (interval.low, interval.high))
    return st.Interval(interval.estimate, low, high, interval.n, interval.method, interval.level)
