"""Commands about results: compare, trace."""

from pathlib import Path
from typing import Annotated

import typer

from bkrl.cli import console, progress
from bkrl.cli.commands.shown import Json

_SIDE = "a train-rs run, a folder of runs, or a pattern in quotes; FOLDER:METHOD picks one of several methods"


def compare(
    a: Annotated[str, typer.Argument(help=_SIDE)],
    b: Annotated[str, typer.Argument(help="the same, to compare it with")],
    threshold: Annotated[float, typer.Option(min=0, max=1, help="success rate whose time to reach is compared")] = 0.8,
    as_json: Json = False,
) -> None:
    """One method against another, env by env, over the seeds they share: differences with their intervals."""
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
