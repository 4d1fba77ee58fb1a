"""How fast missions, memory and text are: each figure a ratio measured side by side in one run.

    python benchmarks/agents.py [--json] [--quick] [--only envs] [--envpool PYTHON]

* `mixed_ratio`: steps of MixedTrainLocal a second, observations and resets included, native engine against PyPI
  minigrid in Gymnasium's SyncVectorEnv, random actions, one thread each; `mixed_text_ratio`: the same, every step with
  the captions and missions of all envs as text.
* with `--envpool PYTHON`, the interpreter of an environment in which EnvPool is installed (`pip install envpool`):
  for every BabyAI level, steps of 64 envs per second of processor time against EnvPool's with one thread;
  `envpool_worst_ratio` is the least of these ratios, and the line before it names the level. EnvPool wants a NumPy of
  its own, hence an interpreter of its own; the two sides take turns.

Rounds alternate between the two sides, so that other work on the machine hits both; the middle ratio counts.
"""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from bkrl.envs import captioner, make, make_vec
from bkrl.envs.babyai.recipes import RECIPES
from command_line import parser_of, show

MIXED = "BabyAI-MixedTrainLocal-v0"
REFERENCE_ENVS = 8
NATIVE_ENVS = 1024
ENVPOOL_ENVS = 64

# Reads an id and a number of steps from each line, answers with processor seconds. EnvPool steps in threads of its own,
# whose time counts too.
ENVPOOL = """
import sys, time
import numpy as np
import envpool
actions = np.random.default_rng(0).integers(0, 7, (4096, {envs})).astype(np.int32)
for line in sys.stdin:
    name, steps = line.split()
    env = envpool.make_gymnasium(name, num_envs={envs}, num_threads=1, seed=0)
    env.reset()
    for row in actions[:64]:
        env.step(row)
    start = time.process_time()
    for t in range(int(steps)):
        env.step(actions[t % len(actions)])
    print(time.process_time() - start, flush=True)
    env.close()
"""


def rate(env: Any, seconds: float, describe: Callable[[Any, Any], Any] | None = None) -> float:
    """Steps of all envs in a second of processor time, random actions, autoresets included."""
    actions = np.random.default_rng(0).integers(0, env.single_action_space.n, (256, env.num_envs))
    steps, start = 0, time.process_time()
    while time.process_time() - start < seconds:
        for row in actions[steps // env.num_envs % 256 :][:16]:
            observations = env.step(row)[0]
            if describe is not None:
                describe(env, observations)
            steps += env.num_envs
    return steps / (time.process_time() - start)


def mixed(rounds: int, seconds: float) -> dict[str, float]:
    """The native engine against minigrid in a SyncVectorEnv, without and with text."""
    caption = captioner(MIXED)

    def describe_reference(env: Any, observations: Any) -> Any:
        return caption(observations), [one.unwrapped.mission for one in env.envs]

    def describe_native(env: Any, observations: Any) -> Any:
        return caption(observations), env.missions()

    reference = SyncVectorEnv(
        [lambda: make(MIXED, backend="reference")] * REFERENCE_ENVS, autoreset_mode=AutoresetMode.SAME_STEP
    )
    native = make_vec(MIXED, NATIVE_ENVS)
    figures: dict[str, float] = {}
    for key, of_reference, of_native in (("mixed", None, None), ("mixed_text", describe_reference, describe_native)):
        for env, describe in ((reference, of_reference), (native, of_native)):
            env.reset(seed=0)
            rate(env, 0.3, describe)  # compile, warm up
        pairs = [(rate(reference, seconds, of_reference), rate(native, seconds, of_native)) for _ in range(rounds)]
        figures[f"{key}_ratio"] = statistics.median(fast / slow for slow, fast in pairs)
        figures[f"{key}_native_steps_per_s"] = statistics.median(fast for _, fast in pairs)
        figures[f"{key}_minigrid_steps_per_s"] = statistics.median(slow for slow, _ in pairs)
    return figures


def against_envpool(python: str, rounds: int, seconds: float) -> dict[str, float]:
    """One ratio for each BabyAI level."""
    program = ENVPOOL.format(envs=ENVPOOL_ENVS)
    figures = {}
    with subprocess.Popen([python, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as pool:
        assert pool.stdin is not None
        assert pool.stdout is not None
        for env_id in RECIPES:
            env = make_vec(env_id, ENVPOOL_ENVS)
            env.reset(seed=0)
            rate(env, seconds / 4)
            ratios = []
            steps = 64
            for _ in range(rounds + 1):
                print(env_id, steps, file=pool.stdin, flush=True)
                spent = float(pool.stdout.readline())
                ratios.append(rate(env, seconds) / (steps * ENVPOOL_ENVS / spent))
                steps = max(64, int(steps / spent * seconds))  # the first round finds out how many fill the time
            figures[f"envpool {env_id}"] = statistics.median(ratios[1:])
            env.close()
        pool.stdin.close()
    worst = min(figures, key=lambda name: figures[name])
    print(f"worst against EnvPool: {worst.removeprefix('envpool ')}")
    return {**figures, "envpool_worst_ratio": figures[worst]}


def main() -> None:
    """Measure and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--only", choices=["envs"], help="one part only")
    parser.add_argument("--envpool", metavar="PYTHON", help="an interpreter that has EnvPool: compare every level")
    args = parser.parse_args()
    gym.logger.min_level = gym.logger.ERROR
    rounds, seconds = (1, 0.1) if args.quick else (5, 1.0)
    parts: dict[str, Callable[[], dict[str, float]]] = {"envs": lambda: mixed(rounds, seconds)}
    results: dict[str, float] = {}
    for name, measure in parts.items():
        if args.only in (None, name):
            results |= measure()
    if args.envpool:
        results |= against_envpool(args.envpool, min(rounds, 3), seconds / 2)
    show(results, args.json)


if __name__ == "__main__":
    main()
