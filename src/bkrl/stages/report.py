"""report: runs → one self-contained HTML file, the same results as JSON, pictures, and a table for the terminal.

A report is derived from other runs alone and takes seconds, so it is always made anew: what was deleted or changed
since is noticed each time. The same runs give the same bytes; a study run again gives the same results.json, since
what differs by nature (time, paths, hashes) stands in timings.json and in the page alone.
"""

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from bkrl.core.config import ReportConfig
from bkrl.core.errors import BkrlError, InputError, UsageError
from bkrl.core.files import atomic_write, to_json
from bkrl.core.reporter import Reporter
from bkrl.data.dataset import Dataset
from bkrl.report.comparison import Comparison, compare
from bkrl.report.costs import timings
from bkrl.report.evaluations import evaluations
from bkrl.report.goals import goal_rows, points
from bkrl.report.groups import SUCCESS, group_runs, grouped, picture_files, titled
from bkrl.report.model import GoalRow, Timings
from bkrl.report.pages import episodes, samples
from bkrl.report.pages.potential import STAGE as WORTH
from bkrl.report.pages.report import report_page
from bkrl.report.plots.draw import Panel, write_png, write_points
from bkrl.report.plots.figures import bands_of, figures_of, panels, styles_of
from bkrl.report.results import results_of, text_table
from bkrl.report.runs import family_mismatches, training_runs
from bkrl.runs.provenance import Chain, Node, follow, named
from bkrl.runs.record import Run

REPORTED = ("train-rs", "evaluate", WORTH)
HTML, RESULTS, TIMINGS = "report.html", "results.json", "timings.json"
MOST_STEPPED = 16
"""Episodes of a dataset that are shown step by step."""


def run(config: ReportConfig, reporter: Reporter) -> Run:
    """Write report.html, results.json, timings.json and two pictures for each env. A folder that is no run stands for
    the training runs, evaluations and potential reports below it.

    Raises:
        InputError: a named run is not there, or not one of them can be used. What is there but unfinished or damaged
            is said and left out.
        UsageError: no run was named, or a run that is none of training, evaluation and what comes before.
    """
    if not config.runs:
        raise UsageError("Name the runs to report on, for example: bkrl report logs/ppo-* logs/bk-code-*")
    config = replace(config, runs=tuple(named(config.runs, REPORTED)))
    for path in config.runs:
        if not (path / "config.json").exists():
            Run.open(path)  # says what is wrong, with the nearest name
    chain = follow(config.runs)
    asked = [
        chain.nodes[key] for key in dict.fromkeys(Path(path).as_posix() for path in config.runs) if key in chain.nodes
    ]
    for node in asked:
        if node.stage == "report":
            raise UsageError(f"{node.key} is a report itself; name the runs it was made from.")
    usable = [node for node in asked if node.sound]
    if not usable:
        raise InputError(chain.problems[0] if chain.problems else "There is nothing to report on.")
    if not any(node.stage in REPORTED for node in usable):
        raise InputError(f"{usable[0].key} is a '{usable[0].stage}' run; name train-rs or evaluate runs to report on.")
    problems = list(chain.problems)
    problems += [f"{node.key} is therefore left out of every number on this page." for node in asked if not node.sound]
    trained, untrained = training_runs(chain, usable, config.measure)
    if config.measure != ReportConfig.measure and not trained:
        raise UsageError(f"No training run here has {config.measure} in its evaluations; name another --measure.")
    problems += untrained + family_mismatches(chain, usable)
    groups, repeated = group_runs(trained)
    groups, unused = titled(groups, config.titles)
    problems += repeated
    for problem in [*problems, *unused]:
        reporter.warn(problem)
    measure = config.measure.removesuffix("_rate").replace("_", " ")
    by_env = {group.env: [other for other in groups if other.env == group.env] for group in groups}
    comparisons = [compare(env, own, config.threshold, config.tuning_steps) for env, own in by_env.items()]
    comparisons = [replace(one, measure=measure) for one in comparisons]
    compared = [(one, figures_of(i, one, config.threshold)) for i, one in enumerate(comparisons)]
    others, _ = training_runs(chain, [node for node in chain.of("train-rs") if node not in usable])
    every, titles = [*trained, *others], {run.key: group.title for group in groups for run in group.runs if group.title}
    labels: dict[str, str] = {}
    for group in grouped(every):  # among all of them: a setting may tell apart what is alike in the tables
        name = next((titles[run.key] for run in group.runs if run.key in titles), group.label)
        labels |= {run.key: name for run in group.runs}
    evaluated = [node for node in usable if node.stage == "evaluate"]
    played, goals = evaluations(chain, evaluated, labels, every), goal_rows(chain, evaluated, groups)
    times = timings(chain, trained)
    identity = _identity(config, usable)
    results = results_of(config, chain, trained, compared, played, problems, goals)
    inputs = {node.key: Path(node.key) for node in usable}
    result = Run.renew(config.run_dir, stage="report", config=config, inputs=inputs)
    stepped = _stepped(result, chain) if config.episodes else {}
    html = report_page(results, compared, chain, len(trained), played, times, identity, stepped)
    atomic_write(result.file(HTML), html)
    result.write_json(RESULTS, results)
    result.write_json(TIMINGS, Timings(times))
    pictures = _pictures(result, comparisons, config.threshold, identity) + _of_goals(result, goals, identity)
    result.finish(
        [HTML, RESULTS, TIMINGS, *pictures, *stepped.values()],
        report=result.file(HTML),
        identity=identity,
        headline=results.headline,
        training_runs=len(trained),
        problems=len(problems),
        **({"task_set": results.task_set} if results.task_set else {}),
        table=text_table(results.envs, config.threshold),
    )
    return result


