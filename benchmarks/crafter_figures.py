"""Crafter's half of `envs.py`: the engine against PyPI crafter, with and without pictures.

Both sides play random actions, begin anew when an episode ends, and are timed by the processor time of their one
thread, so that other work on the machine counts for neither. PyPI crafter is used as it is (numba quickens its noise);
it always draws the picture. Rounds alternate between the sides and the middle ratio counts.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np

from bkrl.envs import make_vec

ENV_ID = "CrafterReward-v1"
NUM_ENVS = 64
WARM_UP = 400  # steps of each env: more than two episodes, so that not all envs end theirs together


def _native(observation: str, warm_up: int) -> Any:
    env = make_vec(ENV_ID, NUM_ENVS, observation=observation)
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    for actions in rng.integers(0, 17, (warm_up, NUM_ENVS)):
        env.step(actions)
    return env


def _native_rate(env: Any, seconds: float, rng: np.random.Generator) -> float:
    actions = rng.integers(0, 17, (256, NUM_ENVS))
    steps, start = 0, time.thread_time()
    while time.thread_time() - start < seconds:
        for row in actions:
            env.step(row)
        steps += actions.size
    return steps / (time.thread_time() - start)


def _reference_rate(env: Any, seconds: float, rng: np.random.Generator) -> float:
    actions = rng.integers(0, 17, 100_000).tolist()
    steps, start = 0, time.thread_time()
    while time.thread_time() - start < seconds:
        if env.step(actions[steps])[2]:
            env.reset()
        steps += 1
    return steps / (time.thread_time() - start)


def figures(rounds: int, seconds: float, warm_up: int = WARM_UP) -> dict[str, float]:
    """The ratios and both sides' steps a second.

    Args:
        rounds: measurements of each side.
        seconds: of each measurement of the reference; two are some eight of its episodes. The engine is measured for
            half as long.
        warm_up: steps of each env of the engine before.
    """
    import crafter

    rng = np.random.default_rng(1)
    reference = crafter.Env(seed=0)
    reference.reset()
    _reference_rate(reference, seconds / 2, rng)
    with_image, without = _native("image", warm_up), _native("symbolic", warm_up)
    rates = [
        (
            _reference_rate(reference, seconds, rng),
            _native_rate(with_image, seconds / 2, rng),
            _native_rate(without, seconds / 2, rng),
        )
        for _ in range(rounds)
    ]
    return {
        "crafter_image_ratio": statistics.median(image / slow for slow, image, _ in rates),
        "crafter_state_ratio": statistics.median(state / slow for slow, _, state in rates),
        "crafter_pypi_steps_per_s": statistics.median(slow for slow, _, _ in rates),
        "crafter_native_image_steps_per_s": statistics.median(image for _, image, _ in rates),
        "crafter_native_state_steps_per_s": statistics.median(state for _, _, state in rates),
    }
