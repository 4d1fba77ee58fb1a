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
from bkrl.report.variance import VarianceSplit, split_variance
from bkrl.rng import generator

BASELINE = "ppo"
SUCCESS, RETURN, LENGTH = "eval/success_rate", "eval/return", "eval/length"
ALPHA = 0.05
LABEL_FREE = ("zero", "random")
"""Controls that hold no labels, so that one of them stands for all methods."""
COMMON_SETTINGS = ("network", "backend", "reward_scale", "eval_every", "eval_episodes")
"""Settings that plain PPO and a shaped run both have, besides PPO's own."""
FINAL_SHARE = 0.1
"""Final success is the mean over evaluations in this last share of the steps compared, or the last one before it."""


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
    form: str = "none"
    guarantee: str = ""


@dataclass(frozen=True)
class Group:
    """Runs of one method in one world, differing in seed (and in the draw of labels) alone."""

    env: str
    alg: str
    label: str
    control: str
    runs: tuple[Trained, ...]

    @property
    def form(self) -> str:
        """The form of shaping, such as "pbrs"; "none" without any."""
        return self.runs[0].form

    @property
    def guarantee(self) -> str:
        """What the form keeps, in a sentence; it begins with "none" where nothing is kept."""
        return self.runs[0].guarantee

    @property
    def unguarded(self) -> bool:
        """Whether what is optimal may have been changed: said wherever its result is shown."""
        return self.guarantee.lower().startswith("none")

    @property
    def legend(self) -> str:
        """The label with its form of shaping, and a warning where that keeps nothing or where it is an oracle's."""
        form = f" · {self.form}" if self.form not in ("none", "novelty", "") and self.form not in self.label else ""
        oracle = " · not for claims" if self.is_oracle else ""
        return self.label + form + oracle + (" · no guarantee" if self.unguarded else "")

    @property
    def is_baseline(self) -> bool:
        return self.label == BASELINE

    @property
    def is_control(self) -> bool:
        return self.control != "none"

    @property
    def is_oracle(self) -> bool:
        """Whether it knows the task: something to look at beside the others, not something a method has to beat."""
        return self.control.startswith("oracle")

    @property
    def is_method(self) -> bool:
        """Whether it carries background knowledge: shaped, and no control."""
        return self.alg.startswith("bk-") and not self.is_control


@dataclass(frozen=True)
class Difference:
    """One group against another: steps to the threshold, and mean success in training; None where it cannot be said.

    ``p_holm``: the paired test's p, adjusted for all tests of its family (all methods against the baseline of a world,
    or all methods against controls).
    """

    ratio: st.StepsRatio | None = None
    improvement: st.Interval | None = None
    paired: st.PairedTest | None = None
    p_holm: float | None = None

    @property
    def better(self) -> bool:
        """Beyond doubt: fewer steps, or a higher mean success by the adjusted paired test."""
        higher = self.p_holm is not None and self.p_holm < ALPHA and self._sign > 0
        return (self.ratio is not None and self.ratio.faster) or (higher and not self.worse)

    @property
    def worse(self) -> bool:
        """Beyond doubt the other way round."""
        lower = self.p_holm is not None and self.p_holm < ALPHA and self._sign < 0
        return (self.ratio is not None and self.ratio.slower) or lower

    @property
    def _sign(self) -> float:
        return self.paired.difference.estimate if self.paired is not None else 0.0


@dataclass(frozen=True)
class Versus:
    """A method against a control. `borrowed`: the control was made for another method (it holds none of its labels)."""

    control: str
    borrowed: bool
    difference: Difference


@dataclass(frozen=True)
class Row:
    """A line of the results table. Shares in [0, 1], steps in environment steps; None where it cannot be said.

    `split`: variance of mean success between draws of labels and between seeds, where there are several draws.
    """

    group: Group
    n: int
    final: st.Interval
    average: st.Interval
    steps: st.StepsSummary
    split: VarianceSplit | None = None
    against: Difference | None = None
    ratio_with_collection: float | None = None
    versus: tuple[Versus, ...] = ()

    @property
    def ratio(self) -> st.StepsRatio | None:
        """Steps to the threshold, over the baseline's."""
        return self.against.ratio if self.against is not None else None


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
    keys = sorted({key for run in runs for key in run.settings} - {"compat"})
    usual = {key: Counter(run.settings.get(key, "") for run in runs).most_common() for key in keys}
    # The value most runs have needs no mention; ties go to the first in the alphabet, so that labels are stable.
    common = {key: min(value for value, count in counts if count == counts[0][1]) for key, counts in usual.items()}
    annotators = {run.annotator for run in runs if run.annotator and not run.control.endswith("labels")}
    labels = []
    for run in runs:
        parts = [] if run.form in ("none", "pbrs", "novelty") else [run.form]
        if defects := run.settings.get("compat", ""):  # named even where all runs have them
            parts.append(f"defects {defects}")
        parts += [] if run.control == "none" else [run.control]
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


