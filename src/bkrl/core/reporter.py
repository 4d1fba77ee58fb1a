"""What a stage can say while it works. The default is silent; the command line passes a reporter that prints."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, Protocol


class Update(Protocol):
    """Set how much is done in all, with an optional short note."""

    def __call__(self, completed: float, note: str = "") -> None: ...


@dataclass(frozen=True)
class Line:
    """The state of one of many runs.

    Attributes:
        name: of the run.
        state: waiting until it can start, queued on a cluster, running, done or failed.
        done: steps done, of `total`; 0 of 0 where nothing is counted.
        total: steps in all.
        rate: steps a second.
        seconds: time since it was started.
        note: a short remark, such as why it failed.
    """

    name: str
    state: Literal["waiting", "queued", "running", "done", "failed"]
    done: float = 0.0
    total: float = 0.0
    rate: float = 0.0
    seconds: float = 0.0
    note: str = ""


def duration(seconds: float | None) -> str:
    """A length of time in words: "40 s", "12 min", "3.5 h"; an en dash for none."""
    if seconds is None:
        return "–"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def percent(share: float | None, digits: int = 0) -> str:
    """A share (0 to 1) in words: "85 %"; an en dash where it is not known (None, NaN)."""
    return "–" if share is None or math.isnan(share) else f"{100 * share:.{digits}f} %"


def percents(low: float | None, high: float | None, digits: int = 0) -> str:
    """The ends of an interval of shares in words: "71 to 92 %"; an en dash where there is none (None, NaN)."""
    return "–" if low is None or math.isnan(low) else f"{100 * low:.{digits}f} to {percent(high, digits)}"


class Board(Protocol):
    """Show the states of many runs, with a summary."""

    def __call__(self, lines: Sequence[Line], summary: str) -> None: ...


class Reporter:
    """The silent reporter: the interface, and what tests and libraries use."""

    def say(self, text: str) -> None:
        """One line for the person who started the run."""

    def warn(self, text: str) -> None:
        """One line about something that deserves attention but does not stop the run."""

    @contextmanager
    def progress(self, title: str, total: float, unit: str = "steps") -> Iterator[Update]:
        """A progress line from 0 to `total`, counted in `unit`, alive inside the `with` block."""

        def update(completed: float, note: str = "") -> None:
            del completed, note

        yield update

    @contextmanager
    def board(self) -> Iterator[Board]:
        """A live table of many runs, alive inside the `with` block."""

        def show(lines: Sequence[Line], summary: str) -> None:
            del lines, summary

        yield show
