"""The page as plain values: what the template shows, and nothing it would have to compute."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from bkrl.report import findings as words
from bkrl.report import material
from bkrl.report.comparison import BASELINE, LENGTH, RETURN, SUCCESS, Comparison, Group, Row, Trained, curves_of, share
from bkrl.report.curves import DASHES, Band, band, colour_slots, draw_svg, step_label
from bkrl.report.provenance import STAGES, Chain, Node
from bkrl.report.statistics import Interval, centre_interval
from bkrl.rng import generator

METRICS = (
    (SUCCESS, "success rate", True),
    (RETURN, "episode return", False),
    (LENGTH, "episode length (steps)", False),
)
_TONES = {"caution": "Care", "against": "Against", "open": "Open", "for": "For"}
FORMS = {
    "none": ("no shaping", "The world's own reward alone."),
    "pbrs": (
        "potential-based shaping: γΦ(h′) − Φ(h) is added, Φ of a terminal state is 0",
        "Optimal policies stay optimal, exactly, on the decision process whose states are the histories Φ sees "
        "(Ng et al. 1999; Grześ 2017). This says nothing about how fast they are found.",
    ),
    "additive": (
        "a novelty bonus is added to the reward",
        "None: what is optimal may change while the bonus lasts.",
    ),
}


def build(
    *,
    title: str,
    threshold: float,
    chain: Chain,
    trained: Sequence[Trained],
    comparisons: Sequence[Comparison],
    evaluated: Sequence[Node],
    problems: Sequence[str],
    worlds: Mapping[str, Mapping[str, str]],
) -> dict[str, Any]:
    """All values of the template `report.html`. `worlds`: env id → rules and solved, in words, where known."""
    labels = [material.labels(chain, node) for node in chain.of("label")]
    rules = any(label["llm"] == "rules" or "not a language model" in label["annotator"] for label in labels)
    software = _software(chain)
    captions = {node.key: _agent_caption(chain, node) for node in evaluated}
    kinds = [(captions[node.key]["alg"], captions[node.key]["env"]) for node in evaluated]
    agents, skipped = material.agents(evaluated, kinds)
    evaluations = [row for node in evaluated for row in _evaluation(chain, node)]
    return {
        "title": title,
        "threshold": threshold,
        "headline": words.headline(comparisons),
        "meta": _meta(chain, trained),
        "findings": [
            {"tone": f.tone, "word": _TONES[f.tone], "text": f.text, "worlds": ", ".join(f.worlds)}
            for f in words.findings(comparisons, threshold, rules, problems)
        ],
        "worlds": [_world(i, comparison, threshold, worlds) for i, comparison in enumerate(comparisons)],
        "evaluations": evaluations,
        "evaluated": _evaluated(evaluations),
        "agents": [agent | captions[agent["key"]] for agent in agents],
        "agents_skipped": skipped,
        "labels": [label | {"anchor": anchor(label["key"])} for label in labels],
        "potentials": [material.potential(node) | {"anchor": anchor(node.key)} for node in chain.of("train-rm")],
        "forms": _forms(trained),
        "costs": _costs(chain, trained),
        "software": software,
        "tree": _tree(chain),
        "stages": [
            {"name": stage, "nodes": [_node(node, software) for node in chain.of(stage)]}
            for stage in (*STAGES, "?")
            if chain.of(stage)
        ],
    }


def anchor(key: str) -> str:
    """An id for a run inside the page."""
    return "run-" + re.sub(r"[^A-Za-z0-9]+", "-", key).strip("-")


def form_of(alg: str) -> str:
    """Which form of shaping an algorithm uses, as a key of `FORMS`."""
    return "pbrs" if alg.startswith("bk-") else "additive" if alg == "rnd" else "none"


def table(comparisons: Sequence[Comparison], threshold: float) -> dict[str, Any]:
    """The results table as text, for a terminal: `header` and `rows` of strings and numbers."""
    goal = words.percent(threshold)
    header = [
        "world",
        "method",
        "n",
        "success",
        "95 % interval",
        f"reached {goal}",
        f"steps to {goal}",
        "x PPO's steps",
    ]
    rows = []
    for comparison in comparisons:
        for row in comparison.rows:
            rows.append(
                [
                    comparison.env,
                    row.group.label,
                    row.n,
                    words.percent(row.final.estimate),
                    words.interval_text(row.final) if row.final.known else "–",
                    f"{row.n - row.steps.censored} of {row.n}",
                    _steps_text(row),
                    "–" if row.group.is_baseline else _ratio_cell(row),
                ]
            )
    return {"header": header, "rows": rows}


def _steps_text(row: Row) -> str:
    if row.steps.censored == row.n:
        return "never"
    return ("at least " if row.steps.censored else "") + step_label(row.steps.restricted.estimate)


def _ratio_cell(row: Row) -> str:
    if row.ratio is None:
        return "–"
    interval = row.ratio.ratio
    spread = f" ({interval.low:.2f} to {interval.high:.2f})" if interval.known else " (no interval)"
    return words.ratio_text(row.ratio) + spread


# --- parts of the page


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


def _world(
    number: int, comparison: Comparison, threshold: float, worlds: Mapping[str, Mapping[str, str]]
) -> dict[str, Any]:
    facts = worlds.get(comparison.env, {})
    groups = [row.group for row in comparison.rows]
    slots = colour_slots([group.label for group in groups])
    figures = [_figure(f"w{number}-{i}", comparison, groups, threshold, *metric) for i, metric in enumerate(METRICS)]
    return {
        "env": comparison.env,
        "anchor": f"world-{number}",
        "rules": facts.get("rules", ""),
        "solved": facts.get("solved", ""),
        "horizon": comparison.horizon,
        "figures": [figure for figure in figures if figure is not None],
        "rows": [_row(row, slots[row.group.label]) for row in comparison.rows],
        "compared": comparison.baseline is not None and len(comparison.rows) > 1,
    }


def bands_of(comparison: Comparison, groups: Sequence[Group], metric: str) -> list[Band]:
    """The curve of each method with its interval, for one metric."""
    return [
        band(group.label, curves, generator(0, "report", "curve", comparison.env, group.label, metric))
        for group in groups
        if (curves := curves_of(group, metric))
    ]


def _figure(
    name: str,
    comparison: Comparison,
    groups: Sequence[Group],
    threshold: float,
    metric: str,
    ylabel: str,
    share: bool,
) -> dict[str, Any] | None:
    bands = bands_of(comparison, groups, metric)
    if not bands:
        return None
    told = "; ".join(f"{b.label}: {words.percent(b.centre[-1]) if share else f'{b.centre[-1]:.3g}'}" for b in bands)
    drawing = draw_svg(
        bands,
        name=name,
        ylabel=ylabel,
        description=f"{ylabel} against environment steps in {comparison.env}. At the end: {told}.",
        limits=(0.0, 1.0) if share else None,
        threshold=threshold if share else None,
    )
    slots = colour_slots([b.label for b in bands])
    return {
        "title": ylabel,
        "svg": Markup(drawing.svg),  # ours; the only text of others in it is escaped by draw_svg
        "legend": [{"label": b.label, "n": b.n, "slot": slots[b.label], "dash": _dash(slots[b.label])} for b in bands],
        "data": {
            "name": name,
            "share": share,
            "frame": list(drawing.frame),
            "xlim": list(drawing.xlim),
            "bands": [{"x": b.steps.tolist(), "y": b.centre.tolist()} for b in bands],
        },
        "points": _points(bands, share),
    }


def _dash(slot: int) -> str:
    """The line style of a colour slot as an SVG dash pattern, for the legend."""
    style = DASHES[slot]
    return "" if isinstance(style, str) else " ".join(str(2 * length) for length in style[1])


def _points(bands: Sequence[Band], share: bool) -> dict[str, Any]:
    """The curves as a table for those who cannot see them: at most 11 steps of the widest grid."""
    grid = max((b.steps for b in bands), key=len)
    at = grid[np.unique(np.linspace(0, len(grid) - 1, 11).astype(int))]
    show = words.percent if share else (lambda y: f"{y:.3g}")
    rows = [
        [float(x), *(show(float(np.interp(x, b.steps, b.centre))) if x <= b.steps[-1] else "–" for b in bands)]
        for x in at
    ]
    return {"header": [b.label for b in bands], "rows": rows}


def _row(row: Row, slot: int) -> dict[str, Any]:
    group = row.group
    shown: dict[str, Any] = {
        "label": group.label,
        "slot": slot,
        "control": group.is_control,
        "baseline": group.is_baseline,
        "n": row.n,
        "seeds": ", ".join(str(run.seed) for run in group.runs),
        "potentials": len({run.potential for run in group.runs if run.potential}),
        "final": _interval(row.final),
        "average": _interval(row.average),
        "reached": row.n - row.steps.censored,
        "steps": row.steps.restricted.estimate,
        "steps_text": _steps_text(row),
        "steps_interval": _interval(row.steps.restricted),
        "ratio": None,
        "improvement": None if row.improvement is None else _interval(row.improvement),
        "p": None,
        "with_collection": row.ratio_with_collection,
    }
    if row.ratio is not None:
        shown["ratio"] = _interval(row.ratio.ratio) | {
            "bound": row.ratio.bound,
            "text": words.ratio_text(row.ratio),
            "censored": list(row.ratio.censored),
        }
    if row.paired is not None:
        shown["p"] = {
            "value": row.paired.p,
            "holm": row.p_holm,
            "smallest": row.paired.smallest_p,
            "n": row.paired.n,
            "difference": _interval(row.paired.difference),
        }
    return shown


def _interval(interval: Interval) -> dict[str, Any]:
    return {
        "estimate": interval.estimate,
        "low": interval.low,
        "high": interval.high,
        "known": interval.known,
        "method": interval.method,
        "n": interval.n,
    }


def _agent_caption(chain: Chain, node: Node) -> dict[str, str]:
    policy = chain.input(node, "policy")
    alg = str(node.facts.get("alg") or (policy.facts.get("alg") if policy else "") or "?")
    seed = policy.config.get("seed", "?") if policy else "?"
    return {"alg": alg, "seed": str(seed), "env": str(node.facts.get("env_id", "?")), "anchor": anchor(node.key)}


def _evaluation(chain: Chain, node: Node) -> list[dict[str, Any]]:
    about = _agent_caption(chain, node)
    policy = chain.input(node, "policy")
    trained_in = str(policy.facts.get("env_id", "")) if policy else ""
    rows = []
    modes = node.facts.get("modes", {})
    for mode, scores in modes.items() if isinstance(modes, dict) else ():
        rate = scores.get("success_rate", {})
        rows.append(
            about
            | {
                "mode": str(mode),
                "elsewhere": trained_in if trained_in and trained_in != about["env"] else "",
                "episodes": node.facts.get("episodes"),
                "success": rate.get("mean"),
                "low": rate.get("low"),
                "high": rate.get("high"),
                "return": scores.get("return", {}).get("mean"),
                "length": scores.get("length", {}).get("mean"),
            }
        )
    return rows


def _evaluated(evaluations: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Frozen policies by world and method, plain PPO first: success over seeds in each mode."""
    groups: dict[tuple[str, bool, str, str], dict[str, list[float]]] = {}
    for row in evaluations:
        if isinstance(row["success"], float | int):
            key = (row["env"], row["alg"] != BASELINE, row["alg"], row["elsewhere"])
            groups.setdefault(key, {}).setdefault(row["mode"], []).append(float(row["success"]))
    rows = []
    for (env, _, alg, elsewhere), modes in sorted(groups.items()):
        shown = {"env": env, "alg": alg, "elsewhere": elsewhere, "n": max(len(rates) for rates in modes.values())}
        for mode, rates in modes.items():
            rng = generator(0, "report", "evaluated", env, alg, mode)
            shown[mode] = _interval(share(centre_interval(np.array(rates), rng)))
        rows.append(shown)
    return rows


