"""N envs in arrays: seeded, begun, stepped, drawn, saved and restored. Autoreset is for `vector`."""

from typing import Any, Final

import numpy as np
from gymnasium.utils import seeding
from numpy.typing import NDArray

from bkrl.core.errors import InputError
from bkrl.envs.babyai.constants import OBS_SHAPE
from bkrl.envs.babyai.drawing import Canvas
from bkrl.envs.babyai.glam import GlamLevel
from bkrl.envs.babyai.kernels import step_envs
from bkrl.envs.babyai.layouts import GlamLayouts, Layouts, LoadedLayouts, MiniGridLayouts, RecipeLayouts
from bkrl.envs.babyai.levels import LEVELS, recipe_of
from bkrl.envs.babyai.minigrid.levels import MINIGRID_LEVELS
from bkrl.envs.babyai.pcg64 import write_stream
from bkrl.envs.babyai.recipes import RECIPES
from bkrl.envs.babyai.state import ENV, MARGIN, WALL_CELL
from bkrl.envs.threads import Shares

_VIEW_BYTES: Final = int(np.prod(OBS_SHAPE))
# Below this many envs a thread costs more than it saves.
_ENVS_PER_THREAD: Final = 64


class BabyAIEngine:
    """The envs of one id.

    Args:
        env_id: a published level or any other id the engine runs.
        num_envs: N.
        threads: threads to step with.
        max_steps: replaces the level's step limit, by which the reward shrinks too.
        glam: the level where it is one of `glam`, with the caller's options.

    Attributes:
        observations: (N, 147) uint8, the views as they are now; owned by the engine and written in place.
        envs: (N,) records, see `state.ENV`.
    """

    def __init__(
        self, env_id: str, num_envs: int, threads: int = 1, max_steps: int | None = None, glam: GlamLevel | None = None
    ) -> None:
        self.env_id = env_id
        self.num_envs = num_envs
        self._layouts = _layouts_of(env_id, num_envs, glam)
        self._stride = self._layouts.width + 2 * MARGIN
        size = self._stride * (self._layouts.height + 2 * MARGIN)
        self._grids = np.full((num_envs, size), WALL_CELL, np.uint32)
        self.envs = np.zeros(num_envs, ENV)
        self.observations = np.zeros((num_envs, _VIEW_BYTES), np.uint8)
        self.begun = False
        self._max_steps = max_steps
        self._canvas: Canvas | None = None
        self._shares = Shares(num_envs, threads, _ENVS_PER_THREAD)
        self._one_share = Shares(num_envs, 1)

    def seed(self, index: int, seed: int) -> None:
        """Restart the stream of env `index`."""
        write_stream(self.envs[index], seeding.np_random(seed)[0])
        self._layouts.seeded(index, seed)

    def begin(self, chosen: NDArray[np.bool_]) -> None:
        """A new episode in each chosen env."""
        # A handful of episodes is begun before another thread has woken up.
        shares = self._one_share if np.count_nonzero(chosen) < _ENVS_PER_THREAD else self._shares
        self._layouts.begin(shares, self._grids, self.envs, chosen, self.observations)
        if self._max_steps is not None:
            self.envs["max_steps"][chosen] = self._max_steps
        self.begun = self.begun or bool(chosen.all())

    def step(
        self, actions: NDArray[np.int64], idle: NDArray[np.bool_]
    ) -> tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
        """One action in each env that does not idle.

        A copy of the views (N, 147), rewards, terminated, truncated and success (N,).
        """
        shown = np.empty_like(self.observations)
        rewards = np.empty(self.num_envs, np.float32)
        terminated, truncated, success = (np.empty(self.num_envs, np.bool_) for _ in range(3))
        self._shares.run(
            step_envs,
            self._grids,
            self.envs,
            actions,
            idle,
            self._layouts.own_step,
            self._stride,
            self.observations,
            shown,
            rewards,
            terminated,
            truncated,
            success,
        )
        return shown, rewards, terminated, truncated, success

    def missions(self, which: NDArray[np.int64]) -> list[str]:
        """What the running episodes of the envs with these numbers ask for; "" before the first."""
        return self._layouts.missions(self.envs, which) if self.begun else [""] * len(which)

    def task_kinds(self) -> NDArray[np.object_] | None:
        """(N,) the names of the running episodes' kinds of tasks; None for levels that are not of `glam`."""
        return self._layouts.task_kinds()

    def frame(self, index: int) -> NDArray[np.uint8]:
        """A picture of one env, (H, W, 3) uint8, as minigrid draws it with the agent's view lighter."""
        if self._canvas is None:
            self._canvas = Canvas(self.env_id)
        env = self.envs[index]
        y, x = divmod(int(env["agent"]), self._stride)
        position = (x - MARGIN, y - MARGIN)
        return self._canvas.draw(self._inner(index), position, int(env["heading"]), int(env["carrying"]))

    def snapshot(self) -> dict[str, NDArray[Any]]:
        """The full state as plain arrays: restoring it and stepping on equals stepping on."""
        return {
            "env_id": np.frombuffer(self.env_id.encode(), np.uint8),
            "grids": self._grids.copy(),
            "worlds": self.envs.view(np.uint8).reshape(self.num_envs, -1).copy(),
            "observations": self.observations.copy(),
            **self._layouts.snapshot(self.envs),
        }

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Go back to a snapshot. Raises InputError, and changes nothing, for a damaged one or one of other envs."""
        for name, mine in self.snapshot().items():
            theirs = state.get(name)
            same = theirs is not None and theirs.shape == mine.shape and theirs.dtype == mine.dtype
            if not same or (name == "env_id" and bytes(np.asarray(theirs)) != bytes(mine)):
                raise InputError(
                    f"The snapshot's '{name}' is not that of {self.num_envs} envs of '{self.env_id}'; "
                    "restore it into the envs it was taken from."
                )
        records = np.ascontiguousarray(state["worlds"]).view(ENV)[:, 0]
        inside = np.zeros((self._layouts.height + 2 * MARGIN, self._stride), np.bool_)
        inside[MARGIN:-MARGIN, MARGIN:-MARGIN] = True
        # Kernels do not check indices, so every agent and every moving obstacle must be on the map.
        on_map = (records["agent"] >= 0) & (records["agent"] < inside.size)
        y, x = np.divmod(records["obstacles"].copy().view(np.uint8), 16)
        moving = (y < self._layouts.height) & (x < self._layouts.width)
        on_map &= moving.reshape(-1, 8).all(1)
        if not (on_map.all() and inside.ravel()[records["agent"]].all() and (records["heading"] < 4).all()):
            raise InputError("The snapshot is damaged: something stands outside its map; take an earlier one.")
        self._grids[:] = state["grids"]
        self.envs.view(np.uint8).reshape(self.num_envs, -1)[:] = state["worlds"]
        self.observations[:] = state["observations"]
        self._layouts.restore(state)
        self.begun = True

    def states(self) -> NDArray[Any]:
        """(N,) copies of what the envs are now: "world", a record, and "grid", (H, W) cells with their margins."""
        shape = self._layouts.height + 2 * MARGIN, self._stride
        states = np.empty(self.num_envs, [("world", ENV), ("grid", np.uint32, shape)])
        states["world"], states["grid"] = self.envs, self._grids.reshape(-1, *shape)
        return states

    def close(self) -> None:
        self._shares.close()

    def _inner(self, index: int) -> NDArray[np.uint32]:
        """One map without its margins, (height, width)."""
        padded = self._grids[index].reshape(-1, self._stride)
        return padded[MARGIN : MARGIN + self._layouts.height, MARGIN : MARGIN + self._layouts.width]


def _layouts_of(env_id: str, num_envs: int, glam: GlamLevel | None) -> Layouts:
    if glam is not None:
        return GlamLayouts(glam, num_envs)
    if env_id in LEVELS:
        return RecipeLayouts(recipe_of(LEVELS[env_id]), num_envs)
    if env_id in RECIPES:
        return RecipeLayouts(RECIPES[env_id], num_envs)
    if env_id in MINIGRID_LEVELS:
        return MiniGridLayouts(MINIGRID_LEVELS[env_id], num_envs)
    return LoadedLayouts(env_id, num_envs)
