"""`bkrl export curves`: learning curves as one long table, each run's evaluations or each method's interval."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from bkrl.core.errors import InputError, UsageError
from bkrl.core.files import atomic_write, make_folder, write_table
from bkrl.report.comparison import compare_all
from bkrl.report.groups import Group, curves_of, group_runs
from bkrl.report.plots.figures import METRICS, bands_of
from bkrl.report.provenance import Chain, Node, follow, named
from bkrl.report.runs import training_runs

_RUN = ("world", "method", "alg", "form", "control", "seed", "run", "metric", "step", "value")
_SUMMARY = (
    "world", "method", "alg", "form", "control", "n", "metric", "step", "centre", "low", "high", "interval",
)  # fmt: skip
_KINDS = {
    "seed": pa.int64(),
    "n": pa.int64(),
    **dict.fromkeys(("step", "value", "centre", "low", "high"), pa.float64()),
}


def export_curves(
    runs: Sequence[Path], out: Path, to: Literal["csv", "parquet"], summary: bool
) -> tuple[dict[str, Any], list[str]]:
    """Write a table with one line for each evaluation of each run, or with `summary` for each point of each method's
    curve (common grid, centre and 95 % interval).

    Returns what was written, and sentences about what was left out.

    Raises:
        UsageError: `out` is there already, or no run was named.
        InputError: none of the runs can be used.
    """
    if not runs:
        raise UsageError("Name the runs, for example: bkrl export curves logs/ppo-* --to csv --out curves.csv")
    if out.exists():
        raise UsageError(f"{out} is there already; choose another --out.")
    paths = named(runs, ("train-rs",))
    chain = follow(paths)
    trained, problems = training_runs(chain, _meant(chain, paths))
    if not trained:
        raise InputError((chain.problems + problems + ["There is no train-rs run among these."])[0])
    groups, repeated = group_runs(trained)
    rows = _summaries(groups) if summary else [row for group in groups for row in _evaluations(group)]
    make_folder(out.parent)
    header = _SUMMARY if summary else _RUN
    if to == "csv":
        atomic_write(out, _csv(header, rows))
    else:
        schema = pa.schema([(name, _KINDS.get(name, pa.string())) for name in header])
        write_table(out, pa.Table.from_pylist([dict(zip(header, row, strict=True)) for row in rows], schema=schema))
    facts = {"out": out.as_posix(), "rows": len(rows), "runs": len(trained), "methods": len(groups)}
    return facts, [*chain.problems, *problems, *repeated]


def _meant(chain: Chain, paths: Sequence[Path]) -> list[Node]:
    """The train-rs runs among those named, and the nearest ones that the others rest on: not what those began from."""
    found: dict[str, Node] = {}
    queue = [chain.nodes[path.as_posix()] for path in paths if path.as_posix() in chain.nodes]
    for node in queue:  # grows
        if node.stage == "train-rs":
            found[node.key] = node
        else:
            queue += [chain.nodes[link.found] for link in node.links if link.found is not None]
    return [node for node in chain.nodes.values() if node.key in found]


def _head(group: Group) -> tuple[str, ...]:
    return (group.env, group.label, group.alg, group.form, group.control)


def _evaluations(group: Group) -> list[tuple[Any, ...]]:
    return [
        (*_head(group), run.seed, run.key, metric, float(step), float(value))
        for run in group.runs
        for metric, (steps, series) in sorted(run.series.items())
        if metric.startswith("eval/")
        for step, value in zip(steps, series, strict=True)
    ]


def _summaries(groups: Sequence[Group]) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for comparison in compare_all(groups, 0.8):
        for group in (row.group for row in comparison.rows):
            for metric, _, _ in METRICS:
                if not curves_of(group, metric):
                    continue
                (band,) = bands_of(comparison, [group], metric)
                points = zip(band.steps, band.centre, band.low, band.high, strict=True)
                rows += [
                    (*_head(group), band.n, metric, float(step), float(centre), _known(low), _known(high), band.method)
                    for step, centre, low, high in points
                ]
    return rows


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _csv(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([[_safe(value) for value in row] for row in rows])
    return out.getvalue()


def _safe(value: Any) -> Any:
    """Text that a spreadsheet would run as a formula is quoted, as a spreadsheet does it."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@") else value
