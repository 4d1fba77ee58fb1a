"""bkrl compare: numbers, and what it refuses or says."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bkrl.cli.main import run_command
from bkrl.core.config import CollectConfig
from bkrl.core.errors import InputError, UsageError
from bkrl.core.files import atomic_write, sha256
from bkrl.methods import TrainRsConfig
from bkrl.report.comparison import compare
from bkrl.report.contrast import _contrast, contrast, table, values
from bkrl.report.groups import NO_EFFECT, Group, Trained, group_runs
from bkrl.report.runs import training_runs
from bkrl.runs.provenance import follow
from bkrl.runs.record import Run
from bkrl.stats.curves import Series
from bkrl.stats.variance import compare_over_datasets
from tests.report.synthetic import KEY, RED, collect, label, train_rm, train_rs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    for seed in range(1, 7):
        train_rs(root / "ppo", "ppo", seed, 600_000)
        train_rs(root / "rnd", "rnd", seed, 200_000)
    train_rs(root / "elsewhere", "ppo", 1, 600_000, env=KEY)
    return root


def test_two_folders(folder: Path):
    ((one,), problems) = contrast(str(folder / "rnd"), str(folder / "ppo"), 0.8)
    assert problems == []
    assert (one.env, one.a.n, one.b.n) == (RED, 6, 6)
    assert one.difference.p is not None
    assert one.difference.p.n == 6
    assert one.average.low > 0.3  # mean success: about 0.8 against 0.4
    assert one.difference.ratio is not None
    assert one.difference.ratio.high < 0.5
    assert one.verdict == "A against B: at most half the steps"
    assert any("no guarantee" in row.group.legend for row in (one.a,))
    ((back,), _) = contrast(str(folder / "ppo"), str(folder / "rnd"), 0.8)
    assert back.average.estimate == pytest.approx(-one.average.estimate)
    assert back.verdict == "A against B: significantly slower"


def test_a_difference_of_means_beside_interquartile_means_is_called_so(tmp_path: Path):
    for seed in range(1, 6):
        train_rs(tmp_path / "ppo", "ppo", seed, 600_000)
        train_rs(tmp_path / "rnd", "rnd", seed, 200_000 if seed > 1 else 600_000)  # one run that fails moves the mean
    a, b = str(tmp_path / "rnd"), str(tmp_path / "ppo")
    (found, problems) = contrast(a, b, 0.8)
    (one,) = found
    columns = one.a.average.estimate - one.b.average.estimate
    assert abs(columns - one.average.estimate) > 0.02
    assert table(one, 0.8)[0][3] == "A − B, of means"
    assert any(note.startswith("What stands under A and B are interquartile means") for note in one.notes)
    shown = values(found, problems)["envs"][0]
    assert (shown["difference_of"], shown["a"]["centre"]) == ("means", "interquartile mean")
    few = [str(next((tmp_path / alg).glob("*-s2"))) for alg in ("rnd", "ppo")]
    (found, problems) = contrast(*few, 0.8)
    assert not any("interquartile" in note for note in found[0].notes)
    assert values(found, problems)["envs"][0]["a"]["centre"] == "mean"
    ((one,), _) = contrast(a, few[1], 0.8)
    assert any(note.startswith("What stands under A is an interquartile mean (") for note in one.notes)


def test_means_over_few_datasets_are_called_means_and_have_no_made_up_interval(tmp_path: Path):
    for number, name in enumerate(("d1", "d2")):
        collect(tmp_path / name, seed=number)
        label(tmp_path / name, "code")
        train_rm(tmp_path / name, "code")
        for seed in range(1, 4):
            half = 3e5 if name == "d1" else 4.5e5
            train_rs(tmp_path / name, "bk-code", seed, half, potential=tmp_path / name / "rm-code")
    for seed in range(1, 7):
        train_rs(tmp_path / "ppo", "ppo", seed, 6e5)
    (found, problems) = contrast(f"{tmp_path}:bk-code", str(tmp_path / "ppo"), 0.8)
    (one,) = found
    assert (one.a.n, one.a.final.method) == (6, "t")
    assert table(one, 0.8)[1][3][3] == "1.00 (no interval)"
    assert any(note.startswith("What stands under B is an interquartile mean (") for note in one.notes)
    assert [values(found, problems)["envs"][0][side]["centre"] for side in "ab"] == ["mean", "interquartile mean"]


def test_over_datasets_success_at_the_end_has_an_interval_for_another_dataset() -> None:
    """Its runs were resampled as if those on one dataset had nothing in common: the interval was far too short."""
    rates = {"d1": (0.30, 0.34), "d2": (0.50, 0.52), "d3": (0.71, 0.75), "": (0.5, 0.51, 0.49, 0.52)}
    runs = [
        Trained(
            key=f"{dataset}-{seed}", env=RED, alg="bk-code" if dataset else "ppo", seed=seed, settings={},
            series={"eval/success_rate": (np.array([0.0, 1e5]), np.array([0.0, rate]))}, dataset=dataset,
            potential=f"p{dataset}" if dataset else "", form="pbrs" if dataset else "none",
        )
        for dataset, found in rates.items()
        for seed, rate in enumerate(found)
    ]  # fmt: skip
    ours, theirs = (Group(RED, alg, alg, "none", tuple(r for r in runs if r.alg == alg)) for alg in ("bk-code", "ppo"))
    final = _contrast(RED, ours, theirs, 0.8).final
    a, b = (np.array([run.series["eval/success_rate"][1][-1] for run in group.runs]) for group in (ours, theirs))
    expected = compare_over_datasets(a, b, (ours.origins, theirs.origins))
    assert expected is not None
    assert (final.n, final.method) == (3, "t")
    assert final == expected.difference
    assert final.low < -0.3


def test_a_difference_over_many_datasets_is_of_their_means() -> None:
    """Not of all runs: datasets have unequal numbers of them."""
    rng, ours = np.random.default_rng(0), []
    for number in range(7):
        for seed in range(1, 3 + number % 3):
            rate = 0.3 + 0.05 * number + 0.05 * rng.random()
            series, name = _success((0.0, 1e5), (rate, rate)), f"d{number}"
            ours.append(Trained(f"{name}-{seed}", RED, "bk-code", seed, {}, series, dataset=name, potential=f"p{name}"))
    one = Group(RED, "bk-code", "bk-code", "pbrs", tuple(ours))
    found = _contrast(RED, one, _ending("ppo", {seed: 0.2 + 0.01 * seed for seed in range(1, 4)}), 0.8)
    (note,) = (note for note in found.notes if note.startswith("What stands under A"))
    assert "A − B is a difference of the datasets' means:" in note


def test_ends_that_are_all_alike_over_datasets_have_no_interval() -> None:
    """Nothing varies, so no test can be made; then runs were resampled, as if there were no datasets: 100 to 100."""
    ours = [
        Trained(
            key=f"{dataset}-{seed}", env=RED, alg="bk-code", seed=seed, settings={}, dataset=dataset, form="pbrs",
            series=_success((0.0, 5e4, 1e5), (0.0, 0.1 * seed, 1.0)), potential=f"p{dataset}",
        )
        for dataset in ("d1", "d2", "d3")
        for seed in (1, 2, 3)
    ]  # fmt: skip
    one = Group(RED, "bk-code", "bk-code", "none", tuple(ours))
    found = _contrast(RED, one, _ending("ppo", dict.fromkeys(range(1, 7), 0.0)), 0.8)
    assert (found.final.estimate, found.final.known, found.final.n) == (1.0, False, 3)


def _ending(alg: str, rates: dict[int, float]) -> Group:
    """Runs that end, and have been throughout, at these rates of success, by seed."""
    runs = [
        Trained(f"{alg}-{seed}", RED, alg, seed, {}, _success((0.0, 1e5), (rate, rate))) for seed, rate in rates.items()
    ]
    return Group(RED, alg, alg, "none", tuple(runs))


def test_success_at_the_end_is_paired_as_mean_success_is() -> None:
    """It was of unpaired runs: what is 5 points less seed by seed had an interval from -28 to 17."""
    a = _ending("rnd", {seed: 0.1 * seed - 0.01 * (seed % 2) for seed in range(1, 9)})
    one = _contrast(RED, a, _ending("ppo", {seed: 0.1 * seed + 0.05 for seed in range(1, 9)}), 0.8)
    assert (one.final.n, one.final.estimate) == (8, pytest.approx(-0.055))
    assert -0.06 < one.final.low < one.final.high < -0.05
    assert not any(note.startswith("A − B is over") for note in one.notes)
    assert any("difference of means over all of them" in note for note in one.notes)
    part = _contrast(RED, a, _ending("ppo", {seed: 0.1 * seed + 0.05 for seed in range(5, 13)}), 0.8)
    assert (part.final.n, part.final.estimate) == (4, pytest.approx(-0.055))  # it was of all, mean success of 4
    assert "A − B is over the 4 seeds that both have, the columns are over all runs." in part.notes
    assert not any("over all of them" in note for note in part.notes)


def test_no_difference_of_shares_is_beyond_one() -> None:
    a, b = _ending("rnd", {1: 1.0, 2: 0.8}), _ending("ppo", {1: 0.0, 2: 0.6})
    one = _contrast(RED, a, b, 0.8)  # by Student's t from -453 to +573 points
    assert (one.final.low, one.final.high, one.average.low, one.average.high) == (-1, 1, -1, 1)


def test_a_setting_that_has_no_effect_on_a_side_is_no_difference() -> None:
    a, b = (
        replace(group, runs=tuple(replace(run, settings={"length": value, "lr": lr}) for run in group.runs))
        for group, value, lr in ((_ending("rnd", {1: 0.5}), NO_EFFECT, 1), (_ending("ppo", {1: 0.4}), "0", 2))
    )
    assert _contrast(RED, a, b, 0.8).settings == {"lr": (1, 2)}


def test_two_runs_have_no_interval(folder: Path):
    ppo, rnd = (str(next((folder / alg).glob("*-s1"))) for alg in ("ppo", "rnd"))
    ((one,), _) = contrast(rnd, ppo, 0.8)
    assert not one.average.known
    assert one.verdict == "A against B: nothing can be said"
    assert any("only one seed" in note for note in one.notes)


def test_five_seeds_are_faster_and_not_significant(folder: Path):
    ((one,), _) = contrast(str(folder / "rnd" / "*-s[1-5]"), str(folder / "ppo" / "*-s[1-5]"), 0.8)
    assert one.verdict == "A against B: faster, not significant"
    assert any("With 5 shared seeds and 1 test no p can fall below 0.062" in note for note in one.notes)
    assert any("with 6 seeds it could" in note for note in one.notes)


def test_a_method_is_picked_from_a_folder_of_several(folder: Path):
    with pytest.raises(UsageError, match=r"holds several methods .*ppo, rnd; name one, as in '.*:ppo'"):
        contrast(str(folder), str(folder / "ppo"), 0.8)
    ((one,), problems) = contrast(f"{folder}:rnd", f"{folder}:ppo", 0.8)
    assert one.a.group.alg == "rnd"
    assert problems == [f"{KEY} is only in {folder}:ppo; it is left out."]
    with pytest.raises(UsageError, match="there is no method 'bk-pref' there, but ppo"):
        contrast(f"{folder}:bk-pref", f"{folder}:ppo", 0.8)


def test_a_method_is_picked_whose_label_has_a_colon_from_a_folder_that_has_one(tmp_path: Path):
    """All up to the last colon was taken for the folder, and what a refusal proposed was cut at the first."""
    collect(tmp_path)
    label(tmp_path, "pref", llm="openai:gpt-4o")
    potential, runs = train_rm(tmp_path, "pref"), tmp_path / "a:b"
    for seed in (1, 2):
        train_rs(runs, "bk-pref", seed, 3e5, potential=potential)
        train_rs(runs, "ppo", seed, 6e5)
    with pytest.raises(UsageError, match=f"name one, as in '{runs}:"):
        contrast(str(runs), f"{runs}:ppo", 0.8)
    ((one,), _) = contrast(f"{runs}:bk-pref (openai:gpt-4o)", f"{runs}:ppo", 0.8)
    assert (one.a.group.label, one.b.group.label) == ("bk-pref (openai:gpt-4o)", "ppo")


def test_an_algorithm_names_its_only_method(folder: Path, tmp_path: Path):
    for seed in range(1, 3):
        train_rs(tmp_path / "runs", "bk-pref", seed, 3e5, shaping="advice", facts={"form": "advice"})
        train_rs(tmp_path / "runs", "ppo", seed, 6e5)
    ((one,), _) = contrast(f"{tmp_path / 'runs'}:bk-pref", f"{tmp_path / 'runs'}:ppo", 0.8)
    assert one.a.group.label == "bk-pref (advice)"
    facts = {"form": "additive", "guarantee": "none: another task is learnt"}
    for seed in range(1, 3):
        train_rs(tmp_path / "runs", "bk-pref", seed, 3e5, name=f"more-{seed}", shaping="additive", facts=facts)
    with pytest.raises(UsageError, match="several methods"):
        contrast(f"{tmp_path / 'runs'}:bk-pref", f"{tmp_path / 'runs'}:ppo", 0.8)


def test_patterns(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(folder)
    ((one,), _) = contrast("rnd/*-s[12]", "ppo/*", 0.8)
    assert (one.a.n, one.b.n) == (2, 6)
    ((one,), _) = contrast("rnd", f"{folder}:ppo", 0.8)  # one folder, spelt in two ways: a side had no runs
    assert (one.a.n, one.b.n) == (6, 6)
    ((one,), _) = contrast(".:rnd", f"{folder}:ppo", 0.8)
    assert (one.a.n, one.b.n) == (6, 6)


def test_envs_are_never_mixed(folder: Path):
    with pytest.raises(UsageError, match="different envs are never compared"):
        contrast(str(folder / "elsewhere"), str(folder / "ppo"), 0.8)


def test_other_settings_are_said(folder: Path, tmp_path: Path):
    for seed in (1, 2):
        train_rs(tmp_path, "ppo", seed, 300_000, reward_scale=10.0)
    ((one,), _) = contrast(str(tmp_path), str(folder / "ppo"), 0.8)
    assert one.settings == {"reward_scale": ("10.0", "1.0")}
    assert one.a.group.label == "ppo (reward_scale=10.0)" or one.b.group.label == "ppo (reward_scale=1.0)"


def test_one_method_in_two_places_is_compared_seed_by_seed(folder: Path, tmp_path: Path):
    """The same command run twice, with two versions of the code: what repeats a seed does so on its own side alone."""
    for seed in (1, 2, 3, 7):
        train_rs(tmp_path, "ppo", seed, 300_000)
    ((one,), problems) = contrast(str(tmp_path), str(folder / "ppo"), 0.8)
    assert problems == []
    assert (one.a.n, one.b.n) == (4, 6)
    assert one.difference.p is not None
    assert one.difference.p.n == 3
    assert one.average.estimate > 0.2
    assert any("missing: ppo (seeds 4, 5, 6); ppo (seed 7)" in note for note in one.notes)
    train_rs(tmp_path / "again", "ppo", 1, 300_000)
    ((one,), problems) = contrast(str(tmp_path), str(folder / "ppo"), 0.8)
    assert (one.a.n, one.b.n) == (4, 6)
    assert [problem.partition(" repeats ")[1] for problem in problems] == [" repeats "]


def test_what_cannot_be_used_is_said(folder: Path, tmp_path: Path):
    with pytest.raises(InputError, match="no run or folder of runs"):
        contrast(str(folder / "nothing"), str(folder / "ppo"), 0.8)
    (tmp_path / "afile").write_text("x")
    with pytest.raises(InputError, match="afile is a file, and a run is a folder; name the folder"):
        contrast(str(tmp_path / "afile"), str(tmp_path / "afile"), 0.8)
    with pytest.raises(UsageError, match="same runs"):
        contrast(str(folder / "ppo"), str(folder / "ppo"), 0.8)
    for seed in (1, 2):
        train_rs(tmp_path, "ppo", seed, 300_000)
    damaged = next(tmp_path.glob("*-s2")) / "metrics.jsonl"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    ((one,), problems) = contrast(str(tmp_path), str(folder / "rnd"), 0.8)
    assert one.a.n == 1
    assert "metrics.jsonl has" in problems[0]


def test_the_command(folder: Path, capsys: pytest.CaptureFixture[str]):
    assert run_command(["compare", f"{folder}/rnd", f"{folder}/ppo", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    ((one,), problems) = contrast(f"{folder}/rnd", f"{folder}/ppo", 0.8)
    assert told == json.loads(json.dumps(values([one], problems)))
    assert told["envs"][0]["ratio"]["high"] < 0.5
    assert run_command(["compare", f"{folder}/rnd", f"{folder}/ppo"]) == 0
    assert "at most half the steps" in capsys.readouterr().out
    assert run_command(["compare", f"{folder}/rnd", f"{folder}/elsewhere"]) == 2


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *(("config.json", text) for text in ("", "[]", "{}", '{"stage": 3}', '{"stage": "tra')),
        *(("manifest.json", text) for text in ('{"inputs": 3}', '{"inputs": {"x": 3}}', '{"facts": []}', "{}")),
    ],
)
def test_one_damaged_run_among_many_is_said_and_left_out(folder: Path, tmp_path: Path, name: str, content: str):
    shutil.copytree(folder, tmp_path / "f")
    broken = sorted(file.parent for file in (tmp_path / "f").rglob("config.json"))[0]
    (broken / name).write_text(content)
    (tmp_path / "f" / "model").mkdir()
    (tmp_path / "f" / "model" / "config.json").write_text('{"hidden_size": 64}')  # of another program: no run
    _, problems = contrast(f"{tmp_path / 'f'}:rnd", f"{tmp_path / 'f'}:ppo", 0.8)
    assert any(broken.name in problem for problem in problems)
    assert not any("model" in problem for problem in problems)


@pytest.mark.parametrize("pattern", ["x**", "/x**", "**x:ppo"])
def test_a_pattern_that_is_none(pattern: str, capsys: pytest.CaptureFixture[str]):
    assert run_command(["compare", pattern, "b"]) in (2, 3)
    assert "bkrl: " in capsys.readouterr().err


def test_steps_and_mean_success_that_contradict_each_other_are_no_verdict(tmp_path: Path):
    """There at once, and lost again: neither A against B nor B against A is better."""
    values = {"early": [0.9, 0.0, 0.1, 0.1, 0.1], "late": [0.0, 0.7, 0.7, 0.7, 0.9]}
    for name, rates in values.items():
        for seed in range(6):
            config = TrainRsConfig(alg="ppo", env=RED, seed=seed, out=tmp_path / name / str(seed))
            run = Run.create(config.run_dir, stage="train-rs", config=config)
            for place, rate in enumerate(rates):
                run.log(10 * (place + 1), **{"eval/success_rate": rate - 0.001 * seed * (rate < 0.9)})
            atomic_write(run.file("policy.json"), "{}\n")
            run.finish(["policy.json"], alg="ppo", env_id=RED, steps=50)
    for a, b in (("early", "late"), ("late", "early")):
        (one,), _ = contrast(str(tmp_path / a), str(tmp_path / b), 0.8)
        assert one.verdict == "A against B: steps and mean success contradict each other"


def test_advice_that_a_model_told_is_its_own_whoever_made_the_potential(tmp_path: Path) -> None:
    collect(tmp_path)
    label(tmp_path, "pref", llm="equal")
    told = {"advice": {"source": "told", "scale": 0.3, "asked": {"llm": "local:m", "model": "m"}}}
    made = train_rm(tmp_path, "pref", advice="local:m", training=told)
    runs = [
        train_rs(tmp_path, "bk-pref", 1, potential=made, name=form, shaping=form, facts={"form": form})
        for form in ("advice", "pbrs")
    ]
    chain = follow(runs)
    found = {one.form: one for one in training_runs(chain, list(chain.nodes.values()))[0]}
    assert (found["advice"].control, found["advice"].annotator) == ("none", "m")
    assert (found["pbrs"].control, found["pbrs"].annotator) == ("equal labels", "m + equal")


def test_draws_of_random_advice_are_one_control_and_a_model_is_named_once(tmp_path: Path) -> None:
    collect(tmp_path)
    label(tmp_path, "pref", llm="equal")
    paths = [train_rs(tmp_path, "ppo", 1)]
    for name in ("local:m", "random:1", "random:2"):
        asked = {"llm": name, **({"model": "m"} if name == "local:m" else {})}
        told = {"advice": {"source": "told", "scale": 0.3, "asked": asked}}
        made = train_rm(tmp_path, "pref", advice=name, advice_captions=50, training=told, name=f"rm-{name[-1]}")
        paths.append(
            train_rs(
                tmp_path,
                "bk-pref",
                1,
                potential=made,
                name=f"run-{name[-1]}",
                shaping="advice",
                facts={"form": "advice"},
            )
        )
    chain = follow(paths)
    groups, _ = group_runs(training_runs(chain, list(chain.nodes.values()))[0])
    assert {one.label: len(one.runs) for one in groups} == {
        "ppo": 1,
        "bk-pref (advice, m)": 1,
        "bk-pref (advice, random advice)": 2,
    }


def _grouped(paths: list[Path]) -> dict[str, Group]:
    """The groups of these runs alone, by their labels."""
    chain = follow(paths)
    groups, notes = group_runs(training_runs(chain, [chain.nodes[path.as_posix()] for path in paths])[0])
    assert not notes
    return {one.label: one for one in groups}


DOOR = "MiniGrid-DoorKey-5x5-v0"


def test_methods_that_ask_as_they_train_are_told_apart_by_whom_they_ask(tmp_path: Path) -> None:
    """All of bk-online were one method: their average stood in the table, or those of the same seeds were left out."""
    asked = [
        ("rules", {}),
        ("openai:m", {}),
        ("local:small", {"model": "small"}),
        ("replay:labels", {"replay_of": "small"}),  # the answers of the same model
    ]
    runs = [
        train_rs(tmp_path, "bk-online", seed, env=DOOR, llm=llm, name=f"{number}-s{seed}", facts={"live": live})
        for number, (llm, live) in enumerate(asked)
        for seed in ((3, 4) if number == 3 else (1, 2))
    ]
    found = {name: (len(one.runs), one.is_method) for name, one in _grouped(runs).items()}
    assert found == {
        f"bk-online (dynamic, {who})": (n, True) for who, n in (("openai:m", 2), ("rules", 2), ("small", 4))
    }
    goals = [train_rs(tmp_path, "ellm", 1, suggester=name, name=name) for name in ("rules", "openai:m")]
    assert set(_grouped(goals)) == {f"ellm (goals, suggester={who})" for who in ("rules", "openai:m")}


def test_labels_dealt_out_anew_as_a_policy_learns_are_a_control_of_their_annotators(tmp_path: Path) -> None:
    """`--label-control shuffled` counted as a method, and the page said that there was no control."""
    runs = [train_rs(tmp_path, "ppo", seed, env=DOOR) for seed in (1, 2)]
    for llm in ("rules", "openai:m"):
        for control in ("none", "shuffled"):
            how = {"llm": llm, "label_control": control, "env": DOOR}
            runs += [
                train_rs(tmp_path, "bk-online", seed, name=f"{llm[:5]}-{control}-s{seed}", **how) for seed in (1, 2)
            ]
    groups = _grouped(runs)
    assert {name for name, one in groups.items() if one.control == "shuffled"} == {
        "bk-online (dynamic, shuffled, rules)",
        "bk-online (dynamic, shuffled, openai:m)",
    }
    rows = compare(DOOR, list(groups.values()), 0.8).rows
    assert {row.label: [one.control for one in row.versus] for row in rows if row.group.is_method} == {
        f"bk-online (dynamic, {llm})": [f"bk-online (dynamic, shuffled, {llm})"] for llm in ("rules", "openai:m")
    }


def test_who_explored_says_nothing_of_whose_knowledge_a_method_has(tmp_path: Path) -> None:
    """A method was called a control, and had a second annotator, where a policy that was one explored for its dataset.

    A clone does as that policy did, so that its knowledge is the policy's, also as the beginning of a run.
    """
    first, second = tmp_path / "first", tmp_path / "second"
    collect(first)
    label(first, "pref")
    explorer = train_rs(first, "bk-pref", 1, potential=train_rm(first, "pref", "shuffled"), name="explorer")
    config = CollectConfig(env=RED, out=second / "data", explorer=str(explorer))
    data = Run.create(second / "data", stage="collect", config=config, inputs={"explorer": explorer})
    data.finish([], env_id=RED, recorded_steps=1000, recorded_episodes=4)
    label(second, "pref", llm="openai:m")
    potential = train_rm(second, "pref")
    shaped = train_rs(second, "bk-pref", 1, potential=potential, name="shaped")
    clone = train_rs(second, "bc", 1, data=data.path, name="clone")
    begun = train_rs(second, "bk-pref", 1, potential=potential, init_from=clone, name="begun")
    chain = follow([shaped, clone, begun])
    found = {Path(one.key).name: one for one in training_runs(chain, chain.of("train-rs"))[0]}
    assert {name: (one.control, one.annotator) for name, one in found.items()} == {
        "explorer": ("shuffled", "rules"),
        "shaped": ("none", "openai:m"),
        "clone": ("shuffled", "rules"),
        "begun": ("shuffled", "openai:m + rules"),
    }
    assert found["shaped"].collect_steps == found["begun"].collect_steps  # what was taken beforehand counts as before


def test_a_run_knows_its_dataset_and_whether_there_was_advice_to_take(tmp_path: Path) -> None:
    """Also of manifests that do not say so: the potential's own figures do."""
    data = collect(tmp_path)
    label(tmp_path, "pref")
    nothing = {"advice": {"source": "potential", "scale": None}}
    empty = train_rm(tmp_path, "pref", training=nothing)
    full = train_rm(tmp_path, "pref", "shuffled", training={"advice": {"source": "potential", "scale": 0.3}})
    paths = [train_rs(tmp_path, "ppo", 1)]
    for potential, form in ((empty, "advice"), (empty, "pbrs"), (full, "advice")):
        name = f"{potential.name}-{form}"
        paths.append(
            train_rs(tmp_path, "bk-pref", 1, potential=potential, name=name, shaping=form, facts={"form": form})
        )
    chain = follow(paths)
    found, problems = training_runs(chain, list(chain.nodes.values()))
    assert not problems
    by_name = {Path(one.key).name: one for one in found}
    assert {name for name, one in by_name.items() if one.empty} == {"rm-pref-advice"}
    told = {one.dataset for one in found if one.alg == "bk-pref"}
    assert told == {sha256(data / "manifest.json")}
    assert next(one.dataset for one in found if one.alg == "ppo") == ""


