"""Commands about results: compare, trace, export curves, export results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from bkrl.cli import console, progress
from bkrl.cli.commands.shown import LOOK, Json, print_facts


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command("compare", rich_help_panel=LOOK)(compare)
    app.command("trace", rich_help_panel=LOOK)(trace)
    app.command("export curves", rich_help_panel=LOOK)(export_curves)
    app.command("export results", rich_help_panel=LOOK)(export_results)


_SIDE = "a train-rs run, a folder of runs, or a pattern in quotes; FOLDER:METHOD picks one of several methods"


def compare(
    a: Annotated[str, typer.Argument(help=_SIDE)],
    b: Annotated[str, typer.Argument(help="the same, to compare it with")],
    threshold: Annotated[float, typer.Option(min=0, max=1, help="success rate whose time to reach is compared")] = 0.8,
    as_json: Json = False,
) -> None:
    """One method against another, world by world, over the seeds they share: differences with their intervals."""
    from bkrl.report import contrast

    found, problems = contrast.contrast(a, b, threshold)
    if as_json:
        console.print_json(contrast.values(found, problems))
        return
    reporter = progress.reporter()
    for one in found:
        console.print_table(one.env, *contrast.table(one, threshold))
        different = [f"{name}: {left} against {right}" for name, (left, right) in one.settings.items()]
        for note in [*one.notes, *([f"Settings that differ: {'; '.join(different)}."] if different else [])]:
            console.print_text(note)
    for problem in problems:
        reporter.warn(problem)


def trace(
    figure_or_run: Annotated[Path, typer.Argument(help="a run directory, or a PNG or HTML file of a report")],
    under: Annotated[Path, typer.Option(help="where to look for the report that made a figure")] = Path("logs"),
    as_json: Json = False,
) -> None:
    """The chain of runs behind a figure or a run, as a tree, every hash verified; what changed or is gone is named."""
    from bkrl.core.errors import InputError
    from bkrl.report import tracing

    found = tracing.trace(figure_or_run, [under])
    if as_json:
        console.print_json(tracing.values(found))
    else:
        console.print_text("\n".join([*([found.figure] if found.figure else []), *tracing.lines(found)]))
    if found.problems:
        raise InputError(" ".join(found.problems))


def export_curves(
    runs: Annotated[
        list[Path], typer.Argument(help="train-rs runs, evaluations or reports of them, or folders of runs")
    ],
    out: Annotated[Path, typer.Option("--out", help="file to write; must not exist")],
    to: Annotated[Literal["csv", "parquet"], typer.Option("--to", help="format")] = "csv",
    as_json: Json = False,
) -> None:
    """Learning curves as one long table: world, method, seed, metric, step, value."""
    from bkrl.report.export import export_curves as write

    facts, problems = write(runs, out, to)
    for problem in problems:
        progress.reporter().warn(problem)
    print_facts("", facts, as_json)


def export_results(
    reports: Annotated[list[Path], typer.Argument(help="report runs, one for each section, in order")],
    out: Annotated[Path, typer.Option("--out", help="Markdown page to write")] = Path("docs/results.md"),
    images: Annotated[
        Path | None, typer.Option("--images", help="folder for its pictures  \\[default: images/ beside the page]")
    ] = None,
    as_json: Json = False,
) -> None:
    """A page of results in Markdown, with its pictures, from report runs alone: commands, tables, intervals, n."""
    from bkrl.report.pages.markdown import write_results

    facts, problems = write_results(reports, out, images or out.parent / "images")
    for problem in problems:
        progress.reporter().warn(problem)
    print_facts("", facts, as_json)
