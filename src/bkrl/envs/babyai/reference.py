"""BabyAI and MiniGrid envs on PyPI minigrid: the ground truth the native engine is tested against.

`ReferenceBabyAI` wraps any environment of minigrid into the toolkit's form: the observation is the symbolic view only,
success is reported, and minigrid's own prints never reach stdout.
"""

import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

import gymnasium as gym
import numpy as np
from minigrid.core.world_object import WorldObj
from minigrid.envs.babyai.core import roomgrid_level
from minigrid.envs.babyai.core.levelgen import LevelGen
from minigrid.envs.babyai.core.roomgrid_level import RoomGridLevel
from minigrid.envs.babyai.core.verifier import ActionInstr, BeforeInstr, GoToInstr, ObjDesc, PickupInstr
from minigrid.minigrid_env import MiniGridEnv
from numpy.typing import NDArray

from bkrl.core.errors import UsageError
from bkrl.core.registry import did_you_mean
from bkrl.envs.babyai import FAMILY, REWARDED, glam
from bkrl.envs.babyai.constants import COLOR_NAMES, DONE, TYPE_NAMES
from bkrl.envs.babyai.glam.reference import GlamEnv
from bkrl.envs.babyai.levels import LEVELS, Level, Target
from bkrl.envs.babyai.loading import why_not
from bkrl.envs.babyai.minigrid.levels import MINIGRID_LEVELS
from bkrl.envs.family import EnvSpec
from bkrl.envs.single import BaseEnv

FORK_ONLY: Final[Mapping[str, str]] = {
    r"1RoomS(\d+)": r"OneRoomS\1-v0",
    "GoToObjS6": "GoToObjS6-v1",
    "GoToLocalS8N16": "MixedTrainLocal-v0@task_kinds=goto,num_dists=15",
    "GoToLocal2": "GoToSeqS5R2-v0",
    "PickupLocal": "MixedTrainLocal-v0@task_kinds=pickup,num_dists=7",
    "GoTo(Medium|Large)": "GoTo-v0",
    "GoToOpen(Medium|Large)|GoTo(Medium|Large)Open": "GoToOpen-v0",
    "OpenGoTo(Medium|Large)": "GoToSeq-v0",
    "Pickup(Medium|Large)": "Pickup-v0",
    "PutNext(Medium|Large)?": "PutNextLocal-v0",
    "Unlock(Medium|Large)": "Unlock-v0",
    "(PickupOpen|PickupOpenPutNext|Synth)(Medium|Large)": "SynthS5R2-v0",
    "(OpenAndPickup|SynthThenSynth)(Medium|Large)": "SynthSeq-v0",
    "Test.*": "BlockedUnlockPickup-v0",
    "OpenDoorsOrder.*|OpenTwoDoors.*": "OpenDoorsOrderN2-v0",
}
"""Ids of the published fork (regular expressions, without "BabyAI-" and "-v0") → the level that is most like them."""


# minigrid prints each layout it rejects. Shadowing the name in that one module keeps stdout for results without
# touching sys.stdout, which other threads may be using.
roomgrid_level.print = lambda *_: None  # type: ignore[attr-defined]


class TextLevel(RoomGridLevel):
    """One of the published single-room levels (`levels.LEVELS`) on minigrid."""

    def __init__(self, level: Level, **kwargs: Any) -> None:
        self.level = level
        super().__init__(num_rows=1, num_cols=1, room_size=level.room_size, **kwargs)

    def gen_mission(self) -> None:
        """Draw agent, targets and distractors in the order `levels` documents."""
        self.place_agent()
        targets = [self._add_target(target) for target in self.level.targets]
        self.add_distractors(num_distractors=self.level.distractors, all_unique=False)
        self.check_objs_reachable()
        parts = [self._instruction(target) for target in targets]
        self.instrs = parts[0] if len(parts) == 1 else BeforeInstr(*parts)

    def _add_target(self, target: Target) -> WorldObj:
        color = target.colors[0] if len(target.colors) == 1 else self._rand_elem(target.colors)
        kind = target.kinds[0] if len(target.kinds) == 1 else self._rand_elem(target.kinds)
        return self.add_object(0, 0, TYPE_NAMES[kind], COLOR_NAMES[color])[0]

    def _instruction(self, target: WorldObj) -> ActionInstr:
        desc = ObjDesc(target.type, target.color)
        return PickupInstr(desc) if self.level.task == "pick up" else GoToInstr(desc)


