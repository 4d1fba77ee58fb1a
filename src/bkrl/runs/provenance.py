"""The chain of manifests behind some runs: each run once, verified, and how it is linked to those before it.

Nothing here raises for a run that is missing or damaged: a broken chain is a finding, and the report says so.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bkrl.core.errors import BkrlError, InputError
from bkrl.core.files import read_json, sha256
from bkrl.runs.folder import MANIFEST
from bkrl.runs.inputs import hash_at, input_at, input_hash
from bkrl.runs.record import Manifest, Run
from bkrl.runs.samples import PREFIX

STAGES = ("collect", "label", "train-rm", "train-rs", "evaluate", "report")


@dataclass(frozen=True)
class Link:
    """An input as a manifest names it. `found`: where that run lies now; None when it is gone or not the same any more,
    and for a file that no run made, which has no past.
    """

    name: str
    recorded: str
    sha256: str
    found: str | None
    problem: str


@dataclass
class Node:
    """One run. `run` is None where nothing can be read; `problem` says what is wrong with it, in a sentence."""

    key: str
    stage: str
    run: Run | None
    sha256: str
    problem: str = ""
    links: list[Link] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """Complete, and every output is the one that was written."""
        return self.run is not None and not self.problem

    @property
    def facts(self) -> dict[str, Any]:
        return self.run.facts if self.run is not None else {}

    @property
    def config(self) -> dict[str, Any]:
        """The settings as the manifest, which is sealed, has them."""
        return dict(self.run.manifest.get("config", {})) if self.run is not None else {}

    @property
    def steps(self) -> int:
        """Env steps that it took: of an explorer that does not learn those that it recorded, of a copy none.

        Nor of a clone, whose steps are samples, nor of an agent that does not learn, whose steps nobody took.
        """
        if self.facts.get("alg") == "bc" or self.facts.get("learns") is False:
            return 0
        if "imported" in self.facts:  # its own past is in no chain
            return int(self.facts.get("explorer_steps", self.facts["recorded_steps"]))
        played = "recorded_steps" in self.facts and "explorer" in self.config
        return int(self.facts.get("steps", self.facts["recorded_steps"] if played else 0))


@dataclass
class Chain:
    """All runs reached, by key, inputs before those who use them; `problems` are sentences."""

    nodes: dict[str, Node] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def of(self, stage: str) -> list[Node]:
        return [node for node in self.nodes.values() if node.stage == stage]

    def input(self, node: Node, name: str) -> Node | None:
        """The node behind one of `node`'s inputs; None where it could not be followed."""
        found = (link.found for link in node.links if link.name == name and link.found is not None)
        return next((self.nodes[key] for key in found), None)

    def ancestors(self, node: Node, explorers: bool = True) -> list[Node]:
        """Every run that `node` rests on, nearest first.

        explorers: also what lies behind a dataset that labels or a potential were made of. What a clone acts by is in
            its dataset, so there it is not left out.
        """
        found: dict[str, Node] = {}
        queue, queued = [node], set[str]()
        while queue:
            user = queue.pop(0)
            for link in user.links:
                if link.found is None:
                    continue
                one = found.setdefault(link.found, self.nodes[link.found])
                ends = not explorers and one.stage == "collect" and user.stage in ("label", "train-rm")
                if link.found not in queued and not ends:
                    queued.add(link.found)
                    queue.append(one)
        return list(found.values())


def paid_once(nodes: Iterable[Node]) -> list[Node]:
    """Of copies of a run, whose manifests are the same bytes, the first: nobody paid for the others."""
    first: dict[str, Node] = {}
    for node in nodes:
        first.setdefault(node.sha256 or node.key, node)
    return list(first.values())


def runs_below(folder: Path, stages: Sequence[str]) -> list[Path]:
    """Every run of these stages in a folder, itself included, also unfinished ones: leaving those out is said, not done
    silently. What a run keeps below itself (the trainings of a tournament) is a part of that run.
    """
    found = [file.parent for file in sorted(folder.rglob("config.json")) if _stage(file) in (*stages, None)]
    return [path for path in found if not _inside(path, folder)]


