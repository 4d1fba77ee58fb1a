"""train-rm end to end on a toy env: labels of every variant and every control become a potential."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from bkrl.cli.commands.shown import _flat
from bkrl.cli.main import run_command
from bkrl.core.config import CollectConfig
from bkrl.core.errors import BkrlError, InputError, RunFailed, UsageError
from bkrl.core.files import read_table, sha256, to_json, write_table
from bkrl.core.reporter import Reporter
from bkrl.data.dataset import Dataset
from bkrl.data.derive import subset
from bkrl.data.schema import GOALS, PREFERENCES, PROGRAMS
from bkrl.data.writer import DatasetWriter
from bkrl.envs import captioner, env_spec, make
from bkrl.inspect.certificate import CERTIFICATE
from bkrl.inspect.report import REPORT
from bkrl.labelers.agreement import share
from bkrl.labelers.config import LabelConfig
from bkrl.llm.rules.proposals import WEIGHT
from bkrl.potentials import advice, build, controls, load_potential, read_potential
from bkrl.potentials.config import TrainRmConfig
from bkrl.potentials.kinds import Shuffle, permuted
from bkrl.runs.record import Run, sealed
from bkrl.stages.train_rm import run
from tests.core.test_documents import write

ENV = "Toy-Grid"
HEAD = "def potential(observations, actions, valid):\n"
GOOD = HEAD + "    place = observations[:, -1, 0]\n    return place // 5 + place % 5\n"


class Said(Reporter):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)

    def warn(self, text: str) -> None:
        self.lines.append("warning: " + text)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("toy") / "data"
    facts, describe, env = env_spec(ENV), captioner(ENV), make(ENV)
    result = Run.create(path, stage="collect", config=CollectConfig(env=ENV))
    writer = DatasetWriter(result, env_id=ENV, obs_shape=facts.obs_shape, action_names=facts.action_names)
    rng = np.random.default_rng(0)
    observation, _ = env.reset(seed=0)
    for episode in range(80):
        views, actions, rewards = [observation], [], []
        while True:
            actions.append(int(rng.integers(4)))
            observation, reward, terminated, truncated, info = env.step(actions[-1])
            views.append(observation)
            rewards.append(reward)
            if terminated or truncated:
                break
        array = np.stack(views)
        writer.add_episode(
            array, np.array(actions), np.array(rewards, np.float32), describe(array), mission="", terminated=terminated,
            truncated=truncated, success=bool(info["success"]), seed=0, checkpoint_step=episode % 2,
        )  # fmt: skip
        observation, _ = env.reset()
    writer.close()
    result.finish(writer.outputs)
    return path


def worth(dataset: Dataset, row: int) -> int:
    place = int(dataset.observations[row, 0])
    return place // 5 + place % 5


def labels(
    path: Path, data: Path, variant: str, table: list[dict], name: str, schema: pa.Schema, **more: object
) -> Path:
    result = Run.create(
        path,
        stage="label",
        config=LabelConfig(dataset=data, variant=variant),
        inputs={"dataset": data},  # type: ignore[arg-type]
    )
    write_table(result.file(name), pa.Table.from_pylist(table, schema=schema))
    result.finish([name], variant=variant, llm="rules", **more)
    return path


def program_labels(path: Path, data: Path, source: str, **more: object) -> Path:
    row = dict.fromkeys(PROGRAMS.names) | {"candidate_id": 0, "round": 0, "program": source, "chosen": True}
    return labels(path, data, "code", [row], "programs.parquet", PROGRAMS, **more)


@pytest.fixture(scope="module")
def labelled(data, tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("labels")
    dataset = Dataset.open(data)
    rng = np.random.default_rng(1)
    long = np.flatnonzero(dataset.lengths >= 3)
    pairs, goals, ids = [], [], {}
    for number in range(1200):
        (a, b) = rng.choice(long, 2)
        starts = [int(rng.integers(dataset.lengths[e] - 2)) for e in (a, b)]
        first, second = (worth(dataset, dataset.first_row[e] + s + 3) for e, s in zip((a, b), starts, strict=True))
        label = 0.5 if first == second else float(first > second)
        pairs.append(
            dict.fromkeys(PREFERENCES.names)
            | {"pair_id": number, "a_episode_id": a, "a_start": starts[0], "b_episode_id": b, "b_start": starts[1]}
            | {"length": 3, "label": None if number % 50 == 0 else label, "status": "labelled", "request_ids": []}
        )
        if number < 100:
            goal = f"be in place {dataset.observations[dataset.first_row[a] + starts[0] + 3, 0]}"
            goals.append(
                dict.fromkeys(GOALS.names)
                | {"query_id": number, "episode_id": a, "start": starts[0], "length": 3, "status": "ok"}
                | {"goal": goal, "goal_id": ids.setdefault(goal, len(ids))}
            )
    return {
        "code": program_labels(root / "code", data, GOOD),
        "pref": labels(root / "pref", data, "pref", pairs, "preferences.parquet", PREFERENCES),
        "goal": labels(root / "goal", data, "goal", goals, "goals.parquet", GOALS),
    }


@pytest.fixture(scope="module")
def few(labelled, data, tmp_path_factory) -> Path:
    """A quarter of the pairs."""
    pairs = read_table(labelled["pref"] / "preferences.parquet", PREFERENCES).to_pylist()[:300]
    return labels(tmp_path_factory.mktemp("few") / "pref", data, "pref", pairs, "preferences.parquet", PREFERENCES)


@pytest.mark.parametrize(
    ("variant", "control"),
    [
        ("code", "none"), ("pref", "none"), ("goal", "none"), ("goal", "shuffled"), ("goal", "zero"),
        ("goal", "constant"), pytest.param("pref", "shuffled", marks=pytest.mark.slow),
        pytest.param("code", "random", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_every_variant_and_control_becomes_a_potential(labelled, data, tmp_path, variant, control):
    said = Said()
    config = TrainRmConfig(labels=labelled[variant], out=tmp_path / "rm", control=control, epochs=8)
    result = run(config, said)
    assert result.complete
    assert result.facts["control"] == control
    report = json.loads(result.file(REPORT).read_text())
    certificate = json.loads(result.file(CERTIFICATE).read_text())
    potential = load_potential(result.path)
    dataset = Dataset.open(data)
    rows = np.arange(0, 400)
    phi = potential(dataset.windows(rows, potential.reads.horizon))
    assert phi.dtype == np.float32
    assert phi.min() >= -1
    assert phi.max() <= 0
    if control in ("zero", "constant"):
        assert not phi.any()
        assert report["coverage"] == 0
    else:
        assert report["coverage"] > 0.2
        assert potential.artefact.scale.lo < potential.artefact.scale.hi
    failed = [check["name"] for check in certificate["checks"] if not check["passed"]]
    assert not failed
    if (variant, control) == ("pref", "none"):
        assert report["training"]["accuracy"] >= 0.9
        assert report["ordering"] > 0.8
        assert any("Test accuracy" in line for line in said.lines)
    if (variant, control) == ("pref", "shuffled"):
        assert report["training"]["accuracy"] < 0.75
    if (variant, control) == ("code", "none"):
        assert report["ordering"] > 0.99
        np.testing.assert_allclose(phi, np.array([worth(dataset, row) for row in rows]) / 8 - 1, atol=0.15)
    assert {example["success"] for example in report["examples"]} == {True, False}
    for example in report["examples"]:
        assert len(example["phi"]) == len(example["captions"]) == len(example["actions"]) + 1
    potential.close()
    assert run(config, said).complete
    assert "already complete" in said.lines[-1]


def test_constant_advice_says_in_every_state_what_the_potential_says_on_average(few, data, tmp_path):
    said = Said()
    runs = {
        control: run(TrainRmConfig(labels=few, out=tmp_path / control, control=control, epochs=1), said)
        for control in ("none", "constant")
    }
    real, same = (load_potential(made.path) for made in runs.values())
    dataset = Dataset.open(data)
    assert not same(dataset.windows(np.arange(100), same.reads.horizon)).any()  # Φ = 0
    psis = [advice.load(one.artefact.folder, one.artefact.settings) for one in (real, same)]
    views = torch.from_numpy(dataset.observations)
    mean = psis[0](views).mean(0)
    np.testing.assert_allclose(psis[1](views).numpy(), (mean - mean.max()).expand(len(views), -1).numpy(), atol=1e-3)
    assert (runs["none"].facts["advice"], runs["constant"].facts["advice"]) == ("potential", "potential")
    told = runs["constant"].facts["training"]["advice"]["in_every_state"]
    assert list(told) == list(dataset.action_names)
    np.testing.assert_allclose(list(told.values()), (mean - mean.max()).numpy(), atol=1e-3)
    assert any(line.startswith("In every state the same: ") for line in said.lines)


def test_constant_advice_is_of_the_dataset_whatever_it_was_fitted_to(data):
    """A program's advice is fitted to situations that need not be possible, told advice to one of each kind."""
    dataset = Dataset.open(data)
    record = advice.Record.of(dataset, np.arange(40), False)
    wanted = np.random.default_rng(0).normal(size=(40, len(dataset.action_names)))
    fitted = controls.zero(dataset, 1)(1, Reporter())
    psi, _ = build.learn_advice(fitted, 1, Reporter(), told=(record, wanted))
    _, facts = build.learn_advice(fitted, 1, Reporter(), told=(record, wanted), same_everywhere=True)
    mean, few = (psi(torch.from_numpy(views)).mean(0) for views in (dataset.observations, record.observations))
    told = list(facts["in_every_state"].values())
    np.testing.assert_allclose(told, (mean - mean.max()).numpy(), atol=1e-2)
    assert abs((few - few.max()).numpy() - told).max() > 0.05


