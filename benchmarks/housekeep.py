"""How fast symbolic Housekeep is: actions a second of processor time, one thread, random actions, resets included.

    python benchmarks/housekeep.py [--json] [--quick]

* `low_level_steps_per_s`: low-level control in an original house, lines of sight and observations included; without a
  picture, which is the default of these envs.
* `low_level_raster_steps_per_s`: the same with `picture=raster`, an egocentric map of what was seen.
* `high_level_steps_per_s`: decisions of high-level control, of which one stands for about a dozen low-level steps.
* `label_lookups_per_s`: whether a thing belongs on a receptacle, read from the arrays, a million pairs at once.

The best of several short rounds counts: other work on the machine makes rounds slower, never faster.
"""

from __future__ import annotations

import time

import numpy as np

from bkrl.envs import make_vec
from bkrl.envs.housekeep.labels import labels
from command_line import parser_of, show

ENVS = 256
HOUSE = "Housekeep-Symbolic-Original@scene=Pomaria_0_int"


def decisions_per_second(env_id: str, steps: int, rounds: int) -> float:
    """Of `ENVS` envs together."""
    envs = make_vec(env_id, ENVS)
    envs.reset(seed=0)
    actions = np.random.default_rng(0).integers(0, len(envs.env_spec.action_names), (steps, ENVS))
    best = 0.0
    for _ in range(rounds + 1):  # the first round warms up
        begun = time.process_time()
        for row in actions:
            envs.step(row)
        best = max(best, steps * ENVS / (time.process_time() - begun))
    envs.close()
    return best


def lookups_per_second(count: int, rounds: int) -> float:
    """Pairs of a receptacle and a class, each looked up in the labels."""
    right, rng = labels("Pomaria_0_int").right, np.random.default_rng(0)
    receptacles, kinds = rng.integers(0, right.shape[0], count), rng.integers(0, right.shape[1], count)
    best = 0.0
    for _ in range(rounds):
        begun = time.process_time()
        right[receptacles, kinds]
        best = max(best, count / (time.process_time() - begun))
    return best


def main() -> None:
    """Measure and print."""
    arguments = parser_of(__doc__).parse_args()
    steps, rounds = (5, 1) if arguments.quick else (100, 8)
    show(
        {
            "low_level_steps_per_s": decisions_per_second(HOUSE, steps, rounds),
            "low_level_raster_steps_per_s": decisions_per_second(f"{HOUSE},picture=raster", steps, rounds),
            "high_level_steps_per_s": decisions_per_second(f"{HOUSE},control=high", steps, rounds),
            "label_lookups_per_s": lookups_per_second(10**6, rounds),
        },
        arguments.json,
    )


if __name__ == "__main__":
    main()
