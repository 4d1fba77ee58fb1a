"""report: runs → one self-contained HTML file, the same results as JSON, pictures, and a table for the terminal.

A report is derived from other runs alone and takes seconds, so it is always made anew: what was deleted or changed
since is noticed each time. The same runs give the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bkrl.config import ReportConfig
from bkrl.errors import InputError, UsageError
from bkrl.report import page
from bkrl.report.comparison import SUCCESS, Comparison, Trained, compare, group_runs
from bkrl.report.curves import series_of, write_png
from bkrl.report.html import render
from bkrl.report.provenance import Chain, Node, follow
from bkrl.reporter import Reporter
from bkrl.run import Run, atomic_write, read_json, to_json

HTML, RESULTS = "report.html", "results.json"
# What runs of one method may differ in and still be pooled: the seed, where they lie, and how they were watched.
_POOLED = {"seed", "out", "potential", "env", "alg", "steps", "threads", "fresh", "checkpoint_every"}


def run(config: ReportConfig, reporter: Reporter) -> Run:
    """Write report.html, results.json and a picture for each world.

    Raises:
        InputError: a named run is not there, or not one of them can be used. What is there but unfinished or damaged
            is said and left out.
        UsageError: no run was named, or a run that is none of training, evaluation and what comes before.
    """
    if not config.runs:
        raise UsageError("Name the runs to report on, for example: bkrl report logs/ppo-* logs/bk-code-*")
    for path in config.runs:
        if not (path / "config.json").exists():
            Run.open(path)  # says what is wrong, with the nearest name
    chain = follow(config.runs)
    named = [
        chain.nodes[key] for key in dict.fromkeys(Path(path).as_posix() for path in config.runs) if key in chain.nodes
    ]
    for node in named:
        if node.stage == "report":
            raise UsageError(f"{node.key} is a report itself; name the runs it was made from.")
    usable = [node for node in named if node.sound]
    if not usable:
        raise InputError(chain.problems[0] if chain.problems else "There is nothing to report on.")
    if not any(node.stage in ("train-rs", "evaluate") for node in usable):
        raise InputError(f"{usable[0].key} is a '{usable[0].stage}' run; name train-rs or evaluate runs to report on.")
    problems = list(chain.problems)
    problems += [f"{node.key} is therefore left out of every number on this page." for node in named if not node.sound]
    trained, untrained = _trained(chain, [node for node in usable if node.stage == "train-rs"])
    problems += untrained + _strangers(chain, usable)
    groups, repeated = group_runs(trained)
    problems += repeated
    comparisons = [
        compare(env, [group for group in groups if group.env == env], config.threshold)
        for env in dict.fromkeys(group.env for group in groups)
    ]
    for problem in problems:
        reporter.warn(problem)
    values = page.build(
        title=config.title,
        threshold=config.threshold,
        chain=chain,
        trained=trained,
        comparisons=comparisons,
        evaluated=[node for node in usable if node.stage == "evaluate"],
        problems=problems,
        worlds=_worlds(comparisons),
    )
    table = page.table(comparisons, config.threshold)
    result = _folder(config, usable)
    atomic_write(result.file(HTML), render(values))
    atomic_write(result.file(RESULTS), to_json(_results(values, problems)))
    pictures = _pictures(result, comparisons, config.threshold)
    result.finish(
        [HTML, RESULTS, *pictures],
        report=result.file(HTML),
        headline=values["headline"],
        training_runs=len(trained),
        problems=len(problems),
        table=table,
    )
    return result


def _pictures(result: Run, comparisons: Sequence[Comparison], threshold: float) -> list[str]:
    """The success curves of each world as a PNG, for slides and READMEs."""
    names = []
    for comparison in comparisons:
        bands = page.bands_of(comparison, [row.group for row in comparison.rows], SUCCESS)
        name = f"curves-{comparison.env}.png"
        write_png(
            result.file(name),
            bands,
            ylabel="success rate",
            title=comparison.env,
            limits=(0.0, 1.0),
            threshold=threshold,
        )
        names.append(name)
    return names


def _folder(config: ReportConfig, usable: Sequence[Node]) -> Run:
    """The report's own folder; an earlier report in it is replaced, any other run is not."""
    earlier = config.run_dir / "config.json"
    replace = earlier.exists() and read_json(earlier).get("stage") == "report"
    if earlier.exists() and not replace:
        raise UsageError(f"{config.run_dir} holds another run; choose another --out.")
    return Run.create(
        config.run_dir,
        stage="report",
        config=config,
        inputs={node.key: Path(node.key) for node in usable},
        fresh=replace,
    )


