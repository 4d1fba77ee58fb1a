"""What the numbers say, in plain sentences, the uncomfortable ones first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from bkrl.report import statistics as st
from bkrl.report.comparison import Comparison, Row
from bkrl.report.curves import step_label

Tone = Literal["caution", "against", "open", "for"]
_ORDER: tuple[Tone, ...] = ("caution", "against", "open", "for")

RULES_SENTENCE = (
    "The labels come from the embedded rules annotator: hand-written heuristics, not a language model. Nothing on this "
    "page shows what a language model knows; it shows what the method does with such knowledge."
)


@dataclass(frozen=True)
class Finding:
    """One sentence of the summary. `tone`: a reason for care, against the method, undecided, or for it.

    `worlds`: what it is about; empty when about all.
    """

    tone: Tone
    text: str
    worlds: tuple[str, ...] = ()


def headline(comparisons: Sequence[Comparison]) -> str:
    """One sentence above all others."""
    methods = [
        (comparison, row)
        for comparison in comparisons
        if comparison.baseline is not None
        for row in comparison.rows
        if _is_method(row)
    ]
    if not methods:
        return "Nothing is compared here: it takes plain PPO and a shaped method in the same world."
    faster = [row for _, row in methods if row.ratio is not None and row.ratio.faster]
    slower = [row for _, row in methods if row.ratio is not None and row.ratio.slower]
    n = min(min(row.n, comparison.baseline.n) for comparison, row in methods if comparison.baseline is not None)
    total = len(methods)
    cases = "the only case" if total == 1 else f"{len(faster)} of {total} cases"
    if not faster:
        text = "No gain over plain PPO is shown" + (
            f", and {len(slower)} of {total} methods are slower" if slower else ""
        )
    elif total == 1:
        text = "Background knowledge helped in the only case compared"
    else:
        text = f"Background knowledge helped in {cases}"
        text += f" and hurt in {len(slower)}" if slower else ""
    if n < st.FEW_SEEDS:
        text += f"; with {n} seed{'s' if n > 1 else ''} per method this is a hint, not a result"
    return text + "."


def findings(
    comparisons: Sequence[Comparison], threshold: float, rules: bool, problems: Sequence[str]
) -> list[Finding]:
    """All sentences of the summary: reasons for care first, then what speaks against, what is open, what speaks for."""
    found = [Finding("caution", problem) for problem in problems]
    if rules:
        found.append(Finding("caution", RULES_SENTENCE))
    worlds = {comparison.env for comparison in comparisons}
    if len(worlds) > 1:
        found.append(
            Finding("caution", f"{len(worlds)} worlds stand side by side here; they are never pooled or averaged.")
        )
    for comparison in comparisons:
        found += [replace(one, worlds=(comparison.env,)) for one in _of_world(comparison, threshold)]
    return sorted(_merged(found), key=lambda one: _ORDER.index(one.tone))


def _merged(found: Sequence[Finding]) -> list[Finding]:
    """What holds of several worlds is said once."""
    merged: dict[tuple[Tone, str], Finding] = {}
    for one in found:
        before = merged.get((one.tone, one.text))
        merged[one.tone, one.text] = one if before is None else replace(one, worlds=before.worlds + one.worlds)
    return list(merged.values())


def percent(x: float, digits: int = 0) -> str:
    return "–" if math.isnan(x) else f"{100 * x:.{digits}f} %"


def interval_text(interval: st.Interval) -> str:
    """The interval of a share, in percent: "71 to 92 %"."""
    return f"{100 * interval.low:.0f} to {100 * interval.high:.0f} %" if interval.known else "no interval from one run"


def ratio_text(ratio: st.StepsRatio) -> str:
    """The ratio with what censoring does to it: "at most 0.45"."""
    return f"{ratio.bound} {ratio.ratio.estimate:.2f}".strip() if ratio.bound != "unknown" else "not known"


def _of_world(comparison: Comparison, threshold: float) -> list[Finding]:
    base = comparison.baseline
    found = [Finding("caution", note) for note in comparison.notes]
    n = min(row.n for row in comparison.rows)
    warning = st.few_seeds_warning(n)
    if warning:
        found.append(Finding("caution", warning))
    methods = [row for row in comparison.rows if _is_method(row)]
    controls = [row for row in comparison.rows if row.group.is_control]
    if base is None:
        found.append(Finding("caution", "There is no plain PPO run here, so whether anything helps cannot be said."))
        return found
    found += [_verdict(comparison, row, base, threshold) for row in methods]
    if methods and not controls:
        found.append(
            Finding(
                "caution",
                "No control potential (zero, random, shuffled labels) was trained with, so a gain could come "
                "from shaping as such and not from what the labels say.",
            )
        )
    for control in controls:
        if control.ratio is not None and control.ratio.faster:
            found.append(
                Finding(
                    "against",
                    f"The control {control.group.label} is faster than plain PPO as well "
                    f"({_ratio_sentence(control.ratio)}); the gain of the method it stands for is not due "
                    "to knowledge.",
                )
            )
    return found


def _is_method(row: Row) -> bool:
    return row.group.alg.startswith("bk-") and not row.group.is_control


def _verdict(comparison: Comparison, row: Row, base: Row, threshold: float) -> Finding:
    label, goal = row.group.label, percent(threshold)
    seeds = f"n = {row.n} against {base.n}"
    end = f"success at the end {percent(row.final.estimate)} against {percent(base.final.estimate)}"
    if row.ratio is None:
        return Finding(
            "open",
            f"Neither {label} nor plain PPO reached {goal} within {step_label(comparison.horizon)} steps "
            f"({end}; {seeds}), so steps to {goal} say nothing.",
        )
    told = f"{_ratio_sentence(row.ratio)}; {seeds}; {end}"
    if row.ratio.faster:
        return Finding("for", f"{label} reached {goal} faster than plain PPO: {told}.{_collected(row)}")
    if row.ratio.slower:
        return Finding("against", f"{label} was slower than plain PPO to reach {goal}: {told}.")
    if row.steps.censored == row.n:
        return Finding(
            "against",
            f"{label} never reached {goal} within {step_label(comparison.horizon)} steps; plain PPO did in "
            f"{base.n - base.steps.censored} of {base.n} runs ({end}).",
        )
    return Finding("open", f"No difference between {label} and plain PPO is shown: {told}.")


def _ratio_sentence(ratio: st.StepsRatio) -> str:
    interval = ratio.ratio
    spread = f"95 % interval {interval.low:.2f} to {interval.high:.2f}" if interval.known else "no interval"
    gone = [
        f"{count} {who} never got there" for count, who in zip(ratio.censored, ("of its runs", "of PPO's")) if count
    ]
    text = f"{ratio_text(ratio)} of PPO's steps, {spread}"
    if ratio.bound == "unknown":
        text = f"the ratio of steps is not known, {spread} for the part that was seen"
    return text + (f", {' and '.join(gone)}" if gone else "")


def _collected(row: Row) -> str:
    if row.ratio_with_collection is None:
        return ""
    steps = row.group.runs[0].collect_steps
    return (
        f" Counting the {step_label(steps)} steps that collected the dataset, for this one task, it is "
        f"{row.ratio_with_collection:.2f} of PPO's steps."
    )
