"""Commands about potentials."""

from pathlib import Path
from typing import Annotated

import typer

from bkrl.cli import console, progress
from bkrl.cli.commands.shown import Json, show_run


def check_potential(
    potential: Annotated[Path, typer.Argument(help="a train-rm run, or sample:NAME")],
    dataset: Annotated[Path | None, typer.Option(help="a collect run  \\[default: the one it was built on]")] = None,
    as_json: Json = False,
) -> None:
    """Run the certificate: does this potential keep optimal policies, and is it one fixed, finite function?"""
    from bkrl.stages.inspect import check

    certificate = check(potential, dataset)
    if as_json:
        console.print_json(certificate.to_json())
    else:
        rows: list[tuple[str, bool | str, str]] = [(c.name, bool(c.passed), c.detail) for c in certificate.checks]
        rows += [(name, "not applicable", why) for name, why in certificate.not_applicable.items()]
        console.print_table(str(potential), ("check", "holds", "detail"), rows)
    if not certificate.passed:
        raise typer.Exit(1)


def potential_report(
    potential: Annotated[Path, typer.Argument(help="a train-rm run, or sample:NAME")],
    out: Annotated[Path | None, typer.Option(help="run directory  \\[default: logs/potential-report-NAME]")] = None,
    against: Annotated[
        list[Path] | None, typer.Option(help="another potential of the same envs to compare with; can be repeated")
    ] = None,
    dataset: Annotated[Path | None, typer.Option(help="a collect run  \\[default: the one it was built on]")] = None,
    layouts: Annotated[int, typer.Option(min=1, help="layouts of each level to solve exactly")] = 6,
    as_json: Json = False,
) -> None:
    """What a potential is worth before any RL: against the exact optimal value, on the dataset, in pictures."""
    from bkrl.core.files import read_json
    from bkrl.report.pages.potential import QUALITY
    from bkrl.stages.inspect import run

    result = run(potential, progress.reporter(), out=out, against=against or (), dataset=dataset, layouts=layouts)
    if as_json:
        console.print_json({"path": result.path.as_posix(), **read_json(result.file(QUALITY))})
    else:
        show_run(result, False)
