"""The goals on the page: how good those were that were suggested, and what was achieved by them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from PIL import Image

from bkrl.core.config import EvaluateConfig, ReportConfig
from bkrl.core.files import read_json
from bkrl.core.reporter import Reporter
from bkrl.learn.settings import PQNConfig
from bkrl.methods import TrainRsConfig
from bkrl.report.goals import points
from bkrl.report.model import GoalRow
from bkrl.report.plots.draw import identity_of
from bkrl.runs.record import Run
from bkrl.stages import evaluate, report, train_rs
from bkrl.stats.intervals import t_interval

ENV = "Crafter-Typed-Harder@length=30"
PQN = PQNConfig(num_envs=4, num_steps=16, num_minibatches=2)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two policies with goals, half of which are nonsense, and one without; each evaluated in four episodes."""
    root = tmp_path_factory.mktemp("goals")
    with_goals = {"suggester": "noisy", "nonsense": 0.5}
    for name, alg, seed, own in (("a", "ellm", 1, with_goals), ("b", "ellm", 2, with_goals), ("c", "pqn", 1, {})):
        given = {"env": ENV, "steps": 128, "eval_every": 64, "eval_episodes": 1, "seed": seed, "pqn": PQN, **own}
        train_rs.run(TrainRsConfig(alg, out=root / name, **given), Reporter())
        evaluate.run(EvaluateConfig(root / name, out=root / f"eval-{name}", episodes=4, gifs=0), Reporter())
    return root


def test_quality_stands_beside_what_was_achieved(runs, tmp_path):
    made = report.run(ReportConfig((runs,), out=tmp_path / "report"), Reporter())
    rows = {row["method"].partition(" ")[0]: row for row in read_json(made.file("results.json"))["goals"]}
    assert set(rows) == {"ellm", "pqn"}
    assert rows["pqn"]["quality"] == {}
    assert rows["ellm"]["n"] == 2
    told = [json.loads((runs / name / "manifest.json").read_text())["facts"]["goals"] for name in ("a", "b")]
    for kind, found in rows["ellm"]["quality"].items():
        assert found["estimate"] == pytest.approx(sum(one["quality"]["suggested"][kind] for one in told) / 2)
    assert 0.2 < rows["ellm"]["quality"]["nonsense"]["estimate"] < 0.8
    played = [Run.open(runs / f"eval-{name}").facts["modes"]["sampled"]["unlocked"].values() for name in ("a", "b")]
    assert rows["ellm"]["achievements"]["estimate"] == pytest.approx(sum(map(sum, played)) / 2)
    for dark in ("", "-dark"):
        picture = made.file(f"goals-{ENV}{dark}.png")
        assert identity_of(picture) == made.facts["identity"]
        with Image.open(picture) as image:
            assert len(image.convert("RGB").getcolors(1 << 24)) > 10
    assert "badly timed" in made.file("report.html").read_text()


def test_methods_on_one_spot_are_one_point_with_both_names():
    spots = {"oracle": (1.0, 4.86), "rules": (1.0, 4.87), "noisy": (0.62, 4.86), "pqn": (None, 4.86)}
    rows = [
        GoalRow("x", name, 5, {} if good is None else {"good": t_interval([good] * 5)}, t_interval([height] * 5))
        for name, (good, height) in spots.items()
    ]
    assert [point.label for point in points(rows)] == ["oracle and rules", "noisy", "pqn"]
    assert [point.label for point in points([rows[0], replace(rows[1], n=4)])] == ["oracle", "rules"]


def test_a_report_without_goals_says_nothing_of_them(runs, tmp_path):
    made = report.run(ReportConfig((runs / "c", runs / "eval-c"), out=tmp_path / "report"), Reporter())
    assert read_json(made.file("results.json"))["goals"] == []
    assert not list(made.path.glob("goals-*"))
    assert "badly timed" not in made.file("report.html").read_text()