def _inside(path: Path, folder: Path) -> bool:
    """Whether a path lies in a run that lies in a folder."""
    between = path.relative_to(folder).parents
    return any((folder / place / "config.json").exists() for place in between)


def _stage(config: Path) -> str | None:
    """The stage of the run that a config.json belongs to; None for a run whose config cannot be read; "" for what is no
    run, such as the settings of another program.
    """
    try:
        stage = read_json(config).get("stage")
    except InputError:
        stage = None
    if isinstance(stage, str):
        return stage
    return None if any((config.parent / name).exists() for name in ("manifest.json", "metrics.jsonl")) else ""


def named(paths: Sequence[Path], stages: Sequence[str]) -> list[Path]:
    """The same paths, where a folder that is no run stands for the runs of these stages below it.

    Raises:
        InputError: there is no such run in a folder.
    """
    found: list[Path] = []
    for path in paths:
        if not path.is_dir() or (path / "config.json").exists():
            found.append(path)
            continue
        below = runs_below(path, stages)
        if not below:
            raise InputError(f"{path} is no run, and there is no {' or '.join(stages)} run in it.")
        found += below
    return list(dict.fromkeys(found))


def follow(paths: Sequence[Path]) -> Chain:
    """Open and verify runs and everything their manifests rest on.

    An input is looked for as `input_at` does, and accepted only with the manifest it had.
    """
    chain = Chain()
    # A run that is named goes by that name, also where another run's manifest, read first, spells its path otherwise.
    names = {Path(path).resolve().as_posix(): Path(path).as_posix() for path in reversed(paths)}
    seen: set[str] = set()
    for path in paths:
        _visit(chain, names, seen, Path(path))
    order = {stage: place for place, stage in enumerate(STAGES)}
    chain.nodes = dict(sorted(chain.nodes.items(), key=lambda item: order.get(item[1].stage, len(order))))
    return chain


def _visit(chain: Chain, names: dict[str, str], seen: set[str], path: Path) -> str:
    identity = path.resolve().as_posix()
    key = names.setdefault(identity, path.as_posix())
    if identity in seen:
        return key
    seen.add(identity)
    node = _open(path, key)
    chain.nodes[key] = node
    if node.problem:
        chain.problems.append(node.problem)
    if node.run is None:
        return key
    for name, recorded in node.run.manifest["inputs"].items():
        link = _link(path, node.run, name, recorded)
        if link.found is not None:
            link = replace(link, found=_visit(chain, names, seen, Path(link.found)))
        elif link.problem:
            chain.problems.append(link.problem)
        node.links.append(link)
    return key


def _open(path: Path, key: str) -> Node:
    node = Node(key, "?", None, "")
    try:
        run = Run.open(path, verify=False)
        node = Node(key, run.stage, run, sha256(run.path / "manifest.json"))
        run.verify()
    except BkrlError as problem:
        node.problem = str(problem)
    except OSError as problem:
        node.problem = f"{path} cannot be read ({problem.strerror}); make it readable, or leave it out."
    return node


def _link(path: Path, run: Run, name: str, input: Mapping[str, Any]) -> Link:
    recorded, digest, is_file = input["path"], input_hash(input), "sha256" in input
    place = input_at(run, name)
    if place is None:
        gone = "does not ship with bkrl" if str(path).startswith(PREFIX) else "is no longer there"
        problem = f"{path}: its {name} {recorded} {gone}, so that part of its past cannot be shown."
    elif hash_at(place, input) != digest:
        problem = f"{path}: its {name} {recorded} was made again since; what is there now is not what was used."
    else:
        home = place if not is_file else place.parent if _made(place, digest) else None
        return Link(name, recorded, digest, None if home is None else home.as_posix(), "")
    return Link(name, recorded, digest, None, problem)


def _made(file: Path, digest: str) -> bool:
    """Whether a file, as the weights of a policy, is an output of the run in whose folder it lies."""
    try:
        made = read_json(file.parent / MANIFEST, Manifest)["outputs"]
    except InputError:
        return False
    return file.name in made and made[file.name]["sha256"] == digest
