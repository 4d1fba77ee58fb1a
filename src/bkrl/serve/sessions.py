"""Sessions: episodes that outsiders play, each in a row of one vector env, stepped together.

An episode is what its seed and its actions make of it. That is also what a saved state is: `SavedState(seed, actions)`
brings any session, on any machine, to the same place, random streams included, and nothing of it must be trusted.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bkrl.agents.viewer import symbols_of
from bkrl.core.errors import UsageError
from bkrl.core.registry import did_you_mean
from bkrl.data.windows import Windows
from bkrl.envs import captioner, make_vec, memory_of
from bkrl.rewards.shaping import FORMS
from bkrl.text.wording import Wording

MOST_ACTIONS = 10_000
"""Of a saved state that is replayed."""


class SavedState(NamedTuple):
    """Where an episode begins: at the first observation of a seed, or after these actions from there."""

    seed: int
    actions: Sequence[int] = ()


class Stepped(NamedTuple):
    """(K,) what followed the actions of K sessions; `rewards` contain `shaping`, γΦ' - Φ."""

    rewards: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    success: NDArray[np.bool_]
    shaping: NDArray[np.float64]


class Sessions:
    """At most `num_sessions` of them.

    Args:
        env_id: what is played.
        num_sessions: rows of the vector env.
        potential: a train-rm run, or `sample:NAME`, whose γΦ' - Φ is added to the reward of each step.
        gamma: of that difference; optimal policies are kept for learners with the same discount.
        seed: of the seeds of episodes for which none is asked.
        options: of `make_vec`.

    Attributes:
        action_names: in the order of the action's numbers; every action can be taken at any time.
        seeds: (N,) of the running episodes.
        taken: the actions taken in each, so far.
        over: (N,) bool, the episode has ended.
        captions, missions: (N,) of the present.
        busy: seconds of processor time that env, captions and Φ have taken.
        seen: (K,) what the envs of the last call returned.
    """

    def __init__(
        self,
        env_id: str,
        num_sessions: int,
        potential: Path | None = None,
        gamma: float = 0.99,
        seed: int = 1,
        **options: Any,
    ) -> None:
        self.envs = make_vec(env_id, num_sessions, **options)
        self.env = self.envs.env_spec
        self.envs.reset(seed=0)
        self.action_names = Wording().of(self.env).action_names
        self._numbers = {name: number for number, name in enumerate(self.action_names)}
        self._numbers |= {name: number for number, name in enumerate(self.env.action_names)}
        self._caption = captioner(env_id)
        self._rng = np.random.default_rng(seed)
        self._free = list(range(num_sessions))[::-1]
        self.seeds, self.taken = [0] * num_sessions, [list[int]() for _ in range(num_sessions)]
        self.over = np.ones(num_sessions, bool)
        self.captions, self.missions = [""] * num_sessions, [""] * num_sessions
        try:
            self.phi = None if potential is None else _Phi(potential, env_id, self.envs, gamma)
        except BaseException:
            self.envs.close()
            raise
        self.busy = 0.0
        self.seen: Any = None

    @property
    def guarantee(self) -> str:
        """What the reward keeps of the env's own, one clause."""
        if self.phi is None:
            return "the env's own reward"
        form = FORMS["pbrs"]
        return f"{form.added}, with γ = {self.phi.gamma:g}: {form.guarantee}, for a learner with this discount"

    @property
    def open_count(self) -> int:
        """Sessions that are open."""
        return len(self.seeds) - len(self._free)

    def open(self, count: int = 1) -> list[int]:
        """`count` new sessions, by their rows; UsageError where there are not so many left."""
        if count > len(self._free):
            raise UsageError(
                f"{self.open_count} of {len(self.seeds)} sessions are open, {count} more were asked for; close some, "
                "or serve with a greater --sessions."
            )
        rows = [self._free.pop() for _ in range(count)]
        for row in rows:
            self.seeds[row], self.taken[row], self.captions[row], self.missions[row] = 0, [], "", ""
        self.over[rows] = True
        return rows

    def close(self, rows: Sequence[int]) -> None:
        """These sessions are over."""
        self._free += rows

    def start(self, seed: Any = None, actions: Any = None) -> SavedState:
        """Where an episode shall begin; UsageError for what is none. Without a seed one is drawn."""
        if seed is None and not actions:
            return SavedState(int(self._rng.integers(2**31)))
        if type(seed) is not int or not 0 <= seed < 2**63:
            raise UsageError(f"A seed is a whole number from 0 to 2^63 - 1, not {str(seed)[:40]!r}.")
        if not isinstance(actions, list | tuple | None) or len(actions or ()) > MOST_ACTIONS:
            raise UsageError(f"The actions of a saved state are a list of at most {MOST_ACTIONS:,}.")
        return SavedState(seed, [self.action(one) for one in actions or ()])

    def action(self, named: Any) -> int:
        """The number of an action that is given by its name or number; UsageError for any other."""
        number = self._numbers.get(named) if isinstance(named, str) else named
        if type(number) is not int or not 0 <= number < len(self.action_names):
            near = did_you_mean(named, self._numbers) if isinstance(named, str) and len(named) < 80 else ""
            known = ", ".join(f"{number} {name}" for number, name in enumerate(self.action_names))
            raise UsageError(f"There is no action {str(named)[:40]!r}.{near} The actions are: {known}.")
        return number

    def reset(self, rows: Sequence[int], starts: Sequence[SavedState]) -> None:
        """Begin episodes in these sessions."""
        began, which = process_time(), np.asarray(rows, np.int64)
        self.seen, missions = self.envs.begin_rows(which, [one.seed for one in starts])
        symbols, self.over[which] = symbols_of(self.seen), True
        for row, one, mission, caption in zip(rows, starts, missions, self._caption(symbols), strict=True):
            self.seeds[row], self.taken[row] = one.seed, []
            self.captions[row], self.missions[row] = caption, mission
        if self.phi is not None:
            self.phi.begin(which, symbols, missions)
        self.over[which] = False
        self.busy += process_time() - began
        for at in range(max(len(one.actions) for one in starts)):
            going = [(row, one.actions[at]) for row, one in zip(rows, starts, strict=True) if at < len(one.actions)]
            if self.over[[row for row, _ in going]].any():
                self.over[which] = True  # what was asked for is not reached: no step from here
                raise UsageError(f"The saved state has actions after its episode's end, at step {at}.")
            self.step(*map(list, zip(*going, strict=True)))

    def step(self, rows: Sequence[int], actions: Sequence[int]) -> Stepped:
        """One action in each of these sessions, whose episodes run, none twice. RunFailed: Φ failed, and they end."""
        began, which, chosen = process_time(), np.asarray(rows, np.int64), np.asarray(actions, np.int64)
        self.seen, paid, terminated, truncated, success = self.envs.step_rows(which, chosen)
        symbols, rewards, shaping = symbols_of(self.seen), paid.astype(np.float64), np.zeros(len(which))
        self.over[which] = True
        for row, action, *texts in zip(rows, actions, self._caption(symbols), self.envs.missions()[which], strict=True):
            self.taken[row].append(action)
            self.captions[row], self.missions[row] = texts
        if self.phi is not None:
            missions = [self.missions[row] for row in rows]
            shaping = self.phi.step(which, chosen, symbols, terminated, missions)
        self.over[which] = terminated | truncated
        self.busy += process_time() - began
        return Stepped(rewards + shaping, terminated, truncated, success, shaping)

    def end(self) -> None:
        """Close the envs and what the potential runs."""
        self.envs.close()
        if self.phi is not None:
            self.phi.potential.close()


