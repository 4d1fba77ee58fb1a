"""The provenance section: what every run was made with, and the runs as a tree from datasets down."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from bkrl.report.provenance import Chain, Node


def anchor(key: str) -> str:
    """An id for a run inside the page."""
    digest = hashlib.sha256(key.encode(errors="replace")).hexdigest()[:8]  # two keys may have the same letters
    return f"run-{re.sub(r'[^A-Za-z0-9]+', '-', key).strip('-')}-{digest}"


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


def node_values(node: Node, usual: Mapping[str, str]) -> dict[str, Any]:
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


def tree(chain: Chain) -> list[dict[str, Any]]:
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
