"""Curves elsewhere: TensorBoard, Weights & Biases, trackio or MLflow get every line of a run's metrics.jsonl, once.

metrics.jsonl is the record; a tracker follows it. tracking.json in the run counts the lines that were sent: a run that
continues at a checkpoint logs some lines again and sends no point twice, nor where it goes from one tracker to another
and back. A tracker that fails is reported once, and the training goes on. API keys those packages read themselves.
"""

import json
import os
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from importlib import util
from typing import Any, NotRequired, Protocol, TypedDict

from bkrl.core.errors import InputError, UsageError
from bkrl.core.files import atomic_write, read_json
from bkrl.core.reporter import Reporter
from bkrl.runs.record import Run

PROJECT = "bkrl"
_STATE = "tracking.json"


class _State(TypedDict):
    kind: str
    lines: int
    id: str
    others: NotRequired[dict[str, "_State"]]


class Tracker(Protocol):
    """A service or a file that takes points."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Keep these values of this step, so that a kill a moment later does not lose them."""

    def close(self) -> None:
        """Say that the process has nothing more to send."""


def check_tracker(kind: str) -> None:
    """UsageError when the package of a tracker is missing; "none" needs none."""
    if kind != "none" and util.find_spec(kind) is None:
        raise UsageError(f"--track {kind} needs another package: pip install 'bkrl[{kind}]'.")


@contextmanager
def tracked(kind: str, run: Run, reporter: Reporter) -> Iterator[None]:
    """Inside the `with` block, what the run logs goes to that tracker too; "none" does nothing."""
    if kind == "none":
        yield
        return
    check_tracker(kind)
    follower = _Follower(kind, run, reporter)
    run.on_log = follower.send
    try:
        yield
    finally:
        run.on_log = None
        follower.close()


class _Follower:
    """Sends each row of metrics.jsonl to the tracker, those of before tracking was asked for too."""

    def __init__(self, kind: str, run: Run, reporter: Reporter) -> None:
        self.run, self.reporter = run, reporter
        self.state = _state(run, kind)
        self.number = 0
        self.tracker: Tracker | None = None
        self.lost = False

    def send(self, row: dict[str, Any]) -> None:
        """Send a row that was just logged, the first time with all rows before it, unless the tracker has had them."""
        if self.lost:
            return
        try:
            rows = [row]
            if self.tracker is None:
                self.tracker, rows = _TRACKERS[self.state["kind"]](self.run, self.state["id"]), self.run.metrics()
            for each in rows:
                self.number += 1
                if self.number > self.state["lines"]:
                    self._send(self.tracker, each)
        except Exception as problem:  # noqa: BLE001 - training goes on without a tracker
            self._give_up(problem)

    def _send(self, tracker: Tracker, row: dict[str, Any]) -> None:
        # Counted before it is sent: a kill between the two loses a point elsewhere, and never doubles one.
        self.state["lines"] = self.number
        atomic_write(self.run.file(_STATE), json.dumps(self.state))
        values = {key: value for key, value in row.items() if key != "step" and isinstance(value, (int, float))}
        if values:
            tracker.log(row["step"], values)

    def close(self) -> None:
        try:
            if self.tracker is not None and not self.lost:
                self.tracker.close()
        except Exception as problem:  # noqa: BLE001 - as above
            self._give_up(problem)

    def _give_up(self, problem: Exception) -> None:
        self.lost = True
        reason = str(problem).strip().split("\n")[0] or type(problem).__name__
        self.reporter.warn(f"tracking with {self.state['kind']} has stopped ({reason}); metrics.jsonl has everything.")


def _state(run: Run, kind: str) -> _State:
    """How many lines of this run the tracker has had, and its name for the run; so, too, of the others."""
    known: dict[str, _State] = {}
    with suppress(InputError):  # none yet, or damaged: everything is sent from the beginning, under a new name
        last: _State = read_json(run.file(_STATE), _State)
        known = last.pop("others", {}) | {last["kind"]: last}
    state = known.pop(kind, {"kind": kind, "lines": 0, "id": uuid.uuid4().hex[:12]})
    return {**state, "others": known}


class _TensorBoard:
    """Event files in the run's folder `tensorboard/`."""

    def __init__(self, run: Run, identity: str) -> None:
        from torch.utils.tensorboard import SummaryWriter

        del identity
        self.writer = SummaryWriter(str(run.file("tensorboard")))  # type: ignore[no-untyped-call]

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for key, value in values.items():
            self.writer.add_scalar(key, value, step)  # type: ignore[no-untyped-call]
        self.writer.flush()  # type: ignore[no-untyped-call]

    def close(self) -> None:
        self.writer.close()  # type: ignore[no-untyped-call]


class _WandB:
    """A run of Weights & Biases; WANDB_MODE=offline keeps it in the run's folder `wandb/`."""

    def __init__(self, run: Run, identity: str) -> None:
        import wandb

        quiet = wandb.Settings(console="off", silent=True, disable_git=True, save_code=False)
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=run.path.as_posix(),
            id=identity,
            resume="allow",
            dir=str(run.path),
            config=run.config["config"],
            settings=quiet,
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.run.log(dict(values), step=step)

    def close(self) -> None:
        self.run.finish()


class _Trackio:
    """A run of trackio, which keeps it on this machine."""

    def __init__(self, run: Run, identity: str) -> None:
        import trackio

        self.module = trackio
        name = f"{run.path.as_posix()} {identity}"
        with redirect_stdout(sys.stderr):  # it prints on stdout, where results go
            trackio.init(project=PROJECT, name=name, config=run.config["config"], resume="allow", embed=False)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.module.log(dict(values), step=step)

    def close(self) -> None:
        with redirect_stdout(sys.stderr):
            self.module.finish()


class _MLflow:
    """A run of MLflow: at MLFLOW_TRACKING_URI, else in the run's folder `mlruns/`."""

    def __init__(self, run: Run, identity: str) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # folders are refused otherwise, for having no updates
        from mlflow import MlflowClient

        place = os.environ.get("MLFLOW_TRACKING_URI") or run.file("mlruns").resolve().as_uri()
        self.client = MlflowClient(place)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        known = self.client.get_experiment_by_name(name)
        experiment = known.experiment_id if known is not None else self.client.create_experiment(name)
        found = self.client.search_runs([experiment], f"tags.bkrl = '{identity}'")
        if not found:
            found = [self.client.create_run(experiment, tags={"bkrl": identity}, run_name=run.path.as_posix())]
            for key, value in run.config["config"].items():
                self.client.log_param(found[0].info.run_id, key, str(value)[:500])
        self.run = found[0].info.run_id
        self.client.update_run(self.run, "RUNNING")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self.client.log_batch(self.run, [Metric(key, float(value), now, step) for key, value in values.items()])

    def close(self) -> None:
        self.client.set_terminated(self.run)


_TRACKERS: dict[str, type] = {"tensorboard": _TensorBoard, "wandb": _WandB, "trackio": _Trackio, "mlflow": _MLflow}
