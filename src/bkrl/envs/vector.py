"""The vector environment of every env: arrays in, arrays out, Gymnasium's three autoreset modes."""

import operator
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.error import ClosedEnvironmentError
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from bkrl.core.errors import InputError, UsageError
from bkrl.core.registry import did_you_mean
from bkrl.envs.family import EnvSpec

Obs = Any  # a uint8 array (N, *shape), or a dict of such arrays
Moved = tuple[Obs, NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]


class Lifetime:
    """What is reset, then used, then closed; an error says where it is used out of turn."""

    closed = False
    _begun = False

    def _check_open(self, what: str) -> None:
        if self.closed:
            raise ClosedEnvironmentError(f"{what} after close(): make the env anew")

    def _check_begun(self, what: str) -> None:
        self._check_open(what)
        if not self._begun:
            raise RuntimeError(f"{what} before reset: call reset() first")


class BaseVectorEnv(Lifetime, VectorEnv[Any, Any, Any]):
    """A `gymnasium.vector.VectorEnv` over N copies of one env.

    What follows the end of env i's episode depends on `autoreset_mode`:

    * SAME_STEP: the step that ends it returns the first observation of the next episode; the true last one stands in
      `infos["final_obs"][i]`, with the mask `infos["_final_obs"]`. Both keys are there only when some episode ended.
    * NEXT_STEP: that step returns the last observation; the next one ignores the env's action, pays 0 and returns the
      first observation of the next episode.
    * DISABLED: the env must be reset, with `reset(options={"reset_mask": …})`, before anything is stepped again.

    `infos["success"]` (N,) is always there, and in GLAM's levels `infos["task_kind"]` too: of a step that ends an
    episode, both are those of that episode. With `episode_statistics`, steps that end an episode have
    `infos["episode"]` (`r` the return, `l` the length) with the mask `infos["_episode"]`.

    Seeds: `reset(seed=s)` seeds env i with s + i; a list gives each its own. Without a seed an env goes on drawing
    from its own stream, also when it resets itself. `np_random_seed` is the tuple of the N seeds.

    A subclass implements `_begin`, `_act`, `_views`, `_scores`, `frame`, and those of the other methods that it can.

    Args:
        env_spec: the facts of the id.
        num_envs: N.
        observation_space: of one env.
        autoreset_mode: an `AutoresetMode` or its value, as in Gymnasium's own vector environments.
        max_episode_steps: actions after which an episode is truncated, whatever the env's own limit, like Gymnasium's
            `TimeLimit`; the reward does not depend on it.
        episode_statistics: report returns and lengths; off by default through `gymnasium.make_vec`, where
            `RecordEpisodeStatistics` wants the key for itself.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
    render_mode = "rgb_array"
    env_spec: EnvSpec

    def __init__(
        self,
        env_spec: EnvSpec,
        num_envs: int,
        observation_space: gymnasium.Space[Any],
        *,
        autoreset_mode: AutoresetMode | str = AutoresetMode.SAME_STEP,
        max_episode_steps: int | None = None,
        episode_statistics: bool = True,
    ) -> None:
        if num_envs < 1:
            raise ValueError("num_envs must be at least 1")
        if max_episode_steps is not None:
            max_episode_steps = checked_steps("max_episode_steps", max_episode_steps)
        self.max_episode_steps = max_episode_steps
        self.env_spec = env_spec
        self.num_envs = num_envs
        self.single_observation_space = observation_space
        self.single_action_space = gymnasium.spaces.Discrete(len(env_spec.action_names))
        self.observation_space = batch_space(observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.autoreset_mode = _autoreset_mode(autoreset_mode)
        self.metadata = {**type(self).metadata, "autoreset_mode": self.autoreset_mode}
        self.episode_statistics = episode_statistics
        self._seeds: tuple[int, ...] | None = None
        self._over = np.zeros(num_envs, bool)  # the episode has ended and the next one has not begun
        self._last = np.zeros(num_envs, bool)  # the running episode is the last one, see `idle_after_episode`
        self._any_last = False
        self._missions = np.full(num_envs, "", object)
        self._unread = np.ones(num_envs, bool)  # an episode has begun since `missions` was called

    # ------------------------------------------------------------------------------------------- what Gymnasium calls

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Obs, dict[str, Any]]:
        """Start new episodes in all envs, or in those of `options["reset_mask"]` (N,) bool."""
        self._check_open("reset")
        chosen = reset_mask_of(options, self.num_envs)
        seeds = seeds_of(seed, self.num_envs)
        if any(one is not None and one < 0 for one in seeds):
            raise ValueError("seeds must not be negative")
        if not self._begun:
            if not chosen.all():
                raise ValueError("the first reset must be of all envs")
            seeds = [old if new is None else new for new, old in zip(seeds, self.np_random_seed, strict=True)]
        if seed is not None or not self._begun:
            each = zip(seeds, self.np_random_seed, chosen.tolist(), strict=True)
            self._seeds = tuple(new if is_chosen and new is not None else old for new, old, is_chosen in each)
        self._begin(chosen, None if self._begun and seed is None else seeds)
        self._unread |= chosen
        self._over[chosen] = self._last[chosen] = False
        self._any_last = bool(self._last.any())
        self._begun = True
        return self._views(), {"success": np.zeros(self.num_envs, bool), **self.about()}

    def step(
        self, actions: Any
    ) -> tuple[Obs, NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """One action in every env."""
        self._check_begun("step")
        actions = checked_actions(actions, self.num_envs, len(self.env_spec.action_names))
        mode = self.autoreset_mode
        if mode is AutoresetMode.DISABLED and self._over.any():
            over = np.flatnonzero(self._over).tolist()
            raise RuntimeError(
                f"the episodes of envs {over} have ended and autoreset is disabled: "
                'reset them first, with reset(options={"reset_mask": …})'
            )
        observations, rewards, terminated, truncated, success = self._act(actions, self._over)
        if self.max_episode_steps is not None:
            truncated |= (self._scores()[1] >= self.max_episode_steps) & ~self._over
        infos: dict[str, Any] = {"success": success, **self.about()}
        done = terminated | truncated
        any_ended = np.count_nonzero(done) > 0  # the quickest way to ask
        if any_ended:
            ended = done.nonzero()[0]
            infos |= self._at_end(done)
            if self.episode_statistics:
                returns, lengths = np.zeros(self.num_envs), np.zeros(self.num_envs, np.int64)
                returns[ended], lengths[ended] = self._scores(ended)
                infos["episode"], infos["_episode"] = {"r": returns, "l": lengths}, done.copy()
        if mode is not AutoresetMode.SAME_STEP:
            if mode is AutoresetMode.NEXT_STEP and self._over.any():
                self._renew(observations, self._over)
                infos |= self.about()  # of the episode that has begun
            self._over = done.copy()
        elif any_ended:
            infos["final_obs"], infos["_final_obs"] = _only(observations, ended), done.copy()
            if self._any_last:
                self._over |= done & self._last
                done &= ~self._last
            self._renew(observations, done)
        return observations, rewards, terminated, truncated, infos

    def render(self) -> tuple[NDArray[np.uint8], ...]:
        """A picture of every env, (H, W, 3) uint8 each."""
        return tuple(self.frame(i) for i in range(self.num_envs))

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """The seed that each env was given last; the one it will begin with where none was given yet."""
        if self._seeds is None:
            self._seeds = tuple(int(np.random.SeedSequence().generate_state(1)[0]) for _ in range(self.num_envs))
        return self._seeds

    # ----------------------------------------------------------------------------------------------- what bkrl calls

    def missions(self) -> NDArray[np.object_]:
        """(N,) the mission of each running episode, "" where there is none; the same array until an episode begins."""
        new = self._unread.nonzero()[0]
        if len(new):
            missions = self._missions.copy()
            missions[new] = self._missions_of(new)
            missions.flags.writeable = False
            self._missions = missions
            self._unread[:] = False
        return self._missions

    def begin_rows(self, rows: NDArray[np.int64], seeds: Sequence[int]) -> tuple[Obs, list[str]]:
        """Begin episodes of these seeds (K,) in the envs with these numbers alone: first observations, missions."""
        self._check_begun("begin_rows")
        chosen, each = np.zeros(self.num_envs, bool), [0] * self.num_envs
        chosen[rows] = True
        for row, seed in zip(rows.tolist(), seeds, strict=True):
            each[row] = seed
        self._begin(chosen, each)
        self._unread |= chosen
        return self._views(rows), self._missions_of(rows)

    def step_rows(self, rows: NDArray[np.int64], actions: NDArray[np.int64]) -> Moved:
        """(K,) actions in the envs with these numbers alone, with what followed: true last observations, success.

        Nothing is begun anew where an episode ends: that is for `begin_rows`.
        """
        idle, each = np.ones(self.num_envs, bool), np.zeros(self.num_envs, np.int64)
        idle[rows], each[rows] = False, checked_actions(actions, len(rows), len(self.env_spec.action_names))
        seen, rewards, terminated, truncated, success = self._act(each, idle)
        if self.max_episode_steps is not None:
            truncated |= (self._scores()[1] >= self.max_episode_steps) & ~idle
        seen = {key: one[rows] for key, one in seen.items()} if isinstance(seen, dict) else seen[rows]
        return seen, rewards[rows], terminated[rows], truncated[rows], success[rows]

    def idle_after_episode(self, chosen: NDArray[np.bool_]) -> None:
        """The running episodes of these envs (N,) are the last that the caller needs.

        Under SAME_STEP such an env idles from the end of its episode to its next reset, which saves time: it pays 0,
        ends nothing, and its observations mean nothing.
        """
        self._last |= chosen
        self._any_last = True

    def env_states(self) -> NDArray[Any]:
        """(N,) of a dtype of the family's own: all that is true of each env now, for its family's bot.

        UsageError where there is no bot.
        """
        raise UsageError(f"The bot does not know {self.env_spec.env_id} on this backend; leave --backend out.")

    def frame(self, index: int) -> NDArray[np.uint8]:
        """An (H, W, 3) picture of env `index`."""
        raise NotImplementedError

    def snapshot(self) -> dict[str, NDArray[Any]]:
        """The full state of all envs, random streams included, as plain arrays."""
        self._check_begun("snapshot")
        state = self._state()
        if self.autoreset_mode is not AutoresetMode.SAME_STEP:  # in which no episode is over between two steps
            state["over"] = self._over.astype(np.uint8)
        return state

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Go back to a snapshot of the same id and number of envs: the same actions have the same results as then.

        InputError, and no change, for any other.
        """
        over = np.asarray(state.get("over", np.zeros(self.num_envs, np.uint8)))
        if over.shape != (self.num_envs,) or (over.any() and self.autoreset_mode is AutoresetMode.SAME_STEP):
            raise InputError("The snapshot was taken in another autoreset mode; restore it in that one.")
        self._set_state(state)
        self._over, self._last = over.astype(bool), np.zeros(self.num_envs, bool)
        self._begun, self._any_last = True, False
        self._unread[:] = True

    # ------------------------------------------------------------------------------------ what a subclass implements

    def _begin(self, chosen: NDArray[np.bool_], seeds: Sequence[int | None] | None) -> None:
        """A new episode in these envs (N,); one with a seed restarts its stream. The first time all have seeds.

        `seeds` is None where every stream goes on.
        """
        raise NotImplementedError

    def _act(self, actions: NDArray[np.int64], idle: NDArray[np.bool_]) -> Moved:
        """One action in each env that does not idle: observations, rewards, terminated, truncated, success.

        All are arrays of the caller's own; an env that idles pays 0 and ends nothing.
        """
        raise NotImplementedError

    def _views(self, which: Any = ...) -> Obs:
        """The present observations of the envs with these numbers, as arrays of the caller's own."""
        raise NotImplementedError

    def _missions_of(self, which: NDArray[np.int64]) -> list[str]:
        """The missions of the running episodes of the envs with these numbers."""
        return [""] * len(which)

    def _scores(self, which: Any = ...) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return and length of the episodes in the envs with these numbers, running or just ended."""
        raise NotImplementedError

    def _exact(self, index: int, reward: float) -> float:
        """The reward of an env's last step in full precision; `reward` is what `_act` returned."""
        return reward

    def about(self) -> dict[str, Any]:
        """What else `infos` always hold, of the episodes that run; asked for before ended ones are begun anew."""
        return {}

    def _details(self, index: int) -> dict[str, Any]:
        """What else the infos of a single environment hold, for env `index`."""
        return {}

    def _at_end(self, done: NDArray[np.bool_]) -> dict[str, Any]:
        """What else `infos` hold on a step that ended the episodes of these envs (N,)."""
        return {}

    def _state(self) -> dict[str, NDArray[Any]]:
        raise NotImplementedError(f"{type(self).__name__} cannot be saved; use the native backend")

    def _set_state(self, state: dict[str, NDArray[Any]]) -> None:
        raise NotImplementedError(f"{type(self).__name__} cannot be restored; use the native backend")

    # ------------------------------------------------------------------------------------------------------- helpers

    def _renew(self, observations: Obs, chosen: NDArray[np.bool_]) -> None:
        """Begin the next episodes of these envs (N,) and write their first observations into `observations`."""
        which = chosen.nonzero()[0]
        if len(which):
            self._begin(chosen, None)
            self._unread |= chosen
            fresh = self._views(which)
            if isinstance(observations, dict):
                for key, whole in observations.items():
                    whole[which] = fresh[key]
            else:
                observations[which] = fresh


