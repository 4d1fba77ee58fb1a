"""What reward-free exploration covers: distinct views, and episodes that happened to succeed.

    python benchmarks/explored_views.py [ENV …] [--steps 250000] [--seeds 1 2 3] [--json] [--quick]

The explorer is that of `bkrl collect` with its defaults (compact network, 64 envs, paid for novelty alone), one
thread. A view counts once, however often it was seen. Chance is large: compare means over ten seeds or more.
"""

from __future__ import annotations

import json
import statistics
import time

import numpy as np
import torch

from bkrl.core.config import ExplorerConfig
from command_line import parser_of
from training import our_run

ENVS = ("BabyAI-Text-GoToLocal-Pretraining-S20", "Crafter-Text-PlaceCraftingTable")


def explore(env_id: str, steps: int, seed: int) -> dict[str, float]:
    """One explorer's distinct views, successes, and steps a second of processor time."""
    ppo = our_run(env_id, "compact", ExplorerConfig(), novelty=True, seed=seed)
    seen: set[bytes] = set()
    successes, start = 0.0, time.process_time()
    while ppo.step < steps:
        metrics = ppo.iterate()
        successes += round(metrics.get("rollout/success_rate", 0.0) * len(ppo.collector.rollout.final_index))
        rows = ppo.collector.rollout.views.symbols
        seen.update(row.tobytes() for row in np.ascontiguousarray(rows).reshape(rows.shape[0] * rows.shape[1], -1))
    seconds = time.process_time() - start
    ppo.envs.close()
    return {"views": len(seen), "successes": successes, "steps_per_s": ppo.step / seconds}


def main() -> None:
    """Explore and print."""
    parser = parser_of(__doc__)
    parser.add_argument("envs", nargs="*", default=ENVS, metavar="ENV")
    parser.add_argument("--steps", type=int, default=250_000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    args = parser.parse_args()
    if args.quick:
        args.steps, args.seeds = 1, [1]
    torch.set_num_threads(1)
    results = {env: [explore(env, args.steps, seed) for seed in args.seeds] for env in args.envs}
    if args.json:
        print(json.dumps(results))
        return
    for env, found in results.items():
        for key in found[0]:
            values = [run[key] for run in found]
            spread = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
            each = " ".join(f"{value:,.0f}" for value in values)
            print(f"{env}  {key:12} mean {statistics.mean(values):10,.0f} ± {spread:,.0f}   {each}")


if __name__ == "__main__":
    main()
