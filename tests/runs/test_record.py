"""Run directories: complete means a manifest, and nothing damaged or foreign is used."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated

import pyarrow as pa
import pytest

from bkrl.core.config import CollectConfig, ExplorerConfig
from bkrl.core.errors import InputError, RunFailed, UsageError
from bkrl.core.files import atomic_write, make_folder, read_table, to_json, write_table
from bkrl.core.flags import Flag
from bkrl.data.schema import GOALS
from bkrl.runs import software
from bkrl.runs.folder import acquire, busy, remove_contents
from bkrl.runs.identity import changed
from bkrl.runs.inputs import check_inputs
from bkrl.runs.record import Run


@dataclass(frozen=True)
class Config:
    out: Annotated[Path | None, Flag("", identity=False)] = None
    seed: int = 1
    fresh: Annotated[bool, Flag("", identity=False)] = False
    cache: Annotated[Path, Flag("", identity=False)] = Path("cache")


def finished(path: Path, **changes) -> Run:
    run = Run.create(path, stage="label", config=replace(Config(), **changes))
    run.log(0, **{"eval/return": 1.5})
    atomic_write(run.file("a.txt"), "hello")
    run.finish(["a.txt"], answer=42)
    return run


def test_a_finished_run_opens_and_says_what_it_holds(tmp_path):
    finished(tmp_path / "r")
    run = Run.open(tmp_path / "r", "label")
    assert run.facts == {"answer": 42}
    assert set(run.manifest["outputs"]) == {"a.txt", "metrics.jsonl"}
    assert run.metrics() == [{"step": 0, "eval/return": 1.5}]


def test_a_manifest_names_the_commit_of_when_the_first_run_began(tmp_path, monkeypatch):
    """It named the commit that was checked out when that run ended: work may go on while a policy trains."""
    (tmp_path / ".git").mkdir()
    monkeypatch.setattr(software, "__file__", str(tmp_path / "src" / "bkrl" / "runs" / "software.py"))
    monkeypatch.setattr(software, "_code", cache(software._code.__wrapped__))
    there = ["before"]
    git = lambda command, **_: SimpleNamespace(returncode=0, stdout=there[0] if "rev-parse" in command else "")  # noqa: E731
    monkeypatch.setattr(subprocess, "run", git)
    run = Run.create(tmp_path / "r", stage="label", config=Config())
    there[0] = "after"
    run.finish([])
    assert run.manifest["code"] == {"commit": "before", "dirty": False}


def test_the_same_command_finds_its_run_and_another_is_refused(tmp_path):
    finished(tmp_path / "r")
    assert Run.create(tmp_path / "r", stage="label", config=Config()).complete
    assert Run.create(tmp_path / "r", stage="label", config=Config(cache=Path("other"))).complete
    with pytest.raises(UsageError, match="holds a run that differs in seed"):
        Run.create(tmp_path / "r", stage="label", config=Config(seed=2))
    with pytest.raises(UsageError, match="another stage"):
        Run.create(tmp_path / "r", stage="collect", config=Config())
    fresh = Run.create(tmp_path / "r", stage="label", config=Config(seed=2), fresh=True)
    assert not fresh.complete
    assert not fresh.file("a.txt").exists()


def test_a_setting_of_a_group_is_named_by_itself(tmp_path):
    def create(**ppo):
        return Run.create(tmp_path / "r", stage="collect", config=CollectConfig(ppo=ExplorerConfig(**ppo)))

    create().finish([])
    with pytest.raises(UsageError, match="holds a run that differs in gamma; choose"):
        create(gamma=0.5)
    with pytest.raises(UsageError, match="holds a run that differs in num_envs, gamma; choose"):
        create(gamma=0.5, num_envs=8)


def test_a_run_that_has_only_its_config_is_replaced(tmp_path):
    """What a refused command leaves must not stand in the way of the corrected one."""
    Run.create(tmp_path / "r", stage="label", config=Config()).release()
    corrected = Run.create(tmp_path / "r", stage="label", config=Config(seed=2))
    assert corrected.config["config"]["seed"] == 2
    with pytest.raises(UsageError, match="Another process"):
        Run.create(tmp_path / "r", stage="label", config=Config(seed=3))
    corrected.log(0, x=1.0)
    corrected.release()
    with pytest.raises(UsageError, match="holds a run that differs in seed"):
        Run.create(tmp_path / "r", stage="label", config=Config(seed=3))


def test_two_processes_cannot_work_in_one_run(tmp_path):
    run = Run.create(tmp_path / "r", stage="label", config=Config())
    code = (
        "import sys\nfrom pathlib import Path\nfrom bkrl.core.errors import UsageError\n"
        "from bkrl.runs.record import Run\nfrom tests.runs.test_record import Config\n"
        "try:\n    Run.create(Path(sys.argv[1]), stage='label', config=Config(), fresh=sys.argv[2] == '1')\n"
        "except UsageError as error:\n    print(error)\n"
    )

    def other(fresh: str) -> str:
        command = [sys.executable, "-c", code, str(tmp_path / "r"), fresh]
        return subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2]).stdout

    assert "Another process is at work" in other("0")
    assert "Another process is at work" in other("1")
    assert run.file("config.json").exists()
    run.finish([])
    assert other("0") == ""
    assert not run.file(".lock").exists()


def test_fresh_removes_neither_a_run_of_another_stage_nor_an_input(tmp_path):
    data = Run.create(tmp_path / "data", stage="collect", config=Config())
    data.finish([])
    inner = Run.create(tmp_path / "data" / "inner", stage="collect", config=Config())
    inner.finish([])
    (tmp_path / "link").symlink_to(data.path)

    def made(path, stage, source):
        Run.create(path, stage=stage, config=Config(seed=2), inputs={"dataset": source}, fresh=True)

    with pytest.raises(UsageError, match="holds a run of another stage, collect, which stays; choose another --out"):
        Run.create(data.path, stage="label", config=Config(), fresh=True)
    with pytest.raises(UsageError, match="holds what this command reads"):
        made(data.path, "label", data.path)
    with pytest.raises(UsageError, match="holds what this command reads"):
        made(tmp_path / "link", "collect", data.path)
    with pytest.raises(UsageError, match="holds what this command reads"):
        made(data.path, "collect", inner.path)
    with pytest.raises(UsageError, match="has another run in it, .*inner, which would be removed too; move it"):
        Run.create(data.path, stage="collect", config=Config(seed=2), fresh=True)
    Run.open(data.path, "collect")
    Run.open(inner.path, "collect")
    (data.path / "cells").mkdir()
    inner.path.rename(data.path / "cells" / "a")  # as the trainings of a tournament, which are a part of it
    round_of_dagger = Run.create(data.path / "data" / "round-0001", stage="collect", config=Config())
    round_of_dagger.finish([])
    assert not Run.create(data.path, stage="collect", config=Config(seed=2), fresh=True).complete
    assert not (data.path / "cells").exists()
    assert not round_of_dagger.path.exists()


def test_a_file_is_no_run(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="is a file, and a run is a folder"):
        Run.open(tmp_path / "file")


def test_what_is_made_anew_replaces_its_own_kind_alone(tmp_path):
    for number in (1, 2):
        run = Run.renew(tmp_path / "r", stage="report", config=Config(seed=number))
        run.file("a.txt").write_text(str(number))
        run.finish(["a.txt"])
    assert Run.open(tmp_path / "r").config["config"]["seed"] == 2
    with pytest.raises(UsageError, match="holds another run; choose another --out"):
        Run.renew(tmp_path / "r", stage="potential-report", config=Config())
    (tmp_path / "r" / "config.json").write_text("{")
    with pytest.raises(InputError, match="cannot be read as JSON"):
        Run.renew(tmp_path / "r", stage="report", config=Config())
    assert (tmp_path / "r" / "a.txt").read_text() == "2"


def test_a_file_can_be_an_input(tmp_path):
    (tmp_path / "weights").write_bytes(b"1")
    run = Run.create(tmp_path / "r", stage="train-rs", config=Config(), inputs={"init_from": tmp_path / "weights"})
    assert set(run.config["inputs"]["init_from"]) == {"path", "sha256"}
    run.finish([])
    assert check_inputs(Run.open(tmp_path / "r")) == []
    assert changed(tmp_path / "r", "train-rs", Config()) == []
    (tmp_path / "weights").write_bytes(b"2")
    assert "made again" in check_inputs(Run.open(tmp_path / "r"))[0]
    with pytest.raises(UsageError, match="holds a run that differs in input 'init_from'; choose another --out"):
        Run.create(tmp_path / "r", stage="train-rs", config=Config(), inputs={"init_from": tmp_path / "weights"})
    (tmp_path / "weights").unlink()
    assert "no longer there" in check_inputs(Run.open(tmp_path / "r"))[0]


def test_a_file_where_a_folder_should_be_is_named(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match=r"log cannot be made: .*/file is a file; choose another --out"):
        make_folder(tmp_path / "file" / "sweep" / "log")


def test_fresh_does_not_remove_what_is_no_run(tmp_path):
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match="not a bkrl run"):
        Run.create(tmp_path / "r", stage="label", config=Config(), fresh=True)
    assert (tmp_path / "r" / "thesis.tex").exists()


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda p: (p / "manifest.json").unlink(), "unfinished"),
        (lambda p: (p / "a.txt").unlink(), "missing"),
        (lambda p: (p / "a.txt").write_text("hell"), "4 bytes"),
        (lambda p: (p / "a.txt").write_text("hellO"), "was changed"),
        (lambda p: (p / "config.json").unlink(), "not a bkrl run"),
        (lambda p: (p / "manifest.json").write_text("{"), "JSON"),
    ],
)
def test_damage_is_named_in_a_sentence(tmp_path, damage, sentence):
    finished(tmp_path / "r")
    damage(tmp_path / "r")
    with pytest.raises(InputError, match=sentence):
        Run.open(tmp_path / "r", "label")


def test_a_wrong_stage_or_name_is_said_with_a_suggestion(tmp_path):
    finished(tmp_path / "labels-1")
    with pytest.raises(InputError, match="a 'label' run; a 'collect' run is needed"):
        Run.open(tmp_path / "labels-1", "collect")
    with pytest.raises(InputError, match="Did you mean 'labels-1'"):
        Run.open(tmp_path / "label-1")


def test_changed_inputs_are_noticed(tmp_path):
    finished(tmp_path / "first")
    second = Run.create(tmp_path / "second", stage="train-rm", config=Config(), inputs={"labels": tmp_path / "first"})
    second.finish([])
    assert check_inputs(Run.open(tmp_path / "second")) == []
    finished_again = Run.create(tmp_path / "first", stage="label", config=Config(seed=3), fresh=True)
    finished_again.finish([])
    assert "made again" in check_inputs(second)[0]
    with pytest.raises(UsageError, match="input 'labels'"):
        Run.create(tmp_path / "second", stage="train-rm", config=Config(), inputs={"labels": tmp_path / "first"})


def test_a_torn_last_line_of_metrics_is_left_out_and_a_torn_middle_is_not(tmp_path):
    run = Run.create(tmp_path / "r", stage="label", config=Config())
    run.log(1, **{"a/b": 1.0})
    run.log(2, **{"a/b": float("nan")})
    run.close()
    path = run.file("metrics.jsonl")
    path.write_text(path.read_text() + '{"step": 3, "a/')
    assert run.metrics() == [{"step": 1, "a/b": 1.0}, {"step": 2, "a/b": None}]
    path.write_text('{"step"\n' + path.read_text())
    with pytest.raises(InputError, match="line 1"):
        run.metrics()


def test_an_atomic_write_killed_in_the_middle_leaves_the_old_bytes(tmp_path):
    path = tmp_path / "x"
    atomic_write(path, "old")
    code = (
        "import os,signal,sys\nfrom pathlib import Path\nimport bkrl.core.files as r\n"
        "def die(t):\n    t.write_bytes(b'half'); os.kill(os.getpid(), signal.SIGKILL)\n"
        "r._atomically(Path(sys.argv[1]), die)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)])
    assert done.returncode == -9
    assert path.read_text() == "old"


def test_a_place_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFailed, match="cannot be written"):
        atomic_write(tmp_path / "file" / "x", "y")
    with pytest.raises(UsageError, match="cannot be made"):
        Run.create(tmp_path / "file" / "r", stage="label", config=Config())


def test_file_names_cannot_leave_the_run(tmp_path):
    run = Run.create(tmp_path / "r", stage="label", config=Config())
    with pytest.raises(InputError, match="leave"):
        run.file("../../etc/passwd")


def test_tables_refuse_flipped_bits_other_columns_and_other_versions(tmp_path):
    path = tmp_path / "g.parquet"
    rows = {name: [None] * 50 for name in GOALS.names} | {"goal": [f"goal {i}" for i in range(50)]}
    table = pa.table(rows, schema=GOALS)
    write_table(path, table)
    assert read_table(path, GOALS).equals(table)
    raw = bytearray(path.read_bytes())
    raw[raw.find(b"goal 1") if b"goal 1" in raw else 60] ^= 4
    path.write_bytes(raw)
    with pytest.raises(InputError, match="damaged"):
        read_table(path, GOALS)
    write_table(path, table.replace_schema_metadata({"bkrl.schema_version": "99"}))
    with pytest.raises(InputError, match="schema version 99"):
        read_table(path, GOALS)
    write_table(path, table.drop_columns(["goal"]))
    with pytest.raises(InputError, match="other columns"):
        read_table(path, GOALS)
    with pytest.raises(InputError, match="missing"):
        read_table(tmp_path / "none.parquet", GOALS)


def test_json_is_strict():
    assert json.loads(to_json({"a": float("inf"), "b": Path("x/y"), "c": (1, 2)})) == {
        "a": None,
        "b": "x/y",
        "c": [1, 2],
    }


@pytest.mark.parametrize("name", ["manifest.json", "config.json", "metrics.jsonl", "a.txt"])
def test_any_changed_byte_is_noticed(tmp_path, name):
    finished(tmp_path / "r")
    path = tmp_path / "r" / name
    raw = path.read_bytes()
    for place in range(0, len(raw), max(1, len(raw) // 60)):
        path.write_bytes(raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :])
        with pytest.raises(InputError):
            Run.open(tmp_path / "r")
    path.write_bytes(raw)
    Run.open(tmp_path / "r")


def test_killed_before_its_config_stood_it_begins(tmp_path):
    (tmp_path / "r").mkdir()
    for name in (".lock", ".config.json.x7.tmp"):
        (tmp_path / "r" / name).write_text("")
    run = Run.create(tmp_path / "r", stage="label", config=Config())
    assert sorted(path.name for path in run.path.iterdir()) == [".lock", "config.json"]


def test_fresh_works_through_a_link_and_is_known_for_a_run_when_killed(tmp_path, monkeypatch):
    finished(tmp_path / "r")
    (tmp_path / "r" / "deep").mkdir()
    (tmp_path / "r" / "deep" / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "r")
    remove, kill_at = Path.unlink, iter(range(100))

    def killed(path, **options):
        if path.name != ".lock" and next(kill_at) == 2:
            raise ZeroDivisionError
        remove(path, **options)

    with monkeypatch.context() as during:
        during.setattr(Path, "unlink", killed)
        with pytest.raises(ZeroDivisionError):
            Run.create(tmp_path / "link", stage="label", config=Config(seed=2), fresh=True)
    assert not (tmp_path / "r" / "manifest.json").exists()
    run = Run.create(tmp_path / "link", stage="label", config=Config(seed=2), fresh=True)
    assert sorted(path.name for path in run.path.iterdir()) == [".lock", "config.json"]


def test_a_run_that_was_finished_while_one_looked_is_complete(tmp_path, monkeypatch):
    """Between the look for a manifest and the lock, the process that was at work may write it and let go."""
    from bkrl.runs import folder as module

    first = Run.create(tmp_path / "r", stage="label", config=Config())

    def late(path):
        if not first.complete:
            first.finish([])
        return acquire(path)

    monkeypatch.setattr(module, "acquire", late)
    second = Run.create(tmp_path / "r", stage="label", config=Config())
    assert second.complete
    assert second.manifest == first.manifest
    acquire(tmp_path / "r").close()  # and the folder is not locked


def test_the_same_input_may_be_named_by_another_path(tmp_path, monkeypatch):
    @dataclass(frozen=True)
    class Training:
        labels: Path

    finished(tmp_path / "first")
    monkeypatch.chdir(tmp_path)
    for labels in (Path("first"), tmp_path / "first"):
        run = Run.create(tmp_path / "r", stage="train-rm", config=Training(labels), inputs={"labels": labels})
        run.log(0, x=1.0)
        run.close()
        run.release()
    finished(tmp_path / "second")
    manifest = tmp_path / "second" / "manifest.json"
    manifest.write_text(manifest.read_text() + " ")
    other = Path("second")
    with pytest.raises(UsageError, match="holds a run that differs in labels"):
        Run.create(tmp_path / "r", stage="train-rm", config=Training(other), inputs={"labels": other})


def test_who_may_only_read_may_ask_whether_a_run_is_busy(tmp_path):
    folder = Path(tempfile.mkdtemp())  # below tmp_path nobody else may look
    try:
        folder.chmod(0o755)
        lock = acquire(folder)
        (folder / ".lock").chmod(0o444)
        identity = os.geteuid()
        for at_work in (True, False):
            if identity == 0:
                os.seteuid(65534)
            try:
                assert busy(folder) is at_work
            finally:
                os.seteuid(identity)
            lock.close()
        with (folder / ".lock").open("rb") as another:  # one who asks at the same moment is not at work
            fcntl.flock(another, fcntl.LOCK_SH)
            assert not busy(folder)
    finally:
        shutil.rmtree(folder)


def test_a_run_reads_the_same_where_the_language_is_not_utf8(tmp_path):
    finished(tmp_path / "r", cache=Path("Φ"))
    code = "import sys; from pathlib import Path; from bkrl.runs.record import Run; Run.open(Path(sys.argv[1]))"
    language = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-c", code, str(tmp_path / "r")]
    assert subprocess.run(command, env=os.environ | language, capture_output=True).returncode == 0


def test_metrics_that_are_no_text_are_damaged_in_a_sentence(tmp_path):
    run = Run.create(tmp_path / "r", stage="label", config=Config())
    run.log(0, x=1.0)
    run.log(1, x=1.0)
    raw = run.file("metrics.jsonl").read_bytes()
    run.file("metrics.jsonl").write_bytes(b"\xff" + raw[1:])
    with pytest.raises(InputError, match="damaged at line 1"):
        run.metrics()


def test_a_lock_file_removed_while_it_was_opened_holds_nothing(tmp_path, monkeypatch):
    """A process that finishes removes the file: a lock on what is no longer there would keep nobody out."""
    from bkrl.runs import folder as module

    locks = iter([True])

    def late(file):
        if next(locks, False):
            (tmp_path / ".lock").unlink()
        return files_lock(file)

    files_lock = module.lock
    monkeypatch.setattr(module, "lock", late)
    held = acquire(tmp_path)
    with pytest.raises(UsageError, match="Another process"):
        acquire(tmp_path)
    held.close()


def test_a_manifest_without_a_seal_vouches_for_nothing(tmp_path):
    finished(tmp_path / "r")
    manifest = json.loads((tmp_path / "r" / "manifest.json").read_text())
    del manifest["seal"]
    manifest["facts"]["answer"] = 43
    (tmp_path / "r" / "manifest.json").write_text(to_json(manifest))
    with pytest.raises(InputError, match="was changed after it was written"):
        Run.open(tmp_path / "r")


def test_a_sealed_manifest_whose_files_lie_elsewhere_is_refused_in_a_sentence(tmp_path):
    from bkrl.runs.record import sealed

    finished(tmp_path / "r")
    (tmp_path / "secret").write_text("x")
    manifest = json.loads((tmp_path / "r" / "manifest.json").read_text())
    del manifest["seal"]
    manifest["outputs"]["../secret"] = manifest["outputs"].pop("a.txt")
    (tmp_path / "r" / "manifest.json").write_text(to_json(sealed(manifest)))
    with pytest.raises(InputError, match="would leave"):
        Run.open(tmp_path / "r")


def test_files_are_written_under_the_umask_without_touching_it(tmp_path, monkeypatch):
    """The umask is the whole process's: for a moment of 0, files of other threads were everybody's to write."""
    umask = os.umask(0o027)
    try:
        monkeypatch.setattr(os, "umask", None)
        atomic_write(tmp_path / "x", "1")
    finally:
        monkeypatch.undo()
        os.umask(umask)
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o640


def test_a_file_is_on_the_disk_before_it_has_its_name_and_its_name_afterwards(tmp_path, monkeypatch):
    """Else a power cut leaves an empty file where a whole one stood."""
    done, replace = [], Path.replace

    def note(descriptor):
        done.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))

    def rename(source, target):
        done.append("renamed")
        return replace(source, target)

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(Path, "replace", rename)
    atomic_write(tmp_path / "x", "1")
    written, renamed, folder = done
    assert written.name.startswith(".x.")
    assert (renamed, folder) == ("renamed", tmp_path)


def test_a_folder_that_cannot_be_synced_takes_files_all_the_same(tmp_path, monkeypatch):
    sync = os.fsync

    def refuse(descriptor):
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(22, "Invalid argument")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", refuse)
    atomic_write(tmp_path / "x", "1")
    assert (tmp_path / "x").read_text() == "1"


def test_a_flipped_bit_that_decompresses_all_the_same_is_noticed(tmp_path):
    """Random bytes are kept as they are, so that only the checksum of the page knows better."""
    path = tmp_path / "x.parquet"
    raw = os.urandom(4096)
    write_table(path, pa.table({"raw": [raw]}))
    written = path.read_bytes()
    place = written.index(raw[1000:1100])
    path.write_bytes(written[:place] + bytes([written[place] ^ 1]) + written[place + 1 :])
    with pytest.raises(InputError, match="damaged"):
        read_table(path)


def test_half_a_line_on_a_full_disk_is_taken_back(tmp_path, monkeypatch):
    run = Run.create(tmp_path / "r", stage="label", config=Config())
    run.log(0, x=1.0)
    before, write = run.file("metrics.jsonl").read_bytes(), os.write
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda file, data: write(file, data[:5]))
        with pytest.raises(RunFailed, match="No space left"):
            run.log(1, x=1.0)
    assert run.file("metrics.jsonl").read_bytes() == before


def test_metrics_that_were_removed_meanwhile_end_the_run(tmp_path):
    run = Run.create(tmp_path / "r", stage="label", config=Config())
    run.log(0, x=1.0)
    run.file("metrics.jsonl").unlink()
    with pytest.raises(RunFailed, match="was removed while it was written"):
        run.log(1, x=1.0)


def test_a_run_that_goes_on_leaves_its_hard_linked_copy_alone(tmp_path):
    run = Run.create(tmp_path / "r", stage="label", config=Config())
    run.log(0, x=1.0)
    run.log(1, x=2.0)
    copy = tmp_path / "copy.jsonl"
    copy.hardlink_to(run.file("metrics.jsonl"))
    before = copy.read_bytes()
    run.rewind(before.index(b"\n") + 1)
    run.log(1, x=3.0)
    assert copy.read_bytes() == before
    assert [row["x"] for row in run.metrics()] == [1.0, 3.0]


def test_fresh_removes_the_manifest_first_and_the_config_last(tmp_path, monkeypatch):
    """Killed at any moment, what is left is no complete run, and is known for a run."""
    finished(tmp_path / "r")
    remove, removed = Path.unlink, []

    def watched(path, **options):
        removed.append(path.name)
        remove(path, **options)

    monkeypatch.setattr(Path, "unlink", watched)
    monkeypatch.setattr(
        Path, "iterdir", lambda path: iter([path / n for n in ("config.json", "a.txt", "manifest.json")])
    )
    acquire(tmp_path / "r").close()
    remove_contents(tmp_path / "r")
    assert removed == ["manifest.json", "a.txt", "config.json"]


@pytest.mark.parametrize("name", [".lock", "metrics.jsonl", "checkpoints", "steps", "a.txt", "manifest.json"])
@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("fresh", [False, True])
def test_nothing_is_written_through_a_link_that_leads_out_of_a_run(tmp_path, name, there, fresh):
    outside = tmp_path / "outside"
    if there:
        (outside.mkdir if name in ("checkpoints", "steps") else outside.touch)()
    path = tmp_path / "r"
    run = Run.create(path, stage="label", config=Config())
    run.log(1, x=2.0)
    run.close()
    run.release()
    (path / "metrics.jsonl").unlink()
    (path / ".lock").unlink()
    (path / name).symlink_to(outside)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(InputError, match=r"is a link that leads out of|cannot be read as JSON"):
        Run.create(path, stage="label", config=Config(), fresh=fresh).log(1, x=2.0)
    assert sorted(tmp_path.iterdir()) == before
    assert not there or outside.is_dir() or outside.read_bytes() == b""
    (path / name).unlink()
    (path / "metrics.jsonl").touch()
    (path / "latest").symlink_to("metrics.jsonl")  # as trackers keep them
    Run.create(path, stage="label", config=Config()).log(1, x=2.0)


def test_a_table_that_is_a_link_is_not_read_elsewhere(tmp_path):
    finished(tmp_path / "r")
    (tmp_path / "r" / "a.txt").rename(tmp_path / "a.txt")
    (tmp_path / "r" / "a.txt").symlink_to("../a.txt")
    with pytest.raises(InputError, match="'a.txt' would leave it"):
        Run.open(tmp_path / "r")
    (tmp_path / "r" / "a.txt").unlink()
    (tmp_path / "r" / "a.txt").symlink_to("a.txt")
    with pytest.raises(InputError, match="'a.txt' would leave it"):
        Run.open(tmp_path / "r")


def test_a_setting_newer_than_a_run_had_its_default_and_one_that_is_gone_had_no_effect(tmp_path):
    config = CollectConfig("Toy-Chain", tmp_path / "r")
    Run.create(config.run_dir, stage="collect", config=config).log(1, x=1.0)
    document = json.loads((tmp_path / "r" / "config.json").read_text())
    del document["config"]["int_gamma"], document["config"]["ppo"]["clip_coef"]
    document["config"]["gone"] = 3
    (tmp_path / "r" / "config.json").write_text(json.dumps(document))
    assert changed(tmp_path / "r", "collect", config) == []
    assert changed(tmp_path / "r", "collect", replace(config, int_gamma=0.5)) == ["int_gamma"]
    assert changed(tmp_path / "r", "collect", replace(config, threads=2, out=tmp_path / "elsewhere")) == []
    other = replace(config, ppo=ExplorerConfig(clip_coef=0.5, gamma=0.5))
    assert changed(tmp_path / "r", "collect", other) == ["gamma", "clip_coef"]