class EngineVectorEnv(BaseVectorEnv):
    """N envs on the native `engine` of a family, which a subclass makes.

    Its `envs` are records with the return of the running episode, and with its length by the name `clock`; its `out`
    holds what the last step brought.
    """

    engine: Any
    clock = "steps"

    def close_extras(self, **kwargs: Any) -> None:
        self.engine.close()

    def _begin(self, chosen: NDArray[np.bool_], seeds: Sequence[int | None] | None) -> None:
        for i, seed in enumerate(seeds or ()):
            if chosen[i] and seed is not None:
                self.engine.seed(i, seed)
        self.engine.begin(chosen)

    def _scores(self, which: Any = ...) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        return self.engine.envs["episode_return"][which], self.engine.envs[self.clock][which]

    def _exact(self, index: int, reward: float) -> float:
        return float(self.engine.out.rewards[index])

    def _state(self) -> dict[str, NDArray[Any]]:
        return self.engine.snapshot()  # type: ignore[no-any-return]

    def _set_state(self, state: dict[str, NDArray[Any]]) -> None:
        self.engine.restore(state)


def rows_of(values: NDArray[Any], which: Any) -> NDArray[Any]:
    """A copy of the rows with these numbers, of all for `...`; thrice as fast as `values[which]`."""
    return values.copy() if which is ... else values.take(which, 0)


