"""What a person sees: progress and notes on stderr, results on stdout. The only file that knows rich."""

from __future__ import annotations

import json
import math
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from bkrl.core.reporter import Board, Line, Reporter, Update

# A piped log gets a line at most this often, in seconds.
PLAIN_INTERVAL = 10.0
# Characters that command a terminal or turn the direction of writing, but for tab and line feed.
_CONTROLS = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u202a-\\u202e\\u2066-\\u2069]")
# Columns of a pipe: more than any table has.
PIPED_WIDTH = 10_000


class LiveReporter(Reporter):
    """Progress bars with rate and remaining time, for a terminal."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(stderr=True, highlight=False)

    def say(self, text: str) -> None:
        """One line on stderr."""
        self._console.print(_visible(text), markup=False)

    def warn(self, text: str) -> None:
        """One yellow line on stderr."""
        self._console.print(f"warning: {_visible(text)}", style="yellow", markup=False)

    @contextmanager
    def progress(self, title: str, total: float, unit: str = "steps") -> Iterator[Update]:
        """A bar: done of all, units a second, time left, the latest note."""
        from rich.markup import escape
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.completed:,.0f}/{task.total:,.0f} {task.fields[unit]}"),
            TextColumn("{task.fields[rate]}", style="cyan"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}", style="dim"),
        )
        speed = _Speed(total)
        with Progress(*columns, console=self._console, transient=False) as bar:
            task = bar.add_task(escape(title), total=total, unit=unit, rate="", note="")

            def update(completed: float, note: str = "") -> None:
                rate = speed.of(completed)
                bar.update(task, completed=completed, rate=_rate(rate, unit), note=escape(note))

            yield update

    @contextmanager
    def board(self) -> Iterator[Board]:
        """A table that changes in place: what runs, what failed, what comes next, and a summary."""
        from rich.live import Live

        with Live(console=self._console, auto_refresh=False, vertical_overflow="crop") as live:

            def show(lines: Sequence[Line], summary: str) -> None:
                live.update(_board(lines, summary, max(self._console.size.height - 6, 4)), refresh=True)

            yield show


class PlainReporter(Reporter):
    """Whole lines on stderr, a few for each progress, for pipes and logs."""

    def say(self, text: str) -> None:
        """One line on stderr."""
        _to_stderr(text)

    def warn(self, text: str) -> None:
        """One line on stderr, marked."""
        self.say(f"warning: {text}")

    @contextmanager
    def progress(self, title: str, total: float, unit: str = "steps") -> Iterator[Update]:
        """A line every PLAIN_INTERVAL seconds and one at the end."""
        started = spoken = time.monotonic()
        speed = _Speed(total)
        done = rate = 0.0

        def line(*more: str) -> str:
            return ", ".join([f"{title}: {done:,.0f}/{total:,.0f} {unit}", *(part for part in more if part)])

        def update(completed: float, note: str = "") -> None:
            nonlocal spoken, done, rate
            done, rate = completed, speed.of(completed)
            if time.monotonic() - spoken >= PLAIN_INTERVAL:
                spoken = time.monotonic()
                left = f"{(total - done) / rate:,.0f} s left" if rate > 0 and done < total else ""
                self.say(line(_rate(rate, unit), left, note))

        yield update
        self.say(line(_rate(rate, unit), f"{time.monotonic() - started:,.1f} s in all"))

    @contextmanager
    def board(self) -> Iterator[Board]:
        """A line for each run that ends, and the summary every PLAIN_INTERVAL seconds."""
        told: dict[str, str] = {}
        spoken = time.monotonic()
        latest = ""

        def show(lines: Sequence[Line], summary: str) -> None:
            nonlocal spoken, latest
            latest = summary
            for line in lines:
                before, told[line.name] = told.get(line.name), line.state
                if before not in (None, line.state) and line.state in ("done", "failed"):
                    self.say(f"{line.name}: {line.state}, {line.seconds:,.1f} s" + (line.note and f", {line.note}"))
            if time.monotonic() - spoken >= PLAIN_INTERVAL:
                spoken = time.monotonic()
                self.say(summary)

        yield show
        self.say(latest)


class NotebookReporter(PlainReporter):
    """One line for each progress in the output of a notebook's cell, renewed in its place."""

    @contextmanager
    def progress(self, title: str, total: float, unit: str = "steps") -> Iterator[Update]:
        """Done of all, units a second and the latest note, at most twice a second."""
        from IPython.display import display

        speed, shown = _Speed(total), time.monotonic()
        text = f"{title}: 0/{total:,.0f} {unit}"
        place = display({"text/plain": text}, raw=True, display_id=True)

        def update(completed: float, note: str = "") -> None:
            nonlocal text, shown
            parts = (f"{title}: {completed:,.0f}/{total:,.0f} {unit}", _rate(speed.of(completed), unit), note)
            text = ", ".join(part for part in parts if part)
            if time.monotonic() - shown >= 0.5:
                shown = time.monotonic()
                place.update({"text/plain": text}, raw=True)

        yield update
        place.update({"text/plain": text}, raw=True)


