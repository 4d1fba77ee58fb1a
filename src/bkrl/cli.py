"""The `bkrl` command: parse → frozen config → stage → exit code. No logic and no heavy import lives here.

Exit codes: 0 success, 1 failure, 2 usage, 3 bad or incomplete input, 130 interrupted, 143 terminated.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import typer
from typer.exceptions import TyperException

from bkrl import __version__, console
from bkrl.config import VERBS
from bkrl.errors import BkrlError
from bkrl.options import command

app = typer.Typer(
    name="bkrl",
    help="Turn a language model's background knowledge into faster reinforcement learning.\n\n"
    "The way through: collect → label → train-rm → train-rs → evaluate → report. `bkrl reproduce` does it all.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
data = typer.Typer(help="Check, look at and export datasets.", no_args_is_help=True)

_PIPELINE = "The pipeline, in order"
_LOOK = "Looking at things"

Json = Annotated[bool, typer.Option("--json", help="print the result as JSON on stdout")]


def _stage(module: str) -> Callable[[Any, bool], None]:
    def run(settings: Any, as_json: bool) -> None:
        result = import_module(f"bkrl.stages.{module}").run(settings, console.reporter())
        if result is not None:
            _show_run(result, as_json)

    return run


def _reproduce(settings: Any, as_json: bool) -> None:
    from bkrl.reproduce import run

    result = run(settings, console.reporter())
    if result is not None:
        _show_run(result, as_json)


for _verb, _config in VERBS.items():
    _run = _reproduce if _verb == "reproduce" else _stage(_verb.replace("-", "_"))
    app.command(_verb, rich_help_panel=_PIPELINE)(command(_config, _run))


@app.command(rich_help_panel=_LOOK)
def show(run: Annotated[Path, typer.Argument(help="any run directory")], as_json: Json = False) -> None:
    """What a run is, where it came from and what it found."""
    from bkrl.run import Run

    _show_run(Run.open(run), as_json)


@app.command("list", rich_help_panel=_LOOK)
def list_(
    what: Annotated[Literal["envs", "algs", "llms", "potentials"], typer.Argument(help="what to list")],
    as_json: Json = False,
) -> None:
    """The names that flags take: worlds, algorithms, language models, potentials."""
    from bkrl.catalogue import catalogue

    tables = catalogue(what)
    if as_json:
        console.print_json([dict(zip(header, row, strict=True)) for _, header, rows in tables for row in rows])
        return
    for title, header, rows in tables:
        console.print_table(title, header, rows)


@app.command(rich_help_panel=_LOOK)
def prompt(
    variant: Annotated[Literal["code", "pref", "goal"], typer.Argument(help="what is asked for")],
    env: Annotated[str, typer.Argument(help="world; see `bkrl list envs`")],
) -> None:
    """Print exactly what a language model would be sent."""
    from bkrl.stages.label import example_prompt

    console.print_text(example_prompt(variant, env))


@app.command("check-potential", rich_help_panel=_LOOK)
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


@app.command(rich_help_panel=_LOOK)
def doctor(as_json: Json = False) -> None:
    """Check this installation: packages, worlds, sandbox, compiler cache, folders, keys (never shown)."""
    from bkrl.doctor import examine

    findings = examine()
    if as_json:
        console.print_json([dict(zip(("check", "ok", "detail"), finding, strict=True)) for finding in findings])
    else:
        console.print_table("", ("check", "ok", "detail"), findings)
    if not all(ok for _, ok, _ in findings):
        raise typer.Exit(1)


@data.command("validate")
def data_validate(dataset: Annotated[Path, typer.Argument(help="a collect run")], as_json: Json = False) -> None:
    """Read a whole dataset, verify every hash and rule of the schema, and say what it holds."""
    from bkrl.export import validate

    _print_facts(str(dataset), validate(dataset), as_json)


@data.command("head")
def data_head(
    dataset: Annotated[Path, typer.Argument(help="a collect run")],
    n: Annotated[int, typer.Option("--rows", "-n", min=1, help="steps to print")] = 10,
    episode: Annotated[int, typer.Option("--episode", min=0, help="episode to read from")] = 0,
    as_json: Json = False,
) -> None:
    """The first steps of an episode: action, reward and caption."""
    from bkrl.export import head

    header, rows = head(dataset, episode, n)
    if as_json:
        console.print_json([dict(zip(header, row, strict=True)) for row in rows])
    else:
        console.print_table("", header, rows)


@data.command("export")
def data_export(
    dataset: Annotated[Path, typer.Argument(help="a collect run")],
    out: Annotated[Path, typer.Option("--out", help="folder to write; must not exist")],
    to: Annotated[Literal["minari"], typer.Option("--to", help="format")] = "minari",
) -> None:
    """Write a dataset in another library's format."""
    from bkrl.export import to_minari

    del to
    _print_facts(str(out), to_minari(dataset, out), False)


app.add_typer(data, name="data", rich_help_panel=_LOOK)


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", help="print the version and stop", is_eager=True)] = False,
) -> None:
    if version:
        console.print_text(f"bkrl {__version__}")
        raise typer.Exit


def _show_run(run: Any, as_json: bool) -> None:
    if as_json:
        console.print_json({"path": run.path.as_posix(), **run.manifest})
        return
    facts = {"stage": run.stage, **run.facts}
    table = facts.pop("table", None)
    _print_facts(run.path.as_posix(), facts, False)
    if isinstance(table, dict):
        console.print_table("", table["header"], table["rows"])


def _print_facts(title: str, facts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        console.print_json(facts)
        return
    console.print_table(title, ("", ""), _flat(facts))


def _flat(facts: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Nested facts as rows; hashes of prompts and long lists are for the manifest, not for the eye."""
    rows: list[tuple[str, Any]] = []
    for key, value in facts.items():
        name = f"{prefix}{key.replace('_', ' ')}"
        if isinstance(value, dict):
            rows += _flat(value, f"{name}: ") if key != "prompts" else []
        elif isinstance(value, list):
            if len(value) <= 8 and not any(isinstance(item, (dict, list)) for item in value):
                rows.append((name, ", ".join(map(str, value))))
        elif value is not None:
            rows.append((name, value))
    return rows


class _Terminated(KeyboardInterrupt):
    seen = False


def _on_sigterm(number: int, frame: Any) -> NoReturn:
    del number, frame
    _Terminated.seen = True
    raise _Terminated


def main() -> NoReturn:
    """Run the command line and leave with its exit code."""
    signal.signal(signal.SIGTERM, _on_sigterm)
    sys.exit(run_command())


def _interrupted() -> int:
    console.error("interrupted; nothing finished is lost, run the same command again to continue.")
    return 143 if _Terminated.seen else 130


def run_command(arguments: list[str] | None = None) -> int:
    """Run one command line; the exit code. Errors become one sentence on stderr."""
    try:
        result = app(arguments, standalone_mode=False, prog_name="bkrl")
        if result == 130:  # what Typer makes of a KeyboardInterrupt inside a command
            return _interrupted()
        return result if isinstance(result, int) else 0
    except BkrlError as problem:
        console.error(str(problem))
        return problem.exit_code
    except TyperException as problem:
        text = problem.format_message()
        if text:
            console.error(f"{text[0].upper()}{text[1:]} Try --help.".replace("..", "."))
        return problem.exit_code
    except typer.Exit as leaving:
        return leaving.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return _interrupted()
    except BrokenPipeError:
        # The reader of our stdout left (as `head` does); nothing is wrong, and there is nobody to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


if __name__ == "__main__":
    main()
