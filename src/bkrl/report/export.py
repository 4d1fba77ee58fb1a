"""`bkrl export curves`: the evaluations of training runs as one long table."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from bkrl.core.errors import InputError, UsageError
from bkrl.core.files import atomic_write, make_folder, write_table
from bkrl.report.groups import Group, group_runs
from bkrl.report.provenance import Chain, Node, follow, named
from bkrl.report.runs import training_runs

_RUN = ("world", "method", "alg", "form", "control", "seed", "run", "metric", "step", "value")
_KINDS = {"seed": pa.int64(), "step": pa.float64(), "value": pa.float64()}


def export_curves(runs: Sequence[Path], out: Path, to: Literal["csv", "parquet"]) -> tuple[dict[str, Any], list[str]]:
    """Write a table with one line for each evaluation of each run.

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
    rows = [row for group in groups for row in _evaluations(group)]
    make_folder(out.parent)
    if to == "csv":
        atomic_write(out, _csv(_RUN, rows))
    else:
        schema = pa.schema([(name, _KINDS.get(name, pa.string())) for name in _RUN])
        write_table(out, pa.Table.from_pylist([dict(zip(_RUN, row, strict=True)) for row in rows], schema=schema))
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


def _evaluations(group: Group) -> list[tuple[Any, ...]]:
    named = (group.env, group.label, group.alg, group.form, group.control)
    return [
        (*named, run.seed, run.key, metric, float(step), float(value))
        for run in group.runs
        for metric, (steps, series) in sorted(run.series.items())
        if metric.startswith("eval/")
        for step, value in zip(steps, series, strict=True)
    ]


def _csv(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([[_safe(value) for value in row] for row in rows])
    return out.getvalue()


def _safe(value: Any) -> Any:
    """Text that a spreadsheet would run as a formula is quoted, as a spreadsheet does it."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@") else value
