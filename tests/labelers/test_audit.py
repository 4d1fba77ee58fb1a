"""Audits: what is shown, what is kept through stops and crashes, and the figures at the end."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bkrl.cli.main import main, run_command
from bkrl.core.errors import InputError, RunFailed, UsageError
from bkrl.data.dataset import Dataset
from bkrl.labelers import audit
from bkrl.labelers.agreement import share
from bkrl.labelers.tables import labels_of
from bkrl.llm.protocol import Request
from bkrl.runs.record import Run
from tests.labelers import runs

PAIRS = 30


def machine(request: Request) -> str:
    """Words that would give the label away, if they were shown."""
    number = sum(request.messages[1].text.encode()) % 5
    return json.dumps({"thoughts": "SECRET", "choice": ["A", "B", "A", "B", "tie"][number]})


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return runs.babyai(tmp_path_factory.mktemp("data") / "d")


@pytest.fixture
def run(dataset: Dataset, tmp_path: Path) -> Path:
    return runs.pref_run(tmp_path / "labels", dataset, machine, PAIRS)


class Person:
    """Answers by a function of what is shown, and remembers it."""

    def __init__(self, answers: Callable[[str], str | None]) -> None:
        self.answers, self.shown = answers, []  # type: ignore[var-annotated]

    def __call__(self, text: str) -> str | None:
        self.shown.append(text)
        return self.answers(text)


def lines(*given: str) -> Callable[[str], str | None]:
    waiting = iter(given)
    return lambda text: next(waiting, None)


def agreeing(run: Path, dataset: Dataset) -> Callable[[str], str]:
    """A person who says what the labels say, wherever the segments stand."""
    told = {}
    for row in labels_of(Run.open(run)):
        a, b = (audit.segment_text(dataset, segment) for segment in audit.segments_of(row))
        choice = audit.machine_choice(row)
        for first, second, answer in ((a, b, {"A": "1", "B": "2"}), (b, a, {"B": "1", "A": "2"})):
            told["\n".join(audit.question(first, second, "").split("\n")[1:])] = answer.get(str(choice), "t")
    return lambda text: told["\n".join(text.split("\n")[1:])]


def test_a_person_who_agrees_agrees_whatever_the_order(run: Path, dataset: Dataset) -> None:
    person = Person(agreeing(run, dataset))
    found = audit.conduct(run, person, n=20)
    assert found["agreement"] == share(20, 20)
    assert found["cohen_kappa"] == 1.0
    assert found["agreement_decided"]["n"] == sum(given in "12" for given in map(person.answers, person.shown))
    kept = [json.loads(line) for line in Path(found["answers"]).read_text().splitlines()]
    assert 3 < sum(entry["swapped"] for entry in kept) < 17, "the order is random"
    assert not any("SECRET" in text for text in person.shown)
    Run.open(run)


def test_chance_agrees_by_chance(run: Path) -> None:
    found = audit.conduct(run, lines(*"12" * 15), n=30)
    assert found["answered"] == sum(row["status"] == "labelled" for row in labels_of(Run.open(run))) >= PAIRS - 3
    assert abs(found["cohen_kappa"]) < 0.5
    assert found["agreement"]["low"] < 0.5 < found["agreement"]["high"] + 0.2


def test_an_audit_goes_on_where_it_stopped(run: Path) -> None:
    first, second, third = Person(lines("1", "2", "q")), Person(lines("t", "s")), Person(lines(*["1"] * 99))
    assert audit.conduct(run, first, n=6)["pairs_left"] == 4
    assert audit.conduct(run, second, n=6)["pairs_left"] == 2, "the end of the input is a stop"
    found = audit.conduct(run, third, n=8)
    assert found["pairs_left"] == 0
    assert (found["answered"], found["skipped"]) == (7, 1)
    asked = [text.split("sees", 1)[1] for person in (first, second, third) for text in person.shown]
    assert len(set(asked)) == 8, "no pair twice, but for those at which somebody left"
    assert asked[2] == asked[3]
    one, other = Person(lines()), Person(lines())
    audit.conduct(run, one, auditor="one")
    audit.conduct(run, other, auditor="other")
    assert one.shown == other.shown, "all auditors see the same pairs"


def test_what_is_no_answer_is_asked_for_again(run: Path) -> None:
    person = Person(lines("", "A\x1b[31m", " 1 ", "SECOND", "tie", "q"))
    found = audit.conduct(run, person, n=5)
    assert found["answered"] == 3
    assert "is no answer" in person.shown[1]
    assert "\x1b" not in person.shown[2]


def test_a_torn_last_line_costs_that_answer_only(run: Path) -> None:
    path = Path(audit.conduct(run, lines("1", "2"), n=5)["answers"])
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"pair_id": 3, "cho')
    assert audit.conduct(run, lines(), n=5)["answered"] == 2
    found = audit.conduct(run, lines("t"), n=5)
    assert found["answered"] == 3
    assert len(path.read_bytes().splitlines()) == 3
    path.write_bytes(b"{nonsense}\n" + whole)
    with pytest.raises(InputError, match="line 1"):
        audit.conduct(run, lines(), n=5)


def test_a_last_answer_that_only_lacks_its_newline_is_kept(run: Path) -> None:
    path = Path(audit.conduct(run, lines("1", "2"), n=5)["answers"])
    path.write_bytes(path.read_bytes().rstrip(b"\n"))  # as some editors leave it, or a crash just there
    assert audit.conduct(run, lines("t"), n=5)["answered"] == 3
    assert audit.conduct(run, lines(), n=5)["answered"] == 3
    assert len(path.read_bytes().splitlines()) == 3


def test_half_a_line_on_a_full_disk_is_no_answer(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(audit.conduct(run, lines("1"), n=5)["answers"])
    before, write = path.read_bytes(), os.write
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda file, data: write(file, data[:9]))
        with pytest.raises(RunFailed, match="are kept"):
            audit.conduct(run, lines("2"), n=5)
    assert path.read_bytes() == before


def test_a_number_too_large_is_a_damaged_line(run: Path) -> None:
    path = Path(audit.conduct(run, lines("1"), n=5)["answers"])
    path.write_text('{"pair_id": Infinity}\n' + path.read_text())
    with pytest.raises(InputError, match="line 1"):
        audit.conduct(run, lines(), n=5)


def test_answers_given_for_other_labels_do_not_count(run: Path, dataset: Dataset, tmp_path: Path) -> None:
    audit.conduct(run, lines("1"), n=5)
    other = runs.pref_run(tmp_path / "other", dataset, lambda request: '{"choice": "A"}', 5)
    (other / audit.FOLDER).mkdir()
    os.replace(run / audit.FOLDER / "me.jsonl", other / audit.FOLDER / "me.jsonl")
    with pytest.raises(InputError, match="other labels"):
        audit.conduct(other, lines("1"), n=5)


@pytest.mark.parametrize("name", ["../me", "", ".hidden", "a/b", "x" * 65, "nul\0", "né", "-rf", "con fig"])
def test_an_auditors_name_is_a_file_name(run: Path, name: str) -> None:
    with pytest.raises(UsageError, match="--auditor"):
        audit.conduct(run, lines("1"), auditor=name)
    assert not (run / audit.FOLDER).exists()


def test_only_pairs_that_were_answered_can_be_audited(dataset: Dataset, tmp_path: Path) -> None:
    mute = runs.pref_run(tmp_path / "mute", dataset, lambda request: "well", 3)
    with pytest.raises(UsageError, match="nothing to audit"):
        audit.conduct(mute, lines("1"))
    goals = runs.goal_run(tmp_path / "goals", dataset, lambda request: '{"goals": ["sleep"]}', 3)
    with pytest.raises(UsageError, match="no preferences"):
        audit.conduct(goals, lines("1"))


def test_the_command_reads_answers(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def command(given: str) -> tuple[dict[str, Any], str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO(given))
        assert run_command(["label", "audit", str(run), "--n", "4", "--auditor", "ann", "--json"]) == 0
        said = capsys.readouterr()
        return json.loads(said.out), said.err

    found, asked = command("1\n2\nq")
    assert found["pairs_left"] == 2
    assert "FIRST" in asked
    assert command("t\nt")[0]["answered"] == 4


def test_bytes_in_a_pipe_that_are_no_text_are_no_answer(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe = io.TextIOWrapper(io.BytesIO(b"1\n\xff\n2\n"), encoding="utf-8", errors="strict")
    monkeypatch.setattr(sys, "stdin", pipe)
    monkeypatch.setattr(sys, "argv", ["bkrl", "label", "audit", str(run), "--n", "4", "--json"])
    monkeypatch.setattr(signal, "signal", lambda *given: None)  # its handlers would stay
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert json.loads(capsys.readouterr().out)["answered"] == 2


def test_nobody_is_asked_where_answers_cannot_be_kept(run: Path) -> None:
    (run / "audit").write_text("a file where the folder has to be")

    def asked(text: str) -> str:
        raise AssertionError("asked")

    with pytest.raises(RunFailed, match="audit a copy of the run"):
        audit.conduct(run, asked, n=2)
    (run / "audit").unlink()
    audit.conduct(run, lines(), n=2)
    assert not list((run / "audit").iterdir())
