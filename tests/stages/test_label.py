"""The label stage end to end: all variants, both families, replay, kills, controls, dry runs and bad input."""

from __future__ import annotations

import json
import signal
import time
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from bkrl.cli.main import run_command
from bkrl.core.errors import InputError, RunFailed, UsageError
from bkrl.core.files import read_table
from bkrl.core.reporter import Reporter
from bkrl.data.dataset import Dataset
from bkrl.data.schema import GOALS, LIBRARY, PREFERENCES, PROGRAMS, RESPONSES
from bkrl.labelers.config import LabelConfig
from bkrl.labelers.example import example_prompt
from bkrl.runs.record import Run
from bkrl.stages import label as stage
from bkrl.stages.label import run
from tests.commands import Started
from tests.experience import write_env
from tests.llm.fault_server import FaultServer

BABYAI, CRAFTER = "BabyAI-Text-GoToLocal-Pretraining-S20", "Crafter-Text-Reward"


@pytest.fixture(scope="module")
def babyai(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_env(tmp_path_factory.mktemp("data") / "babyai", BABYAI)


@pytest.fixture(scope="module")
def crafter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_env(tmp_path_factory.mktemp("data") / "crafter", CRAFTER)


class Told(Reporter):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)

    def warn(self, text: str) -> None:
        self.lines.append(text)


def label(dataset: Path, tmp_path: Path, name: str = "out", told: Reporter | None = None, **settings: Any) -> Run:
    config = LabelConfig(dataset=dataset, out=tmp_path / name, cache=tmp_path / "cache", **settings)
    return run(config, told or Reporter())


def outlook(config: LabelConfig, told: Reporter | None = None) -> list[str]:
    """The lines that a dry run prints."""
    return stage.outlook(config, told or Reporter()).text().splitlines()


