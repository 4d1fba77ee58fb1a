"""`bkrl serve …`: envs, runs and reports for other programs; and runs on the Hugging Face hub."""

import os
from pathlib import Path
from typing import Annotated

import typer

from bkrl.cli import console, progress
from bkrl.cli.commands.shown import Json, print_facts, show_run
from bkrl.cli.options import Commands, refuse
from bkrl.core.errors import RunFailed, UsageError

serve = Commands(help="Serve envs, runs and reports to other programs, on this machine alone.", no_args_is_help=True)

GAMMA, SEED, PORT = 0.99, 1, 8000
Env = Annotated[str, typer.Option(help="what is played; see `bkrl list envs`", show_default=False)]
Port = Annotated[int, typer.Option(min=0, max=65535, help="0: a free one")]
Phi = Annotated[Path | None, typer.Option(help="a train-rm run: γΦ(h') - Φ(h) is added to the reward of each step")]
Gamma = Annotated[float, typer.Option(min=0, max=1, help="discount of that difference, and of whoever learns from it")]


@serve.command("openenv")
def openenv(
    env: Env,
    potential: Phi = None,
    gamma: Gamma = GAMMA,
    sessions: Annotated[int, typer.Option(min=1, max=65536, help="the most that are open at the same time")] = 1024,
    host: Annotated[str, typer.Option(help="other than this machine's own only with BKRL_SERVE_TOKEN")] = "127.0.0.1",
    port: Port = PORT,
    idle: Annotated[float, typer.Option(min=1, help="seconds after which an idle session is closed")] = 3600,
    seed: Annotated[int, typer.Option(min=0, help="of the episodes for which clients ask no seed")] = 1,
) -> None:
    """An OpenEnv server: `GenericEnvClient(base_url=URL)` plays; many sessions at once, and /batch in one message."""
    import asyncio
    import signal

    try:
        from bkrl.serve.openenv import OpenEnvServer
    except ImportError:
        raise UsageError("websockets is not installed: pip install 'bkrl[openenv]'.") from None
    from bkrl.serve.sessions import Sessions

    async def run() -> None:
        token = os.environ.get("BKRL_SERVE_TOKEN", "")
        async with OpenEnvServer(rows, host, port, token, idle) as server:
            console.print_text(server.url)
            ended = asyncio.Event()
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(number, ended.set)
            await ended.wait()

    refuse(_idle_gamma(gamma, potential), or_else="")
    rows = Sessions(env, sessions, potential, gamma, seed)
    try:
        asyncio.run(run())
    except OSError as problem:
        raise RunFailed(f"{host}:{port} cannot be opened ({problem.strerror}); choose another --port.") from None
    finally:
        rows.end()


@serve.command("mcp")
def mcp(
    root: Annotated[Path, typer.Option(exists=True, file_okay=False, help="the folder of the runs")] = Path(),
    write: Annotated[bool, typer.Option("--write", help="tools that write below the folder, too")] = False,
) -> None:
    """An MCP server on stdin and stdout: tools to play envs and to look at runs, datasets and reports; read-only."""
    try:
        from bkrl.serve.mcp import server
    except ImportError:
        raise UsageError("mcp is not installed: pip install 'bkrl[mcp]'.") from None
    server(root, write).run("stdio")


def _idle_gamma(gamma: float, potential: Path | None) -> dict[str, str]:
    return {"gamma": "--potential"} if gamma != GAMMA and potential is None else {}


def play(
    what: Annotated[str, typer.Argument(help="an env to play, or a collect run to look at")],
    potential: Annotated[Path | None, typer.Option(help="a train-rm run whose Φ and advice are shown")] = None,
    policy: Annotated[Path | None, typer.Option(help="a train-rs run that can act")] = None,
    gamma: Gamma = GAMMA,
    seed: Annotated[int, typer.Option(min=0, help="of the first episode")] = SEED,
    port: Port = PORT,
    episode: Annotated[list[int] | None, typer.Option(help="of a collect run  \\[default: the first ones]")] = None,
    out: Annotated[Path | None, typer.Option(help="for a collect run: the file  \\[default: in the run]")] = None,
) -> None:
    """A page for the browser: play an env by keyboard, watch a policy, or step through the episodes of a dataset."""
    recorded = what.startswith("sample:") or Path(what).is_dir()
    given = {"policy": policy, "gamma": gamma != GAMMA, "seed": seed != SEED, "port": port != PORT}
    useless, belongs = (given, "an env to play") if recorded else ({"episode": episode, "out": out}, "a collect run")
    refuse({name: belongs for name, one in useless.items() if one} or _idle_gamma(gamma, potential), or_else="")
    if recorded:
        from bkrl.data.dataset import Dataset
        from bkrl.report.pages.episodes import write

        console.print_text(str(write(Dataset.open(Path(what)), out, episode or (), potential)))
        return
    from bkrl.serve.play import PlayedEnv, server

    table = PlayedEnv(what, potential, policy, gamma, seed)
    try:
        with server(table, port) as serving:
            console.print_text(f"http://127.0.0.1:{serving.server_port}/")
            serving.serve_forever()
    except OSError as problem:
        raise RunFailed(f"Port {port} cannot be opened ({problem.strerror}); choose another --port.") from None
    except KeyboardInterrupt:
        return
    finally:
        table.sessions.end()


def push(
    run: Annotated[Path, typer.Argument(help="a dataset, labels, a potential, a policy or a language model")],
    repo: Annotated[str, typer.Argument(help="OWNER/NAME on the Hugging Face hub")],
    evaluation: Annotated[
        list[Path] | None, typer.Option(help="an evaluate run of this policy, for the card; can be repeated")
    ] = None,
    license: Annotated[str, typer.Option(help="by the hub's name for it: mit, cc-by-4.0, …")] = "unknown",
    private: Annotated[bool, typer.Option("--private", help="its owner's alone; a public one is refused")] = False,
    as_json: Json = False,
) -> None:
    """Put a run on the Hugging Face hub, with a card; log in with `hf auth login`, or set HF_TOKEN."""
    from bkrl.serve import hub

    print_facts(str(run), hub.push(run, repo, evaluation or (), license, private, progress.reporter()), as_json)


def pull(
    repo: Annotated[str, typer.Argument(help="OWNER/NAME on the Hugging Face hub")],
    out: Annotated[Path, typer.Argument(help="folder to make")],
    revision: Annotated[str | None, typer.Option(help="a branch, tag or commit  \\[default: the newest]")] = None,
    as_json: Json = False,
) -> None:
    """Fetch a run that `bkrl push` put on the Hugging Face hub; it is checked before it gets its place."""
    from bkrl.serve import hub

    show_run(hub.pull(repo, out, revision, progress.reporter()), as_json)