@pytest.mark.parametrize(
    ("variant", "updates"),
    [
        ("code", 50),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in (("code", 1_000), ("pref", 1_000), ("goal", 2_000))),
    ],
)
def test_the_parts_of_a_potential_add_up_to_it(labelled, data, tmp_path, variant, updates, monkeypatch):
    monkeypatch.setattr("bkrl.potentials.parts.UPDATES", updates)
    made = {
        part: run(TrainRmConfig(labels=labelled[variant], out=tmp_path / part, part=part, epochs=4), Reporter())
        for part in ("whole", "state", "rest")
    }
    whole, state, rest = (load_potential(one.path) for one in made.values())
    dataset = Dataset.open(data)
    rows = np.arange(0, len(dataset.actions), 3)
    windows = dataset.windows(rows, whole.reads.horizon)
    phi, of_state = whole(windows), state(windows)
    np.testing.assert_allclose(of_state + 2 * (rest(windows) + 0.5), phi, atol=1e-6)  # --shaping-coef, --shaping-shift
    assert state.reads.horizon == 0
    alone = [float(state(dataset.windows(rows[i : i + 1], 0))[0]) for i in range(60)]
    assert alone == of_state[:60].tolist()  # whatever was before, in whatever batch
    views = dataset.observations[rows, 0]
    naive = np.array([phi[views == place].mean() for place in views])  # over the windows that end in a view
    learnt = updates >= 1_000  # 25 places without an order, from two thousand windows
    assert not learnt or np.corrcoef(of_state, naive)[0, 1] > 0.7
    explained = made["state"].facts["training"]["state_explains"]
    assert explained == made["rest"].facts["training"]["state_explains"]
    assert not learnt or 0.1 < explained < naive.var() / phi.var() + 0.1
    for one in made.values():
        assert all(check["passed"] for check in json.loads(one.file(CERTIFICATE).read_text())["checks"])
        assert one.facts["variant"] == variant
    same = [advice.load(one.artefact.folder, one.artefact.settings) for one in (whole, state, rest)]
    told = [None if psi is None else psi(torch.from_numpy(dataset.observations[:50])).tolist() for psi in same]
    assert told[0] == told[1] == told[2]
    for one in (whole, state, rest):
        one.close()