def _forms(trained: Sequence[Trained]) -> list[dict[str, Any]]:
    algs: dict[str, list[str]] = {}
    for alg in sorted({run.alg for run in trained}):
        algs.setdefault(form_of(alg), []).append(alg)
    return [{"algs": algs[form], "what": FORMS[form][0], "guarantee": FORMS[form][1]} for form in FORMS if form in algs]


def _costs(chain: Chain, trained: Sequence[Trained]) -> list[dict[str, Any]]:
    """One line a stage: runs, environment steps, seconds of training loops, and what the annotator was asked."""
    by_key = {run.key: run for run in trained}
    rows = []
    for stage in STAGES:
        nodes = [node for node in chain.of(stage) if node.run is not None]
        if not nodes:
            continue
        usage: Counter[str] = Counter()
        for node in nodes:
            found = node.facts.get("usage", {})
            usage.update({k: v for k, v in found.items() if isinstance(v, int)} if isinstance(found, dict) else {})
        steps = [node.facts.get("steps") for node in nodes] if stage in ("collect", "train-rs") else []
        seconds = sum(_seconds(by_key[node.key]) for node in nodes if node.key in by_key)
        rows.append(
            {
                "stage": stage,
                "runs": len(nodes),
                "steps": sum(s for s in steps if isinstance(s, int)) or None,
                "hours": seconds / 3600 or None,
                "sent": usage.get("sent") if stage == "label" else None,
                "cached": usage.get("cached") if stage == "label" else None,
                "tokens": usage["prompt_tokens"] + usage["completion_tokens"] if stage == "label" else None,
            }
        )
    return rows


