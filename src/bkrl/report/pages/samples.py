"""What the page shows of labels, potentials and agents: small samples, always the same ones.

Everything here is text that others wrote (captions, replies, programs): the template escapes it, nothing is trusted.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from bkrl.core.errors import BkrlError, InputError
from bkrl.core.files import read_json, read_table
from bkrl.core.reporter import percent
from bkrl.core.spacing import beginnings
from bkrl.data.dataset import Dataset, Segment
from bkrl.data.schema import GOALS, PREFERENCES, PROGRAMS, RESPONSES
from bkrl.inspect.certificate import Document
from bkrl.inspect.report import Example, Report, report_of
from bkrl.potentials import load_potential
from bkrl.report.evaluations import Played
from bkrl.report.pages.html import cut
from bkrl.report.pages.labels import quality_section
from bkrl.report.pages.labels_data import Row, where
from bkrl.report.plots.strips import strips
from bkrl.report.provenance import Chain, Node

PAIRS, QUERIES, CANDIDATES, GOALS_SHOWN, EXAMPLES = (2, 2, 1), 8, 40, 15, 4
"""How many are shown; of pairs: those where A is better, where B is, and ties."""
MOST_DRAWN = 6
"""Potentials with strips; others have a curve of Φ."""
REPLY_CHARS, PROGRAM_CHARS, CAPTION_CHARS, ERROR_CHARS = 4000, 20_000, 600, 300
GIF_BYTES, ALL_GIF_BYTES = 1_500_000, 5_000_000


# --- labels


@dataclass(frozen=True)
class Seen:
    """A segment: where it lies, and its (caption, action) pairs; the last has no action."""

    where: str
    steps: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Pair:
    """Two segments, the label (1: A is better), and what the annotator wrote."""

    label: float
    segments: Sequence[Seen]
    replies: Sequence[str]


@dataclass(frozen=True)
class Goal:
    """A goal, how often it was suggested, and in what share of moments."""

    goal: str
    count: int
    share: float


@dataclass
class Labels:
    """One label run; `problem` says why samples are missing. `queries`: captions with the goals suggested there."""

    node: Node
    variant: str
    problem: str
    quality_table: Markup = field(default_factory=Markup)
    pairs: Sequence[Pair] = ()
    queries: Sequence[tuple[str, Sequence[str]]] = ()
    goals: Sequence[Goal] = ()
    program: str = ""
    candidates: Sequence[Mapping[str, Any]] = ()


def labels(chain: Chain, node: Node) -> Labels:
    """One label run for the page, with samples."""
    shown = Labels(node, str(node.facts.get("variant", node.config.get("variant", "?"))), node.problem)
    if node.run is None or not node.sound:
        return shown
    try:
        if shown.variant == "pref":
            shown.pairs = _pairs(node, _dataset(chain, node))
        elif shown.variant == "goal":
            shown.queries, shown.goals = _goals(node)
        elif shown.variant == "code":
            shown.program, shown.candidates = _programs(node)
    except (BkrlError, KeyError, ValueError, IndexError, TypeError) as problem:
        shown.problem = str(problem) if isinstance(problem, BkrlError) else f"{node.key} cannot be shown: {problem!r}."
    with suppress(BkrlError, KeyError, TypeError, ValueError):  # earlier runs have other figures, shown as they are
        shown.quality_table = quality_section(node.run)
    return shown


def _dataset(chain: Chain, node: Node) -> Dataset:
    source = chain.input(node, "dataset")
    if source is None or source.run is None or not source.sound:
        raise InputError(f"The dataset of {node.key} is not there as it was, so its segments cannot be shown.")
    return Dataset(source.run)


def _pairs(node: Node, dataset: Dataset) -> list[Pair]:
    rows = [row for row in _rows(node, "preferences.parquet", PREFERENCES) if row["status"] == "labelled"]
    kinds = (
        [row for row in rows if row["label"] > 0.5],
        [row for row in rows if row["label"] < 0.5],
        [row for row in rows if row["label"] == 0.5],
    )
    chosen = [row for kind, count in zip(kinds, PAIRS, strict=True) for row in _some(kind, count)]
    replies = _replies(node, {i for row in chosen for i in row["request_ids"]})
    return [
        Pair(
            label=row["label"],
            segments=[
                _segment(dataset, Segment(row[f"{side}_episode_id"], row[f"{side}_start"], row["length"]))
                for side in ("a", "b")
            ],
            replies=[replies[i] for i in row["request_ids"] if i in replies],
        )
        for row in sorted(chosen, key=lambda row: row["pair_id"])
    ]


def _segment(dataset: Dataset, segment: Segment) -> Seen:
    rows = dataset.rows(segment)
    actions = [dataset.action_names[a] for a in dataset.actions[rows[:-1]]]
    captions = [cut(dataset.caption(int(row)), CAPTION_CHARS) for row in rows]
    return Seen(where(segment), list(zip(captions, [*actions, ""], strict=True)))


def _goals(node: Node) -> tuple[list[tuple[str, list[str]]], list[Goal]]:
    by_query: dict[int, list[Row]] = {}
    for row in _rows(node, "goals.parquet", GOALS):
        by_query.setdefault(row["query_id"], []).append(row)
    suggested = [[row for row in rows if row["goal"] is not None] for rows in by_query.values()]
    counts = Counter(row["goal"] for rows in suggested for row in rows)
    answered = [rows for rows in by_query.values() if rows[0]["goal"] is not None]
    queries = [
        (cut(rows[0]["caption"], CAPTION_CHARS), [row["goal"] for row in rows if row["goal"] is not None])
        for rows in _some(answered, QUERIES)
    ]
    top = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:GOALS_SHOWN]
    return queries, [Goal(goal, count, count / len(by_query)) for goal, count in top]


def _programs(node: Node) -> tuple[str, Sequence[Row]]:
    rows = _rows(node, "programs.parquet", PROGRAMS)
    chosen = [row["program"] for row in rows if row["chosen"] and row["program"]]
    candidates = [{**row, "error": cut(row["error"] or "", ERROR_CHARS)} for row in rows[:CANDIDATES]]
    return (cut(chosen[0], PROGRAM_CHARS) if chosen else ""), candidates


def _replies(node: Node, ids: set[int]) -> dict[int, str]:
    if node.run is None or "responses.parquet" not in node.run.manifest["outputs"]:
        return {}
    return {
        row["request_id"]: cut(row["reply"] or f"(no reply: {row['reason']})", REPLY_CHARS)
        for row in _rows(node, "responses.parquet", RESPONSES)
        if row["request_id"] in ids
    }


def _rows(node: Node, name: str, schema: Any) -> list[Row]:
    return [] if node.run is None else list(read_table(node.run.file(name), schema).to_pylist())


# --- potentials


@dataclass(frozen=True)
class Moment:
    """One moment of an episode."""

    step: int
    phi: float
    caption: str
    action: str


@dataclass
class Potential:
    """One potential: its figures, its certificate; strips, or else courses of Φ with their `moments`."""

    node: Node
    problem: str
    figures: Mapping[str, Any] = field(default_factory=dict)
    certificate: Document | None = None
    courses: Sequence[tuple[Example, Sequence[Moment]]] = ()
    strips: Sequence[Markup] = ()


def potentials(chain: Chain) -> list[Potential]:
    """All potentials, real ones first; strips are drawn for the first few of these, controls have curves of Φ alone."""
    nodes = sorted(chain.of("train-rm"), key=lambda node: node.facts.get("control", "none") != "none")
    real = [node.key for node in nodes if node.facts.get("control", "none") == "none"][:MOST_DRAWN]
    return [potential(chain, node, node.key in real) for node in nodes]


def potential(chain: Chain, node: Node, drawn: bool) -> Potential:
    """One potential for the page; with `drawn`, strips with frames and captions in place of courses of Φ."""
    shown = Potential(node, node.problem)
    if node.run is None or not node.sound:
        return shown
    if drawn:
        shown.strips = _strips(chain, node)
    try:
        if (report := report_of(node.run)) is not None:
            shown.figures = _figures(report)
            if not shown.strips:
                examples = [example for example in report.get("examples", []) if example["phi"]]
                shown.courses = [(example, _moments(example)) for example in examples[:EXAMPLES]]
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
        loaded = load_potential(node.run.path)
    except (BkrlError, OSError):
        return []
    try:
        # Strip.svg is ours; the texts of others in it are escaped.
        return [Markup(strip.svg()) for strip in strips(loaded, Dataset(source.run))]
    except (BkrlError, OSError):
        return []
    finally:
        loaded.close()


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


def _moments(example: Example) -> list[Moment]:
    """The first and last moment, two between, and where Φ is highest and lowest."""
    phi, first = example["phi"], example.get("first_step", 0)
    last = len(phi) - 1
    marks = sorted({0, last // 3, 2 * last // 3, last, phi.index(max(phi)), phi.index(min(phi))})
    captions, actions = example.get("captions", []), example.get("actions", [])
    return [
        Moment(
            step=first + i,
            phi=phi[i],
            caption=cut(captions[i], CAPTION_CHARS) if i < len(captions) else "",
            action=actions[i] if i < len(actions) else "",
        )
        for i in marks
    ]


# --- agents


@dataclass(frozen=True)
class Agent:
    """A recorded episode: a GIF as data URI, whose it is and where."""

    name: str
    uri: str
    alg: str
    seed: str
    env: str


def agents(chain: Chain, played: Sequence[Played]) -> tuple[list[Agent], int]:
    """GIFs of evaluate runs, and how many were left out.

    One for each method and world, the first recorded of its first run, sampled actions before greedy ones: the choice
    must not look for a good episode.
    """
    shown: list[Agent] = []
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
        shown.append(Agent(first, uri, row["alg"], row["seed"], row["env"]))
    return shown, count - len(shown)


def _some(items: Sequence[Any], count: int) -> list[Any]:
    """At most `count` of `items`, evenly spaced, the first among them."""
    return [items[i] for i in beginnings(len(items), count)]
