"""`bkrl cache …`: the replies that were kept."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bkrl.cli import console
from bkrl.cli.commands.shown import LOOK, Json, print_facts
from bkrl.cli.options import Commands

cache = Commands(help="Look at, thin out and share the replies that were kept.", no_args_is_help=True)

Folder = Annotated[Path, typer.Option("--cache", help="folder where replies are kept")]


def register(app: typer.Typer) -> None:
    """Add `bkrl cache …`."""
    app.add_typer(cache, name="cache", rich_help_panel=LOOK)


@cache.command("info")
def cache_info(
    folder: Folder = Path("cache"),
    prices: Annotated[Path | None, typer.Option("--prices", help="own price list (TOML), read first")] = None,
    as_json: Json = False,
) -> None:
    """Replies by endpoint, model and status: how many, how large, what they cost."""
    from bkrl.llm import archive

    with archive.existing(folder, reading=True) as store:
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


@cache.command("prune")
def cache_prune(
    folder: Folder = Path("cache"),
    model: Annotated[str | None, typer.Option(help="only replies of this model")] = None,
    older_than: Annotated[float | None, typer.Option(min=0, help="only replies older than so many days")] = None,
    status: Annotated[
        list[str] | None,
        typer.Option(help="only replies that are ok, truncated, filtered or refused; may be repeated"),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="remove them; without it they are only counted")] = False,
    as_json: Json = False,
) -> None:
    """Remove replies; first say which, and only with --yes do it. What is removed has to be paid again."""
    from bkrl.llm import archive

    with archive.existing(folder) as store:
        gone = archive.prune(store, model=model, older_than_days=older_than, statuses=status or (), really=yes)
    header = ("model", "status", "replies", "bytes")
    if as_json:
        rows = [dict(zip(header, row, strict=True)) for row in gone]
        console.print_json({"removed": yes, "groups": rows})
        return
    if not gone:
        console.print_text("No reply fits these conditions; nothing to remove.")
        return
    console.print_table("removed" if yes else "would be removed", header, gone)
    if not yes:
        console.print_text("Nothing has been removed; pass --yes to do it.")


@cache.command("export")
def cache_export(
    file: Annotated[Path, typer.Argument(help="file to write (JSON lines)")],
    folder: Folder = Path("cache"),
    model: Annotated[str | None, typer.Option(help="only replies of this model")] = None,
) -> None:
    """Write replies into one file that others can import, or replay with --llm replay:FILE."""
    from bkrl.llm import archive

    with archive.existing(folder, reading=True) as store:
        count, bare = archive.export(store, file, model)
    console.print_text(f"{count:,} replies written to {file}.")
    if bare:
        console.print_text(f"{bare:,} were kept before their questions were and cannot be exported.")


@cache.command("import")
def cache_import(
    file: Annotated[Path, typer.Argument(help="what `bkrl cache export` wrote")],
    folder: Folder = Path("cache"),
) -> None:
    """Take up the replies of an exported file; every key is checked, and a second import changes nothing."""
    from bkrl.llm import archive
    from bkrl.llm.store import Store

    archive.read(file)  # a file that is refused makes no store
    with Store(folder) as store:
        done = archive.load(store, file)
    console.print_text(f"{done.added:,} replies added, {done.known:,} were known.")
    if done.different:
        console.print_text(f"{done.different:,} questions have another reply here; it stays.")
    if done.torn:
        console.print_text("The last line of the file was torn and has been left out.")
