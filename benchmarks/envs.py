"""How fast the envs are: each figure a ratio measured side by side in one run.

    python benchmarks/envs.py [--json] [--quick]

* `babyai_ratio`: steps of RedBall-S20 a second, observations and resets included, native engine against PyPI minigrid
  in Gymnasium's SyncVectorEnv, random actions, one thread each.
* `babyai_step_64_over_engine`: a step of 64 envs as a vector environment, against the engine's part of it, processor
  time: what checks, ended episodes and infos cost beside the rules.
* `crafter_image_ratio`, `crafter_state_ratio`: the same for Crafter against PyPI crafter, with and without pictures.
* `thread_scaling_8192`, `thread_scaling_4096`: so many envs of the native BabyAI engine, two threads against one;
  `independent_scaling_…`: two such engines in a thread each against one; `machine_thread_scaling` is what two threads
  without memory gain in the same minute, that is what the machine has to give.
* `minigrid ID`: nine of minigrid's other levels against PyPI minigrid, processor time.
* `envpool ID`, `envpool_worst_ratio`: only with `--only envpool`, and where EnvPool is installed: every id that EnvPool
  has, 64 envs on one thread, processor time; the id of the worst goes to stderr.
* `captions_fresh_per_s`, `captions_cached_per_s`: captions of views never seen, and of views seen before.

Rounds alternate between the two sides, so that other work on the machine hits both; the middle ratio counts.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import gymnasium as gym
import numba
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import crafter_figures
import pool_figures
from bkrl.envs import make, make_vec
from bkrl.envs.babyai.captions import RoomCaptioner
from command_line import parser_of, show

RED_BALL = "BabyAI-Text-GoToLocal-RedBall-S20"
REFERENCE_ENVS = 8
NATIVE_ENVS = 1024
THREADED_ENVS = (4096, 8192)
SPINS = 200_000_000


def steps_per_second(env: Any, seconds: float) -> float:
    """Steps of all envs in a second, random actions, autoresets included. Actions are drawn outside the clock."""
    rng = np.random.default_rng(0)
    count = env.action_space.nvec[0]
    actions = rng.integers(0, count, (64, env.num_envs))
    steps, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        for row in actions[: 64 if env.num_envs > REFERENCE_ENVS else 16]:
            env.step(row)
            steps += env.num_envs
    return steps / (time.perf_counter() - start)


def ratio_of(slow: Callable[[], float], fast: Callable[[], float], rounds: int) -> tuple[float, float, float]:
    """The middle of the ratios fast / slow of several rounds, and the middle rate of each side."""
    pairs = [(slow(), fast()) for _ in range(rounds)]
    ratio = statistics.median(quick / slow_rate for slow_rate, quick in pairs)
    return ratio, statistics.median(p[0] for p in pairs), statistics.median(p[1] for p in pairs)


def babyai_ratio(rounds: int, seconds: float) -> dict[str, float]:
    """The native engine against minigrid in a SyncVectorEnv."""
    reference = SyncVectorEnv(
        [lambda: make(RED_BALL, backend="reference")] * REFERENCE_ENVS, autoreset_mode=AutoresetMode.SAME_STEP
    )
    native = make_vec(RED_BALL, NATIVE_ENVS)
    for env in (reference, native):
        env.reset(seed=0)
        steps_per_second(env, min(seconds, 0.2))  # compile, warm up
    ratio, slow, fast = ratio_of(
        lambda: steps_per_second(reference, seconds), lambda: steps_per_second(native, seconds / 2), rounds
    )
    return {"babyai_ratio": ratio, "babyai_minigrid_steps_per_s": slow, "babyai_native_steps_per_s": fast}


def step_over_engine(rounds: int, steps: int) -> dict[str, float]:
    """A step of the vector environment against the engine's, the quickest of many short rounds of each."""
    env, bare = (make_vec(RED_BALL, 64) for _ in range(2))
    env.reset(seed=0)
    bare.reset(seed=0)
    actions = np.random.default_rng(0).integers(0, 7, (steps, 64))
    engine = partial(bare.engine.step, idle=np.zeros(64, bool))  # type: ignore[attr-defined]
    sides: dict[str, Callable[[Any], Any]] = {"step": env.step, "engine": engine}
    least = dict.fromkeys(sides, np.inf)
    for _ in range(rounds + 1):  # the first round warms up
        for name, step in sides.items():
            start = time.process_time()
            for row in actions:
                step(row)
            least[name] = min(least[name], (time.process_time() - start) / steps)
    return {"babyai_step_64_over_engine": least["step"] / least["engine"], "babyai_step_64_us": least["step"] * 1e6}


