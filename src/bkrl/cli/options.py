"""Frozen dataclasses as command-line flags: parse → config → stage. Beside it only cli.py and commands/ know Typer."""

import inspect
import math
import re
from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException

from bkrl.core.errors import RunFailed, UsageError
from bkrl.core.flags import LENIENT, SWITCHES, Setting, flags_of, option_name, without_effect
from bkrl.core.registry import did_you_mean
from bkrl.core.settings import build, nested

MOST = 2**53
"""Greatest whole number of a setting that counts something and names no limit of its own: more than any run can do."""
PANELS = {
    "ppo": "PPO",
    "lm": "Language model",
    "replay": "Memory of steps",
    "pqn": "PQN",
    "dqn": "DQN",
    "hardware": "Hardware",
    "slurm": "With --executor slurm",
    "ray": "With --executor ray",
}
_LENIENT = "ignore flags that have no effect here; by default they are refused"


class _Help:
    """Help in which nothing is cut on a terminal of 80 columns: the column of types, which took the place of names and
    defaults, is left out, and the choices stand in the text.
    """

    def format_help(self, ctx: Any, formatter: Any) -> None:
        shown: Any = copy(self)
        shown.params = [copy(p) for p in shown.params]
        for p in shown.get_params(ctx):
            if p.type_descriptor.is_choice:
                p.help = f"{p.help} \\[{' | '.join(filter(None, p.type_descriptor.choices))}]"
            if p.param_type_name == "argument":
                p.metavar = (p.metavar or p.name).upper()
            p.display_type_rich = lambda ctx: ""
            p.min = p.max = None  # refused with words of their own
            if p.secondary_opts and p.default:
                p.help, p.show_default = f"{p.help} \\[on; {p.secondary_opts[0]} turns it off]", False
            p.secondary_opts = []  # what is off need not be turned off, and both would take too much room
        super(_Help, shown).format_help(ctx, formatter)  # type: ignore[misc]


class Command(_Help, TyperCommand):
    """A command."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # not of stdout or stderr, which the console looks after; Typer would keep quiet
            raise RunFailed(
                "A process that this command works with has gone; run the same command again to continue."
            ) from None


class CommandGroup(_Help, TyperGroup):
    """A command that has commands."""


class Commands(typer.Typer):
    """An app, or a part of one, whose commands have the help of `Command`."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"cls": CommandGroup, **settings})

    def command(self, name: str | None = None, **settings: Any) -> Any:
        """A command of it, as of any `typer.Typer`."""
        return super().command(name, **{"cls": Command, **settings})


def command(config: type, run: Callable[[Any, bool], None], **fixed: Any) -> Callable[..., None]:
    """A Typer command whose flags are the settings of `config` but the `fixed` ones; it calls `run(settings, json)`.

    Nested dataclasses become panels of the help; positional flags become arguments; `Literal`s become choices.
    """
    settings = [one for one in flags_of(config) if one.name not in fixed]
    parameters = [_of_setting(one) for one in settings]
    if fixed or any(one.flag.only for one in settings):
        parameters.append(_parameter("lenient", Annotated[bool, typer.Option(LENIENT, help=_LENIENT)], False))
    as_json = typer.Option("--json", help="print the result as JSON on stdout")
    parameters.append(_parameter("as_json", Annotated[bool, as_json], False))
    parameters.append(_parameter("context", typer.Context, inspect.Parameter.empty))

    def call(context: typer.Context, **values: Any) -> None:
        wants_json, lenient = values.pop("as_json"), values.pop("lenient", False)
        for name, value in values.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise UsageError(f"{option_name((name,))} must be a finite number, not {value}.")
        sources = {name: context.get_parameter_source(name) for name in values}
        given = {name: values[name] for name, source in sources.items() if source and source.name == "COMMANDLINE"}
        settings = build(config, nested(config, given), **fixed)
        if not lenient:
            refuse(without_effect(settings, given))
        run(settings, wants_json)

    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__doc__ = config.__doc__
    call.__annotations__ = {p.name: p.annotation for p in parameters}
    return call


