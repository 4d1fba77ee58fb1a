"""`bkrl` or a script as a user runs it: a process of its own, forked from one that has imported the libraries it needs.

A new Python spends three seconds of a processor on imports. A fork spends none of them, knows nothing of the test that
asked for it, and what it registers, changes or leaves open ends with it. Where the start itself is tested, tests start
Python with `subprocess`.
"""

from __future__ import annotations

import atexit
import json
import multiprocessing
import os
import re
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.context import ForkServerProcess
from pathlib import Path

# Libraries alone, no module of bkrl: in a fork these begin as in a new process. Not transformers: each worker of the
# tests would spend three seconds on it, and few commands open a language model.
LIBRARIES = [
    "torch", "torch.optim", "numba", "numba.np.arraymath", "numba.np.linalg", "numba.np.npyimpl", "numba.typed",
    "numba.cpython.setobj", "numba.cpython.printimpl", "numba.cpython.randomimpl", "numba.cpython.iterators",
    "pyarrow.parquet", "gymnasium.vector", "minigrid", "crafter", "scipy.stats", "matplotlib.pyplot", "PIL.Image",
    "jinja2", "rich.progress", "rich.table", "typer.main", "pydantic", "safetensors.torch", "tokenizers", "openai",
]  # fmt: skip
_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(LIBRARIES)
_TOGETHER = "together"


@atexit.register
def _end_all() -> None:
    """Before multiprocessing waits for what a failed test has left behind."""
    for process in multiprocessing.active_children():
        process.kill()


def _script(words: Sequence[str]) -> None:
    sys.argv = list(words)
    sys.path.insert(0, str(Path(words[0]).resolve().parent))
    runpy.run_path(words[0], run_name="__main__")


def _work(
    words: Sequence[str], cwd: str, environment: Mapping[str, str], outputs: tuple[str, str], models_apart: bool
) -> None:
    """In the fork: the command, or the script that the first word names."""
    os.setsid()
    for descriptor, path in enumerate(outputs, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), descriptor)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    if words[0] == _TOGETHER:
        from bkrl.cli.main import run_command

        for line in json.loads(words[1]):
            code = 0
            if line[0].endswith(".py"):
                _script(line)
            else:
                sys.argv = ["bkrl", *line]
                code = run_command(line)
            for stream in (sys.stdout, sys.stderr):
                print(f"\0{code}\0", end="", file=stream, flush=True)
        return
    if words[0].endswith(".py"):
        _script(words)
        return
    if not models_apart and any(word.startswith(("hf:", "gguf:", "local:")) for word in words):
        from tests.models import compute_here

        compute_here()
    sys.argv = ["bkrl", *words]
    from bkrl.__main__ import main

    main()


class Started:
    """A command at work, in a session of its own.

    Attributes:
        args: its words.
        pid: of its process, which leads its group.
    """

    def __init__(
        self, words: Sequence[object], cwd: Path | None = None, *, models_apart: bool = False, **more: str
    ) -> None:
        """`more`: environment variables beside those of this process. `models_apart`: see `tests.models`."""
        self.args = [str(word) for word in words]
        self._said = tempfile.TemporaryDirectory(prefix="bkrl-said-")
        self._outputs = Path(self._said.name, "stdout"), Path(self._said.name, "stderr")
        for path in self._outputs:
            path.touch()
        places = tuple(map(str, self._outputs))
        given = (self.args, str(cwd or Path.cwd()), {**os.environ, **more}, places, models_apart)
        self._process: ForkServerProcess = _forks.Process(target=_work, args=given)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def said(self) -> tuple[str, str]:
        """stdout and stderr so far."""
        out, error = (path.read_text(errors="replace") for path in self._outputs)
        return out, error

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it is at work."""
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """To this process alone."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL, to it and to what it started; then it has ended."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:  # it has ended, or leads no group yet and has started nothing
            self._process.kill()
        self._process.join()

    def done(self, seconds: float = 600.0) -> subprocess.CompletedProcess[str]:
        """Wait for its end; AssertionError when it takes longer."""
        self._process.join(seconds)
        if self._process.exitcode is None:
            self.kill()
            raise AssertionError(f"bkrl {' '.join(self.args)} did not end: {self.said()[1]}")
        return subprocess.CompletedProcess(self.args, self._process.exitcode, *self.said())

    def gone(self, seconds: float = 300.0) -> None:
        """Wait for the end of it and of all that it started; AssertionError when something is left behind."""
        deadline = time.monotonic() + seconds
        self._process.join(seconds)
        with suppress(ProcessLookupError):
            while time.monotonic() < deadline:
                os.killpg(self.pid, 0)
                time.sleep(0.02)
            raise AssertionError(f"bkrl {' '.join(self.args)} left processes behind")

    def wait_for(self, pattern: str, folder: Path, count: int = 1) -> None:
        """Until so many files below `folder` match; AssertionError when the command ends before."""
        while len(list(folder.glob(pattern))) < count:
            assert self.poll() is None, self.said()[1]
            time.sleep(0.005)


def runs(pid: int) -> bool:
    """Whether a process is there and more than a zombie nobody waits for."""
    stat = Path(f"/proc/{pid}/stat")
    if Path("/proc/self/stat").exists():
        try:
            return stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"
        except (FileNotFoundError, ProcessLookupError):
            return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def bkrl(*words: object, cwd: Path | None = None, code: int = 0, **more: str) -> subprocess.CompletedProcess[str]:
    """What a command, or a script whose path is the first word, says; it must end with `code`."""
    done = Started(words, cwd, **more).done()
    assert done.returncode == code, done.stderr
    return done


def together(*lines: Sequence[object], cwd: Path, **more: str) -> list[subprocess.CompletedProcess[str]]:
    """What several commands or scripts say, one after the other in one process, which imports bkrl's modules once."""
    said = bkrl(_TOGETHER, json.dumps([list(map(str, line)) for line in lines]), cwd=cwd, **more)
    outs, errors = (re.findall(r"([^\0]*)\0(\d+)\0", text) for text in (said.stdout, said.stderr))
    return [
        subprocess.CompletedProcess(line, int(code), out, error)
        for line, (out, code), (error, _) in zip(lines, outs, errors, strict=True)
    ]