def compare_all(groups: Sequence[Group], threshold: float) -> list[Comparison]:
    """One comparison for each world, never one over several."""
    return [
        compare(env, [group for group in groups if group.env == env], threshold)
        for env in dict.fromkeys(group.env for group in groups)
    ]


def compare(env: str, groups: Sequence[Group], threshold: float) -> Comparison:
    """The rows of one world. Every random draw is named after the world and the method: same runs, same numbers."""
    notes = _seed_notes(groups) + _setting_notes(groups)
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
        others = [row for row in rows if row is not base]
        found = iter(_adjusted([difference(row.group, base.group, horizon, threshold) for row in others]))
        rows = [row if row is base else _costed(replace(row, against=next(found)), base) for row in rows]
    return Comparison(env, horizon, tuple(_with_controls(rows, horizon, threshold)), tuple(notes))


def _seed_notes(groups: Sequence[Group]) -> list[str]:
    """Methods that lack seeds others have: a run was deleted, failed, or was never made."""
    seeds = {group.label: {run.seed for run in group.runs} for group in groups}
    every = set().union(*seeds.values())
    lacking = [
        f"{label} (seed{'s' if len(every - own) > 1 else ''} {', '.join(map(str, sorted(every - own)))})"
        for label, own in seeds.items()
        if every - own
    ]
    return [f"Not all methods have the same seeds; missing: {'; '.join(lacking)}."] if lacking else []


def _setting_notes(groups: Sequence[Group]) -> list[str]:
    """Groups trained with another PPO than the baseline's: a difference between them need not be the shaping's."""
    base = next((group.runs[0].settings for group in groups if group.is_baseline), None)
    if base is None:
        return []
    notes = []
    for group in groups:
        other = group.runs[0].settings
        shared = [key for key in base if key in other and (key.startswith("ppo.") or key in COMMON_SETTINGS)]
        different = [key for key in shared if base[key] != other[key]]
        if different:
            notes.append(
                f"{group.label} differs from plain PPO in {', '.join(different)} too, not in its shaping alone."
            )
    return notes


def _with_controls(rows: Sequence[Row], horizon: float, threshold: float) -> list[Row]:
    """Each method against its own controls, all these tests adjusted together."""
    pairs: list[tuple[int, Row, bool]] = []
    for i, row in enumerate(rows):
        if row.group.is_method:
            pairs += [(i, control, borrowed) for control, borrowed in _controls_of(row, rows)]
    found = _adjusted([difference(rows[i].group, control.group, horizon, threshold) for i, control, _ in pairs])
    versus: dict[int, list[Versus]] = {}
    for (i, control, borrowed), one in zip(pairs, found, strict=True):
        versus.setdefault(i, []).append(Versus(control.group.label, borrowed, one))
    return [replace(row, versus=tuple(versus.get(i, ()))) for i, row in enumerate(rows)]


def _controls_of(row: Row, rows: Sequence[Row]) -> list[tuple[Row, bool]]:
    """Controls of the same algorithm and form; failing that, others' that hold no labels (zero, random)."""
    controls = [one for one in rows if one.group.is_control and not one.group.is_oracle]
    same_form = [one for one in controls if one.group.form == row.group.form]
    own = [(one, False) for one in same_form if one.group.alg == row.group.alg]
    return own or [(one, True) for one in same_form if one.group.control in LABEL_FREE]


