"""An OpenEnv server: hundreds of sessions on one vector env.

OpenEnv's clients have one session each at `/ws`; their messages are `reset`, `step`, `state` and `close`. At
`/batch/ws` the same messages are about many sessions, with lists for values. Steps that wait together are computed
together.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import resource
from http import HTTPStatus
from time import process_time
from typing import Any
from urllib.parse import urlsplit

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from bkrl.core.errors import BkrlError, RunFailed, UsageError
from bkrl.core.hosts import is_loopback
from bkrl.serve.sessions import Sessions
from bkrl.serve.turns import Turns

MOST_BYTES = 1 << 20
"""Of a message."""
MOST_IN_BATCH = 4096
"""Sessions of one connection to `/batch/ws`."""
SPARE = 64
"""Connections beyond the number of sessions that are told why they get none; more are turned away at the door."""


class OpenEnvServer:
    """Serves sessions at `host`:`port`; `async with` it.

    Args:
        sessions: what is served.
        host, port: where; port 0 takes a free one.
        token: clients must send it, as `Authorization: Bearer TOKEN`; "" for none, which only loopback may have.
        idle: seconds after which a session that asks for nothing is closed.

    Attributes:
        url: what clients take as `base_url`, once it serves.
    """

    def __init__(
        self, sessions: Sessions, host: str = "127.0.0.1", port: int = 8000, token: str = "", idle: float = 3600
    ) -> None:
        if not token and not is_loopback(host):
            raise UsageError(f"{host} can be reached from other machines: set BKRL_SERVE_TOKEN to a secret of yours.")
        self.sessions, self.token, self.idle, self._at = sessions, token, idle, (host, port)
        self.turns = Turns(sessions)
        self.url = ""
        self._names = list(sessions.action_names)

    async def __aenter__(self) -> OpenEnvServer:
        wanted, hard = 2 * len(self.sessions.seeds) + 256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))
        host, port = self._at
        self._server = await serve(
            self._serve, host, port, process_request=self._door, compression=None, max_size=MOST_BYTES, max_queue=2,
            write_limit=1 << 16, close_timeout=2, server_header="bkrl",
        )  # fmt: skip
        host, port = self._server.sockets[0].getsockname()[:2]
        self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        return self

    async def __aexit__(self, *raised: Any) -> None:
        self._server.close()
        await self._server.wait_closed()

    def _door(self, connection: ServerConnection, request: Request) -> Response | None:
        """What answers an HTTP request; None lets a WebSocket in."""
        said = request.headers.get("Authorization", "")
        if self.token and not hmac.compare_digest(said.encode(), f"Bearer {self.token}".encode()):
            return connection.respond(HTTPStatus.UNAUTHORIZED, "Send the token: Authorization: Bearer TOKEN.\n")
        if "Origin" in request.headers:  # a page of somebody else's, in a browser here, is no client
            return connection.respond(HTTPStatus.FORBIDDEN, "Pages in browsers are not served.\n")
        path = urlsplit(request.path).path
        if path in ("/ws", "/batch/ws"):
            if self.turns.parties < len(self.sessions.seeds) + SPARE:
                return None
            return connection.respond(HTTPStatus.SERVICE_UNAVAILABLE, "Too many connections; come again later.\n")
        documents: Any = {"/health": lambda: {"status": "healthy"}, "/metadata": self.metadata, "/schema": self.schema}
        if path not in documents:
            known = ", ".join((*documents, "/ws", "/batch/ws"))
            return connection.respond(HTTPStatus.NOT_FOUND, f"There are {known}.\n")
        response = connection.respond(HTTPStatus.OK, json.dumps(documents[path]()) + "\n")
        response.headers["Content-Type"] = "application/json"
        return response

    def metadata(self) -> dict[str, Any]:
        """What is served, and how fast the server has been: its processor seconds, and those of env, captions and Φ."""
        env = self.sessions.env
        return {
            "name": env.env_id,
            "description": f"{env.rules} {env.solved}",
            "reward": self.sessions.guarantee,
            "max_steps": env.max_steps,
            "sessions": {"open": self.sessions.open_count, "most": len(self.sessions.seeds)},
            "seconds": {"server": round(process_time(), 3), "env": round(self.sessions.busy, 3)},
        }

    def schema(self) -> dict[str, Any]:
        """JSON schemas of actions, observations and states."""
        number, text, several = {"type": "integer"}, {"type": "string"}, {"type": "array"}
        documents: dict[str, dict[str, Any]] = {
            "action": {"action": {"enum": [*self._names, *range(len(self._names))]}},
            "observation": {"caption": text, "mission": text, "actions": several, "success": {"type": "boolean"}},
            "state": {"seed": number, "actions": several, "step_count": number},
        }
        return {name: {"type": "object", "properties": each, "required": [*each]} for name, each in documents.items()}

    async def _serve(self, connection: ServerConnection) -> None:
        assert connection.request is not None
        many = urlsplit(connection.request.path).path == "/batch/ws"
        self.turns.parties += 1
        rows: list[int] = []
        try:
            try:
                rows += [] if many else self.sessions.open()
            except UsageError as full:
                return await connection.send(json.dumps(_error(str(full), "CAPACITY_REACHED")))
            while True:
                async with asyncio.timeout(self.idle):
                    raw = await connection.recv()
                if (said := await self._answer(raw, rows, many)) is None:
                    return None
                await connection.send(json.dumps(said))
        except (ConnectionClosed, TimeoutError):
            return None
        finally:
            self.turns.parties -= 1
            self.sessions.close(rows)

    async def _answer(self, raw: str | bytes, rows: list[int], many: bool) -> dict[str, Any] | None:
        """The reply to a message; None to one that says good-bye."""
        try:
            message = json.loads(raw)
        except (ValueError, RecursionError) as problem:
            return _error(f"This is no JSON: {problem}.", "INVALID_JSON")
        kind, data = (message.get("type"), message.get("data", {})) if isinstance(message, dict) else ("", None)
        if kind == "close":
            return None
        try:
            if not isinstance(data, dict):
                raise UsageError('A message is {"type": …, "data": {…}}.')
            if kind in ("reset", "step"):
                one, several = (self._reset, self._reset_many) if kind == "reset" else (self._step, self._step_many)
                return {"type": "observation", "data": await (several if many else one)(data, rows)}
            if kind == "state":
                states = [*map(self._state, rows)]
                return {"type": "state", "data": {"sessions": states} if many else states[0]}
        except BkrlError as problem:
            return _error(str(problem), "EXECUTION_ERROR" if isinstance(problem, RunFailed) else "VALIDATION_ERROR")
        return _error(f"There is no message '{str(kind)[:40]}'; send reset, step, state or close.", "UNKNOWN_TYPE")

    async def _reset(self, data: dict[str, Any], rows: list[int]) -> dict[str, Any]:
        _only(data, "seed", "actions", "episode_id")
        await self.turns.take(rows, starts=[self.sessions.start(data.get("seed"), data.get("actions"))])
        return self._observed(rows[0], None, {"seed": self.sessions.seeds[rows[0]]}, False)

    async def _step(self, data: dict[str, Any], rows: list[int]) -> dict[str, Any]:
        _only(data, "action", "metadata")
        if self.sessions.over[rows[0]]:
            raise UsageError("No episode runs in this session; send a reset.")
        moved = await self.turns.take(rows, [self.sessions.action(data.get("action"))])
        more: dict[str, Any] = {"success": bool(moved.success[0]), "truncated": bool(moved.truncated[0])}
        if self.sessions.phi is not None:
            more["shaping"] = float(moved.shaping[0])
        return self._observed(rows[0], float(moved.rewards[0]), more, more["success"])

    def _observed(self, row: int, reward: float | None, more: dict[str, Any], success: bool) -> dict[str, Any]:
        caption, mission = self.sessions.captions[row], self.sessions.missions[row]
        observation = {"caption": caption, "mission": mission, "actions": self._names, "success": success}
        return {"observation": observation, "reward": reward, "done": bool(self.sessions.over[row]), "metadata": more}

    def _state(self, row: int) -> dict[str, Any]:
        taken = self.sessions.taken[row]
        return {"seed": self.sessions.seeds[row], "actions": list(taken), "step_count": len(taken)}

    async def _reset_many(self, data: dict[str, Any], rows: list[int]) -> dict[str, Any]:
        """Begin episodes in all sessions of the connection, or in those of `which`; the first time says how many."""
        _only(data, "seeds", "count", "which", "seed", "actions")
        seeds, which = data.get("seeds"), data.get("which")
        if seeds is not None and (not isinstance(seeds, list) or data.get("seed") is not None):
            raise UsageError("`seeds` is a list of whole numbers, and stands without `seed`.")
        lists = [one for one in (which, seeds) if isinstance(one, list)]
        count = data.get("count", len(lists[0]) if lists else len(rows))
        if type(count) is not int or not 1 <= count <= MOST_IN_BATCH or any(len(one) != count for one in lists):
            raise UsageError(
                f"Give `seeds`, or `count`, for 1 to {MOST_IN_BATCH} sessions, and as many as a given `which` has."
            )
        each = seeds or [data.get("seed")] * count
        starts = [self.sessions.start(seed, data.get("actions")) for seed in each]
        kept = count if which is None else len(rows)
        rows += self.sessions.open(max(0, kept - len(rows)))
        chosen = rows[:kept] if which is None else [rows[number] for number in _numbers(which, len(rows))]
        await self.turns.take(chosen, starts=starts)
        self.sessions.close(rows[kept:])
        del rows[kept:]
        more = {"seed": [self.sessions.seeds[row] for row in rows]}
        return self._all(rows, None, self.sessions.over[rows].tolist(), more)

    async def _step_many(self, data: dict[str, Any], rows: list[int]) -> dict[str, Any]:
        """An action for each session of the connection, null for one that waits, as those do whose episode is over.

        With `autoreset` an episode that ends is followed by another, whose first observation is what is returned; the
        caption of its own last one is `last_caption` of the metadata.
        """
        _only(data, "actions", "autoreset", "metadata")
        given = data.get("actions")
        if not isinstance(given, list) or len(given) != len(rows) or not rows:
            raise UsageError(f"`actions` is a list of {len(rows)}, one for each of your sessions; reset first.")
        over, action = self.sessions.over[rows].tolist(), self.sessions.action
        moves = [(i, row, action(one)) for i, (row, one) in enumerate(zip(rows, given, strict=True)) if one is not None]
        if any(over[i] for i, _, _ in moves):
            raise UsageError("An episode is over: give null for its session, or reset it with `which`.")
        names = ["rewards", "success", "truncated", *(["shaping"] if self.sessions.phi is not None else [])]
        more: dict[str, list[Any]] = {name: [None] * len(rows) for name in names}
        if moves:
            numbers, going, actions = map(list, zip(*moves, strict=True))
            columns = (await self.turns.take(going, actions))._asdict()
            for name, values in more.items():
                for i, value in zip(numbers, columns[name].tolist(), strict=True):
                    values[i] = value
        rewards, done = more.pop("rewards"), self.sessions.over[rows].tolist()
        if data.get("autoreset"):
            captions = self.sessions.captions
            more["last_caption"] = [captions[row] if is_over else None for row, is_over in zip(rows, done, strict=True)]
            if ended := [row for row, is_over in zip(rows, done, strict=True) if is_over]:
                await self.turns.take(ended, starts=[self.sessions.start() for _ in ended])
        return self._all(rows, rewards, done, more)

    def _all(self, rows: list[int], rewards: Any, done: list[bool], more: dict[str, list[Any]]) -> dict[str, Any]:
        shown = ([texts[row] for row in rows] for texts in (self.sessions.captions, self.sessions.missions))
        success = more.get("success", [None] * len(rows))
        observation = {**dict(zip(("caption", "mission"), shown)), "actions": self._names, "success": success}
        return {"observation": observation, "reward": rewards, "done": done, "metadata": more}


def _error(sentence: str, code: str) -> dict[str, Any]:
    return {"type": "error", "data": {"message": sentence, "code": code}}


def _only(data: dict[str, Any], *known: str) -> None:
    if unknown := sorted(set(data) - set(known)):
        raise UsageError(f"'{str(unknown[0])[:40]}' is not known here; there are {', '.join(known)}.")


def _numbers(which: Any, most: int) -> list[int]:
    whole = isinstance(which, list) and all(type(one) is int and 0 <= one < most for one in which)
    if not whole or not which or len(set(which)) < len(which):
        raise UsageError(f"`which` is a list of different numbers from 0 to {most - 1}.")
    return which
