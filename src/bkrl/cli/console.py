"""Results on stdout: tables, JSON, text; and one line on stderr where there is none."""

import json
import math
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

# Characters that command a terminal or turn the direction of writing, but for tab and line feed.
_CONTROLS = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u202a-\\u202e\\u2066-\\u2069]")
# Columns of a pipe: more than any table has.
PIPED_WIDTH = 10_000
# Whether stdout has its one JSON document. An error is then printed on stderr only.
json_printed = False


def print_rows(header: Sequence[str], rows: Sequence[Sequence[Any]], as_json: bool, title: str = "") -> None:
    """Rows as a table or, for `--json`, as a list of objects."""
    if as_json:
        print_json([dict(zip(header, row, strict=True)) for row in rows])
    else:
        print_table(title, header, rows)


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """A table on stdout; numbers to the right; every cell is plain text, never markup.

    No word is broken in a table with a header: where the terminal is too narrow, each row becomes a list of its cells.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    screen = _stdout()
    texts = [[cell(value) for value in row] for row in rows]
    widths = _widths([header, *texts], screen.width) if any(header) else [None] * len(header)
    if not widths:
        if title:
            with _until_reader_leaves():
                screen.print(Text(visible(title), style="bold"))
        for row in rows:
            print_table("", ("", ""), list(zip(header, row, strict=True)))
        return
    table = Table(
        title=Text(visible(title), style="bold") if title else None,
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
    with _until_reader_leaves():
        screen.print(table)


def visible(text: str) -> str:
    """Text from elsewhere for a terminal: nothing in it moves the cursor or changes a colour."""
    return _CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text)


def _widths(rows: Sequence[Sequence[str]], screen: int) -> list[int | None]:
    """The width of each column: those with most room beside their longest word are wrapped until all fit on the screen;
    none when that would break a word.
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


def print_json(value: Any) -> None:
    """JSON on stdout, exactly."""
    global json_printed
    json_printed = True
    with _until_reader_leaves():
        sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def print_text(text: str) -> None:
    """Plain text on stdout: into a pipe exactly, on a terminal with control characters made visible."""
    shown = visible(text) if sys.stdout.isatty() else text
    with _until_reader_leaves():
        sys.stdout.write(shown if shown.endswith("\n") else shown + "\n")


def error(text: str) -> None:
    """One sentence on one line of stderr, control characters made visible."""
    write_stderr(f"bkrl: {visible(' '.join(text.splitlines()))}")


@contextmanager
def _until_reader_leaves() -> Iterator[None]:
    """Print on stdout. When its reader leaves (as `head` does), work goes on: the exit code does not depend on it."""
    try:
        yield
        sys.stdout.flush()
    except (BrokenPipeError, SystemExit) as problem:
        if not reader_left(problem):
            raise
        discard_stdout()


def reader_left(problem: BaseException) -> bool:
    """Whether an error means that the reader of a pipe has left; rich and Typer turn it into an exit."""
    return isinstance(problem, BrokenPipeError) or isinstance(problem.__context__, BrokenPipeError)


def discard_stdout() -> None:
    """Throw away what is printed from now on: its reader has left, or it cannot be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def write_stderr(line: str) -> None:
    """A line on stderr; where it cannot be written, the command goes on without it."""
    try:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


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
        return visible(json.dumps(value, ensure_ascii=False))
    return visible(str(value))


def _stdout() -> Any:
    from rich.console import Console

    # A piped table is for files and other programs: never wrapped to a terminal that is not there.
    return Console(highlight=False) if sys.stdout.isatty() else Console(highlight=False, width=PIPED_WIDTH)
