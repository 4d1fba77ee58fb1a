"""The page as plain values: what the template shows, and nothing it would have to compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from bkrl.core.errors import BkrlError
from bkrl.report import findings as words
from bkrl.report.comparison import Comparison, Row
from bkrl.report.costs import costs, timings
from bkrl.report.evaluations import about, evaluated, evaluation, labels_of
from bkrl.report.forms import forms_of
from bkrl.report.groups import Trained, short_world
from bkrl.report.pages import samples
from bkrl.report.pages.labels import quality_section
from bkrl.report.pages.lineage import anchor, node_values, software, tree
from bkrl.report.pages.potential import STAGE as WORTH
from bkrl.report.pages.potential import section
from bkrl.report.plots.figures import figures_of, styles_of
from bkrl.report.provenance import STAGES, Chain, Node
from bkrl.report.tables import row_values

MOST_DRAWN = 6
RESULTS_FORMAT = 2
"""Of results.json: 2 since verdicts follow the adjusted test."""


def build(
    *,
    title: str,
    identity: str,
    threshold: float,
    chain: Chain,
    trained: Sequence[Trained],
    comparisons: Sequence[Comparison],
    evaluations: Sequence[Node],
    problems: Sequence[str],
    worlds: Mapping[str, Mapping[str, str]],
) -> dict[str, Any]:
    """All values of the template `report.html`. `worlds`: env id → rules and solved, in words, where known."""
    labels = [samples.labels(chain, node) | {"quality_table": _quality(node)} for node in chain.of("label")]
    rules = any(label["llm"] == "rules" or "not a language model" in label["annotator"] for label in labels)
    usual = software(chain)
    names = labels_of([row.group for comparison in comparisons for row in comparison.rows])
    captions = {node.key: about(chain, node, names) for node in evaluations}
    kinds = [(captions[node.key]["alg"], captions[node.key]["env"]) for node in evaluations]
    agents, skipped = samples.agents(evaluations, kinds)
    rows = [row for node in evaluations for row in evaluation(chain, node, names)]
    return {
        "title": title,
        "identity": identity,
        "threshold": threshold,
        "headline": words.headline(comparisons),
        "meta": _meta(chain, trained),
        "findings": [
            {"tone": f.tone, "word": words.TONES[f.tone], "text": f.text, "worlds": ", ".join(f.worlds)}
            for f in words.findings(comparisons, threshold, rules, problems)
        ],
        "glance": _glance(comparisons) if len(comparisons) > 1 else None,
        "worlds": [_world(i, comparison, threshold, worlds) for i, comparison in enumerate(comparisons)],
        "evaluations": rows,
        "evaluated": evaluated(rows),
        "agents": [agent | captions[agent["key"]] for agent in agents],
        "agents_skipped": skipped,
        "labels": [label | {"anchor": anchor(label["key"])} for label in labels],
        "potentials": _potentials(chain),
        "worths": [
            {"key": node.key, "anchor": anchor(node.key), "body": section(node.run.path)}
            for node in chain.of(WORTH)
            if node.sound and node.run is not None
        ],
        "forms": forms_of(trained),
        "costs": costs(chain),
        "timings": timings(chain, trained),
        "software": usual,
        "tree": tree(chain),
        "stages": [
            {"name": stage, "nodes": [node_values(node, usual) for node in chain.of(stage)]}
            for stage in (*STAGES, WORTH, "?")
            if chain.of(stage)
        ],
    }


def results(values: Mapping[str, Any], problems: Sequence[str]) -> dict[str, Any]:
    """The numbers of the page for other programs: no clock, path or hash among them, so that the same study run again
    gives the same bytes.
    """
    return {
        "format": RESULTS_FORMAT,
        "title": values["title"],
        "headline": values["headline"],
        "findings": values["findings"],
        "problems": list(problems),
        "threshold": values["threshold"],
        "worlds": [
            {key: world[key] for key in ("env", "solved", "rules", "horizon", "rows")}
            | {
                "curves": [
                    {"metric": f["title"], "panel": f["panel"], "lines": [one["label"] for one in f["legend"]]}
                    | {"bands": f["data"]["bands"]}
                    for f in world["figures"]
                ]
            }
            for world in values["worlds"]
        ],
        "forms": values["forms"],
        "evaluated": values["evaluated"],
        "evaluations": [
            {key: value for key, value in row.items() if key not in ("anchor", "policy")}
            for row in values["evaluations"]
        ],
        "costs": values["costs"],
    }


def _quality(node: Node) -> Markup:
    """Label quality as a table; empty where a run from before has other figures, which are then shown as they are."""
    if node.run is None or not node.sound:
        return Markup("")
    try:
        return quality_section(node.run)
    except (BkrlError, KeyError, TypeError, ValueError):
        return Markup("")


def _potentials(chain: Chain) -> list[dict[str, Any]]:
    """All potentials, real ones first; strips are drawn for the first few of these, controls have curves of Φ alone."""
    nodes = sorted(chain.of("train-rm"), key=lambda node: node.facts.get("control", "none") != "none")
    real = [node.key for node in nodes if node.facts.get("control", "none") == "none"][:MOST_DRAWN]
    return [samples.potential(chain, node, node.key in real) | {"anchor": anchor(node.key)} for node in nodes]


def _meta(chain: Chain, trained: Sequence[Trained]) -> str:
    seeds = sorted({run.seed for run in trained})
    envs = {run.env for run in trained}
    parts = [
        _count(len(trained), "training run"),
        _count(len(envs), "world"),
        f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds[:12]))}{' …' if len(seeds) > 12 else ''}"
        if seeds
        else "",
        _count(len(chain.nodes), "run") + " in the chain",
    ]
    return " · ".join(part for part in parts if part)


def _count(n: int, word: str) -> str:
    return f"{n:,} {word}{'' if n == 1 else 's'}"


def _glance(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """Every method in every world in one table: the ratio of steps and what may be said of it."""
    rows: dict[str, tuple[Row, dict[str, Row]]] = {}
    for comparison in comparisons:
        for row in comparison.rows:
            if not row.group.is_baseline:
                rows.setdefault(row.group.label, (row, {}))[1][comparison.env] = row
    ordered = sorted(rows.items(), key=lambda item: (item[1][0].group.is_control, item[0]))
    return {
        "worlds": [
            {"name": short_world(comparison.env), "anchor": f"world-{i}"} for i, comparison in enumerate(comparisons)
        ],
        "rows": [
            {
                "legend": first.group.legend,
                "control": first.group.is_control,
                "cells": [_cell(found.get(comparison.env)) for comparison in comparisons],
            }
            for _, (first, found) in ordered
        ],
    }


def _cell(row: Row | None) -> dict[str, Any]:
    if row is None or row.against is None:
        return {"text": "", "tone": "open", "verdict": "", "low": None, "high": None}
    found, ratio = row.against.verdict, row.ratio
    low, high = (ratio.ratio.low, ratio.ratio.high) if ratio is not None and ratio.ratio.known else (None, None)
    return {
        "text": "–" if ratio is None else words.ratio_text(ratio),
        "tone": words.TONE_OF[found.sign],
        "verdict": found.words,
        "low": low,
        "high": high,
    }


def _world(
    number: int, comparison: Comparison, threshold: float, worlds: Mapping[str, Mapping[str, str]]
) -> dict[str, Any]:
    facts = worlds.get(comparison.env, {})
    styles = styles_of([row.group for row in comparison.rows])
    looks = [styles[row.group.label] for row in comparison.rows]
    rows = [
        row_values(row) | {"slot": look.slot, "dash": look.dash}
        for row, look in zip(comparison.rows, looks, strict=True)
    ]
    return {
        "env": comparison.env,
        "anchor": f"world-{number}",
        "rules": facts.get("rules", ""),
        "solved": facts.get("solved", ""),
        "horizon": comparison.horizon,
        "figures": figures_of(number, comparison, threshold),
        "rows": rows,
        "doubts": [row.group.doubt for row in comparison.rows if row.group.doubt],
        "tested": [row for row in rows if row["versus"]],
        "splits": [row["split"] for row in rows if row["split"]],
        "collected": [row for row in rows if row["with_collection"] is not None],
        "compared": comparison.baseline is not None and len(comparison.rows) > 1,
    }
