"""The provenance section: what every run was made with."""

from collections import Counter
from collections.abc import Mapping

from bkrl.report.pages.potential import STAGE as WORTH
from bkrl.report.provenance import STAGES, Chain, Node


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