def reporter() -> Reporter:
    """Live bars when stderr is a terminal that can be drawn on, a renewed line in a notebook, plain lines otherwise."""
    if _can_draw(sys.stderr):
        return LiveReporter()
    return NotebookReporter() if _in_notebook() else PlainReporter()


def _in_notebook() -> bool:
    """Whether a Jupyter kernel runs this process."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """A table on stdout; numbers to the right; every cell is plain text, never markup. Under a header no word is
    broken: where a terminal is too narrow for that, each row becomes a list of its cells.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    screen = _stdout()
    texts = [[cell(value) for value in row] for row in rows]
    widths = _widths([header, *texts], screen.width) if any(header) else [None] * len(header)
    if not widths:
        if title:
            with _listened_to():
                screen.print(Text(_visible(title), style="bold"))
        for row in rows:
            print_table("", ("", ""), list(zip(header, row, strict=True)))
        return
    table = Table(
        title=Text(_visible(title), style="bold") if title else None,
        box=box.SIMPLE_HEAD,
        title_justify="left",
        pad_edge=False,
        show_header=any(header),
    )
    for i, name in enumerate(header):
        numeric = bool(rows) and all(isinstance(row[i], (int, float)) and not isinstance(row[i], bool) for row in rows)
        table.add_column(name, justify="right" if numeric else "left", overflow="fold", width=widths[i])
    for line in texts:
        table.add_row(*map(Text, line))
    with _listened_to():
        screen.print(table)


def _visible(text: str) -> str:
    """Text of others for a terminal: nothing in it moves the cursor or changes a colour."""
    return _CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text)


def _widths(rows: Sequence[Sequence[str]], screen: int) -> list[int | None]:
    """Of each column, how wide it is: the columns with most room in their longest text are wrapped until all fit on the
    screen; nothing when that would break words.
    """
    from rich.cells import cell_len

    columns = [[*map(cell_len, column)] for column in zip(*rows, strict=True)]
    words = [[cell_len(word) for text in column for word in text.split()] for column in zip(*rows, strict=True)]
    least = [max(column, default=0) for column in words]
    widths = [max(column) for column in columns]
    while sum(widths) + 3 * len(widths) - 1 > screen:
        widest = max(range(len(widths)), key=lambda i: widths[i] - least[i])
        if widths[widest] <= least[widest]:
            return []
        widths[widest] -= 1
    return [*widths]


def _can_draw(stream: TextIO) -> bool:
    """Whether a stream is a terminal that moves its cursor: one of an editor (TERM=dumb) would show nothing at all."""
    return stream.isatty() and os.environ.get("TERM", "") not in ("dumb", "unknown")


def print_json(value: Any) -> None:
    """JSON on stdout, exactly."""
    _answers.append(value)
    with _listened_to():
        sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def print_text(text: str) -> None:
    """Plain text on stdout: into a pipe exactly, on a terminal with control characters made visible."""
    shown = _visible(text) if sys.stdout.isatty() else text
    with _listened_to():
        sys.stdout.write(shown if shown.endswith("\n") else shown + "\n")