def difference(ours: Group, theirs: Group, horizon: float, threshold: float) -> Difference:
    """One group against another over the first `horizon` steps; p is not adjusted yet."""
    rng = generator(0, "report", "difference", ours.env, ours.label, theirs.label)
    crossed = [[_crossing(run, threshold) for run in group.runs] for group in (ours, theirs)]
    times = [st.restrict(side, horizon) for side in crossed]
    ratio = None
    someone_got_there = any(not censored.all() for _, censored in times)
    if someone_got_there and times[1][0].mean() > 0:
        ratio = st.steps_ratio(crossed[0], crossed[1], horizon, rng)
    by_seed = [_by_seed(group, horizon) for group in (ours, theirs)]
    paired = None
    if all(by_seed) and len(set(by_seed[0]) & set(by_seed[1])) >= 2:
        paired = st.paired_test(by_seed[0], by_seed[1], rng)
    improvement = None
    if min(len(ours.runs), len(theirs.runs)) >= st.FEW_SEEDS:  # a bootstrap of fewer would look far too sure
        mine, other = (np.array(scores_of(group, horizon)) for group in (ours, theirs))
        improvement = st.probability_of_improvement([mine], [other], rng)
    return Difference(ratio, improvement, paired)


def _adjusted(found: Sequence[Difference]) -> list[Difference]:
    adjusted = iter(st.holm([one.paired.p for one in found if one.paired is not None]))
    return [one if one.paired is None else replace(one, p_holm=next(adjusted)) for one in found]


def _by_seed(group: Group, horizon: float) -> dict[int, float]:
    """Mean success in training for each seed, averaged over draws of labels where each seed has all of them.

    Empty where draws and seeds are not crossed: such runs have no single partner.
    """
    found: dict[int, dict[str, float]] = {}
    for run in group.runs:
        found.setdefault(run.seed, {})[run.potential] = _final_and_average(run, horizon)[1]
    draws = {run.potential for run in group.runs}
    if any(set(values) != draws for values in found.values()):
        return {}
    return {seed: float(np.mean(list(values.values()))) for seed, values in found.items()}


def _costed(row: Row, base: Row) -> Row:
    """With the steps that collected the dataset charged whole to this one task."""
    collected = np.mean([run.collect_steps for run in row.group.runs])
    if row.ratio is None or collected <= 0:
        return row
    whole = float((row.steps.restricted.estimate + collected) / base.steps.restricted.estimate)
    return replace(row, ratio_with_collection=whole)


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
    by_draw: dict[str, list[float]] = {}
    for run, value in zip(group.runs, averages, strict=True):
        by_draw.setdefault(run.potential, []).append(float(value))
    return Row(
        group,
        len(group.runs),
        share(st.centre_interval(finals, rng)),
        share(st.centre_interval(averages, rng)),
        st.summarise_steps(crossings, horizon, rng),
        None if (split := split_variance(by_draw)) is None else replace(split, over_draws=share(split.over_draws)),
    )


def _final_and_average(run: Trained, horizon: float) -> tuple[float, float]:
    """Success at the end, and on average over training (the area under the curve divided by its width)."""
    every_step, every_value = run.series[SUCCESS]
    inside = every_step <= horizon
    steps, values = every_step[inside], every_value[inside]
    final = float(values[steps >= min(horizon - FINAL_SHARE * horizon, steps[-1])].mean())
    if steps[-1] < horizon < every_step[-1]:  # evaluations on both sides: the curve is cut between them
        steps = np.append(steps, horizon)
        values = np.append(values, np.interp(horizon, every_step, every_value))
    width = float(steps[-1] - steps[0])
    average = float(np.trapezoid(values, steps) / width) if width > 0 else float(values.mean())
    return final, average


def _crossing(run: Trained, threshold: float) -> st.Crossing:
    return st.steps_to_threshold(*run.series[SUCCESS], threshold)


def share(interval: st.Interval) -> st.Interval:
    """An interval of a share cannot leave [0, 1]; Student's t does not know that."""
    low, high = (x if math.isnan(x) else min(1.0, max(0.0, x)) for x in (interval.low, interval.high))
    return st.Interval(interval.estimate, low, high, interval.n, interval.method, interval.level)


def scores_of(group: Group, horizon: float) -> list[float]:
    """Mean success in training of each run, over the first `horizon` steps: the score of profiles and tests."""
    return [_final_and_average(run, horizon)[1] for run in group.runs]


def finals_of(group: Group, horizon: float) -> list[float]:
    """Success at the end of each run."""
    return [_final_and_average(run, horizon)[0] for run in group.runs]
