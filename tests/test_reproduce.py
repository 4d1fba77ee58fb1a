"""The whole chain, as one command, on both real worlds."""

import json
import signal
import subprocess
import sys
import time

import pytest

from bkrl.cli import run_command
from bkrl.config import ReproduceConfig
from bkrl.reporter import Reporter
from bkrl.reproduce import run
from bkrl.study import load_study


def test_a_dry_run_does_nothing(tmp_path, capsys):
    assert run_command(["reproduce", "--preset", "smoke", "--out", str(tmp_path / "r"), "--dry-run"]) == 0
    assert "about" in capsys.readouterr().err
    assert not (tmp_path / "r").exists()


def test_an_interrupt_stops_the_workers_and_keeps_their_checkpoints(tmp_path):
    code = (
        "import sys\nfrom pathlib import Path\nfrom bkrl.config import TrainRsConfig\n"
        "from bkrl.reporter import Reporter\nfrom bkrl.reproduce import _side_by_side\nfrom bkrl.study import Cell\n"
        "if __name__ == '__main__':\n"
        "    cells = [Cell('train_rs', TrainRsConfig(env='Toy-Chain', steps=10**9, out=Path(sys.argv[1]) / str(i),"
        " eval_every=10**9, seed=i)) for i in range(3)]\n"
        "    _side_by_side(cells, 2, Reporter(), 'train')\n"
    )
    script = tmp_path / "script.py"
    script.write_text(code)
    process = subprocess.Popen([sys.executable, script, tmp_path], stderr=subprocess.PIPE, text=True)
    metrics = tmp_path / "0" / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while not (metrics.exists() and metrics.read_text().count("\n") > 5) and time.monotonic() < deadline:
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode != 0
    assert said.count("Traceback") <= 1, said  # the parent's own; the workers leave quietly
    assert list((tmp_path / "0" / "checkpoints").iterdir())
    assert not (tmp_path / "2").exists()


@pytest.mark.slow
def test_the_smoke_chain_runs_whole_and_again_for_nothing(tmp_path):
    config = ReproduceConfig(preset="smoke", out=tmp_path / "r", jobs=2)
    result = run(config, Reporter())
    assert result is not None
    page = (result.path / "report.html").read_text()
    for words in ("bk-code", "bk-pref", "bk-goal", "ppo", "RedBall", "PlaceCraftingTable"):
        assert words in page
    page_bytes = (result.path / "report.html").read_bytes()
    manifests = {path: path.stat().st_mtime_ns for path in (tmp_path / "r").rglob("manifest.json")}
    assert len(manifests) == len(load_study("smoke", tmp_path / "r").cells) + 1  # the report
    for path in manifests:
        assert json.loads(path.read_text())["outputs"], path
    run(config, Reporter())
    # A report is always made anew, so that it notices what has changed; nothing has, so it says the same.
    assert (result.path / "report.html").read_bytes() == page_bytes
    del manifests[result.path / "manifest.json"]
    assert manifests == {path: path.stat().st_mtime_ns for path in manifests}
