"""Commands about many runs: sweep and watch."""

from __future__ import annotations

from typing import Any

import typer

from bkrl.cli import console
from bkrl.cli.commands.shown import show_run
from bkrl.cli.options import command
from bkrl.core.config import SweepConfig, WatchConfig
from bkrl.core.errors import RunFailed

PANEL = "Many runs"


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command("sweep", rich_help_panel=PANEL)(command(SweepConfig, sweep))
    app.command("watch", rich_help_panel=PANEL)(command(WatchConfig, watch))


def sweep(settings: SweepConfig, as_json: bool) -> None:
    """Do a study; --dry-run and --executor print only read it."""
    from bkrl.studies import sweep
    from bkrl.studies.study import load_study

    if settings.dry_run or settings.executor == "print":
        study = load_study(settings.study, settings.folder)
        cells = sweep.chosen(study, settings.folder, settings.only)
        if settings.dry_run:
            _list(sweep.listed(cells, settings.folder), as_json)
            return
        from bkrl.studies.executors.shell import script

        left = [cell for cell in cells if sweep.standing(cell) != "done"]
        left += [study.report] if settings.report else []
        console.print_text(script(left, sweep.needs([*cells, study.report])))
        return
    outcome = sweep.run(settings, console.reporter())
    if as_json:
        report = outcome.report.path.as_posix() if outcome.report is not None else None
        console.print_json({**outcome._asdict(), "out": outcome.out.as_posix(), "report": report})
    else:
        rows: list[tuple[str, str]] = list(outcome.failed.items())
        rows += [(name, "needs one that failed") for name in outcome.blocked]
        console.print_table("", ("", ""), [(str(outcome.out), f"{sweep.runs(len(outcome.done))} done"), *rows])
        if outcome.report is not None:
            show_run(outcome.report, False)
    if outcome.failed:
        raise RunFailed(f"{sweep.runs(len(outcome.failed))} failed; --retry-failed tries again.")


def watch(settings: WatchConfig, as_json: bool) -> None:
    """Draw curves until all runs are complete; one frame with --once, and into a pipe."""
    from bkrl.cli import watching

    if as_json:
        console.print_json([curve._asdict() for curve in watching.read_curves(settings)])
    elif settings.once or not console.is_live():
        console.print_picture(watching.frame(watching.read_curves(settings), settings.metric, *console.picture_size()))
    else:

        def draw(width: int, height: int) -> tuple[console.Picture, bool]:
            curves = watching.read_curves(settings)
            return watching.frame(curves, settings.metric, width, height), watching.over(settings, curves)

        console.show_pictures(draw, settings.every)


def _list(rows: list[tuple[Any, ...]], as_json: bool) -> None:
    header = ("cell", "stage", "steps", "state")
    if as_json:
        console.print_json([dict(zip(header, row, strict=True)) for row in rows])
    else:
        console.print_table("", header, rows)
