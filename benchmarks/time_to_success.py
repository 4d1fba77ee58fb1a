"""How soon training succeeds, in steps and in seconds: read off the runs of a study, printed as a Markdown table.

    python benchmarks/time_to_success.py logs/networks/babyai/red-ball [--threshold 0.9]

For each group of train-rs runs below a folder (runs whose folders differ in the seed alone), the median over seeds of
the first evaluation at which the sampled policy succeeds in that share of its episodes, and of the seconds of training
until then (`time/env`, `policy`, `potential` and `update`; evaluations are left out). A run that never gets there
counts as later than all that did; a median that falls on such runs is "not within" the steps they had. Seconds compare
only between runs that were made side by side, one thread each, on one machine; evaluations are as far apart as
`--eval-every` made them.
"""

from __future__ import annotations

import argparse
import math
import re
import statistics
import sys
from pathlib import Path

import numpy as np

from bkrl.core.errors import BkrlError
from bkrl.core.reporter import percent
from bkrl.report.groups import SUCCESS
from bkrl.runs.record import Run
from bkrl.stats.crossings import steps_to_threshold
from bkrl.stats.curves import Series, series_of
from bkrl.stats.intervals import step_label

PHASES = ("time/env", "time/policy", "time/potential", "time/update")
SEED = re.compile(r"-s\d+$")
Reached = tuple[float, float]
"""Steps and seconds until a run succeeded; infinite for one that never did."""


def reached(series: dict[str, Series], threshold: float) -> Reached:
    """When a run first succeeded in `threshold` of its episodes."""
    crossing = steps_to_threshold(*series[SUCCESS], threshold)
    if crossing.censored:
        return math.inf, math.inf
    spent = (series[phase] for phase in PHASES)
    return crossing.steps, sum(float(np.nansum(seconds[steps <= crossing.steps])) for steps, seconds in spent)


def groups_below(folder: Path) -> dict[str, list[dict[str, Series]]]:
    """Metrics of the finished train-rs runs below `folder`, by their folder without the seed."""
    found: dict[str, list[dict[str, Series]]] = {}
    for path in sorted(config.parent for config in folder.rglob("config.json")):
        if not (path / "manifest.json").exists():
            continue  # not finished
        run = Run.open(path)
        if run.stage == "train-rs":
            group = SEED.sub("", path.relative_to(folder).as_posix())
            found.setdefault(group, []).append(series_of(run.metrics()))
    return found


def main() -> int:
    """Read and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a folder with train-rs runs below it")
    parser.add_argument("--threshold", type=float, default=0.9, help="share of episodes that succeed (default 0.9)")
    args = parser.parse_args()
    try:
        groups = groups_below(args.folder)
    except BkrlError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    if not groups:
        print(f"There is no finished train-rs run below {args.folder}.", file=sys.stderr)
        return 3
    table = []
    for name, runs in groups.items():
        times = [reached(series, args.threshold) for series in runs]
        steps, seconds = (statistics.median_low(column) for column in zip(*times, strict=True))
        last = min(float(series[SUCCESS][0][-1]) for series in runs)
        inside = sum(math.isfinite(when) for when, _ in times)
        table.append((name, len(runs), inside, steps, seconds, last))
    print(f"| runs | n | reached {percent(args.threshold)} | steps, median | seconds, median |\n|---|---|---|---|---|")
    for name, n, inside, steps, seconds, last in table:
        when = step_label(steps) if math.isfinite(steps) else f"not within {step_label(last)}"
        print(f"| {name} | {n} | {inside} | {when} | {f'{seconds:.1f}' if math.isfinite(seconds) else '–'} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
