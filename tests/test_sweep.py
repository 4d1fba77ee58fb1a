"""Sweeps: what is done, skipped, blocked and remembered; the same bytes in any order, any process, after any kill."""

import io
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from bkrl import cli, console, sweep
from bkrl.cli import run_command
from bkrl.config import SweepConfig
from bkrl.errors import RunFailed, UsageError
from bkrl.executors import local, shell
from bkrl.executors.local import Local
from bkrl.executors.work import work
from bkrl.reporter import Line, Reporter
from bkrl.run import hold
from bkrl.study import load_study, plan, presets
from tests.toy_study import TOY, contents, toy

OUT = Path("out")  # relative, because some results name the runs that they were made from
BKRL = [sys.executable, "-m", "bkrl.cli"]


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
        self.order.append(sweep.name_of(cell, self.out))
        return [(cell, work(cell, self.out / "log" / cell.run_dir.name))]

    def stop(self):
        return ""


def do(tmp_path, monkeypatch, text=TOY, **settings):
    """A sweep in this process; the outcome and the order in which cells were done."""
    monkeypatch.chdir(tmp_path)
    config = SweepConfig(study=str(toy(tmp_path, text)), **{"out": OUT, **settings})
    here = Here(config.folder)
    monkeypatch.setattr(sweep, "open_executor", lambda *args, **kwargs: here)
    return sweep.run(config, Reporter()), here.order


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


