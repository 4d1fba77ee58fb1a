"""`bkrl cache …`: the replies that were kept."""

from pathlib import Path
from typing import Annotated

import typer

from bkrl.cli import console
from bkrl.cli.commands.shown import Json, print_facts
from bkrl.cli.options import Commands

cache = Commands(help="Look at the replies that were kept.", no_args_is_help=True)


@cache.command("info")
def cache_info(
    folder: Annotated[Path, typer.Option("--cache", help="folder where replies are kept")] = Path("cache"),
    prices: Annotated[Path | None, typer.Option("--prices", help="own price list (TOML), read first")] = None,
    as_json: Json = False,
) -> None:
    """Replies by endpoint, model and status: how many, how large, what they cost."""
    from bkrl.llm import archive

    with archive.existing(folder) as store:
        facts = archive.summary(store, prices)
    if as_json:
        console.print_json(facts)
        return
    groups = facts.pop("groups")
    print_facts(facts["path"], facts, False)
    who, size = ("endpoint", "model", "status", "tier"), ("replies", "bytes", "prompt tokens", "reply tokens")
    header = (*who, *size, "US$", "first", "last")
    rows = [
        tuple("unknown" if name == "usd" and value is None else value for name, value in group.items())
        for group in groups
    ]
    console.print_table("", header, rows)
