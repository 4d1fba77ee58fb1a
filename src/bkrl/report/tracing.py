"""`bkrl trace FIGURE|RUN`: from a run, or a picture of a report, back to the dataset, every hash verified."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bkrl.core.errors import InputError
from bkrl.core.files import read_json, sha256
from bkrl.report.plots.draw import identity_of
from bkrl.runs.folder import locate
from bkrl.runs.provenance import Chain, Link, Node, follow

_META = re.compile(rb'<meta name="bkrl-report" content="([0-9a-f]{64})">')
HEAD = 4096  # the identity stands in the first bytes of a page


@dataclass(frozen=True)
class Trace:
    """The chain behind `root`; `figure` says how a picture and its report fit together, "" for a run."""

    root: Node
    chain: Chain
    figure: str
    problems: list[str]


def trace(path: Path, under: Sequence[Path] = (Path("logs"),)) -> Trace:
    """Follow a run, or a PNG or HTML file of a report, which is looked for beside the file and below `under`.

    Raises:
        InputError: there is nothing, the file names no report, or that report is not found.
    """
    if locate(path).is_dir():
        chain = follow([path])
        return Trace(chain.nodes[path.as_posix()], chain, "", list(chain.problems))
    if not path.exists():
        raise InputError(f"There is neither a run nor a figure at {path}.")
    identity = _identity(path)
    report = _report(path, identity, under)
    chain = follow([report])
    root = chain.nodes[report.as_posix()]
    digest = sha256(path)
    outputs = root.run.manifest.get("outputs", {}) if root.run is not None else {}
    names = [name for name, output in outputs.items() if output.get("sha256") == digest]
    problems = list(chain.problems)
    if names:
        figure = f"{path} is {names[0]} of {report}, byte for byte."
    else:
        figure = f"{path} names {report}, but is none of its files."
        problems.insert(0, f"{path} was changed after {report} wrote it, or comes from an earlier report there.")
    return Trace(root, chain, figure, problems)


def _identity(path: Path) -> str:
    if path.suffix.lower() in (".html", ".htm"):
        with path.open("rb") as file:
            found = _META.search(file.read(HEAD * 4))
        if found is None:
            raise InputError(f"{path} was not made by bkrl report: it names none.")
        return found.group(1).decode()
    return identity_of(path)


def _report(figure: Path, identity: str, under: Sequence[Path]) -> Path:
    """The report run with this identity, the figure's own folder first."""
    for manifest in _manifests([figure.parent, *under]):
        try:
            found = read_json(manifest)
        except InputError:
            continue
        facts = found.get("facts")
        if found.get("stage") == "report" and isinstance(facts, dict) and facts.get("identity") == identity:
            return manifest.parent
    places = ", ".join(str(place) for place in under)
    raise InputError(
        f"{figure} was made by report {identity[:12]}, which is not below {places}; name its place with --under."
    )


def _manifests(places: Sequence[Path]) -> Iterator[Path]:
    for i, place in enumerate(places):
        if (place / "manifest.json").exists():
            yield place / "manifest.json"
        if i and place.is_dir():
            yield from sorted(place.glob("**/manifest.json"))


def lines(found: Trace) -> list[str]:
    """The chain as a tree, newest first; a run that was shown already is not shown again with all its past."""
    return [_line(found.root, ""), *_below(found.chain, found.root, "", set())]


def _below(chain: Chain, node: Node, indent: str, shown: set[str]) -> list[str]:
    result = []
    for i, link in enumerate(node.links):
        last = i == len(node.links) - 1
        branch, deeper = ("└─ ", "   ") if last else ("├─ ", "│  ")
        name = "" if link.name == link.recorded or "/" in link.name else f"{link.name}: "
        if link.found is None:
            state = f"✗ {link.problem}" if link.problem else "✓"
            result.append(f"{indent}{branch}{name}{link.recorded} {link.sha256[:12]}  {state}")
            continue
        child = chain.nodes[link.found]
        again = child.key in shown
        result.append(f"{indent}{branch}{_line(child, name)}{'  (above)' if again else ''}")
        if not again:
            shown.add(child.key)
            result += _below(chain, child, indent + deeper, shown)
    return result


def _line(node: Node, name: str) -> str:
    state = "✓" if node.sound else f"✗ {node.problem}"
    about = [str(node.facts[key]) for key in ("alg", "variant", "env_id") if node.facts.get(key)]
    seed = node.config.get("seed")
    about += [f"seed {seed}"] if seed is not None and node.stage != "evaluate" else []
    return f"{name}{node.stage} {node.key} [{', '.join(about)}] {node.sha256[:12]}  {state}".replace(" []", "")


def values(found: Trace) -> dict[str, Any]:
    """The chain as plain values, for --json."""
    return {
        "root": found.root.key,
        "figure": found.figure,
        "problems": found.problems,
        "runs": [
            {
                "path": node.key,
                "stage": node.stage,
                "manifest_sha256": node.sha256,
                "sound": node.sound,
                "problem": node.problem,
                "inputs": [
                    {"name": link.name, "path": link.recorded, _hashed(node, link): link.sha256, "found": link.found,
                     "problem": link.problem}
                    for link in node.links
                ],
            }
            for node in found.chain.nodes.values()
        ],
    }  # fmt: skip


def _hashed(node: Node, link: Link) -> str:
    """What the manifest calls the hash of this input: a file has its own, a run its manifest's."""
    recorded = node.run.manifest["inputs"][link.name] if node.run is not None else {}
    return "sha256" if "sha256" in recorded else "manifest_sha256"
