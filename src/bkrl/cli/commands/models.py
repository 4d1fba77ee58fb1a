"""`bkrl lm …`: language models that are fetched, and small ones that are made."""

from typing import Annotated, Any

import typer

from bkrl.cli import console, progress
from bkrl.cli.commands.shown import Json, show_run
from bkrl.cli.options import Commands, command
from bkrl.core.config import LmMakeConfig

lm = Commands(help="Fetch language models, or make small ones that can be policies.", no_args_is_help=True)


def _make(settings: Any, as_json: bool) -> None:
    from bkrl.stages.lm_make import run

    show_run(run(settings, progress.reporter()), as_json)


lm.command("make")(command(LmMakeConfig, _make))


@lm.command("list")
def lm_list(as_json: Json = False) -> None:
    """The models that can be fetched, and whether they are here."""
    from bkrl.core.models import catalogue

    header = ("name", "what it is", "MiB", "licence", "here")
    models = catalogue().values()
    if as_json:
        console.print_json([{**vars(one), "here": one.here} for one in models])
        return
    rows = [(one.name, one.what, round(one.bytes / 2**20), one.licence, "yes" if one.here else "–") for one in models]
    console.print_table("", header, rows)


@lm.command("fetch")
def lm_fetch(
    name: Annotated[str, typer.Argument(help="of `bkrl lm list`", show_default=False, metavar="NAME")],
    accept_terms: Annotated[
        bool, typer.Option("--accept-terms", help="accept the terms of a model that has some")
    ] = False,
) -> None:
    """Bring a model into cache/models (BKRL_MODELS names another folder); an interrupted fetch goes on."""
    from bkrl.core.models import fetch, find

    model = find(name)
    path = fetch(model, progress.reporter(), accept_terms)
    console.print_text(
        f"{path} ({model.bytes / 2**20:,.0f} MiB, SHA-256 {model.sha256[:12]}…, licence: {model.licence})"
    )
