"""How fast other programs can play: an OpenEnv server and its client, a process each.

    python benchmarks/serving.py [--json] [--quick] [--env ID] [--only sessions|batched|memory]

* `sessions_steps_per_s`: steps of 256 sessions a second through OpenEnv's own client (`openenv`; where that is not
  installed, `openenv_client` is 0 and a plain WebSocket takes its place with the same messages). Random actions.
* `env_share`: percent of the server's processor time in which env, captions and Φ are computed; the rest is protocol.
  `server_us`, `client_us`: processor time of a step on either side. `empty_steps_per_s`: the same client and a server
  that answers every message with the same text.
* `batched_steps_per_s`: 1,024 sessions of one connection to /batch, stepped in one message, episodes begun anew.
* `rss_growth`: percent by which the server's memory grows from the 10,000th episode to the 100,000th.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from websockets.asyncio.client import connect
from websockets.asyncio.server import serve
from websockets.exceptions import ConnectionClosed

from command_line import parser_of, show

HERE = Path(__file__).resolve()
ENV = "BabyAI-GoToLocal-v0"
SESSIONS, ROWS = 256, 1024
ACTIONS = 6

try:
    from openenv.core import GenericEnvClient
except ImportError:
    GenericEnvClient = None


class PlainClient:
    """What OpenEnv's client sends, without OpenEnv."""

    def __init__(self, base_url: str) -> None:
        self.url = base_url.replace("http", "ws", 1) + "/ws"

    async def connect(self) -> None:
        self.socket = await connect(self.url, max_size=None, proxy=None)

    async def ask(self, kind: str, data: dict[str, Any]) -> dict[str, Any]:
        await self.socket.send(json.dumps({"type": kind, "data": data}))
        reply = json.loads(await asyncio.wait_for(self.socket.recv(), 60))
        assert reply["type"] != "error", reply
        return dict(reply["data"])

    async def reset(self, **data: Any) -> dict[str, Any]:
        return await self.ask("reset", data)

    async def step(self, action: dict[str, Any]) -> dict[str, Any]:
        return await self.ask("step", action)

    async def close(self) -> None:
        await self.socket.close()


def done(result: Any) -> Any:
    """Whether the episode is over, or which are."""
    return result["done"] if isinstance(result, dict) else result.done


@contextmanager
def server(env: str, sessions: int) -> Iterator[tuple[str, psutil.Process]]:
    """A server in a process of its own, that ends with the block."""
    words = [sys.executable, "-m", "bkrl", "serve", "openenv", "--env", env, "--sessions", str(sessions), "--port", "0"]
    source = str(HERE.parents[1] / "src")
    settings = {**os.environ, "NUMBA_NUM_THREADS": "1", "PYTHONPATH": source}
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=settings)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip(), psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait()


@asynccontextmanager
async def clients(url: str, count: int) -> AsyncIterator[list[Any]]:
    """So many, connected."""
    made = [(GenericEnvClient or PlainClient)(base_url=url) for _ in range(count)]
    for one in made:
        await one.connect()
    try:
        yield made
    finally:
        await asyncio.gather(*(one.close() for one in made))


async def play(client: Any, steps: int) -> None:
    """Random actions; a new episode where one ends."""
    await client.reset(seed=random.randrange(10_000))
    for _ in range(steps):
        if done(await client.step({"action": random.randrange(ACTIONS)})):
            await client.reset()


async def batch(client: Any, sessions: int, episodes: int) -> int:
    """Play so many episodes in one connection; the steps that took."""
    await client.reset(count=sessions)
    steps = ended = 0
    while ended < episodes:
        actions = random.choices(range(ACTIONS), k=sessions)
        ended += sum(done(await client.step({"actions": actions, "autoreset": True})))
        steps += sessions
    return steps


def seconds(url: str) -> dict[str, float]:
    """The server's processor time so far."""
    with urllib.request.urlopen(url + "/metadata") as reply:
        return dict(json.load(reply)["seconds"])


