"""Where an env's next layout comes from: a kernel for the levels that are data here, minigrid for every other."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bkrl.envs.babyai.constants import COLOR_NAMES, FETCH, PUT_NEXT, TYPE_NAMES
from bkrl.envs.babyai.french import french_mission
from bkrl.envs.babyai.generate import records_of
from bkrl.envs.babyai.glam import GlamLevel, cases, repeats
from bkrl.envs.babyai.glam.crowds import crowd_of
from bkrl.envs.babyai.glam.generate import EPISODE, glam_record
from bkrl.envs.babyai.kernels import begin_envs, begin_glam_envs, begin_hall_envs, begin_room_envs
from bkrl.envs.babyai.minigrid.halls import WORDING, minigrid_record
from bkrl.envs.babyai.minigrid.levels import FETCH_WORDINGS, GRID_OF_ROOMS, MiniGridLevel
from bkrl.envs.babyai.pcg64 import read_stream, write_stream
from bkrl.envs.babyai.recipes import WITH_DOORS, Recipe
from bkrl.envs.babyai.rooms import PLAN, empty_rooms
from bkrl.envs.babyai.sentences import MISSION, in_words
from bkrl.envs.babyai.state import FIRST, MARGIN, SECOND
from bkrl.envs.threads import Shares

_MISSION_BYTES: Final = 320  # the longest mission of BabyAI has four tasks of about 70 characters


class Layouts:
    """Begins episodes. `width` and `height` are those of the map, without margins; `own_step` as in `step_envs`.

    A level that is drawn natively has the kernel that does it, and the tables this takes after the envs.
    """

    width: int
    height: int
    own_step: bool | None = None
    _kernel: Callable[..., None]
    _tables: tuple[Any, ...]

    def seeded(self, n: int, seed: int) -> None:
        """Env `n` has a new stream of random numbers, from this seed."""

    def task_kinds(self) -> NDArray[np.object_] | None:
        """(N,) the names of the running episodes' kinds of tasks, None where a level has no kinds."""
        return None

    def begin(
        self,
        shares: Shares,
        grids: NDArray[np.uint32],
        envs: NDArray[Any],
        chosen: NDArray[np.bool_],
        observations: NDArray[np.uint8],
    ) -> None:
        """A new episode in each chosen env, from its own stream; its first view goes to `observations` (N, 147)."""
        stride = self.width + 2 * MARGIN
        shares.run(self._kernel, grids, envs, *self._tables, chosen, stride, observations)
        self._begun(chosen)

    def _begun(self, chosen: NDArray[np.bool_]) -> None:
        """What is known of the last episodes of these envs holds no more."""

    def missions(self, envs: NDArray[Any], which: NDArray[np.int64]) -> list[str]:
        """What the running episodes of the envs with these numbers ask for."""
        raise NotImplementedError

    def snapshot(self, envs: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """What is not in the envs' records."""
        return {}

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Take back what `snapshot` gave."""


class RecipeLayouts(Layouts):
    """The levels that have a recipe, drawn natively."""

    _kernel = staticmethod(begin_envs)

    def __init__(self, recipe: Recipe, num_envs: int) -> None:
        self.width, self.height = recipe.columns * (recipe.size - 1) + 1, recipe.rows * (recipe.size - 1) + 1
        self._texts = np.full(num_envs, "", object)  # "" until a mission is wanted in words
        self._said, *_ = self._tables = _tables_of(recipe, num_envs)

    def _begun(self, chosen: NDArray[np.bool_]) -> None:
        self._texts[chosen] = ""

    def missions(self, envs: NDArray[Any], which: NDArray[np.int64]) -> list[str]:
        new = which[self._texts[which] == ""]
        rows = zip(envs["task"][new].tolist(), envs["in_sequence"][new].tolist(), self._said[new], strict=True)
        for n, (tasks, in_sequence, said) in zip(new.tolist(), rows, strict=True):
            self._texts[n] = in_words(tasks, in_sequence, said.tolist())
        missions: list[str] = self._texts[which].tolist()
        return missions

    def snapshot(self, envs: NDArray[Any]) -> dict[str, NDArray[Any]]:
        return {"missions": _as_bytes(self.missions(envs, np.arange(len(envs))))}

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        self._texts[:] = _as_texts(state["missions"])


def _tables_of(recipe: Recipe, num_envs: int) -> tuple[Any, ...]:
    """What `begin_envs` takes behind the envs; the first of it are their missions."""
    plans = np.zeros(num_envs, PLAN)  # one for each thread is used
    template = empty_rooms(recipe.columns, recipe.rows, recipe.size)
    doors = None if WITH_DOORS.isdisjoint(step.op for step in recipe.steps) else True
    return np.zeros(num_envs, MISSION), plans, *records_of(recipe), template, doors


class MiniGridLayouts(Layouts):
    """The levels of `minigrid.levels`, drawn natively."""

    def __init__(self, level: MiniGridLevel, num_envs: int) -> None:
        self.width, self.height = level.width, level.height
        self._level = level
        self.own_step = True if level.task > PUT_NEXT else None
        if level.recipe is not None:
            self._kernel, self._tables = begin_envs, _tables_of(level.recipe, num_envs)
        else:
            self._kernel = begin_room_envs if level.layout >= GRID_OF_ROOMS else begin_hall_envs
            self._tables = (minigrid_record(level),)

    def missions(self, envs: NDArray[Any], which: NDArray[np.int64]) -> list[str]:
        if "{" not in self._level.mission:
            return [self._level.mission] * len(which)
        columns = (envs[name][which].tolist() for name in ("target_color", "target_kind"))
        return [self._mission(*row) for row in zip(*columns, strict=True)]

    def _mission(self, colors: list[int], kinds: list[int]) -> str:
        return self._level.mission.format(
            color=COLOR_NAMES[colors[FIRST]],
            kind=TYPE_NAMES[kinds[FIRST]],
            other_color=COLOR_NAMES[colors[SECOND]],
            other_kind=TYPE_NAMES[kinds[SECOND]],
            wording=FETCH_WORDINGS[kinds[WORDING]] if self._level.task == FETCH else "",
        )


class LoadedLayouts(Layouts):
    """Any other level: one minigrid environment draws the layouts of all envs, each from that env's stream."""

    def __init__(self, env_id: str, num_envs: int) -> None:
        from bkrl.envs.babyai.reference import make_minigrid

        self._env = make_minigrid(env_id)
        self._env.reset(seed=0)  # gives it a generator, whose state each env lends it in turn
        self.width, self.height = int(self._env.width), int(self._env.height)
        self._missions = np.full(num_envs, "", object)

    def begin(
        self,
        shares: Shares,
        grids: NDArray[np.uint32],
        envs: NDArray[Any],
        chosen: NDArray[np.bool_],
        observations: NDArray[np.uint8],
    ) -> None:
        """See `Layouts`. The first view is the one minigrid returns, which some levels take before they finish."""
        from bkrl.envs.babyai.loading import load

        padded = grids.reshape(len(grids), self.height + 2 * MARGIN, self.width + 2 * MARGIN)
        for n in np.flatnonzero(chosen):
            read_stream(envs[n], self._env.np_random)
            first, _ = self._env.reset()
            write_stream(envs[n], self._env.np_random)
            load(self._env, padded[n], envs[n])
            observations[n] = first["image"].ravel()
            self._missions[n] = self._env.mission

    def missions(self, envs: NDArray[Any], which: NDArray[np.int64]) -> list[str]:
        missions: list[str] = self._missions[which].tolist()
        return missions

    def snapshot(self, envs: NDArray[Any]) -> dict[str, NDArray[Any]]:
        return {"missions": _as_bytes(self._missions.tolist())}

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        self._missions[:] = _as_texts(state["missions"])


def _as_bytes(missions: list[str]) -> NDArray[np.uint8]:
    encoded = np.array([mission.encode() for mission in missions], f"S{_MISSION_BYTES}")
    return encoded.view(np.uint8).reshape(len(missions), -1)


def _as_texts(missions: NDArray[np.uint8]) -> list[str]:
    encoded = np.ascontiguousarray(missions).view(f"S{_MISSION_BYTES}")[:, 0]
    return [mission.decode() for mission in encoded.tolist()]


class GlamLayouts(Layouts):
    """The levels of `glam`, drawn natively. Each env has its kind of task, and its turn among them."""

    _kernel = staticmethod(begin_glam_envs)

    def __init__(self, level: GlamLevel, num_envs: int) -> None:
        self.height = level.room_size
        self.width = max(map(level.rooms, level.task_kinds)) * (level.room_size - 1) + 1
        self._level, self._names = level, np.array(level.task_kinds, object)
        self._episodes = np.zeros(num_envs, EPISODE)
        case_ends = np.array([np.cumsum(cases(level, may_be_alike)) for may_be_alike in (False, True)])
        self._tables = glam_record(level), self._episodes, case_ends, np.cumsum(repeats(level)), crowd_of(level)

    def seeded(self, n: int, seed: int) -> None:
        self._episodes["turn"][n] = self._level.first_turn(seed)

    def task_kinds(self) -> NDArray[np.object_]:
        kinds: NDArray[np.object_] = self._names[self._episodes["kind"]]
        return kinds

    def missions(self, envs: NDArray[Any], which: NDArray[np.int64]) -> list[str]:
        columns = [envs[name][which].tolist() for name in ("target_color", "target_kind", "target_is_plural")]
        kinds = self.task_kinds()[which].tolist()
        missions = list(map(_glam_mission, kinds, self._episodes["form"][which].tolist(), *columns))
        return missions if self._level.language == "en" else [*map(french_mission, missions)]

    def snapshot(self, envs: NDArray[Any]) -> dict[str, NDArray[Any]]:
        return {"glam": self._episodes.view(np.int64).reshape(-1, 3).copy()}

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        self._episodes.view(np.int64).reshape(-1, 3)[:] = state["glam"]
        last = len(self._names) - 1  # kernels do not check indices, and a snapshot may be damaged
        for name, least in (("turn", -1), ("kind", 0)):
            self._episodes[name] = self._episodes[name].clip(least, last)


def _glam_mission(kind: str, form: int, colors: list[int], kinds: list[int], plural: int) -> str:
    """What an episode of this kind asks for; `form` as in `EPISODE`, the others from an env's record."""
    first, second = (
        f"{'a' if plural >> i & 1 else 'the'} {COLOR_NAMES[colors[i]]} {TYPE_NAMES[kinds[i]]}" for i in (FIRST, SECOND)
    )
    if kind == "open":
        return f"open {first}" if form else "open the door"
    if kind == "goto":
        return f"go to {first}"
    if kind == "putnext":
        return f"put {first} next to {second}"
    if kind == "pickup":
        return f"pick up {first}"
    later = f"pick up {second}" if kind == "pickup-seq-pickup" else f"go to {second}"
    return f"pick up {first}, then {later}" if form else f"{later} after you pick up {first}"
