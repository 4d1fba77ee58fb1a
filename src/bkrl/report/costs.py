"""What a study cost: steps and what the annotator was asked, which do not change when it is run again; and time, which
does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from bkrl.report.groups import Trained
from bkrl.report.provenance import STAGES, Chain, Node
from bkrl.stats.curves import series_of


def _at_work(chain: Chain) -> Iterator[tuple[str, list[Node]]]:
    """The stages that have runs, with them; reports cost nothing."""
    for stage in STAGES:
        nodes = [node for node in chain.of(stage) if node.run is not None and not _repeats(chain, node)]
        if nodes and stage != "report":
            yield stage, nodes


def _repeats(chain: Chain, node: Node) -> bool:
    """Whether a label run only joins what its shards, which are here too, were answered."""
    shards = [link for link in node.links if link.name != "dataset"] if "merged" in node.facts else []
    return bool(shards) and all(link.found is not None and chain.nodes[link.found].sound for link in shards)


def costs(chain: Chain) -> list[dict[str, Any]]:
    """One line a stage: runs, environment steps, requests, tokens and money."""
    rows = []
    for stage, nodes in _at_work(chain):
        usage: Counter[str] = Counter()
        for node in nodes:
            found = node.facts.get("usage", {})
            numbers = {k: v for k, v in found.items() if isinstance(v, int | float)} if isinstance(found, dict) else {}
            usage.update(numbers)
        asked = stage == "label"
        steps = [node.facts.get("steps") for node in nodes] if stage in ("collect", "train-rs") else []
        rows.append(
            {
                "stage": stage,
                "runs": len(nodes),
                "steps": sum(s for s in steps if isinstance(s, int)) or None,
                "requests": usage["requests"] if asked else None,
                "tokens": usage["prompt_tokens"] + usage["completion_tokens"] if asked else None,
                "money": _money(nodes) if asked else None,
            }
        )
    return rows


def _money(nodes: Sequence[Node]) -> float | None:
    """US dollars over all label runs; None where one of them asked somebody whose price is not known."""
    known = [node.facts.get("usage", {}).get("cost_usd") for node in nodes]
    free = [node.facts.get("usage", {}).get("prompt_tokens", 0) in (0, None) for node in nodes]
    if any(cost is None and not nothing for cost, nothing in zip(known, free, strict=True)):
        return None
    return float(sum(cost or 0.0 for cost in known))


def timings(chain: Chain, trained: Sequence[Trained]) -> list[dict[str, Any]]:
    """Seconds of the loops of each stage that kept a clock, and requests that were sent now rather than found in the
    store: kept apart from every table that is the same each time.
    """
    by_key = {run.key: run for run in trained}
    rows = []
    for stage, nodes in _at_work(chain):
        seconds = 0.0
        for node in nodes:
            if stage in ("collect", "train-rs") and node.sound and node.run is not None:
                series = by_key[node.key].series if node.key in by_key else series_of(node.run.metrics())
                seconds += _seconds(series)
        usage: Counter[str] = Counter()
        for node in nodes:
            found = node.facts.get("usage", {})
            usage.update({k: found.get(k) or 0 for k in ("sent", "cached")} if isinstance(found, dict) else {})
        asked = stage == "label"
        rows.append(
            {
                "stage": stage,
                "seconds": round(seconds, 1) or None,
                "sent": usage["sent"] if asked else None,
                "cached": usage["cached"] if asked else None,
            }
        )
    return rows


def _seconds(series: Any) -> float:
    """Time of a loop: every clock in the metrics, except the speed."""
    clocks = [values for key, (_, values) in series.items() if key.startswith("time/") and key != "time/sps"]
    return float(sum(np.nansum(values) for values in clocks))
