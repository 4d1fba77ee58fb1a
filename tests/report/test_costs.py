"""What a study cost: nothing is counted twice, and nothing is left out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from bkrl.report.costs import costs
from bkrl.report.model import Cost
from bkrl.report.provenance import Chain, Link, Node
from bkrl.runs.record import Run


def label(key: str, cost: float, inputs: list[str | None] = (), **facts: Any) -> Node:  # type: ignore[assignment]
    usage = {"requests": 30, "prompt_tokens": 900, "completion_tokens": 100, "cost_usd": cost}
    run = cast(Run, SimpleNamespace(facts={"usage": usage, **facts}))
    links = [Link(name=f"shard-{i}", recorded="", sha256="", found=found, problem="") for i, found in enumerate(inputs)]
    return Node(key, "label", run, "", links=links)


def test_answers_that_are_joined_cost_once() -> None:
    parts = [label("a", 0.5), label("b", 0.25)]
    whole = label("whole", 0.75, ["a", "b"], merged=["a", "b"])
    (row,) = costs(Chain({node.key: node for node in [*parts, whole]}))
    assert row == Cost(stage="label", runs=2, steps=None, requests=60, tokens=2000, money=0.75)


def test_a_joined_labelling_counts_where_a_part_is_gone() -> None:
    whole = label("whole", 0.75, [None, None], merged=["a", "b"])
    (row,) = costs(Chain({"whole": whole}))
    assert (row.runs, row.money) == (1, 0.75)
