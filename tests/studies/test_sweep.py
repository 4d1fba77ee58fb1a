"""Sweeps: what is done, skipped, blocked and remembered; the same bytes in any order, any process, after any kill."""

import io
import json
import multiprocessing
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from bkrl.cli import main as cli
from bkrl.cli import progress
from bkrl.cli.main import run_command
from bkrl.core.config import ReportConfig, SweepConfig
from bkrl.core.errors import InputError, RunFailed, UsageError
from bkrl.core.reporter import Line, Reporter
from bkrl.runs.folder import acquire
from bkrl.runs.record import Run
from bkrl.studies import clocks, sweep
from bkrl.studies.cells import chosen, name_of, report_on
from bkrl.studies.executors import local, shell
from bkrl.studies.executors.local import Local
from bkrl.studies.executors.ray import Ray, _do
from bkrl.studies.executors.slurm import Slurm
from bkrl.studies.executors.work import work
from bkrl.studies.study import load_study, plan, presets
from tests.commands import Started, bkrl
from tests.studies.toy_study import TOY, contents, toy

LONG = "num_envs = 64, num_steps = 64, update_epochs = 100_000"
OUT = Path("out")  # relative, because some results name the runs that they were made from


class Here:
    """Runs cells in this process, one after another; the last of those that are ready goes first."""

    def __init__(self, out):
        self.out, self.waiting, self.order = out, [], []

    def prepare(self, cells, reporter):
        pass

    def free(self):
        return 99

    def start(self, cells):
        self.waiting += cells

    def running(self):
        return {cell.run_dir.as_posix(): "running" for cell in self.waiting}

    def ended(self, seconds):
        cell = self.waiting.pop()
        self.order.append(name_of(cell, self.out))
        return [(cell, work(cell, self.out / "log" / cell.run_dir.name))]

    def stop(self):
        return ""


def do(tmp_path, monkeypatch, text=TOY, reporter=None, **settings):
    """A sweep in this process; the outcome and the order in which cells were done."""
    monkeypatch.chdir(tmp_path)
    config = SweepConfig(study=str(toy(tmp_path, text)), **{"out": OUT, **settings})
    here = Here(config.folder)
    monkeypatch.setattr(sweep, "open_executor", lambda *args, **kwargs: here)
    return sweep.run(config, reporter or Reporter()), here.order


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    tmp_path = tmp_path_factory.mktemp("undisturbed")
    with pytest.MonkeyPatch.context() as monkeypatch:
        outcome, order = do(tmp_path, monkeypatch)
    assert not outcome.failed
    assert len(outcome.done) == len(order) == 7
    return tmp_path / "out"


def test_cells_are_done_after_what_they_need_and_only_once(tmp_path, monkeypatch, undisturbed):
    outcome, order = do(tmp_path, monkeypatch, only="chain/eval-bk*")
    assert order == [f"chain/{name}" for name in ("data", "label-pref", "rm-pref", "bk-pref-s1", "eval-bk-pref-s1")]
    assert outcome.done == order
    outcome, order = do(tmp_path, monkeypatch)
    assert set(order) == {"chain/ppo-s1", "chain/eval-ppo-s1"}
    # Another order of cells, the same bytes.
    assert contents(tmp_path / "out") == contents(undisturbed)
    assert do(tmp_path, monkeypatch)[1] == []


@pytest.mark.slow
def test_a_killed_sweep_of_worker_processes_ends_in_the_same_bytes(tmp_path, undisturbed):
    command = ["sweep", toy(tmp_path), "--out", OUT, "--jobs"]
    first = Started([*command, 1], tmp_path)
    first.wait_for("chain/*-s1/checkpoints/step*", tmp_path / "out")
    first.send_signal(signal.SIGKILL)
    first.gone()
    assert not (tmp_path / "out" / "chain" / "eval-bk-pref-s1" / "manifest.json").exists()
    assert len(json.loads(bkrl(*command, 2, "--json", cwd=tmp_path).stdout)["done"]) == 7
    assert contents(tmp_path / "out") == contents(undisturbed)


@pytest.mark.slow  # in small: test_an_interrupt_ends_no_process_of_who_sweeps, and interrupts of each stage
def test_an_interrupt_stops_the_workers_and_keeps_their_checkpoints(tmp_path):
    endless = TOY.replace('algs = ["ppo", "bk-pref"]\nseeds = [1]', 'algs = ["ppo"]\nseeds = [1, 2, 3]')
    endless = endless.replace("steps = 4096\neval_every = 2048", "steps = 1_000_000_000\neval_every = 1_000_000_000")
    out = tmp_path / "out"
    process = Started(["sweep", toy(tmp_path, endless), "--out", out, "--jobs", 1, "--only", "*/ppo-*"])
    deadline = time.monotonic() + 600
    while clocks.last_step(out / "chain" / "ppo-s1") < 1024 and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    ended = process.done()
    assert ended.returncode == 130
    assert "Traceback" not in ended.stderr
    assert list((out / "chain" / "ppo-s1" / "checkpoints").iterdir())
    assert not (out / "chain" / "ppo-s2").exists()


