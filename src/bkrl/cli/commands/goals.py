"""Commands about goals."""

from pathlib import Path
from typing import Annotated

import typer

from bkrl.cli import console
from bkrl.cli.commands.shown import Json
from bkrl.core.config import PRICES, AskConfig


def suggesters(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="oracle, noisy, zs_mlm, novelty, rules, openai:MODEL, …  \\[default: all that are free]"),
    ] = None,
    things: Annotated[str, typer.Option(help="tasks (of the paper), seen, unseen or all")] = "tasks",
    scene: Annotated[str, typer.Option(help="the house whose places are asked about; all: every kind")] = "Rs_int",
    accuracy: Annotated[float, typer.Option(min=0, max=1, help="noisy: share of answers that are kept")] = 0.9,
    votes: Annotated[int, typer.Option(min=1, help="samples that vote where there are no log-probabilities")] = 5,
    sample: Annotated[
        int, typer.Option(min=0, help="ask about so many pairs, half of them right, always the same; 0: all")
    ] = 0,
    max_requests: Annotated[int, typer.Option(min=0, help="send at most this many requests; 0: no limit")] = 0,
    max_cost: Annotated[float, typer.Option(min=0, help="spend at most so many US dollars; 0: no limit")] = 0.0,
    prices: Annotated[Path | None, typer.Option(help=PRICES.help)] = None,
    cache: Annotated[Path, typer.Option(help="where replies are kept")] = Path("cache"),
    as_json: Json = False,
) -> None:
    """Score suggesters against people's votes on where Housekeep's things belong."""
    from bkrl.goals.belonging import compared

    asking = AskConfig(max_requests=max_requests, max_cost=max_cost, prices=prices, cache=cache)
    house = "" if scene == "all" else scene
    header, rows = compared(names or [], things, house, accuracy, votes, asking, sample)
    console.print_rows(header, rows, as_json, f"Where {things} belong, {scene}")
