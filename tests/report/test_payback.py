"""After how many tasks a method has paid back what was spent once, in tables, sentences, pictures and studies."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from bkrl.core.config import ReportConfig
from bkrl.core.reporter import Reporter
from bkrl.report.payback import Payback
from bkrl.stages import report
from bkrl.stats.crossings import StepsRatio
from bkrl.stats.intervals import interval
from bkrl.studies.study import plan
from tests.report.synthetic import RED, collect, label, train_rm, train_rs, unpictured


def ratio(estimate: float, low: float = float("nan"), high: float = float("nan"), bound: str = "") -> StepsRatio:
    return StepsRatio.of(interval(estimate, low, high, 8, "bootstrap"), bound, (0, 0))


@pytest.mark.parametrize(
    ("found", "tasks", "said"),
    [
        (ratio(0.5, 0.4, 0.6), 8.0, "8.0 (6.7 to 10)"),  # 400k spent, 50k of 100k saved each time
        (ratio(0.9, 0.7, 1.1), 40.0, "40 (13 to never)"),
        (ratio(1.2, 0.9, 1.5), None, "never (40 to never)"),
        (ratio(1.2, 1.1, 1.5), None, "never"),
        (ratio(0.5), 8.0, "8.0"),
        (ratio(0.5, 0.4, 0.6, "at most"), 8.0, "at most 8.0 (6.7 to 10)"),
        (ratio(1.2, 0.9, 1.5, "at most"), None, "not known"),  # the true ratio may be below 1
        (ratio(1.2, 0.9, 1.5, "at least"), None, "never (40 to never)"),
        (ratio(0.5, 0.4, 0.6, "unknown"), 8.0, "not known"),
    ],
)
def test_what_was_spent_once_is_divided_by_what_each_task_saves(found: StepsRatio, tasks: float | None, said: str):
    one = Payback.of(400_000, found, 100_000.0)
    assert one.once == 4.0
    assert one.tasks == (None if tasks is None else pytest.approx(tasks))
    assert str(one) == said
    if tasks is not None:  # naively: at that many tasks both have cost the same
        assert 400_000 + tasks * found.estimate * 100_000 == pytest.approx(tasks * 100_000)


def test_a_report_says_it_in_table_sentence_and_picture(tmp_path: Path):
    collect(tmp_path)
    label(tmp_path, "code")
    phi, control = train_rm(tmp_path, "code"), train_rm(tmp_path, "code", control="zero")
    runs = []
    for seed in range(1, 9):
        runs += [train_rs(tmp_path, "ppo", seed, half=500_000)]
        runs += [train_rs(tmp_path, "bk-code", seed, half=250_000, potential=phi)]
        runs += [train_rs(tmp_path, "bk-code", seed, half=500_000, potential=control, name=f"zero-{seed}")]
    asked = ReportConfig(runs=tuple(runs), out=tmp_path / "report")
    result = report.run(asked, Reporter())
    (section,) = json.loads(result.file("results.json").read_text())["envs"]
    rows = {row["label"]: row for row in section["rows"]}
    assert rows["ppo"]["payback"] is rows["bk-code (zero)"]["payback"] is None
    found, base = rows["bk-code"], rows["ppo"]
    naive = 200_000 / (base["steps"] - found["steps"])
    assert found["payback"]["tasks"] == pytest.approx(naive)
    said = str(Payback(**found["payback"]))
    html = re.sub(r"\s+", " ", result.file("report.html").read_text())
    assert f"tasks after which they are paid back: {said}." in html
    assert f"bk-code · pbrs: {said}" in html
    (curves,) = (one for one in section["curves"] if one["panel"] == "cost")
    assert [line["y"][:2] for line in curves["bands"]] == [
        [0.0, 1.0],
        pytest.approx([200_000 / base["steps"], 200_000 / base["steps"] + found["ratio"]["estimate"]]),
    ]
    with unpictured():
        tuned = report.run(replace(asked, out=tmp_path / "tuned", tuning_steps=300_000), Reporter())
    (section,) = json.loads(tuned.file("results.json").read_text())["envs"]
    (again,) = (row for row in section["rows"] if row["label"] == "bk-code")
    assert again["payback"]["spent"] == 500_000
    assert again["payback"]["tasks"] == pytest.approx(2.5 * naive)
    assert tuned.facts["identity"] != result.facts["identity"]


def test_tuning_is_charged_where_there_is_no_dataset(tmp_path: Path):
    """A method that learns its potential as it plays was tuned for nothing, whatever --tuning-steps said."""
    runs = [train_rs(tmp_path, "ppo", seed, half=500_000) for seed in range(1, 4)]
    runs += [train_rs(tmp_path, "bk-online", seed, half=250_000) for seed in range(1, 4)]
    found = {}
    for tuned in (0, 300_000):
        asked = ReportConfig(runs=tuple(runs), out=tmp_path / f"report-{tuned}", tuning_steps=tuned)
        with unpictured():
            result = report.run(asked, Reporter())
        (section,) = json.loads(result.file("results.json").read_text())["envs"]
        (found[tuned],) = (row for row in section["rows"] if row["alg"] == "bk-online")
    assert found[0]["payback"] is None
    assert found[300_000]["payback"]["spent"] == 300_000
    assert found[300_000]["with_collection"] is None
    assert f"{Payback(**found[300_000]['payback'])}<small>tasks" in result.file("report.html").read_text()


def test_a_study_says_what_tuning_cost(tmp_path: Path):
    section = {"name": "w", "algs": ["ppo"], "seeds": [1], "train_rs": {"env": RED}}
    assert plan({"tuning_steps": 7, "world": [section]}, tmp_path).report.config.tuning_steps == 7
    assert plan({"world": [section]}, tmp_path).report.config.tuning_steps == 0
