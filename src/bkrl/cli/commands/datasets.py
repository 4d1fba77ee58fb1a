"""`bkrl data …`: check, look at, export, import, divide and join datasets."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from bkrl.cli import progress
from bkrl.cli.commands.shown import Json, print_facts, show_run
from bkrl.cli.options import Commands

data = Commands(help="Check, look at, export, import, divide and join datasets.", no_args_is_help=True)


@data.command("validate")
def data_validate(dataset: Annotated[Path, typer.Argument(help="a collect run")], as_json: Json = False) -> None:
    """Read a whole dataset, verify every hash and rule of the schema, and say what it holds."""
    from bkrl.data.check import validate

    print_facts(str(dataset), validate(dataset), as_json)


@data.command("export")
def data_export(
    dataset: Annotated[Path, typer.Argument(help="a collect run")],
    out: Annotated[Path, typer.Option("--out", help="folder to write, NAME-v0; must not exist")],
    to: Annotated[Literal["minari"], typer.Option("--to", help="format")] = "minari",
    as_json: Json = False,
) -> None:
    """Write a dataset in another library's format."""
    from bkrl.data.minari import to_minari

    del to
    print_facts(str(out), to_minari(dataset, out), as_json)


@data.command("import")
def data_import(
    source: Annotated[str, typer.Argument(help="minari:ID, or minari:FOLDER")],
    out: Annotated[Path, typer.Option("--out", help="run directory of the dataset")],
    as_json: Json = False,
) -> None:
    """Make a dataset from one of Minari's."""
    from bkrl.data.minari import from_minari

    show_run(from_minari(source, out, progress.reporter()), as_json)


@data.command("subset")
def data_subset(
    dataset: Annotated[Path, typer.Argument(help="a collect run")],
    out: Annotated[Path, typer.Option("--out", help="run directory of the smaller dataset")],
    episodes: Annotated[int, typer.Option("--episodes", min=1, help="episodes to keep, half of them solved")] = 16,
    as_json: Json = False,
) -> None:
    """A few episodes of a dataset as a dataset of their own."""
    from bkrl.data.derive import subset

    show_run(subset(dataset, out, episodes, progress.reporter()), as_json)


@data.command("merge")
def data_merge(
    datasets: Annotated[list[Path], typer.Argument(metavar="RUN", help="collect runs, or runs of `data`")],
    out: Annotated[Path, typer.Option("--out", help="run directory of the joined dataset")],
    as_json: Json = False,
) -> None:
    """Join datasets of one kind of env into one, in this order: all their episodes, numbered anew."""
    from bkrl.data.derive import merge

    show_run(merge(datasets, out, progress.reporter()), as_json)


@data.command("make-episodes")
def data_make_episodes(
    out: Annotated[Path, typer.Option("--out", help="file to write, .parquet; must not exist")],
    scene: Annotated[str, typer.Option("--scene", help="house of Housekeep")] = "Rs_int",
    episodes: Annotated[int, typer.Option("--episodes", min=1, max=1_000_000, help="how many")] = 100,
    seed: Annotated[int, typer.Option("--seed", min=0, help="of what is drawn")] = 0,
    split: Annotated[Literal["train", "val", "test"], typer.Option("--split", help="classes of objects")] = "train",
    objects: Annotated[str, typer.Option("--objects", help="classes that are misplaced, A,B,…, and no others")] = "",
    as_json: Json = False,
) -> None:
    """Draw episodes of symbolic Housekeep by its own rule; `Housekeep-Symbolic-Original@file=OUT` plays them."""
    from bkrl.core.errors import UsageError
    from bkrl.core.files import make_folder, write_table
    from bkrl.envs.housekeep.episodes import to_columns
    from bkrl.envs.housekeep.sampling import draw_episodes

    if out.suffix != ".parquet":
        raise UsageError(f"--out {out} is no .parquet file; name one, such as {out.with_suffix('.parquet')}.")
    if out.exists():
        raise UsageError(f"{out} exists already; choose another --out.")
    import pyarrow as pa

    names = tuple(filter(None, (name.strip().replace(" ", "_") for name in objects.split(","))))
    if objects and not names:
        raise UsageError(f"--objects {objects!r} names no class; leave it out for all, or write A,B.")
    drawn = draw_episodes(scene, split, episodes, seed, names)
    make_folder(out.parent)
    write_table(out, pa.table(to_columns(drawn)))
    things, misplaced = sum(len(one.models) for one in drawn), sum(one.misplaced for one in drawn)
    facts = {"scene": scene, "episodes": len(drawn), "objects": things, "misplaced": misplaced}
    print_facts(str(out), facts, as_json)