def test_a_killed_sweep_of_worker_processes_ends_in_the_same_bytes(tmp_path, undisturbed):
    command = [*BKRL, "sweep", str(toy(tmp_path)), "--out", str(OUT), "--jobs"]
    first = subprocess.Popen([*command, "1"], cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not list((tmp_path / "out").glob("chain/*-s1/checkpoints/step*")) and time.monotonic() < deadline:
        time.sleep(0.02)
    first.kill()
    first.communicate(timeout=60)  # its workers hold the pipe too: none is left behind
    assert not (tmp_path / "out" / "chain" / "eval-bk-pref-s1" / "manifest.json").exists()
    second = subprocess.run([*command, "2", "--json"], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert second.returncode == 0, second.stderr
    assert len(json.loads(second.stdout)["done"]) == 7
    assert contents(tmp_path / "out") == contents(undisturbed)


def _compile_slowly(files):
    """Stands for the kernels of a world."""
    time.sleep(3)
    Path(files[0]).touch()


def test_an_interrupt_ends_the_preparation(tmp_path, monkeypatch):
    def interrupted(futures, timeout):
        while not futures[0].running():
            time.sleep(0.01)
        raise KeyboardInterrupt

    monkeypatch.setattr(local, "_warm", _compile_slowly)
    monkeypatch.setattr(local, "wait", interrupted)
    executor = Local(1, lambda cell: tmp_path / "log")
    with pytest.raises(KeyboardInterrupt):
        executor.prepare([SimpleNamespace(config=SimpleNamespace(env=str(tmp_path / "compiled")))], Reporter())
    executor.stop()
    assert not (tmp_path / "compiled").exists()


def test_an_interrupt_stops_the_workers_and_keeps_their_checkpoints(tmp_path):
    endless = TOY.replace('algs = ["ppo", "bk-pref"]\nseeds = [1]', 'algs = ["ppo"]\nseeds = [1, 2, 3]')
    endless = endless.replace("steps = 4096\neval_every = 2048", "steps = 1_000_000_000\neval_every = 1_000_000_000")
    out = tmp_path / "out"
    process = subprocess.Popen(
        [*BKRL, "sweep", str(toy(tmp_path, endless)), "--out", str(out), "--jobs", "1", "--only", "*/ppo-*"],
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 120
    while sweep.last_step(out / "chain" / "ppo-s1") < 1024 and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in said
    assert list((out / "chain" / "ppo-s1" / "checkpoints").iterdir())
    assert not (out / "chain" / "ppo-s2").exists()


@pytest.mark.parametrize("how", ["Ctrl-C in a terminal", "kill -9"])
def test_workers_finish_their_rollout_and_keep_it(tmp_path, how):
    """A terminal sends Ctrl-C to the workers, too; a sweep that is killed says nothing to them."""
    endless = TOY.replace('algs = ["ppo", "bk-pref"]', 'algs = ["ppo"]')
    small, large = (f"ppo = {{ {text} }}\n\n[world.evaluate]" for text in (
        "num_envs = 8, num_steps = 32", "num_envs = 128, num_steps = 512, update_epochs = 40"))  # fmt: skip
    endless = endless.replace("steps = 4096\neval_every = 2048", "steps = 1_000_000_000\neval_every = 1_000_000_000")
    endless = endless.replace("checkpoint_every = 512", "checkpoint_every = 1_000_000_000").replace(small, large)
    run = tmp_path / "out" / "chain" / "ppo-s1"
    process = subprocess.Popen(
        [*BKRL, "sweep", str(toy(tmp_path, endless)), "--out", str(tmp_path / "out"), "--jobs", "1"],
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    deadline = time.monotonic() + 120
    while sweep.last_step(run) < 65536 and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.1)  # into the next rollout or its update, which takes seconds
    if how == "kill -9":
        process.kill()
    else:
        os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=60)  # its workers hold the pipe too: none is left behind
    newest = max(run.glob("checkpoints/step-*"))
    assert int(newest.name.removeprefix("step-")) == sweep.last_step(run) > 65536


def test_a_worker_that_is_killed_is_named_and_replaced(tmp_path):
    cells = plan(tomllib.loads(TOY), tmp_path).cells
    local = Local(1, lambda cell: tmp_path / "log")
    local.start(cells[:1])
    (worker,) = local._pools[0]._processes.values()
    os.kill(worker.pid, signal.SIGKILL)
    ((cell, reason),) = local.ended(60)
    assert cell == cells[0]
    assert "killed" in reason
    assert local.free() == 1
    assert local._pools[0] is None
    local.stop()


def test_a_worker_that_is_killed_with_nothing_to_do_is_replaced(tmp_path):
    cells = plan(tomllib.loads(TOY), tmp_path).cells
    local = Local(1, lambda cell: tmp_path / "log")
    pool = local._pool(0)
    pool.submit(os.getpid).result()
    (worker,) = pool._processes.values()
    os.kill(worker.pid, signal.SIGKILL)
    worker.join(60)
    while not pool._broken:  # it notices a little later
        time.sleep(0.02)
    local.start(cells[:1])
    assert local.ended(60) == [(cells[0], "")]
    local.stop()


def test_a_worker_that_is_told_to_stop_takes_its_cell_with_it_and_no_other(tmp_path):
    endless = TOY.replace("steps = 512\ncheckpoints = 1", "steps = 1_000_000_000\ncheckpoints = 1")
    cells = plan(tomllib.loads(endless), tmp_path).cells
    local = Local(1, lambda cell: tmp_path / "log")
    local.start(cells[:1])
    deadline = time.monotonic() + 120
    while sweep.last_step(cells[0].run_dir) < 1024 and time.monotonic() < deadline:
        time.sleep(0.02)
    (worker,) = local._pools[0]._processes.values()
    os.kill(worker.pid, signal.SIGTERM)
    ((cell, reason),) = local.ended(60)
    assert cell == cells[0]
    assert "told to stop" in reason
    trained = [cell for cell in plan(tomllib.loads(TOY), tmp_path).cells if cell.stage == "train_rs"][:1]
    local.start(trained)
    assert local.ended(60) == [(trained[0], "")]
    assert (trained[0].run_dir / "manifest.json").exists()
    local.stop()


BROKEN = TOY.replace("steps = 512\n", "steps = 512\nint_coef = 0\n")


def test_failures_are_remembered_with_their_reason_and_tried_again_on_request(tmp_path, monkeypatch):
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
    # Mended, and asked to try again.
    outcome, order = do(tmp_path, monkeypatch, only="chain/label*", retry_failed=True)
    assert order == ["chain/data", "chain/label-pref"]
    assert not outcome.failed
    assert json.loads((tmp_path / "out" / "sweep" / "state.json").read_text())["failed"] == {}


def test_a_finished_run_with_other_settings_is_not_taken_for_the_cell(tmp_path, monkeypatch):
    only = "chain/ppo-s1"
    do(tmp_path, monkeypatch, only=only)
    changed = TOY.replace("steps = 4096\n", "steps = 2048\n")
    outcome, order = do(tmp_path, monkeypatch, changed, only=only)
    assert order == []
    assert "holds a run that differs in steps;" in outcome.failed[only]
    assert not do(tmp_path, monkeypatch, only=only)[0].failed


def test_the_folder_may_be_named_by_another_path(tmp_path, monkeypatch):
    only = "chain/bk-pref-s1,chain/eval-ppo-s1"
    assert not do(tmp_path, monkeypatch, only=only)[0].failed
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
    from bkrl import jit

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
    with hold(tmp_path / "out" / "sweep"), pytest.raises(UsageError, match="Another process"):
        do(tmp_path, monkeypatch)


def test_a_sweep_that_is_refused_writes_nothing_and_one_that_is_not_reads_what_the_other_wrote(tmp_path, monkeypatch):
    state = tmp_path / "out" / "sweep" / "state.json"
    state.parent.mkdir(parents=True)
    known = '{"failed": {"chain/data": "no"}, "jobs": {"chain/ppo-s1": "7"}}'
    state.write_text(known)
    with hold(state.parent), pytest.raises(UsageError, match="Another process"):
        do(tmp_path, monkeypatch, retry_failed=True)
    assert state.read_text() == known
    state.unlink()

    def after_another(path):
        state.write_text(known)
        return hold(path)

    monkeypatch.setattr(sweep, "hold", after_another)
    outcome, order = do(tmp_path, monkeypatch, only="chain/data")
    assert outcome.failed == {"chain/data": "no"}
    assert order == []


def test_only_the_failures_that_are_chosen_are_tried_again(tmp_path, monkeypatch):
    do(tmp_path, monkeypatch, BROKEN)
    outcome, order = do(tmp_path, monkeypatch, BROKEN, only="chain/ppo-s1", retry_failed=True)
    assert outcome.done == ["chain/ppo-s1"]
    assert do(tmp_path, monkeypatch, BROKEN)[1] == order == []


def test_a_damaged_run_is_one_failure_and_does_not_end_the_others(tmp_path, monkeypatch):
    do(tmp_path, monkeypatch, only="chain/data")
    (tmp_path / "out" / "chain" / "data" / "manifest.json").write_text("{")
    outcome, order = do(tmp_path, monkeypatch)
    assert "cannot be read as JSON" in outcome.failed["chain/data"]
    assert set(order) == set(outcome.done) == {"chain/ppo-s1", "chain/eval-ppo-s1"}


def test_jobs_of_an_earlier_start_are_not_forgotten_when_the_queue_does_not_answer(tmp_path, monkeypatch):
    pytest.importorskip("submitit")
    for name in ("srun", "squeue"):
        command = tmp_path / "bin" / name
        command.parent.mkdir(exist_ok=True)
        command.write_text("#!/bin/sh\nexit 1\n")
        command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    state = tmp_path / "out" / "sweep" / "state.json"
    state.parent.mkdir(parents=True)
    state.write_text('{"failed": {}, "jobs": {"chain/ppo-s1": "7"}}')
    with pytest.raises(RunFailed, match="squeue does not answer"):
        sweep.run(SweepConfig(study=str(toy(tmp_path)), out=tmp_path / "out", executor="slurm"), Reporter())
    assert json.loads(state.read_text())["jobs"] == {"chain/ppo-s1": "7"}


def test_wrong_wishes_are_answered_in_a_sentence(tmp_path, capsys):
    assert run_command(["sweep", "laptob"]) == 2
    assert "Did you mean 'laptop'" in capsys.readouterr().err
    assert run_command(["sweep", str(toy(tmp_path)), "--only", "nothing*", "--dry-run"]) == 2
    assert "No cell is called 'nothing*'" in capsys.readouterr().err


@pytest.mark.parametrize("preset", presets())
def test_printed_commands_mean_the_same_settings(preset, monkeypatch):
    given = []

    class Stage:
        def run(self, settings, reporter):
            given.append(settings)

    monkeypatch.setattr(cli, "import_module", lambda name: Stage())
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


def test_the_printed_commands_run_in_bash_and_make_the_same(tmp_path, undisturbed):
    out = tmp_path / "out"
    printed = subprocess.run(
        [*BKRL, "sweep", str(toy(tmp_path)), "--out", str(OUT), "--only", "*/eval-ppo-s1", "--executor", "print"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert not out.exists()
    assert "step 2 of 2" in printed
    bkrl = f'bkrl() {{ "{sys.executable}" -m bkrl.cli "$@"; }}\n'
    done = subprocess.run(["bash"], cwd=tmp_path, input=bkrl + printed, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    made = contents(out)
    assert made
    assert made == {name: raw for name, raw in contents(undisturbed).items() if name in made}


LINES = [
    Line("w/ppo-s1", "running", 50, 100, 10.0, 5.0),
    Line("w/[bold]x", "failed", note="no [red] dataset"),
    Line("w/ppo-s2", "waiting", total=100),
    Line("w/data", "done", 10, 10, seconds=3.0),
]


def test_the_live_table_shows_what_runs_and_why_something_failed(monkeypatch):
    from rich.console import Console

    live = console.LiveReporter()
    live._console = Console(file=io.StringIO(), force_terminal=True, width=120, height=30)
    with live.board() as show:
        show(LINES, "1/4 done")
    text = live._console.file.getvalue()
    for words in ("w/ppo-s1", "50/100", "10 steps/s", "5 s left", "w/[bold]x", "no [red] dataset", "1/4 done"):
        assert words in text


def test_a_pipe_gets_a_line_for_each_run_that_ends(capsys):
    with console.PlainReporter().board() as show:
        show([Line("a", "running"), Line("b", "done")], "x")
        show([Line("a", "failed", note="because"), Line("b", "done")], "2/2")
    assert capsys.readouterr().err == "a: failed, 0.0 s, because\n2/2\n"
