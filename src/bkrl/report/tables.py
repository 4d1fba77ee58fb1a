"""Rows of the results tables: as plain values for the page and results.json, as text for the terminal and Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bkrl.core.reporter import percent
from bkrl.report import findings as words
from bkrl.report.comparison import Comparison, Difference, Row
from bkrl.report.groups import Group
from bkrl.stats.curves import step_label
from bkrl.stats.intervals import Interval


def text_table(comparisons: Sequence[Comparison], threshold: float) -> dict[str, Any]:
    """The results table as text: `header` and `rows` of strings and numbers."""
    goal = percent(threshold)
    header = [
        "world", "method", "form", "n", "success", "95 % interval", f"reached {goal}", f"steps to {goal}",
        "x PPO's steps", "verdict",
    ]  # fmt: skip
    rows = [
        [
            comparison.env,
            row.group.label,
            form_text(row),
            row.n,
            percent(row.final.estimate),
            words.interval_text(row.final) if row.final.known else "–",
            f"{row.n - row.steps.censored} of {row.n}",
            steps_text(row),
            ratio_cell(row.against),
            "–" if row.against is None else row.against.verdict.words,
        ]
        for comparison in comparisons
        for row in comparison.rows
    ]
    return {"header": header, "rows": rows}


def form_text(row: Row) -> str:
    """The form of shaping, marked where it keeps nothing."""
    if row.group.form == "none":
        return "–"
    return row.group.form + (", no guarantee" if row.group.unguarded else "")


def rests_on(group: Group) -> str:
    """ "3 datasets, 6 draws of labels", "3 draws of labels", or "" where there is one of each."""
    datasets, draws = (len({one for one in found if one}) for found in zip(*group.origins, strict=True))
    told = [f"{datasets} datasets"] if datasets > 1 else []
    return ", ".join([*told, *([f"{draws} draws of labels"] if draws > max(datasets, 1) else [])])


def steps_text(row: Row) -> str:
    """Mean steps to the threshold: "141k", "at least 300k", "never"."""
    if row.steps.censored == row.n:
        return "never"
    return ("at least " if row.steps.censored else "") + step_label(row.steps.restricted.estimate)


def ratio_cell(difference: Difference | None) -> str:
    """A ratio of steps with its interval: "at least 1.42 (1.20 to 1.62)"."""
    if difference is None or difference.ratio is None:
        return "–"
    interval = difference.ratio.ratio
    spread = f" ({interval.low:.2f} to {interval.high:.2f})" if interval.known else " (no interval)"
    return words.ratio_text(difference.ratio) + spread


def row_values(row: Row) -> dict[str, Any]:
    """A row of the results table as plain values."""
    group = row.group
    return {
        "label": group.label,
        "alg": group.alg,
        "form": group.form,
        "guarantee": group.guarantee,
        "unguarded": group.unguarded,
        "control": group.is_control,
        "baseline": group.is_baseline,
        "n": row.n,
        "seeds": ", ".join(str(seed) for seed in sorted({run.seed for run in group.runs})),
        "draws": len({run.potential for run in group.runs if run.potential}),
        "datasets": len({run.dataset for run in group.runs if run.dataset}),
        "rests_on": rests_on(group),
        "final": interval_values(row.final),
        "average": interval_values(row.average),
        "reached": row.n - row.steps.censored,
        "steps": row.steps.restricted.estimate,
        "steps_text": steps_text(row),
        "steps_interval": interval_values(row.steps.restricted),
        "verdict": "" if group.is_baseline or row.against is None else row.against.verdict.words,
        "with_collection": row.ratio_with_collection,
        "collected": group.runs[0].collect_steps or None,
        "split": None if row.split is None else split_values(row),
        "versus": [
            {"control": one.control, "borrowed": one.borrowed, "verdict": one.difference.verdict.words,
             "tone": words.TONE_OF[one.difference.verdict.sign], **difference_values(one.difference)}
            for one in row.versus
        ],
        **difference_values(row.against or Difference()),
    }  # fmt: skip


def difference_values(difference: Difference) -> dict[str, Any]:
    """Ratio of steps, probability of improvement and paired test as plain values, None where unknown."""
    shown: dict[str, Any] = {"ratio": None, "improvement": None, "p": None}
    if difference.ratio is not None:
        shown["ratio"] = interval_values(difference.ratio.ratio) | {
            "bound": difference.ratio.bound,
            "text": words.ratio_text(difference.ratio),
            "censored": list(difference.ratio.censored),
        }
    if difference.improvement is not None:
        shown["improvement"] = interval_values(difference.improvement)
    if difference.paired is not None:
        shown["p"] = {
            "value": difference.paired.p,
            "holm": difference.p_holm,
            "smallest": difference.paired.smallest_p,
            "n": difference.paired.n,
            "units": difference.paired.units,
            "difference": interval_values(difference.paired.difference),
        }
    return shown


def split_values(row: Row) -> dict[str, Any]:
    """The variance split of a row as plain values; standard deviations in the unit of mean success."""
    split = row.split
    if split is None:
        return {}
    return {
        "label": row.group.label,
        "draws": split.draws,
        "datasets": split.datasets,
        "n": split.n,
        "parts": [vars(part) for part in split.parts],
        "between_sd": split.between**0.5,
        "within_sd": split.within**0.5,
        "share": split.share,
        "p": split.p,
        "over_draws": interval_values(split.over_draws),
    }


def interval_values(interval: Interval) -> dict[str, Any]:
    """An interval as plain values."""
    return {
        "estimate": interval.estimate,
        "low": interval.low,
        "high": interval.high,
        "known": interval.known,
        "method": interval.method,
        "n": interval.n,
    }
