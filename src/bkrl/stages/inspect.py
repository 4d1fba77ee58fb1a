"""A potential under the lens before anything is trained with it: its certificate again, and the potential report."""

from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np

from bkrl.core.errors import UsageError
from bkrl.core.files import atomic_write, to_json
from bkrl.core.reporter import Reporter
from bkrl.core.spacing import end_to_end
from bkrl.data.dataset import Dataset
from bkrl.inspect.certificate import Certificate, certify
from bkrl.inspect.failures import failures
from bkrl.inspect.quality import describe, disagreement
from bkrl.inspect.report import Report, doubts
from bkrl.inspect.summary import Quality, headline_figures, summary
from bkrl.inspect.worth import measure
from bkrl.potentials import dataset_path, load_potential
from bkrl.potentials.protocol import Scaled
from bkrl.report.pages.potential import HTML, QUALITY, STAGE, page
from bkrl.report.plots.strips import Strip, strips
from bkrl.runs.record import Run

WINDOWS = 20_000
_BATCH = 8192


def run(
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
        against: other potentials of the same family of envs to compare with.
        dataset: a collect run; default the one the first potential was built on.
        layouts: of each level that is solved.

    Raises:
        InputError: a potential or the dataset is missing, damaged, or they are of different envs.
        UsageError: `out` holds another run, or a potential is named twice.
    """
    paths = [Path(potential), *map(Path, against)]
    names = names_of(paths)
    runs = [Run.open(path, "train-rm") for path in paths]
    source = dataset_path(runs[0], dataset)
    data = Dataset.open(source)
    potentials: dict[str, Scaled] = {}
    qualities: dict[str, Quality] = {}
    drawn: dict[str, list[Strip]] = {}
    with ExitStack() as opened:
        for name, path in zip(names, paths, strict=True):
            potentials[name] = load_potential(path)
            opened.callback(potentials[name].close)
            potentials[name].artefact.check_fits(path, data)
        result = Run.renew(
            out or Path("logs") / f"potential-report-{names[0]}",
            stage=STAGE,
            config={"potentials": [p.as_posix() for p in paths], "dataset": source.as_posix(), "layouts": layouts},
            inputs={f"potential {number}": path for number, path in enumerate(paths)} | {"dataset": source},
        )
        with reporter.progress("measure potentials", 2 * len(names), "parts") as update:
            for number, (name, phi) in enumerate(potentials.items()):
                update(2 * number, f"{name} on the dataset")
                report = _report(phi, data, runs[number])
                drawn[name] = strips(phi, data)
                update(2 * number + 1, f"{name} on solved levels")
                worth = measure(phi, phi.artefact.env_family, layouts)
                bad = failures(phi, data, report)
                said = summary(report, worth, bad, data.env_id)
                found: Quality = {**report, "worth": worth, "failures": bad, "summary": said, "doubts": doubts(report)}
                qualities[name] = found
                update(2 * number + 2)
        between = disagreement(potentials, data) if len(names) > 1 else None
    shown = {
        name: {**quality, "strips": drawn[name], "disagreement": between if name == names[-1] else None}
        for name, quality in qualities.items()
    }
    files = {QUALITY: to_json({"env_id": data.env_id, "potentials": shown})}
    files[HTML] = page(shown, drawn, f"dataset {data.path.name}, experience of {data.env_id}")
    for name, several in drawn.items():
        files |= {f"strip-{name}-{number}.svg": strip.svg() for number, strip in enumerate(several)}
    for file, text in files.items():
        atomic_write(result.file(file), text)
    facts = {name: headline_figures(quality) for name, quality in qualities.items()}
    result.finish(list(files), env_id=data.env_id, potentials=facts)
    for name, quality in qualities.items():
        reporter.say(f"{name}: {quality['summary']}")
    return result


def check(path: Path, dataset: Path | None = None) -> Certificate:
    """Run the certificate of a finished potential again, on the dataset it was built on or another of its env.

    Raises:
        InputError: the potential or the dataset is missing, damaged, or of another env.
    """
    run = Run.open(path, "train-rm")
    with closing(load_potential(path)) as potential:
        data = Dataset.open(dataset_path(run, dataset))
        potential.artefact.check_fits(path, data)
        return certify(potential, data, int(run.config["config"].get("seed", 0)))


def _report(potential: Scaled, data: Dataset, run: Run) -> Report:
    """A potential's report, made anew on a dataset, without examples: the strips show the same, with pictures."""
    rows = end_to_end(len(data.actions), WINDOWS)
    phi = np.concatenate(
        [potential(data.windows(rows[i : i + _BATCH], potential.reads.horizon)) for i in range(0, len(rows), _BATCH)]
    )
    report = describe(potential, data, phi, run.facts.get("training", {}))
    del report["examples"]
    return report


def names_of(paths: Sequence[Path]) -> list[str]:
    """What each potential of a comparison is called: its folder's name, or its path where folders have one name."""
    names = [path.name.removeprefix("sample:") for path in paths]
    if len(set(paths)) < len(paths):
        raise UsageError("A potential is named twice; name each once.")
    if len(set(names)) < len(names):
        names = [path.as_posix().replace("/", "-").strip(".-") for path in paths]
    if len(set(names)) < len(names):  # x/y and x-y
        names = [f"{number}-{name}" for number, name in enumerate(names, 1)]
    return names
