"""What the page shows of labels, potentials and agents: small samples, always the same ones, as plain values.

Everything here is text that others wrote (captions, replies, programs): the template escapes it, nothing is trusted.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from bkrl.core.errors import BkrlError, InputError
from bkrl.core.files import read_json, read_table
from bkrl.core.reporter import percent, percents
from bkrl.core.spacing import beginnings
from bkrl.data.dataset import Dataset, Segment
from bkrl.data.schema import GOALS, PREFERENCES, PROGRAMS, RESPONSES
from bkrl.inspect.certificate import Document
from bkrl.inspect.report import Example, Report, report_of
from bkrl.report.provenance import Chain, Node

PAIRS, QUERIES, CANDIDATES = 5, 8, 40
REPLY_CHARS, PROGRAM_CHARS, CAPTION_CHARS = 4000, 20_000, 600
GIF_BYTES, ALL_GIF_BYTES = 1_500_000, 5_000_000


def labels(chain: Chain, node: Node) -> dict[str, Any]:
    """One label run for the page: its facts, and samples; `problem` says why samples are missing."""
    facts = node.facts
    shown: dict[str, Any] = {
        "key": node.key,
        "variant": str(facts.get("variant", node.config.get("variant", "?"))),
        "llm": str(facts.get("llm", node.config.get("llm", "?"))),
        "annotator": str(facts.get("annotator", "")),
        "env": str(facts.get("env_id", "")),
        "quality": flatten(facts.get("quality", {})),
        "usage": flatten(facts.get("usage", {})),
        "prompts": flatten(facts.get("prompts", {})),
        "problem": "",
    }
    if not node.sound:
        return shown | {"problem": node.problem}
    try:
        if shown["variant"] == "pref":
            shown["pairs"] = _pairs(node, _dataset(chain, node))
        elif shown["variant"] == "goal":
            shown["queries"], shown["goals"] = _goals(node)
        elif shown["variant"] == "code":
            shown["program"], shown["candidates"] = _programs(node)
    except (BkrlError, KeyError, ValueError, IndexError, TypeError) as problem:
        shown["problem"] = (
            str(problem) if isinstance(problem, BkrlError) else f"{node.key} cannot be shown: {problem!r}."
        )
    return shown


def potential(chain: Chain, node: Node, drawn: bool) -> dict[str, Any]:
    """One potential for the page: what it is, its figures, its certificate, and courses of Φ over a few episodes; with
    `drawn`, strips with frames and captions in their place.
    """
    facts = node.facts
    shown: dict[str, Any] = {
        "key": node.key,
        "variant": str(facts.get("variant", "?")),
        "kind": str(facts.get("kind", "?")),
        "control": str(facts.get("control", "none")),
        "env": str(facts.get("env_id", "")),
        "llm": str(facts.get("llm") or ""),
        "figures": {},
        "training": flatten(facts.get("training", {})),
        "checks": [],
        "not_applicable": {},
        "examples": [],
        "strips": [],
        "problem": node.problem,
    }
    if node.run is None or not node.sound:
        return shown
    if drawn:
        shown["strips"] = _strips(chain, node)
    try:
        if (report := report_of(node.run)) is not None:
            shown["examples"] = [_course(example) for example in report.get("examples", []) if example["phi"]][:4]
            shown["figures"] = _figures(report)
        if "certificate.json" in node.run.manifest["outputs"]:
            found: Document = read_json(node.run.file("certificate.json"), Document)
            shown["checks"] = [{"detail": "", **check} for check in found["checks"]]
            shown["not_applicable"] = found.get("not_applicable", {})
    except BkrlError as problem:
        shown["problem"] = str(problem)
    return shown


def _strips(chain: Chain, node: Node) -> list[Markup]:
    """Φ over a solved and a failed episode of its dataset, with frames and captions; none where either is not there as
    it was, or the potential cannot be loaded here.
    """
    from bkrl.potentials import load_potential
    from bkrl.report.plots.strips import strips

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


def agents(nodes: Sequence[Node], about: Sequence[tuple[str, str]]) -> tuple[list[dict[str, Any]], int]:
    """GIFs of evaluate runs as data URIs, and how many were left out.

    One for each method and world (`about`, one for each node), the first recorded of its first run, sampled actions
    before greedy ones: the choice must not look for a good episode.
    """
    shown: list[dict[str, Any]] = []
    seen: set[tuple[str, str]] = set()
    total = count = 0
    for node, kind in zip(nodes, about, strict=True):
        names = _gifs(node)
        count += len(names)
        if kind in seen or not names or node.run is None or not node.sound:
            continue
        raw = node.run.file(names[0]).read_bytes()
        if len(raw) > GIF_BYTES or total + len(raw) > ALL_GIF_BYTES or not raw.startswith(b"GIF8"):
            continue
        seen.add(kind)
        total += len(raw)
        uri = "data:image/gif;base64," + base64.b64encode(raw).decode("ascii")
        shown.append({"key": node.key, "name": names[0], "uri": uri})
    return shown, count - len(shown)


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """A nested record as one level of "a: b" names with plain values; long lists are counted instead of shown."""
    if not isinstance(value, dict):
        return {prefix: value} if prefix else {}
    if set(value) == {"rate", "low", "high", "n"}:  # a share with its interval
        return {prefix: _share(value)}
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        name = f"{prefix}: {key}" if prefix else str(key)
        name = name.replace("_", " ")
        if isinstance(inner, dict):
            flat |= flatten(inner, name)
        elif isinstance(inner, list):
            plain = all(isinstance(x, str | int | float) for x in inner) and len(inner) <= 12
            flat[name] = ", ".join(str(x) for x in inner) if plain else f"{len(inner)} entries"
        else:
            flat[name] = inner
    return flat


def _figures(report: Report) -> dict[str, Any]:
    """The figures of a potential report under names that say what they are."""
    phi: Mapping[str, Any] = report.get("phi", {})
    figures = {
        "past actions it sees": report.get("horizon"),
        "windows measured": report.get("windows"),
        "raw values mapped to −1 and 0": [report.get("scale", {}).get(end) for end in ("lo", "hi")],
        "distinct values": report.get("levels"),
        "windows off the commonest value": report.get("coverage"),
        "mean and spread of Φ": [phi.get("mean"), phi.get("std")],
        "quartiles of Φ": [phi.get("quantiles", {}).get(q) for q in ("25", "50", "75")],
        "mean change in one step": report.get("step_change"),
        "the end of a solved episode above other windows": report.get("ordering"),
        "rank correlation with time in solved episodes": report.get("progress"),
    }
    shares = ("windows off the commonest value", "the end of a solved episode above other windows")
    shown: dict[str, Any] = {}
    for name, value in figures.items():
        if isinstance(value, list):
            if all(isinstance(x, int | float) for x in value):
                shown[name] = ", ".join(f"{x:.3g}" for x in value)
        elif value is not None:
            shown[name] = percent(value, 1) if name in shares else value
    return shown


def _share(value: dict[str, Any]) -> str:
    if value["rate"] is None:
        return "nothing to compare"
    return f"{percent(value['rate'], 1)} (95 % interval {percents(value['low'], value['high'], 1)}, n = {value['n']:,})"


def _dataset(chain: Chain, node: Node) -> Dataset:
    source = chain.input(node, "dataset")
    if source is None or source.run is None or not source.sound:
        raise InputError(f"The dataset of {node.key} is not there as it was, so its segments cannot be shown.")
    return Dataset(source.run)


def _pairs(node: Node, dataset: Dataset) -> list[dict[str, Any]]:
    if node.run is None:
        return []
    rows = [row for row in _rows(node, "preferences.parquet", PREFERENCES) if row["status"] == "labelled"]
    kinds = (
        [row for row in rows if row["label"] > 0.5],
        [row for row in rows if row["label"] < 0.5],
        [row for row in rows if row["label"] == 0.5],
    )
    chosen = _some(kinds[0], 2) + _some(kinds[1], 2) + _some(kinds[2], 1)
    replies = _replies(node, {i for row in chosen for i in row["request_ids"]})
    return [
        {
            "id": row["pair_id"],
            "label": row["label"],
            "segments": [
                _segment(dataset, Segment(row[f"{side}_episode_id"], row[f"{side}_start"], row["length"]))
                for side in ("a", "b")
            ],
            "replies": [replies[i] for i in row["request_ids"] if i in replies],
        }
        for row in sorted(chosen, key=lambda row: row["pair_id"])
    ]


def _segment(dataset: Dataset, segment: Segment) -> dict[str, Any]:
    rows = dataset.rows(segment)
    actions = [dataset.action_names[a] for a in dataset.actions[rows[:-1]]]
    return {
        "where": f"episode {segment.episode_id}, steps {segment.start} to {segment.start + segment.length}",
        "steps": [
            {"caption": _cut(dataset.caption(int(row)), CAPTION_CHARS), "action": action}
            for row, action in zip(rows, [*actions, ""], strict=True)
        ],
    }


def _goals(node: Node) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    by_query: dict[int, list[dict[str, Any]]] = {}
    counts: dict[str, int] = {}
    for row in _rows(node, "goals.parquet", GOALS):
        by_query.setdefault(row["query_id"], []).append(row)
        if row["goal"] is not None:
            counts[row["goal"]] = counts.get(row["goal"], 0) + 1
    answered = [rows for rows in by_query.values() if rows[0]["goal"] is not None]
    queries = [
        {
            "id": rows[0]["query_id"],
            "caption": _cut(rows[0]["caption"], CAPTION_CHARS),
            "goals": [row["goal"] for row in rows if row["goal"] is not None],
        }
        for rows in _some(answered, QUERIES)
    ]
    top = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:15]
    return queries, [{"goal": goal, "count": count, "share": count / len(by_query)} for goal, count in top]


def _programs(node: Node) -> tuple[str, list[dict[str, Any]]]:
    rows = _rows(node, "programs.parquet", PROGRAMS)
    chosen = [row["program"] for row in rows if row["chosen"] and row["program"]]
    candidates = [
        {
            "id": row["candidate_id"],
            "round": row["round"],
            "status": row["status"],
            "score": row["score"],
            "chosen": row["chosen"],
            "error": _cut(row["error"] or "", 300),
        }
        for row in rows[:CANDIDATES]
    ]
    return _cut(chosen[0], PROGRAM_CHARS) if chosen else "", candidates


def _replies(node: Node, ids: set[int]) -> dict[int, str]:
    if node.run is None or "responses.parquet" not in node.run.manifest["outputs"]:
        return {}
    rows = _rows(node, "responses.parquet", RESPONSES)
    return {
        r["request_id"]: _cut(r["reply"] or f"(no reply: {r['reason']})", REPLY_CHARS)
        for r in rows
        if r["request_id"] in ids
    }


def _rows(node: Node, name: str, schema: Any) -> list[dict[str, Any]]:
    if node.run is None:
        return []
    rows: list[dict[str, Any]] = read_table(node.run.file(name), schema).to_pylist()
    return rows


def _course(example: Example) -> dict[str, Any]:
    phi, first = example["phi"], example.get("first_step", 0)
    last = len(phi) - 1
    marks = sorted({0, last // 3, 2 * last // 3, last, phi.index(max(phi)), phi.index(min(phi))})
    captions, actions = example.get("captions", []), example.get("actions", [])
    return {
        "episode": example["episode"],
        "success": example["success"],
        "first_step": first,
        "phi": phi,
        "moments": [
            {
                "step": first + i,
                "phi": phi[i],
                "caption": _cut(captions[i], CAPTION_CHARS) if i < len(captions) else "",
                "action": actions[i] if i < len(actions) else "",
            }
            for i in marks
        ],
    }


def _gifs(node: Node) -> list[str]:
    if node.run is None:
        return []
    names = [name for name in node.run.manifest.get("outputs", {}) if name.endswith(".gif")]
    return sorted(names, key=lambda name: ("sampled" not in name, name))


def _some(items: Sequence[Any], count: int) -> list[Any]:
    """At most `count` of `items`, evenly spaced, the first among them."""
    return [items[i] for i in beginnings(len(items), count)]


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[:limit] + f" … ({len(text) - limit:,} more characters)"
