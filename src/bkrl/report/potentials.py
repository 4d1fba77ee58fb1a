"""The potential report: what a potential is worth before any reinforcement learning, as JSON, pictures and one page.

`write` makes the report of one or more potentials. `section` gives the same as a piece of another page.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from bkrl.core.errors import InputError, UsageError
from bkrl.core.files import atomic_write, read_json, to_json
from bkrl.core.reporter import Reporter, percent, percents
from bkrl.core.spacing import end_to_end
from bkrl.data.dataset import Dataset
from bkrl.envs import world
from bkrl.inspect.quality import SEGMENT, courses, describe, disagreement, doubts
from bkrl.inspect.worth import measure
from bkrl.potentials import dataset_of, load_potential
from bkrl.potentials.protocol import Scaled
from bkrl.report.pages import html
from bkrl.report.strips import Strip, moments, pictures
from bkrl.runs.record import Run

STAGE = "potential-report"
HTML, QUALITY = "potential.html", "quality.json"
WINDOWS = 20_000
_BATCH = 8192


def write(
    potential: Path,
    reporter: Reporter,
    *,
    out: Path | None = None,
    against: Sequence[Path] = (),
    dataset: Path | None = None,
    layouts: int = 6,
) -> Run:
    """Measure potentials and write quality.json, potential.html and the strips as SVG files; made anew each time.

    Args:
        potential: a train-rm run.
        reporter: where progress goes.
        out: run directory; default logs/potential-report-NAME.
        against: other potentials of the same family of worlds to compare with.
        dataset: a collect run; default the one the first potential was built on.
        layouts: of each level that is solved.

    Raises:
        InputError: a potential or the dataset is missing, damaged, or they are of different worlds.
        UsageError: `out` holds another run, or a potential is named twice.
    """
    paths = [Path(potential), *map(Path, against)]
    names = _names(paths)
    runs = [Run.open(path, "train-rm") for path in paths]
    source = dataset_of(runs[0], dataset)
    data = Dataset.open(source)
    folder = out or Path("logs") / f"potential-report-{names[0]}"
    potentials: dict[str, Scaled] = {}
    try:
        for name, path in zip(names, paths, strict=True):
            potentials[name] = load_potential(path)
            _check(path, potentials[name], data)
        result = Run.renew(
            folder,
            stage=STAGE,
            config={"potentials": [p.as_posix() for p in paths], "dataset": source.as_posix(), "layouts": layouts},
            inputs={f"potential {number}": path for number, path in enumerate(paths)} | {"dataset": source},
        )
        qualities: dict[str, Any] = {}
        drawn: dict[str, list[Strip]] = {}
        with reporter.progress("measure potentials", 2 * len(names), "parts") as update:
            for number, (name, phi) in enumerate(potentials.items()):
                update(2 * number, f"{name} on the dataset")
                qualities[name] = _describe(phi, data, runs[number])
                drawn[name] = strips(phi, data)
                update(2 * number + 1, f"{name} on solved levels")
                qualities[name]["worth"] = measure(phi, phi.artefact.env_family, layouts)
                qualities[name]["summary"] = summary(qualities[name])
                qualities[name]["doubts"] = doubts(qualities[name])
                update(2 * number + 2)
        between = disagreement(potentials, data) if len(names) > 1 else None
    finally:
        for phi in potentials.values():
            phi.close()
    outputs = _store(result, data, qualities, drawn, between)
    facts = {name: headline_figures(quality) for name, quality in qualities.items()}
    result.finish(outputs, env_id=data.env_id, potentials=facts)
    for name, quality in qualities.items():
        reporter.say(f"{name}: {quality['summary']}")
    return result


def strips(potential: Scaled, dataset: Dataset) -> list[Strip]:
    """Φ over one solved and one failed episode of a dataset (best and worst return where there is only one kind)."""
    found = []
    for course in courses(potential, dataset):
        rows = course["rows"]
        phi = [round(float(value), 4) for value in course["phi"]]
        shown = moments(phi)
        drawn = pictures(world(dataset.env_id).family, dataset.observations[rows[shown]])
        found.append(
            Strip(
                title=f"Φ over episode {course['episode']} ({course['kind']}, return {course['return']:.3g})",
                first_step=int(dataset.ages[rows[0]]),
                phi=phi,
                captions=[dataset.caption(int(row)) for row in rows],
                actions=[dataset.action_names[action] for action in dataset.actions[rows[:-1]]],
                pictures=[drawn[shown.index(i)] if i in shown else "" for i in range(len(rows))],
            )
        )
    return found


def section(path: Path) -> Markup:
    """The body of a finished potential report, one part a potential, for another page that has bkrl's style.

    Raises:
        InputError: no complete potential report is there, or one of its files was changed.
    """
    result = Run.open(path, STAGE)
    document = read_json(result.file(QUALITY))
    body = Markup("")
    for name, quality in document["potentials"].items():
        drawn = [Strip(**one) for one in quality["strips"]]
        body += Markup("<h4>{}</h4>").format(name) + _part(quality, drawn, level=4)
    return body


def headline_figures(quality: dict[str, Any]) -> dict[str, Any]:
    """The few figures a terminal shows."""
    small, paper = (quality["worth"][part] or {} for part in ("small", "paper"))
    return {
        "rank correlation with the optimal value in play": small.get("mean_play_rho"),
        "rank correlation with the optimal value, all states": small.get("mean_states_rho"),
        "rank correlation with the way to success in play": paper.get("mean_play_rho"),
        "note": quality["worth"]["note"] or None,
        "before success above failed": quality["segments"]["above"],
        "rank correlation with the recorded return": quality["foresight"],
        "coverage": quality["coverage"],
    }


def summary(quality: dict[str, Any]) -> str:
    """What stands out, in two or three sentences."""
    small, paper = quality["worth"]["small"], quality["worth"]["paper"]
    said = []
    if small and small["mean_states_rho"] is not None:
        rho = small["mean_play_rho"] if small["mean_play_rho"] is not None else small["mean_states_rho"]
        text = f"In {small['where']}, Φ orders states as their optimal value does with a rank correlation of {rho:.2f}"
        if paper and paper["mean_play_rho"] is not None:
            text += f", and in {paper['where']}, as their distance to success with {paper['mean_play_rho']:.2f}"
        said.append(text + f", on average over {_tasks(small)}.")
    if quality["ordering"] is not None:
        said.append(
            f"On the dataset ({quality['env_id']}), the end of a solved episode lies above other windows "
            f"{percent(quality['ordering'])} of the time."
        )
    segments = quality["segments"]
    if segments["above"] is not None:
        said.append(
            f"The last {SEGMENT} moments before success lie above {SEGMENT} moments of failed episodes "
            f"{percent(segments['above'])} of the time ({percents(segments['low'], segments['high'])})."
        )
    if quality["coverage"] == 0:
        said.append("Φ is constant: it shapes nothing.")
    else:
        said.append(f"It differs from its commonest value in {percent(quality['coverage'])} of windows.")
    return " ".join(said)


def _tasks(part: dict[str, Any]) -> str:
    """The tasks that a mean in play is over, and in how many of them Φ is constant."""
    play = [row["play_rho"] or {} for row in part["tasks"]]
    known, total = sum(one.get("rho") is not None for one in play), len(play)
    flat = sum(one.get("constant", False) for one in play)
    if not known:
        return "tasks"
    over = "tasks" if known + flat == total else f"the {known + flat} of {total} tasks where it has one in play"
    return over + (f", {flat} of {total} counted as 0: Φ is constant there and ranks nothing" if flat else "")


def _describe(potential: Scaled, data: Dataset, run: Run) -> dict[str, Any]:
    rows = end_to_end(len(data.actions), WINDOWS)
    phi = np.concatenate(
        [potential(data.windows(rows[i : i + _BATCH], potential.horizon)) for i in range(0, len(rows), _BATCH)]
    )
    quality = describe(potential, data, phi, run.facts.get("training", {}))
    quality.pop("examples")  # the strips show the same, with pictures
    return quality


def _store(
    result: Run,
    data: Dataset,
    qualities: dict[str, Any],
    drawn: dict[str, list[Strip]],
    between: dict[str, Any] | None,
) -> list[str]:
    outputs = [QUALITY, HTML]
    parts: list[dict[str, Any]] = []
    for name, quality in qualities.items():
        for number, strip in enumerate(drawn[name]):
            file = f"strip-{name}-{number}.svg"
            atomic_write(result.file(file), strip.svg())
            outputs.append(file)
        last = len(parts) == len(qualities) - 1
        quality["strips"] = drawn[name]
        quality["disagreement"] = between if last else None
        body = _part(quality, drawn[name], level=2 if len(qualities) == 1 else 3)
        parts.append({"name": name, "body": body})
    atomic_write(result.file(QUALITY), to_json({"env_id": data.env_id, "potentials": qualities}))
    title = " and ".join(qualities) if len(qualities) < 3 else f"{len(qualities)} potentials"
    page = {"title": title, "meta": f"dataset {data.path.name}, experience of {data.env_id}", "parts": parts}
    atomic_write(result.file(HTML), html.render(page, "potential"))
    return outputs


def _part(quality: dict[str, Any], drawn: Sequence[Strip], level: int) -> Markup:
    svgs = [Markup(strip.svg()) for strip in drawn]  # ours; the texts of others in them are escaped
    return html.fragment("quality", {"quality": quality, "strips": svgs, "level": level})


def _names(paths: Sequence[Path]) -> list[str]:
    names = [path.name.removeprefix("sample:") for path in paths]
    if len(set(paths)) < len(paths):
        raise UsageError("A potential is named twice; name each once.")
    if len(set(names)) < len(names):
        names = [path.as_posix().replace("/", "-").strip(".-") for path in paths]
    return names


def _check(path: Path, potential: Scaled, data: Dataset) -> None:
    artefact = potential.artefact
    if artefact.obs_shape != data.obs_shape or artefact.action_names != data.action_names:
        raise InputError(
            f"{path} was built in {artefact.env_id}, and {data.path} holds experience of {data.env_id}; name a "
            "--dataset and potentials of one family of worlds."
        )