def test_nothing_has_no_parts_and_a_damaged_part_is_refused(labelled, tmp_path, monkeypatch):
    monkeypatch.setattr("bkrl.potentials.parts.UPDATES", 100)  # whatever the part has learnt
    with pytest.raises(UsageError, match="Φ = 0 has no parts; leave out --part"):
        run(TrainRmConfig(labels=labelled["pref"], out=tmp_path / "zero", control="zero", part="rest"), Reporter())
    assert not (tmp_path / "zero").exists()
    made = run(TrainRmConfig(labels=labelled["code"], out=tmp_path / "state", part="state"), Reporter())
    document = json.loads(made.file("potential.json").read_text())
    made.file("state.safetensors").write_bytes(b"x")
    document["files"]["state.safetensors"] = sha256(made.file("state.safetensors"))
    made.file("potential.json").write_text(to_json(document))
    with pytest.raises(InputError, match="state.safetensors is damaged"):
        read_potential(made.path)


def test_advice_that_is_empty_is_named(labelled, tmp_path, monkeypatch):
    monkeypatch.setattr(advice, "LEAST_SHARE", 2.0)
    for control, warned in (("none", True), ("zero", False)):
        said = Said()
        made = run(TrainRmConfig(labels=labelled["goal"], out=tmp_path / control, control=control), said)
        assert made.facts["advice"] == "empty"
        assert not (made.path / advice.ADVICE).exists()
        assert any("advice is empty" in line for line in said.lines) == warned
        assert any("advice is empty" in one for one in made.facts.get("warnings", [])) == warned
        assert advice.load(made.path, load_potential(made.path).artefact.settings) is None
        shown = capture(made.path)
        assert ("advice", "empty") in shown
        assert bool([value for name, value in shown if name == "warning"]) == warned


