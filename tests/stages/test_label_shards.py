"""Labelling shared out over machines and joined again, and kept answers read again."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from bkrl.cli.main import run_command
from bkrl.core.config import MergeConfig
from bkrl.core.errors import InputError, UsageError
from bkrl.core.files import read_table
from bkrl.core.reporter import Reporter
from bkrl.data.dataset import Dataset
from bkrl.data.schema import PREFERENCES
from bkrl.labelers import answers, preferences
from bkrl.labelers.config import LabelConfig
from bkrl.labelers.plan import Plan
from bkrl.labelers.recorded import summed
from bkrl.labelers.shards import Shard
from bkrl.labelers.variants import VARIANTS
from bkrl.runs.record import Run
from bkrl.stages import label_merge
from bkrl.stages.label import run
from tests.experience import write_world
from tests.llm.fault_server import FaultServer

BABYAI = "BabyAI-Text-GoToLocal-Pretraining-S20"
FILE = {"pref": "preferences.parquet", "goal": "goals.parquet", "code": "programs.parquet"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_world(tmp_path_factory.mktemp("data") / "babyai", BABYAI)


def does(prompt: str) -> str:
    return ("prose", "prose", "prose", "refusal", "context", "ok", "ok", "ok")[int(prompt[:2], 16) % 8]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Some prompts get prose, a few are refused or too long for the model; a prompt always gets the same."""
    with FaultServer(lambda prompt, attempt: does(prompt)) as running:
        monkeypatch.setenv("OPENAI_BASE_URL", running.url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-x")
        yield running


def label(data: Path, out: Path, **settings: Any) -> Run:
    settings = {"cache": out.parent / f"cache-{out.name}", **settings}
    result = run(LabelConfig(dataset=data, out=out, **settings), Reporter())
    assert result is not None
    return result


def merge(shards: list[Path], out: Path, dataset: Path | None = None) -> Run:
    return label_merge.run(MergeConfig("shard", tuple(shards), out, dataset), Reporter())


def same_tables(one: Run, other: Run, variant: str) -> bool:
    return all(one.file(f).read_bytes() == other.file(f).read_bytes() for f in ("responses.parquet", FILE[variant]))


@pytest.mark.parametrize(
    ("variant", "count", "settings"),
    [
        ("pref", 3, {"num": 80, "swap": "both", "votes": 2}),
        ("goal", 3, {"num": 40, "votes": 2}),
        ("code", 2, {"num": 2, "votes": 2}),
    ],
)
def test_merged_shards_are_the_undivided_run_byte_for_byte(
    variant: str, count: int, settings: dict[str, Any], data: Path, tmp_path: Path
) -> None:
    whole = label(data, tmp_path / "whole", variant=variant, **settings)
    shards = [
        label(data, tmp_path / f"s{n}", variant=variant, shard=f"{n}/{count}", **settings) for n in range(1, count + 1)
    ]
    rows = [read_table(shard.file(FILE[variant])).num_rows for shard in shards]
    assert min(rows) > 0
    assert sum(rows) == read_table(whole.file(FILE[variant])).num_rows
    merged = merge([shard.path for shard in reversed(shards)], tmp_path / "merged")
    assert same_tables(merged, whole, variant)
    assert merged.facts["quality"] == whole.facts["quality"]
    assert "not a language model" in merged.facts["annotator"], "who answered is still said"
    assert Run.open(tmp_path / "merged", "label").config["config"]["shard"] is None


def test_shards_of_a_faulty_model_on_several_machines_ask_everything_once(
    data: Path, tmp_path: Path, server: FaultServer
) -> None:
    settings = {"num": 70, "swap": "both", "llm": "openai:m"}
    whole = label(data, tmp_path / "whole", **settings)
    asked = dict(server.seen)
    server.seen.clear()
    shards = [label(data, tmp_path / f"s{n}", shard=f"{n}/2", **settings) for n in (1, 2)]
    assert set(server.seen) == set(asked)
    answered = {count for prompt, count in server.seen.items() if does(prompt) in ("ok", "prose")}
    assert answered == {1}, "each machine has a store of its own, and still no answer was paid twice"
    merged = merge([shard.path for shard in shards], tmp_path / "merged")
    assert same_tables(merged, whole, "pref")
    statuses = Counter(read_table(merged.file("preferences.parquet"), PREFERENCES).column("status").to_pylist())
    assert set(statuses) >= {"labelled", "refused", "failed", "unparsed"}, "faults are joined too"
    for name in ("requests", "failed", "failed_reasons", "prompt_tokens"):
        assert merged.facts["usage"][name] == whole.facts["usage"][name], name
    assert merged.facts["usage"]["failed"] > 0


def test_every_question_is_in_one_shard_whatever_the_order_of_its_segments(data: Path) -> None:
    dataset = Dataset.open(data)
    drawn = preferences.draw_pairs(dataset, 600, 5, seed=0)
    parts = [Shard(number, 4) for number in (1, 2, 3, 4)]
    owners = [[part.number for part in parts if part.holds(dataset, pair.a, pair.b)] for pair in drawn]
    assert all(len(owner) == 1 for owner in owners)
    sizes = Counter(owner[0] for owner in owners)
    assert all(100 < sizes[number] < 200 for number in (1, 2, 3, 4)), sizes
    assert all(part.holds(dataset, p.a, p.b) == part.holds(dataset, p.b, p.a) for p in drawn for part in parts)
    configs = [LabelConfig(data, num=200, variant="goal", shard=f"{n}/4") for n in (1, 2, 3, 4)]
    asked = [
        {request.messages for request in VARIANTS[config.variant].requests(Plan.of(config, dataset)) or []}
        for config in configs
    ]
    assert sum(map(len, asked)) == len(set().union(*asked))


@pytest.mark.parametrize("text", ["0/3", "4/3", "1", "a/b", "1/0", "-1/3", "1/3/4"])
def test_a_shard_that_is_none_is_refused(text: str, data: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--shard"):
        label(data, tmp_path / "x", shard=text)
    assert not (tmp_path / "x").exists()


def test_shards_of_programs_divide_conversations(data: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--votes 2"):
        label(data, tmp_path / "x", variant="code", votes=2, shard="1/3")
    with pytest.raises(UsageError, match="asks none"):
        label(data, tmp_path / "x", llm="random", shard="1/3")


def test_shards_that_do_not_belong_together_are_refused(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = (label(data, tmp_path / f"s{n}", num=30, shard=f"{n}/2").path for n in (1, 2))
    seed = label(data, tmp_path / "seed", num=30, shard="2/2", seed=2).path
    three = label(data, tmp_path / "three", num=30, shard="2/3").path
    other = write_world(tmp_path / "other", BABYAI, episodes=13)
    elsewhere = label(other, tmp_path / "elsewhere", num=30, shard="2/2").path
    whole = label(data, tmp_path / "whole", num=30).path
    with monkeypatch.context() as patched:
        patched.setattr("bkrl.text.prompts.Prompts.fingerprint", lambda self, names: dict.fromkeys(names, "0" * 64))
        changed = label(data, tmp_path / "changed", num=30, shard="2/2").path
    unfinished = tmp_path / "unfinished"
    shutil.copytree(two, unfinished)
    (unfinished / "manifest.json").unlink()
    for given, match in [
        ([one], "2 are missing"),
        ([one, one], "given twice"),
        ([one, seed], "--seed differ"),
        ([one, three], "number of shards"),
        ([one, elsewhere], "the dataset"),
        ([one, whole], "no shard"),
        ([one, unfinished], "unfinished"),
        ([one, tmp_path / "nowhere"], "no run"),
        ([one, changed], "the prompts"),
    ]:
        capsys.readouterr()
        assert run_command(["label", "merge", *map(str, given), "--out", str(tmp_path / "merged")]) == 3
        told = capsys.readouterr().err
        assert match in " ".join(told.split()), told
        assert not (tmp_path / "merged").exists()
    assert run_command(["label", "merge", str(two), str(one), "--out", str(tmp_path / "merged"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["facts"]["variant"] == "pref"
    assert run_command(["label", "merge", str(one), str(two), "--out", str(tmp_path / "merged")]) == 0
    moved = tmp_path / "moved"
    shutil.move(data, moved)
    try:
        merge([one, two], tmp_path / "again", dataset=moved)
        with pytest.raises(InputError, match="another dataset"):
            merge([one, two], tmp_path / "wrong", dataset=other)
    finally:
        shutil.move(moved, data)


def test_usage_of_shards_is_added_up() -> None:
    one = {"sent": 2, "cost_usd": 0.5, "price": "list", "failed_reasons": {"busy": 1}}
    two = {"sent": 3, "cost_usd": None, "price": "list", "failed_reasons": {"busy": 2, "refused": 1}}
    assert summed([one, one])["cost_usd"] == 1.0
    assert summed([one, two]) == {
        "sent": 5,
        "cost_usd": None,
        "price": "list",
        "failed_reasons": {"busy": 3, "refused": 1},
    }


def test_the_same_command_reads_kept_replies_with_a_better_parser_and_sends_nothing(
    data: Path, tmp_path: Path, server: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {"num": 60, "llm": "openai:m", "cache": tmp_path / "cache"}
    first = label(data, tmp_path / "first", **asked)
    sent = len(server.requests)
    plain = answers.parse_choice

    def better(text: str) -> Any:
        return "tie" if "rather not" in text else plain(text)

    monkeypatch.setattr(preferences, "parse_choice", better)
    again = label(data, tmp_path / "again", **asked)
    before, after = (read_table(r.file("preferences.parquet"), PREFERENCES).to_pylist() for r in (first, again))
    changed = [(a, b) for a, b in zip(before, after) if a["status"] != b["status"]]
    assert changed
    assert {(b["status"], b["label"]) for _, b in changed} == {("labelled", 0.5)}
    unanswered = sum(row["status"] != "ok" for row in read_table(first.file("responses.parquet")).to_pylist())
    assert len(server.requests) - sent <= unanswered