@pytest.mark.parametrize(
    "how",
    [pytest.param(one, marks=pytest.mark.slow) for one in ("Ctrl-C in a terminal", "terminal closed", "kill -9")],
)
def test_workers_finish_their_rollout_and_keep_it(tmp_path, how):
    """A terminal sends what it sends to the workers, too; a sweep that is killed says nothing to them."""
    endless = TOY.replace('algs = ["ppo", "bk-pref"]', 'algs = ["ppo"]')
    small, large = (f"ppo = {{ {text} }}\n\n[world.evaluate]" for text in (
        "num_envs = 8, num_steps = 32", "num_envs = 128, num_steps = 512, update_epochs = 40"))  # fmt: skip
    endless = endless.replace("steps = 4096\neval_every = 2048", "steps = 1_000_000_000\neval_every = 1_000_000_000")
    endless = endless.replace("checkpoint_every = 512", "checkpoint_every = 1_000_000_000").replace(small, large)
    run = tmp_path / "out" / "chain" / "ppo-s1"
    process = Started(["sweep", toy(tmp_path, endless), "--out", tmp_path / "out", "--jobs", 1])
    deadline = time.monotonic() + 600
    while clocks.last_step(run) < 65536 and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.1)  # into the next rollout or its update, which takes seconds
    if how == "kill -9":
        process.send_signal(signal.SIGKILL)
    else:
        os.killpg(process.pid, signal.SIGHUP if how == "terminal closed" else signal.SIGINT)
    try:
        process.gone()
    finally:
        process.kill()
    newest = max(run.glob("checkpoints/step-*"))
    assert int(newest.name.removeprefix("step-")) == clocks.last_step(run) > 65536


@pytest.mark.slow
def test_a_worker_in_a_long_iteration_is_told_twice(tmp_path, monkeypatch):
    """Training that waits for the answers of a language model may be in one iteration for hours."""
    monkeypatch.setattr(local, "PATIENCE", 2.0)
    endless = TOY.replace('algs = ["ppo", "bk-pref"]', 'algs = ["ppo"]').replace("num_envs = 8, num_steps = 32", LONG)
    (cell,) = [one for one in plan(tomllib.loads(endless), tmp_path).cells if one.stage == "train_rs"]
    workers = Local(1, tmp_path)
    workers.start([cell])
    deadline = time.monotonic() + 600
    while not (begun := list(cell.run_dir.glob("checkpoints/step-*"))) and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(1.0)  # into the first iteration
    workers.stop()
    assert list(cell.run_dir.glob("checkpoints/step-*")) == begun


def test_a_worker_that_is_killed_is_named_and_replaced(tmp_path):
    cells = plan(tomllib.loads(TOY), tmp_path).cells
    workers = Local(1, tmp_path)
    workers.start(cells[:1])
    (worker,) = workers._pools[0]._processes.values()
    os.kill(worker.pid, signal.SIGKILL)
    ((cell, reason),) = workers.ended(60)
    assert cell == cells[0]
    assert "killed" in reason
    assert workers.free() == 1
    assert workers._pools[0] is None
    workers.stop()


def test_an_interrupt_ends_no_process_of_who_sweeps(tmp_path):
    other = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    other.start()
    workers = Local(1, tmp_path)
    workers.start(plan(tomllib.loads(TOY), tmp_path).cells[:1])
    workers.stop()
    assert workers.ended(60)
    other.join(0.5)  # time to die in
    assert other.is_alive()
    other.kill()


@pytest.mark.slow
def test_a_worker_that_is_killed_with_nothing_to_do_is_replaced(tmp_path):
    cells = plan(tomllib.loads(TOY), tmp_path).cells
    workers = Local(1, tmp_path)
    pool = workers._pool(0)
    pool.submit(os.getpid).result()
    (worker,) = pool._processes.values()
    os.kill(worker.pid, signal.SIGKILL)
    worker.join(60)
    while not pool._broken:  # it notices a little later
        time.sleep(0.02)
    workers.start(cells[:1])
    assert workers.ended(60) == [(cells[0], "")]
    workers.stop()


@pytest.mark.slow
def test_a_worker_that_is_told_to_stop_takes_its_cell_with_it_and_no_other(tmp_path):
    endless = TOY.replace("steps = 512\ncheckpoints = 1", "steps = 1_000_000_000\ncheckpoints = 1")
    cells = plan(tomllib.loads(endless), tmp_path).cells
    workers = Local(1, tmp_path)
    workers.start(cells[:1])
    deadline = time.monotonic() + 600
    while clocks.last_step(cells[0].run_dir) < 1024 and time.monotonic() < deadline:
        time.sleep(0.02)
    (worker,) = workers._pools[0]._processes.values()
    os.kill(worker.pid, signal.SIGTERM)
    ((cell, reason),) = workers.ended(60)
    assert cell == cells[0]
    assert "told to stop" in reason
    trained = [cell for cell in plan(tomllib.loads(TOY), tmp_path).cells if cell.stage == "train_rs"][:1]
    workers.start(trained)
    assert workers.ended(60) == [(trained[0], "")]
    assert (trained[0].run_dir / "manifest.json").exists()
    workers.stop()


