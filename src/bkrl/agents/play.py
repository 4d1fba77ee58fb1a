"""Playing whole episodes with an agent that does not learn: evaluation, recording, pictures.

Every episode has a seed of its own and is played to its end; none is left out because it was long.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bkrl.agents.protocol import Acted, Agent, Goals, State
from bkrl.agents.viewer import Viewer, symbols_of
from bkrl.core.activity import doing
from bkrl.core.seeds import derive_seed
from bkrl.data.views import ViewKeys, Views
from bkrl.envs.vector import BaseVectorEnv, Obs

MOST_AT_ONCE = 128
"""So many episodes are worth playing side by side: a step of all costs little more than a step of a few."""

_NOISE_STEPS = 32

_FEW = 16
"""The last bits of a row's logits depend on how many rows are computed with it, if those are fewer than this."""

_ROUND = np.arange(_FEW)

_KEPT_BYTES = 2**25
"""Views that are kept to be told from new ones."""

_Step = tuple[NDArray[np.uint8], np.int64, np.float32, np.int64, str]
"""What was seen, what was done, what it paid, what a bot would have done, and the mission."""


@dataclass
class Episode:
    """One finished episode of T actions.

    Attributes:
        seed: what its env was seeded with.
        mission: its first mission, "" if the env has none.
        task_kind: the kind of its task, "" if the env does not say it.
        unlocked: (U,) bool, which of the family's achievements it unlocked; empty if the env has none.
        metrics: the env's own measures of it, by name; empty if it has none, NaN for what has no value.
        observations: (T+1, *obs_shape) uint8, the true final one included; empty unless asked for.
        actions: (T,) int64; empty unless asked for.
        labels: (T,) int64, what a bot would have done (`Acted.labels`), or the actions; empty unless asked for.
        rewards: (T,) float32; empty unless asked for.
        missions: T+1, of each observation, the last as the one before; empty unless asked for.
        frames: pictures, one for each observation but the final one; empty unless asked for.
    """

    seed: int
    mission: str
    episode_return: float = 0.0
    length: int = 0
    terminated: bool = False
    truncated: bool = False
    success: bool = False
    task_kind: str = ""
    unlocked: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))
    metrics: dict[str, float] = field(default_factory=dict)
    observations: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))
    actions: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    labels: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    rewards: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    missions: list[str] = field(default_factory=list)
    frames: list[NDArray[np.uint8]] = field(default_factory=list)

    @property
    def figures(self) -> dict[str, Any]:
        """What evaluations write down of it."""
        known = {**vars(self), "return": self.episode_return}
        return {name: known[name] for name in ("seed", "mission", "success", "return", "length")}


class Start:
    """How envs begin the episodes of a seed: reset once, and put back when the same seed is asked for again."""

    def __init__(self, envs: BaseVectorEnv) -> None:
        self.envs = envs
        self.seed: int | None = None
        self.state: dict[str, NDArray[Any]] = {}
        self.observations: Obs = None

    def __call__(self, seed: int) -> Obs:
        """`envs.reset(seed=seed)`, but for the observations, which are to be left as they are."""
        if seed == self.seed:
            self.envs.restore(self.state)
            return self.observations
        self.observations, _ = self.envs.reset(seed=seed)
        with suppress(NotImplementedError):  # envs that cannot be saved are reset each time
            self.state, self.seed = self.envs.snapshot(), seed
        return self.observations


