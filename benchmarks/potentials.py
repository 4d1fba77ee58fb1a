"""What shaping costs: iterations of shaped PPO against plain PPO on the same envs, in one run.

    python benchmarks/potentials.py [--json] [--quick] [--rounds 15] [--only compact|crafter|paper]
        [--potentials FOLDER]

For each variant (code, pref, goal), the time that its potential adds, as a share of an iteration of plain PPO (acting,
envs, rewards, update) measured in the same round:

* `code_overhead`, `pref_overhead`, `goal_overhead`: RedBall-S20 with the compact network;
* `crafter_…`: place_table with the compact network;
* `paper_…`: RedBall-S20 with the paper network and the published rollout.

`…_iteration` beside each is by what share the whole iteration takes longer. It is less steady, and holds more than the
cost: policies that have learnt differently meet different views, and views that repeat are cheaper. The potentials are
the samples that ship with bkrl, or those of a folder with runs of the same names. All learn for real, one thread each,
taking turns; medians over rounds.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from pathlib import Path

import torch

from bkrl.agents.build import new_agent, observation_options
from bkrl.core.config import HardwareConfig, PPOConfig
from bkrl.envs import env_spec, make_vec
from bkrl.learn.hardware import choose
from bkrl.learn.ppo import PPO
from bkrl.potentials import load_potential
from bkrl.potentials.protocol import Scaled
from bkrl.rewards.shaped import ShapedReward
from bkrl.rewards.streams import EnvReward, RewardStream
from command_line import parser_of, show

RED_BALL, PLACE_TABLE = "BabyAI-Text-GoToLocal-RedBall-S20", "Crafter-Text-PlaceCraftingTable"
PUBLISHED = PPOConfig(num_envs=8, num_steps=128, num_minibatches=4, learning_rate=3e-4, clip_coef=0.1)
SETTINGS = {
    "compact": ("", RED_BALL, "compact", PPOConfig(), "minigrid"),
    "crafter": ("crafter_", PLACE_TABLE, "compact", PPOConfig(), "crafter"),
    "paper": ("paper_", RED_BALL, "paper", PUBLISHED, "minigrid"),
}
VARIANTS = ("code", "pref", "goal")


def run_of(env_id: str, network: str, config: PPOConfig, potential: Scaled | None) -> PPO:
    """A run as `bkrl train-rs` makes it."""
    options, view = observation_options(env_spec(env_id), network)
    envs = make_vec(env_id, config.num_envs, **options)
    streams: list[RewardStream] = [EnvReward() if potential is None else ShapedReward(potential, config.gamma)]
    agent = new_agent(network, envs, view, 1, 0)
    hardware = choose(HardwareConfig(device="cpu"), network)
    return PPO(envs, agent, streams, config, total_steps=10**9, hardware=hardware)


def overheads(prefix: str, runs: dict[str, PPO], rounds: int) -> dict[str, float]:
    """The figures of one setting; `runs` holds "plain" and the variants."""
    for ppo in runs.values():
        for _ in range(min(3, rounds)):  # warm up
            ppo.iterate()
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    evaluation: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, ppo in runs.items():
            start = time.perf_counter()
            metrics = ppo.iterate()
            seconds[name].append(time.perf_counter() - start)
            evaluation[name].append(metrics["time/potential"])
    plain = seconds.pop("plain")
    figures = {f"{prefix}plain_steps_per_s": runs["plain"].collector.rollout.rewards.size / statistics.median(plain)}
    unpaid = evaluation.pop("plain")
    for name, taken in seconds.items():
        added = [(part - least) / base for part, least, base in zip(evaluation[name], unpaid, plain, strict=True)]
        longer = [whole / base - 1 for whole, base in zip(taken, plain, strict=True)]
        figures[f"{prefix}{name}_overhead"] = statistics.median(added)
        figures[f"{prefix}{name}_iteration"] = statistics.median(longer)
    return figures


def main() -> None:
    """Measure and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="iterations of each run that are measured")
    parser.add_argument("--only", choices=list(SETTINGS), help="one setting only")
    parser.add_argument("--potentials", type=Path, help="a folder with bk-code-minigrid and the like")
    args = parser.parse_args()
    if args.quick:
        args.rounds = 1
    torch.set_num_threads(1)
    results: dict[str, float] = {}
    for setting, (prefix, env_id, network, config, envs) in SETTINGS.items():
        if args.only not in (None, setting):
            continue
        if args.quick:
            config = replace(config, num_envs=4, num_steps=8)
        runs = {"plain": run_of(env_id, network, config, None)}
        potentials = []
        for variant in VARIANTS:
            name = f"bk-{variant}-{envs}"
            potentials.append(load_potential(args.potentials / name if args.potentials else Path(f"sample:{name}")))
            runs[variant] = run_of(env_id, network, config, potentials[-1])
        results |= overheads(prefix, runs, args.rounds)
        for potential in potentials:
            potential.close()
    show(results, args.json)


if __name__ == "__main__":
    main()