@pytest.fixture
def without_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """No endpoint is known from outside."""
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "AZURE_OPENAI_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("variant", "family"),
    [
        *product(("pref", "goal"), ("babyai", "crafter")),
        ("code", "babyai"),
        pytest.param("code", "crafter", marks=pytest.mark.slow),
    ],
)
def test_the_rules_annotator_labels_everything(
    family: str, variant: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    dataset = request.getfixturevalue(family)
    num = {"pref": 60, "goal": 30, "code": 0}[variant]
    result = label(dataset, tmp_path, variant=variant, num=num)
    file, schema = {
        "pref": ("preferences.parquet", PREFERENCES),
        "goal": ("goals.parquet", GOALS),
        "code": ("programs.parquet", PROGRAMS),
    }[variant]
    table = read_table(result.file(file), schema).to_pylist()
    responses = read_table(result.file("responses.parquet"), RESPONSES).to_pylist()
    assert all(row["status"] == "ok" and row["model"] == "rules" for row in responses)
    assert [row["request_id"] for row in responses] == list(range(len(responses)))
    if variant == "pref":
        assert len(table) == 60
        assert {0.0, 1.0} <= {row["label"] for row in table} <= {0.0, 0.5, 1.0}
    elif variant == "goal":
        assert {row["query_id"] for row in table} == set(range(30))
        assert all(row["goal"] for row in table)
        library = read_table(result.file("library.parquet"), LIBRARY).to_pylist()
        assert [entry["goal_id"] for entry in library] == sorted({row["goal_id"] for row in table})
        assert "library.parquet" in result.manifest["outputs"]
    else:
        assert sum(row["chosen"] for row in table) == 1
        assert {row["status"] for row in table} <= {"ok", "repeated"}
    reopened = Run.open(result.path, "label")
    assert "not a language model" in reopened.facts["annotator"]
    assert reopened.facts["variant"] == variant
    assert all(len(value) == 64 for value in reopened.facts["prompts"].values())


def test_the_same_command_gives_the_same_bytes_and_then_says_so(babyai: Path, tmp_path: Path) -> None:
    first = label(babyai, tmp_path, "one", num=50)
    second = label(babyai, tmp_path, "two", num=50)
    for file in ("preferences.parquet", "responses.parquet"):
        assert first.file(file).read_bytes() == second.file(file).read_bytes()
    told = Told()
    label(babyai, tmp_path, "one", told, num=50)
    assert "already complete" in told.lines[0]


def test_nothing_of_a_mission_reaches_a_prompt(babyai: Path, tmp_path: Path) -> None:
    result = label(babyai, tmp_path, num=20)
    prompts = read_table(result.file("responses.parquet"), RESPONSES).column("prompt").to_pylist()
    assert set(Dataset.open(babyai).missions) == {"go to the red ball"}
    assert not any("go to the red ball" in prompt for prompt in prompts)


def test_a_replay_gives_the_same_labels_and_a_miss_is_an_error(babyai: Path, tmp_path: Path) -> None:
    first = label(babyai, tmp_path, "first", num=30, swap="both")
    again = label(babyai, tmp_path, "again", num=30, swap="both", llm=f"replay:{first.path}")
    assert first.file("preferences.parquet").read_bytes() == again.file("preferences.parquet").read_bytes()
    file = label(babyai, tmp_path, "file", num=30, llm=f"replay:{first.file('responses.parquet')}")
    assert file.facts["quality"]["labelled"] == 30 - file.facts["quality"]["identical"]
    assert file.facts["replay_of"] == "rules"
    with pytest.raises(RunFailed, match="holds no answer"):
        label(babyai, tmp_path, "miss", num=31, seed=2, llm=f"replay:{first.path}")
    with pytest.raises(InputError, match="no run"):
        label(babyai, tmp_path, "none", llm="replay:nowhere")


def test_a_replay_hears_every_vote_on_a_closed_question(
    babyai: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {"num": 1, "variant": "goal", "ask": "closed", "votes": 3}
    with FaultServer() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        server.plan = lambda prompt, attempt: "no_top"
        first = label(babyai, tmp_path, "first", llm="openai:m", **asked)
    again = label(babyai, tmp_path, "again", llm=f"replay:{first.path}", **asked)
    for file in ("choices.parquet", "goals.parquet"):
        assert first.file(file).read_bytes() == again.file(file).read_bytes(), file
    assert again.facts["usage"]["requests"] == first.facts["usage"]["requests"]


@pytest.mark.parametrize("control", ["random", "return"])
def test_controls_ask_nobody(babyai: Path, tmp_path: Path, control: str) -> None:
    result = label(babyai, tmp_path, num=40, llm=control)
    assert not result.file("responses.parquet").exists()
    assert read_table(result.file("preferences.parquet"), PREFERENCES).num_rows == 40
    assert "control" in result.facts["annotator"]
    with pytest.raises(UsageError, match="control"):
        label(babyai, tmp_path, "goal", variant="goal", llm=control, ask="open")


def test_a_dry_run_shows_prompts_and_writes_nothing(babyai: Path, tmp_path: Path) -> None:
    told = Told()
    config = LabelConfig(dataset=babyai, out=tmp_path / "out", cache=tmp_path / "cache", num=10, dry_run=True)
    lines = outlook(config, told)
    assert sum("Segment A" in line for line in lines) == 3
    assert " requests. To be asked: about" in lines[-3]
    assert "Price: nothing" in lines[-2]
    for variant in ("goal", "code"):
        assert "Price: nothing" in outlook(replace(config, variant=variant), told)[-2]
    assert told.lines == [], "results are not progress"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("without_a_key")
def test_a_dry_run_reckons_with_prices_and_with_what_is_kept(
    babyai: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(**settings: Any) -> list[str]:
        config = LabelConfig(dataset=babyai, out=tmp_path / "dry", cache=tmp_path / "cache", dry_run=True, **settings)
        return outlook(config)[-3:]

    at_once, batch = (told(llm="openai:gpt-5-mini", num=100, max_tokens=100, batch=mode) for mode in ("off", "submit"))
    dollars = [float(lines[1].split("$")[2].split(" ")[0]) for lines in (at_once, batch)]
    assert 0 < dollars[1] < dollars[0], "a batch is cheaper"
    assert "2026" in at_once[1], "a price has a date"
    assert told(llm="openai:who-knows", num=5)[1].startswith("Price unknown")
    # Each sample votes where the endpoint turns out to tell no log-probabilities
    closed = [told(llm="openai:gpt-5-mini", num=100, ask="closed", votes=votes)[1] for votes in (1, 5)]
    once, often = (float(line.split("$")[2].split(" ")[0]) for line in closed)
    assert often == pytest.approx(5 * once, rel=0.2)
    assert not (tmp_path / "cache").exists()
    with FaultServer() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        label(babyai, tmp_path, num=20, llm="openai:m")
        before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
        sent = len(server.requests)
        lines = told(llm="openai:m", num=20)
        assert f"({sent} of them in the store already)" in lines[0]
        assert "about 0 tokens in" in lines[0]
        assert len(server.requests) == sent
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before


def test_the_outlook_is_a_result_on_stdout(
    babyai: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    command = ["label", str(babyai), "--num", "10", "--dry-run", "--llm"]
    assert run_command([*command, "openai:gpt-5-mini"]) == 0
    text = capsys.readouterr()
    assert "Price: about $" in text.out
    assert text.out.count("Segment A") == 3
    assert text.err == ""
    assert run_command([*command, "openai:gpt-5-mini", "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert 3 <= values["requests"] <= 10
    assert (len(values["prompts"]), values["kept"]) == (3, 0)
    assert 0 < values["usd"] < values["most_usd"]
    # A reply that is cut off is asked for with four times the room; one that cannot be read is asked for again
    assert values["most_tokens_out"] == values["requests"] * (2048 + 4 * 2048)
    assert values["at_most"] == 2
    assert run_command([*command, "openai:who-knows", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["usd"] is None
    assert list(tmp_path.iterdir()) == []


def test_a_limit_in_dollars_needs_a_price(babyai: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-x")
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(UsageError, match=r"--prices FILE"):
        label(babyai, tmp_path, llm="openai:who-knows", max_cost=1.0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"llm": "rulez"}, "Did you mean 'rules'"),
        ({"llm": "openai"}, "after a colon"),
        ({"llm": "rules:big"}, "no model name"),
        ({"swap": "both", "variant": "goal"}, "--swap"),
        ({"llm": "words"}, "pass --variant pref --with-mission"),
        ({"llm": "words", "with_mission": True, "ask": "open"}, "leave --ask open out"),
        ({"llm": "equal", "with_mission": True, "variant": "code"}, "tell missions of pairs alone; leave --with-miss"),
        ({"llm": "equal", "with_mission": True, "variant": "goal"}, "tell missions of pairs alone; leave --with-miss"),
        ({"batch": "collect"}, "--batch is for --llm openai:MODEL; leave it out, rules has no batches.$"),
        ({"dry_run": True}, "make no run"),
        ({"batch": "submit", "llm": "openai:m"}, "make no run"),
        ({"batch": "collect", "llm": "openai:m", "variant": "code"}, "leave it out, code is a conversation"),
        ({"tier": "flex"}, "--tier"),
        ({"llm": "openai:m", "body": '{"temperature": 2}'}, "cannot set 'temperature'.*; --temperature changes it"),
        ({"llm": "openai:m", "body": '{"k": "sk-planted"}'}, "--body holds a secret"),
        ({"llm": "openai:m", "header": "Authorization: Bearer sk-planted-as-for-curl"}, "; a part is not so.$"),
        ({"llm": "openai:m", "header": "sk-planted-without-a-name"}, "; a part is not so.$"),
        ({"llm": "openai:m", "header": "X-Key=sk-planted-in-the-wrong-place"}, "NAME=VARIABLE.*; 'X-Key' is not so.$"),
        ({"prompt": "bare"}, "--prompt is for language models"),
        ({"num": 999_999_999}, "999,999,999 questions, and a run holds at most 1,000,000; lower --num or --votes"),
        ({"votes": 999_999_999, "variant": "code"}, "lower --num or --votes"),
        ({"llm": "equal", "variant": "goal", "num": 3, "votes": 99_999}, "and a run holds at most 1,000,000"),
        ({"num": 12_091}, "no more than 8,646 pairs of 5 actions; pass a --num up to that"),
        ({"num": 157, "variant": "goal"}, "no more than 156 segments of 3 actions"),
    ],
)
def test_bad_settings_are_refused_before_anything_is_written(
    babyai: Path, tmp_path: Path, settings: dict[str, Any], match: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-planted")
    with pytest.raises(UsageError, match=match):
        label(babyai, tmp_path, **settings)
    assert list(tmp_path.iterdir()) == []


def test_a_segment_longer_than_any_episode_is_refused(babyai: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--length"):
        label(babyai, tmp_path, length=99)
    assert list(tmp_path.iterdir()) == []


def test_fields_and_headers_of_requests_are_added_and_values_of_headers_recorded_nowhere(
    babyai: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = tmp_path / "body.json"
    body.write_text('{"chat_template_kwargs": {"enable_thinking": false}}')
    with FaultServer() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-planted")
        with pytest.raises(InputError, match="--header X-Gate: the environment variable that it names is not set"):
            label(babyai, tmp_path, llm="openai:m", header="X-Gate=GATE")
        monkeypatch.setenv("GATE", "gate-key-1")
        asked = {"llm": "openai:m", "num": 4, "header": "X-Gate=GATE", "body": str(body)}
        run = label(babyai, tmp_path, **asked)
        assert server.requests[-1]["chat_template_kwargs"] == {"enable_thinking": False}
        assert server.headers[-1]["x-gate"] == "gate-key-1"
        assert run.config["inputs"]["body"]["path"] == body.as_posix()
        sent = len(server.requests)
        assert label(babyai, tmp_path, **{**asked, "header": None}).complete, "headers change no answer"
        assert len(server.requests) == sent
        body.write_text('{"top_p": 0.5}')
        with pytest.raises(UsageError, match="input 'body'"):
            label(babyai, tmp_path, **asked)
        label(babyai, tmp_path, "other", **asked)
        assert server.requests[-1]["top_p"] == 0.5
    for file in tmp_path.rglob("*"):
        assert not file.is_file() or b"gate-key-1" not in file.read_bytes(), file


def prompt_of(server: FaultServer) -> str:
    return "\n".join(message["content"] for message in server.requests[-1]["messages"])


def test_other_prompts_are_other_questions_and_another_run(
    crafter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "pref.md").write_text("<<<system>>>\nJudge, for {{ world.family }}. Reply in JSON.\n")
    with FaultServer() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-planted")
        asked: dict[str, Any] = {"llm": "openai:m", "num": 3, "variant": "pref"}
        plain = label(crafter, tmp_path, "plain", **asked)
        assert "crafting table" in prompt_of(server)
        bare = label(crafter, tmp_path, "bare", prompt="bare", **asked)
        assert "crafting table" not in prompt_of(server)
        assert "closer to things that matter" not in prompt_of(server)
        assert "Segment A:" in prompt_of(server), "the question stays"
        assert bare.facts["prompts"]["pref"] != plain.facts["prompts"]["pref"]
        assert bare.facts["usage"]["cached"] == 0
        with pytest.raises(UsageError, match="differs in prompt"):
            label(crafter, tmp_path, "bare", **asked)
        run = label(crafter, tmp_path, "own run", prompt=str(own), **asked)
        assert prompt_of(server).startswith("Judge, for crafter.")
        assert run.config["inputs"]["prompt pref.md"]["path"] == (own / "pref.md").as_posix()
        (own / "pref.md").write_text("<<<system>>>\nJudge better. Reply in JSON.\n")
        with pytest.raises(UsageError, match=r"input 'prompt pref\.md'"):
            label(crafter, tmp_path, "own run", prompt=str(own), **asked)


@pytest.mark.parametrize(
    ("asked", "ask"),
    [
        ({"variant": "pref"}, "open"),
        ({"variant": "goal"}, "open"),
        ({"variant": "code"}, "closed"),
        ({"compare": "points"}, "open"),
        ({"rate": "need"}, "closed"),
        pytest.param({"variant": "pref"}, "closed", marks=pytest.mark.slow),
        pytest.param({"variant": "goal"}, "closed", marks=pytest.mark.slow),
        pytest.param({"variant": "code"}, "open", marks=pytest.mark.slow),
        pytest.param({"compare": "points"}, "closed", marks=pytest.mark.slow),
        pytest.param({"rate": "need"}, "open", marks=pytest.mark.slow),
    ],
)
def test_the_bare_prompts_fit_and_hold_no_rules_of_the_env(
    crafter: Path, tmp_path: Path, asked: dict[str, Any], ask: Any
) -> None:
    settings: dict[str, Any] = {"dataset": crafter, "cache": tmp_path, "llm": "openai:m", "num": 3, "dry_run": True}
    settings |= {"ask": ask, "variant": "code" if "rate" in asked else "pref"} | asked
    bare = "\n".join(outlook(LabelConfig(prompt="bare", **settings)))
    whole = "\n".join(outlook(LabelConfig(**settings)))
    for told in ("# World", "What needs what", "# Task"):
        assert told in whole
        assert told not in bare
    assert bare.count("[system]") == whole.count("[system]")


@pytest.mark.parametrize(
    ("files", "match"),
    [
        ({}, "no prompts .* bare or a folder"),
        ({"prefs.md": "<<<user>>>\nx"}, "stands for no prompt. Did you mean 'pref'"),
        ({"pref.md": "no turns"}, "must hold turns"),
        ({"pref.md": "before\n<<<user>>>\n{{ a }} {{ b }}"}, "must hold turns"),
        ({"pref.md": "<<<assistant>>>\nx"}, "one turn of each of system, user"),
        ({"pref.md": "<<<user>>>\n{{ a }} or?"}, "leaves out b"),
        ({"pref.md": "<<<system>>>\n{{ mission }}"}, "asks for mission; it is given a, b, world"),
        ({"pref.md": "<<<system>>>\n{% if %}"}, "is no template"),
        ({"pref.md": "<<<system>>>\n{{ world.mission }}"}, "cannot be filled in.*mission"),
        ({"pref.md": "<<<system>>>\n{{ world.prompts.__class__.__mro__ }}"}, "cannot be filled in"),
        ({"pref.md": '<<<system>>>\n{% include "../secret.md" %}'}, "no file of its folder"),
        ({"pref.md": '<<<system>>>\n{% include "world_" ~ "../../secret" ~ ".md" %}'}, "no file of its folder"),
        ({"repair.md": "<<<user>>>\n\ud800"}, "not UTF-8"),
        ({"world_crafter.md": "<<<user>>>\nx"}, "must hold text without turns"),
    ],
)
def test_prompts_that_do_not_fit_are_refused_before_anything_is_written(
    crafter: Path, tmp_path: Path, files: dict[str, str], match: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-planted")
    (tmp_path / "own").mkdir()
    (tmp_path / "secret.md").write_text("secret")
    for name, text in files.items():
        (tmp_path / "own" / name).write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(InputError, match=match):
        label(crafter, tmp_path, llm="openai:m", num=3, prompt=str(tmp_path / "own"))
    assert not (tmp_path / "out").exists()


def test_a_prompt_behind_a_link_is_refused(crafter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-planted")
    (tmp_path / "own").mkdir()
    (tmp_path / "secret.md").write_text("<<<system>>>\nsecret")
    (tmp_path / "own" / "pref.md").symlink_to(tmp_path / "secret.md")
    with pytest.raises(InputError, match="outside its folder"):
        label(crafter, tmp_path, llm="openai:m", num=3, prompt=str(tmp_path / "own"))


@pytest.mark.usefixtures("without_a_key")
def test_a_missing_key_is_told_before_anything_is_written(babyai: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="set OPENAI_API_KEY"):
        label(babyai, tmp_path, llm="openai:m")
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_cannot_be_made_is_told_before_anything_is_written(
    babyai: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-x")
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(InputError, match="choose another with --cache"):
        label(babyai, tmp_path, llm="openai:m")
    assert not (tmp_path / "out").exists()


def test_many_questions_are_announced(babyai: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bkrl.stages.label._MANY", 10)
    told = Told()
    label(babyai, tmp_path, num=11, told=told)
    assert told.lines[0].startswith("Drawing and wording 11 questions")


def test_a_dry_run_of_programs_shows_what_they_may_read(babyai: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"dataset": babyai, "cache": tmp_path, "llm": "openai:m", "dry_run": True}
    for told, reads in (("mission: integer array", "with_mission"), ("memory: integer array", "with_memory")):
        shown = ("\n".join(outlook(LabelConfig(variant="code", **settings, **{reads: on}))) for on in (True, False))
        assert [told in one for one in shown] == [True, False]


@pytest.mark.usefixtures("without_a_key")
def test_a_dry_run_of_programs_asks_what_the_run_asks(
    babyai: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {"variant": "code", "llm": "openai:m", "num": 3, "votes": 2, "with_mission": True}
    config = LabelConfig(babyai, cache=tmp_path / "cache", dry_run=True, **settings)
    with FaultServer(lambda prompt, attempt: "prose") as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        foretold = stage.outlook(config, Reporter())
        with pytest.raises(RunFailed):
            label(babyai, tmp_path, **settings)
        assert len(server.requests) <= foretold.requests == 6
        turns = "\n\n".join(f"[{one['role']}]\n{one['content']}" for one in server.requests[0]["messages"])
        assert foretold.prompts == (turns,)
        assert (foretold.kept, stage.outlook(config, Reporter()).kept) == (0, 2)


@pytest.mark.usefixtures("without_a_key")
def test_what_is_kept_of_first_samples_does_not_lower_what_further_ones_cost(
    babyai: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all first samples kept it said "at most $0.00", and four more of each were sent and paid for."""
    prices = tmp_path / "prices.toml"
    prices.write_text('[[price]]\nmodel = "m"\ninput = 1\noutput = 1\n')
    settings: dict[str, Any] = {"llm": "openai:m", "ask": "closed", "num": 4, "prices": prices, "votes": 5}
    config = LabelConfig(babyai, cache=tmp_path / "cache", dry_run=True, **settings)
    with FaultServer() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        before = stage.outlook(config, Reporter())
        with pytest.raises(RunFailed, match="usable"):
            label(babyai, tmp_path, **{**settings, "votes": 1})
        told = stage.outlook(config, Reporter())
    assert (told.kept, told.tokens_in, told.at_most) == (told.requests, 0, 5)
    most, then = (float(one.values()["most_usd"]) for one in (before, told))  # type: ignore[arg-type]
    assert then == pytest.approx(0.8 * most)
    assert "at most 0)" not in told.text()


@pytest.mark.usefixtures("without_a_key")
@pytest.mark.parametrize(("variant", "num"), [("code", 3), ("code", 1), ("pref", 6)])
def test_a_dry_run_counts_what_later_prompts_hold(babyai: Path, tmp_path: Path, variant: Any, num: int) -> None:
    """At most each reply is cut off, so that each prompt is paid for twice, and later prompts hold one such reply."""
    prices = tmp_path / "prices.toml"
    prices.write_text('[[price]]\nmodel = "m"\ninput = 1\noutput = 0\n')
    settings: dict[str, Any] = {"variant": variant, "num": num, "votes": 2, "max_tokens": 9_000}
    config = LabelConfig(babyai, llm="openai:m", prices=prices, cache=tmp_path / "cache", dry_run=True, **settings)
    told = stage.outlook(config, Reporter())
    later = 2 * (num - 1) if variant == "code" else told.requests
    each = told.tokens_in / told.requests
    least = 2 * told.tokens_in * told.at_most + 2 * later * 4 * 9_000
    assert least <= 1e6 * float(told.values()["most_usd"]) <= least + 2 * later * each + 9  # type: ignore[arg-type]
    assert ("shown in later prompts" in told.text()) == (later > 0)


@pytest.mark.usefixtures("without_a_key")
def test_a_question_whose_longer_reply_is_kept_is_not_to_be_asked(
    babyai: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {"llm": "openai:m", "num": 4}
    with FaultServer(lambda prompt, attempt: "ok" if attempt else "length") as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        label(babyai, tmp_path, **settings)
        told = stage.outlook(LabelConfig(babyai, cache=tmp_path / "cache", dry_run=True, **settings), Reporter())
    assert (told.kept, told.tokens_in) == (told.requests, 0)


@pytest.mark.parametrize(
    ("env_id", "variant"),
    [
        *product([BABYAI], ["code", "pref", "goal"]),
        (CRAFTER, "pref"),
        *(pytest.param(CRAFTER, one, marks=pytest.mark.slow) for one in ("code", "goal")),
    ],
)
def test_example_prompts_are_what_would_be_sent(env_id: str, variant: Any) -> None:
    text = example_prompt(variant, env_id)
    assert text == example_prompt(variant, env_id)
    assert text.startswith("[system]\n")
    assert "# World: " in text
    assert "[user]\n" in text
    assert ("observations[b, i]" in text) == (variant == "code")


def test_labels_from_a_model_carry_their_quality(babyai: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with FaultServer(lambda prompt, attempt: "prose" if int(prompt[:2], 16) < 25 else "ok") as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-CANARY-abcdefgh")
        result = label(babyai, tmp_path, num=40, llm="openai:m", swap="both", votes=2)
    quality = result.facts["quality"]
    assert quality["agreement_with_rules"]["n"] > 10
    assert quality["position_bias"]["n"] > 10
    assert quality["krippendorff_alpha"]["n"] > 10
    assert "agreement with the rules annotator (decided pairs)" in [row[0] for row in result.facts["table"]["rows"]]
    usage = result.facts["usage"]
    assert usage["prompt_tokens"] == 100 * server.billed.total()
    responses = read_table(result.file("responses.parquet"), RESPONSES).to_pylist()
    assert any(len(json.loads(row["prompt"])) == 4 for row in responses), "what could not be read was asked for again"
    assert all(row["answered_as"] == "json_schema" for row in responses)
    for file in tmp_path.rglob("*"):
        assert not file.is_file() or b"CANARY" not in file.read_bytes(), file


def test_a_run_without_one_usable_answer_fails_and_keeps_its_tables(
    babyai: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FaultServer(lambda prompt, attempt: "prose") as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-x")
        with pytest.raises(RunFailed, match="Not one usable answer"):
            label(babyai, tmp_path, num=3, llm="openai:m")
    assert (tmp_path / "out" / "responses.parquet").exists()
    with pytest.raises(InputError, match="unfinished"):
        Run.open(tmp_path / "out", "label")


def start(dataset: Path, tmp_path: Path, server: FaultServer, num: int) -> Started:
    words = ["label", dataset, "--out", tmp_path / "out", "--cache", tmp_path / "cache", "--num", num]
    return Started([*words, "--llm", "openai:m"], OPENAI_BASE_URL=server.url, OPENAI_API_KEY="sk-x")


def wait_for(server: FaultServer, requests: int) -> None:
    patience = time.monotonic() + 600
    while len(server.requests) < requests and time.monotonic() < patience:
        time.sleep(0.005)


@pytest.mark.slow
def test_ctrl_c_keeps_what_was_answered(babyai: Path, tmp_path: Path) -> None:
    with FaultServer(latency=0.05) as server:
        process = start(babyai, tmp_path, server, 300)
        wait_for(server, 40)
        process.send_signal(signal.SIGINT)
        ended = process.done()
        assert ended.returncode == 130
        assert "interrupted; nothing finished is lost" in ended.stderr
        sent = len(server.requests)
        assert sent < 300
        assert start(babyai, tmp_path, server, 300).done().returncode == 0
        assert max(server.billed.values()) == 1, "what was in flight was waited for, not thrown away"
