"""Documents that are damaged, or written by somebody else, are refused in a sentence: fuzzed with odd values."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bkrl.agents import load_agent
from bkrl.agents.advised import Advice, AdvisedAgent
from bkrl.agents.network import NetworkAgent
from bkrl.agents.networks import build_network
from bkrl.cli.main import run_command
from bkrl.core.documents import Mismatch, parse_json, parse_toml, typed
from bkrl.core.errors import BkrlError, InputError
from bkrl.core.files import sha256, to_json
from bkrl.core.flags import Flag
from bkrl.data.views import Views
from bkrl.data.windows import Windows
from bkrl.inspect.report import doubts_of, report_of
from bkrl.labelers.answers import parse_choice, parse_goals, parse_program
from bkrl.labelers.audit import read_answers
from bkrl.llm.batches import out_in
from bkrl.llm.budget import Budget
from bkrl.llm.prices import find_price
from bkrl.potentials import load_potential
from bkrl.report.pages import samples
from bkrl.runs.provenance import follow
from bkrl.runs.record import Run, sealed
from bkrl.runs.samples import SAMPLES
from bkrl.runs.tracking import _state
from bkrl.studies.study import load_study
from bkrl.studies.sweep import SweepState

DEEP = json.loads("[" * 90 + "]" * 90)
ODD = [
    None, True, False, -1, 0, 1, 2, 3, 256, 10**6, 2**31, 2**63, 10**30, 1.5, -0.5, 1e300, "", "x", "1", "../x", "\0",
    "é" * 300, [], [[]], [-1], [1, "a"], [None], {}, {"a": {}}, {"name": "advised"}, DEEP,
]  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
FUZZ = settings(suppress_health_check=list(HealthCheck))


def places(document: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to everything in a document; of long lists to the first entries."""
    items = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, value in list(items)[:40]:
        yield (*here, key)
        yield from places(value, (*here, key))


@st.composite
def altered(draw: st.DrawFn, document: dict[str, Any]) -> dict[str, Any]:
    """A document in which one thing has an odd value, is gone or is doubled; half of the time a big part of it."""
    found = copy.deepcopy(document)
    every = list(places(document))
    *way, last = draw(st.sampled_from([place for place in every if len(place) < 3]) | st.sampled_from(every))
    inner = found
    for key in way:
        inner = inner[key]
    how = draw(st.sampled_from(["odd", "odd", "odd", "any", "gone", "twice", "negative"]))
    if how == "gone":
        del inner[last]
    elif how == "twice" and isinstance(inner[last], list):
        inner[last] = inner[last] * 2
    elif how == "negative" and isinstance(inner[last], (int, float)):
        inner[last] = -inner[last] - 1
    else:
        inner[last] = draw(JSON if how == "any" else st.sampled_from(ODD))
    return found


def refused_or(do: Callable[[], Any], also: type[BkrlError] = InputError) -> None:
    """What is done works, or is refused in one sentence."""
    sentence = ""
    try:
        do()
    except also as problem:
        sentence = str(problem)
    assert "\n" not in sentence


@FUZZ
@given(raw=st.binary() | st.text() | JSON.map(json.dumps))
def test_text_is_json_or_a_mismatch(raw: bytes | str) -> None:
    with suppress(Mismatch):
        json.dumps(parse_json(raw)).encode()


@pytest.mark.parametrize("depth", [90, 110, 900, 5_000, 200_000])
def test_depth_has_an_end(depth: int) -> None:
    for parse, text in ((parse_json, "[" * depth + "]" * depth), (parse_toml, f"a = {'[' * depth}{']' * depth}")):
        if depth < 100:
            parse(text)
        else:
            with pytest.raises(Mismatch, match="nested more than 100 deep"):
                parse(text)


class Record(TypedDict):
    name: Literal["a", "b"]
    sizes: list[Annotated[int, Flag("", least=1, most=9)]]
    ratio: NotRequired[float | None]


@dataclass(frozen=True)
class Point:
    xy: tuple[float, float]
    of: dict[str, Record]
    where: Path = Path()


