"""`bkrl play ENV`: an env in the browser of this machine, played by keyboard or by a policy."""

import json
import secrets
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from bkrl.core.errors import BkrlError, UsageError
from bkrl.report.pages.episodes import Advising, ending, frame, page
from bkrl.report.plots.pictures import png_uri
from bkrl.serve.sessions import Sessions

MOST_BYTES = 1_000
"""Of a request."""


class PlayedEnv:
    """One env that is played: its frames, and the page that shows them.

    Args:
        env_id: what is played.
        potential: a train-rm run whose Φ and advice are shown.
        policy: a train-rs run that can act, too.
        gamma: of γΦ' - Φ.
        seed: of the first episode.
    """

    def __init__(
        self, env_id: str, potential: Path | None = None, policy: Path | None = None, gamma: float = 0.99, seed: int = 1
    ) -> None:
        self.agent, options = None, {}
        if policy is not None:
            from bkrl.agents import load_agent
            from bkrl.agents.build import check_acts_in, options_of
            from bkrl.envs import env_spec
            from bkrl.runs.record import Run

            self.agent = load_agent(Run.open(policy, "train-rs").path)
            check_acts_in(self.agent, env_spec(env_id), policy)
            options = options_of(self.agent)
        self.sessions = Sessions(env_id, 1, potential, gamma, seed, **options)
        self._rows, self._rng = self.sessions.open(), np.random.default_rng(seed)
        self._advise = None if self.sessions.phi is None else Advising(self.sessions.phi.potential)
        self.key = secrets.token_urlsafe(16)
        self.first = self.reset(seed)

    def reset(self, seed: int | None = None) -> dict[str, Any]:
        """Begin an episode: its name and its first frame."""
        start = self.sessions.start(seed)
        self.sessions.reset(self._rows, [start])
        if self.agent is not None:
            from bkrl.agents.viewer import Viewer

            self._view, self._state = Viewer(self.sessions.envs, self.agent), dict(self.agent.begin(1))
        self._started = np.ones(1, bool)
        return {"name": f"seed {start.seed}", "frame": self._frame()}

    def step(self, action: int | None) -> dict[str, Any]:
        """Take an action, the policy's for None: the frame after it."""
        if self.sessions.over[0]:
            raise UsageError("The episode is over; begin a new one.")
        if action is None:
            if self._acted is None:
                raise UsageError("No policy was given; run bkrl play with --policy RUN.")
            action = int(self._acted.actions[0])
        if self.agent is not None:
            self._view.acted(np.array([action]))
        moved = self.sessions.step(self._rows, [action])
        if self.agent is not None:
            self._view.happened(np.array([action]), self.sessions.envs.about(), self.sessions.seen)
        end = ending(moved.terminated[0], moved.success[0]) if self.sessions.over[0] else None
        shaping = None if self.sessions.phi is None else round(float(moved.shaping[0]), 4)
        reward = float(moved.rewards[0] - moved.shaping[0])
        return {"frame": self._frame(action=action, reward=reward, shaping=shaping, end=end)}

    def _frame(self, **more: Any) -> dict[str, Any]:
        sessions = self.sessions
        if sessions.phi is not None and self._advise is not None:
            said = self._advise(sessions.phi.present(self._rows), sessions.missions)
            more |= {"phi": round(float(sessions.phi.now[0]), 4), "advice": None if said is None else said[0]}
        self._acted = None
        if self.agent is not None and not sessions.over[0]:
            views = self._view(sessions.seen, self._started)
            noise = self._rng.gumbel(size=(1, len(self.agent.action_names))).astype(np.float32)
            self._acted = self.agent.act(views, self._state, self._started, noise)
            self._state, self._started = dict(self._acted.state), np.zeros(1, bool)
            odds = np.exp(self._acted.logits[0] - self._acted.logits[0].max())
            more["policy"] = (odds / odds.sum()).round(3).tolist()
        picture = None
        with suppress(NotImplementedError):  # an env of one's own may give none
            picture = png_uri(np.asarray(sessions.envs.frame(0)))
        return frame(picture, sessions.captions[0], sessions.missions[0], **more)

    def document(self) -> str:
        """The page, with the episode that was begun first."""
        env, policy = self.sessions.env, self.agent is not None
        data = {"live": True, "key": self.key, "policy": policy, "pictures": [], "actions": self.sessions.action_names}
        begun = self.reset(self.sessions.seeds[0])
        episodes = [{"name": begun["name"], "frames": [begun["frame"]]}]
        shown = f"The reward shown is the env's own; γΦ' − Φ: {self.sessions.guarantee}." if self.sessions.phi else ""
        return page(f"Play {env.env_id}", f"{env.rules} {env.solved}", {**data, "episodes": episodes}, shown)

    def act(self, asked: Any) -> dict[str, Any]:
        """What the page asked for; UsageError for anything else."""
        if isinstance(asked, dict) and "reset" in asked:
            seed = str(asked["reset"])
            return self.reset(int(seed) if seed.isascii() and seed.isdigit() and len(seed) < 19 else None)
        if isinstance(asked, dict) and asked.get("policy") is True:
            return self.step(None)
        return self.step(self.sessions.action(asked.get("action") if isinstance(asked, dict) else None))


class _Handler(BaseHTTPRequestHandler):
    table: PlayedEnv
    turn = Lock()
    timeout = 10

    def do_GET(self) -> None:
        """The page."""
        if self._here() and self.path == "/":
            with self.turn:
                text = self.table.document()
            self._say(200, "text/html; charset=utf-8", text)
        else:
            self._say(404, "text/plain; charset=utf-8", "There is one page, at /.")

    def do_POST(self) -> None:
        """An action of whoever has the page: pages of others do not know the key."""
        given, size = self.headers.get("X-Bkrl-Key", "").encode(), self.headers.get("Content-Length", "")
        if not self._here() or self.path != "/act" or not secrets.compare_digest(given, self.table.key.encode()):
            return self._say(403, "text/plain; charset=utf-8", "Open the page that bkrl play printed.")
        if not size.isdigit() or int(size) > MOST_BYTES:
            return self._say(413, "text/plain; charset=utf-8", "That is no action.")
        try:
            asked = json.loads(self.rfile.read(int(size)))
            with self.turn:
                said = self.table.act(asked)
        except (BkrlError, ValueError, RecursionError) as problem:
            said = {"problem": str(problem)}
        return self._say(200, "application/json", json.dumps(said))

    def _here(self) -> bool:
        """Whether the browser asked for this machine, and not for a name that somebody lets point to it."""
        return self.headers.get("Host", "").partition(":")[0] in ("127.0.0.1", "localhost")

    def _say(self, status: int, kind: str, text: str) -> None:
        said = text.encode()
        self.send_response(status)
        for name, value in (("Content-Type", kind), ("Content-Length", str(len(said))), ("Cache-Control", "no-store")):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


def server(table: PlayedEnv, port: int = 0) -> ThreadingHTTPServer:
    """Serves a table on 127.0.0.1; `port` 0 takes a free one."""
    return ThreadingHTTPServer(("127.0.0.1", port), type("Handler", (_Handler,), {"table": table}))