def error(text: str) -> None:
    """One sentence on one line of stderr, control characters made visible."""
    _to_stderr(f"bkrl: {_visible(' '.join(text.splitlines()))}")


_answers: list[Any] = []


def answered() -> bool:
    """Whether JSON was printed since this was last asked: stdout holds one document."""
    some = bool(_answers)
    _answers.clear()
    return some


@contextmanager
def _listened_to() -> Iterator[None]:
    """Printing on stdout. When its reader leaves (as `head` does) the command goes on without: what it still has to do,
    and the exit code that tells how it went, do not depend on who reads.
    """
    try:
        yield
        sys.stdout.flush()
    except (BrokenPipeError, SystemExit) as problem:
        if not left(problem):
            raise
        forget_stdout()


def left(problem: BaseException) -> bool:
    """Whether the reader of a pipe left; rich and Typer make an exit of it."""
    return isinstance(problem, BrokenPipeError) or isinstance(problem.__context__, BrokenPipeError)


def forget_stdout() -> None:
    """Nobody reads it any more, or it cannot be written: whatever comes goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _to_stderr(line: str) -> None:
    """A line on stderr; where it cannot be written, work goes on without: nothing depends on what is said there."""
    try:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


_COLOURS = {"running": "cyan", "queued": "blue", "failed": "red", "done": "green", "waiting": "dim"}


def _board(lines: Sequence[Line], summary: str, most: int) -> Any:
    """At most `most` rows: running and failed runs first, then what comes next, then what was done last."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    order = ["running", "failed", "queued", "waiting"]
    shown = sorted((line for line in lines if line.state in order), key=lambda line: order.index(line.state))
    done = [line for line in lines if line.state == "done"]
    room = max(most - len(shown), 0)
    shown = [*(done[-room:] if room else []), *shown[:most]]
    table = Table(box=None, pad_edge=False, show_header=False)
    for _ in range(6):
        table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    for line in shown:
        steps = f"{line.done:,.0f}/{line.total:,.0f}" if line.total else ""
        left = f"{(line.total - line.done) / line.rate:,.0f} s left" if line.rate > 0 else ""
        table.add_row(
            Text(line.state, style=_COLOURS[line.state]),
            Text(line.name),
            ProgressBar(line.total or 1, line.done, width=16) if line.total else "",
            steps,
            f"{line.rate:,.0f} steps/s" if line.rate else "",
            f"{line.seconds:,.0f} s" if line.seconds else "",
            Text(line.note or left, style="dim"),
        )
    return Group(table, Text(summary, style="bold"))


class _Speed:
    """How fast a progress goes: since its first update, because what that one says may have been done by an earlier
    process, or hold what happens once, such as compiling. A progress with a single update is measured from its start.
    """

    def __init__(self, total: float) -> None:
        self._total = total
        self._place, self._time = 0.0, time.monotonic()
        self._begun = False

    def of(self, completed: float) -> float:
        """Units a second up to `completed`; 0 where nothing can be said yet."""
        now = time.monotonic()
        if not self._begun and completed < self._total:
            self._begun, self._place, self._time = True, completed, now
        return (completed - self._place) / max(now - self._time, 1e-9)


def _rate(rate: float, unit: str) -> str:
    if rate <= 0:
        return ""
    return f"{rate:,.0f} {unit}/s" if rate >= 10 else f"{rate:.2g} {unit}/s"


def cell(value: Any) -> str:
    """A plain value as people read it in a table."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        if 0 < abs(value) < 0.001:
            return f"{value:.2g}"  # what something costs is seldom nothing
        return f"{value:,.3f}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, (dict, list)):
        return _visible(json.dumps(value, ensure_ascii=False))
    return _visible(str(value))


def _stdout() -> Any:
    from rich.console import Console

    # A piped table is for files and other programs: never wrapped to a terminal that is not there.
    return Console(highlight=False) if sys.stdout.isatty() else Console(highlight=False, width=PIPED_WIDTH)