def _seconds(run: Trained) -> float:
    """Time of the training loop: every clock in the metrics, except the speed."""
    clocks = [values for key, (_, values) in run.series.items() if key.startswith("time/") and key != "time/sps"]
    return float(sum(np.nansum(values) for values in clocks))


# --- provenance


def _software(chain: Chain) -> dict[str, str]:
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


def _node(node: Node, usual: Mapping[str, str]) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "key": node.key,
        "anchor": anchor(node.key),
        "sha256": node.sha256,
        "problem": node.problem,
        "command": "",
        "seed": None,
        "config": "",
        "inputs": [],
        "outputs": [],
        "other": {},
    }
    if node.run is None:
        return shown
    manifest = node.run.manifest
    return shown | {
        "command": " ".join(str(word) for word in manifest.get("argv", [])),
        "seed": node.config.get("seed"),
        "config": json.dumps(node.config, indent=1, ensure_ascii=False),
        "inputs": [
            {
                "name": link.name,
                "path": link.recorded,
                "sha256": link.sha256,
                "anchor": anchor(link.found) if link.found is not None else "",
                "problem": link.problem,
            }
            for link in node.links
        ],
        "outputs": [
            {"name": name, "bytes": out.get("bytes"), "rows": out.get("rows"), "sha256": out.get("sha256", "")}
            for name, out in manifest.get("outputs", {}).items()
        ],
        "other": {k: v for k, v in _made_with(node).items() if usual.get(k) != v},
    }


