"""What the numbers say, in plain sentences, the uncomfortable ones first."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bkrl.core.reporter import percent
from bkrl.methods import Method
from bkrl.methods.shaped import WITHOUT_ADVICE
from bkrl.report.comparison import Comparison
from bkrl.report.model import TONE_OF, Difference, ResultRow, Tone
from bkrl.stats import intervals as st
from bkrl.stats.crossings import StepsRatio, bounded
from bkrl.stats.intervals import on_grid, step_label
from bkrl.stats.verdicts import ALPHA, HALF, too_few_pairs

# Where knowledge does not help, or a control does as well, is said before anything else.
_ORDER: tuple[Tone, ...] = ("against", "caution", "open", "for")
TONES: dict[Tone, str] = {"caution": "Care", "against": "Against", "open": "Open", "for": "For"}
_SAME_EVERYWHERE = "due to advice that is the same in every state, and not to what is known of states"
RULES_SENTENCE = (
    "The labels come from the rules annotator: hand-written heuristics, not a language model. Nothing on this "
    "page shows what a language model knows; it shows what the method does with such knowledge."
)


@dataclass(frozen=True)
class Finding:
    """One sentence of the summary. `tone`: a reason for care, against the method, undecided, or for it.

    `envs`: what it is about; empty when about all.
    """

    tone: Tone
    text: str
    envs: tuple[str, ...] = ()


def headline(comparisons: Sequence[Comparison]) -> str:
    """One sentence above all others."""
    methods = [row for comparison in comparisons for row in comparison.rows if row.group.is_method and row.against]
    if not methods:
        return "No shaped method is compared with plain PPO here: that takes both in the same env."
    better = [row for row in methods if _sign(row.against) > 0]
    worse = [row for row in methods if _sign(row.against) < 0]
    hinted = [row for row in methods if row.against and row.against.verdict.words == "faster, not significant"]
    known = [row for row in better if not any(_sign(one.difference) <= 0 for one in row.versus)]
    compared = [one.baseline for one in comparisons if any(row.group.is_method for row in one.rows)]
    n, total = min(row.n for row in (*compared, *methods) if row is not None), len(methods)
    if not better:
        text = "No gain over plain PPO is shown"
        text += f"; {_of_methods(len(hinted), total)} faster, not significantly" if hinted else ""
        text += f"; {_of_methods(len(worse), total)} significantly worse" if worse else ""
    elif not known:
        text = "Where a method is better than plain PPO, it does not beat a control"
    elif total == 1:
        text = "Background knowledge helped in the only case compared"
    else:
        text = f"Background knowledge helped in {len(known)} of {total} cases"
        text += f" and hurt in {len(worse)}" if worse else ""
        if len(known) < len(better):
            text += f"; in {len(better) - len(known)} more it does not beat a control"
        text += f"; {len(hinted)} more {_were(len(hinted))} faster, not significantly" if hinted else ""
    without = sum(not row.versus for row in known)
    if without:
        text += f"; {'it' if total == 1 else f'{without} of the gains'} lack{'s' if without == 1 else ''} a control run"
    if any(row.group.unguarded for row in known):
        text += "; some of these gains come from a form of shaping that guarantees nothing"
    if n < st.FEW_SEEDS:
        text += f"; with {n} seed{'s' if n > 1 else ''} per method this is a hint, not a result"
    return text + "."


def _sign(difference: Difference | None) -> int:
    return 0 if difference is None else difference.verdict.sign


def _of_methods(some: int, total: int) -> str:
    return "the method was" if total == 1 else f"{some} of {total} methods {_were(some)}"


def _were(some: int) -> str:
    return "was" if some == 1 else "were"


def findings(
    comparisons: Sequence[Comparison], threshold: float, rules: bool, problems: Sequence[str]
) -> list[Finding]:
    """All sentences of the summary: what speaks against first, then reasons for care, what is open, what speaks for."""
    envs = len({comparison.env for comparison in comparisons})
    apart = f"{envs} envs stand side by side here; they are never pooled or averaged." if envs > 1 else ""
    found = _cautions([*problems, RULES_SENTENCE if rules else "", apart])
    for comparison in comparisons:
        found += [replace(one, envs=(comparison.env,)) for one in _of_env(comparison, threshold)]
    return sorted(_merged(found), key=lambda one: _ORDER.index(one.tone))


def _merged(found: Sequence[Finding]) -> list[Finding]:
    """What holds of several envs is said once."""
    merged: dict[tuple[Tone, str], Finding] = {}
    for one in found:
        before = merged.get((one.tone, one.text))
        merged[one.tone, one.text] = one if before is None else replace(one, envs=before.envs + one.envs)
    return list(merged.values())


def _of_env(comparison: Comparison, threshold: float) -> list[Finding]:
    base = comparison.baseline
    cautions = [*comparison.notes, _few_seeds(comparison)]
    methods = [row for row in comparison.rows if row.group.is_method]
    controls = [row for row in comparison.rows if row.group.is_control and not row.group.is_oracle]
    if base is None:
        cautions.append("There is no plain PPO run here, so whether anything helps cannot be said.")
        return _cautions(cautions)
    if base.group.label != Method.baseline:
        cautions.append(f"There is no plain PPO here: {base.group.name} stands in its place, also where PPO is named.")
    cautions.append(too_few_pairs([row.against.p for row in comparison.rows if row.against is not None]))
    for row in comparison.rows:
        cautions += [row.group.doubt, _of_form(row), _of_advice(row), "" if row.group.is_control else _of_draws(row)]
    if methods and not controls:
        cautions.append(
            "No control potential (zero, random, shuffled labels) was trained with, so a gain could come from shaping "
            "as such and not from what the labels say."
        )
    found = _cautions(cautions)
    for row in methods:
        found.append(_verdict(comparison, row, base, threshold))
        found += _against_controls(row, threshold)
    for control in controls:
        if _sign(control.against) > 0:
            not_due = _SAME_EVERYWHERE if control.group.control == "constant" else "not due to knowledge"
            found.append(
                Finding(
                    "against",
                    f"The control {control.group.name} is better than plain PPO as well "
                    f"({_difference_sentence(control.against, 'PPO')}): so much of a gain is {not_due}.",
                )
            )
    return found


def _cautions(texts: Sequence[str]) -> list[Finding]:
    return [Finding("caution", text) for text in texts if text]


def _few_seeds(comparison: Comparison) -> str:
    """A warning about the methods with too few seeds, by name where others have enough."""
    few = [row for row in comparison.rows if row.n < st.FEW_SEEDS]
    if not few:
        return ""
    whose = ", ".join(row.group.name for row in few) + ": " if len(few) < len(comparison.rows) else ""
    return whose + st.few_seeds_warning(min(row.n for row in few))


def _verdict(comparison: Comparison, row: ResultRow, base: ResultRow, threshold: float) -> Finding:
    label, goal = row.group.name, percent(threshold)
    seeds = f"n = {row.n} against {base.n}"
    end = f"success at the end {percent(row.final.estimate)} against {percent(base.final.estimate)}"
    found = (row.against or Difference()).verdict
    tone: Tone = TONE_OF[found.sign]
    said = found.sentence.format(goal=goal, other="plain PPO")
    parts = [_difference_sentence(row.against, "PPO"), seeds, end]
    if row.ratio is None:
        said = f"and plain PPO both never reached {goal} within {step_label(comparison.horizon)} steps"
        if base.reached:
            said = f"could not be sooner: plain PPO was at {goal} before it was trained"
        said += "; it " + found.sentence.format(goal=goal, other="plain PPO") if found.sign else ""
    elif not row.reached and not found.sign:
        tone = "against"
        said = (
            f"never reached {goal} within {step_label(comparison.horizon)} steps; plain PPO did in "
            f"{base.reached} of {base.n} runs"
        )
    figures = "; ".join(part for part in parts if part)
    return Finding(tone, f"{label} {said}: {figures}.{_collected(row) if found.sign > 0 else ''}")


def _against_controls(row: ResultRow, threshold: float) -> list[Finding]:
    """A method against each of its controls. A gain that a control may have too is held against it."""
    found = []
    gains = _sign(row.against) > 0
    for one in row.versus:
        verdict = one.difference.verdict
        control = f"its control {one.control}{' (made for another method)' if one.borrowed else ''}"
        figures = _difference_sentence(one.difference, "the control") or "nothing was tested"
        tone: Tone = "against" if gains and verdict.sign <= 0 else TONE_OF[verdict.sign]
        said = verdict.sentence.format(goal=percent(threshold), other=control)
        found.append(Finding(tone, f"{row.group.name} {said}: {figures}."))
    return found


def _difference_sentence(difference: Difference | None, other: str) -> str:
    parts = []
    if difference is not None and difference.ratio is not None:
        parts.append(_ratio_sentence(difference.ratio, other))
    if difference is not None and (paired := difference.p) is not None:
        points, p = 100 * paired.difference.estimate, paired.holm
        units = f"{paired.n} {'shared seeds' if paired.units == 'pairs' else paired.units}"
        parts.append(f"mean success in training {points:+.1f} points, p (Holm) = {p:.2g} over {units}")
    return "; ".join(parts)


def _of_form(row: ResultRow) -> str:
    if not row.group.unguarded or not (row.group.is_method or row.group.is_control):
        return ""
    why = row.group.guarantee.rstrip(".")
    return f"{row.group.name} has no guarantee ({why}): whatever it gains may be another task's solution."


def _of_draws(row: ResultRow) -> str:
    """Only where datasets or draws of labels matter; the table of the env has all of them."""
    split = row.split
    if split is None or (split.share < HALF and split.p >= ALPHA):
        return ""
    whole, drawn = split.over_draws, "datasets" if split.datasets > 1 else "draws of labels"
    shown = f" ({percent(whole.low, 1)} to {percent(whole.high, 1)})" if whole.known else ""
    parts = ", ".join(
        f"{percent(part.share)} {'lies ' if number == 0 else ''}between {part.name}"
        for number, part in enumerate(split.parts)
    )
    other = "" if split.datasets > 1 else "; the other intervals speak of these draws alone"
    return (
        f"{row.group.name} rests on {whole.n} {drawn}: of the variance of mean success {parts} (n = {split.n}, F test "
        f"of no difference between {drawn} p = {split.p:.2g}). Over {drawn} its mean is "
        f"{percent(whole.estimate, 1)}{shown}{other}."
    )


def _of_advice(row: ResultRow) -> str:
    """A form of shaping that takes advice where there was none to take; of Φ = 0 that is the point."""
    if not row.group.empty or row.group.control == "zero":
        return ""
    return (
        f"{row.group.name} is {WITHOUT_ADVICE[row.group.form]} under another name: the advice of its potential is "
        "empty (Ψ = 0), so it says nothing of what advice is worth."
    )


def _ratio_sentence(ratio: StepsRatio, other: str) -> str:
    spread = f"95 % interval {ratio.low:.2f} to {ratio.high:.2f}" if ratio.known else "no interval"
    if grid := on_grid(ratio, ratio.grid):
        spread = f"no finer than the {grid} between evaluations"
    owners = ("of its runs", f"of {other}’s")
    gone = [f"{count} {who} never got there" for count, who in zip(ratio.censored, owners) if count]
    text = f"{ratio.text} of {other}’s steps, {spread}"
    if ratio.bound == "unknown":
        text = f"the ratio of steps is not known, {spread} for the part that was seen"
    return text + (f", {' and '.join(gone)}" if gone else "")


def _collected(row: ResultRow) -> str:
    if row.ratio is None or row.with_collection is None or row.collected is None:
        return ""
    return (
        f" Counting the {step_label(row.collected)} steps that were taken beforehand, for this one task, it is "
        f"{bounded(row.with_collection, row.ratio.bound)} of PPO’s steps"
        + (f"; tasks after which they are paid back: {row.payback}." if row.payback else ".")
    )
