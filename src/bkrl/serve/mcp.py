"""An MCP server on stdin and stdout: play an env, look at runs, datasets and reports below one folder."""

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

from bkrl import __version__
from bkrl.core.errors import BkrlError, InputError, UsageError
from bkrl.core.files import read_json
from bkrl.runs.folder import MANIFEST, complete_below, locate
from bkrl.runs.record import Run
from bkrl.serve.sessions import Sessions

MOST_EPISODES, MOST_ROWS = 16, 500
"""Episodes that are played at the same time; rows of one answer."""
_ABOUT = "bkrl: play text envs for reinforcement learning, and look at the runs, datasets and reports of this folder."


class Desk:
    """What the tools do. Paths are below `root`, or `sample:NAME`."""

    def __init__(self, root: Path) -> None:
        self.root, self._count = root.resolve(), 0
        self._played: dict[int, Sessions] = {}

    def list_envs(self, containing: str = "") -> list[str]:
        """The ids of envs that can be played; `containing` keeps those with this text."""
        from bkrl.envs import env_ids

        return [one for one in env_ids() if containing.lower() in one.lower()][:MOST_ROWS]

    def start_episode(
        self, env: str, seed: int | None = None, potential: str = "", actions: list[int] | None = None
    ) -> dict[str, Any]:
        """Begin an episode and see what is there.

        `seed` makes it again, `actions` with it go on from a saved state; `potential`, a train-rm run, adds its
        differences to the reward. The answer has the number that the other tools call `episode`.
        """
        if len(self._played) >= MOST_EPISODES:
            raise UsageError(f"{MOST_EPISODES} episodes are open; end one with end_episode.")
        sessions = Sessions(env, 1, self._place(potential) if potential else None, seed=self._count + 1)
        try:
            sessions.reset(sessions.open(), [sessions.start(seed, actions)])
        except BaseException:
            sessions.end()
            raise
        self._count += 1
        self._played[self._count] = sessions
        return {"episode": self._count, **self._shown(sessions), "reward_is": sessions.guarantee}

    def act(self, episode: int, action: str) -> dict[str, Any]:
        """Take an action, by its name or number, in an episode that runs."""
        sessions = self._of(episode)
        if sessions.over[0]:
            raise UsageError("The episode is over; begin another with start_episode.")
        number = action.isdecimal() and action not in sessions.action_names
        moved = sessions.step([0], [sessions.action(int(action[:9]) if number else action)])
        paid = {"reward": float(moved.rewards[0]), "success": bool(moved.success[0])}
        return {**self._shown(sessions), **paid, "terminated": bool(moved.terminated[0])}

    def episode_state(self, episode: int) -> dict[str, Any]:
        """The seed and the actions of an episode: with them start_episode begins in the same place."""
        sessions = self._of(episode)
        return {"env": sessions.env.env_id, "seed": sessions.seeds[0], "actions": list(sessions.taken[0])}

    def end_episode(self, episode: int) -> str:
        """Close an episode."""
        self._of(episode).end()
        del self._played[episode]
        return "closed"

    def list_runs(self, folder: str = ".") -> list[dict[str, str]]:
        """The complete runs below a folder: path and stage (collect, label, train-rm, train-rs, evaluate, report)."""
        place = self._place(folder)
        found = [(one, read_json(one / MANIFEST).get("stage", "?")) for one in complete_below(place)[:MOST_ROWS]]
        return [{"path": Path(folder, one.relative_to(place)).as_posix(), "stage": str(stage)} for one, stage in found]

    def show_run(self, path: str) -> dict[str, Any]:
        """What a run is and what it found: its command, settings, inputs and facts."""
        run = Run.open(self._place(path), verify=False)
        known = {name: run.config.get(name) for name in ("argv", "config", "inputs")}
        return {"stage": run.stage, **known, "facts": run.facts}

    def metrics(self, path: str, names: list[str] | None = None, last: int = 20) -> list[dict[str, Any]]:
        """The last rows of a training run's metrics; `names` keeps those that begin so, such as "eval/"."""
        rows = Run.open(self._place(path), verify=False).metrics()[-max(1, min(last, MOST_ROWS)) :]
        kept = (*(names or [""]), "step")
        return [{name: value for name, value in row.items() if name.startswith(kept)} for row in rows]

    def dataset_episode(self, path: str, episode: int = 0) -> dict[str, Any]:
        """One episode of a dataset (a collect run): its mission and, step by step, caption, action and reward."""
        from bkrl.data.dataset import Dataset

        data = Dataset.open(self._place(path))
        if not 0 <= episode < data.num_episodes:
            raise UsageError(f"{path} has episodes 0 to {data.num_episodes - 1}.")
        first, length = int(data.first_row[episode]), int(data.lengths[episode])
        rows = range(first, first + min(length, MOST_ROWS))
        steps = [[data.caption(i), data.action_names[data.actions[i]], float(data.rewards[i])] for i in rows]
        about = {"env": data.env_id, "mission": data.missions[episode], "success": bool(data.success[episode])}
        return {**about, "length": length, "steps": steps, "last": data.caption(first + length)}

    def report(self, path: str) -> dict[str, Any]:
        """What a report found: its results as plain values."""
        return dict(read_json(Run.open(self._place(path), "report").file("results.json")))

    def collect(self, env: str, steps: int, out: str, seed: int = 1) -> dict[str, Any]:
        """Record an explorer that is paid for novelty (PPO and RND) below the folder; at most a million steps."""
        from bkrl.core.config import CollectConfig
        from bkrl.core.reporter import Reporter
        from bkrl.core.settings import checked
        from bkrl.stages.collect import run

        if not 1 <= steps <= 1_000_000:
            raise UsageError("steps must be 1 to 1,000,000.")
        made = run(checked(CollectConfig(env=env, steps=steps, seed=seed, out=self._place(out))), Reporter())
        return {"path": out, "facts": made.facts}

    def _of(self, episode: int) -> Sessions:
        if episode not in self._played:
            raise UsageError(f"There is no episode {episode}; begin one with start_episode.")
        return self._played[episode]

    def _shown(self, sessions: Sessions) -> dict[str, Any]:
        texts = {"mission": sessions.missions[0], "caption": sessions.captions[0]}
        return {**texts, "actions": list(sessions.action_names), "over": bool(sessions.over[0])}

    def _place(self, path: str) -> Path:
        """A path below the root, or a sample's folder; InputError for any other."""
        if path.startswith("sample:"):
            return locate(Path(path))
        place = (self.root / path).resolve()
        if not place.is_relative_to(self.root):
            raise InputError(f"{path} is not below the folder that this server was started with.")
        return place


def _told(tool: Callable[..., Any]) -> Callable[..., Any]:
    """The same, its errors as sentences for the client."""

    @wraps(tool)
    def call(*values: Any, **named: Any) -> Any:
        try:
            return tool(*values, **named)
        except (BkrlError, OSError) as problem:
            raise ToolError(str(problem)) from None

    return call


def server(root: Path, write: bool = False) -> MCPServer[Any]:
    """The server of a folder; tools that write are there with `write` alone."""
    desk = Desk(root)
    made: MCPServer[Any] = MCPServer("bkrl", instructions=_ABOUT, version=__version__, log_level="WARNING")
    reading: tuple[Callable[..., Any], ...] = (
        desk.list_envs, desk.start_episode, desk.act, desk.episode_state, desk.end_episode, desk.list_runs,
        desk.show_run, desk.metrics, desk.dataset_episode, desk.report,
    )  # fmt: skip
    for tool in (*reading, *([desk.collect] if write else [])):
        made.add_tool(_told(tool), structured_output=False)
    return made
