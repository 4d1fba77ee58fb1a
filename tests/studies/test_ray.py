"""Sweeps on a Ray cluster of two nodes, which Ray's own utility starts here: a node and a worker are lost."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest

import bkrl
from bkrl.core.config import RayConfig, SweepConfig
from bkrl.core.errors import RunFailed
from bkrl.core.reporter import Reporter
from bkrl.studies import sweep
from bkrl.studies.cells import chosen
from bkrl.studies.clocks import last_step
from bkrl.studies.executors.ray import Ray
from bkrl.studies.study import load_study
from tests.studies.toy_study import TOY, contents, toy

ray = pytest.importorskip("ray")
cluster_utils = pytest.importorskip("ray.cluster_utils")
LONG = TOY.replace("steps = 4096", "steps = 65_536").replace("checkpoint_every = 512", "checkpoint_every = 2048")


@pytest.fixture
def cluster(monkeypatch):
    """A head without processors, so that every cell is on a node that can be lost."""
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_worker_niceness", "0")
    monkeypatch.setenv("PYTHONPATH", str(Path(bkrl.__file__).parents[1]))  # nodes have this bkrl
    made = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


def started(study, out, address, **more):
    """A sweep in a thread, and what it came to."""
    ended = []
    config = SweepConfig(study=str(study), out=out, executor="ray", ray=RayConfig(address=address), **more)
    thread = threading.Thread(target=lambda: ended.append(sweep.run(config, Reporter())))
    thread.start()
    return thread, ended


def until(check, seconds=300):
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_lost_node_and_a_killed_worker_lose_nothing(tmp_path, cluster, monkeypatch):
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    cluster.wait_for_nodes()
    study, out = toy(tmp_path, LONG), Path("out")  # relative: results name what they were made from
    for place in ("ray", "here"):
        (tmp_path / place).mkdir()
    monkeypatch.chdir(tmp_path / "ray")
    thread, ended = started(study, out, cluster.address)
    runs = [out / "chain" / name for name in ("ppo-s1", "bk-pref-s1")]
    until(lambda: all(last_step(run) > 2048 for run in runs) or ended)
    assert not ended
    cluster.remove_node(nodes[1], allow_graceful=False)
    done = {path: path.stat().st_mtime_ns for path in out.glob("chain/*/manifest.json")}
    until(lambda: killed() or ended)
    cluster.add_node(num_cpus=1)
    thread.join(500)
    [outcome] = ended
    assert outcome.failed == {}
    assert len(outcome.done) == len(load_study(str(study), out).cells)
    assert done.items() <= {path: path.stat().st_mtime_ns for path in out.glob("chain/*/manifest.json")}.items()
    found = contents(out)
    monkeypatch.chdir(tmp_path / "here")
    sweep.run(SweepConfig(study=str(study), out=out, jobs=2), Reporter())
    assert contents(out) == found


def killed():
    """Kill a process that does a cell; whether there was one."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                title = Path(f"/proc/{entry}/cmdline").read_bytes()
            except OSError:
                continue
            if title.startswith(b"ray::") and b"chain/" in title:
                os.kill(int(entry), signal.SIGKILL)
                return True
    return False


def test_where_no_cluster_is_the_sweep_says_so(tmp_path):
    study = toy(tmp_path)
    with pytest.raises(RunFailed, match="No Ray cluster is at"):
        sweep.run(SweepConfig(study=str(study), out=tmp_path, executor="ray", ray=RayConfig("127.0.0.1:9")), Reporter())


def test_cells_wait_for_processors(tmp_path, cluster):
    cluster.add_node(num_cpus=2)
    cluster.wait_for_nodes()
    executor = Ray(tmp_path, cluster.address, 1, 0.0)
    executor.prepare([], Reporter())
    assert executor.free() == 1
    cells = chosen(load_study(str(toy(tmp_path)), tmp_path), tmp_path, "*/data")
    executor.start(cells)
    assert executor.free() == 0
    assert set(executor.running().values()) == {"running"}
    over = []
    until(lambda: over.extend(executor.ended(1)) or over)
    assert over == [(cells[0], "")]
    executor.stop()
