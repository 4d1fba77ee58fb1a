"""The samples that ship with bkrl: whole, small, honest about their labels, and usable by their names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from bkrl.agents.language.catalogue import open_language_model
from bkrl.agents.language.scorer import Scorer, Scoring
from bkrl.cli.catalogue import catalogue
from bkrl.cli.main import run_command
from bkrl.core.config import PPOConfig
from bkrl.core.errors import InputError
from bkrl.core.reporter import Reporter
from bkrl.data.dataset import Dataset
from bkrl.envs.babyai.constants import ACTION_SETS
from bkrl.inspect import worth
from bkrl.labelers.config import LabelConfig
from bkrl.methods import TrainRsConfig
from bkrl.potentials import load_potential
from bkrl.report.pages.html import fragment
from bkrl.report.pages.potential import section
from bkrl.runs.record import Run
from bkrl.runs.samples import SAMPLES, samples
from bkrl.stages import label
from bkrl.stages.train_rs import run

NAMES = [
    f"sample:{kind}-{env}" for kind in ("bk-code", "bk-goal", "bk-pref", "data") for env in ("crafter", "minigrid")
]
ANSWERS = ["sample:labels-qwen1.5b-crafter", "sample:labels-qwen1.5b-minigrid"]


def test_there_is_one_of_each_and_all_are_small():
    assert samples() == [*NAMES, *ANSWERS, "sample:lm-t5"]
    # half of it is advice on actions
    assert sum(path.stat().st_size for path in SAMPLES.rglob("*") if path.is_file()) < 3_200_000
    assert [row[0] for row in catalogue("potentials")[1][2]] == [*NAMES, *ANSWERS]


CPU = Path("/proc/cpuinfo")
SAME_ROUNDING = (
    torch.__version__.startswith("2.13.0")
    and torch.backends.cpu.get_cpu_capability() == "AVX512"
    and CPU.exists()
    and "GenuineIntel" in CPU.read_text()  # other makers' processors take other paths through MKL
)


@pytest.mark.slow
@pytest.mark.skipif(
    not SAME_ROUNDING,
    reason="the samples are made with the versions in constraints.txt and Intel's AVX-512; others round differently",
)
def test_making_the_samples_again_changes_nothing(tmp_path):
    command = ["sh", str(SAMPLES / "make.sh"), str(tmp_path), str(Path(sys.executable).with_name("bkrl")), "minigrid"]
    made = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    for kind in ("data", "bk-code", "bk-pref", "bk-goal"):
        shipped, again = ({file.relative_to(run): file.read_bytes() for file in run.rglob("*") if file.is_file()}
                          for run in (SAMPLES / f"{kind}-minigrid", tmp_path / f"{kind}-minigrid"))  # fmt: skip
        assert shipped.keys() == again.keys()
        stale = [str(name) for name, content in shipped.items() if content != again[name]]
        assert not stale, f"{kind}-minigrid: {', '.join(stale)} would change; run `make samples`"


@pytest.mark.parametrize("name", NAMES)
def test_a_sample_is_a_whole_run_that_says_who_labelled(name):
    sample = Run.open(Path(name))  # verifies every hash
    if "data" in name:
        dataset = Dataset.open(Path(name))
        assert dataset.num_steps > 500
        return
    assert sample.facts["llm"] == "rules"
    assert sample.manifest["argv"][:2] == ["bkrl", "train-rm"]
    data = Dataset.open(Path("sample:data-" + name.rpartition("-")[2]))
    potential = load_potential(Path(name))
    phi = potential(data.windows(np.arange(200), potential.reads.horizon))
    potential.close()
    assert np.ptp(phi) > 0


def test_the_language_model_has_read_and_names_actions():
    Run.open(Path("sample:lm-t5"))  # verifies every hash
    lm = open_language_model("sample:lm-t5")
    assert (lm.level, lm.kind) == ("P1", "seq2seq")
    scorer = Scorer(lm, ACTION_SETS["canonical"], Scoring(normalise="token"))
    assert torch.isfinite(scorer(scorer.prompts(["Goal of the agent: go to the red ball"])).logits).all()


@pytest.mark.parametrize("name", ANSWERS)
def test_answers_of_a_language_model_label_any_dataset_of_the_family(name, tmp_path):
    recorded = Run.open(Path(name), "label")  # verifies every hash
    qwen = "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046"
    assert (recorded.facts["llm"], recorded.facts["model_sha256"]) == ("local:qwen2.5-coder-1.5b", qwen)
    for memory in (True, False):
        config = LabelConfig(
            dataset=Path("sample:data-" + name.rpartition("-")[2]),
            variant="code",
            llm=f"replay:{name}",
            ask="closed",
            with_memory=memory,
            out=tmp_path / f"labels-{memory}",
        )
        made = label.run(config, Reporter())
        ratings = made.facts["quality"]["ratings"]
        assert ratings.items() <= recorded.facts["quality"]["ratings"].items()
        assert (ratings == recorded.facts["quality"]["ratings"]) is memory
        assert (made.facts["replay_of"], made.facts["model_sha256"]) == ("qwen2.5-coder-1.5b", qwen)
        assert made.facts["usage"]["requests"] == len(ratings)


def test_an_unknown_sample_is_refused_with_the_nearest(capsys):
    with pytest.raises(InputError, match="Did you mean 'sample:bk-code-minigrid'"):
        load_potential(Path("sample:bk-cod-minigrid"))
    assert run_command(["show", "sample:nothing"]) == 3
    with pytest.raises(InputError, match="There is no sample"):
        Run.open(Path("sample:../samples/bk-code-minigrid"))


def test_a_policy_is_trained_with_a_sample(tmp_path):
    ppo = PPOConfig(num_envs=8, num_steps=32, num_minibatches=2)
    config = TrainRsConfig(
        alg="bk-code", potential=Path("sample:bk-code-minigrid"), out=tmp_path / "run", steps=512, eval_every=512,
        eval_episodes=2, ppo=ppo,
    )  # fmt: skip
    result = run(config, Reporter())
    assert result.complete
    assert result.manifest["inputs"]["potential"]["path"] == "sample:bk-code-minigrid"
    assert any("shaping/phi_std" in row and row["shaping/phi_std"] > 0 for row in result.metrics())


def test_samples_are_certified_and_reported_without_their_dataset(tmp_path, monkeypatch, capsys):
    assert run_command(["check-potential", "sample:bk-code-minigrid", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["passed"]
    monkeypatch.setattr(worth, "PAPER", ())
    arguments = ["sample:bk-code-minigrid", "--against", "sample:bk-goal-minigrid", "--out", str(tmp_path / "report")]
    assert run_command(["potential", "report", *arguments, "--layouts", "1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)["potentials"]
    assert list(report) == ["bk-code-minigrid", "bk-goal-minigrid"]
    assert report["bk-code-minigrid"]["worth"]["small"]["mean_states_rho"] > 0.2
    page = (tmp_path / "report" / "potential.html").read_text()
    assert page.count("<svg") == 4
    assert "Where potentials disagree" in page
    assert "http://www.w3.org/2000/svg" in page
    assert 'src="http' not in page
    piece = section(tmp_path / "report")  # for another page
    assert piece.count("<svg") == 4
    assert "<html" not in piece
    made = Run.open(tmp_path / "report", "potential-report")
    assert any(name.startswith("strip-bk-code-minigrid") for name in made.manifest["outputs"])


def test_a_crafter_potential_is_reported_without_faking_the_truth(tmp_path, capsys):
    assert (
        run_command(["potential", "report", "sample:bk-code-crafter", "--out", str(tmp_path / "report"), "--json"]) == 0
    )
    quality = json.loads(capsys.readouterr().out)["potentials"]["bk-code-crafter"]
    assert quality["worth"]["small"] is None
    assert "not computed for Crafter" in quality["worth"]["note"]
    assert "not computed for Crafter" in (tmp_path / "report" / "potential.html").read_text()
    known, flat = ({"rho": rho, "low": None, "high": None, "constant": rho is None} for rho in (0.5, None))
    rows = [{"task": name, "layouts": 1, "ceiling": 1.0, "play_rho": known} for name in ("go to", "pick up")]
    tasks = [{**row, "states_rho": figure} for row, figure in zip(rows, (known, flat), strict=True)]
    part = {"truth": "t", "tasks": tasks, "any_task": None, "mean_play_rho": 0.5, "mean_states_rho": 0.25}
    part |= {"constant_play": [], "constant_states": ["pick up"]}
    for names, said in ((("constant_play", "constant_states"), True), ((), False)):  # a report of earlier has neither
        shown = {key: value for key, value in part.items() if not key.startswith("constant") or key in names}
        page = fragment("quality", {"quality": quality | {"worth": {"note": "", "small": shown, "paper": None}},
                                    "strips": [], "level": 2})  # fmt: skip
        assert ("Over all states Φ is constant in pick up: it ranks nothing there" in page) is said
        assert '<td class="number">constant</td>' in page
        assert "In play Φ is constant" not in page
