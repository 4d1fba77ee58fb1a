"""A sandboxed program's process, seen from its parent: start it, speak with it, end it.

Requests and replies go over pipes, numbers through shared memory. Whatever the worker (`worker.py`) says is
looked at as if an enemy had written it.
"""

import contextlib
import json
import math
import mmap
import os
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bkrl.core.errors import InputError, RunFailed
from bkrl.data.windows import Windows
from bkrl.sandbox.check import Rejected, check_size
from bkrl.sandbox.worker import EVALUATE, LOAD, MAX_MESSAGE, OK, RAISED, REFUSED, REQUEST, inputs, window_bytes

CHUNK = 256  # windows the program sees in one call; a constant, so results cannot depend on the batch
MAX_COMPONENTS = 8
_INPUT_BYTES = 8 * 2**20
_SAID = {"reason": str, "line": int, "components": list, "problems": list, "layers": dict, "probe": dict}
_F_ADD_SEALS, _SEALS = 1033, 0x02 | 0x04 | 0x10  # SHRINK, GROW, FUTURE_WRITE


class ProgramRejected(InputError):
    """The static check refused the program; `problems` are (line, reason) pairs, all of them."""

    def __init__(self, problems: Sequence[tuple[int, str]]) -> None:
        self.problems = list(problems)
        reasons = "; ".join(f"line {line}: {reason}" if line else reason for line, reason in self.problems)
        super().__init__(f"The program was refused: {reasons}.")


class ProgramFailed(RunFailed):
    """The program raised, was killed or returned something unusable.

    Attributes:
        kind: "raised", "timeout", "killed", "returned" or "probation".
        line: the program's line, 0 where there is none.
        reason: what happened, one clause.
    """

    def __init__(self, kind: str, reason: str, line: int = 0) -> None:
        self.kind, self.reason, self.line = kind, reason, line
        where = f" in line {line}" if line else ""
        verb = {"raised": "failed", "timeout": "was stopped", "killed": "was killed", "probation": "is not usable"}
        super().__init__(f"The program {verb.get(kind, 'returned something unusable')}{where}: {reason}.")


@dataclass(frozen=True)
class Limits:
    """What a program may use: wall seconds to start and load, wall seconds a call (each sees CHUNK windows), MiB of
    memory, CPU seconds; and how many components may come back.
    """

    start: float = 30.0
    load: float = 5.0
    call: float = 10.0
    memory_mb: int = 512
    cpu_seconds: int = 3600
    components: int = MAX_COMPONENTS