def capture(path: Path) -> list[tuple]:
    """The rows of `bkrl show`."""
    return _flat(Run.open(path).facts)


def test_a_potential_that_orders_badly_is_warned_of_and_the_certificate_is_no_praise(data, tmp_path):
    upside_down = program_labels(tmp_path / "labels", data, GOOD.replace("return ", "return -(") + ")")
    said = Said()
    made = run(TrainRmConfig(labels=upside_down, out=tmp_path / "rm"), said)
    [warning] = made.facts["warnings"]
    assert re.search(r"ends in success above other windows in \d %? ?.* where chance is 50 %", warning)
    assert f"bkrl potential report {made.path}" in warning
    assert f"warning: {warning}" in said.lines
    [certificate] = [line for line in said.lines if line.startswith("Certificate: ")]
    assert "checks of form" in certificate
    assert "not for quality" in certificate
    control = TrainRmConfig(labels=upside_down, out=tmp_path / "random", control="random")
    assert not [one for one in run(control, Said()).facts.get("warnings", []) if "mislead" in one]


@pytest.mark.parametrize("control", ["random", "zero"])
def test_a_control_sees_as_far_back_as_what_it_stands_for(labelled, tmp_path, control):
    """Segments of the labels are 3 actions long, not 5."""
    result = run(TrainRmConfig(labels=labelled["pref"], out=tmp_path / "rm", control=control), Reporter())
    assert load_potential(result.path).reads.horizon == 3


@pytest.mark.slow
def test_the_same_command_gives_the_same_potential(labelled, tmp_path):
    files = []
    for name in ("a", "b"):
        run(TrainRmConfig(labels=labelled["pref"], out=tmp_path / name, epochs=2), Reporter())
        files.append((tmp_path / name / "potential.json").read_bytes())
    assert files[0] == files[1]


@pytest.mark.parametrize(
    ("source", "error", "words"),
    [
        ("import os\n" + GOOD, InputError, "line 1"),
        (HEAD + "    return 1 / 0 * actions[:, 0]\n", RunFailed, "line 2"),
        (HEAD + "    return np.full(len(actions), 2.0)\n", InputError, "cannot shape"),
        (HEAD + "    return np.arange(len(actions))\n", RunFailed, "order or the company"),
    ],
)  # fmt: skip
def test_a_program_that_cannot_be_used_ends_the_run_with_its_line_and_reason(data, tmp_path, source, error, words):
    path = program_labels(tmp_path / "labels", data, source)
    with pytest.raises(error, match=words) as caught:
        run(TrainRmConfig(labels=path, out=tmp_path / "rm"), Reporter())
    assert str(caught.value).endswith(".")
    assert not (tmp_path / "rm" / "manifest.json").exists()


