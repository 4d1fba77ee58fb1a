"""What a stage may say while it works. Silent by default; the command line passes one that prints."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Update(Protocol):
    """Tell a progress line how much is done in all, with an optional short note."""

    def __call__(self, completed: float, note: str = "") -> None: ...


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
