"""Frozen policies on the page: each evaluation, and success over seeds for each method and env."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from bkrl.core.seeds import generator
from bkrl.report.groups import Trained, is_baseline
from bkrl.report.model import Evaluated, Evaluation
from bkrl.runs.provenance import Chain, Node
from bkrl.stats.variance import Origin, nested_interval

MODES: tuple[Literal["sampled", "greedy"], ...] = ("sampled", "greedy")


@dataclass(frozen=True)
class Played:
    """One evaluation: keys of its run and of its policy's (of repeats the first), its figures, the policy's origin."""

    key: str
    policy: str
    row: Evaluation
    origin: Origin = ("", "")


def evaluations(chain: Chain, nodes: Sequence[Node], labels: Mapping[str, str], of: Sequence[Trained]) -> list[Played]:
    """The evaluate runs among `nodes`, one entry for each mode. `labels`: key of a training run → its method's label
    in the table; `of`: the training runs.
    """
    origins = {run.key: (run.dataset, run.potential) for run in of}
    first: dict[tuple[str, ...], str] = {}  # a run that repeats another, as one of a study in two folders, is that one
    same = {one.key: first.setdefault((one.env, labels[one.key], str(one.seed), one.potential), one.key) for one in of}
    found = []
    for node in nodes:
        policy = chain.input(node, "policy")
        made = policy.facts if policy else {}
        trained_in, label = made.get("env_id", ""), labels.get(policy.key, "") if policy else ""
        for env, one in _scores(node):
            row: Evaluation = {
                "alg": label or str(node.facts.get("alg") or made.get("alg") or "?"),
                "seed": str(policy.config.get("seed", "?") if policy else "?"),
                "env": env,
                "mode": str(one["mode"]),
                "elsewhere": str(trained_in) if trained_in != one["env"] else "",
                "episodes": one.get("episodes") or None,
                "success": one.get("success"),
                "low": one.get("low"),
                "high": one.get("high"),
                "return": one.get("return"),
                "length": one.get("length"),
            }
            key = policy.key if policy else node.key
            found.append(Played(node.key, same.get(key, key), row, origins.get(key, ("", ""))))
    return found


def _scores(node: Node) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The figures of each mode or condition under the names of `Evaluation`, and what stands for their env."""
    env, modes = str(node.facts.get("env_id", "?")), node.facts.get("modes", {})
    for mode, scores in modes.items() if isinstance(modes, dict) else ():
        rate = scores.get("success_rate", {})
        means = {name: scores.get(name, {}).get("mean") for name in ("return", "length")}
        about = {"env": env, "mode": mode, "episodes": node.facts.get("episodes")}
        yield env, {**about, **rate, **means, "success": rate.get("mean")}
    conditions, measure = node.facts.get("conditions", []), node.facts.get("measure", "success")
    said = "" if measure == "success" else f" ({measure}, not success)"
    for one in conditions if isinstance(conditions, list) else ():
        yield f"{one['env']}: {one['condition']}{said}", one


def evaluated(played: Sequence[Played]) -> list[Evaluated]:
    """Frozen policies by env and method, plain PPO first: success over seeds, or datasets, in each mode.

    A policy that was evaluated several times counts once, with its mean.
    """
    groups: dict[tuple[str, bool, str, str], dict[str, dict[str, list[float]]]] = {}
    for one in played:
        row, success = one.row, one.row["success"]
        if success is not None:
            key = (row["env"], not is_baseline(row["alg"]), row["alg"], row["elsewhere"])
            groups.setdefault(key, {}).setdefault(row["mode"], {}).setdefault(one.policy, []).append(success)
    rows: list[Evaluated] = []
    origins = {one.policy: one.origin for one in played}
    for (env, _, alg, elsewhere), modes in sorted(groups.items()):
        shown: Evaluated = {"env": env, "alg": alg, "elsewhere": elsewhere, "n": max(map(len, modes.values()))}
        for mode in MODES:
            if mode in modes:
                rng = generator(0, "report", "evaluated", env, alg, mode)
                rates = np.array([np.mean(again) for again in modes[mode].values()])
                shown[mode] = nested_interval(rates, [origins[policy] for policy in modes[mode]], rng).clipped()
        rows.append(shown)
    return rows
