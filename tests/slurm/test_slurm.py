"""Sweeps on a real SLURM of one node, as `make test-slurm` starts it: jobs are requeued, cancelled, out of time."""

import subprocess
import threading
import time
from pathlib import Path

import pytest

from bkrl.core.config import SlurmConfig, SweepConfig
from bkrl.core.errors import UsageError
from bkrl.core.reporter import Reporter
from bkrl.studies import sweep
from tests.studies.toy_study import TOY, contents, toy


def answers():
    try:
        return subprocess.run(["squeue"], capture_output=True, timeout=20).returncode == 0
    except OSError:
        return False


pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(not answers(), reason="no SLURM answers here; make test-slurm starts one"),
]
LONG = TOY.replace("steps = 4096\neval_every = 2048", "steps = 40_960\neval_every = 20_480")
CELL = "chain/ppo-s1"


@pytest.fixture(autouse=True)
def eager(monkeypatch, tmp_path):
    """Ask the queue more often than a shared cluster would like, and stand where results are compared."""
    submitit = pytest.importorskip("submitit")
    assert submitit
    from bkrl.studies.executors import slurm

    monkeypatch.setattr(slurm, "POLL_SECONDS", 1.0)
    monkeypatch.chdir(tmp_path)


class Told(Reporter):
    def __init__(self):
        self.lines = []

    def say(self, text):
        self.lines.append(text)


OUT = Path("out")


def do(text, reporter=None, **settings):
    return sweep.run(
        SweepConfig(study=str(toy(Path(), text).resolve()), out=OUT, executor="slurm", **settings),
        reporter or Reporter(),
    )


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The long cell, done here by a worker process."""
    folder = tmp_path_factory.mktemp("undisturbed")
    study = toy(folder, LONG)
    with pytest.MonkeyPatch.context() as here:
        here.chdir(folder)
        sweep.run(SweepConfig(study=str(study), out=OUT, only=CELL, jobs=1), Reporter())
    return contents(folder / "out")


def when_it_trains(tmp_path, act):
    """In a thread: once the cell has a checkpoint and its job runs, `act(job)`."""

    def wait():
        state = sweep.SweepState(tmp_path / "out" / "sweep" / "state.json")
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            if list((tmp_path / "out" / CELL / "checkpoints").glob("step-*")):
                act(state.load().jobs[CELL])
                return
            time.sleep(0.05)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def log(tmp_path):
    return (tmp_path / "out" / "sweep" / "log" / f"{CELL}.log").read_text()


def test_a_whole_study_runs_as_arrays_and_gives_the_same_bytes(tmp_path):
    outcome = do(TOY, slurm=SlurmConfig(time=10, partition="test"))
    assert not outcome.failed
    assert len(outcome.done) == 7
    scripts = [path.read_text() for path in (tmp_path / "out" / "sweep" / "slurm").glob("*submission.sh")]
    assert any("--array=0-1" in script for script in scripts)  # collect and plain PPO need nothing: one array of two
    assert all("--partition=test" in script and "--requeue" in script for script in scripts)
    study = toy(tmp_path)
    sweep.run(SweepConfig(study=str(study), out=Path("local"), jobs=2), Reporter())
    on_cluster, here = contents(tmp_path / "out"), contents(tmp_path / "local")
    differing = {name for name in here if on_cluster[name] != here[name].replace(b"local/chain", b"out/chain")}
    assert not differing


@pytest.mark.parametrize(
    "how",
    [
        ["scontrol", "requeue"],  # what an administrator does, and pre-emption
        ["scancel", "--signal=USR2"],  # what SLURM sends before the time is up
    ],
    ids=["requeued", "out-of-time"],
)
def test_a_job_that_is_interrupted_is_queued_again_and_continues(tmp_path, undisturbed, how):
    thread = when_it_trains(tmp_path, lambda job: subprocess.run([*how, job], check=True))
    outcome = do(LONG, only=CELL)
    thread.join()
    assert outcome.done == [CELL]
    assert "continuing at step" in log(tmp_path)
    assert contents(tmp_path / "out") == undisturbed


def test_a_cancelled_job_is_a_failure_and_continues_when_tried_again(tmp_path, undisturbed):
    thread = when_it_trains(tmp_path, lambda job: subprocess.run(["scancel", job], check=True))
    outcome = do(LONG, only=CELL)
    thread.join()
    assert "ended without a result" in outcome.failed[CELL]
    assert do(LONG, only=CELL).failed == outcome.failed
    assert do(LONG, only=CELL, retry_failed=True).done == [CELL]
    assert "continuing at step" in log(tmp_path)
    assert contents(tmp_path / "out") == undisturbed


def test_a_sweep_that_was_stopped_finds_its_jobs_again(tmp_path, monkeypatch, undisturbed):
    from bkrl.studies.executors.slurm import Slurm

    ended = Slurm.ended

    def interrupted(self, seconds):
        if list((tmp_path / "out" / CELL / "checkpoints").glob("step-*")):
            raise KeyboardInterrupt
        return ended(self, seconds)

    first = Told()
    monkeypatch.setattr(Slurm, "ended", interrupted)
    with pytest.raises(KeyboardInterrupt):
        do(LONG, first, only=CELL)
    monkeypatch.setattr(Slurm, "ended", ended)
    assert "1 jobs go on" in first.lines[-1]
    second = Told()
    assert do(LONG, second, only=CELL).done == [CELL]
    assert any("still in the queue" in line for line in second.lines)
    assert "continuing" not in log(tmp_path)  # it was never disturbed
    assert contents(tmp_path / "out") == undisturbed


def test_a_cell_that_fails_tells_its_reason(tmp_path):
    outcome = do(TOY.replace("steps = 512\n", "steps = 512\nint_coef = 0\n"), only="chain/data")
    assert "paid for nothing" in outcome.failed["chain/data"]


def test_settings_that_slurm_does_not_know_are_named(tmp_path):
    with pytest.raises(UsageError, match="not understood"):
        do(TOY + '\n[slurm]\npartitoin = "x"\n')