async def rate(url: str, count: int, steps: int) -> tuple[float, float]:
    """Steps of all clients a second, and processor seconds of this process."""
    async with clients(url, count) as made:
        await asyncio.gather(*(play(one, 2) for one in made))
        began, own = time.perf_counter(), time.process_time()
        await asyncio.gather(*(play(one, steps) for one in made))
        return count * steps / (time.perf_counter() - began), time.process_time() - own


async def sessions(env: str, quick: bool) -> dict[str, float]:
    """Many clients with a session each."""
    count, steps = (8, 5) if quick else (SESSIONS, 100)
    with server(env, max(count, 8)) as (url, _):
        async with clients(url + "/batch", 1) as [warm]:
            await batch(warm, count, 2 * count)  # captions that are kept, as after a minute
        before = seconds(url)
        reached, own = await rate(url, count, steps)
        after = seconds(url)
    spent = after["server"] - before["server"]
    return {
        "sessions_steps_per_s": reached,
        "env_share": 100 * (after["env"] - before["env"]) / spent,
        "server_us": 1e6 * spent / count / steps,
        "client_us": 1e6 * own / count / steps,
        "openenv_client": float(GenericEnvClient is not None),
        "empty_steps_per_s": (await empty(count, steps)),
    }


async def empty(count: int, steps: int) -> float:
    """The client alone, as far as it can be: a server in a process of its own that looks at nothing."""
    words = [sys.executable, str(HERE), "--empty"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        return (await rate(process.stdout.readline().strip(), count, steps))[0]
    finally:
        process.terminate()
        process.wait()


async def serve_empty() -> None:
    """The server of `empty`."""
    shown = {"caption": "You see a wall 3 steps forward. " * 6, "mission": "go to the red key", "actions": []}
    said = json.dumps({"type": "observation", "data": {"observation": shown, "reward": 0.0, "done": False}})

    async def answer(connection: Any) -> None:
        with suppress(ConnectionClosed):
            async for _ in connection:
                await connection.send(said)

    async with serve(answer, "127.0.0.1", 0, compression=None) as made:
        print(f"http://127.0.0.1:{made.sockets[0].getsockname()[1]}", flush=True)
        await asyncio.Event().wait()


async def batched(env: str, quick: bool) -> dict[str, float]:
    """Many sessions in one message."""
    rows = 16 if quick else ROWS
    with server(env, rows) as (url, _):
        async with clients(url + "/batch", 1) as [client]:
            await batch(client, rows, rows)
            began = time.perf_counter()
            steps = await batch(client, rows, 8 * rows)
            return {"batched_steps_per_s": steps / (time.perf_counter() - began)}


async def memory(env: str, quick: bool) -> dict[str, float]:
    """Short episodes, many of them."""
    rows, first, last = (16, 32, 64) if quick else (ROWS, 10_000, 100_000)
    with server(f"{re.sub('@.*', '', env)}@max_steps=4", rows) as (url, process):
        sizes = []
        for episodes in (first, last - first):
            async with clients(url + "/batch", 1) as [client]:
                await batch(client, rows, episodes)
            sizes.append(process.memory_info().rss)
    return {"rss_growth": 100 * (sizes[1] / sizes[0] - 1), "rss_mib": sizes[1] / 2**20}


def main() -> None:
    """Measure and print."""
    parser = parser_of(__doc__)
    parts = {"sessions": sessions, "batched": batched, "memory": memory}
    parser.add_argument("--only", choices=list(parts), help="one part only")
    parser.add_argument("--env", default=ENV, help=f"what is played  (default: {ENV})")
    parser.add_argument("--empty", action="store_true", help="be the server of `empty_steps_per_s`")
    args = parser.parse_args()
    if args.empty:
        asyncio.run(serve_empty())
        return
    results: dict[str, float] = {}
    for name, measure in parts.items():
        if args.only in (None, name):
            results |= asyncio.run(measure(args.env, args.quick))
    show(results, args.json)


if __name__ == "__main__":
    main()