def test_clones_of_several_datasets_rest_on_them(tmp_path: Path) -> None:
    """Those of one seed were taken for repeats of each other, "with the same potential", and left out."""
    data = [collect(tmp_path / str(seed), seed=seed) for seed in (1, 2, 3)]
    for number, one in enumerate(data):
        for seed in (1, 2, 3):
            train_rs(tmp_path, "bc", seed, 4e5 + 1e5 * number, name=f"bc-{number}-s{seed}", data=one)
    for seed in (1, 2, 3):
        train_rs(tmp_path, "ppo", seed)
    chain = follow(sorted(tmp_path.glob("*-s?")))
    (ppo, clones), notes = group_runs(training_runs(chain, list(chain.nodes.values()))[0])
    assert not notes
    assert (len(ppo.runs), len(clones.runs)) == (3, 9)
    compared = compare(ppo.env, [ppo, clones], 0.8)
    assert "Steps of bc are samples of a dataset, not of an env: no ratio to PPO's holds." in compared.notes
    row = compared.rows[1]
    assert (row.datasets, row.rests_on, row.average.n) == (3, "3 datasets", 3)
    assert row.split is not None
    assert row.split.share > 0.9


def test_what_begins_as_clones_of_several_datasets_rests_on_them(tmp_path: Path) -> None:
    """Of each seed one run was kept, "with the same potential", and its interval was that of one dataset."""
    data = [collect(tmp_path / str(seed), seed=seed) for seed in (1, 2, 3)]
    later = tmp_path / "later"
    for number, one in enumerate(data):
        for seed in (1, 2):
            start = train_rs(tmp_path, "bc", seed, name=f"clone-d{number}-s{seed}", data=one)
            name = f"tuned-d{number}-s{seed}"
            train_rs(later, "ppo", seed, 4e5 + 1e5 * number, init_from=start, name=name)
    for seed in (1, 2):
        train_rs(later, "ppo", seed)
    ppo, tuned = _grouped(sorted(later.iterdir())).values()
    assert (len(ppo.runs), len(tuned.runs), tuned.is_clone) == (2, 6, False)
    row = compare(ppo.env, [ppo, tuned], 0.8).rows[1]
    assert (row.datasets, row.rests_on, row.average.n) == (3, "3 datasets", 3)
    again = tmp_path / "again"  # a clone that was made twice is one draw
    start = train_rs(again, "bc", 1, name="clone-d0-s1", data=collect(again / "1", seed=1))
    train_rs(later, "ppo", 1, 4e5, init_from=start, name="tuned-d0-s1-again")
    groups = _grouped(sorted(later.iterdir())).values()
    origins = {run.key: (run.dataset, run.potential) for group in groups for run in group.runs}
    first, second = (origins[(later / f"tuned-d0-s1{end}").as_posix()] for end in ("", "-again"))
    assert first == second


