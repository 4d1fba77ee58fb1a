"""bkrl watch: what is read while it is being written, and the picture made of it."""

import io
import json
import os
import pty
import signal
import subprocess
import sys

import pytest
from rich.console import Console

from bkrl.cli import console, watching
from bkrl.cli.main import run_command
from bkrl.core.config import WatchConfig
from bkrl.core.errors import InputError, UsageError


def write(path, rows, steps=1000, torn="", complete=False):
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps({"stage": "train-rs", "config": {"steps": steps}}))
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + torn)
    if complete:
        (path / "manifest.json").write_text("{}")
    return path


ROWS = [
    {"step": 0, "eval/success_rate": 0.0, "eval/return": -1.0},
    {"step": 500, "rollout/success_rate": 0.9, "ppo/entropy": None},
    {"step": 500, "time/sps": 250.0},
    {"step": 1000, "eval/success_rate": 1.0, "eval/return": 2.0},
]


def test_a_half_written_last_line_is_left_out(tmp_path):
    run = write(tmp_path / "a", ROWS, torn='{"step": 2000, "eval/succ')
    (curve,) = watching.read_curves(WatchConfig(runs=(run,)))
    assert curve.points == ((0, 0.0), (1000, 1.0))  # evaluation, where there is one, not training
    assert (curve.step, curve.total, curve.rate, curve.complete) == (1000, 1000, 250.0, False)


def test_metrics_go_by_short_names_and_by_their_keys(tmp_path):
    run = write(tmp_path / "a", ROWS)
    assert watching.read_curves(WatchConfig(runs=(run,), metric="return"))[0].points == ((0, -1.0), (1000, 2.0))
    assert watching.read_curves(WatchConfig(runs=(run,), metric="rollout/success_rate"))[0].points == ((500, 0.9),)
    assert watching.read_curves(WatchConfig(runs=(run,), metric="ppo/entropy"))[0].points == ()


def test_a_metric_that_was_never_logged_is_refused_once_that_is_sure(tmp_path):
    run = write(tmp_path / "a", ROWS)
    config = WatchConfig(runs=(run,), metric="eval/sucess_rate")
    assert watching.read_curves(config)[0].points == ()
    (run / "manifest.json").write_text("{}")
    with pytest.raises(UsageError, match="Did you mean 'eval/success_rate'"):
        watching.read_curves(config)


def test_a_folder_stands_for_the_runs_below_it_and_it_ends_when_all_are_complete(tmp_path):
    write(tmp_path / "w" / "a", ROWS, complete=True)
    write(tmp_path / "w" / "b", ROWS)
    config = WatchConfig(runs=(tmp_path,))
    curves = watching.read_curves(config)
    assert [curve.name for curve in curves] == ["a", "b"]
    assert not watching.over(config, curves)
    (tmp_path / "w" / "b" / "manifest.json").write_text("{}")
    assert watching.over(config, watching.read_curves(config))
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="No run with metrics"):
        watching.find_runs([tmp_path / "empty"])
    with pytest.raises(InputError, match="There is no run at"):
        watching.find_runs([tmp_path / "nowhere"])


def dots(picture, number):
    """(column, row) of the characters that a run has drawn in the chart."""
    found = set()
    for y, row in enumerate(picture):
        for x, (text, owner) in enumerate(row):
            if owner == number and len(text) == 1 and "\u2800" < text <= "\u28ff":
                found.add((x, y))
    return found


def test_a_rising_curve_goes_from_the_lower_left_to_the_upper_right(tmp_path):
    rising = watching.Curve("up", tuple((s, s / 100) for s in range(101)), 100, 100, 0.0, True)
    flat = watching.Curve("flat", ((0, 0.0), (100, 0.0)), 100, 100, 0.0, True)
    picture = watching.frame([rising, flat], "success", 60, 20)
    assert len(picture) <= 20
    assert all(sum(len(text) for text, _ in row) <= 60 for row in picture[:-2])
    up, down = dots(picture, 0), dots(picture, 1)
    assert min(up)[1] > max(up)[1]
    assert {y for _, y in down} == {max(y for _, y in up | down)}
    rows = ["".join(text for text, _ in row) for row in picture]
    assert any(row.strip().startswith("1 │") for row in rows)
    assert any("100 steps" in row for row in rows)
    assert "up" in rows[-2]
    assert "complete" in rows[-2]


def test_runs_without_points_and_constant_ones_are_drawn_too():
    empty = watching.Curve("empty", (), 0, 0, 0.0, False)
    constant = watching.Curve("constant", ((5, 3.0),), 5, 0, 0.0, False)
    for curves in ([], [empty], [empty, constant], [empty] * 50):
        assert len(watching.frame(curves, "return", 80, 24)) <= 25