def thread_scaling(rounds: int, seconds: float, sizes: Sequence[int], spins: int) -> dict[str, float]:
    """Two threads of one native engine against one, and two engines in a thread each, which share the GIL alone."""
    figures = {}
    for num_envs in sizes:
        one, two, mine, other = (make_vec(RED_BALL, num_envs, threads=threads) for threads in (1, 2, 1, 1))
        for env in (one, two, mine, other):
            env.reset(seed=0)
            steps_per_second(env, min(seconds, 0.2))
        ratios = []
        for _ in range(rounds):
            alone = steps_per_second(one, seconds / 2)
            together = steps_per_second(two, seconds / 2)
            with ThreadPoolExecutor(2) as pool:
                apart = sum(pool.map(steps_per_second, (mine, other), (seconds / 2,) * 2))
            ratios.append((together / alone, apart / alone))
        for name, of_rounds in zip(("thread_scaling", "independent_scaling"), zip(*ratios, strict=True), strict=True):
            figures[f"{name}_{num_envs}"] = statistics.median(of_rounds)
        two.close()
    spin(1)
    machine, _, _ = ratio_of(lambda: spins_per_second(1, spins), lambda: spins_per_second(2, spins), rounds)
    return {**figures, "machine_thread_scaling": machine}


@numba.njit(nogil=True)
def spin(count: int) -> float:
    """Work that touches no memory."""
    total = 0.0
    for i in range(count):
        total += np.sqrt(i)
    return total


def spins_per_second(num_threads: int, spins: int) -> float:
    """How fast threads that share nothing work together."""
    threads = [threading.Thread(target=spin, args=(spins,)) for _ in range(num_threads)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return num_threads / (time.perf_counter() - start)


def captions(rounds: int, steps: int) -> dict[str, float]:
    """Captions a second of distinct views, first never seen, then seen."""
    env = make_vec("BabyAI-GoToLocal-v0", 64)
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    views = np.concatenate([env.step(rng.choice(3, 64, p=[0.2, 0.2, 0.6]))[0] for _ in range(steps)])
    views = np.unique(views, axis=0)[:20_000]
    fresh, cached = [], []
    for _ in range(rounds):
        captioner = RoomCaptioner()
        for rates in (fresh, cached):
            start = time.perf_counter()
            captioner(views)
            rates.append(len(views) / (time.perf_counter() - start))
    return {
        "captions_fresh_per_s": statistics.median(fresh),
        "captions_cached_per_s": statistics.median(cached),
        "caption_views": len(views),
    }


def main() -> None:
    """Measure and print."""
    parser = parser_of(__doc__)
    parser.add_argument(
        "--only", choices=["babyai", "minigrid", "threads", "captions", "crafter", "envpool"], help="one part only"
    )
    parser.add_argument("--ids", default="", help="of the levels against EnvPool, those whose id contains this")
    args = parser.parse_args()
    gym.logger.min_level = gym.logger.ERROR
    rounds, seconds = (1, 0.01) if args.quick else (7, 2.0)
    ids = pool_figures.SAMPLE[:2] if args.quick else pool_figures.SAMPLE
    threaded = ((64,), 1000) if args.quick else (THREADED_ENVS, SPINS)
    parts: dict[str, Callable[[], dict[str, float]]] = {
        "babyai": lambda: babyai_ratio(rounds, seconds) | step_over_engine(20 * rounds, 5 if args.quick else 500),
        "minigrid": lambda: pool_figures.minigrid_ratios(ids, min(rounds, 3), seconds / 4),
        "crafter": lambda: crafter_figures.figures(rounds, seconds, 4 if args.quick else crafter_figures.WARM_UP),
        "threads": lambda: thread_scaling(rounds, seconds, *threaded),
        "captions": lambda: captions(rounds, 20 if args.quick else 1000),
    }
    if args.only == "envpool":
        chosen = [env_id for env_id in pool_figures.envpool_ids() if args.ids in env_id]
        if not chosen:
            parser.error("there is nothing to measure: EnvPool is not installed, or no id of both contains --ids")
        parts["envpool"] = lambda: pool_figures.envpool_ratios(chosen, min(rounds, 3), seconds / 8)
    results: dict[str, float] = {}
    for name, measure in parts.items():
        if args.only in (None, name):
            results |= measure()
    show(results, args.json)


if __name__ == "__main__":
    main()