def make_minigrid(env_id: str, render_mode: str | None = None, level: glam.GlamLevel | None = None) -> MiniGridEnv:
    """The bare minigrid environment behind an id, without wrappers; `level` is that of `glam` with options.

    Raises UsageError for an unknown or unusable id.
    """
    if env_id in LEVELS:
        return TextLevel(LEVELS[env_id], render_mode=render_mode)
    if env_id in glam.LEVELS:
        return GlamEnv(level or glam.LEVELS[env_id], render_mode=render_mode)
    names = FAMILY.other_ids()
    if env_id not in names:
        for fork, here in FORK_ONLY.items():
            if re.fullmatch(f"BabyAI-({fork})-v0", env_id):
                raise UsageError(
                    f"'{env_id}' is a level of BabyAI's published fork that PyPI minigrid lacks; the nearest that is "
                    f"here is BabyAI-{re.sub(fork, here, env_id.removeprefix('BabyAI-').removesuffix('-v0'))}."
                )
        raise UsageError(
            f"There is no BabyAI or MiniGrid env '{env_id}'.{did_you_mean(env_id, [*LEVELS, *glam.LEVELS, *names])}"
        )
    try:
        with warnings.catch_warnings():
            # Gymnasium advises a newer version of some ids; the caller has named the one that is wanted.
            warnings.filterwarnings("ignore", message=".*is out of date.*")
            made = gym.make(env_id, disable_env_checker=True, render_mode=render_mode).unwrapped
            if type(made).__module__.startswith("minigrid.envs.wfc"):
                made.unwrapped.reset(seed=0)  # reads pictures and a package that not every installation has
                made._np_random = None
    except FileNotFoundError as error:  # its wheels leave out the pictures that the WFC levels are drawn from
        raise UsageError(
            f"The installed minigrid lacks {Path(str(error.filename)).name}, which '{env_id}' is built from; choose "
            "another env."
        ) from error
    except (ImportError, OSError, gym.error.Error) as error:
        raise UsageError(f"minigrid cannot build '{env_id}' on this machine ({error}); choose another env.") from error
    env = cast(MiniGridEnv, made)
    image = cast(gym.spaces.Dict, env.observation_space).spaces.get("image")
    if (
        image is None
        or image.shape is None
        or len(image.shape) != 3
        or not isinstance(env.action_space, gym.spaces.Discrete)
    ):
        raise UsageError(f"'{env_id}' has no symbolic view with discrete actions, so it cannot be used here.")
    return env


def describe(env_id: str) -> EnvSpec:
    """The facts of a minigrid id. Where minigrid sets the step limit for each mission, `max_steps` is the largest."""
    env = make_minigrid(env_id)
    image = cast(gym.spaces.Dict, env.observation_space)["image"]
    babyai = isinstance(env, RoomGridLevel)
    reason = None if env_id in MINIGRID_LEVELS else why_not(env)
    exception = f"; without a native engine, because {reason}, it always runs on minigrid" if reason else ""
    return EnvSpec(
        env_id=env_id,
        family="babyai",
        obs_shape=cast("tuple[int, ...]", image.shape),
        action_names=tuple(action.name for action in env.actions)[: int(cast(gym.spaces.Discrete, env.action_space).n)],
        max_steps=_longest_episode(env) if babyai and not env.fixed_max_steps else int(env.max_steps),
        rules=f"The rules of PyPI minigrid, class {type(env).__name__}{exception}.",
        solved=REWARDED,
    )


def _longest_episode(env: RoomGridLevel) -> int:
    """minigrid allows room_size² steps for each room and each place a mission sends the agent to."""
    if isinstance(env, LevelGen):
        places = 2 if "putnext" in env.action_kinds else 1
        clauses = 4 if "seq" in env.instr_kinds else 2 if "and" in env.instr_kinds else 1  # either half may be an "and"
        return places * clauses * int(env.room_size) ** 2 * int(env.num_rows) * int(env.num_cols)
    env.reset(seed=0)  # every other level has missions of one form
    return int(env.max_steps)


class ReferenceBabyAI(BaseEnv):
    """A minigrid env as one `gymnasium.Env`.

    Observation: minigrid's view, uint8 (7, 7, 3) = (x, y, (type, colour, state)); what the agent carries shows in
    its own cell [3, 6]. Success is termination with a reward above 0.
    """

    def __init__(
        self,
        env_spec: EnvSpec,
        render_mode: str | None = None,
        max_steps: int | None = None,
        level: glam.GlamLevel | None = None,
    ) -> None:
        super().__init__(env_spec, gym.spaces.Box(0, 255, env_spec.obs_shape, np.uint8), render_mode)
        self.inner = make_minigrid(env_spec.env_id, render_mode="rgb_array", level=level)
        if max_steps is not None:
            self.inner.max_steps = max_steps
            if isinstance(self.inner, RoomGridLevel):
                self.inner.fixed_max_steps = True

    @property
    def mission(self) -> str:  # type: ignore[override]
        """What the running episode asks for."""
        return str(self.inner.mission) if self._begun else ""

    @property
    def task_kind(self) -> str | None:
        """The name of the running episode's kind of task; None where the level is not of `glam`."""
        return self.inner.level.task_kinds[self.inner.task_kind] if isinstance(self.inner, GlamEnv) else None

    def _info(self, success: bool) -> dict[str, Any]:
        kind = self.task_kind
        return {"success": success} if kind is None else {"success": success, "task_kind": kind}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Start an episode; a seed restarts the stream of random numbers. No options are known."""
        self._check_reset(seed, options)
        observation, _ = self.inner.reset(seed=seed)
        # So that `np_random` is the stream in use, for code that inspects or saves it.
        self._np_random = self.inner.np_random
        self._np_random_seed = self.inner.np_random_seed
        return observation["image"], self._info(False)

    def step(self, action: Any) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """One step of minigrid."""
        index = min(int(self._check_step(action)[0]), DONE)
        observation, reward, terminated, truncated, _ = self.inner.step(index)
        self._over = bool(terminated or truncated)
        success = bool(terminated) and float(reward) > 0
        return observation["image"], float(reward), bool(terminated), bool(truncated), self._info(success)

    def _picture(self) -> NDArray[np.uint8]:
        """The whole env, the agent's view lighter."""
        return cast(NDArray[np.uint8], self.inner.render())

    def close(self) -> None:
        super().close()
        self.inner.close()
