"""What `bkrl list` shows: the names that flags take, each with a line about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

_CONTROLS = ("random, return", "nothing", "controls for preferences: a coin, or the world's own reward")
_POTENTIALS = (
    ("code", "--variant code", "a sandboxed program over raw observations; horizon 5"),
    ("pref", "--variant pref", "a preference transformer; horizon as long as a segment, 5 by default"),
    ("goal", "--variant goal", "similarity of the latest caption to retrieved goals; horizon 4"),
    (
        "control",
        "train-rm --control",
        "zero, a random network, shuffled labels, constant advice",
    ),
)


def catalogue(what: str) -> list[tuple[str, list[str], list[list[Any]]]]:
    """Tables (title, header, rows) for "envs", "options" of envs, "algs", "llms" or "potentials"."""
    if what == "algs":
        from bkrl.methods import methods

        return [("", ["alg", "needs", "what it is"], [[one.name, one.needs, one.help] for one in methods()])]
    if what == "llms":
        from bkrl.llm import SPECS

        return [("", ["llm", "needs", "what it is"], [list(row) for row in (*SPECS, _CONTROLS)])]
    if what == "potentials":
        kinds = ("", ["kind", "made by", "what it is"], [list(row) for row in _POTENTIALS])
        return [
            kinds,
            ("Samples that ship with bkrl", ["path", "kind", "made in", "labels by", "advice from"], _samples()),
        ]
    from bkrl.envs import env_ids, family, world

    worlds = [world(env_id) for env_id in env_ids()]
    if what == "options":
        having: dict[tuple[str, str], list[str]] = {}
        for w in worlds:
            for one in family(w.family).options(w):
                having.setdefault((one.name, one.flag.help), []).append(w.env_id)
        rows: list[list[Any]] = [[*about, _some_of(ids)] for about, ids in having.items()]
        return [("Options of envs, written as ID@NAME=VALUE,NAME=VALUE", ["option", "what it is", "of"], rows)]
    by_rules: dict[str, list[list[Any]]] = {}
    for w in worlds:
        by_rules.setdefault(w.rules, []).append([w.env_id, w.family, len(w.action_names), w.max_steps, w.solved])
    header = ["env", "family", "actions", "max steps", "solved when"]
    return [(f"Rules: {rules}", header, rows) for rules, rows in by_rules.items()]


def _some_of(ids: list[str]) -> str:
    """The first of some ids, and how many others there are."""
    return ids[0] if len(ids) == 1 else f"{ids[0]} and {len(ids) - 1} more"


def _samples() -> list[list[Any]]:
    """The ready-made runs, usable wherever a path of such a run is: `--potential sample:bk-code-minigrid`."""
    from bkrl.potentials import advice_source
    from bkrl.runs.record import Run
    from bkrl.runs.samples import samples

    rows = []
    for name in samples():
        run = Run.open(Path(name), verify=False)
        if run.stage == "lm":  # what reads, and is no potential
            continue
        kind = run.facts.get("kind", "dataset")
        source = advice_source(run.facts.get("training", {})) or "–"
        rows.append([name, kind, run.facts.get("env_id"), run.facts.get("llm") or "–", source])
    return rows
