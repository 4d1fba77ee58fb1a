"""How fast missions, memory and text are: each figure a ratio measured side by side in one run.

    python benchmarks/agents.py [--json] [--quick] [--only envs|learners|cloning|bot] [--envpool]

* `mixed_ratio`: steps of MixedTrainLocal a second, observations and resets included, native engine against PyPI
  minigrid in Gymnasium's SyncVectorEnv, random actions, one thread each; `mixed_text_ratio`: the same, every step with
  the captions and missions of all envs as text.
* `envpool ID`, `envpool_worst_ratio`: only with `--envpool`, and where EnvPool is installed (`pip install envpool`):
  every BabyAI level and MiniGrid's larger families against it, see `pool_figures`; each as it comes, and the worst, on
  stderr.
* `babyai_ppo_ratio`, `recurrent_ratio`: whole training of MixedTrainLocal, steps a second of processor time on one
  thread, of `babyai-ppo` and of `ppo --network recurrent --num-envs 128 --num-steps 16`, against the loop of
  `plain_babyai.py`.
* `clone_samples_per_s`: recorded actions that `bc` learns from in a second of processor time, compact network, on 4,000
  episodes of a bot that errs (goto), held-out figures included; `clone_ratio`: against a plain loop of the same
  network, batches and optimiser that looks at every sample, also where its view stands twice in the minibatch.
* `bot_steps_per_s`: steps of the bot in MixedTrainLocal, 128 envs and their resets included.

Rounds alternate between the two sides, so that other work on the machine hits both; the middle ratio counts.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import cloning_figures
import pool_figures
from bkrl.envs import captioner, make, make_vec
from command_line import parser_of, show
from plain_babyai import learners

MIXED = "BabyAI-MixedTrainLocal-v0"
REFERENCE_ENVS = 8
NATIVE_ENVS = 1024


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
            rate(env, min(seconds, 0.3), describe)  # compile, warm up
        pairs = [(rate(reference, seconds, of_reference), rate(native, seconds, of_native)) for _ in range(rounds)]
        figures[f"{key}_ratio"] = statistics.median(fast / slow for slow, fast in pairs)
        figures[f"{key}_native_steps_per_s"] = statistics.median(fast for _, fast in pairs)
        figures[f"{key}_minigrid_steps_per_s"] = statistics.median(slow for slow, _ in pairs)
    return figures


def main() -> None:
    """Measure and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--only", choices=["envs", "learners", "cloning", "bot"], help="one part only")
    parser.add_argument(
        "--envpool", action="store_true", help="every BabyAI level and families of MiniGrid against EnvPool too"
    )
    args = parser.parse_args()
    gym.logger.min_level = gym.logger.ERROR
    rounds, seconds = (1, 0.01) if args.quick else (5, 1.0)
    parts: dict[str, Callable[[], dict[str, float]]] = {
        "envs": lambda: mixed(rounds, seconds),
        "learners": lambda: learners(min(rounds, 3), args.quick),
        "cloning": lambda: cloning_figures.cloning(rounds, seconds, 20 if args.quick else 4000),
        "bot": lambda: cloning_figures.bot(rounds, seconds),
    }
    results: dict[str, float] = {}
    for name, measure in parts.items():
        if args.only in (None, name):
            results |= measure()
    if args.envpool:
        ids = [env_id for env_id in pool_figures.envpool_ids() if env_id.startswith(pool_figures.FAMILIES)]
        if not ids:
            parser.error("EnvPool is not installed: pip install envpool")
        results |= pool_figures.envpool_ratios(ids, min(rounds, 3), seconds / 8)
    show(results, args.json)


if __name__ == "__main__":
    main()
