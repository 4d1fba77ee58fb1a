"""A potential's report as train-rm keeps it, and what in it says that Φ may mislead."""

from pathlib import Path
from typing import NotRequired, TypedDict

from bkrl.core.files import read_json
from bkrl.core.reporter import percent, percents
from bkrl.potentials import EMPTY
from bkrl.runs.record import Run

REPORT = "potential_report.json"
CHANCE = 0.5


class Segments(TypedDict):
    """How many solved and failed episodes were compared, and how often the former's segment is above, with its 95 %
    interval; None with fewer than 5 of either.
    """

    solved: NotRequired[int]
    failed: NotRequired[int]
    above: NotRequired[float | None]
    low: NotRequired[float | None]
    high: NotRequired[float | None]


class Changes(TypedDict):
    """In what share of windows Φ changes, and by how much on average."""

    changed: float
    mean: float


class TrainingFigures(TypedDict):
    """What is read of what making a potential found; each kind has more. A `part` has the figures of the whole."""

    part: NotRequired[str]
    accuracy: NotRequired[float | None]
    accuracy_low: NotRequired[float | None]
    accuracy_high: NotRequired[float | None]
    similarity_retrieved: NotRequired[dict[str, float]]
    similarity_unrelated: NotRequired[dict[str, float]]


class Spread(TypedDict):
    """Of Φ over the dataset; quantiles by their percentage."""

    mean: float
    std: NotRequired[float]
    quantiles: dict[str, float]


class CourseExample(TypedDict):
    """The course of Φ over the last steps of an episode."""

    episode: int
    success: bool
    phi: list[float]
    first_step: NotRequired[int]
    captions: NotRequired[list[str]]
    actions: NotRequired[list[str]]


class Report(TypedDict):
    """potential_report.json; earlier versions wrote less.

    scale: raw values (lo, hi) that became -1 and 0. coverage: share of windows whose Φ is not the most frequent value;
    constancy: 1 - coverage; levels: distinct values. step_change: mean |Φ' - Φ| inside episodes. ordering: how often
    the end of a successful episode is above another window, None with fewer than 5 of them. progress: mean rank
    correlation of Φ with time inside successful episodes, None without any. segments, foresight, sensitivity: see the
    functions of those names.
    """

    kind: NotRequired[str]
    control: NotRequired[str]
    horizon: NotRequired[int]
    env_id: NotRequired[str]
    scale: NotRequired[dict[str, float | None]]
    windows: NotRequired[int]
    coverage: NotRequired[float]
    constancy: NotRequired[float]
    levels: NotRequired[int]
    phi: NotRequired[Spread]
    ordering: NotRequired[float | None]
    progress: NotRequired[float | None]
    step_change: NotRequired[float | None]
    segments: NotRequired[Segments]
    foresight: NotRequired[float | None]
    sensitivity: NotRequired[dict[str, Changes]]
    training: NotRequired[TrainingFigures]
    examples: NotRequired[list[CourseExample]]


def report_of(run: Run) -> Report | None:
    """The report of a train-rm run on its potential, where it has one; InputError when that is damaged."""
    report: Report | None = read_json(run.file(REPORT), Report) if REPORT in run.manifest["outputs"] else None
    return report


def doubts_of(run: Run) -> list[str]:
    """What a train-rm run's own report says against its Φ; nothing of a control, which is meant to be so."""
    report = report_of(run) if run.facts.get("control", "none") == "none" else None
    return [] if report is None else doubts(report)


def doubts(report: Report) -> list[str]:
    """What in a potential's report says that its Φ may mislead: clauses with their figures, none where nothing does.

    Only what is no better than chance is named. None of it is a proof: a potential may order states well and still slow
    learning down, or the other way round.
    """
    if report.get("coverage") == 0:  # Φ = 0 beside advice
        return []
    found = []
    segments, training = report.get("segments", {}), report.get("training", {})
    ordering = report.get("ordering")
    if ordering is not None and ordering <= CHANCE:
        found.append(f"it puts ends in success above other windows in {percent(ordering)} of cases")
    above, low, high = segments.get("above"), segments.get("low"), segments.get("high")
    if above is not None and low is not None and high is not None and high <= CHANCE:
        found.append(
            f"it puts the last moments before success above moments of failed episodes in {percent(above)} "
            f"of cases (95 % interval {percents(low, high)})"
        )
    accuracy, low, high = training.get("accuracy"), training.get("accuracy_low"), training.get("accuracy_high")
    if "part" in training:  # it is that of the whole
        accuracy = None
    # where no held-out pair is decided, the accuracy is NaN
    if accuracy is not None and accuracy >= 0 and low is not None and high is not None and low <= CHANCE:
        found.append(
            f"its network orders {percent(accuracy)} of unseen pairs as they are labelled (95 % interval "
            f"{percents(low, high)})"
        )
    found = [f"{one}, where chance is {percent(CHANCE)}" for one in found]
    retrieved = training.get("similarity_retrieved", {}).get("50")
    unrelated = training.get("similarity_unrelated", {}).get("50")
    if retrieved is not None and unrelated is not None and retrieved <= unrelated:
        found.append(
            f"the goals retrieved for a moment are no nearer to it (median similarity {retrieved:.3f}) than goals of "
            f"unrelated moments ({unrelated:.3f})"
        )
    return found


def cautions(report: Report, control: str, advice: str | None, path: Path) -> list[str]:
    """Sentences about what should be known before anybody trains with the potential of the run at `path`; a control is
    meant to be so. `advice`: see `advice_source`.
    """
    said = []
    if control == "none" and (found := doubts(report)):
        said.append(f"Φ may mislead: {'; '.join(found)}. Look at `bkrl potential report {path}` before training.")
    if control != "zero" and advice == EMPTY:
        said.append(
            "Its advice is empty (Ψ = 0): it says next to nothing about actions, and --shaping advice would be plain "
            "PPO."
        )
    return said