def play(
    agent: Agent,
    envs: BaseVectorEnv,
    episodes: int,
    *,
    seed: int,
    greedy: bool = False,
    keep: bool = False,
    frames: int = 0,
    goals: Goals | None = None,
    start: Start | None = None,
    tick: Callable[[int], None] | None = None,
) -> Iterator[Episode]:
    """Play `episodes` episodes, seeded `seed`, `seed` + 1, …, and yield them in that order.

    An env whose episode ends takes the next seed. The noise of sampled actions belongs to the episode, so how many envs
    there are changes nothing (but the rounding of batches of another size).

    Args:
        agent: who acts; left as it is.
        envs: N envs, made with the options that the agent needs to see (`options_of`).
        greedy: take the likeliest action instead of sampling. A policy without memory often walks in circles then.
        keep: keep observations, actions, rewards and missions.
        frames: keep pictures of the first so many episodes.
        goals: sets goals, for an agent that wants them.
        start: begins the first episodes, if several calls play the same ones in these envs.
        tick: called with the number of episodes that have ended so far.
    """
    N = envs.num_envs
    view = Viewer(envs, agent, goals)
    state = dict(agent.begin(N))
    act = agent.act if state else LookOnce(agent).act
    started = np.ones(N, bool)
    noise = None if greedy else _Noise(N, len(agent.action_names))
    running: dict[int, Episode] = {}
    tapes: dict[int, list[_Step]] = {}
    waiting: dict[int, Episode] = {}  # ended, but one before them has not

    def begin(seeds: dict[int, int]) -> None:
        missions = envs.missions()
        for i, one in seeds.items():
            running[i] = Episode(seed=one, mission=missions[i])
            if noise is not None:
                noise.begin(i, one)
            if keep:
                tapes[i] = []
        if seed + episodes - 1 in seeds.values():  # the last to begin
            envs.idle_after_episode(np.ones(N, bool))

    raw = envs.reset(seed=seed)[0] if start is None else start(seed)
    begin({i: seed + i for i in range(min(N, episodes))})
    begun = len(running)
    given = 0
    playing = np.fromiter(running, np.int64)  # the envs whose episodes count
    while running:
        acted = act(
            view(raw, started)[playing],
            {key: memory[playing] for key, memory in state.items()},
            started[playing],
            None if noise is None else noise.next(playing),
        )
        actions = np.zeros(N, np.int64)
        actions[playing] = acted.actions
        labels = actions.copy()
        if acted.labels is not None:
            labels[playing] = acted.labels
        for key, memory in acted.state.items():
            state[key][playing] = memory
        started[:] = False
        for i, episode in running.items() if frames else ():
            if episode.seed - seed < frames:
                with suppress(NotImplementedError):  # an env of one's own may give no pictures
                    episode.frames.append(envs.frame(i))
        symbols, missions = symbols_of(raw), envs.missions()
        view.acted(actions)
        raw, rewards, terminated, truncated, infos = envs.step(actions)
        view.happened(actions, infos, raw)
        for i, tape in tapes.items():
            tape.append((symbols[i].copy(), actions[i], rewards[i], labels[i], missions[i]))
        ended = (terminated | truncated)[playing]
        if not ended.any():
            continue
        next_seeds: dict[int, int] = {}
        for i in playing[ended].tolist():
            episode = running.pop(i)
            episode.terminated, episode.truncated = bool(terminated[i]), bool(truncated[i])
            episode.success = bool(infos["success"][i])
            if "task_kind" in infos:
                episode.task_kind = infos["task_kind"][i]
            if "achievements" in infos:
                episode.unlocked = infos["achievements"][i] > 0
            episode.metrics = {name: float(values[i]) for name, values in infos.get("metrics", {}).items()}
            episode.episode_return = float(infos["episode"]["r"][i])
            episode.length = int(infos["episode"]["l"][i])
            if keep:
                _record(episode, tapes.pop(i), symbols_of(infos["final_obs"])[i])
            waiting[episode.seed] = episode
            if begun < episodes:
                next_seeds[i] = seed + begun
                begun += 1
        if next_seeds:
            started[list(next_seeds)] = True
            raw, _ = envs.reset(
                seed=[next_seeds.get(i) for i in range(N)],  # type: ignore[arg-type]
                options={"reset_mask": started.copy()},
            )
            begin(next_seeds)
        playing = np.fromiter(running, np.int64, len(running))
        if tick is not None:
            tick(begun - len(running))
        while seed + given in waiting:
            yield waiting.pop(seed + given)
            given += 1


_NO_VALUES = np.zeros((0, 0), np.float32)


