"""The provenance section: what every run was made with, and the runs as a tree from datasets down."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bkrl.report.pages.potential import STAGE as WORTH
from bkrl.report.provenance import STAGES, Chain, Node


@dataclass
class Branch:
    """One line of the tree: a run or several (key, text), and what was made from them."""

    stage: str
    text: str
    runs: list[tuple[str, str]] = field(default_factory=list)
    below: list[Branch] = field(default_factory=list)


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
    found = [(stage, chain.of(stage)) for stage in (*STAGES, WORTH, "?")]
    return [
        (stage, [(node, {k: v for k, v in _made_with(node).items() if usual.get(k) != v}) for node in nodes])
        for stage, nodes in found
        if nodes
    ]


def tree(chain: Chain) -> list[Branch]:
    """The runs as a tree from datasets down; training runs that share potential, world and method are one line."""
    children: dict[str, list[Node]] = {}
    roots: list[Node] = []
    for node in chain.nodes.values():
        parents = [link.found for link in node.links if link.found is not None]
        # train-rm names labels and dataset; labels come first, and the dataset stands above them already
        (children.setdefault(parents[0], []) if parents else roots).append(node)
    return _branches(children, roots)


def _branches(children: Mapping[str, Sequence[Node]], nodes: Sequence[Node]) -> list[Branch]:
    lines: dict[tuple[str, ...], Branch] = {}
    below: dict[tuple[str, ...], list[Node]] = {}
    for node in nodes:
        if node.stage in ("train-rs", "evaluate"):
            alg, env = str(node.facts.get("alg", "?")), str(node.facts.get("env_id", "?"))
            kind: tuple[str, ...] = (node.stage, alg, env)
            text = node.key if node.stage == "evaluate" else str(node.config.get("seed", node.key))
            line = lines.setdefault(kind, Branch(node.stage, f"{alg} in {env}"))
        else:
            kind, text = (node.key,), node.key
            line = lines.setdefault(kind, Branch(node.stage, node.key))
        line.runs.append((node.key, text))
        below.setdefault(kind, []).extend(children.get(node.key, []))
    for kind, line in lines.items():
        line.below = _branches(children, below[kind])
    return list(lines.values())