BROKEN = TOY.replace("steps = 512\n", "steps = 512\nint_coef = 0\n")


def test_failures_are_remembered_with_their_reason_and_tried_again_on_request(tmp_path, monkeypatch, capsys):
    outcome, _ = do(tmp_path, monkeypatch, BROKEN)
    assert list(outcome.failed) == ["chain/data"]
    assert "paid for nothing" in outcome.failed["chain/data"]
    assert outcome.blocked == [f"chain/{name}" for name in ("label-pref", "rm-pref", "bk-pref-s1", "eval-bk-pref-s1")]
    assert set(outcome.done) == {"chain/ppo-s1", "chain/eval-ppo-s1"}
    # The same again: nothing is tried, the reason is still known.
    again, order = do(tmp_path, monkeypatch, BROKEN)
    assert order == []
    assert again == outcome
    rows = sweep.listed(load_study("toy.toml", OUT).cells, OUT)
    assert rows[0][3].startswith("failed: With --ext-coef 0")
    capsys.readouterr()
    assert run_command(["sweep", "toy.toml", "--out", str(OUT)]) == 1
    assert "1 run failed; --retry-failed tries again." in capsys.readouterr().err
    # Mended, and asked to try again.
    outcome, order = do(tmp_path, monkeypatch, only="chain/label*", retry_failed=True)
    assert order == ["chain/data", "chain/label-pref"]
    assert not outcome.failed
    assert json.loads((tmp_path / "out" / "sweep" / "state.json").read_text())["failed"] == {}


def test_a_finished_run_with_other_settings_is_not_taken_for_the_cell(tmp_path, monkeypatch, undisturbed):
    only = "chain/ppo-s1"
    shutil.copytree(undisturbed, tmp_path / "out")
    changed = TOY.replace("steps = 4096\n", "steps = 2048\n")
    outcome, order = do(tmp_path, monkeypatch, changed, only=only)
    assert order == []
    assert "holds a run that differs in steps;" in outcome.failed[only]
    assert not do(tmp_path, monkeypatch, only=only)[0].failed


def test_an_unfinished_run_with_other_settings_is_no_failure_to_remember(tmp_path, monkeypatch, undisturbed):
    """Its settings may come back, or the run may go: neither needs --retry-failed."""
    only, run = "chain/ppo-s1", tmp_path / "out" / "chain" / "ppo-s1"
    shutil.copytree(undisturbed / only, run)
    (run / "manifest.json").unlink()
    changed = TOY.replace("steps = 4096\n", "steps = 2048\n")
    outcome, order = do(tmp_path, monkeypatch, changed, only=only)
    assert order == []
    assert "differs in steps; remove it, or choose another --out" in outcome.failed[only]
    assert "differs in steps" in sweep.listed(plan(tomllib.loads(changed), OUT).training[:1], OUT)[0][3]
    for file in [*run.glob("*.*"), *run.glob("checkpoints/*")]:
        if file.is_file() and file.name != "config.json":
            file.unlink()
    shutil.rmtree(run / "checkpoints", ignore_errors=True)
    assert do(tmp_path, monkeypatch, changed, only=only)[0].done == [
        only
    ]  # of a run that has not begun nothing is lost


def test_the_folder_may_be_named_by_another_path(tmp_path, monkeypatch, undisturbed):
    only = "chain/bk-pref-s1,chain/eval-ppo-s1"
    shutil.copytree(undisturbed, tmp_path / "out")
    (tmp_path / "link").symlink_to("out")
    for out in (tmp_path / "out", Path("link")):
        outcome, order = do(tmp_path, monkeypatch, only=only, out=out)
        assert order == []
        assert not outcome.failed
    # What lies there is another run now: that is still noticed.
    shutil.rmtree(tmp_path / "out" / "chain" / "ppo-s1")
    do(tmp_path, monkeypatch, TOY.replace("eval_episodes = 4", "eval_episodes = 5"), only="chain/ppo-s1")
    outcome, _ = do(
        tmp_path, monkeypatch, TOY.replace("eval_episodes = 4", "eval_episodes = 5"), only=only, out=Path("link")
    )
    assert "chain/eval-ppo-s1" in outcome.failed


