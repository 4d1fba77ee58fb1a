"""How fast this version is beside an earlier one, in turns on one machine, and whether it computes the same.

    git worktree add build/earlier df69fb7
    python benchmarks/versions.py --old build/earlier [--json] [--quick] [--only crafter_state|...]

* `crafter_state_over_old`, `crafter_image_over_old`, `babyai_over_old`: steps a second of 64 envs, random actions,
  resets included, over those of the earlier version.
* `crafter_training_ratio`: the same of whole iterations of PPO, compact network, symbols of Crafter.
* `…_same`: 1 where observations and rewards, or weights, came out with the same bytes in the steps that warm up.
* `…_steps_per_s`: this version's. `load`: how busy the machine was.

Each turn is a process of its own on one thread, timed by its processor time. The middle ratio of the rounds counts.
Without --old both sides are this version: the ratios say how far the machine can be trusted.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from command_line import parser_of, show

HERE = Path(__file__).resolve().parents[1]
_STEPS = """
import hashlib, json, sys, time
import numpy as np
from bkrl.envs import make_vec
env_id, options, seconds, warm = {!r}, {!r}, float(sys.argv[1]), int(sys.argv[2])
env = make_vec(env_id, 64, **options)
env.reset(seed=int(sys.argv[3]))
actions = np.random.default_rng(0).integers(0, env.single_action_space.n, (max(warm, 256), 64))
digest = hashlib.sha256()
for row in actions[:warm]:
    observations, rewards = env.step(row)[:2]
    digest.update(observations.tobytes() + rewards.tobytes())
steps, start = 0, time.process_time()
while (spent := time.process_time() - start) < seconds:
    env.step(actions[steps // 64 % 256])
    steps += 64
print(json.dumps([steps / spent, digest.hexdigest()]))
"""
_TRAINING = """
import hashlib, json, sys, time
import torch
from bkrl.core.config import HardwareConfig, PPOConfig
from bkrl.methods import TrainRsConfig, find_method
torch.set_num_threads(1)
settings = dict(env="CrafterReward-v1", network="compact", steps=10**9, seed=int(sys.argv[3]))
same = dict(ppo=PPOConfig(), hardware=HardwareConfig(device="cpu"))
ppo = find_method("ppo").build(TrainRsConfig(**settings, **same)).learner
for _ in range(1 + int(sys.argv[2]) // 32):
    ppo.iterate()
weights = b"".join(one.detach().numpy().tobytes() for one in ppo.parameters)
before, start = ppo.step, time.process_time()
while (spent := time.process_time() - start) < float(sys.argv[1]):
    ppo.iterate()
print(json.dumps([(ppo.step - before) / spent, hashlib.sha256(weights).hexdigest()]))
"""
CASES = {
    "crafter_state": _STEPS.format("CrafterReward-v1", {}),
    "crafter_image": _STEPS.format("CrafterReward-v1", {"observation": "image"}),
    "babyai": _STEPS.format("BabyAI-Text-GoToLocal-RedBall-S20", {}),
    "crafter_training": _TRAINING,
}


def turn(version: Path, case: str, *numbers: float) -> Any:
    """Steps a second, and what was computed."""
    env = os.environ | {"PYTHONPATH": str(version.resolve() / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", CASES[case], *map(str, numbers)], env=env, stdout=subprocess.PIPE, check=True
    )
    return json.loads(done.stdout)


def main() -> None:
    """Measure and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--old", type=Path, default=HERE, help="folder of the earlier version's sources")
    parser.add_argument("--only", choices=list(CASES), help="one case only")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each side")
    parser.add_argument("--seed", type=int, default=0, help="of the envs")
    args = parser.parse_args()
    numbers = (0.01, 4, args.seed) if args.quick else (2.0, 400, args.seed)
    figures: dict[str, float] = {}
    for case in [args.only] if args.only else ["crafter_state"] if args.quick else list(CASES):
        if not args.quick:  # kernels are compiled before
            turn(args.old, case, 0.01, 1, 0), turn(HERE, case, 0.01, 1, 0)
        rounds = [
            (turn(args.old, case, *numbers), turn(HERE, case, *numbers))
            for _ in range(1 if args.quick else args.rounds)
        ]
        key = f"{case}_ratio" if case == "crafter_training" else f"{case}_over_old"
        figures[key] = statistics.median(new[0] / old[0] for old, new in rounds)
        figures[f"{case}_steps_per_s"] = statistics.median(new[0] for _, new in rounds)
        figures[f"{case}_same"] = float(all(new[1] == old[1] for old, new in rounds))
    figures["load"] = os.getloadavg()[0]
    show(figures, args.json)


if __name__ == "__main__":
    main()