def test_a_program_may_be_given_its_bounds_where_the_dataset_holds_no_state_of_worth(data, tmp_path):
    """Measured on the dataset the best that was met is 0, and what is better than that cannot be told from it."""
    labels = program_labels(tmp_path / "labels", data, GOOD)
    given, measured = (
        run(TrainRmConfig(labels=labels, out=tmp_path / name, bounds=bounds), Reporter())
        for name, bounds in (("given", "-2,30"), ("measured", ""))
    )
    found = json.loads(given.file("potential.json").read_text())["scale"]
    assert found == {"lo": -2.0, "hi": 30.0}
    phi = {name: read_potential(one.path) for name, one in (("given", given), ("measured", measured))}
    opened = Dataset.open(data)
    windows = opened.windows(np.arange(len(opened.actions)), 5)
    place = windows.observations[:, -1, 0].astype(float)
    values = place // 5 + place % 5
    np.testing.assert_allclose(phi["given"](windows), (values - 30) / 32, rtol=1e-6)
    assert phi["measured"](windows).max() == 0
    for one in phi.values():
        one.close()
    for wrong in ("1", "1,0", "a,b", "0,inf", "nan,1"):
        with pytest.raises(UsageError, match="--bounds are two numbers, the smaller one first"):
            run(TrainRmConfig(labels=labels, out=tmp_path / "no", bounds=wrong), Reporter())
    assert not (tmp_path / "no").exists()


def test_a_share_of_the_labels_is_dealt_out_anew(few, tmp_path):
    orders = [permuted(1000, Shuffle(3, part)) for part in (0.0, 0.2, 0.4, 1.0)]
    moved = [np.flatnonzero(order != np.arange(1000)) for order in orders]
    assert [len(one) for one in moved] == pytest.approx([0, 200, 400, 1000], abs=5)
    assert len(np.setdiff1d(moved[1], moved[2])) <= 2, "a larger share holds a smaller one"
    assert all(sorted(order) == list(range(1000)) for order in orders)
    kept = []
    for part in (0.4, 1.0):
        config = TrainRmConfig(labels=few, out=tmp_path / f"{part}", control="shuffled", shuffled_share=part, epochs=1)
        kept.append(run(config, Reporter()).facts["training"]["labels_kept"])
    assert kept == pytest.approx([0.8, 0.5], abs=0.06)


def test_weights_of_a_program_change_places(data, tmp_path):
    sums = """def potential(observations, actions, valid):
    now = observations[:, -1].astype(float)
    parts = {"a": 0.6 * now[:, 0], "b": 0.3 * now[:, 0] % 5}
    parts["c"] = 0.1 * (now[:, 0] > 2)  # c: rated 1.00
    return sum(parts.values()), parts
"""
    path = program_labels(tmp_path / "labels", data, sums)
    config = TrainRmConfig(labels=path, out=tmp_path / "rm", control="shuffled", seed=2)
    program = run(config, Reporter()).file("program.py").read_text()
    weights = [float(one[2]) for one in WEIGHT.finditer(program)]
    assert sorted(weights) == [0.1, 0.3, 0.6] != weights[::-1]
    assert WEIGHT.sub("", program) == WEIGHT.sub("", sums)


def test_shuffling_a_program_without_weights_and_an_unknown_encoder_are_usage_errors(labelled, tmp_path):
    with pytest.raises(UsageError, match="nothing to shuffle"):
        run(TrainRmConfig(labels=labelled["code"], out=tmp_path / "a", control="shuffled"), Reporter())
    with pytest.raises(UsageError, match="no encoder 'bert'"):
        run(TrainRmConfig(labels=labelled["goal"], out=tmp_path / "b", encoder="bert"), Reporter())
    assert not list(tmp_path.iterdir())


def test_labels_of_another_dataset_are_refused(labelled, data, tmp_path):
    moved = tmp_path / "other"
    Run.create(moved, stage="collect", config=CollectConfig(env=ENV, seed=2)).finish([])
    with pytest.raises(BkrlError):
        run(TrainRmConfig(labels=labelled["code"], out=tmp_path / "rm", dataset=moved), Reporter())
    with pytest.raises(InputError):
        run(TrainRmConfig(labels=tmp_path / "nothing", out=tmp_path / "rm"), Reporter())