@pytest.mark.parametrize(
    "before", ["bk-pref-s1", *(pytest.param(one, marks=pytest.mark.slow) for one in ("label-pref", "rm-pref"))]
)
def test_a_study_that_was_moved_goes_on(tmp_path, monkeypatch, undisturbed, before):
    """Wherever it is cut: what a run was made from is known by its hash, and is looked for where the study has it."""
    cells = ["data", "label-pref", "rm-pref", "bk-pref-s1", "eval-bk-pref-s1"]
    done = cells[: cells.index(before) + 1]
    for name in done:
        shutil.copytree(undisturbed / "chain" / name, tmp_path / "moved" / "chain" / name)
    outcome, order = do(tmp_path, monkeypatch, only="chain/eval-bk*", out=Path("moved"))
    assert not outcome.failed
    assert outcome.done == [f"chain/{name}" for name in cells]
    assert order == outcome.done[len(done) :]
    # Another run in the place of an input is still another run.
    data = tmp_path / "moved" / "chain" / "data" / "manifest.json"
    data.write_text(data.read_text() + " ")
    assert "chain/label-pref" in do(tmp_path, monkeypatch, only="*/eval-bk*", out=tmp_path / "moved")[0].failed


def test_a_bug_in_one_cell_is_told_and_does_not_end_the_others(tmp_path, monkeypatch):
    import bkrl.stages.train_rs

    def broken(config, reporter):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(bkrl.stages.train_rs, "run", broken)
    cell = plan(tomllib.loads(TOY), tmp_path).training[0]
    reason = work(cell, tmp_path / "log" / "x.log")
    assert reason.startswith("ZeroDivisionError: a bug")
    assert "Traceback" in (tmp_path / "log" / "x.log").read_text()


def test_a_kernel_compiled_after_a_cell_does_not_speak_into_its_log(tmp_path, monkeypatch):
    """The log may be gone by then, and with it the kernel."""
    import bkrl.stages.train_rs
    from bkrl.core import jit

    monkeypatch.setattr(bkrl.stages.train_rs, "run", jit.announced(lambda config, reporter: None))
    assert not work(plan(tomllib.loads(TOY), tmp_path).training[0], tmp_path / "log" / "x.log")
    shutil.rmtree(tmp_path / "log")

    def half(x: float) -> float:
        return x / 2

    half.__module__ = "bkrl.envs.nowhere"
    monkeypatch.setattr(jit, "_cache_folder", lambda source: None)
    assert jit.kernel(half)(3.0) == 1.5


def test_two_sweeps_do_not_share_a_folder(tmp_path, monkeypatch):
    (tmp_path / "out" / "sweep").mkdir(parents=True)
    with acquire(tmp_path / "out" / "sweep"), pytest.raises(UsageError, match="Another process"):
        do(tmp_path, monkeypatch)


def test_a_sweep_that_is_refused_writes_nothing_and_one_that_is_not_reads_what_the_other_wrote(tmp_path, monkeypatch):
    state = tmp_path / "out" / "sweep" / "state.json"
    state.parent.mkdir(parents=True)
    known = '{"failed": {"chain/data": "no"}, "jobs": {"chain/ppo-s1": "7"}}'
    state.write_text(known)
    with acquire(state.parent), pytest.raises(UsageError, match="Another process"):
        do(tmp_path, monkeypatch, retry_failed=True)
    assert state.read_text() == known
    state.unlink()

    def after_another(path):
        state.write_text(known)
        return acquire(path)

    monkeypatch.setattr(sweep, "acquire", after_another)
    outcome, order = do(tmp_path, monkeypatch, only="chain/data")
    assert outcome.failed == {"chain/data": "no"}
    assert order == []


def test_only_the_failures_that_are_chosen_are_tried_again(tmp_path, monkeypatch):
    do(tmp_path, monkeypatch, BROKEN)
    outcome, order = do(tmp_path, monkeypatch, BROKEN, only="chain/ppo-s1", retry_failed=True)
    assert outcome.done == ["chain/ppo-s1"]
    assert do(tmp_path, monkeypatch, BROKEN)[1] == order == []


def test_a_damaged_run_is_one_failure_and_does_not_end_the_others(tmp_path, monkeypatch, undisturbed):
    shutil.copytree(undisturbed / "chain/data", tmp_path / "out/chain/data")
    (tmp_path / "out" / "chain" / "data" / "manifest.json").write_text("{")
    outcome, order = do(tmp_path, monkeypatch)
    assert "cannot be read as JSON" in outcome.failed["chain/data"]
    assert set(order) == set(outcome.done) == {"chain/ppo-s1", "chain/eval-ppo-s1"}


def commands(tmp_path, monkeypatch, **scripts):
    """Shell scripts in place of a cluster's commands."""
    for name, text in {"srun": "exit 1", "squeue": "exit 1", **scripts}.items():
        command = tmp_path / "bin" / name
        command.parent.mkdir(exist_ok=True)
        command.write_text(f"#!/bin/sh\n{text}\n")
        command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")


def on_cluster(state, **parameters):
    """The slurm executor of a sweep in `OUT`."""
    return Slurm(OUT, state.jobs, state.save, parameters)


class Told(Reporter):
    """Remembers what was said."""

    def __init__(self):
        self.lines = []

    def say(self, text):
        self.lines.append(text)

    def warn(self, text):
        self.lines.append(f"warning: {text}")


