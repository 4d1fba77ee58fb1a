"""Tables of results/ that no report makes, as Markdown on stdout: nothing in them is typed.

python results/tables.py times RUN … [--threshold 0.9]     # how soon agents succeed, in steps of their own
python results/tables.py levels RUN … --at STEPS …         # success of each agent in each env after so many steps
python results/tables.py conditions RUN …                  # `evaluate --conditions`, a row for each agent and condition
python results/tables.py answers LABEL …                   # label runs: how good answers are, before anything is made of them
python results/tables.py potentials RM …                    # train-rm runs: what came of labels, before anything is trained with them
python results/tables.py ends RUN … [--measure NAME]       # the last evaluation of a study's entries, a column for each env
python results/tables.py score RUN … [--last STEPS]        # Crafter's score over the episodes of training, or of the last of them
python results/tables.py goals EVAL … [--against ENTRY]     # who suggested goals, how good they were, and what was achieved

A report compares methods at equal env steps. A clone's steps are recorded actions, so its rows stand in `times`. RUN is
a train-rs run, in `conditions` and `goals` an evaluate run, in `answers` a label run and in `potentials` a train-rm run.
Runs of one env and one agent are one row of `times` and one cell of `levels`.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bkrl.core.errors import BkrlError, InputError
from bkrl.core.reporter import percent
from bkrl.inspect.report import report_of
from bkrl.report.costs import loop_seconds
from bkrl.runs.record import Run
from bkrl.stats.curves import series_of
from bkrl.stats.intervals import t_interval
from bkrl.stats.scores import geometric_score


def times(runs: Sequence[Run], threshold: float) -> list[str]:
    """One row for each env and agent: when it first succeeded in so many episodes, and how often at the end.

    Raises:
        InputError: a run was never evaluated.
    """
    rows: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        rows.setdefault((str(run.facts["env_id"]), _agent(run)), []).append(run)
    reached = f"steps to {percent(threshold)}: median (range)"
    lines = _head(["level", "agent", "n", "trained for", "seconds", reached, "reached", "success at the end"])
    for (env, agent), group in rows.items():
        curves = [_curve(run) for run in group]
        first = sorted(found[0] for curve in curves if (found := [step for step, rate in curve if rate >= threshold]))
        # A median of runs some of which never got there is known while those are fewer than half.
        ordered = [*first, *[None] * (len(group) - len(first))]
        middle = ordered[(len(ordered) - 1) // 2 : len(ordered) // 2 + 1]
        known = (
            "not reached" if None in middle else f"{statistics.median(one for one in middle if one is not None):,.0f}"
        )
        spread = f" ({first[0]:,} to {first[-1]:,})" if first and len(first) == len(group) > 1 else ""
        end = _share([curve[-1][1] for curve in curves])
        seconds = statistics.median(loop_seconds(series_of(run.metrics())) for run in group)
        trained = f"{max(curve[-1][0] for curve in curves):,}"
        cells = [f"`{env}`", agent, str(len(group)), trained, f"{seconds:.0f}", known + spread]
        lines.append(_line([*cells, f"{len(first)} of {len(group)}", end]))
    return lines


def levels(runs: Sequence[Run], at: Sequence[int]) -> list[str]:
    """One row for each env, a column for each agent: success in the last evaluation up to each of the steps `at`, of the
    runs that went so far.

    Raises:
        InputError: a run was never evaluated.
    """
    curves: dict[tuple[str, str], list[list[tuple[int, float]]]] = {}
    for run in runs:
        curves.setdefault((str(run.facts["env_id"]), _agent(run)), []).append(_curve(run))
    envs, agents = (list(dict.fromkeys(names)) for names in zip(*curves, strict=True))
    lines = _head(["level", *agents])
    for env in envs:
        cells = []
        for agent in agents:
            group = curves.get((env, agent), [])
            found = [
                [[rate for step, rate in curve if step <= steps][-1] for curve in group if curve[-1][0] >= steps]
                for steps in at
            ]
            cells.append(
                "; ".join(_share(one) + (f", n = {len(one)}" if len(one) > 1 else "") if one else "–" for one in found)
            )
        lines.append(_line([f"`{env}`", *cells]))
    return lines


def conditions(runs: Sequence[Run]) -> list[str]:
    """The tables of evaluations, one below the other; rows that stand there already, as those of the bot, once.

    Raises:
        InputError: a run was evaluated in no conditions.
    """
    lines: list[str] = []
    for run in runs:
        table: dict[str, Any] = run.facts.get("table") or {}
        if "conditions" not in run.facts or not table:
            raise InputError(
                f"{run.path} is no evaluation in conditions; `bkrl evaluate RUN --conditions …` makes one."
            )
        lines += [one for one in [*_head(table["header"]), *map(_line, table["rows"])] if one not in lines]
    return lines


def ends(runs: Sequence[Run], measure: str) -> list[str]:
    """One row for each entry of a study, by the name it has there: a share of the last evaluation in each env (mean,
    95 % interval of Student's t, n), and the share of right answers of whoever set its goals, balanced over right and
    wrong places.

    Raises:
        InputError: a run was never evaluated so.
    """
    rows: dict[str, list[Run]] = {}
    for run in runs:
        rows.setdefault(re.sub(r"-s\d+$", "", run.path.name), []).append(run)
    envs = list(dict.fromkeys(str(run.facts["env_id"]) for run in runs))
    lines = _head(["entry", *(f"`{env}`" for env in envs), "answers, balanced"])
    for name, group in rows.items():
        cells = []
        for env in envs:
            found = [_curve(run, measure)[-1][1] for run in group if run.facts["env_id"] == env]
            cells.append(f"{_share(found)}, n = {len(found)}" if found else "–")
        told = [run.facts.get("goals", {}).get("answers", {}).get("balanced") for run in group]
        known = [one for one in told if one is not None]
        lines.append(_line([name, *cells, f"{statistics.mean(known):.2f}" if known else "–"]))
    return lines


def score(runs: Sequence[Run], last: int) -> list[str]:
    """One row for each agent: Crafter's score over the episodes of training (mean, 95 % interval of Student's t over runs),
    as its paper defines it, of the last steps alone if `last` is not 0, and in how many of 100 episodes each achievement was unlocked.

    Raises:
        InputError: a run's env has no achievements, or it was trained before they were recorded.
    """
    lead = "rollout/unlocked/"
    groups: dict[str, list[Any]] = {}
    for run in runs:
        rows = [row for row in run.metrics() if row.get("rollout/episodes") and f"{lead}collect_coal" in row]
        if not rows:
            raise InputError(f"{run.path} records no achievements of Crafter while it trained.")
        names = [name for name in rows[0] if name.startswith(lead)]
        kept = [row for row in rows if not last or row["step"] > rows[-1]["step"] - last]
        table = np.array([[row[name] for name in names] for row in kept])
        rates = np.average(table, 0, [row["rollout/episodes"] for row in kept])
        groups.setdefault(_agent(run), []).append((rates, loop_seconds(series_of(run.metrics())), names))
    lines = _head(["agent", "n", "score by seed, %", "mean", "minutes", "achievements in 100 episodes"])
    for agent, found in groups.items():
        scores = [float(geometric_score(rates)) for rates, _, _ in found]
        shares = 100 * np.mean([rates for rates, _, _ in found], 0)
        told = ", ".join(
            f"{name.removeprefix(lead)} {share:.1f}" for name, share in zip(found[0][2], shares, strict=True)
        )
        minutes = ", ".join(f"{seconds / 60:.0f}" for _, seconds, _ in found)
        lines.append(
            _line(
                [
                    agent,
                    str(len(found)),
                    ", ".join(f"{100 * one:.1f}" for one in scores),
                    _points(scores),
                    minutes,
                    told,
                ]
            )
        )
    return lines


def _points(found: Sequence[float]) -> str:
    """As `_share`, to a tenth of a percent."""
    mean = t_interval(np.array(found))
    spread = f" ({100 * mean.low:.1f} to {100 * mean.high:.1f})" if mean.known else ""
    return f"{100 * mean.estimate:.1f} %{spread}"


def answers(runs: Sequence[Run]) -> list[str]:
    """One row for each label run: who answered what, at what cost, and how often as the rules annotator and as exact
    values say (95 % intervals, n; "–" where it was not compared).
    """
    lines = _head(["env", "kind", "annotator", "questions", "tokens", "as the rules say", "as exact values say"])
    for run in runs:
        quality, used = run.facts.get("quality", {}), run.facts.get("usage", {})
        tokens = used.get("prompt_tokens", 0) + used.get("completion_tokens", 0)
        found = [quality.get(name) for name in ("agreement_with_rules", "exact_accuracy")]
        rates = [
            f"{_rate(one['rate'], one['low'], one['high'])}, n = {one['n']}" if one and one["n"] else "–"
            for one in found
        ]
        who = str(run.facts.get("llm")).removeprefix("local:").removeprefix("replay:sample:")
        cells = [f"`{run.facts['env_id']}`", str(run.facts["variant"]), f"`{who}`", f"{used.get('requests', 0):,}"]
        lines.append(_line([*cells, f"{tokens:,}" if tokens else "–", *rates]))
    return lines


def potentials(runs: Sequence[Run]) -> list[str]:
    """One row for each potential: what its labels still say, what its network learnt of them, and where Φ is high
    (95 % intervals; "–" where it was not measured).
    """
    header = ["annotator", "control", "labels kept", "pairs", "unseen pairs in order", "ends in success above"]
    lines = _head([*header, "moments before success above", "env"])
    for run in runs:
        trained, report = run.facts["training"], report_of(run) or {}
        above, ordering = report.get("segments") or {}, report.get("ordering")
        who = str(run.facts.get("llm")).removeprefix("local:").removeprefix("replay:sample:")
        pairs = sum(trained.get(f"pairs_{part}", 0) for part in ("train", "validation", "test"))
        kept = percent(trained["labels_kept"]) if "labels_kept" in trained else "all"
        cells = [f"`{who}`", run.facts["control"], kept, f"{pairs:,}"]
        cells.append(_rate(trained.get("accuracy"), trained.get("accuracy_low"), trained.get("accuracy_high")))
        cells.append("–" if ordering is None else percent(ordering))
        cells += [_rate(above.get("above"), above.get("low"), above.get("high")), f"`{run.facts['env_id']}`"]
        lines.append(_line(cells))
    return lines


def goals(runs: Sequence[Run], against: str) -> list[str]:
    """One row for each entry of a study, by the name it has there: the shares of its suggestions that were sensible and
    badly timed, and how well its scores tell sensible deeds from others; achievements in an episode (mean over seeds,
    95 % interval of Student's t), the paired difference from an entry, and in how many episodes some are unlocked.
    """
    shown = ("make_wood_pickaxe", "make_wood_sword", "collect_stone", "collect_drink")
    rows: dict[str, dict[int, Run]] = {}
    for run in runs:
        found = re.fullmatch(r"(?:eval-)?(.+)-s(\d+)", run.path.name)
        if found is None:
            raise InputError(
                f"{run.path} has no name of a study's run, such as eval-ENTRY-s1, so its entry is not known."
            )
        if (other := rows.setdefault(found[1], {}).setdefault(int(found[2]), run)) is not run:
            raise InputError(f"{other.path} and {run.path} are of one entry and seed; name the runs of one section.")
    if against and against not in rows:
        raise InputError(f"No run is of the entry {against}; name one of {', '.join(rows)}, or leave --against out.")

    def end(run: Run, name: str) -> float:
        modes = run.facts["modes"]["sampled"]
        return float(modes["unlocked"][name] if name in modes["unlocked"] else modes[name]["mean"])

    header = ["entry", "n", "sensible", "badly timed", "AUC", "achievements", *([f"less {against}"] * bool(against))]
    lines = _head([*header, "steps", *(name.replace("_", " ") for name in shown)])
    for name, group in rows.items():
        told = [Run.open(Path(run.facts["policy"]), "train-rs").facts.get("goals", {}) for run in group.values()]
        cells = [name, str(len(group))]
        for kind in ("good", "bad_timing"):
            found = [one["quality"]["suggested"][kind] for one in told if one.get("quality")]
            cells.append(percent(statistics.mean(found)) if found else "–")
        areas = [one["goal_auc"]["value"] for one in told if one.get("goal_auc")]
        cells.append(f"{statistics.mean(areas):.2f}" if areas else "–")
        cells.append(_spread([end(run, "achievements") for run in group.values()]))
        if against:
            other = rows[against]
            pairs = [end(group[s], "achievements") - end(other[s], "achievements") for s in group if s in other]
            cells.append("–" if name == against or not pairs else _spread(pairs))
        cells.append(f"{statistics.mean(end(run, 'length') for run in group.values()):.0f}")
        lines.append(_line([*cells, *(percent(statistics.mean(end(r, one) for r in group.values())) for one in shown)]))
    return lines


def _spread(found: Sequence[float]) -> str:
    """A mean and half of its interval."""
    mean = t_interval(np.array(found))
    return f"{mean.estimate:.2f}" + (f" ± {(mean.high - mean.low) / 2:.2f}" if mean.known else "")


def _rate(rate: float | None, low: float | None, high: float | None) -> str:
    return (
        "–" if rate is None or low is None or high is None else f"{percent(rate)} ({100 * low:.0f} to {100 * high:.0f})"
    )


def _share(found: Sequence[float]) -> str:
    """The mean of a share, with its interval where one is known."""
    mean = t_interval(np.array(found))
    spread = f" ({100 * max(mean.low, 0):.0f} to {100 * min(mean.high, 1):.0f})" if mean.known else ""
    return percent(mean.estimate) + spread


def _agent(run: Run) -> str:
    settings, facts = run.config["config"], run.facts
    words = [str(settings["alg"])]
    words += [f"--network {settings['network']}"] if settings.get("network", "compact") != "compact" else []
    shown = facts.get("samples_train", 0) + facts.get("samples_held_out", 0)
    of = f", {shown:,} recorded actions" if shown else ""
    return f"`{' '.join(words)}`{of}" + (", after cloning" if settings.get("init_from") else "")


def _curve(run: Run, measure: str = "success_rate") -> list[tuple[int, float]]:
    found = [(row["step"], row[key]) for row in run.metrics() if (key := f"eval/{measure}") in row]
    if not found:
        raise InputError(f"{run.path} has no {measure} of an evaluation while it trained.")
    return found


def _head(cells: Sequence[str]) -> list[str]:
    return [_line(cells), "|" + "---|" * len(cells)]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def main() -> int:
    """The command; its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "table", choices=["times", "levels", "conditions", "answers", "potentials", "ends", "score", "goals"]
    )
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--threshold", type=float, default=0.9, help="share of episodes that succeed (0.9)")
    parser.add_argument("--at", type=int, nargs="*", default=[], help="steps after which `levels` shows success")
    parser.add_argument("--measure", default="success_rate", help="of evaluations, for `ends` (success_rate)")
    parser.add_argument("--last", type=int, default=0, help="steps at the end that `score` reads alone; 0: all")
    parser.add_argument("--against", default="", help="an entry whose achievements `goals` takes off, seed by seed")
    given = parser.parse_args()
    if given.table == "levels" and not given.at:
        parser.error("levels needs --at: the steps after which success is shown")
    try:
        stage = {"conditions": "evaluate", "goals": "evaluate", "answers": "label", "potentials": "train-rm"}.get(
            given.table, "train-rs"
        )
        runs = [Run.open(path, stage) for path in given.runs]
        tables = {
            "times": lambda: times(runs, given.threshold),
            "levels": lambda: levels(runs, given.at),
            "conditions": lambda: conditions(runs),
            "answers": lambda: answers(runs),
            "potentials": lambda: potentials(runs),
            "goals": lambda: goals(runs, given.against),
            "ends": lambda: ends(runs, given.measure),
            "score": lambda: score(runs, given.last),
        }
        lines = tables[given.table]()
    except BkrlError as problem:
        sys.stderr.write(f"{problem}\n")
        return problem.exit_code
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
