"""`bkrl label view`: a label run as one HTML file that needs neither a network nor a server, to look at every label.

`quality_section` is the part of it that other pages show as well.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from bkrl.core.files import atomic_write
from bkrl.data.dataset import Dataset
from bkrl.labelers import quality
from bkrl.labelers.audit import all_answers, compare
from bkrl.labelers.goals import library
from bkrl.labelers.tables import card_of, choices_of, dataset_of, labels_of, responses_of, variant_of
from bkrl.report.pages import episodes, html, labels_data
from bkrl.report.pages.labels_data import Row
from bkrl.runs.inputs import dataset_at
from bkrl.runs.record import Run

PAGE = "labels.html"
PROGRAM_CHARS = 40_000
_NOTHING: Row = {"why": [], "chosen": None, "rows": [], "audits": [], "problems": []}
_SINGULAR = {"pref": "pair", "goal": "moment", "code": "candidate program"}


def write(labels: Path, out: Path | None = None, dataset: Path | None = None) -> Path:
    """Write the browser of a label run, by default `labels.html` in the run's folder (beside its outputs).

    dataset: where the dataset lies now, if not where the run found it.

    Raises:
        InputError: the run, its tables or its dataset are missing, damaged, or do not belong together.
        UsageError: see `episodes.place`.
    """
    run = Run.open(labels, "label")
    path = episodes.place(run, out, PAGE)
    known = dataset_of(run, dataset_at(run, dataset))
    beside = path.with_name(f"{run.path.name}-{episodes.PAGE}")
    shown = _episodes(run, known)
    view = build(run, known, {"page": quote(beside.name), "numbers": shown} if shown else {})
    if shown:
        episodes.write(known, beside, shown)
    atomic_write(path, html.render("labels", view))
    return path


def _episodes(run: Run, dataset: Dataset) -> list[int]:
    """The episodes that labels are about, as far as one page holds them."""
    names = {"pref": ("a_episode_id", "b_episode_id"), "goal": ("episode_id",), "code": ()}[variant_of(run)]
    numbers = sorted({int(row[name]) for row in labels_of(run) for name in names})
    return episodes.fitting(dataset, numbers) if numbers else []


def build(run: Run, dataset: Dataset, stepped: Row | None = None) -> dict[str, Any]:
    """All values of the template `labels.html`; `data`: id and JSON of each part that the script reads.

    `stepped`: the page with its episodes step by step, and their numbers.
    """
    facts, variant = run.facts, variant_of(run)
    table, responses = labels_of(run), responses_of(run)
    count = len({row["query_id"] for row in table}) if variant == "goal" else len(table)
    page: dict[str, Any] = {
        "key": run.path.name,
        "variant": variant,
        "count": count,
        "what": _SINGULAR[variant] + ("" if count == 1 else "s"),
        "env": dataset.env_id,
        "llm": str(facts.get("llm", "?")),
        "annotator": str(facts.get("annotator", "")),
        "quality": quality_section(run),
        "usage": html.facts_of(facts.get("usage", {})),
        "made": {"command": " ".join(map(str, run.config["argv"])), "dataset": dataset.path.as_posix()}
        | html.facts_of(facts.get("prompts", {}), "prompt"),
        **dict.fromkeys(("statuses", "library", "candidates", "data"), ()),
    }
    if variant == "code":
        return page | {"candidates": _candidates(table, responses, facts.get("quality", {}))}
    card, by_rules = card_of(run, dataset), facts.get("llm") == "rules"
    if variant == "pref":
        answers = all_answers(run.path)[0]
        head, chunks = labels_data.of_pairs(
            dataset, card, table, responses, answers, choices=choices_of(run), by_rules=by_rules
        )
    else:
        head, chunks = labels_data.of_goals(dataset, card.family, table, responses)
        page["library"] = sorted(library(table), key=lambda entry: (-len(entry["query_ids"]), entry["goal_id"]))
    data = [(f"chunk-{number}", html.embed(chunk)) for number, chunk in enumerate(chunks)]
    data.insert(0, ("head", html.embed({**head, "episodes": stepped or {}})))
    return page | {"statuses": sorted(set(head["index"]["status"])), "data": data}


def quality_section(run: Run) -> Markup:
    """The quality of a label run as HTML for any page with the report's style: each figure with interval and n and what
    people who audited it said, or for programs the table of why the best was chosen.
    """
    facts = run.facts.get("quality", {})
    if not isinstance(facts, dict) or not facts:
        return Markup("")
    if "why" in facts:
        why = [{**one, "verdict": quality.verdict_of(one, facts["chosen"])} for one in facts["why"]]
        return html.fragment("labels_quality", {**_NOTHING, "why": why, "chosen": facts["chosen"]})
    table = quality.as_table(facts)
    known = {row[0]: row for row in table["rows"]}
    rows = []
    for name, words in quality.WORDS.items():
        if words in known and name in facts:
            value = facts[name]
            bar = interval_bar(value) if isinstance(value, Mapping) else Markup("")
            rows.append({"words": words, "cells": known[words][1:], "bar": bar})
    given, problems = all_answers(run.path) if "pairs" in facts else ({}, [])
    labels = labels_of(run) if given else []
    audits = [{"name": name, **_audit(compare(labels, answers))} for name, answers in given.items()]
    return html.fragment("labels_quality", {**_NOTHING, "rows": rows, "audits": audits, "problems": problems})


def interval_bar(value: Mapping[str, Any]) -> Markup:
    """A share (or an alpha) and its interval on a line from 0 to 1."""
    at, low, high = value.get("rate", value.get("value")), value["low"], value["high"]
    if at is None:
        return Markup("")

    def place(x: float) -> float:
        return 4 + 112 * min(max(x, 0.0), 1.0)

    line = "" if low is None else f'<path class="bar" d="M{place(low):.1f} 8H{place(high):.1f}"/>'
    return Markup(
        '<svg class="forest" aria-hidden="true" viewBox="0 0 120 16"><path class="rule" d="M4 8H116M60 4V12"/>'
        f'{line}<circle class="dot" cx="{place(at):.1f}" cy="8" r="3.5"/></svg>'
    )


def _audit(found: Mapping[str, Any]) -> Row:
    agreement, decided = (quality.cells(found[name]) for name in ("agreement", "agreement_decided"))
    kappa = found["cohen_kappa"]
    return {
        "answered": found["answered"],
        "agreement": agreement,
        "decided": decided,
        "kappa": "–" if kappa is None else f"{kappa:.2f}",
    }


def _candidates(table: Sequence[Row], responses: Sequence[Row], facts: Mapping[str, Any]) -> Sequence[Row]:
    """Every program with its figures, its reply, and what was said to it: the last turn of the prompt after it."""
    known = {int(row["request_id"]): row for row in responses}
    why = {one["candidate"]: one for one in facts.get("why", [])}
    shown = []
    for row, after in zip(table, [*table[1:], None]):
        goes_on = after is not None and after["conversation"] == row["conversation"]
        response = known.get(row["request_id"], {})
        figures = json.loads(row["score_details"]) if row["score_details"] else {}
        source = row["program"] or ""
        shown.append(
            {
                "id": row["candidate_id"],
                "conversation": row["conversation"],
                "round": row["round"],
                "status": row["status"],
                "chosen": row["chosen"],
                "error": row["error"] or "",
                "verdict": quality.verdict_of(why[row["candidate_id"]], facts["chosen"]) if why else "",
                "figures": figures,
                "source": source[:PROGRAM_CHARS],
                "cut": max(0, len(source) - PROGRAM_CHARS),
                "feedback": _turns(known.get(after["request_id"], {}))[-1][1] if goes_on and after else "",
                "prompt": _turns(response),
                "reply": (response.get("reply") or "")[: labels_data.REPLY_CHARS],
                "usage": _usage(response),
            }
        )
    return shown


def _usage(response: Mapping[str, Any]) -> str:
    figures = {"tokens in": "prompt_tokens", "tokens out": "completion_tokens", "USD": "cost_usd"}
    known = [f"{response[name]:,} {words}" for words, name in figures.items() if response.get(name) is not None]
    words = [f"{name} {response[name]}" for name in ("model",) if response.get(name)]
    return " · ".join([f"request {response['request_id']}", *words, *known]) if response else ""


def _turns(response: Mapping[str, Any]) -> list[tuple[str, str]]:
    turns = json.loads(response.get("prompt") or "[]")
    return [(str(turn["role"]), str(turn["content"])) for turn in turns] or [("", "")]