def _trained(chain: Chain, nodes: Sequence[Node]) -> tuple[list[Trained], list[str]]:
    """The training runs as a comparison needs them, and sentences about those that were never evaluated."""
    found, problems = [], []
    for node in nodes:
        if node.run is None:
            continue
        series = series_of(node.run.metrics())
        if SUCCESS not in series or not np.isfinite(series[SUCCESS][1]).any():
            problems.append(f"{node.key} holds no evaluation and is left out of every number on this page.")
            continue
        settings = node.config
        ancestors = chain.ancestors(node)
        found.append(
            Trained(
                key=node.key,
                env=str(settings.get("env", node.facts.get("env_id"))),
                alg=str(settings.get("alg", node.facts.get("alg"))),
                seed=int(settings.get("seed", 0)),
                settings=_settings(settings),
                series=series,
                control=_control(ancestors),
                annotator=next((str(a.facts.get("llm", "")) for a in ancestors if a.stage == "label"), ""),
                collect_steps=sum(int(a.facts.get("steps", 0)) for a in ancestors if a.stage == "collect"),
                potential=next((link.sha256 for link in node.links if link.name == "potential"), ""),
            )
        )
    return found, problems


def _control(ancestors: Sequence[Node]) -> str:
    """Which control a potential is: its own kind, or labels made without knowledge; "none" for the real thing."""
    for node in ancestors:
        if node.stage == "train-rm" and node.facts.get("control", "none") != "none":
            return str(node.facts["control"])
        if node.stage == "label" and node.facts.get("llm") in ("random", "return"):
            return f"{node.facts['llm']} labels"
    return "none"


def _settings(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Every setting that must agree for runs to be pooled, nested ones with a dot."""
    flat: dict[str, str] = {}
    for key, value in config.items():
        if not prefix and key in _POOLED:
            continue
        if isinstance(value, dict):
            flat |= _settings(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = str(value)
    return flat


def _strangers(chain: Chain, nodes: Sequence[Node]) -> list[str]:
    """Potentials and policies used in a world of another family than the one they were made in."""
    problems = []
    for node in nodes:
        here = _family(str(node.facts.get("env_id", node.config.get("env", ""))))
        for other in chain.ancestors(node):
            there = _family(str(other.facts.get("env_id", "")))
            if here and there and here != there:
                problems.append(
                    f"{node.key} is a {here} run but rests on {other.key}, which was made in a {there} world."
                )
    return problems


def _family(env_id: str) -> str:
    return _facts(env_id).get("family", "")


def _facts(env_id: str) -> dict[str, str]:
    from bkrl.envs import world

    try:
        known = world(env_id)
    except UsageError:
        return {}
    return {"family": known.family, "rules": known.rules, "solved": known.solved}


def _worlds(comparisons: Sequence[Comparison]) -> dict[str, dict[str, str]]:
    return {comparison.env: _facts(comparison.env) for comparison in comparisons}


def _results(values: Mapping[str, Any], problems: Sequence[str]) -> dict[str, Any]:
    """The numbers of the page for other programs."""
    return {
        "headline": values["headline"],
        "findings": values["findings"],
        "problems": list(problems),
        "threshold": values["threshold"],
        "worlds": [
            {key: world[key] for key in ("env", "horizon", "rows")}
            | {"curves": [{"metric": f["title"], "bands": f["data"]["bands"]} for f in world["figures"]]}
            for world in values["worlds"]
        ],
        "evaluations": values["evaluations"],
        "costs": values["costs"],
    }
