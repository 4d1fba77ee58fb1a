"""The verbs as functions, for scripts and notebooks. The command line calls the same stages with the same settings.

Each function takes the frozen settings of its verb (`bkrl.core.config`) and shows progress on stderr, or in the
output of a notebook's cell; `progress=False` makes it silent. The same call again continues what was interrupted, or
returns the complete run. All of them raise `UsageError` for settings that cannot mean anything, `InputError` for inputs
that are missing or damaged, `RunFailed` when the work itself fails: each with one sentence that says what to do next.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from bkrl.cli.progress import reporter
from bkrl.core.config import CollectConfig, EvaluateConfig, ReportConfig
from bkrl.core.errors import UsageError
from bkrl.core.flags import changed, without_effect
from bkrl.core.reporter import Reporter
from bkrl.core.settings import checked
from bkrl.labelers.config import LabelConfig
from bkrl.methods import TrainRsConfig
from bkrl.potentials.config import TrainRmConfig
from bkrl.runs.record import Run, releasing

if TYPE_CHECKING:
    from bkrl.llm.forecast import Outlook


def collect(config: CollectConfig, *, progress: bool = True) -> Run:
    """Record experience with captions; `Dataset.open(run.path)` reads it."""
    return cast("Run", _stage("collect", config, progress))


def label(config: LabelConfig, *, progress: bool = True) -> Run | Outlook | None:
    """Ask an annotator about a dataset.

    Returns:
        The run; with `dry_run` what asking would cost; with `batch` other than "off" None as long as answers are due.
    """
    from bkrl.cli.commands import labels

    return labels.label(*_ready(config, progress))


def train_rm(config: TrainRmConfig, *, progress: bool = True) -> Run:
    """Make a potential Φ of labels; `load_potential(run.path)` reads it."""
    return cast("Run", _stage("train_rm", config, progress))


def train_rs(config: TrainRsConfig, *, progress: bool = True) -> Run:
    """Train a policy, its reward shaped by a potential or not; `run.metrics()` has the curves."""
    return cast("Run", _stage("train_rs", config, progress))


def evaluate(config: EvaluateConfig, *, progress: bool = True) -> Run:
    """Measure a frozen policy on seeded episodes; `run.facts` has the figures."""
    return cast("Run", _stage("evaluate", config, progress))


def make_report(config: ReportConfig, *, progress: bool = True) -> Run:
    """Write curves, tables and one HTML file about some runs."""
    return cast("Run", _stage("report", config, progress))


def _stage(name: str, config: Any, progress: bool) -> Any:
    with releasing():  # a notebook keeps the error that ended a cell
        return import_module(f"bkrl.stages.{name}").run(*_ready(config, progress))


def _ready(config: Any, progress: bool) -> tuple[Any, Reporter]:
    """Settings found to make sense, and who tells of progress."""
    config = checked(config)
    for setting, belongs in without_effect(config, changed(config)).items():
        raise UsageError(f"{setting} has no effect here, only with {belongs}; leave it out.")
    return config, reporter() if progress else Reporter()
