"""`bkrl train METHOD` and `bkrl train-rs --alg METHOD`: a command for each method, with its own flags and no other."""

from collections.abc import Callable, Iterable
from typing import Any

import typer

from bkrl.cli.options import Command, CommandGroup, Commands, command, refuse
from bkrl.core.errors import UsageError
from bkrl.core.flags import LENIENT, SWITCHES, flags_of, option_name, without_effect, words
from bkrl.core.settings import build
from bkrl.methods import Method, method_of, methods, with_setting

_HELP = {"-h", "--help"}
_HELP_ALL = "--help-all"
_ABOUT = """Train a policy by a method, such as PPO with a shaped reward; without METHOD by ppo.

`bkrl train METHOD --help` shows the flags of a method. `bkrl train-rs --alg METHOD` is the same command."""


def train(run: Callable[[Any, bool], None]) -> dict[str, Any]:
    """What Typer is told of the command that leads to those of the methods; `run` is given settings, as JSON or not."""

    class Train(_Train):
        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            """The command of a method; UsageError where there is none."""
            return _command_of(method_of(cmd_name), run)

    return {"cls": Train, "help": _ABOUT, "options_metavar": "[METHOD]"}


class _Train(CommandGroup):
    """Leads to the command of the method that is the first word, or that `--alg` names. Its help lists them all."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of the methods."""
        return [method.name for method in methods()]

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """That of the method's command, which parses the other words; its own where only help is asked for."""
        self.subcommand_metavar = "[OPTIONS]"
        name, rest = named(args)
        if not name and (extra.get("resilient_parsing") or not {*_HELP, _HELP_ALL}.isdisjoint(rest)):
            return super().make_context(info_name, ["--help"] if rest else [], parent, **extra)
        if not name and any(word.partition("=")[0] == "--alg" for word in args):
            raise UsageError("Option '--alg' requires an argument, the name of a method; see `bkrl list algs`.")
        name = name or "ppo"
        chosen: Any = self.get_command(parent, name)
        return chosen.make_context(f"train {name}", rest, parent, **extra)


def named(args: list[str]) -> tuple[str, list[str]]:
    """The method that a command line names, "" for none, and its other words."""
    first, rest = ("", args) if not args or args[0].startswith("-") else (args[0], args[1:])
    alg, others, left = "", [], iter(rest)
    for word in left:
        option, given, value = word.partition("=")
        if option == "--alg":
            alg = value if given else next(left, "")
        else:
            others.append(word)
    if first and alg and first != alg:
        raise UsageError(f"{first} and --alg {alg} name two methods; leave one out.")
    return first or alg, others


def _command_of(method: Method, run: Callable[[Any, bool], None]) -> Any:
    """The command of a method."""
    app = Commands(
        add_completion=False, rich_markup_mode="rich", context_settings={"help_option_names": ["-h", "--help"]}
    )
    needs = "" if method.needs == "none" else f"\n\nIt needs {method.needs}."
    about = f"{method.help}.{needs}".replace("[", r"\[")
    app.command(method.name, cls=_OfMethod, help=about, rich_help_panel="Methods")(
        command(method.settings, run, alg=method.name)
    )
    made: Any = typer.main.get_command(app)
    made.method = method
    return made


class _OfMethod(Command):
    """The command of a method. Its help has what most people set; `--help-all` explains the other flags as well."""

    method: Method

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As any command; flags of other methods are refused in words of their own, or left out with `--lenient`."""
        own = {name for p in self.get_params(ctx) for name in (*p.opts, *p.secondary_opts)}
        unknown = dict.fromkeys(word.partition("=")[0] for word in args if word.startswith("--"))
        others = {name: owners for name in unknown if name not in own and (owners := with_setting(_field(name)))}
        if others and LENIENT in args:
            args = list(_without(args, others))
        elif others:
            refuse({_field(name): f"--alg {words(owners)}" for name, owners in others.items()})
        if _HELP_ALL in args:
            args = ["--help"]
        elif not _HELP.isdisjoint(args):
            more = _further(self.method)
            for p in self.params:
                p.hidden = any(p.name in names for names in more.values())  # type: ignore[attr-defined]
            listed = [f"{why}: {', '.join(option_name((name,))[2:] for name in names)}." for why, names in more.items()]
            self.epilog = "\n\n".join([f"`{_HELP_ALL}` explains these flags, too.", *listed])
        return super().parse_args(ctx, args)


def _further(method: Method) -> dict[str, list[str]]:
    """The flags that a method's help page leaves out, by the reason."""
    settings = flags_of(method.settings)
    useless = without_effect(build(method.settings, {}, alg=method.name), [one.name for one in settings])
    found: dict[str, list[str]] = {}
    for one in settings:
        if one.name in useless or one.flag.seldom:
            why = f"Only with {useless[one.name]}" if one.name in useless else "Seldom needed"
            found.setdefault(why, []).append(one.name)
    found.setdefault("Seldom needed", []).append("lenient")
    return found


def _field(option: str) -> str:
    """The setting of a flag; `--no-X` is X."""
    return option.removeprefix("--").removeprefix("no-").replace("-", "_")


def _without(args: list[str], others: dict[str, list[str]]) -> Iterable[str]:
    """The words of a command line without the flags of other methods and their values."""
    left = iter(args)
    for word in left:
        name, given, _ = word.partition("=")
        if name not in others:
            yield word
        elif not given:
            settings = flags_of(method_of(others[name][0]).settings)
            if not any(one.kind in SWITCHES for one in settings if one.name == _field(name)):
                next(left, "")
