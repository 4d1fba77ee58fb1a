"""Which lines stand in which figure of an env, how they look, and the values the page needs to draw them.

At most ``MOST_LINES`` lines a figure: methods first, in all their forms of shaping; then, in small multiples, each
method among its own controls. Plain PPO stands in every one.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bkrl.core.reporter import percent
from bkrl.core.seeds import generator
from bkrl.methods import find_method
from bkrl.report.comparison import Comparison
from bkrl.report.groups import LENGTH, RETURN, SUCCESS, Group, curves_of, final_and_average
from bkrl.report.model import CurveLine
from bkrl.report.plots.draw import COLOURS, Drawing, Style, draw
from bkrl.stats import intervals as st
from bkrl.stats.curves import Band, band
from bkrl.stats.intervals import step_label

MOST_LINES = 8
METRICS = (
    (SUCCESS, "{measure} rate", True),
    (RETURN, "episode return", False),
    (LENGTH, "episode length (steps)", False),
)
PROFILE_POINTS = 51
MOST_TASKS = 50

# A colour for each algorithm and each kind of control, a pattern for each form of shaping: figures agree.
_CONTROL_SLOTS = {"shuffled": 5, "zero": 7, "random": 6, "random labels": 4, "return labels": 3}
_DASHES = {
    "none": "6 4",
    "pbrs": "",
    "advice": "8 3",
    "pbrs+advice": "12 3 2 3 2 3",
    "decay": "2 3",
    "progress": "9 2 1 2",
    "progress+start": "9 2 1 2 1 2",
    "pbim": "10 3 2 3",
}
_OTHER_DASHES = ("", "8 3", "2 3", "10 3 2 3", "4 2", "1 4")


def styles_of(groups: Sequence[Group]) -> dict[str, Style]:
    """One look for each label in an env, no two alike."""
    found: dict[str, Style] = {}
    for group in groups:
        slot = _CONTROL_SLOTS.get(group.control) if group.is_control else _colour(group.alg)
        wanted = Style(7 if slot is None else slot, _DASHES.get(group.form, "4 2"))
        found[group.label] = next(one for one in _from(wanted) if one not in found.values() or len(found) >= 48)
    return found


def _colour(alg: str) -> int | None:
    method = find_method(alg)
    return None if method is None or method.colour not in range(len(COLOURS)) else method.colour


def _from(wanted: Style) -> Iterator[Style]:
    """The look that is wanted, then others: the same colour in other patterns, then other colours."""
    yield wanted
    for turn in range(len(COLOURS)):
        for dash in _OTHER_DASHES:
            yield Style((wanted.slot + turn) % len(COLOURS), dash)
    yield wanted


def panels(groups: Sequence[Group]) -> list[tuple[str, list[Group]]]:
    """The figures of an env as (title, groups), none with more than `MOST_LINES` lines, every group in one of them."""
    base = [group for group in groups if group.is_baseline]
    others = [group for group in groups if not group.is_baseline]
    if len(groups) <= MOST_LINES:
        return [("", list(groups))]
    controls = [group for group in others if group.is_control]
    methods = [group for group in others if not group.is_control]
    found = _cut("methods", base, methods)
    for alg in dict.fromkeys(group.alg for group in controls):
        own = [group for group in methods if group.alg == alg]
        mine = [group for group in controls if group.alg == alg]
        forms = list(dict.fromkeys(group.form for group in mine))
        whole = len(own) + len(mine) + len(base) <= MOST_LINES
        for form in forms if not whole else [""]:
            chosen = [group for group in (*own, *mine) if form in ("", group.form)]
            title = f"{alg} and its controls" + (f", {form}" if form and len(forms) > 1 else "")
            found += _cut(title, base, chosen)
    return found


def _cut(title: str, base: Sequence[Group], groups: Sequence[Group]) -> list[tuple[str, list[Group]]]:
    room = MOST_LINES - len(base)
    if len(groups) <= room:
        return [(title, [*base, *groups])] if groups else []
    forms = list(dict.fromkeys(group.form for group in groups))
    if len(forms) > 1:
        return [
            panel
            for form in forms
            for panel in _cut(f"{title}, {form}", base, [group for group in groups if group.form == form])
        ]
    pieces = -(-len(groups) // room)
    size = -(-len(groups) // pieces)
    return [(f"{title} ({i + 1} of {pieces})", [*base, *groups[i * size : (i + 1) * size]]) for i in range(pieces)]


def bands_of(comparison: Comparison, groups: Sequence[Group], metric: str) -> list[Band]:
    """The curve of each method with its interval, for one metric."""
    return [
        band(group.legend, curves, generator(0, "report", "curve", comparison.env, group.label, metric))
        for group in groups
        if (curves := curves_of(group, metric))
    ]


def profiles_of(comparison: Comparison, groups: Sequence[Group]) -> list[Band]:
    """Performance profiles: the share of runs whose mean success in training exceeds τ, for τ in [0, 1]."""
    tau = np.linspace(0.0, 1.0, PROFILE_POINTS)
    found = []
    for group in groups:
        _, scores = final_and_average(group, comparison.horizon)
        rng = generator(0, "report", "profile", comparison.env, group.label)
        share, low, high = st.performance_profile(scores, tau, rng, repetitions=500)
        if few := len(scores) < st.FEW_SEEDS:  # a bootstrap of fewer would look far too sure
            low = high = np.full_like(share, np.nan)
        found.append(Band(group.legend, tau, share, low, high, len(scores), "none" if few else "bootstrap"))
    return found


@dataclass(frozen=True)
class LegendLine:
    """A line in a legend; `same` is the label of an earlier line that it covers."""

    label: str
    n: int
    slot: int
    dash: str
    same: str


@dataclass(frozen=True)
class Figure:
    """A figure of the page. `lines` and `points`: its values, for a pointer and as rows of a table; `share`: they are
    shares. `small`: one of several side by side; `folded`: shown on demand.
    """

    title: str
    ylabel: str
    xlabel: str
    panel: str
    drawing: Drawing
    legend: Sequence[LegendLine]
    lines: Sequence[CurveLine]
    share: bool
    note: str
    points: Sequence[Sequence[str]]
    small: bool = False
    folded: bool = False


def figures_of(number: int, comparison: Comparison, threshold: float) -> list[Figure]:
    """All figures of an env: success in each panel, then return, length and profiles of the first panel's methods."""
    groups = [row.group for row in comparison.rows]
    styles = styles_of(groups)
    split = panels(groups)
    wanted = [(f"w{number}-p{i}", METRICS[0], members, title, i > 0, False) for i, (title, members) in enumerate(split)]
    title, members = split[0]
    wanted += [(f"w{number}-m{i}", metric, members, title, False, True) for i, metric in enumerate(METRICS[1:])]
    found = []
    for name, metric, members, title, small, folded in wanted:
        if shown := [group for group in members if curves_of(group, metric[0])]:
            one = _curves(name, comparison, shown, styles, threshold, metric, title)
            found.append(replace(one, small=small, folded=folded))
    costs = _costs(f"w{number}-cost", comparison, styles)
    found += [costs] if costs else []
    several = [group for group in split[0][1] if len(group.runs) > 1]  # a profile of one run is a step
    return found + ([_profile(f"w{number}-profile", comparison, several, styles)] if several else [])