def _of_setting(one: Setting) -> inspect.Parameter:
    """The parameter that a setting becomes; a group is a panel of the help."""
    kind, flag, default = one.kind, one.flag, one.default
    if kind in (tuple[Path, ...], tuple[str, ...]):
        inner: Any = list[str] if kind == tuple[str, ...] else list[Path]
        kind, default = inner, default if default is inspect.Parameter.empty else list(default)
    info: Any
    help_text = flag.help.replace("[", r"\[")
    if flag.positional:
        words, name = _second_words, one.name.upper()
        info = typer.Argument(help=help_text, show_default=False, metavar=name, autocompletion=words)
    else:
        names = [option_name(one.path)]
        if kind in SWITCHES:
            names = [f"{names[0]}/--no-{names[0][2:]}"]
        limits: dict[str, Any] = {"min": flag.least, "max": flag.most} if kind in (int, float) else {}
        if kind is int and flag.least is not None and flag.most is None and one.name != "seed":
            limits["max"] = MOST
        panel = PANELS.get(one.path[0]) if len(one.path) > 1 else None
        info = typer.Option(
            *names, help=help_text, rich_help_panel=panel, show_default=default not in (None, ""), **limits
        )
    return _parameter(one.name, Annotated[kind, info], default)


def _second_words(ctx: typer.Context, incomplete: str) -> list[str]:
    """What makes a command of two words: `label` and "v" give `view`. The shell itself completes files."""
    commands: Any = vars(ctx.parent.command)["commands"] if ctx.parent else ()
    return [one.partition(" ")[2] for one in commands if one.startswith(f"{ctx.info_name} {incomplete}")]


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def refuse(useless: dict[str, str], or_else: str = f", or pass {LENIENT}") -> None:
    """UsageError for what was given and has no effect; all that belongs to the same is said at once."""
    for belongs in useless.values():
        names = [option_name((name,)) for name, to in useless.items() if to == belongs]
        verb, them = ("has", "it") if len(names) == 1 else ("have", "them")
        raise UsageError(
            f"{' and '.join(names)} {verb} no effect here, only with {belongs}; leave {them} out{or_else}."
        )


_WORDS = (
    (r"\s+", " "),
    (r"Value error, ", ""),
    (r"Input should be greater than or equal to (\S+)", r"it must be at least \1"),
    (r"Input should be less than or equal to (\S+)", r"it must be at most \1"),
    (r"Input should be a valid integer.*", "it must be a whole number"),
    (r"Input should be a valid number.*", "it must be a number"),
    (r"No such option: (\S+) \(Possible options: (.*)\)", r"No such option: \1. Did you mean \2?"),
)


def complaint(problem: TyperException) -> str:
    """What Typer has against a command line, as one sentence with the nearest name and the help that belongs to it."""
    text = problem.format_message()
    for pattern, plainer in _WORDS:
        text = re.sub(pattern, plainer, text)
    if _is_no_number(problem):
        text = re.sub(r"it must be at (least|most) \S+", "it must be a finite number", text)
    text = text.strip()
    if not text:
        return ""
    text = text[0].upper() + text[1:] + ("" if text[-1] in ".?" else ".")
    if choice := re.search(r"'([^']*)' is not one of (.*)\.$", text):
        text += did_you_mean(choice[1], re.findall(r"'([^']*)'", choice[2]))
    context = getattr(problem, "ctx", None)
    if word := re.search(r"No such command '([^']*)'\.$", text):  # the second of two words, such as `view`
        names: Any = vars(context.command).get("commands", ()) if context is not None else ()
        text += "".join(f" Did you mean '{name}'?" for name in names if name.endswith(f" {word[1]}"))
    return f"{text} Try {context.command_path if context is not None else 'bkrl'} --help."


def _is_no_number(problem: TyperException) -> bool:
    """Whether what was refused is infinite or no number: it has no place above or below a limit."""
    refused: list[dict[str, Any]] = getattr(problem.__cause__, "errors", list)()
    try:
        return not all(math.isfinite(float(one["input"])) for one in refused)
    except (TypeError, ValueError, OverflowError):
        return False
