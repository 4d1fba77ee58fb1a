"""What the page shows of labels, potentials and agents.

Everything here is text that others wrote (captions, programs): the template escapes it, nothing is trusted.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from bkrl.core.errors import BkrlError
from bkrl.core.files import read_json, read_table
from bkrl.core.reporter import percent
from bkrl.data.dataset import Dataset
from bkrl.data.schema import PROGRAMS
from bkrl.inspect.certificate import Document
from bkrl.inspect.report import Report, report_of
from bkrl.potentials import load_potential
from bkrl.report.evaluations import Played
from bkrl.report.pages.html import cut
from bkrl.report.pages.labels import quality_section
from bkrl.report.plots.strips import strips
from bkrl.runs.provenance import Chain, Node

MOST_DRAWN = 6
"""Potentials with strips."""
PROGRAM_CHARS = 20_000
GIF_BYTES, ALL_GIF_BYTES = 1_500_000, 5_000_000


@dataclass
class ShownLabels:
    """One label run: the figures of its quality, and for a program the chosen one. `bkrl label view` shows the rest."""

    node: Node
    variant: str
    problem: str
    quality_table: Markup = field(default_factory=Markup)
    program: str = ""


def labels(node: Node) -> ShownLabels:
    """One label run for the page."""
    shown = ShownLabels(node, str(node.facts.get("variant", node.config.get("variant", "?"))), node.problem)
    if node.run is None or not node.sound:
        return shown
    try:
        if shown.variant == "code":
            shown.program = _program(node)
    except BkrlError as problem:
        shown.problem = str(problem)
    with suppress(BkrlError, KeyError, TypeError, ValueError):  # earlier runs have other figures, shown as they are
        shown.quality_table = quality_section(node.run)
    return shown


def _program(node: Node) -> str:
    """The chosen program of a label run."""
    assert node.run is not None
    rows = read_table(node.run.file("programs.parquet"), PROGRAMS).to_pylist()
    chosen = [str(row["program"]) for row in rows if row["chosen"] and row["program"]]
    return cut(chosen[0], PROGRAM_CHARS) if chosen else ""


@dataclass
class ShownPotential:
    """One potential: its figures, its certificate, and strips of the first few."""

    node: Node
    problem: str
    figures: Mapping[str, Any] = field(default_factory=dict)
    certificate: Document | None = None
    strips: Sequence[Markup] = ()


def potentials(chain: Chain) -> list[ShownPotential]:
    """All potentials, real ones first; strips are drawn for the first few of these."""
    nodes = sorted(chain.of("train-rm"), key=lambda node: node.facts.get("control", "none") != "none")
    first = [node.key for node in drawn(chain)]
    return [potential(chain, node, node.key in first) for node in nodes]


def drawn(chain: Chain) -> list[Node]:
    """The first potentials that are no controls."""
    return [node for node in chain.of("train-rm") if node.facts.get("control", "none") == "none"][:MOST_DRAWN]


def potential(chain: Chain, node: Node, with_strips: bool) -> ShownPotential:
    """One potential for the page; `with_strips`: of Φ with frames and captions."""
    shown = ShownPotential(node, node.problem)
    if node.run is None or not node.sound:
        return shown
    if with_strips:
        shown.strips = _strips(chain, node)
    try:
        if (report := report_of(node.run)) is not None:
            shown.figures = _figures(report)
        if "certificate.json" in node.run.manifest["outputs"]:
            shown.certificate = read_json(node.run.file("certificate.json"), Document)
    except BkrlError as problem:
        shown.problem = str(problem)
    return shown


def _strips(chain: Chain, node: Node) -> list[Markup]:
    """Φ over a solved and a failed episode of its dataset, with frames and captions; none where either is not there as
    it was, or the potential cannot be loaded here.
    """
    source = chain.input(node, "dataset")
    if source is None or source.run is None or not source.sound or node.run is None:
        return []
    try:
        with closing(load_potential(node.run.path)) as loaded:
            # Strip.svg is ours; the texts of others in it are escaped.
            return [Markup(strip.svg()) for strip in strips(loaded, Dataset(source.run))]
    except (BkrlError, OSError):
        return []


def _figures(report: Report) -> dict[str, Any]:
    """The figures of a potential report under names that say what they are."""
    phi: Mapping[str, Any] = report.get("phi", {})
    figures = {
        "past actions it sees": report.get("horizon"),
        "windows measured": report.get("windows"),
        "raw values mapped to −1 and 0": _several(report.get("scale", {}).get(end) for end in ("lo", "hi")),
        "distinct values": report.get("levels"),
        "windows off the commonest value": _share(report.get("coverage")),
        "mean and spread of Φ": _several([phi.get("mean"), phi.get("std")]),
        "quartiles of Φ": _several(phi.get("quantiles", {}).get(q) for q in ("25", "50", "75")),
        "mean change in one step": report.get("step_change"),
        "the end of a solved episode above other windows": _share(report.get("ordering")),
        "rank correlation with time in solved episodes": report.get("progress"),
    }
    return {name: value for name, value in figures.items() if value is not None}


def _share(value: float | None) -> str | None:
    return None if value is None else percent(value, 1)


def _several(values: Iterable[float | None]) -> str | None:
    """Several numbers, or nothing where one is not known."""
    known = list(values)
    return None if None in known else ", ".join(f"{value:.3g}" for value in known)


def agents(chain: Chain, played: Sequence[Played]) -> tuple[list[dict[str, str]], int]:
    """GIFs of evaluate runs as data URIs, whose they are and where; and how many were left out.

    One for each method and env, the first recorded of its first run, sampled actions before greedy ones: the choice
    must not look for a good episode.
    """
    shown: list[dict[str, str]] = []
    seen: set[tuple[str, str]] = set()
    total = count = 0
    for key, row in {one.key: one.row for one in played}.items():
        run, kind = chain.nodes[key].run, (row["alg"], row["env"])
        names = [] if run is None else [name for name in run.manifest.get("outputs", {}) if name.endswith(".gif")]
        count += len(names)
        if kind in seen or not names or run is None:
            continue
        first = min(names, key=lambda name: ("sampled" not in name, name))
        raw = run.file(first).read_bytes()
        if len(raw) > GIF_BYTES or total + len(raw) > ALL_GIF_BYTES or not raw.startswith(b"GIF8"):
            continue
        seen.add(kind)
        total += len(raw)
        uri = "data:image/gif;base64," + base64.b64encode(raw).decode("ascii")
        shown.append({"name": first, "uri": uri, "alg": row["alg"], "seed": row["seed"], "env": row["env"]})
    return shown, count - len(shown)
