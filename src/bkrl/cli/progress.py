"""How stages tell a person on stderr what they do: live bars, plain lines, or a line in a notebook."""

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from bkrl.cli.console import visible, write_stderr
from bkrl.core.reporter import Board, Line, Reporter, Update

# A piped log gets a line at most this often, in seconds.
PLAIN_INTERVAL = 10.0
# A notebook's line is renewed at most this often, in seconds.
NOTEBOOK_INTERVAL = 0.5


def reporter() -> Reporter:
    """Live bars when stderr is a terminal that can be drawn on, a renewed line in a notebook, plain lines otherwise."""
    if sys.stderr.isatty() and os.environ.get("TERM", "") not in ("dumb", "unknown"):  # those move no cursor
        return LiveReporter()
    return NotebookReporter() if _in_notebook() else PlainReporter()


def _in_notebook() -> bool:
    """Whether a Jupyter kernel runs this process."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


class _Progress:
    """How far something is and how fast it goes.

    The rate counts from the first update: what that one reports may have been done by an earlier process, or include
    what happens once, such as compiling. With a single update it counts from the start.
    """

    def __init__(self, title: str, total: float, unit: str) -> None:
        self.title, self.total, self.unit = title, total, unit
        self.started = time.monotonic()
        self.done = self.rate = 0.0
        self._first: tuple[float, float] | None = None

    def update(self, completed: float) -> None:
        """So much is done now."""
        now = time.monotonic()
        if self._first is None and completed < self.total:
            self._first = completed, now
        before, then = self._first or (0.0, self.started)
        self.done, self.rate = completed, (completed - before) / max(now - then, 1e-9)

    def rate_text(self) -> str:
        """Units a second; nothing where it is not known yet."""
        if self.rate <= 0:
            return ""
        return f"{self.rate:,.0f} {self.unit}/s" if self.rate >= 10 else f"{self.rate:.2g} {self.unit}/s"

    def line(self, *more: str) -> str:
        """Everything in one line of text."""
        parts = (f"{self.title}: {self.done:,.0f}/{self.total:,.0f} {self.unit}", self.rate_text(), *more)
        return ", ".join(part for part in parts if part)


class LiveReporter(Reporter):
    """Progress bars with rate and remaining time, for a terminal."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(stderr=True, highlight=False)

    def say(self, text: str) -> None:
        self._console.print(visible(text), markup=False)

    def warn(self, text: str) -> None:
        self._console.print(f"warning: {visible(text)}", style="yellow", markup=False)

    @contextmanager
    def progress(self, title: str, total: float, unit: str = "steps") -> Iterator[Update]:
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
        now = _Progress(title, total, unit)
        with Progress(*columns, console=self._console, transient=False) as bar:
            task = bar.add_task(escape(title), total=total, unit=unit, rate="", note="")

            def update(completed: float, note: str = "") -> None:
                now.update(completed)
                bar.update(task, completed=completed, rate=now.rate_text(), note=escape(note))

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
        write_stderr(text)

    def warn(self, text: str) -> None:
        self.say(f"warning: {text}")

    @contextmanager
    def progress(self, title: str, total: float, unit: str = "steps") -> Iterator[Update]:
        now = _Progress(title, total, unit)
        printed = now.started

        def update(completed: float, note: str = "") -> None:
            nonlocal printed
            now.update(completed)
            if time.monotonic() - printed >= PLAIN_INTERVAL:
                printed = time.monotonic()
                left = f"{(total - completed) / now.rate:,.0f} s left" if now.rate > 0 and completed < total else ""
                self.say(now.line(left, note))

        yield update
        self.say(now.line(f"{time.monotonic() - now.started:,.1f} s in all"))

    @contextmanager
    def board(self) -> Iterator[Board]:
        """A line for each run that ends, and the summary every PLAIN_INTERVAL seconds."""
        states: dict[str, str] = {}
        printed = time.monotonic()
        latest = ""

        def show(lines: Sequence[Line], summary: str) -> None:
            nonlocal printed, latest
            latest = summary
            for line in lines:
                before, states[line.name] = states.get(line.name), line.state
                if before not in (None, line.state) and line.state in ("done", "failed"):
                    self.say(f"{line.name}: {line.state}, {line.seconds:,.1f} s" + (line.note and f", {line.note}"))
            if time.monotonic() - printed >= PLAIN_INTERVAL:
                printed = time.monotonic()
                self.say(summary)

        yield show
        self.say(latest)


class NotebookReporter(PlainReporter):
    """One line for each progress in the output of a notebook's cell, renewed in its place."""

    @contextmanager
    def progress(self, title: str, total: float, unit: str = "steps") -> Iterator[Update]:
        from IPython.display import display

        now = _Progress(title, total, unit)
        text, shown = now.line(), now.started
        place = display({"text/plain": text}, raw=True, display_id=True)

        def update(completed: float, note: str = "") -> None:
            nonlocal text, shown
            now.update(completed)
            text = now.line(note)
            if time.monotonic() - shown >= NOTEBOOK_INTERVAL:
                shown = time.monotonic()
                place.update({"text/plain": text}, raw=True)

        yield update
        place.update({"text/plain": text}, raw=True)


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
