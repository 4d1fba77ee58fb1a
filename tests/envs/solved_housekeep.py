"""The bot in Housekeep's original episodes: `python -m tests.envs.solved_housekeep [low|high] [SCENE …] [N]`.

Each of the 5,000 is played once, in both controls unless one is named; with a number N the first N of each scene.
What it prints for each scene: how many it tidied, and its steps as a multiple of the episode's `oracle_steps_solve`.
"""

from __future__ import annotations

import sys
import time
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bkrl.envs import bot_of, make_vec
from bkrl.envs.housekeep.episodes import scenes_with_episodes, shipped


class Solved(NamedTuple):
    """Of N episodes: whether they were tidied, low-level steps, the oracle's, numbers, and returns."""

    solved: NDArray[np.bool_]
    steps: NDArray[np.int64]
    oracle: NDArray[np.int64]
    episodes: NDArray[np.int64]
    returns: NDArray[np.float64]


def solved(env_id: str, num_envs: int, every: bool = False) -> Solved:
    """The bot's first episodes in N envs; with `every`, env i plays the scene's i-th episode."""
    envs: Any = make_vec(env_id, num_envs)
    observations, _ = envs.reset(seed=0)
    if every:
        envs.engine.begin(np.ones(num_envs, bool), np.arange(num_envs))
        observations = envs._views()
    bot = bot_of(env_id)
    assert bot is not None
    memory, started = bot.begin(num_envs), np.ones(num_envs, bool)
    envs.idle_after_episode(np.ones(num_envs, bool))
    numbers = envs.engine.envs["episode"].astype(np.int64)
    running, tidy, steps = np.ones(num_envs, bool), np.zeros(num_envs, bool), np.zeros(num_envs, np.int64)
    returns = np.zeros(num_envs)
    while running.any():
        actions = bot.act(envs.env_states(), observations, memory, started)
        started[:] = False
        observations, rewards, terminated, truncated, infos = envs.step(actions)
        returns += rewards * running
        ended = (terminated | truncated) & running
        if ended.any():
            tidy[ended], steps[ended] = terminated[ended], infos["metrics"]["low_level_steps"][ended]
            running &= ~ended
    oracle = np.array([envs.engine.episodes[i].oracle_steps for i in numbers])
    return Solved(tidy, steps, oracle, numbers, returns)


def main(arguments: list[str]) -> None:
    """All episodes, or those of some scenes."""
    controls = [name for name in ("low", "high") if name in arguments] or ["low", "high"]
    most = next((int(word) for word in arguments if word.isdigit()), 1000)
    scenes = [word for word in arguments if word not in controls and not word.isdigit()] or scenes_with_episodes()
    for control in controls:
        for name in scenes:
            begun = time.process_time()
            found = solved(
                f"Housekeep-Symbolic-Original@scene={name},control={control}", min(most, len(shipped(name))), True
            )
            ratio = found.steps / found.oracle
            within = found.solved & (ratio <= 3)
            print(
                f"{control} {name}: {found.solved.sum()} of {len(ratio)} tidied, {within.sum()} within 3 × oracle; "
                f"steps / oracle median {np.median(ratio):.2f}, largest {ratio[found.solved].max():.2f}; "
                f"not within: {found.episodes[~within].tolist()[:20]}; {time.process_time() - begun:.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    main(sys.argv[1:])
