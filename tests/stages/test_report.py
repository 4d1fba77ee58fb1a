"""The report on synthetic runs: what it says, what it notices, and that nothing in it can act."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from bkrl.core.config import PPOConfig, ReportConfig
from bkrl.core.errors import InputError, UsageError
from bkrl.core.files import atomic_write, to_json
from bkrl.core.reporter import Reporter
from bkrl.data.dataset import Dataset
from bkrl.data.derive import subset
from bkrl.labelers.config import LabelConfig
from bkrl.potentials import load_potential
from bkrl.potentials.config import TrainRmConfig
from bkrl.report.pages.report import stages
from bkrl.runs.provenance import Chain, Node
from bkrl.runs.record import Run
from bkrl.stages import label as label_stage
from bkrl.stages import report
from bkrl.stages import train_rm as train_rm_stage
from tests import browser
from tests.experience import write_dataset, write_env
from tests.report.synthetic import (
    CRAFTER,
    KEY,
    RED,
    Listener,
    collect,
    curve,
    evaluate,
    label,
    study,
    train_rm,
    train_rs,
    unpictured,
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], Run, str, list[str]]:
    root = tmp_path_factory.mktemp("study")
    runs = study(root)
    listener = Listener()
    result = report.run(ReportConfig(runs=tuple(runs), out=root / "report", title="A <title>"), listener)
    return runs, result, result.file("report.html").read_text(), listener.warnings


class Page(HTMLParser):
    """Tags with their attributes, and the visible text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self._inside = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style"):
            self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside != "style":
            self.text += data


def squeezed(html: str) -> str:
    return re.sub(r"\s+", " ", Page(html).text)  # \s includes the no-break space


def test_it_is_a_complete_run(made):
    runs, result, html, warnings = made
    again = Run.open(result.path, "report")
    assert set(again.manifest["inputs"]) == {path.as_posix() for path in runs}
    assert warnings == []
    assert again.facts["training_runs"] == 40
    assert len(html) < 400_000


def test_verdicts(made):
    _, result, html, _ = made
    text = squeezed(html)
    assert "Background knowledge helped in 1 of 3 cases and hurt in 1; 1 of the gains lacks a control run." in text
    assert f"{RED} bk-code reached 80 % in at most half the steps of plain PPO" in text
    assert f"{RED} bk-goal was significantly slower to reach 80 % than plain PPO" in text
    assert f"{RED} bk-pref is not shown to differ from plain PPO" in text
    assert "hand-written heuristics, not a language model" in text
    findings = json.loads(result.file("results.json").read_text())["findings"]
    tones = [finding["tone"] for finding in findings]
    order = ["against", "caution", "open", "for"]
    assert tones == sorted(tones, key=order.index)  # the uncomfortable first
    assert {"caution", "against", "open", "for"} == set(tones)


def test_numbers(made):
    _, result, _, _ = made
    section = json.loads(result.file("results.json").read_text())["envs"][0]
    rows = {row["label"]: row for row in section["rows"]}
    assert list(rows) == ["ppo", "bk-code", "bk-goal", "bk-pref", "bk-pref (shuffled)"]
    code = rows["bk-code"]
    assert code["n"] == 8
    assert code["final"]["estimate"] > 0.99
    assert 0.3 < code["ratio"]["estimate"] < 0.55
    assert code["ratio"]["low"] < code["ratio"]["estimate"] < code["ratio"]["high"] < 0.6
    assert code["p"]["smallest"] == 2 / 2**8
    assert code["with_collection"] == pytest.approx(code["ratio"]["estimate"] + 200_000 / rows["ppo"]["steps"])
    goal = rows["bk-goal"]
    assert goal["reached"] == sum(any(value >= 0.8 for _, value in curve(900_000, seed)) for seed in range(1, 9))
    assert goal["ratio"]["bound"] == "at least"


def test_terminal_table(made):
    _, result, _, _ = made
    table = result.facts["table"]
    assert table["header"][:3] == ["env", "method", "form"]
    assert table["header"][-1] == "verdict"
    assert [row[1] for row in table["rows"]] == ["ppo", "bk-code", "bk-goal", "bk-pref", "bk-pref (shuffled)"]
    assert all(len(row) == len(table["header"]) for row in table["rows"])


