"""Study files: sections, tasks, algorithms and seeds in TOML → the cells of a study, and where each run lives.

A cell is one stage with its settings. What a cell needs can be read off its settings: the run directories they name.
docs/studies.md describes the format.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from bkrl.core import config as settings
from bkrl.core.documents import Mismatch, parse_toml, typed
from bkrl.core.errors import InputError, UsageError
from bkrl.core.registry import did_you_mean
from bkrl.envs import env_spec
from bkrl.llm import UNINFORMED
from bkrl.llm.opening import check_name
from bkrl.runs.samples import PREFIX
from bkrl.studies.section import Cell, StudySection
from bkrl.studies.tables import check_choice, check_keys, check_unique, name_of_folder, tables_of

_STUDY_KEYS = {"title", "minutes", "set", "tuning_steps", "world", "slurm"}


@dataclass(frozen=True)
class Study:
    """The cells of a study, in an order in which each comes after what it needs, and the report of them all.

    Attributes:
        title: of the report.
        minutes: measured on two cores, for the estimate given at the start.
        cells: everything but the report.
        report: made of all training and evaluation runs.
        slurm: settings for the slurm executor, as the file gives them.
    """

    title: str
    minutes: float
    cells: tuple[Cell, ...]
    report: Cell
    slurm: Mapping[str, Any] = field(default_factory=dict)

    @property
    def preparation(self) -> list[Cell]:
        """What comes before training: datasets, labels, potentials, language models."""
        return [cell for cell in self.cells if cell.stage not in ("train_rs", "evaluate")]

    @property
    def training(self) -> list[Cell]:
        """The train-rs cells."""
        return [cell for cell in self.cells if cell.stage == "train_rs"]

    @property
    def evaluation(self) -> list[Cell]:
        """The evaluate cells."""
        return [cell for cell in self.cells if cell.stage == "evaluate"]


def presets() -> list[str]:
    """The names of the shipped study files."""
    files = resources.files(__package__).iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


def shipped(name: str) -> dict[str, Any]:
    """The document of a shipped study."""
    return parse_toml(resources.files(__package__).joinpath(f"{name}.toml").read_text(encoding="utf-8"))


class _Head(TypedDict):
    """What a study says of itself."""

    title: NotRequired[str]
    minutes: NotRequired[Annotated[float, settings.Flag("", least=0, most=10_000_000)]]
    set: NotRequired[Literal["first", "second"]]
    tuning_steps: NotRequired[Annotated[int, settings.Flag("", least=0)]]
    slurm: NotRequired[dict[str, Any]]


def load_study(study: str, out: Path, llm: str = "") -> Study:
    """Read a study file, or a shipped one by its name, and place all its runs under `out`. `llm`: who is asked anew
    where the study has recorded answers of a sample.

    Raises:
        InputError: the file is missing or is not TOML.
        UsageError: it asks for something that does not exist.
    """
    if study in presets():
        document = shipped(study)
    elif study.endswith(".toml") or "/" in study:
        try:
            document = parse_toml(Path(study).read_text(encoding="utf-8-sig"))
        except OSError as error:
            raise InputError(f"The study file {study} cannot be read ({error.strerror}).") from None
        except UnicodeDecodeError:
            raise InputError(f"The study file {study} is not text in UTF-8; save it as that.") from None
        except Mismatch as error:
            raise InputError(f"The study file {study} is not TOML: {error}.") from None
    else:
        near, known = did_you_mean(study, presets()), ", ".join(presets())
        raise UsageError(f"There is no shipped study '{study}'.{near} Known: {known}; or name a .toml file.")
    if llm and (document := _asked_anew(recorded := document, llm)) == recorded:
        raise UsageError(f"The study {study} has no recorded answers; leave --llm out.")
    planned = plan(document, out, Path(study).stem)
    _check_names(planned.cells)
    _check_alike(planned.cells)
    return planned


def _asked_anew(document: Any, llm: str) -> Any:
    """The document with `llm` wherever answers of a sample are replayed."""
    if isinstance(document, Mapping):
        return {key: _asked_anew(value, llm) for key, value in document.items()}
    if isinstance(document, list):
        return [_asked_anew(one, llm) for one in document]
    return llm if isinstance(document, str) and document.startswith(f"replay:{PREFIX}") else document


def plan(document: Mapping[str, Any], out: Path, name: str = "") -> Study:
    """The cells of a study document, all under `out`; UsageError names what is invalid. `name`: of the study."""
    check_keys(document, _STUDY_KEYS, "A study")
    try:
        typed(_Head, document)
    except Mismatch as problem:
        raise UsageError(f"A study's {problem}.") from None
    sections = tables_of(document, "world", "A study")
    if not sections:
        raise UsageError("A study needs at least one [[world]].")
    planned = [StudySection(_with_tasks(table, sections), out) for table in sections]
    if "set" in document:
        for each in planned:
            each.check_set(document["set"])
    _check_earlier(planned)
    cells = [
        cell for part in ("preparation", "training", "evaluation") for each in planned for cell in vars(each)[part]
    ]
    _apart([*(cell.run_dir for cell in cells), out / "report", out / "sweep"])
    title, minutes, slurm = document.get("title", "bkrl study"), document.get("minutes", 0), document.get("slurm", {})
    runs = tuple(cell.run_dir for cell in cells if cell.stage in ("train_rs", "evaluate"))
    titles = _titles(planned)
    asked = settings.ReportConfig(
        runs=runs,
        out=out / "report",
        title=title,
        name=name,
        tuning_steps=document.get("tuning_steps", 0),
        titles=tuple(f"{entry}={said}" for entry, said in titles.items() if said),
    )
    report = Cell("report", asked)
    return Study(title, float(minutes), tuple(cells), report, slurm)


def _with_tasks(section: Mapping[str, Any], sections: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """A section with the tasks of another, which it names as `tasks = "NAME"`."""
    if "tasks" not in section:
        return section
    named = {name_of_folder(one, "world"): one["task"] for one in sections if "task" in one}
    check_choice(section["tasks"], list(named), f"tasks of {section.get('name')}")
    if "task" in section:
        raise UsageError(f"{section['name']} has tasks of its own, and those of {section['tasks']}; leave one out.")
    return {key: value for key, value in section.items() if key != "tasks"} | {"task": named[section["tasks"]]}


def _titles(sections: Sequence[StudySection]) -> dict[str, str]:
    """The title of each entry, by its name, which is all that a report knows it by; UsageError where it has several."""
    titles: dict[str, str] = {}
    for name, title in (pair for one in sections for pair in one.titles):
        if titles.setdefault(name, title) != title:
            raise UsageError(f"Entries named '{name}' differ in their title; give them one title, or rename one.")
    return titles


def _check_earlier(sections: Sequence[StudySection]) -> None:
    """UsageError for a run that starts from one of the study that does not stand above it."""
    above: set[Path] = set()
    for one in sections:
        for cell in one.training:
            named = [path for name in ("init_from", "guide") if (path := vars(cell.config).get(name))]
            if lost := one.begun.intersection(named) - above:
                raise UsageError(
                    f"{cell.run_dir} begins with {lost.pop()}, and no entry above it has such a run; mend 'after' or "
                    "'guide', or the seeds."
                )
            above.add(cell.run_dir)


def _check_names(cells: Sequence[Cell]) -> None:
    """UsageError for the first cell whose env or annotator does not exist, before anything runs."""
    annotator = partial(check_name, others=UNINFORMED, what="llm")
    known: dict[str, Callable[[str], object]] = {"env": env_spec, "llm": annotator}
    asked = {(of, name): cell for cell in reversed(cells) for of in known if (name := vars(cell.config).get(of))}
    for (of, name), cell in asked.items():
        try:
            known[of](name)
        except UsageError as problem:
            raise UsageError(f"{cell.stage} in {cell.run_dir}: {problem}") from None


def _check_alike(cells: Sequence[Cell]) -> None:
    """UsageError for the first cell that reads a potential, demonstrations or a policy of another kind of env."""
    made = {cell.run_dir: vars(cell.config) for cell in cells}
    for cell in cells:
        own = vars(cell.config)
        read = (made.get(own.get("potential"), {}).get("dataset"), own.get("data"), own.get("policy"))
        for there in (made[path]["env"] for path in read if path in made):
            here, other = env_spec(own["env"] or there), env_spec(there)
            if (here.family, here.action_names) != (other.family, other.action_names):
                raise UsageError(
                    f"{cell.stage} in {cell.run_dir}: what it reads is of {there} ({other.family}), whose observations "
                    f"or actions are others than those of {own['env']} ({here.family}); change one env."
                )


def _apart(folders: Sequence[Path]) -> None:
    """UsageError when two cells would share a run directory, or one would live inside another's."""
    check_unique([folder.as_posix() for folder in folders], "the study; give each section, task and entry its own name")
    taken = set(folders)
    for folder in folders:
        if inside := taken.intersection(folder.parents):
            raise UsageError(f"{folder} would lie inside another run, {inside.pop()}; choose other names.")