def test_blocks_show_the_course():
    assert watching.sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert watching.sparkline([2, 2], 3) == "▁▁ "
    assert len(watching.sparkline(range(1000), 20)) == 20


def test_a_pipe_gets_one_frame(tmp_path, capsys):
    write(tmp_path / "[red]a", ROWS)
    assert run_command(["watch", str(tmp_path), "--once"]) == 0
    shown = capsys.readouterr().out
    assert "[red]a" in shown
    assert "best 1.000" in shown
    assert "\x1b" not in shown
    assert run_command(["watch", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["points"] == [[0, 0.0], [1000, 1.0]]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_frame_keeps_to_its_width(tmp_path, width):
    config = WatchConfig(runs=(write(tmp_path / "bk-pref-s1", ROWS, complete=True),))
    rows = [
        "".join(text for text, _ in row) for row in watching.frame(watching.read_curves(config), "success", width, 16)
    ]
    assert max(map(len, rows)) <= width
    assert len(rows) <= 16
    assert "complete" in rows[-1]
    assert "1,000 steps" in rows[-2]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 0)])
def test_ctrl_c_ends_looking_and_a_signal_to_end_is_told_by_the_exit_code(tmp_path, number, code):
    """On a terminal, where pictures change."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "bkrl", "watch", str(write(tmp_path / "a", ROWS))],
        stdout=slave,
        stderr=subprocess.PIPE,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(slave)
    seen = b""
    while b"starting" not in seen and b"steps/s" not in seen:
        seen += os.read(master, 4096)
    process.send_signal(number)
    _, said = process.communicate(timeout=300)
    os.close(master)
    assert process.returncode == code, said
    assert b"Traceback" not in said


def test_ctrl_c_is_quiet():
    def draw(width, height):
        raise KeyboardInterrupt

    console.show_pictures(draw, 0.1)


def test_the_live_picture_ends_with_the_last_frame(capsys):
    frames = iter([([[("one", 0)]], False), ([[("two", 1)]], True)])
    console.show_pictures(lambda width, height: next(frames), 0.0)
    assert next(frames, None) is None


@pytest.mark.parametrize(
    "line",
    [
        '{"step": 700, "eval/success_rate": NaN}',
        '{"step": 700, "eval/success_rate": -Infinity, "time/sps": 1e999}',
        '{"step": 700, "eval/success_rate": 1' + "0" * 400 + "}",
        '{"step": 1' + "0" * 400 + ', "eval/success_rate": 1}',
        "[" * 100_000,
    ],
)
def test_what_is_no_number_is_no_point(tmp_path, line, capsys):
    run = write(tmp_path / "a", ROWS, torn=line + "\n")
    assert run_command(["watch", "--once", str(run)]) == 0
    assert "1.000, best 1.000" in capsys.readouterr().out
    assert run_command(["watch", "--json", str(run)]) == 0
    json.loads(capsys.readouterr().out, parse_constant=pytest.fail)


@pytest.mark.parametrize(
    "config", ['{"config": [1]}', '{"config": {"steps": 1e999}}', '{"config": {"steps": "x"}}', "[]"]
)
def test_a_config_of_another_kind_only_hides_the_end(tmp_path, config):
    run = write(tmp_path / "a", ROWS)
    (run / "config.json").write_text(config)
    assert watching.read_curves(WatchConfig(runs=(run,)))[0].total == 0


@pytest.mark.parametrize("width", [1, 5, 9, 10, 40])
def test_a_terminal_may_be_narrow(tmp_path, width):
    write(tmp_path / "a", ROWS)
    curves = watching.read_curves(WatchConfig(runs=(tmp_path,)))
    assert watching.frame(curves, "success", width, 10)


@pytest.mark.parametrize("width", [30, 40, 60, 80])
def test_a_row_that_does_not_fit_ends_whole(tmp_path, width):
    write(tmp_path / "a", ROWS)
    curves = watching.read_curves(WatchConfig(runs=(tmp_path,)))
    row = "".join(text for text, _ in watching.frame(curves, "success", width, 10)[-1])
    assert len(row) <= width
    assert row.endswith(("best 1.000", "at 1,000/1,000", "250 steps/s"))


def test_a_picture_is_never_wrapped():
    out = io.StringIO()
    terminal = Console(file=out, force_terminal=True, color_system=None, width=20)
    terminal.print(console._coloured([[("word " * 10, None)], [("end", None)]]))
    assert len(out.getvalue().splitlines()) == 2