class _Phi:
    """Φ along the episodes of N rows: the history that it reads, and its value at the present of each."""

    def __init__(self, run: Path, env_id: str, envs: Any, gamma: float) -> None:
        from bkrl.potentials import load_potential
        from bkrl.rewards.shaped import PotentialOfRollout

        self.potential, self.gamma = load_potential(run), gamma
        made = self.potential.artefact
        made.check_fits(run, envs.env_spec, envs.env_spec.family)
        self._of: Callable[[Windows], NDArray[np.floating]] = PotentialOfRollout(self.potential).of_windows
        N, H = envs.num_envs, self.potential.reads.horizon
        self._views = np.zeros((N, H + 1, *made.obs_shape), np.uint8)
        self._actions, self._valid = np.zeros((N, H), np.int64), np.zeros((N, H + 1), bool)
        self._memory = memory_of(env_id) if self.potential.reads.memory else None
        self._kept = np.zeros((N, self._memory.size if self._memory else 0), np.uint8)
        self.now = np.zeros(N)

    def present(self, rows: list[int]) -> NDArray[np.uint8]:
        """(K, *obs_shape) what is seen in these rows now."""
        return self._views[rows, -1]

    def begin(self, rows: NDArray[np.int64], symbols: NDArray[np.uint8], missions: list[str]) -> None:
        """Episodes begin in these rows."""
        self._views[rows], self._actions[rows], self._valid[rows], self._kept[rows] = 0, 0, False, 0
        self._views[rows, -1], self._valid[rows, -1] = symbols, True
        self.now[rows] = self._values(rows, missions)

    def step(
        self,
        rows: NDArray[np.int64],
        actions: NDArray[np.int64],
        after: NDArray[np.uint8],
        terminated: NDArray[np.bool_],
        missions: list[str],
    ) -> NDArray[np.float64]:
        """(K,) γΦ' - Φ of these steps, with Φ = 0 in terminal states."""
        if self._memory is not None:
            kept = self._kept[rows]
            self._memory.update(kept, self._views[rows, -1], actions, after)
            self._kept[rows] = kept
        for history, new in ((self._views, after), (self._valid, True), (self._actions, actions)):
            if history.shape[1]:
                history[rows, :-1] = history[rows, 1:]
                history[rows, -1] = new
        before, self.now[rows] = self.now[rows], np.where(terminated, 0.0, self._values(rows, missions))
        return self.gamma * self.now[rows] - before

    def _values(self, rows: NDArray[np.int64], missions: list[str]) -> NDArray[np.floating]:
        memory = None if self._memory is None else self._kept[rows, : len(self._memory.names)]
        said = np.array(missions, object) if self.potential.reads.mission else None
        return self._of(Windows.of(self._views[rows], self._actions[rows], self._valid[rows], said, memory))
