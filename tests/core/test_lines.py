"""Append-only files: what a crash or a full disk leaves at the end, and who may read it."""

import os
from contextlib import closing

import pytest

from bkrl.core.errors import InputError
from bkrl.core.files import sha256
from bkrl.core.lines import LineFile, newest_row, read_lines, read_rows

WHOLE = b'{"a": 1}\n{"a": 2}\n'


@pytest.mark.parametrize(
    ("raw", "values", "torn"),
    [
        (b"", [], False),
        (WHOLE, [1, 2], False),
        (WHOLE.removesuffix(b"\n"), [1, 2], False),  # as some editors leave it, or a crash just there
        (WHOLE + b'{"a": 3', [1, 2], True),
        (WHOLE + b"3", [1, 2], True),
        (b'{"a"', [], True),
        (b'{"a": 1}\n\n{"a": 2}\n', [1, 2], False),
    ],
)
def test_readers_and_the_next_writer_agree_on_what_was_torn(tmp_path, raw, values, torn):
    path = tmp_path / "x"
    path.write_bytes(raw)
    assert read_lines(path)[1] == torn
    assert [row["a"] for row in read_rows(path, mend="")] == values
    with closing(LineFile(path)) as file:
        file.append('{"a": 9}')
        file.sync()
        assert file.content == (path.stat().st_size, sha256(path))
    assert read_lines(path)[1] is False
    assert [row["a"] for row in read_rows(path, mend="")] == [*values, 9]
    assert path.read_bytes().endswith(b'}\n{"a": 9}\n' if values else b'{"a": 9}\n')


@pytest.mark.parametrize("line", [b"{nonsense}", b"[1]", b"\xff", b'{"a": "x"}', b'{"a": Infinity}', b"[" * 1000])
def test_any_other_damaged_line_is_named(tmp_path, line):
    path = tmp_path / "x"
    path.write_bytes(b'{"a": 1}\n' + line + b"\n" + WHOLE)
    with pytest.raises(InputError, match="x is damaged at line 2; mend it"):
        read_rows(path, dict[str, int], mend="mend it")


def test_no_file_has_no_rows(tmp_path):
    assert read_rows(tmp_path / "x", mend="") == []
    assert newest_row(tmp_path / "x") == {}


def test_half_a_line_on_a_full_disk_is_taken_back(tmp_path, monkeypatch):
    path, write = tmp_path / "x", os.write
    path.write_bytes(WHOLE)
    with closing(LineFile(path)) as file:
        with monkeypatch.context() as full:
            full.setattr(os, "write", lambda file, data: write(file, data[:5]))
            with pytest.raises(OSError, match="No space left"):
                file.append('{"a": 3}')
        assert path.read_bytes() == WHOLE
        assert not file.removed
        path.unlink()
        assert file.removed


@pytest.mark.parametrize("raw", [WHOLE, WHOLE + b'{"a": 3', WHOLE.removesuffix(b"\n")])
def test_nothing_is_written_through_a_hard_link(tmp_path, raw):
    path, before, meanwhile = tmp_path / "x", tmp_path / "before", tmp_path / "meanwhile"
    path.write_bytes(raw)
    before.hardlink_to(path)
    with closing(LineFile(path)) as file:
        file.append('{"a": 3}')
        meanwhile.hardlink_to(path)
        file.append('{"a": 4}')
        assert file.content == (path.stat().st_size, sha256(path))
    assert before.read_bytes() == raw
    assert meanwhile.read_bytes() == WHOLE + b'{"a": 3}\n'
    assert path.read_bytes() == WHOLE + b'{"a": 3}\n{"a": 4}\n'
    assert sorted(file.name for file in tmp_path.iterdir()) == ["before", "meanwhile", "x"]


def test_the_newest_row_of_a_file_that_is_being_written(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(WHOLE * 1000 + b'{"a": 3}\nnonsense\n{"a": 4')
    assert newest_row(path) == {"a": 3}
    assert newest_row(path, size=5) == {}
