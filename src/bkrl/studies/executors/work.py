"""What a worker does with a cell, wherever it runs."""

import time
import traceback
from importlib import import_module
from pathlib import Path

from bkrl.core.errors import BkrlError
from bkrl.core.files import unshare
from bkrl.core.reporter import Reporter
from bkrl.runs.folder import busy
from bkrl.studies.section import Cell

PATIENCE = 60.0
"""Seconds to wait for another process in the same run: one whose sweep was killed is about to stop."""


class LogReporter(Reporter):
    """Keeps what a stage says in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        unshare(path)
        path.touch()  # messages name the file, and a stage may say nothing

    def say(self, text: str) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")

    def warn(self, text: str) -> None:
        self.say(f"warning: {text}")


def work(cell: Cell, log: Path) -> str:
    """Run a cell; a complete one is left as it is. The sentence of its failure, or an empty string."""
    reporter = LogReporter(log)
    deadline = time.monotonic() + PATIENCE
    while busy(cell.run_dir) and time.monotonic() < deadline:
        time.sleep(0.5)
    try:
        import_module(f"bkrl.stages.{cell.stage}").run(cell.config, reporter)
    except BkrlError as problem:
        return str(problem)
    except Exception as problem:  # noqa: BLE001 - a bug in one cell is reported, the others go on
        reporter.say(traceback.format_exc())
        return f"{type(problem).__name__}: {problem} (see {log})"
    return ""