def _only(observations: Obs, which: NDArray[np.int64]) -> Obs:
    """A copy with zeros for all other envs."""
    if isinstance(observations, dict):
        return {key: _only(one, which) for key, one in observations.items()}
    copy = np.zeros(observations.shape, observations.dtype)
    copy[which] = rows_of(observations, which)
    return copy


def _autoreset_mode(mode: AutoresetMode | str) -> AutoresetMode:
    try:
        return AutoresetMode(mode)
    except ValueError:
        names = [known.value for known in AutoresetMode]
        near = did_you_mean(str(mode), names)
        raise UsageError(f"There is no autoreset mode '{mode}'.{near} Use one of {', '.join(names)}.") from None


def seeds_of(seed: int | Sequence[int | None] | None, num_envs: int) -> list[int | None]:
    """One seed (or None) for each env, by Gymnasium's convention."""
    if seed is None:
        return [None] * num_envs
    if isinstance(seed, (int, np.integer)):
        return [int(seed) + i for i in range(num_envs)]
    if len(seed) != num_envs:
        raise ValueError(f"{len(seed)} seeds were given for {num_envs} envs")
    return [None if s is None else operator.index(s) for s in seed]


def reset_mask_of(options: dict[str, Any] | None, num_envs: int) -> NDArray[np.bool_]:
    """(N,) bool, which envs `reset(options={"reset_mask": …})` begins anew: all of them without a mask."""
    unknown = set(options or {}) - {"reset_mask"}
    if unknown:
        raise ValueError(f"unknown reset option {sorted(unknown)[0]!r}; only 'reset_mask' is known")
    mask = (options or {}).get("reset_mask")
    if mask is None:
        return np.ones(num_envs, bool)
    mask = np.asarray(mask)
    if mask.shape != (num_envs,) or mask.dtype != bool:
        raise ValueError(f"reset_mask must be ({num_envs},) bool, not {mask.shape} {mask.dtype}")
    if not mask.any():
        raise ValueError("reset_mask chooses no env")
    return mask


def checked_actions(actions: Any, num_envs: int, num_actions: int) -> NDArray[np.int64]:
    """(N,) int64 actions; ValueError for a wrong shape, dtype or range, before anything has moved."""
    actions = np.asarray(actions)
    if actions.shape != (num_envs,):
        raise ValueError(f"actions must have shape ({num_envs},), not {actions.shape}")
    if actions.dtype != np.int64:
        if not np.issubdtype(actions.dtype, np.integer):
            raise ValueError(f"actions must be integers, not {actions.dtype}")
        actions = actions.astype(np.int64)
    # Read as unsigned numbers, negative ones are the largest: -1 is 2**64 - 1.
    if np.maximum.reduce(actions.view(np.uint64)) >= num_actions:
        raise ValueError(f"actions must lie in 0..{num_actions - 1}")
    return actions


def checked_steps(what: str, steps: Any, most: int = 2**31 - 1) -> int:
    """`steps` when it can be an episode's length; UsageError, which begins with `what`, otherwise."""
    whole = isinstance(steps, (int, np.integer)) and not isinstance(steps, bool)
    if not whole or not 1 <= steps <= most:
        raise UsageError(f"{what} must be a whole number of at least 1 and at most {most:,}, not {steps!r}.")
    return int(steps)
