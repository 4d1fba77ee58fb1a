"""Each method in an env against plain PPO and against its controls: the rows of the results table."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from bkrl.core.seeds import generator
from bkrl.methods import Method, settings_of
from bkrl.report.groups import SUCCESS, Group, carried_on, final_and_average
from bkrl.report.model import Difference, ResultRow, VersusControl
from bkrl.report.payback import Payback
from bkrl.stats import intervals as st
from bkrl.stats.crossings import Crossing, StepsSummary, restrict, steps_ratio, steps_to_threshold, summarise_steps
from bkrl.stats.intervals import step_label
from bkrl.stats.variance import compare_over_datasets, nested_improvement, nested_interval, several, split_variance

LABEL_FREE = ("zero", "random")
"""Controls that hold no labels, so that one of them stands for all methods."""
SAME_LABELS = ("shuffled", "constant")
"""Controls that are made of a method's own labels: those of another annotator say nothing of it."""


@dataclass(frozen=True)
class Comparison:
    """All methods in one env, looked at up to `horizon` steps (the shortest run's last evaluation).

    `measure`: what is compared, in words: "success", or what stands in its place.
    """

    env: str
    horizon: float
    rows: tuple[ResultRow, ...]
    notes: tuple[str, ...] = field(default=())
    measure: str = "success"

    @property
    def baseline(self) -> ResultRow | None:
        return next((row for row in self.rows if row.baseline), None)


def compare(env: str, groups: Sequence[Group], threshold: float, tuned: int = 0) -> Comparison:
    """The rows of one env. Every random draw is named after the env and the method: same runs, same numbers. `tuned`:
    steps spent on choosing the methods' settings.
    """
    groups = carried_on(groups)
    plain = _compared_with(groups)
    notes = _seed_notes(groups) + _setting_notes(groups, plain)
    lasts = {run.key: float(run.series[SUCCESS][0][-1]) for group in groups for run in group.runs}
    horizon = min(lasts.values())
    longer = sorted({group.name for group in groups for run in group.runs if lasts[run.key] > horizon})
    if longer:
        notes.append(
            f"Runs in {env} were trained for different lengths; all numbers look at the first {horizon:,.0f} steps "
            f"only (longer: {', '.join(longer)})."
        )
    if cloned := [group.name for group in groups if group.is_clone]:
        notes.append(f"Steps of {', '.join(cloned)} are samples of a dataset, not of an env: no ratio to PPO's holds.")
    rows = [replace(_row(group, horizon, threshold), baseline=group is plain) for group in groups]
    base = next((row for row in rows if row.baseline), None)
    if base is not None:
        others = [row for row in rows if row is not base]
        found = iter(_adjusted([difference(row.group, base.group, horizon, threshold) for row in others]))
        rows = [row if row is base else _costed(row, next(found), base, tuned) for row in rows]
    return Comparison(env, horizon, tuple(_with_controls(rows, horizon, threshold)), tuple(notes))


def _seed_notes(groups: Sequence[Group]) -> list[str]:
    """Methods that lack seeds others have: a run was deleted, failed, or was never made."""
    seeds = [(group.name, {run.seed for run in group.runs}) for group in groups]
    every = set().union(*(own for _, own in seeds))
    lacking = [
        f"{label} (seed{'s' if len(every - own) > 1 else ''} {', '.join(map(str, sorted(every - own)))})"
        for label, own in seeds
        if every - own
    ]
    return [f"Not all methods have the same seeds; missing: {'; '.join(lacking)}."] if lacking else []


def _compared_with(groups: Sequence[Group]) -> Group | None:
    """Plain PPO, or else the first of those that others are compared with."""
    found = [group for group in groups if group.is_baseline]
    return min(found, key=lambda group: group.label != Method.baseline, default=None)


def _setting_notes(groups: Sequence[Group], baseline: Group | None) -> list[str]:
    """Groups trained with another PPO than the baseline's: a difference between them need not be the shaping's."""
    if baseline is None:
        return []
    base = baseline.runs[0].settings
    notes = []
    for group in groups:
        other = group.runs[0].settings
        common = settings_of(baseline.alg) & settings_of(group.alg)
        different = [key for key in {**base, **other} if key in common and base.get(key) != other.get(key)]
        if different:
            notes.append(
                f"{group.name} differs from plain PPO in {', '.join(different)} too, not in its shaping alone."
            )
    return notes


def _with_controls(rows: Sequence[ResultRow], horizon: float, threshold: float) -> list[ResultRow]:
    """Each method against its own controls, all these tests adjusted together."""
    pairs: list[tuple[int, ResultRow, bool]] = []
    for i, row in enumerate(rows):
        if row.group.is_method:
            pairs += [(i, control, borrowed) for control, borrowed in _controls_of(row, rows)]
    found = _adjusted([difference(rows[i].group, control.group, horizon, threshold) for i, control, _ in pairs])
    versus: dict[int, list[VersusControl]] = {}
    for (i, control, borrowed), one in zip(pairs, found, strict=True):
        versus.setdefault(i, []).append(VersusControl.of(control.group.name, borrowed, one))
    return [replace(row, versus=tuple(versus.get(i, ()))) for i, row in enumerate(rows)]


def _controls_of(row: ResultRow, rows: Sequence[ResultRow]) -> list[tuple[ResultRow, bool]]:
    """Controls of the same algorithm, form and labels; failing that, others' that hold no labels (zero, random)."""
    controls = [one for one in rows if one.group.is_control and not one.group.is_oracle]
    same_form = [one for one in controls if one.group.form == row.group.form]
    mine = [one for one in same_form if one.group.alg == row.group.alg]
    ours = row.group.runs[0].annotator
    own = [(x, False) for x in mine if x.group.control not in SAME_LABELS or x.group.runs[0].annotator == ours]
    return own or [(one, True) for one in same_form if one.group.control in LABEL_FREE]


