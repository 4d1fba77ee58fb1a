"""Commands about labels: view, audit."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bkrl.cli import console
from bkrl.cli.commands.shown import Json
from bkrl.core.reporter import Reporter
from bkrl.labelers.config import LabelConfig

if TYPE_CHECKING:
    from bkrl.llm.forecast import Outlook
    from bkrl.runs.record import Run

Labels = Annotated[Path, typer.Argument(help="a label run")]
DatasetOption = Annotated[Path | None, typer.Option(help="a collect run  \\[default: the one that was labelled]")]


def label(config: LabelConfig, reporter: Reporter) -> Run | Outlook | None:
    """`bkrl label`: the run; with `dry_run` what asking would cost; None while a batch is still out."""
    from bkrl.stages import label, to_do

    if config.dry_run:
        return label.outlook(config, reporter)
    if config.batch in ("submit", "status") and to_do(config):
        (label.submit if config.batch == "submit" else label.batch_status)(config, reporter)
        return None
    return label.run(config, reporter)


def view(
    labels: Labels,
    out: Annotated[Path | None, typer.Option(help="HTML file to write  \\[default: LABELS/labels.html]")] = None,
    dataset: DatasetOption = None,
    as_json: Json = False,
) -> None:
    """Write a page to look at every label: segments with pictures, prompts, raw replies, votes; filters and search."""
    from bkrl.report.pages.labels import write

    path = write(labels, out, dataset)
    if as_json:
        console.print_json({"path": path.as_posix()})
    else:
        console.print_text(str(path))


def audit(
    labels: Labels,
    n: Annotated[int, typer.Option("--n", "-n", min=1, help="pairs to label, those of earlier times included")] = 20,
    seed: Annotated[int, typer.Option(min=0, help="which pairs are drawn, and their order")] = 1,
    auditor: Annotated[str, typer.Option(help="name under which the answers are kept")] = "me",
    dataset: DatasetOption = None,
    as_json: Json = False,
) -> None:
    """Label some pairs yourself, without seeing their labels, and learn how far both agree. Stop and go on at will."""
    from bkrl.labelers.audit import as_table, conduct

    found = conduct(labels, _ask, n=n, seed=seed, auditor=auditor, dataset=dataset)
    if as_json:
        console.print_json(found)
        return
    table = as_table(found)
    console.print_table(found["answers"], table["header"], table["rows"])


def _ask(text: str) -> str | None:
    """A question on stderr, its answer from stdin; None at the end of the input."""
    sys.stderr.write(f"\n{text}\n> ")
    sys.stderr.flush()
    return sys.stdin.readline() or None