def test_every_section_shows_its_content(made):
    _, _, html, _ = made
    text = squeezed(html)
    for said in (
        "Preferences", "Goals", "bkrl label view",
        "def potential(observations, actions, valid):", "25.0 %20.0 to 30.0 %",
        "Certificate", "present: not applicable, no windows", "is added to the reward",
        "optimal policies are kept, exactly",
        "of these sent", "US dollars", "Success rate of the policy", "environment steps", "input: potential",
        "n = 8", "8 of 8", "counts the steps that collected the dataset whole",
        "Methods against their controls", "Performance profile", "Forms of shaping",
    ):  # fmt: skip
        assert said in text, said
    pictures = [attrs.get("aria-label") or "" for tag, attrs in Page(html).tags if tag == "svg"]
    assert sum("against environment steps" in name for name in pictures) == 3  # success, return, length
    assert sum("Performance profiles in" in name for name in pictures) == 1
    images = [attrs["src"] for tag, attrs in Page(html).tags if tag == "img"]
    assert len(images) == 1
    assert images[0].startswith("data:image/gif;base64,R0lGOD")


def test_program_is_escaped(made):
    assert "# &lt;b&gt;near&lt;/b&gt; a ball" in made[2]


def test_nothing_on_the_page_can_act(made):
    page = Page(made[2])
    assert len(page.scripts) == 1
    assert "alert" not in page.scripts[0]
    assert "alert('x')" in page.text  # it is shown, as text
    for tag, attrs in page.tags:
        assert tag not in ("iframe", "object", "embed", "form", "base")
        assert not [name for name in attrs if name.startswith("on")], (tag, attrs)
        for name in ("src", "href", "action", "data"):
            target = attrs.get(name) or ""
            assert target == "" or target.startswith(("data:", "#")), (tag, target)
    policy = next(attrs["content"] for tag, attrs in page.tags if attrs.get("http-equiv"))
    assert policy.startswith("default-src 'none'")
    assert "unsafe-inline" not in policy.split("script-src")[1]


def test_links_lead_somewhere_and_ids_are_unique(made):
    tags = Page(made[2]).tags
    ids = [attrs["id"] for _, attrs in tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    for tag, attrs in tags:
        if tag == "a":
            assert attrs["href"][1:] in ids, attrs["href"]
    assert "<title>A &lt;title&gt;</title>" in made[2]


def test_the_same_runs_give_the_same_bytes(made, tmp_path: Path):
    runs, result, html, _ = made
    with unpictured():
        report.run(ReportConfig(runs=tuple(small(tmp_path, seeds=1)), out=tmp_path / "r"), Reporter())
    # A second report in the same place replaces the first one.
    again = report.run(ReportConfig(runs=tuple(runs), out=tmp_path / "r", title="A <title>"), Reporter())
    assert again.file("report.html").read_text() == html
    assert again.file("results.json").read_bytes() == result.file("results.json").read_bytes()


def small(root: Path, seeds: int = 2, env: str = RED) -> list[Path]:
    runs = [train_rs(root, "ppo", seed, 600_000, env) for seed in range(1, seeds + 1)]
    return runs + [train_rs(root, "rnd", seed, 300_000, env) for seed in range(1, seeds + 1)]


def told(runs: list[Path], root: Path) -> tuple[str, list[str]]:
    listener = Listener()
    with unpictured():
        result = report.run(ReportConfig(runs=tuple(runs), out=root / "report"), listener)
    return squeezed(result.file("report.html").read_text()), listener.warnings


def test_few_seeds_are_said_first(tmp_path: Path):
    text, _ = told(small(tmp_path), tmp_path)
    assert "There are only 2 seeds (fewer than 5)" in text
    one, _ = told(small(tmp_path / "one", seeds=1), tmp_path / "one")
    assert "There is only one seed" in one
    assert "no interval" in one


def test_a_missing_run_is_refused_with_the_nearest_name(tmp_path: Path):
    runs = small(tmp_path)
    near = runs[0].with_name(runs[0].name + "x")
    with pytest.raises(InputError, match=rf"no run at .*Did you mean '{runs[0].name}'"):
        told([*runs, near], tmp_path)


def test_a_folder_stands_for_the_runs_in_it(tmp_path: Path):
    runs = small(tmp_path)
    named, _ = told(runs, tmp_path)
    folder, _ = told([runs[0].parent], tmp_path)
    assert re.findall("ppo n = [0-9]+", folder) == re.findall("ppo n = [0-9]+", named)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="there is no train-rs or evaluate or potential-report run in it"):
        told([tmp_path / "empty"], tmp_path)


