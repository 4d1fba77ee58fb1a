"""The whole chain, as one command, on both real envs."""

import json
from pathlib import Path

import pytest

from bkrl.cli.main import run_command
from bkrl.core.config import ReproduceConfig
from bkrl.core.errors import UsageError
from bkrl.core.reporter import Reporter
from bkrl.runs.record import Run
from bkrl.runs.samples import samples
from bkrl.studies.reproduce import run
from bkrl.studies.study import load_study


def test_a_dry_run_does_nothing(tmp_path, capsys):
    assert run_command(["reproduce", "--preset", "smoke", "--out", str(tmp_path / "r"), "--dry-run"]) == 0
    told = capsys.readouterr()
    assert "about" in told.err
    assert "babyai/bk-code-s1" in told.out
    assert run_command(["reproduce", "--preset", "smoke", "--out", str(tmp_path / "r"), "--dry-run", "--json"]) == 0
    cells = json.loads(capsys.readouterr().out)
    assert len(cells) == len(load_study("smoke", tmp_path / "r").cells)
    assert {cell["state"] for cell in cells} == {"to do"}
    assert not (tmp_path / "r").exists()


def test_a_dry_run_lists_the_runs_of_the_model_that_is_asked(tmp_path, capsys):
    """Those of the recorded answers would be called runs that differ in llm."""
    anew, recorded = (load_study("laptop", tmp_path, llm).preparation for llm in ("random", ""))
    asked = next(new.config for new, old in zip(anew, recorded, strict=True) if new != old)
    data = Run.create(asked.dataset, stage="collect", config={"steps": 1})
    data.log(0, **{"time/env": 1.0})
    data.finish([])
    Run.create(asked.run_dir, stage="label", config=asked, inputs={"dataset": data.path}).finish([])
    assert (
        run_command(["reproduce", "--out", str(tmp_path), "--llm", "random", "--jobs", "3", "--dry-run", "--json"]) == 0
    )
    told = capsys.readouterr()
    states = {cell["cell"]: cell["state"] for cell in json.loads(told.out)}
    assert states[asked.run_dir.relative_to(tmp_path).as_posix()] == "done"
    assert "with 3 cells at once" in told.err


def test_two_presets_write_into_two_folders():
    """One after the other, as a newcomer runs them: the second must not find the runs of the first."""
    folders = {preset: ReproduceConfig(preset=preset).folder.as_posix() for preset in ("laptop", "smoke")}
    assert folders == {"laptop": "logs/reproduce", "smoke": "logs/smoke"}
    assert ReproduceConfig(preset="smoke", out=Path("here")).folder == Path("here")


def test_recorded_answers_ship_and_another_model_can_be_asked(tmp_path):
    def asked(study: str, llm: str = "") -> set[str]:
        return {cell.config.llm for cell in load_study(study, tmp_path, llm).cells if cell.stage == "label"}

    recorded = {one for one in asked("laptop") if one.startswith("replay:")}
    assert recorded == {f"replay:sample:labels-qwen1.5b-{env}" for env in ("crafter", "minigrid")}
    assert {one.removeprefix("replay:") for one in recorded} <= set(samples())
    assert asked("laptop", "local:smollm2-135m") == asked("laptop") - recorded | {"local:smollm2-135m"}
    with pytest.raises(UsageError, match="smoke has no recorded answers; leave --llm out"):
        load_study("smoke", tmp_path, "local:smollm2-135m")


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
