"""Goals on the page: how good those were that were suggested, and how much the policies achieved by them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from bkrl.report.groups import Group
from bkrl.report.model import GoalRow
from bkrl.report.plots.draw import Point
from bkrl.runs.provenance import Chain, Node
from bkrl.stats.intervals import t_interval

QUALITIES = ("good", "bad_timing", "nonsense", "impossible")


def goal_rows(chain: Chain, evaluated: Sequence[Node], groups: Sequence[Group]) -> list[GoalRow]:
    """A row for each method in an env where somebody's goals were judged; those without goals stand there, too.

    Args:
        chain: of the report.
        evaluated: the evaluate runs; those in the env of the training count, by sampled actions where there are any.
        groups: of the training runs.
    """
    achieved: dict[str, list[float]] = {}
    for node in evaluated:
        policy, modes = chain.input(node, "policy"), node.facts.get("modes", {})
        scores = modes.get("sampled") or modes.get("greedy") or {} if isinstance(modes, Mapping) else {}
        if policy is not None and "unlocked" in scores and policy.facts.get("env_id") == node.facts.get("env_id"):
            achieved.setdefault(policy.key, []).append(sum(scores["unlocked"].values()))
    rows = []
    for group in groups:
        runs = [run.key for run in group.runs if run.key in achieved]
        if not runs:
            continue
        judged = [shares for key in runs if (shares := _suggested(chain.nodes[key]))]
        quality = {name: t_interval(np.array([one[name] for one in judged])) for name in QUALITIES} if judged else {}
        found = t_interval(np.array([np.mean(achieved[key]) for key in runs]))
        rows.append(GoalRow(group.runs[0].env, group.name, len(runs), quality, found))
    judged_in = {row.env for row in rows if row.quality}
    return [row for row in rows if row.env in judged_in]


def _suggested(node: Node) -> Mapping[str, float]:
    """The shares of what was suggested in a training run; {} where nobody suggested anything, or nobody judged it."""
    shares: Mapping[str, float] = node.facts.get("goals", {}).get("quality", {}).get("suggested", {})
    return shares if set(shares) == set(QUALITIES) and any(shares.values()) else {}


def points(rows: Sequence[GoalRow]) -> list[Point]:
    """Share of good goals against achievements; methods without goals are lines across, by their achievements alone.

    Methods on one spot are one point with all their names: the same n and share, achievements less than 1 % apart.
    """
    found: list[Point] = []
    for row in rows:
        one = Point(row.method, row.n, row.quality["good"] if row.quality else None, row.achievements)
        same = next((i for i, other in enumerate(found) if _on_one_spot(one, other)), None)
        if same is None:
            found.append(one)
        else:
            found[same] = replace(found[same], label=f"{found[same].label} and {one.label}")
    return found


def _on_one_spot(one: Point, other: Point) -> bool:
    if one.x is None or other.x is None or one.n != other.n:
        return False
    y, height = one.y.estimate, other.y.estimate
    return abs(one.x.estimate - other.x.estimate) < 0.001 and abs(y - height) < 0.01 * max(y, height)