SBATCH = """
called=$(sed -n 's/^#SBATCH --job-name=//p' "$1")
echo "$called" >> submitted
echo "6|RUNNING|None|a job | of somebody's
7_0|PENDING|Priority|$called
7_1|RUNNING|None|$called" > queue
"""


@pytest.mark.parametrize("accepted", [True, False])
def test_a_kill_while_jobs_are_submitted_submits_none_twice(tmp_path, monkeypatch, accepted):
    """The kill comes from sbatch, after or before the queue has them: numbers and submitit's files are not written."""
    from submitit.core.utils import DelayedSubmission

    from bkrl.studies.executors import slurm

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(slurm, "POLL_SECONDS", 0.01)
    sbatch = f"{SBATCH if accepted else ''}\nkill -9 $PPID"
    commands(tmp_path, monkeypatch, sbatch=sbatch, squeue="cat queue")
    (tmp_path / "queue").touch()
    only = "chain/data,chain/ppo-s1"
    bkrl("sweep", toy(tmp_path), "--out", OUT, "--executor", "slurm", "--only", only, code=-signal.SIGKILL)
    state, again = sweep.SweepState(OUT / "sweep" / "state.json").load(), Told()
    executor = on_cluster(state)
    cells = chosen(load_study("toy.toml", OUT), OUT, only)
    executor.prepare(cells, again)
    if not accepted:
        assert executor.running() == state.jobs == {}
        return
    assert executor.running() == {"out/chain/data": "queued", "out/chain/ppo-s1": "running"}
    assert state.jobs == {"chain/data": "7_0", "chain/ppo-s1": "7_1"}
    assert again.lines == ["2 jobs of an earlier start are still in the queue"]
    for place, cell in enumerate(cells):
        assert DelayedSubmission.load(OUT / "sweep" / "slurm" / f"7_{place}_submitted.pkl").args[0] == cell