def test_a_type_says_what_a_document_holds() -> None:
    record = {"name": "a", "sizes": [1, 9], "other": "kept"}
    assert typed(Record, record) == record
    assert typed(Point, {"xy": [1, 2.5], "of": {"r": record}}) == Point((1.0, 2.5), {"r": record})
    for change, said in (
        ({"name": "c"}, "name is 'c'. Known: a, b"),
        ({"sizes": [10]}, r"sizes\[0\] must be at most 9, not 10"),
        ({"sizes": [True]}, r"sizes\[0\] must be of type int, not True"),
        ({"sizes": "12"}, "sizes must be a list, not '12'"),
        ({"ratio": float("nan")}, "ratio must be a finite number"),
        ({"ratio": 10**400}, "ratio must be a finite number"),
    ):
        with pytest.raises(Mismatch, match=said):
            typed(Record, record | change)
    for document, said in (
        ({"xy": [1, 2]}, "it lacks 'of'"),
        ({"xy": [1, 2, 3], "of": {}}, "xy must have 2 entries, not 3"),
        ({"xy": [1, 2], "of": {"r": []}}, r"of.r must be a table, not \[\]"),
        ({"xy": [1, 2], "of": {}, "z": 1}, "it has no 'z'"),
        ([], "it must be a table"),
    ):
        with pytest.raises(Mismatch, match=said):
            typed(Point, document)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A copy of a sample, once for all tests."""
    made: dict[str, Path] = {}

    def of(name: str) -> Path:
        if name not in made:
            made[name] = Path(shutil.copytree(SAMPLES / name, tmp_path_factory.mktemp("sample") / name))
        return made[name]

    return of


def write(path: Path, name: str, document: Any) -> None:
    """Write one of a run's files as if the run had finished with it: hashes and seal are those of what is there."""
    manifest = json.loads((path / "manifest.json").read_text())
    if name == "manifest.json":
        manifest = document
    else:
        (path / name).write_text(to_json(document))
    if name == "config.json":
        manifest = manifest | document
    elif name != "manifest.json":
        manifest["outputs"][name] = {"bytes": (path / name).stat().st_size, "sha256": sha256(path / name)}
    record = {key: value for key, value in manifest.items() if key != "seal"}
    (path / "manifest.json").write_text(to_json(sealed(record)))


@pytest.mark.parametrize("name", ["config.json", "manifest.json"])
def test_a_sealed_run_with_odd_values_is_shown_or_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    path = Path(shutil.copytree(SAMPLES / "bk-code-minigrid", tmp_path / "phi"))
    whole = {file: (path / file).read_bytes() for file in ("config.json", "manifest.json")}

    @FUZZ
    @given(document=altered(json.loads(whole[name])))
    def tried(document: dict[str, Any]) -> None:
        for file, raw in whole.items():
            (path / file).write_bytes(raw)
        write(path, name, document)
        for command in (["show"], ["trace"]):
            assert run_command([*command, str(path)]) in (0, 3)
            told = capsys.readouterr().err
            assert told.count("\n") <= 1
        refused_or(lambda: Run.create(path, stage="train-rm", config={}), BkrlError)

    tried()


def test_an_unfinished_run_with_odd_values_goes_on_or_is_refused(tmp_path: Path) -> None:
    Run.create(tmp_path / "run", stage="label", config={"seed": 1}).release()
    config = json.loads((tmp_path / "run" / "config.json").read_text())

    @FUZZ
    @given(document=altered(config))
    def tried(document: dict[str, Any]) -> None:
        shutil.rmtree(tmp_path / "run")
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "config.json").write_text(json.dumps(document))
        (tmp_path / "run" / "metrics.jsonl").touch()

        def go_on() -> None:
            run = Run.create(tmp_path / "run", stage="label", config={"seed": 1})
            run.finish([])
            Run.open(run.path)

        refused_or(go_on, BkrlError)

    tried()


@pytest.mark.parametrize("name", ["config.json", "manifest.json"])
@pytest.mark.parametrize("depth", [110, 5_000, 200_000])
def test_deep_nesting_is_refused(tmp_path: Path, refused: Callable[..., str], name: str, depth: int) -> None:
    run = Run.create(tmp_path.parent / f"{tmp_path.name}-run", stage="label", config={})
    run.finish([])
    (run.path / name).write_text('{"a": ' * depth + "1" + "}" * depth)
    assert f"{name} cannot be read as JSON (it is nested more than 100 deep)" in refused(["show", str(run.path)], 3)
    shutil.rmtree(run.path)


