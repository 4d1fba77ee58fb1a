"""What a study cost: steps and what the annotator was asked, which do not change when it is run again; and time, which
does.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bkrl.report.groups import Trained
from bkrl.report.model import Cost, Time
from bkrl.runs.provenance import STAGES, Chain, Node, paid_once
from bkrl.stats.curves import Series, series_of

_LOOPS = ("collect", "train-rs")
_STEPPED = (*_LOOPS, "label", "train-rm")


def _at_work(chain: Chain) -> Iterator[tuple[str, list[Node]]]:
    """The stages that have runs, with them; reports cost nothing."""
    for stage in STAGES:
        nodes = paid_once(node for node in chain.of(stage) if node.run is not None and not _repeats(chain, node))
        if nodes and stage != "report":
            yield stage, nodes


def _repeats(chain: Chain, node: Node) -> bool:
    """Whether a label run of an earlier version only joins what its parts, which are here too, were answered."""
    shards = [link for link in node.links if link.name != "dataset"] if "merged" in node.facts else []
    return bool(shards) and all(link.found is not None and chain.nodes[link.found].sound for link in shards)


def _usages(nodes: Sequence[Node]) -> list[dict[str, Any]]:
    """What annotators were asked, of each run that asked: for labels, while it trained, or for a potential's advice."""
    told = [node.facts.get("training", {}).get("advice") or {} for node in nodes]
    found = [node.facts.get("usage", one.get("asked", {}).get("usage")) for node, one in zip(nodes, told, strict=True)]
    return [usage for usage in found if isinstance(usage, dict)]


def _usage(nodes: Sequence[Node]) -> Counter[str]:
    """The sum over runs, empty where none of them asked; figures that are not known count as nothing."""
    found: Counter[str] = Counter()
    for usage in _usages(nodes):
        found.update({key: value for key, value in usage.items() if isinstance(value, int | float)})
    return found


def costs(chain: Chain) -> list[Cost]:
    """One line a stage: runs, environment steps, requests, tokens and money."""
    rows = []
    for stage, nodes in _at_work(chain):
        usage = _usage(nodes)
        rows.append(
            Cost(
                stage=stage,
                runs=len(nodes),
                steps=sum(node.steps for node in nodes if stage in _STEPPED) or None,
                requests=usage["requests"] if usage else None,
                tokens=usage["prompt_tokens"] + usage["completion_tokens"] if usage else None,
                money=_money(nodes) if usage else None,
            )
        )
    return rows


def _money(nodes: Sequence[Node]) -> float | None:
    """US dollars over all runs that asked; None where the price of one annotator is not known."""
    usages = _usages(nodes)
    if any(one.get("cost_usd") is None and one.get("prompt_tokens", 0) not in (0, None) for one in usages):
        return None
    return float(sum(one.get("cost_usd") or 0.0 for one in usages))


def timings(chain: Chain, trained: Sequence[Trained]) -> list[Time]:
    """Seconds of the loops of each stage that kept a clock, and requests that were sent now rather than found in the
    store: kept apart from every table that is the same each time.
    """
    known = {run.key: run.series for run in trained}
    rows = []
    for stage, nodes in _at_work(chain):
        usage, seconds = _usage(nodes), 0.0
        for node in nodes:
            if stage in _LOOPS and node.sound and node.run is not None:
                seconds += loop_seconds(known.get(node.key) or series_of(node.run.metrics()))
        sent, cached = (usage[name] if usage else None for name in ("sent", "cached"))
        rows.append(Time(stage, round(seconds, 1) or None, sent, cached))
    return rows


def loop_seconds(series: Mapping[str, Series]) -> float:
    """Time of a loop: every clock in the metrics, except the speed."""
    clocks = [values for key, (_, values) in series.items() if key.startswith("time/") and key != "time/sps"]
    return float(sum(np.nansum(values) for values in clocks))