def _tree(chain: Chain) -> list[dict[str, Any]]:
    """The runs as a tree from datasets down; training runs that share potential, world and method are one line."""
    children: dict[str, list[Node]] = {}
    roots: list[Node] = []
    for node in chain.nodes.values():
        parents = [link.found for link in node.links if link.found is not None]
        # train-rm names labels and dataset; labels come first, and the dataset stands above them already
        if parents:
            children.setdefault(parents[0], []).append(node)
        else:
            roots.append(node)
    return _branches(children, roots)


def _branches(children: Mapping[str, Sequence[Node]], nodes: Sequence[Node]) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    bundles: dict[tuple[str, str, str], dict[str, Any]] = {}
    for node in nodes:
        if node.stage in ("train-rs", "evaluate"):
            facts = node.facts
            kind = (node.stage, str(facts.get("alg", "?")), str(facts.get("env_id", "?")))
            if kind not in bundles:
                bundles[kind] = {"stage": node.stage, "text": f"{kind[1]} in {kind[2]}", "runs": [], "below": []}
                lines.append(bundles[kind])
            seed = node.key if node.stage == "evaluate" else str(node.config.get("seed", node.key))
            bundles[kind]["runs"].append({"anchor": anchor(node.key), "text": seed})
            bundles[kind]["pending"] = [*bundles[kind].get("pending", []), *children.get(node.key, [])]
        else:
            lines.append(
                {
                    "stage": node.stage,
                    "text": node.key,
                    "runs": [{"anchor": anchor(node.key), "text": node.key}],
                    "below": _branches(children, children.get(node.key, [])),
                }
            )
    for bundle in bundles.values():
        bundle["below"] = _branches(children, bundle.pop("pending"))
    return lines
