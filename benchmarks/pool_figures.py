"""The native engine against EnvPool (C++) and PyPI minigrid, level by level of BabyAI and MiniGrid.

EnvPool is not among bkrl's dependencies: `pip install envpool==1.2.5`. Both sides have 64 envs and one thread, play
random actions, and begin anew when an episode ends. The clock is the processor time of the process, EnvPool's thread
included, so that other work on the machine counts for neither. Rounds alternate; the middle ratio counts.
"""

from __future__ import annotations

import statistics
import sys
import time
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from bkrl.envs import make, make_vec

NUM_ENVS = 64
REFERENCE_ENVS = 8
SAMPLE = (
    "MiniGrid-Empty-8x8-v0",
    "MiniGrid-DoorKey-8x8-v0",
    "MiniGrid-LavaCrossingS9N1-v0",
    "MiniGrid-KeyCorridorS3R2-v0",
    "MiniGrid-UnlockPickup-v0",
    "MiniGrid-ObstructedMaze-1Dlhb-v0",
    "MiniGrid-MultiRoom-N6-v0",
    "MiniGrid-MemoryS13-v0",
    "MiniGrid-Dynamic-Obstacles-16x16-v0",
)
"""One id of each family that bkrl's users train on most, and the one with the most to do in a step."""
FAMILIES = (
    "BabyAI-",
    *(
        f"MiniGrid-{family}"
        for family in ("DoorKey", "UnlockPickup", "KeyCorridor", "MultiRoom", "ObstructedMaze-1Dl", "MemoryS", "LavaC")
    ),
)
"""How the ids begin that no layout may slow down."""


ENDLESS = ("BabyAI-SynthS5R2-v0",)
"""What EnvPool 1.2.5 never finishes the reset of, with any seed that was tried."""


def steps_per_second(env: Any, seconds: float) -> float:
    """Steps of all envs in a second of the processor. Actions are drawn outside the clock."""
    space = env.action_space  # EnvPool gives that of one env
    count = int(space.nvec[0]) if hasattr(space, "nvec") else int(space.n)
    num_envs = getattr(env, "num_envs", NUM_ENVS)
    actions = np.random.default_rng(0).integers(0, count, (32, num_envs))
    steps, start = 0, time.process_time()
    while time.process_time() - start < seconds:
        for row in actions:
            env.step(row)
        steps += actions.size
    return steps / (time.process_time() - start)


def middle_ratio(slow: Any, fast: Any, rounds: int, seconds: float) -> float:
    """The middle of the ratios fast / slow of several rounds, both sides warm."""
    for env in (slow, fast):
        steps_per_second(env, seconds / 4)
    pairs = [(steps_per_second(slow, seconds), steps_per_second(fast, seconds / 2)) for _ in range(rounds)]
    return statistics.median(ours / theirs for theirs, ours in pairs)


def envpool_ids() -> list[str]:
    """Every BabyAI and MiniGrid id of EnvPool that both sides can build; [] where EnvPool is not installed."""
    if find_spec("envpool") is None:
        return []
    names = import_module("envpool").list_all_envs()
    chosen = (name for name in names if name.startswith(("BabyAI-", "MiniGrid-")) and "-WFC-" not in name)
    return sorted(set(chosen) - set(ENDLESS))


def envpool_ratios(ids: Sequence[str], rounds: int, seconds: float) -> dict[str, float]:
    """Of each id the engine's speed as a multiple of EnvPool's; `envpool_worst_ratio` is the least, named on stderr."""
    envpool = import_module("envpool")
    ratios: dict[str, float] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for env_id in ids:
            ours = make_vec(env_id, NUM_ENVS)
            theirs = envpool.make(env_id, env_type="gymnasium", num_envs=NUM_ENVS, num_threads=1, seed=0)
            ours.reset(seed=0)
            theirs.reset()
            ratios[f"envpool {env_id}"] = middle_ratio(theirs, ours, rounds, seconds)
            theirs.close()
            print(f"{env_id} {ratios[f'envpool {env_id}']:.1f}", file=sys.stderr, flush=True)
    worst = min(ratios, key=ratios.__getitem__)
    print(f"slowest against EnvPool: {worst.removeprefix('envpool ')}", file=sys.stderr)
    return ratios | {"envpool_worst_ratio": ratios[worst]}


def minigrid_ratios(ids: Sequence[str], rounds: int, seconds: float) -> dict[str, float]:
    """Of each id the engine's speed as a multiple of PyPI minigrid's in a SyncVectorEnv."""
    ratios = {}
    for env_id in ids:
        ours = make_vec(env_id, NUM_ENVS)
        theirs = SyncVectorEnv(
            [lambda env_id=env_id: make(env_id, backend="reference")] * REFERENCE_ENVS,
            autoreset_mode=AutoresetMode.SAME_STEP,
        )
        for env in (ours, theirs):
            env.reset(seed=0)
        ratios[f"minigrid {env_id}"] = middle_ratio(theirs, ours, rounds, seconds)
        theirs.close()
    return ratios