def _curves(
    name: str,
    comparison: Comparison,
    groups: Sequence[Group],
    styles: dict[str, Style],
    threshold: float,
    metric: tuple[str, str, bool],
    panel: str,
) -> Figure:
    key, ylabel, share = metric[0], metric[1].format(measure=comparison.measure), metric[2]
    bands = bands_of(comparison, groups, key)
    looks = [styles[group.label] for group in groups]
    ends = "; ".join(f"{b.label}: {percent(b.centre[-1]) if share else f'{b.centre[-1]:.3g}'}" for b in bands)
    return _figure(
        name,
        bands,
        looks,
        f"{ylabel} against environment steps in {comparison.env}. At the end: {ends}.",
        share,
        threshold=threshold if share else None,
        title=ylabel,
        ylabel=ylabel,
        xlabel="environment steps",
        panel=panel,
        note=f"{ylabel.capitalize()} of the policy, sampled, on seeded episodes. {_what_lines_are(bands)}",
    )


def _profile(name: str, comparison: Comparison, groups: Sequence[Group], styles: dict[str, Style]) -> Figure:
    bands = profiles_of(comparison, groups)
    return _figure(
        name,
        bands,
        [styles[group.label] for group in groups],
        f"Performance profiles in {comparison.env}: share of runs above each mean success in training.",
        True,
        at_text=lambda x: f"{x:.1f}",
        title="performance profile",
        ylabel="share of runs above τ",
        xlabel="τ: mean success in training",
        panel="performance profile",
        note="The share of runs whose mean success in training is above τ (Agarwal et al. 2021): higher is better, "
        "and where a line is never below another’s, these runs did better whatever the aim."
        + (" Shaded: 95 % bootstrap intervals over runs." if any(b.method != "none" for b in bands) else ""),
        small=True,
    )


