"""Closed labels from a model of this machine: a question is asked once, through kills and in any order of runs."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest

from bkrl.core.files import read_table
from bkrl.data.schema import CHOICES
from bkrl.runs.record import Run
from tests.commands import Started
from tests.experience import write_env
from tests.llm import tiny_gguf

TABLES = ("choices.parquet", "preferences.parquet", "responses.parquet")


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    """The command that asks, but for its cache and its run."""
    root = tmp_path_factory.mktemp("closed")
    data = write_env(root / "data", "BabyAI-Text-GoToLocal-Pretraining-S20")
    model = tiny_gguf.build(root / "models" / "tiny", "llama", positions=8192)
    return ["label", data, "--llm", f"hf:{model}", "--ask", "closed", "--prompt", "bare", "--length", 2]


def run(asking: list[object], cache: Path, name: str, *more: object) -> Run:
    """A run in the parent of the cache, to its end."""
    done = Started([*asking, "--cache", cache, "--out", cache.parent / name, *more]).done()
    assert done.returncode == 0, done.stderr
    return Run.open(cache.parent / name, "label")


def rows(cache: Path, statement: str) -> list[tuple[int, ...]]:
    """Of the store of a cache; none before there is one."""
    if not (cache / "replies.sqlite").exists():
        return []
    with closing(sqlite3.connect(cache / "replies.sqlite", timeout=60)) as db, suppress(sqlite3.OperationalError):
        return db.execute(statement).fetchall()
    return []  # its tables are not made yet


@pytest.mark.slow
def test_a_question_is_asked_once_through_kills_and_in_any_order_of_runs(asking: list[object], tmp_path: Path) -> None:
    calm, cache = tmp_path / "calm" / "cache", tmp_path / "killed" / "cache"
    few = run(asking, calm, "few", "--num", 30)
    many = run(asking, calm, "many", "--num", 60)
    for least in (1, 66):  # within a batch of answers, and between batches
        process = Started([*asking, "--cache", cache, "--out", cache.parent / "many", "--num", 60])
        while (rows(cache, "select count(*) from reply") or [(0,)])[0][0] < least:
            assert process.poll() is None, process.said()[1]
            time.sleep(0.002)
        process.kill()
        assert not (cache.parent / "many" / "manifest.json").exists()
    for calmly, num in ((many, 60), (few, 30)):
        killed = run(asking, cache, calmly.path.name, "--num", num)
        # Which questions are computed together rounds their answers, and a kill changes that.
        told, same = (read_table(one.file(TABLES[0]), CHOICES).to_pylist() for one in (calmly, killed))
        np.testing.assert_allclose(*[[row.pop("logprobs") for row in rows] for rows in (told, same)], atol=1e-4)
        assert told == same
        assert killed.facts["usage"]["requests"] == calmly.facts["usage"]["requests"]
    again = run(asking, cache, "again", "--num", 30)
    assert again.facts["usage"]["sent"] == 0
    assert [again.file(name).read_bytes() for name in TABLES] == [killed.file(name).read_bytes() for name in TABLES]
    assert many.facts["usage"]["requests"] > 90
    answered = "select count(*) from attempt where outcome = 'answered'"
    kept = "select count(*) from reply"
    assert rows(calm, answered) == rows(calm, kept) == rows(cache, kept), "not one was asked twice"
    twice = "select count(*) from attempt where outcome = 'answered' group by key having count(*) > 1"
    assert rows(cache, twice) == [], "what is asked again was in flight"