def test_a_run_that_is_neither_training_nor_evaluation_is_refused(tmp_path: Path):
    write_dataset(tmp_path / "d")
    with pytest.raises(InputError, match="is a 'collect' run; name train-rs or evaluate runs"):
        told([tmp_path / "d"], tmp_path)


def test_an_unfinished_run_is_said(tmp_path: Path):
    runs = small(tmp_path)
    (runs[0] / "manifest.json").unlink()
    text, _ = told(runs, tmp_path)
    assert "is unfinished" in text
    assert "ppo n = 1" in text


def test_a_changed_byte_in_a_run_is_said_and_the_run_left_out(tmp_path: Path):
    runs = small(tmp_path)
    path = runs[0] / "metrics.jsonl"
    raw = bytearray(path.read_bytes())
    raw[40] ^= 1
    path.write_bytes(raw)
    text, warnings = told(runs, tmp_path)
    assert any("was changed after it was written" in warning for warning in warnings)
    assert "was changed after it was written" in text
    assert "ppo n = 1" in text


def chain(root: Path) -> list[Path]:
    collect(root)
    label(root, "pref")
    train_rm(root, "pref")
    return [train_rs(root, "ppo", 1), train_rs(root, "bk-pref", 1, potential=root / "rm-pref")]


def test_a_changed_byte_in_an_input_is_said(tmp_path: Path):
    runs = chain(tmp_path)
    part = tmp_path / "data" / "steps" / "part-00000.parquet"
    raw = bytearray(part.read_bytes())
    raw[len(raw) // 2] ^= 1
    part.write_bytes(raw)
    text, _ = told(runs, tmp_path)
    assert "part-00000.parquet was changed after it was written" in text
    assert "bk-pref · pbrs n = 1" in text  # what was measured stands; its past cannot be checked


def test_an_input_that_is_gone_or_was_made_again_is_said(tmp_path: Path):
    runs = chain(tmp_path)
    manifest = tmp_path / "label-pref" / "manifest.json"
    manifest.write_text(manifest.read_text().replace("rules", "other"))
    text, _ = told(runs, tmp_path)
    assert "was made again since" in text
    manifest.unlink()
    text, _ = told(runs, tmp_path)
    assert "is no longer there" in text


def test_a_study_that_was_moved_is_followed(tmp_path: Path):
    runs = chain(tmp_path / "old")
    (tmp_path / "old").rename(tmp_path / "new")
    text, warnings = told([tmp_path / "new" / run.name for run in runs], tmp_path)
    assert warnings == []
    assert "label-pref" in text


def test_envs_are_kept_apart(tmp_path: Path):
    runs = small(tmp_path) + small(tmp_path, env=KEY)
    text, _ = told(runs, tmp_path)
    assert "2 envs stand side by side here; they are never pooled or averaged" in text
    results = json.loads((tmp_path / "report" / "results.json").read_text())
    assert [section["env"] for section in results["envs"]] == [KEY, RED]
    assert all(row["n"] == 2 for section in results["envs"] for row in section["rows"])


def test_a_potential_of_another_family_is_said(tmp_path: Path):
    runs = chain(tmp_path)
    runs.append(train_rs(tmp_path, "bk-pref", 2, env=CRAFTER, potential=tmp_path / "rm-pref"))
    text, warnings = told(runs, tmp_path)
    assert any("is a crafter run but rests on" in warning for warning in warnings)
    assert "made in a babyai env" in text


def test_runs_with_other_settings_are_not_pooled(tmp_path: Path):
    runs = small(tmp_path, seeds=3)
    runs.append(train_rs(tmp_path, "ppo", 4, 600_000, reward_scale=10.0, name="scaled"))
    text, _ = told(runs, tmp_path)
    assert "ppo n = 3" in text
    assert "ppo (reward_scale=10.0) n = 1" in text


def test_runs_whose_rates_fall_to_the_end_are_pooled_by_their_length(tmp_path: Path):
    """A longer run of PQN was a repeat of the shorter one, seed for seed, and one of PPO is."""
    runs = small(tmp_path)
    for steps in (500_000, 1_000_000):
        for alg in ("ppo", "pqn"):
            how = {"steps": steps, "name": f"{alg}-{steps}", "last": 1 + steps // 50_000}
            runs.append(train_rs(tmp_path, alg, 1, 600_000, **how))
    told(runs, tmp_path)
    (section,) = json.loads((tmp_path / "report" / "results.json").read_text())["envs"]
    rows = {row["label"]: row["n"] for row in section["rows"]}
    assert rows == {"ppo": 2, "rnd": 2, "pqn": 1, "pqn (steps=500000)": 1}


def test_runs_whose_weights_fall_to_the_end_are_pooled_by_their_length(tmp_path: Path):
    """A short and a long run of one fading shaping, or with one teacher, were one method; others still are."""
    advice = {"shaping": "advice", "facts": {"form": "advice"}}
    others = [("bk-pref", advice), ("bk-pref", {"facts": {"form": "pbrs"}}), ("glam", {"imitate": "bot"}), ("glam", {})]
    others += [("bk-goal", advice | {"shaping_until": 9_000}), ("glam", {"imitate": "bot", "imitate_until": 9_000})]
    runs = []
    for seed, steps in enumerate((500_000, 1_000_000), 1):
        for number, (alg, how) in enumerate(others):
            runs.append(train_rs(tmp_path, alg, seed, **how, steps=steps, name=f"{number}-{steps}"))
    told(runs, tmp_path)
    (section,) = json.loads((tmp_path / "report" / "results.json").read_text())["envs"]
    assert {row["label"]: row["n"] for row in section["rows"]} == {
        "bk-goal (advice)": 2,
        "bk-pref": 2,
        "bk-pref (advice)": 1,
        "bk-pref (advice, steps=500000)": 1,
        "glam": 2,
        "glam (imitate=bot)": 1,
        "glam (imitate=bot, steps=500000)": 1,
        "glam (imitate=bot, imitate_until=9000)": 2,
    }


def test_a_rate_that_falls_to_the_end_renames_no_other_run_of_its_method(tmp_path: Path):
    """Beside a run with --anneal-lr plain PPO was called "ppo (steps=default)", and was no baseline."""
    runs = [*small(tmp_path), train_rs(tmp_path, "ppo", 1, ppo=PPOConfig(anneal_lr=True), name="annealed")]
    text, _ = told(runs, tmp_path)
    assert "ppo n = 2" in text
    assert "ppo (ppo.anneal_lr=True) n = 1" in text


def test_a_repeated_run_counts_once(tmp_path: Path):
    runs = [*small(tmp_path), train_rs(tmp_path, "ppo", 1, 600_000, name="ppo-again")]
    text, warnings = told(runs, tmp_path)
    assert any("is counted once" in warning for warning in warnings)
    assert "ppo n = 2" in text


@pytest.mark.parametrize("part", [False, True])
def test_what_was_made_twice_is_one_draw(tmp_path: Path, part: bool):
    """A study in two folders has the same dataset, or the same part of one, the same labels and potential in both;
    their manifests name other paths, and the metrics of exploring hold other clocks.
    """
    runs = small(tmp_path, seeds=4)
    for number, seeds in enumerate([(1, 2), (3, 4)]):
        root = tmp_path / f"folder{number}"
        dataset = collect(root, clock=1.0 + number)
        dataset = subset(dataset, root / "part", 3).path if part else dataset
        label(root, "pref", dataset=dataset)
        potential = train_rm(root, "pref", dataset=dataset)
        runs += [train_rs(root, "bk-pref", seed, 3e5, potential=potential) for seed in seeds]
    told(runs, tmp_path)
    (section,) = json.loads((tmp_path / "report" / "results.json").read_text())["envs"]
    rows = {row["label"]: (row["n"], row["draws"], row["datasets"]) for row in section["rows"]}
    assert rows["bk-pref"] == (4, 1, 1)


def test_methods_from_parts_of_a_dataset_of_other_sizes_are_not_pooled(tmp_path: Path):
    """The settings of the whole dataset stood in the place of the parts': two sizes were two datasets of one method."""
    runs = small(tmp_path)
    for size in (2, 3):
        root = tmp_path / f"size{size}"
        part = subset(collect(root), root / "part", size).path
        label(root, "pref", dataset=part)
        potential = train_rm(root, "pref", dataset=part)
        runs += [train_rs(root, "bk-pref", seed, 3e5, potential=potential) for seed in (1, 2)]
    told(runs, tmp_path)
    (section,) = json.loads((tmp_path / "report" / "results.json").read_text())["envs"]
    rows = {row["label"]: (row["n"], row["datasets"]) for row in section["rows"] if row["alg"] == "bk-pref"}
    assert rows == {"bk-pref": (2, 1), "bk-pref (collect.episodes=240, 3)": (2, 1)}


def test_a_run_of_another_length_cuts_the_comparison(tmp_path: Path):
    runs = small(tmp_path)
    runs.append(train_rs(tmp_path, "ppo", 3, 600_000, last=11))
    text, _ = told(runs, tmp_path)
    assert "trained for different lengths; all numbers look at the first 500,000 steps only" in text


def test_it_refuses_what_it_cannot_report(tmp_path: Path):
    with pytest.raises(UsageError, match="Name the runs"):
        report.run(ReportConfig(runs=(), out=tmp_path / "r"), Reporter())
    runs = small(tmp_path, seeds=1)
    config = ReportConfig(runs=tuple(runs), out=tmp_path / "r")
    report.run(config, Reporter())
    with pytest.raises(UsageError, match="is a report itself"):
        report.run(ReportConfig(runs=(tmp_path / "r",), out=tmp_path / "r2"), Reporter())
    with pytest.raises(UsageError, match="holds another run"):
        report.run(replace(config, out=runs[0]), Reporter())


@pytest.mark.slow
def test_the_same_study_run_again_gives_the_same_tables(tmp_path: Path):
    """Another place, other clocks, other manifests: results.json is the same, byte for byte; timings.json is not."""
    made = []
    for name, seconds in (("one", 1.0), ("two", 2.5)):
        runs = study(tmp_path / name, range(1, 4), seconds=seconds)
        made.append(report.run(ReportConfig(runs=tuple(runs), out=tmp_path / name / "report", title="T"), Reporter()))
    one, two = made
    assert one.file("results.json").read_bytes() == two.file("results.json").read_bytes()
    assert one.facts["table"] == two.facts["table"]
    assert one.facts["identity"] != two.facts["identity"]
    assert one.file("timings.json").read_bytes() != two.file("timings.json").read_bytes()
    for word in ("seconds", str(tmp_path), "sha256", "time/"):
        assert word not in one.file("results.json").read_text()


def test_potentials_from_other_settings_are_not_pooled(tmp_path: Path):
    """Two potentials made with other settings are two methods; made alike from another draw of labels, they are one."""
    runs = small(tmp_path, seeds=2)
    collect(tmp_path)
    for number, (seed, epochs) in enumerate([(1, 30), (2, 30), (1, 7)]):
        root = tmp_path / f"draw{number}"
        label(root, "pref", dataset=tmp_path / "data", seed=seed)
        potential = train_rm(root, "pref", dataset=tmp_path / "data", epochs=epochs)
        runs += [train_rs(root, "bk-pref", s, 3e5, potential=potential, name=f"run-{s}") for s in (1, 2)]
    told(runs, tmp_path)
    (section,) = json.loads((tmp_path / "report" / "results.json").read_text())["envs"]
    rows = {row["label"]: (row["n"], row["draws"]) for row in section["rows"]}
    assert rows["bk-pref"] == (4, 2)
    assert rows["bk-pref (rm.epochs=7)"] == (2, 1)
    (pooled,) = [row for row in section["rows"] if row["label"] == "bk-pref"]
    assert pooled["split"]["draws"] == 2


def test_a_doubtful_potential_is_named_beside_its_curves(tmp_path: Path):
    collect(tmp_path)
    label(tmp_path, "goal")
    potential = train_rm(tmp_path, "goal")
    bad = Run.renew(tmp_path / "bad", stage="train-rm", config=Run.open(potential, "train-rm").config["config"])
    atomic_write(bad.file("potential_report.json"), to_json({"ordering": 0.13}))
    bad.finish(["potential_report.json"], control="none")
    runs = [train_rs(tmp_path, "ppo", 1), train_rs(tmp_path, "bk-goal", 1, potential=bad.path)]
    with unpictured():
        made = report.run(ReportConfig(runs=tuple(runs), out=tmp_path / "r"), Listener())
    text = squeezed(made.file("report.html").read_text())
    said = "bk-goal: its potential may mislead: it puts ends in success above other windows in 13 % of cases"
    assert text.count(said) == 2  # in the summary, and beside the curves


def test_a_run_counts_though_a_manifest_spells_its_path_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    policy = train_rs(tmp_path, "ppo", 1)  # the manifest of its evaluation names it with its whole path
    evaluate(tmp_path, policy, alg="ppo")
    monkeypatch.chdir(tmp_path)
    result = report.run(ReportConfig(runs=(Path("."),), out=Path("report")), Reporter())
    assert result.facts["training_runs"] == 1


def test_policies_of_a_method_and_of_its_control_are_told_apart_where_evaluations_alone_are_named(tmp_path: Path):
    """Without their trainings among the runs, all policies of an algorithm were one method of it."""
    collect(tmp_path)
    label(tmp_path, "code")
    played = []
    for control in ("none", "shuffled"):
        potential = train_rm(tmp_path, "code", control)
        for seed in (1, 2):
            policy = train_rs(tmp_path, "bk-code", seed, potential=potential, name=f"{control}-s{seed}")
            played.append(evaluate(tmp_path, policy))
    result = report.run(ReportConfig(runs=tuple(played), out=tmp_path / "report"), Reporter())
    found = json.loads(result.file("results.json").read_text())["evaluated"]
    assert [(one["alg"], one["n"]) for one in found] == [("bk-code", 2), ("bk-code (shuffled)", 2)]


def test_a_policy_of_a_run_that_was_made_twice_counts_once(tmp_path: Path):
    """A study in two folders, both evaluated: the tables counted a seed once, and the evaluations twice."""
    runs = [train_rs(tmp_path / where, "ppo", seed) for where in ("a", "b") for seed in (1, 2)]
    played = [evaluate(run.parent, run) for run in runs]
    given = ReportConfig(runs=(*runs, *played), out=tmp_path / "report", titles=("ppo=plain",))
    result = report.run(given, Reporter())
    found = json.loads(result.file("results.json").read_text())
    assert [(one["alg"], one["n"]) for one in found["evaluated"]] == [("plain", 2)]
    assert len(found["evaluations"]) == 4


def test_evaluations_of_other_settings_than_those_of_the_tables_are_not_pooled_with_them(tmp_path: Path):
    """Alone, runs of an unusual setting are called "ppo", as those of the usual one are that are evaluated beside."""
    odd = [train_rs(tmp_path / "odd", "ppo", seed, reward_scale=10.0) for seed in (1, 2)]
    usual = train_rs(tmp_path / "usual", "ppo", 3)
    played = [*(evaluate(tmp_path / "odd", run) for run in odd), evaluate(tmp_path / "usual", usual)]
    result = report.run(ReportConfig(runs=(*odd, *played), out=tmp_path / "report"), Reporter())
    found = json.loads(result.file("results.json").read_text())
    assert [row["label"] for row in found["envs"][0]["rows"]] == ["ppo"]
    assert [(one["alg"], one["n"]) for one in found["evaluated"]] == [("ppo", 1), ("ppo (reward_scale=10.0)", 2)]


def test_another_measure_may_stand_in_the_place_of_success(tmp_path: Path) -> None:
    """A share of the evaluations, everywhere: in tables, pictures and words."""
    runs = [train_rs(tmp_path, "ppo", seed) for seed in (1, 2)]
    result = report.run(ReportConfig(runs=tuple(runs), out=tmp_path / "report", measure="return"), Listener())
    (found,) = json.loads(result.file("results.json").read_text())["envs"]
    plain = report.run(ReportConfig(runs=tuple(runs), out=tmp_path / "plain"), Listener())
    (usual,) = json.loads(plain.file("results.json").read_text())["envs"]
    assert found["rows"][0]["final"]["estimate"] == pytest.approx(0.9 * usual["rows"][0]["final"]["estimate"])
    assert (found["measure"], usual["measure"]) == ("return", "success")
    html = result.file("report.html").read_text()
    assert "return at the end" in html
    assert "success at the end" not in html
    assert "return of the evaluations, in its place." in html
    assert result.facts["identity"] != plain.facts["identity"]
    with pytest.raises(UsageError, match="--measure takes a share, and length of .* goes from"):
        report.run(ReportConfig(runs=tuple(runs), out=tmp_path / "no", measure="length"), Listener())
    with pytest.raises(UsageError, match="No training run here has object_success in its evaluations"):
        report.run(ReportConfig(runs=tuple(runs), out=tmp_path / "no", measure="object_success"), Listener())
    assert not (tmp_path / "no").exists()


def test_labels_that_are_the_truth_are_named_so(tmp_path: Path) -> None:
    label(tmp_path, "code", llm="votes", dataset=collect(tmp_path))
    potential = train_rm(tmp_path, "code")
    runs = [train_rs(tmp_path, "bk-code", 1, potential=potential), train_rs(tmp_path, "ppo", 1)]
    report.run(ReportConfig(runs=tuple(runs), out=tmp_path / "report"), Listener())
    html = (tmp_path / "report" / "report.html").read_text()
    assert "Labels of the votes annotator are the truth that success is judged by" in html
    assert "hand-written heuristics" not in html


def test_whose_knowledge_each_curve_is(tmp_path: Path) -> None:
    """A model is called by its name however it was asked; all draws of random answers are one control."""
    data, runs = collect(tmp_path), [train_rs(tmp_path, "ppo", seed) for seed in (1, 2)]
    qwen = {"model_sha256": "c" * 64}
    asked: tuple[tuple[str, str, dict[str, str]], ...] = (
        ("asked", "local:qwen", {"model": "qwen", **qwen}),
        ("replayed", "replay:sample:x", {"replay_of": "qwen", **qwen}),
        ("rules", "rules", {}),
        ("random-1", "random:1", {}),
        ("random-2", "random:2", {}),
        ("equal", "equal", {}),
    )
    for seed, (name, llm, facts) in enumerate(asked):
        label(tmp_path / name, "code", llm, data, seed, **facts)
        potential = train_rm(tmp_path / name, "code", dataset=data)
        runs += [train_rs(tmp_path, "bk-code", s, potential=potential, name=f"{name}-s{s}") for s in (1, 2)]
    with unpictured():
        result = report.run(ReportConfig(runs=tuple(runs), out=tmp_path / "report"), Listener())
    found = json.loads(result.file("results.json").read_text())
    rows = {row["label"]: row for row in found["envs"][0]["rows"]}
    assert {name: row["n"] for name, row in rows.items()} == {
        "ppo": 2,
        "bk-code (qwen)": 4,
        "bk-code (rules)": 2,
        "bk-code (equal labels)": 2,
        "bk-code (random labels)": 4,
    }
    assert [name for name, row in rows.items() if row["control"]] == [
        "bk-code (equal labels)",
        "bk-code (random labels)",
    ]
    assert {one["control"] for one in rows["bk-code (qwen)"]["versus"]} == {
        "bk-code (equal labels)",
        "bk-code (random labels)",
    }
    said = " ".join(one["text"] for one in found["findings"])
    assert "What bk-code (qwen) knows is from qwen (a language model, SHA-256 cccccccccccc…)." in said
    assert "What bk-code (rules) knows is from rules (hand-written heuristics, not a language model)." in said
    assert "Nothing on this page shows what a language model knows" not in said


def test_rules_beside_a_model_of_an_endpoint_do_not_make_the_page_theirs(tmp_path: Path) -> None:
    """It said that nothing on the page shows what a language model knows."""
    data, runs = collect(tmp_path), [train_rs(tmp_path, "ppo", seed) for seed in (1, 2)]
    for name in ("rules", "openai:big"):
        label(tmp_path / name, "code", name, data)
        potential = train_rm(tmp_path / name, "code", dataset=data)
        runs += [train_rs(tmp_path, "bk-code", s, potential=potential, name=f"{name[:5]}-s{s}") for s in (1, 2)]
    with unpictured():
        result = report.run(ReportConfig(runs=tuple(runs), out=tmp_path / "report"), Listener())
    said = " ".join(one["text"] for one in json.loads(result.file("results.json").read_text())["findings"])
    assert "What bk-code (openai:big) knows is from openai:big." in said
    assert "What bk-code (rules) knows is from rules (hand-written heuristics, not a language model)." in said
    assert "Nothing on this page shows what a language model knows" not in said


def test_a_language_model_that_was_made_stands_among_the_runs_of_a_page() -> None:
    nodes = {name: Node(name, stage, None, "") for name, stage in (("made", "lm"), ("policy", "train-rs"))}
    assert [(stage, [node.key for node, _ in own]) for stage, own in stages(Chain(nodes), {})] == [
        ("train-rs", ["policy"]),
        ("lm", ["made"]),
    ]


def test_what_had_no_effect_on_labels_sets_no_method_apart(tmp_path: Path) -> None:
    """Open questions have no criteria; a score says only how good the answers were."""
    data, runs = collect(tmp_path), []
    for name, asked in (("mission", {"llm": "local:qwen", "criteria": "mission"}), ("rules", {"score": "exact"})):
        label(tmp_path / name, "pref", dataset=data, **asked)
        potential = train_rm(tmp_path / name, "pref", dataset=data)
        runs += [train_rs(tmp_path, "bk-pref", s, potential=potential, name=f"{name}-s{s}") for s in (1, 2, 3)][
            : 2 + (name == "mission")
        ]
    with unpictured():
        result = report.run(ReportConfig(runs=tuple(runs), out=tmp_path / "report"), Listener())
    found = json.loads(result.file("results.json").read_text())
    assert {row["label"]: row["n"] for row in found["envs"][0]["rows"]} == {
        "bk-pref (local:qwen)": 3,
        "bk-pref (rules)": 2,
    }


def test_a_folder_with_a_potential_report_is_reported_on(tmp_path: Path) -> None:
    chain(tmp_path)
    worth = Run.renew(tmp_path / "worth", stage="potential-report", config={}, inputs={"p": tmp_path / "rm-pref"})
    worth.write_json("quality.json", {"potentials": {}})
    worth.finish(["quality.json"])
    text, _ = told([tmp_path], tmp_path)
    assert "ppo n = 1" in text


def test_episodes_step_by_step_stand_beside_it(tmp_path):
    """The page of `bkrl play`, with Φ of each potential; one that cannot be opened has none."""
    data = write_env(tmp_path / "data", "BabyAI-Text-GoToLocal-RedBall-S20", episodes=20)
    asked = LabelConfig(dataset=data, variant="pref", llm="return", num=40, length=2, out=tmp_path / "labels")
    labels = label_stage.run(asked, Reporter()).path
    phi = train_rm_stage.run(TrainRmConfig(labels=labels, epochs=1, out=tmp_path / "phi"), Reporter()).path
    label(tmp_path, "pref")
    runs = [
        train_rs(tmp_path, "bk-pref", 1, potential=phi),
        train_rs(tmp_path, "bk-pref", 2, potential=train_rm(tmp_path, "pref")),
    ]
    result = report.run(ReportConfig(runs=tuple(runs), out=tmp_path / "report", episodes=True), Reporter())
    [name] = [name for name in result.manifest["outputs"] if name.startswith("episodes-")]
    assert f'href="{name}"' in result.file("report.html").read_text()
    shown = json.loads(result.file(name).read_text().split('id="episodes">')[1].split("</script>")[0])["episodes"]
    assert len(shown) == 16
    potential, dataset = load_potential(phi), Dataset.open(data)
    rows = np.arange(dataset.first_row[3], dataset.first_row[4])
    expected = potential(dataset.windows(rows, potential.reads.horizon)).round(4).tolist()
    assert [frame["phi"] for frame in shown[3]["frames"]] == expected
    if browser.CHROMIUM is not None:
        with browser.page(tmp_path / "profile") as opened:
            opened.open(result.file("report.html"))
            opened.run(f"document.querySelector('a[href=\"{name}\"]').click()")
            opened.wait("document.getElementById('caption') !== null")
            assert opened.run("document.getElementById('caption').textContent") == dataset.caption(0)
            assert opened.problems == []