def test_plain_ppo_stays_what_others_are_held_against_beside_more_runs_that_begin_as_a_policy(tmp_path: Path) -> None:
    """It was "ppo (collect.backend=default, ...)", and no baseline: what it does not rest on has no default."""
    collect(tmp_path)
    label(tmp_path, "code")
    potential = train_rm(tmp_path, "code")
    later = tmp_path / "later"
    for seed in (1, 2, 3):
        start = train_rs(tmp_path, "bk-code", seed, env=KEY, potential=potential, name=f"start-s{seed}")
        train_rs(later, "ppo", seed, 3e5, init_from=start, name=f"tuned-s{seed}")
    for seed in (1, 2):
        train_rs(later, "ppo", seed, 6e5)
    groups = [*_grouped(sorted(later.iterdir())).values()]
    assert [group.label for group in groups] == ["ppo", f"ppo (init_from={(tmp_path / 'start').as_posix()})"]
    assert [group.is_baseline for group in groups] == [True, False]
    ours = compare(groups[0].env, groups, 0.8).rows[1]
    assert ours.ratio is not None


def test_ppo_that_begins_as_a_policy_is_plain_only_beside_what_does(tmp_path: Path) -> None:
    """With no other PPO beside it, it was "ppo", the baseline, and what began from nothing was held against it."""
    for seed in (1, 2):
        start = train_rs(tmp_path / "start", "bk-code", seed, env=KEY, name=f"start-s{seed}")
        train_rs(tmp_path / "runs", "ppo", seed, 3e5, init_from=start)
        train_rs(tmp_path / "runs", "rnd", seed, 2e5)
        train_rs(tmp_path / "alike", "rnd", seed, 2e5, init_from=start)
    runs = sorted((tmp_path / "runs").iterdir())
    started = f"ppo (init_from={(tmp_path / 'start' / 'start').as_posix()})"
    assert {one.label: one.is_baseline for one in _grouped(runs).values()} == {started: False, "rnd": False}
    alike = [*runs[:2], *sorted((tmp_path / "alike").iterdir())]
    assert {one.label: one.is_baseline for one in _grouped(alike).values()} == {"ppo": True, "rnd": False}