@pytest.mark.parametrize(
    "name",
    [
        "bk-code-minigrid",
        "bk-pref-minigrid",
        "bk-goal-minigrid",
        pytest.param("bk-pref-crafter", marks=pytest.mark.slow),
    ],
)
def test_a_sealed_potential_with_odd_values_is_used_or_refused(sample: Callable[[str], Path], name: str) -> None:
    path = sample(name)
    whole = (path / "potential.json").read_text()
    shape = (82,) if name.endswith("crafter") else (7, 7, 3)
    rng = np.random.default_rng(0)

    def use() -> None:
        potential = load_potential(path)
        try:
            horizon = potential.reads.horizon
            views = np.zeros((4, horizon + 1, *shape), np.uint8)
            views[..., 0] = 1  # empty cells; on a map, grass
            steps = rng.integers(0, 3, (4, horizon))
            valid = np.ones((4, horizon + 1), bool)
            values = potential(Windows.of(views, steps, valid))
            assert ((values >= -1) & (values <= 0)).all()
        finally:
            potential.close()

    @settings(FUZZ)
    @given(document=altered(json.loads(whole)))
    def tried(document: dict[str, Any]) -> None:
        write(path, "potential.json", document)
        refused_or(use, BkrlError)

    tried()
    write(path, "potential.json", json.loads(whole))
    use()