class Worker:
    """The process, its pipes and its shared memory."""

    def __init__(
        self,
        obs_shape: Sequence[int],
        horizon: int,
        limits: Limits,
        static_check: bool,
        skip: frozenset[str],
        probe: bool,
        divisors: Sequence[int] = (),
        told: tuple[int, int] = (0, 0),
    ) -> None:
        view_shape = obs_shape
        if any(told):  # words of the mission and the memory stand after the view's entries
            obs_shape = (math.prod(view_shape) + sum(told),)
        if sys.platform == "win32":
            raise RunFailed(
                "Programs of a language model run in a sandbox that needs Linux or macOS: use WSL on Windows, or "
                "labels of another --variant (pref, goal)."
            )
        rows = horizon + 1
        size = window_bytes(rows, obs_shape)
        self.capacity = capacity = max(1, min(32, _INPUT_BYTES // (size * CHUNK))) * CHUNK
        bytes_in, bytes_out = capacity * size, 8 * capacity * (1 + limits.components)
        input_fd, output_fd = _shared_memory(bytes_in), _shared_memory(bytes_out)
        request_read, request_write = os.pipe()
        reply_read, reply_write = os.pipe()
        theirs = (request_read, reply_write, input_fd, output_fd)
        try:
            self._input, self._output = mmap.mmap(input_fd, bytes_in), mmap.mmap(output_fd, bytes_out)
            if sys.platform.startswith("linux"):
                import fcntl

                with contextlib.suppress(OSError):  # a temporary file, where memfd_create is missing, has no seals
                    fcntl.fcntl(input_fd, _F_ADD_SEALS, _SEALS)
            config = {
                "request_fd": request_read,
                "reply_fd": reply_write,
                "input_fd": input_fd,
                "output_fd": output_fd,
                "capacity": capacity,
                "chunk": CHUNK,
                "horizon": horizon,
                "obs_shape": list(obs_shape),
                "max_components": limits.components,
                "memory_bytes": limits.memory_mb * 2**20,
                "cpu_seconds": limits.cpu_seconds,
                "skip": sorted(skip),
                "static_check": static_check,
                "probe": probe,
                "divisors": list(divisors),
                "told": list(told),
                "view_shape": list(view_shape),
                "numpy_path": str(Path(np.__file__).parents[1]),
            }
            script = Path(__file__).with_name("worker.py")
            # -I would also ignore PYTHONHASHSEED, without which the order of sets differs between processes
            self._process = subprocess.Popen(
                [sys.executable, "-S", "-s", "-P", "-B", str(script), json.dumps(config)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={"PYTHONHASHSEED": "0"},
                cwd="/",
                pass_fds=theirs,
                start_new_session=True,  # Ctrl-C reaches the parent, which then ends the worker
            )
        except OSError as error:
            os.close(request_write)
            os.close(reply_read)
            raise RunFailed(f"The sandbox worker could not be started ({error.strerror}).") from None
        finally:
            for fd in theirs:
                os.close(fd)
        self._request_fd, self._reply_fd = request_write, reply_read
        os.set_blocking(reply_read, False)
        self._finalizer = weakref.finalize(self, _end, self._process, request_write, reply_read)
        self._observations, self._actions, self._valid = inputs(np, self._input, capacity, rows, obs_shape)
        self._out = np.frombuffer(self._output, np.float64).reshape(1 + limits.components, capacity)
        try:
            status, message = self.receive(0, limits.start)
            self._check(status, message)
            self.layers: dict[str, str] = dict(message["layers"])
        except ProgramFailed as error:
            raise RunFailed(f"The sandbox worker could not be started ({error.reason}).") from None

    @property
    def alive(self) -> bool:
        return self._finalizer.alive and self._process.poll() is None

    def close(self) -> None:
        self._finalizer()

    def load(self, source: str, seconds: float) -> None:
        """Check, compile and run the program's text; `ProgramRejected` or `ProgramFailed` says why it did not work."""
        try:
            check_size(source)
        except Rejected as error:
            raise ProgramRejected([(p.line, p.reason) for p in error.problems]) from None
        text = source.encode()
        status, message = self._ask(LOAD, len(text), text, seconds)
        if status == REFUSED:
            raise ProgramRejected([(int(line), str(reason)) for line, reason in message.get("problems", [])])
        self._check(status, message)

    def evaluate(self, windows: Windows, seconds: float) -> tuple[NDArray[np.float64], list[str]]:
        """Values and components (1 + C, B) of at most `capacity` windows, and the C components' names."""
        count = len(windows)
        # "raise" would copy once more
        np.take(windows.symbols, windows.index, axis=0, out=self._observations[:count], mode="clip")
        self._actions[:count] = windows.actions
        self._valid[:count] = windows.valid
        status, message = self._ask(EVALUATE, count, b"", seconds)
        self._check(status, message)
        names = message.get("components", [])[: len(self._out) - 1]
        values = self._out[: 1 + len(names), :count].copy()
        if not np.isfinite(values[0]).all():  # the worker looked too; its word is not enough
            raise ProgramFailed("returned", "the potential holds values that are not finite")
        return values, names

    def _check(self, status: int, message: dict[str, Any]) -> None:
        if status != OK:
            kind = "raised" if status == RAISED else "returned"
            raise ProgramFailed(kind, message.get("reason", "unknown reason"), message.get("line", 0))

    def _ask(self, command: int, count: int, payload: bytes, seconds: float) -> tuple[int, dict[str, Any]]:
        nonce = secrets.randbits(64)
        try:
            os.write(self._request_fd, REQUEST.pack(nonce, command, count) + payload)
        except OSError:
            raise self._dead() from None
        return self.receive(nonce, seconds)

    def receive(self, nonce: int, seconds: float) -> tuple[int, dict[str, Any]]:
        """The next reply, which must carry `nonce`; kills the worker when it is late or speaks nonsense."""
        deadline = time.monotonic() + seconds
        got, status, length = REQUEST.unpack(self._read(REQUEST.size, deadline, seconds))
        if got != nonce or status > 3 or length > MAX_MESSAGE:
            self.close()
            raise ProgramFailed("killed", "the worker sent a forged or damaged reply")
        text = self._read(length, deadline, seconds)
        try:
            return status, _message(text)
        except (ValueError, RecursionError):
            self.close()
            raise ProgramFailed("killed", "the worker sent a damaged reply") from None

    def _read(self, size: int, deadline: float, seconds: float) -> bytes:
        parts = b""
        poller = select.poll()
        poller.register(self._reply_fd, select.POLLIN)
        while len(parts) < size:
            left = deadline - time.monotonic()
            if left <= 0 or not poller.poll(math.ceil(left * 1000)):
                self.close()
                raise ProgramFailed("timeout", f"it took longer than {seconds:g} s")
            try:
                part = os.read(self._reply_fd, size - len(parts))
            except BlockingIOError:
                continue
            if not part:
                raise self._dead()
            parts += part
        return parts

    def _dead(self) -> ProgramFailed:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=2.0)
        code = self._process.returncode
        self.close()
        if code is None or code >= 0:
            return ProgramFailed("killed", f"its process ended by itself with status {code}")
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        why = {
            "SIGSYS": "it made a forbidden system call",
            "SIGSEGV": "it accessed memory it must not touch",
            "SIGXCPU": "it used up its CPU time",
            "SIGKILL": "it was killed from outside, perhaps for lack of memory",
        }.get(name, "its process died")
        return ProgramFailed("killed", f"{why} ({name})")


def _message(text: bytes) -> dict[str, Any]:
    """What a reply says; ValueError where our worker would never say it."""
    message = json.loads(text)
    if not isinstance(message, dict):
        raise ValueError("no object")
    for name, kind in _SAID.items():
        if name in message and not isinstance(message[name], kind):
            raise ValueError(name)
    problems = message.get("problems", [])
    if not all(isinstance(problem, list) and [type(one) for one in problem] == [int, str] for problem in problems):
        raise ValueError("problems")
    words = [message.get("reason", ""), *message.get("components", []), *(reason for _, reason in problems)]
    if not all(isinstance(one, str) and one.isprintable() for one in words):
        raise ValueError("words")
    return message


def _shared_memory(size: int) -> int:
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("bkrl", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    else:
        fd, name = tempfile.mkstemp()
        os.unlink(name)
    os.ftruncate(fd, size)
    return fd


def _end(process: subprocess.Popen[bytes], request_fd: int, reply_fd: int) -> None:
    os.close(request_fd)
    os.close(reply_fd)
    if process.poll() is None:
        process.kill()
    process.wait()