def test_a_single_job_is_found_again_by_its_name_and_one_that_was_not_chosen_is_not_forgotten(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    commands(tmp_path, monkeypatch, squeue="echo '12|PENDING|None|bkrl-0a'")
    (tmp_path / "out" / "sweep" / "slurm").mkdir(parents=True)
    state = sweep.SweepState(
        OUT / "sweep" / "state.json", jobs={"chain/ppo-s1": "bkrl-0a/0", "chain/data": "bkrl-0b/3"}
    )
    executor = on_cluster(state)
    cells = load_study(str(toy(tmp_path)), OUT).training[:1]
    executor.prepare(cells, Reporter())
    assert state.jobs == {"chain/ppo-s1": "12", "chain/data": "bkrl-0b/3"}
    assert "scancel 12`" in executor.stop()


def test_a_job_that_failed_while_no_sweep_was_there_is_told_of_and_not_submitted_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("bkrl.studies.executors.slurm.POLL_SECONDS", 0.0)
    commands(tmp_path, monkeypatch, sbatch="echo >> submitted; exit 1", squeue="exit 0")
    (tmp_path / "out" / "sweep" / "log" / "chain").mkdir(parents=True)
    (OUT / "sweep" / "log" / "chain" / "data.json").write_text('{"reason": "the disk was full"}')
    (OUT / "sweep" / "state.json").write_text('{"jobs": {"chain/data": "7"}}')
    config = SweepConfig(study=str(toy(tmp_path)), out=OUT, executor="slurm", only="*/data")
    assert sweep.run(config, Reporter()).failed == {"chain/data": "the disk was full"}
    assert sweep.run(config, Reporter()).failed == {"chain/data": "the disk was full"}
    assert not (tmp_path / "submitted").exists()
    (OUT / "sweep" / "state.json").write_text('{"jobs": {"chain/data": "7"}}')  # again as nobody had seen it
    with pytest.raises(RunFailed, match="could not be submitted"):
        sweep.run(replace(config, retry_failed=True), Reporter())
    assert (tmp_path / "submitted").exists()


def test_each_array_asks_for_the_cores_of_its_own_cells(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    commands(tmp_path, monkeypatch, sbatch='cat "$1" >> scripts; echo Submitted batch job 7')
    (tmp_path / "out" / "sweep").mkdir(parents=True)
    executor = on_cluster(sweep.SweepState(OUT / "sweep" / "state.json"), array_parallelism=1)
    data, *_, trained = load_study(str(toy(tmp_path)), OUT).cells
    executor.start([data._replace(config=replace(data.config, threads=4))])
    executor.start([data, trained])
    scripts = (tmp_path / "scripts").read_text()
    assert [line for line in scripts.splitlines() if "cpus-per-task" in line] == [
        "#SBATCH --cpus-per-task=4",
        "#SBATCH --cpus-per-task=1",
    ]
    assert "--array=0-1%1" in scripts


def test_jobs_that_are_refused_end_in_a_sentence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("bkrl.studies.executors.slurm.POLL_SECONDS", 0.01)
    for sbatch, why in (("echo 'no such partition' >&2; exit 1", "no such partition"), ("exit 1", "submitted")):
        commands(tmp_path, monkeypatch, sbatch=sbatch, squeue="exit 0")
        with pytest.raises(RunFailed, match=why):
            sweep.run(SweepConfig(study=str(toy(tmp_path)), out=OUT, executor="slurm", only="*/data"), Reporter())


def test_an_array_is_no_larger_than_clusters_take(tmp_path, monkeypatch):
    commands(tmp_path, monkeypatch)
    assert 1 < on_cluster(sweep.SweepState(tmp_path / "state.json")).free() <= 1001


def test_a_queue_that_does_not_answer_is_told_once(tmp_path, monkeypatch):
    from bkrl.studies.executors import slurm

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(slurm, "POLL_SECONDS", 0.0)
    commands(tmp_path, monkeypatch, sbatch="echo Submitted batch job 7")
    (tmp_path / "out" / "sweep").mkdir(parents=True)
    executor, told = on_cluster(sweep.SweepState(OUT / "sweep" / "state.json")), Told()
    executor.prepare([], told)
    executor.start(load_study(str(toy(tmp_path)), OUT).training[:1])
    assert executor.ended(0) == executor.ended(0) == []
    assert told.lines == ["warning: squeue does not answer; it is asked again, and the jobs go on meanwhile."]
    assert executor.running()


def test_jobs_of_an_earlier_start_are_not_forgotten_when_the_queue_does_not_answer(tmp_path, monkeypatch):
    commands(tmp_path, monkeypatch)
    state = tmp_path / "out" / "sweep" / "state.json"
    state.parent.mkdir(parents=True)
    for job in ("7", "bkrl-0a/0"):
        state.write_text(json.dumps({"failed": {}, "jobs": {"chain/ppo-s1": job}}))
        with pytest.raises(RunFailed, match="squeue does not answer"):
            sweep.run(SweepConfig(study=str(toy(tmp_path)), out=tmp_path / "out", executor="slurm"), Reporter())
        assert json.loads(state.read_text())["jobs"] == {"chain/ppo-s1": job}


def test_a_ray_of_this_machine_has_room_for_each_cell_and_one_elsewhere_is_told_of(tmp_path, monkeypatch):
    made = SimpleNamespace(
        init=lambda **given: made.given.append(given.get("num_cpus")),
        given=[],
        remote=lambda **given: lambda task: task,
        nodes=lambda: [{"Alive": True, "Resources": {"CPU": made.given[-1] or 2}}],
        cluster_resources=lambda: {"CPU": made.given[-1] or 2},
    )
    monkeypatch.setitem(sys.modules, "ray", made)
    monkeypatch.setattr("bkrl.studies.executors.ray.cores", lambda: 2)
    trained = load_study(str(toy(tmp_path)), tmp_path).training
    wide = [trained[0]._replace(config=replace(trained[0].config, threads=4)), *trained]
    for jobs in (0, 1, 3):
        Ray(tmp_path, "", jobs, 0).prepare(wide, Told())
    Ray(tmp_path, "", 3, 0).prepare(trained, Told())
    assert made.given == [4, 4, 12, 3]
    with pytest.raises(RunFailed, match="No node has 4 processors and 1 GPUs.*fewer --gpus"):
        Ray(tmp_path, "", 0, 1).prepare(wide, Told())
    told = Told()
    Ray(tmp_path, "auto", 0, 0).prepare(trained, told)
    Ray(tmp_path, "auto", 0, 0.5).prepare(wide, told)
    assert [line for line in told.lines if "warning" in line] == [
        "warning: No node has 4 processors and 0.5 GPUs, as much as a cell may ask for: it waits until there is one."
    ]


def test_a_ray_cluster_without_nodes_is_given_a_cell_to_wait_for(tmp_path, monkeypatch):
    """The sweep ended at once, with every cell "needs one that failed", where a head alone stood, which makes nodes."""
    processors = {}
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(cluster_resources=lambda: processors))
    executor, cell = Ray(tmp_path, "auto", 0, 0), load_study(str(toy(tmp_path)), tmp_path).cells[0]
    assert executor.free() == 1
    executor._tasks["task"] = cell
    assert executor.free() == 0
    processors["CPU"] = 3.0
    assert executor.free() == 2


def test_a_node_of_ray_that_does_not_see_the_folder_is_named(tmp_path):
    cell = load_study(str(toy(tmp_path)), tmp_path).cells[0]
    reason = _do(cell, tmp_path / "log", tmp_path / "elsewhere")
    assert reason.endswith(
        f"does not see {tmp_path / 'elsewhere'}; show every node the sweep's folder under the same path."
    )
    assert not cell.run_dir.exists()


def test_wrong_wishes_are_answered_in_a_sentence(tmp_path, capsys):
    assert run_command(["sweep", "laptob"]) == 2
    assert "Did you mean 'laptop'" in capsys.readouterr().err
    assert run_command(["sweep", str(toy(tmp_path)), "--only", "nothing*", "--dry-run"]) == 2
    assert "No cell is called 'nothing*'" in capsys.readouterr().err


LARGE = {"confirm", "ellm-real", "glam", "hard", "harder", "housekeep", "memory", "paper", "parts"}


@pytest.mark.parametrize(
    "preset", [pytest.param(one, marks=pytest.mark.slow) if one in LARGE else one for one in presets()]
)
def test_printed_commands_mean_the_same_settings(preset, monkeypatch):
    given = []

    class Stage:
        def run(self, settings, reporter):
            given.append(settings)

    monkeypatch.setattr(cli, "import_module", lambda name: Stage())
    monkeypatch.setattr(cli.labels, "label", Stage().run)
    monkeypatch.setattr("bkrl.stages.lm_make.run", Stage().run)
    monkeypatch.setattr("bkrl.cli.commands.models.show_run", lambda run, as_json: None)
    study = load_study(preset, Path("here"))
    kinds = {
        (cell.stage, getattr(cell.config, "alg", ""), getattr(cell.config, "shaping", "")): cell for cell in study.cells
    }
    cells = [*kinds.values(), study.report._replace(config=replace(study.report.config, runs=(Path("a"), Path("b"))))]
    for cell in cells:
        bkrl, *words = shlex.split(shell.command(cell))
        assert bkrl == "bkrl"
        assert run_command(words) == 0
    assert given == [cell.config for cell in cells]


def test_the_report_of_a_part_is_on_what_is_done(tmp_path, monkeypatch, undisturbed):
    shutil.copytree(undisturbed / "chain/ppo-s1", tmp_path / "out/chain/ppo-s1")
    outcome, _ = do(tmp_path, monkeypatch, only="chain/ppo-s1", report=True)
    assert [Path(one).name for one in outcome.report.manifest["inputs"]] == ["ppo-s1"]
    study = load_study(str(tmp_path / "toy.toml"), OUT)
    asked = report_on(chosen(study, OUT, "chain/bk*"), study).config.runs
    assert {run.name for run in asked} == {"ppo-s1", "bk-pref-s1"}
    toy(tmp_path, TOY.replace("steps = 4096", "steps = 6144"))  # ppo-s1 is of another study now
    longer = load_study(str(tmp_path / "toy.toml"), OUT)
    assert {run.name for run in report_on(chosen(longer, OUT, "chain/bk*"), longer).config.runs} == {"bk-pref-s1"}


@pytest.mark.slow
def test_the_printed_commands_run_in_bash_and_make_the_same(tmp_path, undisturbed):
    out = tmp_path / "out"
    words = ["sweep", toy(tmp_path), "--out", OUT, "--only", "*/eval-ppo-s1", "--executor", "print"]
    printed = bkrl(*words).stdout
    assert not out.exists()
    assert "step 2 of 2" in printed
    function = f'bkrl() {{ "{sys.executable}" -m bkrl "$@"; }}\n'
    done = subprocess.run(["bash"], cwd=tmp_path, input=function + printed, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    made = contents(out)
    assert made
    assert made == {name: raw for name, raw in contents(undisturbed).items() if name in made}


def test_what_is_left_takes_as_long_as_the_slowest_and_counts_those_that_have_just_begun():
    quick, slow = Line("a", "running", 0, 100, 10.0), Line("b", "running", 0, 100, 1.0)
    begun, waiting = Line("c", "running", 0, 100), Line("d", "waiting", total=1000)
    assert "11 steps/s, about 2 min of steps left" in clocks.summary([quick, slow], 0.0)  # 18 s at the rate of both
    assert "10 steps/s, about 60 s of steps left" in clocks.summary([quick, begun, waiting], 0.0)
    assert "left" not in clocks.summary([begun, waiting], 0.0)


def test_what_can_no_longer_be_done_is_not_left_to_do(tmp_path, monkeypatch):
    shown = []

    class Watched(Reporter):
        @contextmanager
        def board(self):
            yield lambda lines, summary: shown.append({line.name: line for line in lines})

    do(tmp_path, monkeypatch, BROKEN, reporter=Watched())
    blocked = shown[-1]["chain/bk-pref-s1"]
    assert (blocked.state, blocked.total, blocked.note) == ("waiting", 0, "needs one that failed")
    assert shown[0]["chain/bk-pref-s1"].total == 4096


CIRCLE = TOY.replace(
    'algs = ["ppo", "bk-pref"]',
    """algs = [{ name = "a", alg = "bk-own", train_rs = { potential = "out/chain/b-s1" } },
    { name = "b", alg = "bk-own", train_rs = { potential = "out/chain/a-s1" } }]""",
)


def test_cells_that_need_each_other_are_named_as_blocked(tmp_path, monkeypatch):
    outcome, order = do(tmp_path, monkeypatch, CIRCLE)
    assert order == ["chain/data"]
    assert not outcome.failed
    assert len(outcome.blocked) == 4


def test_a_sweep_that_leaves_cells_undone_is_no_success(tmp_path, monkeypatch, capsys):
    """It ended with 0 where cells waited for each other, and said that they need one that failed."""
    monkeypatch.setattr(sweep, "open_executor", lambda *args, **kwargs: Here(OUT))
    monkeypatch.chdir(tmp_path)
    command = ["sweep", str(toy(tmp_path, CIRCLE)), "--out", str(OUT)]
    assert run_command(command) == 1
    said = capsys.readouterr()
    assert "4 runs wait for each other; mend what their settings name." in said.err
    assert "failed" not in said.out


def test_a_log_is_written_in_any_language(tmp_path):
    """A system without UTF-8 must not make a failure of a cell that says Φ."""
    say = (
        "from pathlib import Path; from bkrl.studies.executors.work import LogReporter; "
        "LogReporter(Path('x')).say(chr(934))"
    )
    plain = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    subprocess.run([sys.executable, "-c", say], cwd=tmp_path, env=plain, check=True)
    assert "Φ" in (tmp_path / "x").read_text(encoding="utf-8")


@pytest.mark.parametrize("text", ["{", '{"failed": 3}', '{"jobs": ["x"]}', "[]"])
def test_a_damaged_memory_of_a_sweep_is_told(tmp_path, monkeypatch, text):
    (tmp_path / "out" / "sweep").mkdir(parents=True)
    (tmp_path / "out" / "sweep" / "state.json").write_text(text)
    with pytest.raises(InputError, match="state.json is damaged; restore it, or remove it"):
        do(tmp_path, monkeypatch)


def test_a_full_disk_ends_the_sweep_after_its_workers(tmp_path, monkeypatch):
    ended = []
    monkeypatch.setattr(Here, "stop", lambda self: ended.append(self) or "some jobs go on")
    monkeypatch.setattr(sweep, "atomic_write", lambda path, data: (_ for _ in ()).throw(RunFailed("no room")))
    told = Told()
    with pytest.raises(RunFailed, match="no room"):
        do(tmp_path, monkeypatch, only="chain/ppo-s1", reporter=told)
    assert len(ended) == 1
    assert told.lines[-1] == "some jobs go on"


def test_the_estimate_is_for_this_machine_alone(tmp_path, monkeypatch):
    text = "minutes = 4\n" + TOY
    for jobs, pace, said in ((2, 1.0, ["about 4 min on 2"]), (2, 0.25, ["about 16 min on 2"]), (0, 1.0, [])):
        told = Told()
        study = plan(tomllib.loads(text), tmp_path)
        monkeypatch.setattr(sweep, "speed", lambda pace=pace: pace)
        sweep.announce(study, study.cells, jobs, told)
        found = [line for line in told.lines if "about" in line]
        assert [line.strip()[: len(words)] for line, words in zip(found, said, strict=True)] == said


def test_the_speed_of_a_machine_is_that_of_a_core():
    assert 0.01 < clocks.speed() < 20  # 1: a core of the machine that the studies' minutes were measured on


LINES = [
    Line("w/ppo-s1", "running", 50, 100, 10.0, 5.0),
    Line("w/[bold]x", "failed", note="no [red] dataset"),
    Line("w/ppo-s2", "waiting", total=100),
    Line("w/data", "done", 10, 10, seconds=3.0),
]


def test_the_live_table_shows_what_runs_and_why_something_failed(monkeypatch):
    from rich.console import Console

    live = progress.LiveReporter()
    live._console = Console(file=io.StringIO(), force_terminal=True, width=120, height=30)
    with live.board() as show:
        show(LINES, "1/4 done")
    text = live._console.file.getvalue()
    for words in ("w/ppo-s1", "50/100", "10 steps/s", "5 s left", "w/[bold]x", "no [red] dataset", "1/4 done"):
        assert words in text


def test_a_pipe_gets_a_line_for_each_run_that_ends(capsys):
    with progress.PlainReporter().board() as show:
        show([Line("a", "running"), Line("b", "done")], "x")
        show([Line("a", "failed", note="because"), Line("b", "done")], "2/2")
    assert capsys.readouterr().err == "a: failed, 0.0 s, because\n2/2\n"


def test_a_sweep_with_a_report_names_it_and_its_headline(tmp_path, monkeypatch, capsys):
    made = Run.renew(tmp_path / "report", stage="report", config=ReportConfig(runs=()))
    made.finish([], headline="It helped.", report=tmp_path / "report" / "report.html")
    monkeypatch.setattr(sweep, "run", lambda *_: sweep.SweepOutcome(tmp_path, ["a"], {}, [], made))
    assert run_command(["sweep", "smoke", "--report"]) == 0
    told = "".join(capsys.readouterr().out.split())
    assert "".join(str(tmp_path / "report" / "report.html").split()) in told
    assert "Ithelped." in told
    assert "1rundone" in told
