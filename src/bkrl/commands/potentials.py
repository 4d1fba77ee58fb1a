"""Commands about potentials."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bkrl import console
from bkrl.commands.shown import LOOK, Json


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command("check-potential", rich_help_panel=LOOK)(check_potential)


def check_potential(
    potential: Annotated[Path, typer.Argument(help="a train-rm run")],
    dataset: Annotated[Path | None, typer.Option(help="a collect run  [default: the one it was built on]")] = None,
    as_json: Json = False,
) -> None:
    """Run the certificate: does this potential keep optimal policies, and is it one fixed, finite function?"""
    from bkrl.stages.train_rm import check

    certificate = check(potential, dataset)
    if as_json:
        console.print_json(certificate.to_json())
    else:
        rows = [(c.name, bool(c.passed), c.detail) for c in certificate.checks]
        console.print_table(str(potential), ("check", "holds", "detail"), rows)
    if not certificate.passed:
        raise typer.Exit(1)