def difference(ours: Group, theirs: Group, horizon: float, threshold: float) -> Difference:
    """One group against another over the first `horizon` steps; p is not adjusted yet."""
    rng = generator(0, "report", "difference", ours.env, ours.label, theirs.label)
    crossed = [_crossings(group, threshold) for group in (ours, theirs)]
    times = [restrict(side, horizon) for side in crossed]
    ratio = None
    someone_got_there = any(not censored.all() for _, censored in times)
    if someone_got_there and times[1][0].mean() > 0:
        ratio = steps_ratio(crossed[0], crossed[1], horizon, rng, origins=(ours.origins, theirs.origins))
    (_, mine), (_, other) = (final_and_average(group, horizon) for group in (ours, theirs))
    seeds = [by_seed(group, averages) for group, averages in ((ours, mine), (theirs, other))]
    paired, origins = None, (ours.origins, theirs.origins)
    if several(*origins):  # seeds on one dataset would say nothing of another
        paired = compare_over_datasets(mine, other, origins)
    elif all(seeds) and len(set(seeds[0]) & set(seeds[1])) >= 2:
        paired = st.paired_test(seeds[0], seeds[1], rng)
    return Difference(ratio, nested_improvement(mine, other, origins, rng), paired)


def _adjusted(found: Sequence[Difference]) -> list[Difference]:
    adjusted = iter(st.holm([one.p.value for one in found if one.p is not None]))
    return [one if one.p is None else replace(one, p=replace(one.p, holm=next(adjusted))) for one in found]


def by_seed(group: Group, values: NDArray[np.float64]) -> dict[int, float]:
    """One value of each run for each seed, averaged over draws of labels where each seed has all of them.

    Empty where some seed has several runs and draws and seeds are not crossed: such runs have no single partner.
    """
    found: dict[int, dict[str, float]] = {}
    for run, value in zip(group.runs, values, strict=True):
        found.setdefault(run.seed, {})[run.potential] = float(value)
    draws = {run.potential for run in group.runs}
    if len(group.runs) > len(found) and any(set(own) != draws for own in found.values()):
        return {}
    return {seed: float(np.mean(list(own.values()))) for seed, own in found.items()}


def _costed(row: ResultRow, found: Difference, base: ResultRow, tuned: int) -> ResultRow:
    """Held against the base, and with the steps that were taken beforehand charged whole to this one task, and shared
    by as many as pay them back, those of tuning too.
    """
    row = replace(row, verdict=found.verdict.words, **vars(found))
    collected = np.mean([run.collect_steps for run in row.group.runs])
    if row.ratio is None or (collected <= 0 and not (tuned and row.group.is_method)):
        return row
    whole = float((row.steps + collected) / base.steps) if collected > 0 else None
    payback = Payback.of(round(float(collected)) + tuned, row.ratio, base.steps) if row.group.is_method else None
    return replace(row, with_collection=whole, payback=payback)


def _row(group: Group, horizon: float, threshold: float) -> ResultRow:
    rng = generator(0, "report", group.env, group.label)
    finals, averages = final_and_average(group, horizon)
    by_draw: dict[str, list[float]] = {}
    for run, value in zip(group.runs, averages, strict=True):
        by_draw.setdefault(run.potential, []).append(float(value))
    split = split_variance(by_draw, {run.potential: run.dataset for run in group.runs})
    final, average = (nested_interval(values, group.origins, rng).clipped() for values in (finals, averages))
    steps = summarise_steps(_crossings(group, threshold), horizon, rng, group.origins)
    return ResultRow(
        label=group.name,
        alg=group.alg,
        form=group.form,
        guarantee=group.guarantee,
        unguarded=group.unguarded,
        control=group.is_control,
        baseline=False,
        n=len(group.runs),
        seeds=", ".join(str(seed) for seed in sorted({run.seed for run in group.runs})),
        draws=len({run.potential for run in group.runs if run.potential}),
        datasets=len({run.dataset for run in group.runs if run.dataset}),
        rests_on=origins_text(group),
        final=final,
        average=average,
        reached=len(group.runs) - steps.censored,
        steps=steps.restricted.estimate,
        steps_text=steps_text(steps),
        steps_interval=steps.restricted,
        verdict="",
        with_collection=None,
        collected=round(float(np.mean([run.collect_steps for run in group.runs]))) or None,
        split=None if split is None else replace(split, label=group.name, over_draws=split.over_draws.clipped()),
        grid=steps.grid,
        group=group,
    )


def origins_text(group: Group) -> str:
    """ "3 datasets, 6 draws of labels", "3 draws of labels", or "" where there is one of each."""
    datasets, draws = (len({one for one in found if one}) for found in zip(*group.origins, strict=True))
    several = [f"{datasets} datasets"] if datasets > 1 else []
    return ", ".join([*several, *([f"{draws} draws of labels"] if draws > max(datasets, 1) else [])])


def steps_text(steps: StepsSummary) -> str:
    """Mean steps to the threshold: "141k", "at least 300k", "never"."""
    if steps.censored == steps.n:
        return "never"
    return ("at least " if steps.censored else "") + step_label(steps.restricted.estimate)


def _crossings(group: Group, threshold: float) -> list[Crossing]:
    return [steps_to_threshold(*run.series[SUCCESS], threshold) for run in group.runs]