def _stepped(result: Run, chain: Chain) -> dict[str, str]:
    """Write, for each potential whose strips are drawn, the page of `bkrl play` about its dataset; their names."""
    names = {}
    for number, node in enumerate(samples.drawn(chain)):
        source, name = chain.input(node, "dataset"), f"episodes-{number}.html"
        if source is not None and source.run is not None and source.sound and node.run is not None:
            with suppress(BkrlError):  # it cannot be opened here; the report says so where it is about it
                dataset = Dataset(source.run)
                chosen = range(min(MOST_STEPPED, dataset.num_episodes))
                names[node.key] = episodes.write(dataset, result.file(name), chosen, node.run.path).name
    return names


def _identity(config: ReportConfig, usable: Sequence[Node]) -> str:
    """Names this report in its pictures: what it was made from and how, so that the same report has the same name."""
    content = {"runs": [node.sha256 for node in usable], "title": config.title, "threshold": config.threshold}
    measure = "" if config.measure == ReportConfig.measure else config.measure
    later = {"measure": measure, "titles": list(config.titles), "tuning_steps": config.tuning_steps}
    content |= {name: one for name, one in later.items() if one}  # reports of before there was one keep their name
    return hashlib.sha256(to_json(content).encode()).hexdigest()


def _pictures(result: Run, comparisons: Sequence[Comparison], threshold: float, identity: str) -> list[str]:
    """The success curves of each env as PNGs for light and dark pages, small multiples where there are many lines."""
    names = []
    for comparison in comparisons:
        styles = styles_of(groups := [row.group for row in comparison.rows])
        drawn = [
            Panel(title, bands_of(comparison, members, SUCCESS), [styles[group.label] for group in members])
            for title, members in panels(groups)
        ]
        for name, dark in picture_files("curves", comparison.env).items():
            write_png(
                result.file(name),
                drawn,
                ylabel=f"{comparison.measure} rate",
                title=comparison.env,
                limits=(0.0, 1.0),
                threshold=threshold,
                dark=dark,
                identity=identity,
            )
            names.append(name)
    return names


def _of_goals(result: Run, rows: Sequence[GoalRow], identity: str) -> list[str]:
    """A picture for each env where goals were judged: how good they were, and what was achieved."""
    names = []
    for env in dict.fromkeys(row.env for row in rows):
        shown = points([row for row in rows if row.env == env])
        for name, dark in picture_files("goals", env).items():
            write_points(
                result.file(name),
                shown,
                title=env,
                xlabel="share of suggested goals that are good",
                ylabel="achievements in an episode",
                dark=dark,
                identity=identity,
            )
            names.append(name)
    return names
