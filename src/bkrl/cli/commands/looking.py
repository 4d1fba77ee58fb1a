"""Commands that only look: show, list, prompt, doctor."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from bkrl.cli import console
from bkrl.cli.commands.shown import Json, show_run

_ROWS = 6
"""So many rows of a dataset are shown."""


def show(run: Annotated[Path, typer.Argument(help="any run directory")], as_json: Json = False) -> None:
    """What a run is, where it came from and what it found; of a dataset also its first rows."""
    from bkrl.runs.record import Run

    opened = Run.open(run)
    show_run(opened, as_json, origin=True)
    if "episodes.parquet" in opened.manifest["outputs"] and not as_json:
        from bkrl.data.dataset import Dataset

        title, rows = Dataset(opened).beginning(_ROWS)
        console.print_table(title, ("step", "caption", "action", "reward"), rows)


def list_(
    what: Annotated[
        Literal["envs", "options", "algs", "llms", "potentials", "suggesters", "studies", "conditions"],
        typer.Argument(help="what to list"),
    ],
    as_json: Json = False,
) -> None:
    """The names that flags take: envs and options, methods, annotators, potentials, suggesters, studies, conditions."""
    from bkrl.cli.catalogue import catalogue

    tables = catalogue(what)
    if as_json:
        console.print_json([dict(zip(header, row, strict=True)) for _, header, rows in tables for row in rows])
        return
    for title, header, rows in tables:
        console.print_table(title, header, rows)


def prompt(
    variant: Annotated[Literal["code", "pref", "goal"], typer.Argument(help="what is asked for")],
    env: Annotated[str, typer.Argument(help="env; see `bkrl list envs`")],
    prompt: Annotated[str | None, typer.Option(help="bare, or a folder of your own, as with label")] = None,
    as_json: Json = False,
) -> None:
    """Print exactly what a language model would be sent."""
    from bkrl.labelers.example import example_prompt

    text = example_prompt(variant, env, prompt)
    if as_json:
        console.print_json({"variant": variant, "env": env, "prompt": text})
    else:
        console.print_text(text)


def doctor(as_json: Json = False) -> None:
    """Check this installation: packages, envs, sandbox, torch, folders, keys (never shown)."""
    from bkrl.cli.doctor import examine

    findings = examine()
    console.print_rows(("check", "ok", "detail"), findings, as_json)
    if not all(ok for _, ok, _ in findings):
        raise typer.Exit(1)
