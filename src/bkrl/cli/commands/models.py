"""`bkrl lm …`: small language models of one's own."""

from __future__ import annotations

from typing import Any

import typer

from bkrl.cli import progress
from bkrl.cli.commands.shown import LOOK, show_run
from bkrl.cli.options import Commands, command
from bkrl.core.config import LmMakeConfig

lm = Commands(help="Make small language models that can be policies.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add `bkrl lm …`."""
    app.add_typer(lm, name="lm", rich_help_panel=LOOK)


def _make(settings: Any, as_json: bool) -> None:
    from bkrl.stages.lm_make import run

    show_run(run(settings, progress.reporter()), as_json)


lm.command("make")(command(LmMakeConfig, _make))
