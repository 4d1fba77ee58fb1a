"""The provenance section: what every run was made with, and the runs as a tree from datasets down."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bkrl.report.pages.potential import STAGE as WORTH
from bkrl.report.provenance import STAGES, Chain, Node


@dataclass(frozen=True)
class Input:
    """What a run read; `anchor` is that of its own run on the page, "" without one."""

    name: str
    path: str
    sha256: str
    anchor: str
    problem: str


@dataclass(frozen=True)
class Output:
    """A file of a run, as its manifest says."""

    name: str
    bytes: int | None
    rows: int | None
    sha256: str


@dataclass(frozen=True)
class RunFacts:
    """A run with its settings; `other`: what it was made with, where most others were made with something else."""

    key: str
    anchor: str
    sha256: str
    problem: str
    command: str = ""
    seed: int | None = None
    config: str = ""
    inputs: Sequence[Input] = ()
    outputs: Sequence[Output] = ()
    other: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Stage:
    """All runs of a stage; "?" is that of runs which cannot be read."""

    name: str
    nodes: Sequence[RunFacts]


@dataclass
class Branch:
    """One line of the tree: a run or several (anchor, text), and what was made from them."""

    stage: str
    text: str
    runs: list[tuple[str, str]] = field(default_factory=list)
    below: list[Branch] = field(default_factory=list)


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


def stages(chain: Chain, usual: Mapping[str, str]) -> list[Stage]:
    """Every run with its command, settings and hashes, by stage. `usual`: what most were made with."""
    found = [(stage, chain.of(stage)) for stage in (*STAGES, WORTH, "?")]
    return [Stage(stage, [_facts(node, usual) for node in nodes]) for stage, nodes in found if nodes]


def _facts(node: Node, usual: Mapping[str, str]) -> RunFacts:
    if node.run is None:
        return RunFacts(node.key, anchor(node.key), node.sha256, node.problem)
    manifest = node.run.manifest
    return RunFacts(
        key=node.key,
        anchor=anchor(node.key),
        sha256=node.sha256,
        problem=node.problem,
        command=" ".join(str(word) for word in manifest.get("argv", [])),
        seed=node.config.get("seed"),
        config=json.dumps(node.config, indent=1, ensure_ascii=False),
        inputs=[
            Input(link.name, link.recorded, link.sha256, anchor(link.found) if link.found else "", link.problem)
            for link in node.links
        ],
        outputs=[
            Output(name, out.get("bytes"), out.get("rows"), out.get("sha256", ""))
            for name, out in manifest.get("outputs", {}).items()
        ],
        other={k: v for k, v in _made_with(node).items() if usual.get(k) != v},
    )


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
        line.runs.append((anchor(node.key), text))
        below.setdefault(kind, []).extend(children.get(node.key, []))
    for kind, line in lines.items():
        line.below = _branches(children, below[kind])
    return list(lines.values())
