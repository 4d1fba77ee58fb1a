"""Frozen policies on the page: each evaluation, and success over seeds for each method and world."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bkrl.core.seeds import generator
from bkrl.report.comparison import share
from bkrl.report.groups import BASELINE, Group
from bkrl.report.pages.lineage import anchor
from bkrl.report.provenance import Chain, Node
from bkrl.report.tables import interval_values
from bkrl.stats.intervals import centre_interval


def labels_of(groups: Sequence[Group]) -> dict[str, str]:
    """Key of a training run → label of its method in the tables."""
    return {run.key: group.label for group in groups for run in group.runs}


def about(chain: Chain, node: Node, labels: Mapping[str, str]) -> dict[str, str]:
    """Whose evaluation this is: method (as the tables name it, where its training run is on the page), seed, world."""
    policy = chain.input(node, "policy")
    alg = str(node.facts.get("alg") or (policy.facts.get("alg") if policy else "") or "?")
    label = labels.get(policy.key, "") if policy else ""
    seed = policy.config.get("seed", "?") if policy else "?"
    env = str(node.facts.get("env_id", "?"))
    return {"alg": label or alg, "seed": str(seed), "env": env, "anchor": anchor(node.key)}


def evaluation(chain: Chain, node: Node, labels: Mapping[str, str]) -> list[dict[str, Any]]:
    """One row for each mode of an evaluate run."""
    whose = about(chain, node, labels)
    policy = chain.input(node, "policy")
    trained_in = str(policy.facts.get("env_id", "")) if policy else ""
    rows = []
    modes = node.facts.get("modes", {})
    for mode, scores in modes.items() if isinstance(modes, dict) else ():
        rate = scores.get("success_rate", {})
        rows.append(
            whose
            | {
                "policy": policy.key if policy else node.key,
                "mode": str(mode),
                "elsewhere": trained_in if trained_in and trained_in != whose["env"] else "",
                "episodes": node.facts.get("episodes"),
                "success": rate.get("mean"),
                "low": rate.get("low"),
                "high": rate.get("high"),
                "return": scores.get("return", {}).get("mean"),
                "length": scores.get("length", {}).get("mean"),
            }
        )
    return rows


def evaluated(evaluations: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Frozen policies by world and method, plain PPO first: success over seeds in each mode.

    A policy that was evaluated several times counts once, with its mean.
    """
    groups: dict[tuple[str, bool, str, str], dict[str, dict[str, list[float]]]] = {}
    for row in evaluations:
        if isinstance(row["success"], float | int):
            key = (row["env"], row["alg"] != BASELINE, row["alg"], row["elsewhere"])
            policies = groups.setdefault(key, {}).setdefault(row["mode"], {})
            policies.setdefault(row["policy"], []).append(float(row["success"]))
    rows = []
    for (env, _, alg, elsewhere), modes in sorted(groups.items()):
        shown = {"env": env, "alg": alg, "elsewhere": elsewhere, "n": max(map(len, modes.values()))}
        for mode, policies in modes.items():
            rng = generator(0, "report", "evaluated", env, alg, mode)
            rates = np.array([np.mean(again) for again in policies.values()])
            shown[mode] = interval_values(share(centre_interval(rates, rng)))
        rows.append(shown)
    return rows