class LookOnce:
    """An agent without memory, which looks at each distinct view once: what it says of a view does not change.

    A row's logits are the same bits as if all rows were looked at together: few are, and new ones among many get
    company. Not so with one or two missions among them, or where an agent reads texts: equal prompts are read once
    whatever their number, and reading one takes as long as a hundred steps. Values, no use to `play`, are not kept.
    """

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.keys = ViewKeys(agent.wants) if agent.wants else None
        self.least = 1 if "text" in agent.wants else _FEW
        self.places: dict[bytes, int] = {}
        self.said = np.zeros((0, len(agent.action_names)), np.float32)  # logits of the views, by their places

    def act(self, views: Views, state: State, started: NDArray[np.bool_], noise: NDArray[np.float32] | None) -> Acted:
        if len(views) < self.least or self.keys is None:
            return self.agent.act(views, state, started, noise)
        keys = self.keys(views)
        if not len(self.said):
            room = max(4 * len(keys), _KEPT_BYTES // keys[0].size)
            self.said = np.zeros((room, self.said.shape[1]), np.float32)
        if len(self.places) + len(keys) > len(self.said):
            self.places.clear()
        known = len(self.places)
        places = np.array([self.places.setdefault(key.tobytes(), len(self.places)) for key in keys])
        found, first = np.unique(places, return_index=True)
        new = first[found >= known]
        if len(new):
            asked = new if len(new) >= self.least else new[_ROUND % len(new)]
            said = self.agent.act(views[asked], state, started[asked], None).logits
            self.said[known : len(self.places)] = said[: len(new)]
        logits = self.said[places]
        return Acted((logits if noise is None else logits + noise).argmax(1), logits, _NO_VALUES, state)


class _Noise:
    """The Gumbel noise of sampled actions, a stream for each episode, drawn some steps ahead."""

    def __init__(self, num_envs: int, num_actions: int) -> None:
        self.generators = [torch.Generator() for _ in range(num_envs)]
        self.ahead = torch.zeros(num_envs, _NOISE_STEPS, num_actions)
        self.drawn = self.ahead.numpy()  # the same memory
        self.used = np.zeros(num_envs, np.int64)

    def begin(self, env: int, seed: int) -> None:
        """Another episode begins in an env."""
        self.generators[env].manual_seed(derive_seed(seed, "actions"))
        self.used[env] = _NOISE_STEPS

    def next(self, envs: NDArray[np.int64]) -> NDArray[np.float32]:
        """(B, A) noise for the next action in each of the envs (B,)."""
        used = self.used[envs]
        for env in envs[used == _NOISE_STEPS].tolist():
            self.ahead[env].exponential_(generator=self.generators[env]).log_().neg_()
            self.used[env] = 0
        used %= _NOISE_STEPS
        self.used[envs] = used + 1
        return self.drawn[envs, used]


def _record(episode: Episode, tape: list[_Step], last: NDArray[np.uint8]) -> None:
    """Give an episode what it saw, did and got, the last observation included."""
    seen, actions, rewards, labels, missions = zip(*tape, strict=True)
    episode.observations = np.stack([*seen, last])
    episode.actions, episode.labels = np.array(actions, np.int64), np.array(labels, np.int64)
    episode.rewards, episode.missions = np.array(rewards, np.float32), [*missions, missions[-1]]


def summarise(episodes: list[Episode], prefix: str = "eval/") -> dict[str, float]:
    """Means of `success_rate`, `return`, `length`, of achievements where the env has any, and of its own metrics."""
    own = {name: values for name, values in metrics_of(episodes).items() if len(values)}
    if len(episodes[0].unlocked):
        own = {"achievements": np.array([e.unlocked.sum() for e in episodes], float), **own}
    return {
        f"{prefix}success_rate": float(np.mean([e.success for e in episodes])),
        f"{prefix}return": float(np.mean([e.episode_return for e in episodes])),
        f"{prefix}length": float(np.mean([e.length for e in episodes])),
        **{f"{prefix}{name}": float(values.mean()) for name, values in own.items()},
    }


class Evaluation:
    """The same seeded episodes, played whenever it is asked how good an agent is by now.

    Args:
        envs: to play in, made with the options that the agent needs to see (`options_of`).
        episodes: how many; seed: of the first.
        also_greedy: play them with the likeliest actions, too. The sampled policy is the one that counts: a policy
            without memory, made greedy, often walks in circles.
    """

    def __init__(self, envs: BaseVectorEnv, episodes: int, seed: int, also_greedy: bool = False) -> None:
        self.envs, self.episodes, self.seed, self.start = envs, episodes, seed, Start(envs)
        self.kinds = [("eval/greedy_", True), ("eval/", False)] if also_greedy else [("eval/", False)]

    def __call__(self, agent: Agent) -> dict[str, float]:
        """What `summarise` finds of the sampled policy and, if asked, of the greedy one."""
        scores: dict[str, float] = {}
        for prefix, greedy in self.kinds:
            with doing("evaluating", self.episodes, "episodes") as tick:
                how: Any = {"seed": self.seed, "greedy": greedy, "start": self.start, "tick": tick}
                scores |= summarise(list(play(agent, self.envs, self.episodes, **how)), prefix)
        return scores


def metrics_of(episodes: Sequence[Episode]) -> dict[str, NDArray[np.float64]]:
    """The env's own metrics by name: the values of the episodes that have one."""
    found: dict[str, NDArray[np.float64]] = {}
    for name in dict.fromkeys(name for one in episodes for name in one.metrics):
        values = np.array([one.metrics.get(name, np.nan) for one in episodes])
        found[name] = values[np.isfinite(values)]
    return found
