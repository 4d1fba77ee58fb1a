"""What the first use costs, when no kernel is compiled yet, and what the second costs.

    python benchmarks/first_use.py [--json] [--quick] [--only toy|babyai|minigrid|crafter|pictures|train|start|…]

Each figure is of a process of its own: `_s` seconds of processor time, user and system, from Python's start to its end;
`_mb` megabytes of memory at most. `first` begins with an empty folder for kernels, `again` has those of the first. Each
case is measured twice and the lesser counts, because processor time grows when others use the same core. `_limit_s` is
what the project holds itself to on a quiet core.

* `toy`, which --quick alone measures: 4 envs of a toy level, a reset and 5 steps.
* `babyai`, `minigrid`, `crafter`, `pictures`: 4 envs of a published BabyAI level, of a level that minigrid draws, of
  Crafter, and of Crafter with pictures: a reset and 5 steps.
* `train`: `bkrl train-rs --alg ppo` on BabyAI, one rollout of 2,048 steps with its evaluations.
* `start`, `crafter_start`: that command, on BabyAI or on Crafter, up to its first rollout: imports, envs, network,
  evaluation of the untrained policy.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

from command_line import parser_of, show

BABYAI = "BabyAI-Text-GoToLocal-RedBall-S20"
CRAFTER = "Crafter-Text-PlaceCraftingTable"
LIMITS = {"start_first": 8.0, "crafter_start_first": 12.0, "start_again": 3.0}

_STEPS = """
import numpy
from bkrl.envs import make_vec
envs = make_vec({}, 4, **{})
envs.reset(seed=1)
for _ in range(5):
    envs.step(numpy.zeros(4, numpy.int64))
"""
_TRAIN = """
import sys, tempfile
from bkrl.__main__ import main
with tempfile.TemporaryDirectory() as out:
    sys.argv = ["bkrl", "train-rs", "--alg", "ppo", "--env", {!r}, "--steps", "2048", "--out", out + "/run"]
    main()
"""
_START = """
import os
from bkrl.learn.ppo import PPO
PPO.iterate = lambda self: os._exit(0)
"""
CASES = {
    "toy": _STEPS.format(repr("Toy-Grid"), {}),
    "babyai": _STEPS.format(repr(BABYAI), {}),
    "minigrid": _STEPS.format(repr("BabyAI-GoToLocal-v0"), {}),
    "crafter": _STEPS.format(repr(CRAFTER), {}),
    "pictures": _STEPS.format(repr(CRAFTER), {"observation": "image"}),
    "train": _TRAIN.format(BABYAI),
    "start": _START + _TRAIN.format(BABYAI),
    "crafter_start": _START + _TRAIN.format(CRAFTER),
}


def cost(code: str, kernels: str) -> tuple[float, float]:
    """Seconds of processor time and megabytes of a process that runs the code with this folder of kernels."""
    variables = os.environ | {"NUMBA_CACHE_DIR": kernels, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", code], env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    said = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(said.decode())
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main() -> None:
    """Measure and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--only", choices=list(CASES), help="one case only")
    args = parser.parse_args()
    figures = {}
    for case in [args.only] if args.only else ["toy"] if args.quick else [case for case in CASES if case != "toy"]:
        found: dict[str, list[tuple[float, float]]] = {"first": [], "again": []}
        for _ in range(1 if args.quick else 2):
            with tempfile.TemporaryDirectory() as kernels:
                for turn in found:
                    found[turn].append(cost(CASES[case], kernels))
        for turn, costs in found.items():
            name = f"{case}_{turn}"
            figures[f"{name}_s"], figures[f"{name}_mb"] = map(min, zip(*costs, strict=True))
            if name in LIMITS:
                figures[f"{name}_limit_s"] = LIMITS[name]
    show(figures, args.json)


if __name__ == "__main__":
    main()