def test_disputed_pairs_can_be_left_out_and_are_counted(data, labelled, tmp_path):
    rows = read_table(labelled["pref"] / "preferences.parquet", PREFERENCES).to_pylist()
    for number, row in enumerate(rows):
        votes = (2, 1, 0) if number % 3 == 0 else (3, 0, 0)
        row.update(zip(("votes_a", "votes_b", "votes_tie"), votes))
    path = labels(tmp_path / "labels", data, "pref", rows, "preferences.parquet", PREFERENCES)
    made = run(TrainRmConfig(labels=path, out=tmp_path / "rm", epochs=1, min_agreement=0.7), Reporter())
    training = made.facts["training"]
    usable = [number for number, row in enumerate(rows) if row["label"] is not None]
    disputed = sum(number % 3 == 0 for number in usable)
    assert training["pairs_left_out"] == disputed > 0
    used = sum(training[f"pairs_{part}"] for part in ("train", "validation", "test"))
    assert used <= len(usable) - disputed
    for row in rows:
        row.update(votes_a=1, votes_b=1, votes_tie=0)
    split = labels(tmp_path / "split", data, "pref", rows, "preferences.parquet", PREFERENCES)
    with pytest.raises(InputError, match="--min-agreement"):
        run(TrainRmConfig(labels=split, out=tmp_path / "none", min_agreement=0.7), Reporter())


def test_ties_alone_have_no_accuracy_and_that_is_said(data, labelled, tmp_path):
    table = read_table(labelled["pref"] / "preferences.parquet", PREFERENCES).to_pylist()
    ties = [row | {"label": 0.5} for row in table]
    path = labels(tmp_path / "ties", data, "pref", ties, "preferences.parquet", PREFERENCES)
    said = Said()
    result = run(TrainRmConfig(labels=path, out=tmp_path / "rm", epochs=1), said)
    assert json.loads(result.file(REPORT).read_text())["training"]["accuracy"] is None
    assert any("Test accuracy – (95 % interval 0.0 to 100.0 %," in line for line in said.lines)
    assert any(line.endswith("pairs for 1 epoch.") for line in said.lines)
    assert not any("nan" in line for line in said.lines)


def test_training_that_stops_early_says_so(few, tmp_path):
    said = Said()
    run(TrainRmConfig(labels=few, out=tmp_path / "rm", epochs=40, control="shuffled"), said)
    assert any(re.search(r"no longer fell \(\d+ of at most 40 epochs\)", line) for line in said.lines), said.lines


def test_labels_that_are_no_use_are_refused_before_anything_is_written(data, labelled, tmp_path):
    pairs = read_table(labelled["pref"] / "preferences.parquet", PREFERENCES).to_pylist()
    goals = read_table(labelled["goal"] / "goals.parquet", GOALS).to_pylist()
    few = labels(tmp_path / "few", data, "pref", pairs[1:15], "preferences.parquet", PREFERENCES)
    mixed = [{**row, "length": 1 + row["pair_id"] % 2} for row in pairs]
    mixed = labels(tmp_path / "mixed", data, "pref", mixed, "preferences.parquet", PREFERENCES)
    split = [{**row, "votes_a": 1, "votes_b": 1, "votes_tie": 0} for row in pairs]
    split = labels(tmp_path / "split", data, "pref", split, "preferences.parquet", PREFERENCES)
    none = labels(tmp_path / "none", data, "goal", [{**row, "goal": None} for row in goals], "goals.parquet", GOALS)
    unchosen = labels(tmp_path / "unchosen", data, "code", [], "programs.parquet", PROGRAMS)
    other = tmp_path / "other"
    shutil.copytree(data, other)
    found = json.loads((other / "manifest.json").read_text())
    record = {key: value for key, value in found.items() if key != "seal"} | {"finished": "another day"}
    (other / "manifest.json").write_text(to_json(sealed(record)))
    before = sorted(tmp_path.iterdir())
    for settings, match in (
        ({"labels": few}, "label more pairs, or collect more episodes"),
        ({"labels": mixed}, "segments of several lengths"),
        ({"labels": none}, "has no goals"),
        ({"labels": unchosen}, "has no chosen program"),
        ({"labels": split, "min_agreement": 0.7}, "lower --min-agreement"),
        ({"labels": labelled["pref"], "dataset": other}, "from another dataset"),
        ({"labels": labelled["goal"], "encoder": f"hf:{tmp_path / 'nowhere'}"}, "no model folder"),
    ):
        with pytest.raises(BkrlError, match=match):
            run(TrainRmConfig(out=tmp_path / "rm", **settings), Reporter())
        assert sorted(tmp_path.iterdir()) == before, match