def test_an_env_is_one_however_its_options_are_ordered(tmp_path: Path) -> None:
    """Runs in it were of two envs, "which are never compared", and what rests on such datasets was of two methods."""
    known, other = "{}@num_dists=4,actions=canonical", "{}@actions=canonical,num_dists=4"
    trained, made = "BabyAI-MixedTrainLocal-v0", "BabyAI-MixedTestLocal-v0"
    for seed, spelling in enumerate((other, known), 1):
        root = tmp_path / f"data-{seed}"
        collect(root, spelling.format(made), seed, known.format(made))
        label(root, "code")
        potential = train_rm(root, "code", dataset=root / "data")
        facts = {"env_id": known.format(trained)}
        for alg, phi in (("bk-code", potential), ("ppo", None)):
            train_rs(
                tmp_path / alg,
                alg,
                seed,
                env=spelling.format(trained),
                potential=phi,
                facts=facts,
                name=f"{alg}-s{seed}",
            )
    (one,), problems = contrast(str(tmp_path / "bk-code"), str(tmp_path / "ppo"), 0.8)
    assert (one.a.n, one.b.n, problems) == (2, 2, [])
    assert one.env == other.format(trained)  # as the first run has it
    crossed = [str(tmp_path / alg / f"{alg}-s{seed}") for alg, seed in (("bk-code", 1), ("ppo", 2))]
    (one,), _ = contrast(*crossed, 0.8)
    assert (one.a.n, one.b.n) == (1, 1)


