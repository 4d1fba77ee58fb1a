"""Trackers follow metrics.jsonl: every line once, whatever happens to the run or to the tracker."""

import json
import os
import re
import time
from pathlib import Path

import pytest

from bkrl.cli.main import run_command
from bkrl.core.errors import UsageError
from bkrl.core.reporter import Reporter
from bkrl.methods import TrainRsConfig
from bkrl.runs import tracking
from bkrl.runs.record import Run
from bkrl.runs.tracking import tracked
from bkrl.studies.clocks import last_step
from tests.commands import Started


class Memory:
    """A tracker that remembers what it was given."""

    points: list = []
    made: list = []

    def __init__(self, run, identity):
        Memory.made.append(identity)

    def log(self, step, values):
        Memory.points.append((step, values))

    def close(self):
        Memory.made.append("closed")


class Told(Reporter):
    def __init__(self):
        self.warned = []

    def warn(self, text):
        self.warned.append(text)


@pytest.fixture
def memory(monkeypatch):
    Memory.points, Memory.made = [], []
    monkeypatch.setitem(tracking._TRACKERS, "tensorboard", Memory)
    return Memory


def a_run(path):
    return Run.create(path, stage="train-rs", config=TrainRsConfig(out=path))


def cut(run, lines):
    """Go back to a checkpoint: what was logged after it is forgotten."""
    run.close()
    path = run.file("metrics.jsonl")
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:lines]))


def test_each_line_is_sent_once_also_after_a_resume_and_what_came_before_is_caught_up(tmp_path, memory):
    run = a_run(tmp_path / "r")
    run.log(0, a=0.0)
    with tracked("tensorboard", run, Reporter()):
        run.log(1, a=1.0, b=float("nan"))
        run.log(1, b=5.0)
        run.log(2, a=2.0)
    assert memory.points == [(0, {"a": 0.0}), (1, {"a": 1.0}), (1, {"b": 5.0}), (2, {"a": 2.0})]
    cut(run, 2)
    with tracked("tensorboard", run, Reporter()):
        for step, value in ((1, 5.0), (2, 2.0), (3, 3.0)):
            run.log(step, b=value)
    assert memory.points[4:] == [(3, {"b": 3.0})]
    first, _, second, _ = memory.made
    assert first == second  # the same run for the tracker, too


def test_from_one_tracker_to_another_and_back_no_point_is_sent_twice(tmp_path, memory, monkeypatch):
    monkeypatch.setitem(tracking._TRACKERS, "mlflow", Memory)
    monkeypatch.setattr(tracking, "check_tracker", lambda kind: None)
    run = a_run(tmp_path / "r")
    for step, kind in enumerate(("tensorboard", "mlflow", "tensorboard", "mlflow")):
        with tracked(kind, run, Reporter()):
            run.log(step, a=float(step))
    assert [step for step, _ in memory.points] == [0, 0, 1, 1, 2, 2, 3]  # each tracker catches up with what it lacks
    first, _, second, *_ = memory.made
    assert memory.made[::2] == [first, second, first, second]
    assert first != second


def test_a_tracker_that_fails_is_named_once_and_the_run_goes_on(tmp_path, memory, monkeypatch):
    def fail(self, step, values):
        raise OSError("the network is down\nand more")

    monkeypatch.setattr(Memory, "log", fail)
    run, told = a_run(tmp_path / "r"), Told()
    with tracked("tensorboard", run, told):
        run.log(0, a=0.0)
        run.log(1, a=1.0)
    assert len(run.metrics()) == 2
    (warning,) = told.warned
    assert "tensorboard has stopped (the network is down)" in warning


def test_a_kill_while_a_point_is_sent_loses_it_and_doubles_none(tmp_path, memory, monkeypatch):
    send = Memory.log

    def killed(self, step, values):
        send(self, step, values)
        raise KeyboardInterrupt

    run = a_run(tmp_path / "r")
    with monkeypatch.context() as during:
        during.setattr(Memory, "log", killed)
        with pytest.raises(KeyboardInterrupt), tracked("tensorboard", run, Reporter()):
            run.log(0, a=0.0)
    with tracked("tensorboard", run, Reporter()):
        run.log(1, a=1.0)
    assert memory.points == [(0, {"a": 0.0}), (1, {"a": 1.0})]


def test_the_record_of_what_was_sent_is_never_torn(tmp_path, memory, monkeypatch):
    """A kill between emptying the file and writing it would have every point sent again."""
    run = a_run(tmp_path / "r")
    with tracked("tensorboard", run, Reporter()):
        run.log(0, a=0.0)
        before = run.file("tracking.json").read_text()
        monkeypatch.setattr(os, "fsync", lambda descriptor: (_ for _ in ()).throw(OSError(28, "killed here")))
        run.log(1, a=1.0)
    assert run.file("tracking.json").read_text() == before