def test_too_few_rows_for_advice_are_refused_before_anything_is_written_and_will_do_for_a_program_with_its_own(
    data, tmp_path
):
    small = subset(data, tmp_path / "small", 1, Reporter()).path
    advising = GOOD + "\n\ndef advice(observations, actions, valid):\n    return -actions[:, -1:] * np.arange(4.0)\n"
    out, plain, own = tmp_path / "rm", program_labels(tmp_path / "a", small, GOOD), tmp_path / "b"
    program_labels(own, small, advising)
    for settings in ({"labels": plain}, {"labels": plain, "control": "random"}, {"labels": own, "part": "state"}):
        with pytest.raises(InputError, match="too few to learn advice from; collect more episodes"):
            run(TrainRmConfig(out=out, **settings), Reporter())
        assert not out.exists(), settings
    for number, settings in enumerate(({"labels": own}, {"labels": plain, "control": "zero"})):
        assert run(TrainRmConfig(out=tmp_path / f"{number}", **settings), Reporter()).complete


def test_labels_at_chance_are_warned_of_and_the_potential_says_so(data, tmp_path):
    one_sided = {"first_shown_preferred": share(99, 100)}
    made_of = program_labels(tmp_path / "labels", data, GOOD, quality=one_sided)
    said = Said()
    made = run(TrainRmConfig(labels=made_of, out=tmp_path / "rm"), said)
    assert f"warning: The labels of {made_of} may be at chance: " in "\n".join(said.lines)
    assert "the segment shown first is preferred" in made.facts["labels_at_chance"][0]
    control = run(TrainRmConfig(labels=made_of, out=tmp_path / "control", control="random"), Said())
    assert "labels_at_chance" not in control.facts


def test_potentials_that_cannot_be_trained_with_are_not_certified(data, tmp_path, capsys):
    made = run(TrainRmConfig(labels=program_labels(tmp_path / "labels", data, GOOD), out=tmp_path / "rm"), Reporter())
    document = json.loads(made.file("potential.json").read_text())
    document["settings"]["advice"]["obs_shape"] = [-1]
    write(made.path, "potential.json", document)
    for words in (["check-potential"], ["train-rs", "--env", ENV, "--alg", "bk-code", "--potential"]):
        assert run_command([*words, str(made.path)]) == 3
        assert "obs_shape" in capsys.readouterr().err


def test_labels_without_a_single_answer_are_refused(data, tmp_path):
    row = dict.fromkeys(PREFERENCES.names) | {"pair_id": 0, "length": 3, "status": "invalid", "request_ids": []}
    path = labels(tmp_path / "labels", data, "pref", [row], "preferences.parquet", PREFERENCES)
    with pytest.raises(InputError, match="no usable label"):
        run(TrainRmConfig(labels=path, out=tmp_path / "rm"), Reporter())


def test_a_finished_potential_can_be_certified_again(tmp_path, data, capsys):
    made = program_labels(tmp_path / "labels", data, GOOD)
    run(TrainRmConfig(labels=made, out=tmp_path / "rm"), Reporter())
    assert run_command(["check-potential", str(tmp_path / "rm"), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again == json.loads((tmp_path / "rm" / CERTIFICATE).read_text())
    assert run_command(["check-potential", str(tmp_path / "rm"), "--dataset", str(tmp_path / "rm")]) == 3