def test_more_networks_than_fit_into_memory_are_refused(sample: Callable[[str], Path]) -> None:
    path = sample("bk-pref-crafter")
    whole = json.loads((path / "potential.json").read_text())
    write(path, "potential.json", whole | {"settings": whole["settings"] | {"ensemble": 2**63}})
    with pytest.raises(BkrlError, match="network"):
        load_potential(path)
    write(path, "potential.json", whole)


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Policies with each kind of network."""
    names, env_id = tuple("abcdefg"), "BabyAI-Text-GoToLocal-RedBall-S20"
    shapes = {"compact": (7, 7, 3), "paper": (7, 7, 3), "flat": (82,), "picture": (64, 64, 3), "residual": (64, 64, 3)}
    folders = {}
    for kind, shape in shapes.items():
        name = kind if kind in ("paper", "residual") else "compact"
        network = build_network(name, obs_shape=shape, num_actions=7, num_values=1)
        agent = NetworkAgent(network, env_id, "babyai", names)
        if kind == "compact":
            psi = build_network("compact", obs_shape=shape, num_actions=7, num_values=1, hidden=8)
            agent = AdvisedAgent(agent, Advice(psi, 1.0), 0.5, 100)
        folders[kind] = tmp_path_factory.mktemp(kind)
        agent.save(folders[kind])
    return folders


@pytest.mark.parametrize("kind", ["compact", "paper", "flat", "picture", "residual"])
def test_a_policy_with_odd_values_is_used_or_refused(policies: dict[str, Path], kind: str) -> None:
    path = policies[kind] / "policy.json"
    whole = json.loads(path.read_text())

    def use() -> None:
        agent = load_agent(path.parent)
        seen = np.ones((2, *whole["network"].get("obs_shape", (7, 7, 3))), np.uint8)
        acted = agent.act(Views(seen, seen), agent.begin(2), np.ones(2, bool), None)
        assert acted.logits.shape == (2, 7)
        assert acted.values.shape == (2, 1)

    @FUZZ
    @given(document=altered(whole))
    def tried(document: dict[str, Any]) -> None:
        path.write_text(json.dumps(document))
        refused_or(use)

    tried()
    path.write_text(json.dumps(whole))
    use()


READERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "prices.toml": (
        lambda file: find_price({"kind": "openai", "model": "m", "host": "h"}, file),
        "[[price]]\nmodel = 3\ninput = 1\noutput = 1",
    ),
    "state.json": (lambda file: SweepState(file).load(), '{"jobs": {"a": 3}}'),
    "batches.json": (lambda file: out_in(file.parent), '{"batches": [{"token": 1}], "failures": {}}'),
    "audit.jsonl": (
        lambda file: read_answers(file, "x"),
        '{"pair_id": "1", "choice": "A", "swapped": true, "labels": "x"}',
    ),
    "spending.jsonl": (Budget, '{"send": "a", "usd": "much"}'),
}
DAMAGE = {
    "deep": "[" * 5000 + "]" * 5000,
    "deep table": '{"a":' * 5000 + "1" + "}" * 5000,
    "huge": '{"send": "a", "usd": ' + "9" * 400 + "}",
    "list": "[]",
    "word": "null",
}


@pytest.mark.parametrize("damage", [*DAMAGE, "wrong type"])
@pytest.mark.parametrize("name", READERS)
def test_what_commands_remember_is_refused_when_it_is_damaged(tmp_path: Path, name: str, damage: str) -> None:
    read, wrong = READERS[name]
    if (name, damage) == ("state.json", "huge"):
        pytest.skip("other keys of a table are left alone")
    file = tmp_path / name
    file.write_text(DAMAGE.get(damage, wrong) + "\n")
    with pytest.raises(InputError, match=r"cannot be read|is damaged") as refused:
        read(file)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", [*DAMAGE.values(), '{"kind": "tensorboard", "lines": "3", "id": "x"}'])
def test_a_tracker_whose_state_is_damaged_begins_anew(tmp_path: Path, text: str) -> None:
    run = Run.create(tmp_path / "run", stage="train-rs", config={})
    run.file("tracking.json").write_text(text)
    assert _state(run, "tensorboard")["lines"] == 0


def test_spending_with_a_flipped_bit_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "spending.jsonl"
    budget = Budget(file)
    budget.settle(budget.begin(0.25), 0.125)
    budget.close()
    assert Budget(file).paid == 0.125
    file.write_text(file.read_text().replace("0.125", "0.025"))
    with pytest.raises(InputError, match="is damaged at line 2"):
        Budget(file)


@pytest.mark.parametrize("name", ["potential_report.json", "certificate.json"])
def test_a_sealed_report_of_a_potential_with_odd_values_is_read_or_refused(
    sample: Callable[[str], Path], name: str
) -> None:
    path = sample("bk-pref-minigrid")
    whole = (path / name).read_text()

    @FUZZ
    @given(document=altered(json.loads(whole)))
    def tried(document: dict[str, Any]) -> None:
        write(path, name, document)
        refused_or(lambda: doubts_of(Run.open(path)))
        chain = follow([path])
        samples.potential(chain, chain.of("train-rm")[0], with_strips=False)

    tried()
    write(path, name, json.loads(whole))
    assert report_of(Run.open(path)) is not None


STUDY = """
title = "t"
minutes = 3
[[world]]
name = "w"
variants = ["pref"]
algs = ["ppo", { name = "b", alg = "bk-pref", train_rs = { shaping = "advice", ppo = { gamma = 0.9 } } }]
seeds = [1, 2]
label_seeds = [1]
collect = { env = "Toy-Grid", steps = 10 }
label = { num = 5, pref = { num = 3 } }
train_rs = { env = "Toy-Grid", steps = 10 }
[[world.task]]
name = "a"
"""


@FUZZ
@given(text=st.text() | st.text(alphabet="[]{}=\"'.,#\n ab1-_"))
def test_a_study_file_is_planned_or_refused(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.getbasetemp() / "study.toml"
    file.write_text(text, encoding="utf-8", errors="replace")
    refused_or(lambda: load_study(str(file), Path("out")), BkrlError)


@pytest.mark.parametrize(
    "value", ["9" * 30, "9" * 5000, "[" * 2000 + "]" * 2000, "1e400", "nan", "-9223372036854775808"]
)
@pytest.mark.parametrize("line", STUDY.strip().splitlines())
def test_a_study_with_an_odd_value_anywhere_is_refused(
    tmp_path: Path, refused: Callable[..., str], line: str, value: str
) -> None:
    if "=" not in line:
        pytest.skip("a header")
    text = STUDY.replace(line, f"{line.partition('=')[0]}= {value}", 1)
    file = tmp_path.parent / f"{tmp_path.name}.toml"
    file.write_text(text)
    with pytest.raises(BkrlError):
        load_study(str(file), Path("out"))
    file.unlink()


@FUZZ
@given(
    text=st.text()
    | JSON.map(json.dumps)
    | st.sampled_from([1, 50, 300, 990, 2000, 100_000]).map(lambda n: "[" * n + "]" * n)
)
def test_an_answer_is_read_or_not(text: str) -> None:
    for parse in (parse_choice, parse_goals, parse_program):
        parse(text)
        parse(f'{{"choice": "A", "goal": {text}}}')


def test_a_value_may_be_of_one_of_several_types():
    """A list of names of actions, or a table of words, in a file of conditions: not only the first type of a union."""
    for hint, value in ((str | list[str], ["a", "b"]), (str | list[str], "a"), (str | dict[str, str], {"a": "b"})):
        assert typed(hint, value) == value
    with pytest.raises(Mismatch, match="must be of type str, not 3"):
        typed(str | list[str], 3)
