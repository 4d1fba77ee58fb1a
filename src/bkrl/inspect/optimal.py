"""What the best policy would get: small levels solved exactly, by dynamic programming on the native BabyAI engine.

`explore` follows every action from one moment of a level until no new state appears. A state is all that the rules
depend on except the clock: where everything is, what is carried, what the mission has seen. `optimal_values` then works
back from the time limit, so that the reward's decay with time, the limit and the discount are all as in the env.

With `still=True` only states in which no object has moved are followed: the shortest way to success that moves the
agent and nothing else, which a room of 20×20 allows too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bkrl.data.distinct import distinct_rows
from bkrl.data.windows import Windows, gather
from bkrl.envs.babyai.constants import ACTION_NAMES, BALL, BOX, GO_TO, KEY, NO_TASK, OBS_SHAPE, PICK_UP, REWARD_DECAY
from bkrl.envs.babyai.engine import BabyAIEngine
from bkrl.envs.babyai.state import COLOR_MASK, COLOR_SHIFT, KIND_MASK, MEMBER_SHIFT, TRACKED_SHIFT

_ENVS: Final = 256  # states and actions tried at once
_THING: Final = (1 << MEMBER_SHIFT) - 1  # an object without what the mission thinks of it
_CHANGES: Final = ("agent", "heading", "carrying", "stale", "done", "watched", "first_clause_done")
LIMIT: Final = 120_000


@dataclass(frozen=True)
class States:
    """Every state that can be reached from one moment, the moment itself first.

    Attributes:
        observations: (S, 7, 7, 3) uint8, what the agent sees.
        actions: (A,) the env's numbers of the actions that were tried.
        next_state: (S, A) where they lead; the state itself where an episode ends or the way was not followed.
        success, over: (S, A) bool, whether the episode ends in success, and whether it ends at all.
        things: S keys, what is where and in which hand: equal for the same scene under another mission.
        arrivals: things of the states that only a success leads to.
        last_views: (K, 7, 7, 3) uint8, what the agent sees after each success, in the order of `success.nonzero()`.
        max_steps: the level's time limit.
    """

    observations: NDArray[np.uint8]
    actions: NDArray[np.int64]
    next_state: NDArray[np.int64]
    success: NDArray[np.bool_]
    over: NDArray[np.bool_]
    things: list[bytes]
    arrivals: frozenset[bytes]
    last_views: NDArray[np.uint8]
    max_steps: int

    def __len__(self) -> int:
        return len(self.observations)


@dataclass(frozen=True)
class Moment:
    """One env at one moment: its grid with margins, its record, and what its agent sees."""

    grid: NDArray[np.uint32]
    env: NDArray[Any]
    observation: NDArray[np.uint8]

    @property
    def key(self) -> bytes:
        """Equal for moments from which the same can happen: all but the stream of random numbers."""
        record = [self.env[name] for name in self.env.dtype.names or () if not name.startswith(("rng", "seeded"))]
        return self.grid.tobytes() + b"".join(one.tobytes() for one in record)


class Explorer:
    """Draws layouts of a level, gives them missions, and follows every action."""

    def __init__(self, env_id: str) -> None:
        self.env_id = env_id
        self._drawn = BabyAIEngine(env_id, 1)
        self._bench = BabyAIEngine(env_id, _ENVS)
        self._template = self._bench.snapshot()

    def draw(self, seed: int) -> Moment:
        """The first moment of the level's episode with this seed."""
        first = np.ones(1, np.bool_)
        self._drawn.seed(0, seed)
        self._drawn.begin(first)
        state = self._drawn.snapshot()
        for name, values in state.items():  # what a level keeps beside its envs (the words of a mission)
            if name not in ("env_id", "grids", "worlds", "observations"):
                self._template[name] = np.repeat(values, _ENVS, axis=0)
        return Moment(state["grids"][0], self._drawn.envs[:1].copy(), state["observations"][0])

    def explore(
        self, moment: Moment, actions: Sequence[int] | None = None, *, still: bool = False, limit: int = LIMIT
    ) -> States | None:
        """Every state that can be reached; None when there are more than `limit`."""
        tried = np.arange(len(ACTION_NAMES)) if actions is None else np.asarray(actions, np.int64)
        states = moment.grid[None], moment.env, moment.observation[None]
        start = _scenes(*states[:2])[0]
        number = {_keys(*states[:2])[0].tobytes(): 0}
        found = [states]
        followed: list[NDArray[np.int64]] = []
        outcomes: list[NDArray[np.bool_]] = []
        last: list[NDArray[np.uint8]] = []
        arrivals: set[bytes] = set()
        at_once = _ENVS // len(tried)
        waiting, total = [states], 1
        while waiting:
            grids, envs, views = waiting.pop(0)
            if len(grids) > at_once:
                waiting.insert(0, (grids[at_once:], envs[at_once:], views[at_once:]))
                grids, envs, views = grids[:at_once], envs[:at_once], views[:at_once]
            places = np.repeat(sum(len(part) for part in followed) + np.arange(len(grids)), len(tried))
            grids, envs, views, rewards, over = self._try(grids, envs, tried)
            success = over & (rewards > 0)
            scenes = _scenes(grids, envs)
            arrivals.update(scene.tobytes() for scene in scenes[success])
            last.append(views[success])
            # where the agent is and looks may change, the objects and its hands may not
            moved = (scenes[:, 2:] != start[2:]).any(axis=1) if still else np.zeros(len(scenes), np.bool_)
            onward = np.flatnonzero(~over & ~moved)
            keys = _keys(grids, envs)[onward]
            first, inverse = distinct_rows(keys)
            order = np.argsort(first)  # number them as they come, whatever their hash
            names = np.empty(len(first), np.int64)
            fresh = []
            for one in order:
                names[one] = number.setdefault(keys[first[one]].tobytes(), total)
                if names[one] == total:
                    fresh.append(onward[first[one]])
                    total += 1
            places[onward] = names[inverse]
            if fresh:
                new = grids[fresh], envs[fresh], views[fresh]
                found.append(new)
                waiting.append(new)
            if total > limit:
                return None
            followed.append(places.reshape(-1, len(tried)))
            outcomes.append(np.stack([success, over]).reshape(2, -1, len(tried)))
        grids, envs, views = (np.concatenate(column) for column in zip(*found, strict=True))
        ends = np.concatenate(outcomes, axis=1)
        return States(
            views.reshape(-1, *OBS_SHAPE),
            tried,
            np.concatenate(followed),
            ends[0],
            ends[1],
            [scene.tobytes() for scene in _scenes(grids, envs)],
            frozenset(arrivals),
            np.concatenate(last).reshape(-1, *OBS_SHAPE),
            int(moment.env["max_steps"][0]),
        )

    def _try(
        self, grids: NDArray[np.uint32], envs: NDArray[Any], tried: NDArray[np.int64]
    ) -> tuple[NDArray[np.uint32], NDArray[Any], NDArray[np.uint8], NDArray[np.float32], NDArray[np.bool_]]:
        """Every action in every state, the clock at 0: grids, records, views, rewards and ends, states outermost."""
        count = len(grids) * len(tried)
        rows = np.minimum(np.arange(_ENVS) // len(tried), len(grids) - 1)
        records = envs[rows]
        records["steps"], records["episode_return"] = 0, 0.0
        self._template["grids"] = grids[rows]
        self._template["worlds"] = records.view(np.uint8).reshape(_ENVS, -1)
        self._bench.restore(self._template)
        views, rewards, terminated, _, _ = self._bench.step(np.resize(tried, _ENVS), np.zeros(_ENVS, bool))
        after, envs = self._bench.snapshot()["grids"], self._bench.envs
        return after[:count], envs[:count].copy(), views[:count], rewards[:count], terminated[:count]


def _keys(grids: NDArray[np.uint32], envs: NDArray[Any]) -> NDArray[np.int64]:
    """(n, K) all that the rules depend on except the clock and what never changes in an episode."""
    return np.concatenate([grids, *(envs[name][:, None] for name in _CHANGES)], axis=1, dtype=np.int64)


def _scenes(grids: NDArray[np.uint32], envs: NDArray[Any]) -> NDArray[np.int64]:
    """(n, K) the agent's place and heading, what it carries, and what lies where."""
    agent = np.stack([envs["agent"], envs["heading"], envs["carrying"] & _THING], axis=1)
    return np.concatenate([agent, grids & _THING], axis=1, dtype=np.int64)


def objects_of(moment: Moment) -> list[tuple[int, int]]:
    """The distinct (kind, colour) of the objects that lie about, in order."""
    cells = moment.grid[np.isin(moment.grid & KIND_MASK, (KEY, BALL, BOX))]
    return sorted({(int(cell) & KIND_MASK, int(cell) >> COLOR_SHIFT & COLOR_MASK) for cell in cells})


def assign(moment: Moment, task: int, kind: int, color: int) -> Moment:
    """The same moment with another mission: GO_TO or PICK_UP any object of this kind and colour."""
    if task not in (GO_TO, PICK_UP):
        raise ValueError("only GO_TO and PICK_UP can be assigned")
    grid, env = moment.grid & np.uint32(_THING), moment.env.copy()
    meant = (grid & KIND_MASK == kind) & (grid >> COLOR_SHIFT & COLOR_MASK == color)
    grid[meant] |= np.uint32(1 << MEMBER_SHIFT | 1 << TRACKED_SHIFT)
    env["task"], env["task"][:, 0] = NO_TASK, task
    for name in ("in_sequence", "strict", "done", "watched", "first_clause_done", "stale", "steps"):
        env[name] = 0
    return Moment(grid, env, moment.observation)


def optimal_values(states: States, gamma: float, elapsed: int = 0) -> NDArray[np.float64]:
    """(S,) exact V* of each state when `elapsed` steps of the episode are over: backward induction from the limit.

    An action at time t that succeeds pays 1 - 0.9 (t + 1) / max_steps, as the env does; failing or running out of
    time pays nothing.
    """
    values = np.zeros(len(states))
    for t in range(states.max_steps - 1, elapsed - 1, -1):
        reward = states.success * (1.0 - REWARD_DECAY * (t + 1) / states.max_steps)
        values = (reward + gamma * np.where(states.over, 0.0, values[states.next_state])).max(axis=1)
    return values


def distances(states: States) -> NDArray[np.float64]:
    """(S,) fewest actions to success, infinite where there is none."""
    away = np.full(len(states), np.inf)
    while True:
        nearer = np.where(states.success, 1.0, np.where(states.over, np.inf, 1.0 + away[states.next_state])).min(axis=1)
        if np.array_equal(nearer, away):
            return away
        away = nearer


def walk(
    states: States, horizon: int, episodes: int, rng: np.random.Generator, steps: int = 60
) -> tuple[NDArray[np.int64], Windows]:
    """States met in play, (B,), and their windows: episodes from the first moment, half of whose actions are shortest
    ways to success and half of which are random. An episode ends with the env's or after `steps` actions.
    """
    away = distances(states)
    after = np.where(states.success, 0.0, np.where(states.over, np.inf, away[states.next_state]))
    met, chosen, ages = [], [], []
    for _ in range(episodes):
        place = 0
        for age in range(min(steps, states.max_steps)):
            best = np.flatnonzero(after[place] == after[place].min())
            column = int(rng.choice(best) if rng.random() < 0.5 else rng.integers(len(states.actions)))
            met.append(place)
            chosen.append(int(states.actions[column]))
            ages.append(age)
            if states.over[place, column]:
                break
            place = int(states.next_state[place, column])
    rows = np.array(met, np.int64)
    windows = gather(
        states.observations[rows], np.array(chosen, np.int64), np.array(ages, np.int32), np.arange(len(rows)), horizon
    )
    return rows, windows


def first_moments(observations: NDArray[np.uint8], horizon: int) -> Windows:
    """Windows (B,) of views that open an episode, with nothing before them."""
    nothing = np.zeros(len(observations), np.int64)
    return gather(observations, nothing, nothing, np.arange(len(observations)), horizon)