def _costs(name: str, comparison: Comparison, styles: dict[str, Style]) -> Figure | None:
    """What several tasks cost each method, what was spent once included, and plain PPO; None where nothing was."""
    rows = [(row.group, row.payback, row.ratio, row.n) for row in comparison.rows if row.payback and row.ratio]
    base, rows = comparison.baseline, rows[: MOST_LINES - 1]
    if base is None or not rows:
        return None
    last = max((paid.tasks for _, paid, _, _ in rows if paid.tasks is not None), default=0.0)
    tasks = np.arange(min(MOST_TASKS, max(5, math.ceil(1.5 * last))) + 1, dtype=float)
    unknown = np.full(len(tasks), np.nan)
    bands = [Band(base.group.legend, tasks, tasks, unknown, unknown, base.n, "none")]
    for group, paid, ratio, n in rows:
        line, low, high = (paid.once + tasks * end for end in (ratio.estimate, ratio.low, ratio.high))
        bands.append(Band(group.legend, tasks, line, low, high, n, ratio.method))
    said = "; ".join(f"{group.legend}: {paid}" for group, paid, _, _ in rows)
    return _figure(
        name,
        bands,
        [styles[group.label] for group in (base.group, *(row[0] for row in rows))],
        f"What several tasks cost in {comparison.env}. Tasks after which a method has paid back: {said}.",
        False,
        at_text=lambda x: f"{x:.0f}",
        title="what several tasks cost, the dataset included",
        ylabel="steps, in plain PPO’s for one task",
        xlabel="tasks like this one",
        panel="cost",
        note="Each line begins at what was spent once and rises by the steps to the threshold for each task. Where it "
        f"crosses plain PPO’s, that is paid back. Tasks until then: {said}. Shaded: the ratio’s 95 % interval.",
        folded=True,
    )


def _figure(
    name: str,
    bands: Sequence[Band],
    looks: Sequence[Style],
    description: str,
    share: bool,
    *,
    threshold: float | None = None,
    at_text: Callable[[float], str] | None = None,
    **words: Any,
) -> Figure:
    """Lines drawn, with their legend and their values. `at_text`: of an axis that is none of env steps."""
    steps = at_text is None
    drawing = draw(bands, looks, name=name, description=description, share=share, threshold=threshold, steps=steps)
    lines = [CurveLine(*(values.tolist() for values in (b.steps, b.centre, b.low, b.high))) for b in bands]
    points = _points(bands, share, at_text or step_label)
    return Figure(drawing=drawing, legend=_legend(bands, looks), lines=lines, share=share, points=points, **words)


def _what_lines_are(bands: Sequence[Band]) -> str:
    """What lines and bands of learning curves are, for as many runs as there are."""
    methods = {b.method for b in bands}
    lines = {"bootstrap": "interquartile means over runs (n each)", "t": "means over runs (n each)"}
    known = [words for method, words in lines.items() if method in methods]
    if not known:
        return "Lines: one run each."
    shaded = {"bootstrap": "bootstrap", "t": "Student’s t"}
    some = " or ".join(words for method, words in shaded.items() if method in methods)
    lined = known[0] if len(known) == 1 else f"interquartile means over runs (n each), means below {st.FEW_SEEDS}"
    return f"Lines: {lined}; shaded: 95 % intervals ({some}) at each step on its own."


def _legend(bands: Sequence[Band], looks: Sequence[Style]) -> list[LegendLine]:
    return [
        LegendLine(b.label, b.n, look.slot, look.dash, _same(b, bands[:i]))
        for i, (b, look) in enumerate(zip(bands, looks, strict=True))
    ]


def _same(band: Band, before: Sequence[Band]) -> str:
    """The label of an earlier line that hides this one, point for point; "" without one."""
    for other in before:
        if np.array_equal(band.steps, other.steps) and np.allclose(
            band.centre, other.centre, atol=1e-9, equal_nan=True
        ):
            return other.label
    return ""


def _points(bands: Sequence[Band], share: bool, at_text: Callable[[float], str] = step_label) -> list[list[str]]:
    """The curves as a table for those who cannot see them: at most 11 steps of the widest grid."""
    grid = max((b.steps for b in bands), key=len)
    at = grid[np.unique(np.linspace(0, len(grid) - 1, 11).astype(int))]
    show = percent if share else (lambda y: f"{y:.3g}")
    return [
        [
            at_text(x),
            *(show(float(np.interp(x, b.steps, b.centre))) if b.steps[0] <= x <= b.steps[-1] else "–" for b in bands),
        ]
        for x in at
    ]
