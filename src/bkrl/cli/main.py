"""The `bkrl` command: parse → frozen config → stage → exit code. No logic and no heavy import lives here.

Exit codes: 0 success, 1 failure, 2 usage, 3 bad or incomplete input, 130 interrupted, 143 terminated.
They say how the work went: when the reader of stdout or stderr leaves (`| head`), work goes on.
"""

import errno
import functools
import io
import os
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Any, NoReturn

import typer
from typer.exceptions import TyperException

from bkrl import __version__
from bkrl.cli import console, progress
from bkrl.cli.commands import cache, datasets, goals, labels, looking, models, potentials, reports, serve, studies
from bkrl.cli.commands.shown import show_result
from bkrl.cli.options import CommandGroup, Commands, command, complaint
from bkrl.cli.train import train
from bkrl.core.config import SweepConfig
from bkrl.core.errors import BkrlError
from bkrl.verbs import MANY, VERBS


class _Commands(CommandGroup):
    """Lets a command have two words: "label view" is one beside "label DATASET"."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if len(args) > 1 and f"{args[0]} {args[1]}" in self.commands:
            args = [f"{args[0]} {args[1]}", *args[2:]]
        return super().resolve_command(ctx, args)


app = Commands(
    cls=_Commands,
    name="bkrl",
    help="Turn a language model's background knowledge into faster reinforcement learning.\n\n"
    "Typical order: collect → label → train-rm → train-rs → evaluate → report. `bkrl reproduce` does it all.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

_PIPELINE = "The pipeline, in order"
# Errors of a place, not of bkrl.
_PLACE = (
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG,
    errno.ELOOP,
)  # fmt: skip


def _stage(module: str) -> Callable[[Any, bool], None]:
    def run(settings: Any, as_json: bool) -> None:
        show_result(import_module(f"bkrl.stages.{module}").run(settings, progress.reporter()), as_json)

    return run


def _reproduce(settings: Any, as_json: bool) -> None:
    from bkrl.studies.reproduce import run

    show_result(run(settings, progress.reporter()), as_json)
    if settings.dry_run:
        asked = SweepConfig(settings.preset, settings.folder, jobs=settings.jobs, llm=settings.llm, dry_run=True)
        studies.sweep(asked, as_json)


def _label(settings: Any, as_json: bool) -> None:
    show_result(labels.label(settings, progress.reporter()), as_json)


def _train(settings: Any, as_json: bool) -> None:
    stage = import_module("bkrl.stages.train_rs")
    dry = vars(settings).get("dry_run", False)
    show_result(stage.outlook(settings) if dry else stage.run(settings, progress.reporter()), as_json)


_OTHERS = {"reproduce": _reproduce, "label": _label, "train-rs": _train}
"""Verbs that are more than one function of a stage."""
_METHODS = train(_train)
for _verb, _config in VERBS.items():
    _more = _METHODS if _verb == "train-rs" else {}
    app.command(_verb, rich_help_panel=_PIPELINE, **_more)(
        command(_config, _OTHERS.get(_verb) or _stage(_verb.replace("-", "_")))
    )
app.command("train", rich_help_panel=_PIPELINE, **_METHODS)(command(VERBS["train-rs"], _train))

_GROUPS = {"data": datasets.data, "lm": models.lm, "cache": cache.cache, "serve": serve.serve}
for _name, _group in _GROUPS.items():
    app.add_typer(_group, name=_name, rich_help_panel="Inspect")
_MANY = {"sweep": command(MANY["sweep"], studies.sweep), "evolve": command(MANY["evolve"], studies.evolve)}
_COMMANDS = {
    "show": looking.show,
    "list": looking.list_,
    "prompt": looking.prompt,
    "doctor": looking.doctor,
    "suggesters": goals.suggesters,
    "label view": labels.view,
    "label audit": labels.audit,
    "check-potential": potentials.check_potential,
    "potential report": potentials.potential_report,
    **_MANY,
    "compare": reports.compare,
    "trace": reports.trace,
    "play": serve.play,
    "push": serve.push,
    "pull": serve.pull,
}
for _name, _function in _COMMANDS.items():
    app.command(_name, rich_help_panel="Many runs" if _name in _MANY else "Inspect")(_function)


def _version(wanted: bool) -> None:
    if wanted:
        console.print_text(f"bkrl {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="print the version and stop", is_eager=True, callback=_version)
    ] = False,
) -> None:
    del version


class _Terminated(KeyboardInterrupt):
    seen = False


def _on_sigterm(number: int, frame: Any) -> NoReturn:
    _Terminated.seen = True
    raise _Terminated


def main() -> NoReturn:
    """Run the command line and leave with its exit code."""
    signal.signal(signal.SIGTERM, _on_sigterm)
    for name in ("stdout", "stderr"):
        if vars(sys)[name] is None:  # closed, as by >&-
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - as long as the process
    for stream in (sys.stdin, sys.stdout, sys.stderr):  # a terminal without Φ in its encoding shows a question mark
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    sys.exit(run_command())


# All commands, made once: making them takes as long as a short one of them.
_command = functools.cache(lambda: typer.main.get_command(app))


def run_command(arguments: list[str] | None = None) -> int:
    """Run one command line; the exit code.

    Errors become one sentence on stderr and, with `--json`, an object on stdout if nothing else was printed there.
    """
    console.json_printed = False
    words = sys.argv[1:] if arguments is None else arguments

    def failed(text: str, code: int) -> int:
        console.error(text)
        if "--json" in words and not console.json_printed:
            try:
                console.print_json({"error": text, "exit_code": code})
            except OSError:
                console.discard_stdout()  # it is full; the sentence is on stderr
        return code

    def interrupted() -> int:
        text = "interrupted; nothing finished is lost, run the same command again to continue."
        return failed(text, 143 if _Terminated.seen else 130)

    if odd := next((word for word in words if word != word.encode(errors="ignore").decode()), None):
        return failed(f"{odd!a} is not UTF-8, which all names here must be; choose another.", 2)
    try:
        result = _command()(arguments, standalone_mode=False, prog_name="bkrl")
        sys.stdout.flush()  # notices a reader that left here, not while the interpreter ends
        if result == 130:  # what Typer makes of a KeyboardInterrupt inside a command
            return interrupted()
        return result if isinstance(result, int) else 0
    except BkrlError as problem:
        return failed(str(problem), problem.exit_code)
    except TyperException as problem:
        text = complaint(problem)
        return failed(text, problem.exit_code) if text else problem.exit_code
    except typer.Exit as leaving:
        return leaving.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return interrupted()
    except (BrokenPipeError, SystemExit) as problem:
        if not console.reader_left(problem):
            raise
        console.discard_stdout()  # Typer was printing help: there was nothing else to do
        return 0
    except (MemoryError, OverflowError) as problem:
        why = str(problem) or "no memory is left"
        return failed(f"This does not fit into memory ({why}); give smaller numbers, or take a larger machine.", 1)
    except OSError as problem:
        if problem.errno not in _PLACE:
            raise
        if problem.filename is None:  # every file says where it is; what has no name is stdout
            console.error(f"The result cannot be printed ({problem.strerror}); run the same command again elsewhere.")
            console.discard_stdout()
            return 1
        if problem.errno == errno.ENAMETOOLONG:
            return failed(f"{str(problem.filename)[:60]}…: {problem.strerror}; choose a shorter one.", 2)
        return failed(f"{problem.filename}: {problem.strerror}; make it accessible, or name another place.", 1)
