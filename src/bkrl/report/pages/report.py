"""report.html: what its template shows beside the results, and nothing that it would have to compute."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bkrl.report.comparison import Comparison
from bkrl.report.evaluations import Played
from bkrl.report.model import TONE_OF, EnvResults, ResultRow, Results, Time
from bkrl.report.pages import samples
from bkrl.report.pages.html import render
from bkrl.report.pages.potential import STAGE as WORTH
from bkrl.report.pages.potential import section
from bkrl.report.plots.figures import Figure
from bkrl.runs.provenance import STAGES, Chain, Node


@dataclass(frozen=True)
class Section:
    """One env: its results, figures, and why some of its potentials may mislead."""

    results: EnvResults
    anchor: str
    figures: Sequence[Figure]
    doubts: Sequence[str]

    @property
    def tested(self) -> list[ResultRow]:
        return [row for row in self.results.rows if row.versus]

    @property
    def collected(self) -> bool:
        return any(row.with_collection is not None or row.payback for row in self.results.rows)


def report_page(
    results: Results,
    compared: Sequence[tuple[Comparison, Sequence[Figure]]],
    chain: Chain,
    trained: int,
    played: Sequence[Played],
    timings: Sequence[Time],
    identity: str,
    stepped: Mapping[str, str],
) -> str:
    """The whole document: results.json, and what is not in it (clocks, paths, hashes, samples and pictures).

    `trained`: how many training runs it is about; `stepped`: pages beside it, by potential.
    """
    comparisons = [comparison for comparison, _ in compared]
    agents, skipped = samples.agents(chain, played)
    usual = software(chain)
    shown = {
        "identity": identity,
        "meta": _meta(chain, trained, comparisons, results.task_set),
        "sections": [
            Section(results, f"env-{i}", figures, [row.group.doubt for row in comparison.rows if row.group.doubt])
            for i, (results, (comparison, figures)) in enumerate(zip(results.envs, compared, strict=True))
        ],
        "glance": _glance(comparisons) if len(comparisons) > 1 else [],
        "evaluations": [(one.key, one.row) for one in played],
        "agents": agents,
        "agents_skipped": skipped,
        "labels": [samples.labels(node) for node in chain.of("label")],
        "potentials": samples.potentials(chain),
        "stepped": stepped,
        "worths": [(one.key, section(one.run.path)) for one in chain.of(WORTH) if one.sound and one.run is not None],
        "timings": timings,
        "software": usual,
        "stages": stages(chain, usual),
    }
    return render("report", {**vars(results), **shown})


def software(chain: Chain) -> dict[str, str]:
    """What (nearly) every run was made with; a run made with something else says so itself."""
    all_ = [_made_with(node) for node in chain.nodes.values() if node.run is not None]
    keys = sorted({key for one in all_ for key in one})
    return {key: Counter(one.get(key, "") for one in all_).most_common(1)[0][0] for key in keys}


def _made_with(node: Node) -> dict[str, str]:
    if node.run is None:
        return {}
    manifest = node.run.manifest
    code = manifest.get("code") or {}
    commit = str(code.get("commit") or "unknown")[:12] + (" with uncommitted changes" if code.get("dirty") else "")
    packages = {str(k): str(v) for k, v in (manifest.get("packages") or {}).items() if v}
    return {"code": commit, "Python": str(manifest.get("python", "?")), **packages}


def stages(chain: Chain, usual: Mapping[str, str]) -> list[tuple[str, list[tuple[Node, dict[str, str]]]]]:
    """Every run by stage, with what it was made with where most others, which `usual` names, were made with something
    else. "?" is the stage of runs that cannot be read.
    """
    named = dict.fromkeys([*STAGES, WORTH, *(node.stage for node in chain.nodes.values())])  # others are lm, "?"
    return [
        (stage, [(node, {k: v for k, v in _made_with(node).items() if usual.get(k) != v}) for node in nodes])
        for stage in named
        if (nodes := chain.of(stage))
    ]


def _meta(chain: Chain, trained: int, comparisons: Sequence[Comparison], task_set: str) -> str:
    groups = [row.group for comparison in comparisons for row in comparison.rows]
    seeds = sorted({run.seed for group in groups for run in group.runs})
    listed = f"{', '.join(map(str, seeds[:12]))}{' …' if len(seeds) > 12 else ''}"
    parts = [
        _count(trained, "training run"),
        _count(len(comparisons), "env"),
        f"seed{'s' if len(seeds) > 1 else ''} {listed}" if seeds else "",
        _count(len(chain.nodes), "run") + " in the chain",
        f"{task_set} set of tasks and seeds" if task_set else "",
    ]
    return " · ".join(part for part in parts if part)


def _count(n: int, word: str) -> str:
    return f"{n:,} {word}{'' if n == 1 else 's'}"


def _glance(comparisons: Sequence[Comparison]) -> list[dict[str, Any]]:
    """Every method in every env in one table: the ratio of steps and what may be said of it."""
    rows: dict[str, dict[str, ResultRow]] = {}
    for comparison in comparisons:
        for row in comparison.rows:
            if not row.baseline:
                rows.setdefault(row.group.name, {})[comparison.env] = row
    found = []
    for _, by_env in sorted(rows.items()):
        group = next(iter(by_env.values())).group
        cells = [_cell(by_env.get(comparison.env)) for comparison in comparisons]
        found.append({"legend": group.legend, "control": group.is_control, "cells": cells})
    return sorted(found, key=lambda line: bool(line["control"]))


def _cell(row: ResultRow | None) -> dict[str, Any]:
    """A method in an env; without a verdict where it was not trained there."""
    if row is None or row.against is None:
        return {"tone": "open", "verdict": ""}
    verdict, ratio = row.against.verdict, row.against.ratio
    text = "–" if ratio is None else ratio.text
    return {"text": text, "tone": TONE_OF[verdict.sign], "verdict": verdict.words, "ratio": ratio}