def test_runs_that_begin_as_policies_of_one_entry_are_one_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for seed in (1, 2, 3, 5):
        train_rs(tmp_path / "ppo", "ppo", seed)
        start = train_rs(tmp_path / "start", "ppo", seed, env=KEY, name=f"oracle-s{seed}")
        if seed < 5:
            train_rs(tmp_path / "later", "ppo", seed, init_from=start)
    (one,), _ = contrast(str(tmp_path / "later"), str(tmp_path / "ppo"), 0.8)
    assert one.a.n == 3
    monkeypatch.chdir(tmp_path)
    train_rs(tmp_path / "later", "ppo", 5, init_from=Path("start/oracle-s5"))  # spelt otherwise, it was a second method
    (one,), _ = contrast(str(tmp_path / "later"), str(tmp_path / "ppo"), 0.8)
    assert one.a.n == 4
    train_rs(tmp_path / "later", "ppo", 4, init_from=tmp_path / "start" / "oracle-s3")  # not the policy of its seed
    with pytest.raises(UsageError, match="holds several methods"):
        contrast(str(tmp_path / "later"), str(tmp_path / "ppo"), 0.8)


def test_runs_that_begin_as_policies_of_one_entry_and_of_their_draw_are_one_method(tmp_path: Path) -> None:
    """Each dataset was a method of its own: only the seed was cut off what a run begins as."""
    later = tmp_path / "later"
    for draw in (1, 2, 3):
        root = tmp_path / f"data-{draw}"
        collect(root, seed=draw)
        label(root, "code")
        potential = train_rm(root, "code", dataset=root / "data")
        for seed in (1, 2):
            first, second = (f"{name}-d{draw}-s{seed}" for name in ("first", "second"))
            start = train_rs(tmp_path, "bk-code", seed, potential=potential, name=first)
            train_rs(later, "bk-code", seed, potential=potential, init_from=start, name=second)

    def methods() -> list[tuple[int, int]]:
        chain = follow(sorted(later.iterdir()))
        groups, _ = group_runs(training_runs(chain, [chain.nodes[path.as_posix()] for path in later.iterdir()])[0])
        return sorted((len(group.runs), len({run.dataset for run in group.runs})) for group in groups)

    assert methods() == [(6, 3)]
    start = tmp_path / "first-d1-s3"
    train_rs(tmp_path, "bk-code", 3, potential=tmp_path / "data-1" / "rm-code", name=start.name)
    other = tmp_path / "data-2" / "rm-code"
    train_rs(later, "bk-code", 3, potential=other, init_from=start, name="second-d2-s3")  # not the policy of its draw
    assert methods() == [(1, 1), (6, 3)]