def test_a_damaged_record_of_what_was_sent_begins_anew(tmp_path, memory):
    run = a_run(tmp_path / "r")
    run.file("tracking.json").write_text('{"kind": "tensorb')
    with tracked("tensorboard", run, Reporter()):
        run.log(0, a=0.0)
    assert memory.points == [(0, {"a": 0.0})]


def test_a_missing_package_is_named_before_anything_is_made(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tracking.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'bkrl\[wandb\]'"):
        tracking.check_tracker("wandb")
    assert run_command(["train-rs", "--env", "Toy-Chain", "--track", "trackio", "--out", str(tmp_path / "r")]) == 2
    assert "bkrl[trackio]" in capsys.readouterr().err
    assert not (tmp_path / "r").exists()


FLAGS = ["train-rs", "--env", "Toy-Chain", "--steps", "10240", "--eval-every", "5120", "--eval-episodes", "4"]
FLAGS += ["--checkpoint-every", "1024", "--num-envs", "8", "--num-steps", "32", "--track", "tensorboard", "--out"]


@pytest.mark.slow
def test_tensorboard_has_every_point_once_after_a_kill(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    out = tmp_path / "r"
    process = Started([*FLAGS, out])
    deadline = time.monotonic() + 120
    while last_step(out) < 3000 and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()
    assert not (out / "manifest.json").exists()
    assert run_command([*FLAGS, str(out)]) == 0
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    logged = {key for row in rows for key in row if key != "step"}
    events = accumulator.EventAccumulator(str(out / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    assert set(events.Tags()["scalars"]) == logged
    pages = (Path(__file__).parents[2] / "docs" / "studies.md").read_text()
    assert logged <= set(re.findall(r"`(\w+/\w+)`", pages)), "each metric stands in docs/studies.md"
    for key in ("ppo/entropy", "eval/return", "rollout/return"):
        wanted = [row["step"] for row in rows if isinstance(row.get(key), float)]
        steps = [event.step for event in events.Scalars(key)]
        assert len(set(steps)) == len(steps)
        assert set(steps) <= set(wanted)
        assert len(steps) >= len(wanted) - 1  # the kill may have come between counting a line and writing it
    assert any(abs(event.value - row["ppo/entropy"]) < 1e-6 for row in rows for event in events.Scalars("ppo/entropy")
               if row["step"] == event.step and "ppo/entropy" in row)  # fmt: skip


@pytest.mark.parametrize("kind", ["wandb", "trackio", "mlflow"])
def test_the_others_work_without_a_network_and_write_no_secret(tmp_path, monkeypatch, capsys, kind):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("OPENAI_API_KEY", "sk-CANARY-1234567890")
    monkeypatch.setenv("WANDB_API_KEY", "c" * 40)
    pytest.importorskip(kind)
    told = Told()
    run = a_run(tmp_path / "r")
    with tracked(kind, run, told):
        run.log(0, **{"eval/return": 0.5})
        run.log(256, **{"eval/return": 0.75})
    cut(run, 1)
    with tracked(kind, run, told):
        run.log(256, **{"eval/return": 0.75})
        run.log(512, **{"eval/return": 1.0})
    assert told.warned == []
    assert capsys.readouterr().out == ""
    written = [path for path in Path(tmp_path).rglob("*") if path.is_file()]
    assert any(kind in path.as_posix().replace("mlruns", "mlflow") for path in written)
    for path in written:
        raw = path.read_bytes()
        assert b"CANARY" not in raw, path
        assert b"c" * 40 not in raw, path


def test_mlflow_reads_every_point_once_in_one_run(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    told, run = Told(), a_run(tmp_path / "r")
    with tracked("mlflow", run, told):
        run.log(0, **{"eval/return": 0.5})
        run.log(256, **{"eval/return": 0.75})
    cut(run, 1)
    with tracked("mlflow", run, told):
        run.log(256, **{"eval/return": 0.75})
        run.log(512, **{"eval/return": 1.0})
    assert told.warned == []
    client = mlflow.MlflowClient(run.file("mlruns").resolve().as_uri())
    (found,) = client.search_runs([client.get_experiment_by_name("bkrl").experiment_id])
    assert found.info.status == "FINISHED"
    points = client.get_metric_history(found.info.run_id, "eval/return")
    assert sorted((point.step, point.value) for point in points) == [(0, 0.5), (256, 0.75), (512, 1.0)]
