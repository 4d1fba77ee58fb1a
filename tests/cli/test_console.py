"""What a person sees while a run goes on and after it: rates, tables, facts."""

from __future__ import annotations

import io
import time

import pytest

from bkrl.cli import console, progress


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize("before", [0, 8_000])
def test_a_rate_counts_only_what_this_process_has_done(clock, capsys, before):
    """A trainer first speaks after its first rollout; what was done by then is neither lost nor taken for speed."""
    with progress.PlainReporter().progress("train", 20_000) as update:
        clock[0] += 5  # compiling
        for done in range(before + 1_000, 20_001, 1_000):
            clock[0] += 1
            update(done)
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1] == f"train: 20,000/20,000 steps, 1,000 steps/s, {5 + (20_000 - before) / 1000:.1f} s in all"
    assert all("1,000 steps/s" in line for line in lines)


def test_a_progress_with_one_update_is_measured_from_its_start(clock, capsys):
    with progress.PlainReporter().progress("record", 10, "episodes") as update:
        clock[0] += 4
        update(10)
    assert capsys.readouterr().err == "record: 10/10 episodes, 2.5 episodes/s, 4.0 s in all\n"


def test_a_progress_without_an_update_has_no_rate(clock, capsys):
    with progress.PlainReporter().progress("ask", 10, "answers"):
        clock[0] += 1
    assert capsys.readouterr().err == "ask: 0/10 answers, 1.0 s in all\n"


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch):
    """A terminal of some width: what has been printed on it."""
    from rich.console import Console

    def of(width: int) -> Console:
        made = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=width, highlight=False)
        monkeypatch.setattr(console, "_stdout", lambda: made)
        return made

    return of


HEADER = ("env", "method", "95 % interval", "steps to 80 %", "verdict")
ROWS = [("BabyAI-Text-GoToLocal-RedBall-S20", "bk-pref [advice]", "0 to 81 %", 1234567, "nothing can be said")]


@pytest.mark.parametrize("width", [60, 79, 80, 100, 160])
def test_no_terminal_breaks_a_word_of_a_table(screen, width):
    terminal = screen(width)
    console.print_table("a study", HEADER, ROWS)
    text = terminal.file.getvalue()
    assert "a study" in text
    for word in ("BabyAI-Text-GoToLocal-RedBall-S20", "[advice]", "1,234,567", "nothing", "interval"):
        assert word in text
    assert max(map(len, text.splitlines())) <= width
    assert ("─" in text) == (width >= 79)  # below that a list


def test_a_pipe_gets_one_line_for_a_row(capsys):
    console.print_table("", ("run", "what"), [("a", "b " * 400)])
    assert any(line.count("b") == 400 for line in capsys.readouterr().out.splitlines())


def test_what_others_wrote_does_not_reach_the_terminal_as_commands(screen):
    terminal = screen(100)
    console.print_table("logs/[b]\x1b[31m[/x]", ("run", "what"), [("a\x1b]0;owned\x07", "\x1b[2J wiped")])
    text = terminal.file.getvalue()
    assert "\x1b" not in text.replace("\x1b[1m", "").replace("\x1b[0m", "")
    assert "logs/[b]" in text
    assert "[/x]" in text


def test_words_on_a_terminal_are_only_words(monkeypatch, capsys):
    console.print_text("run a\x1b[31m\n\tb\u00a0c")
    assert capsys.readouterr().out == "run a\x1b[31m\n\tb\u00a0c\n"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    console.print_text("run a\x1b[31m\n\tb\u00a0c")
    assert capsys.readouterr().out == "run a\ufffd[31m\n\tb\u00a0c\n"


@pytest.mark.parametrize(
    ("value", "text"), [(0.00042, "0.00042"), (0.0, "0.000"), (0.5, "0.500"), (float("nan"), "–"), (-3e-9, "-3e-09")]
)
def test_a_small_number_is_not_nothing(value, text):
    assert console.cell(value) == text


def test_a_terminal_that_cannot_be_drawn_on_gets_lines(monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(progress.reporter(), progress.PlainReporter)
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(progress.reporter(), progress.LiveReporter)