def test_runs_that_begin_as_policies_of_an_entry_stay_one_method_where_the_study_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path was compared as it had been written, before the move, and in full or not."""

    def trained(root: Path, seed: int) -> None:
        train_rs(root / "ppo", "ppo", seed)
        start = train_rs(root / "start", "ppo", seed, env=KEY, name=f"oracle-s{seed}")
        train_rs(root / "later", "ppo", seed, init_from=start)

    monkeypatch.chdir(tmp_path)
    trained(tmp_path / "before", 1)
    trained(Path("before"), 2)
    Path("before").rename("after")
    trained(tmp_path / "after", 3)
    trained(Path("after"), 4)
    for root in (Path("after"), tmp_path / "after"):
        (one,), _ = contrast(str(root / "later"), str(root / "ppo"), 0.8)
        assert one.a.n == 4
    train_rs(Path("after/later"), "ppo", 5, init_from=Path("after/start/oracle-s1/policy.json"))
    with pytest.raises(UsageError, match="holds several methods"):
        contrast("after/later", "after/ppo", 0.8)


@pytest.mark.parametrize("sides", [("bot", "ppo"), ("ppo", "bot")])
def test_what_learns_nothing_goes_on_as_it_is_until_the_others_end(sides: tuple[str, str]) -> None:
    curves = {"bot": ((0.0,), (0.3,)), "ppo": ((0.0, 50.0, 100.0), (0.1, 0.5, 0.95))}
    a, b = (
        Group(
            "E", alg, alg, "none", tuple(Trained(f"{alg}{s}", "E", alg, s, {}, _success(*curves[alg])) for s in (1, 2))
        )
        for alg in sides
    )
    ratio = _contrast("E", a, b, 0.9).difference.ratio
    assert ratio is not None
    assert ratio.text == ("at least 1.00" if sides[0] == "bot" else "at most 1.00")  # it was never at 90 % in 100 steps


def _success(steps: tuple[float, ...], shares: tuple[float, ...]) -> dict[str, Series]:
    return {"eval/success_rate": (np.array(steps), np.array(shares))}
