"""How fast training with large batches is, on the processor and on a GPU: the figures that PufferLib publishes.

    python benchmarks/gpu.py [--json] [--quick] [--device auto|cpu|cuda] [--threads 16] [--seconds 1]

Steps a second of wall clock, from a reset on; NAME is `babyai` (RedBall-S20), `crafter` (symbols) or `pictures`.

* `env NAME 1 thread`, `env NAME all threads`: random actions, envs alone.
* `train DEVICE NAME NETWORK`: whole iterations of PPO, after two that warm up.
* `waits DEVICE NAME NETWORK`: only of a GPU: how often the processor waited for it in an iteration, as torch counts it,
  and `steps …`, the steps of each env in one: each asks for an action, and the figures of the iteration for one more.
* `achievements DEVICE`: of Crafter's 22 those that 1 % of the episodes unlock in the last sixth of `--train-seconds` of
  training (30), and `per episode …` their mean number in an episode then; `trained …`, the steps taken.
* `memory GB`: the most that torch took of the GPU.

`--device auto` measures the processor, and a GPU if there is one; achievements on the last of them. Each figure goes to
stderr as it comes. Without kernels kept from earlier, compiling them takes 20 to 40 seconds of all.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from bkrl.core.config import HardwareConfig, PPOConfig
from bkrl.envs import make_vec
from bkrl.methods import TrainRsConfig, find_method
from command_line import parser_of, show

ENVS: dict[str, tuple[str, dict[str, Any]]] = {
    "babyai": ("BabyAI-Text-GoToLocal-RedBall-S20", {}),
    "crafter": ("CrafterReward-v1", {}),
    "pictures": ("CrafterReward-v1", {"observation": "image"}),
}
ROWS = (("babyai", "compact"), ("crafter", "compact"), ("pictures", "paper"), ("pictures", "residual"))
NUM_ENVS = {"babyai": 8192, "crafter": 1024, "pictures": 1024}
"""On a GPU, and of envs alone; the processor trains with the defaults, whose minibatches stay in its cache."""


class Figures(dict[str, float]):
    """Those measured so far; each is shown at once."""

    def __setitem__(self, name: str, value: float) -> None:
        print(f"{name:36} {value:14,.1f}", file=sys.stderr, flush=True)
        super().__setitem__(name, value)


def env_rate(name: str, num_envs: int, threads: int, seconds: float) -> float:
    """Steps a second of envs that nobody learns in."""
    env_id, options = ENVS[name]
    env = make_vec(env_id, num_envs, threads=threads, **options)
    env.reset(seed=0)
    actions = np.random.default_rng(0).integers(0, env.single_action_space.n, (16, num_envs))  # type: ignore[attr-defined]
    env.step(actions[0])  # compile
    steps, start = 0, time.perf_counter()
    while (spent := time.perf_counter() - start) < seconds:
        env.step(actions[steps // num_envs % 16])
        steps += num_envs
    env.close()
    return steps / spent


def learner(name: str, network: str, ppo: PPOConfig, hardware: HardwareConfig, threads: int) -> Any:
    """What `bkrl train-rs --alg ppo` trains."""
    same: dict[str, Any] = {"env": ENVS[name][0], "network": network, "steps": 10**9, "threads": threads}
    return find_method("ppo").build(TrainRsConfig(**same, ppo=ppo, hardware=hardware)).learner


def finished(device: str) -> float:
    """The time when the device has done all that it was asked for."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def train_rate(ppo: Any, device: str, seconds: float) -> float:
    """Steps a second over whole iterations."""
    for _ in range(2):
        ppo.iterate()
    before, start = ppo.step, finished(device)
    while True:
        ppo.iterate()
        if (spent := finished(device) - start) >= seconds:
            return (ppo.step - before) / spent


def waits(ppo: Any) -> int:
    """How often the processor waits for the GPU in an iteration."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        ppo.iterate()
        torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing" in str(one.message) for one in seen)


def achievements(ppo: Any, seconds: float) -> tuple[float, float]:
    """Those that 1 % of the episodes unlock at the end of so many seconds of training, and how many an episode has."""
    unlocked: dict[str, float] = {}
    episodes, start = 0.0, time.perf_counter()
    while (spent := time.perf_counter() - start) < seconds or not episodes:
        metrics = ppo.iterate()
        if spent < seconds * 5 / 6:
            continue
        episodes += metrics["rollout/episodes"]
        for key, share in metrics.items():
            if key.startswith("rollout/unlocked/"):
                unlocked[key] = unlocked.get(key, 0.0) + share * metrics["rollout/episodes"]
    return sum(count >= episodes / 100 for count in unlocked.values()), sum(unlocked.values()) / episodes


def main() -> None:
    """Measure and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto", help="where networks compute")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of envs and torch")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each rate, at least")
    parser.add_argument("--train-seconds", type=float, default=30.0, help="of training before achievements are counted")
    parser.add_argument("--compile", action="store_true", help="networks translated by torch.compile")
    args = parser.parse_args()
    start = time.perf_counter()
    there = torch.cuda.is_available()
    if args.device == "cuda" and not there:
        parser.error("torch finds no GPU here")
    devices = [device for device in ("cpu", "cuda") if args.device in ("auto", device) and (device == "cpu" or there)]
    if args.quick:
        args.seconds, args.train_seconds, devices = 0.01, 0.1, ["cpu"]
    torch.set_num_threads(args.threads)
    figures = Figures()
    for name, num_envs in NUM_ENVS.items():
        for threads, called in ((1, "1 thread"), (args.threads, "all threads")):
            figures[f"env {name} {called}"] = env_rate(name, 16 if args.quick else num_envs, threads, args.seconds)
    for device in devices:
        hardware = HardwareConfig(device=device, compile=args.compile)  # type: ignore[arg-type]
        for name, network in ROWS[:2] if args.quick else ROWS:
            config = PPOConfig(num_envs=64, num_steps=32)
            if device == "cuda":
                config = replace(config, num_envs=NUM_ENVS[name], num_minibatches=4)
            elif args.quick or network != "compact":
                config = replace(config, num_steps=8)
            ppo, row = learner(name, network, config, hardware, args.threads), f"{device} {name} {network}"
            figures[f"train {row}"] = train_rate(ppo, device, args.seconds)
            if device == "cuda":
                figures[f"waits {row}"], figures[f"steps {row}"] = waits(ppo), config.num_steps
            if (device, name) == (devices[-1], "crafter"):
                fresh = learner(name, network, config, hardware, args.threads)
                counted, each = achievements(fresh, args.train_seconds)
                figures[f"achievements {device}"], figures[f"per episode {device}"] = counted, each
                figures[f"trained {device}"] = fresh.step
    if "cuda" in devices:
        print(torch.cuda.get_device_name(), torch.__version__, file=sys.stderr)
        figures["memory GB"] = torch.cuda.max_memory_allocated() / 1e9
    figures["seconds"] = time.perf_counter() - start
    show(figures, args.json)


if __name__ == "__main__":
    main()
