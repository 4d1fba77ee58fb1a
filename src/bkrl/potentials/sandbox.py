"""Runs LLM-written potential programs in a locked process of their own, in batches, through shared memory.

A program defines `potential(observations, actions, valid)` on whole batches of windows and returns one number for
each, or `(numbers, {"component": numbers, ...})`.  It sees raw integers: observations (B, H+1, *obs_shape) int64,
actions (B, H) int64, valid (B, H+1) bool; `np` and `math` are there, nothing else is.

Layers, each on its own: (1) static allow-list check with line numbers; (2) reduced namespace, compiled from the checked
tree; (3) a fresh interpreter with an empty environment, limits on memory, CPU, file size, descriptors and processes,
no new privileges, dies with its parent, own network, IPC and user identity, Landlock without a single rule, seccomp
with a short list; (4) requests over pipes with a nonce, wall limit by SIGKILL, input mapped read-only by a seal;
(5) every result is checked for type, shape and finiteness, and `probation` for determinism and independence.

Covered: endless loops, memory and fork bombs, reading or writing files, network, environment and secrets, imports,
native code trying system calls, mutation of inputs, state kept between calls, wrong or non-finite results, forged
replies, a worker that dies, hangs or writes rubbish.
Not covered: bugs of the kernel itself, hardware side channels, a program whose numbers are valid but meaningless (the
certificate and the potential report are there for that); on systems other than Linux the kernel layers (level
"basic" says so), and there memory is limited only as far as RLIMIT_AS is honoured.
"""

from __future__ import annotations

import contextlib
import json
import math
import mmap
import os
import secrets
import select
import signal
import struct
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bkrl.errors import InputError, RunFailed
from bkrl.potentials import sandbox_check
from bkrl.windows import Windows

Level = Literal["strong", "good", "basic"]
LEVELS: tuple[Level, ...] = ("basic", "good", "strong")
CHUNK = 256  # windows the program sees in one call; a constant, so results cannot depend on the batch
MAX_COMPONENTS = 8
_INPUT_BYTES = 8 * 2**20
_REQUEST = struct.Struct("<QII")
_LOAD, _EVALUATE, _CHECK = 1, 2, 3
_OK, _REFUSED = 0, 1
_MAX_MESSAGE = 8192
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
    """What a program may use: wall seconds to start and load, wall seconds a call, MiB of memory, CPU seconds."""

    start: float = 30.0
    load: float = 5.0
    call: float = 10.0
    memory_mb: int = 512
    cpu_seconds: int = 3600


class Sandbox:
    """One program in one worker process.  Use as a context manager, or `close()`; garbage collection closes too.

    Args:
        source: the program's text.
        obs_shape: shape of one observation.
        horizon: H, past actions in a window.
        limits: see `Limits`.
        require: refuse to run below this level of isolation.
        static_check: False switches layers 1 and 2 off; only tests have a use for that.
        skip: kernel layers to leave out; only tests have a use for that.
        divisors: the program sees observations divided by these (one for each place of the last axis), as floats, and
            not the raw integers; only the published code's defect b1 has a use for that.

    Raises:
        ProgramRejected: the static check found problems.
        ProgramFailed: the program failed while it was loaded.
        RunFailed: the platform does not reach the required level, or no worker could be started.
    """

    def __init__(
        self,
        source: str,
        obs_shape: Sequence[int],
        horizon: int,
        *,
        limits: Limits | None = None,
        require: Level = "basic",
        static_check: bool = True,
        skip: frozenset[str] = frozenset(),
        divisors: Sequence[int] = (),
    ) -> None:
        try:
            sandbox_check.check_size(source)
        except sandbox_check.Rejected as error:
            raise ProgramRejected([(p.line, p.reason) for p in error.problems]) from None
        self.source = source
        self.obs_shape = tuple(obs_shape)
        self.horizon = horizon
        self.limits = limits or Limits()
        self._require = require
        self._static_check, self._skip, self._divisors = static_check, skip, divisors
        self._worker: _Worker | None = None
        self._busy_seconds = 0.0
        self.restarts = 0
        self._start()

    @property
    def layers(self) -> dict[str, str]:
        """Kernel layer → "on", or why it is not."""
        return dict(self._alive().layers)

    @property
    def level(self) -> Level:
        """strong, good or basic, by the layers that are on (`self_test` demonstrates them)."""
        return level_of(self._alive().layers)

    def __call__(self, windows: Windows) -> NDArray[np.float64]:
        """Raw values (B,) of the windows, the same for any batch size and order; `ProgramFailed` otherwise."""
        return self.evaluate(windows)[0]

    def evaluate(self, windows: Windows) -> tuple[NDArray[np.float64], dict[str, NDArray[np.float64]]]:
        """Raw values (B,) and the program's named components, each (B,)."""
        if windows.observations.shape[2:] != self.obs_shape or windows.horizon != self.horizon:
            raise InputError(
                f"The program was made for windows of horizon {self.horizon} and observations {self.obs_shape}; it got "
                f"horizon {windows.horizon} and {windows.observations.shape[2:]}."
            )
        distinct, inverse = windows.unique()
        everyone = np.arange(len(distinct) * (self.horizon + 1)).reshape(len(distinct), self.horizon + 1)
        views = distinct.observations.reshape(-1, *self.obs_shape)
        values, components = self.evaluate_views(views, everyone, distinct.actions, distinct.valid)
        return values[inverse], {name: column[inverse] for name, column in components.items()}

    def evaluate_views(
        self, views: NDArray[np.uint8], index: NDArray[np.int64], actions: NDArray[np.int64], valid: NDArray[np.bool_]
    ) -> tuple[NDArray[np.float64], dict[str, NDArray[np.float64]]]:
        """The same for B windows given as numbers (B, H+1) of views (M, *obs_shape), repetitions included."""
        count = len(index)
        values = np.empty(count)
        components: dict[str, NDArray[np.float64]] = {}
        capacity = self._alive().capacity
        for start in range(0, count, capacity):
            part = slice(start, min(start + capacity, count))
            results, names = self._evaluate_part(views, index[part], actions[part], valid[part])
            values[part] = results[0]
            for row, name in enumerate(names, start=1):
                components.setdefault(name, np.full(count, np.nan))[part] = results[row]
        return values, components

    def _evaluate_part(
        self, views: NDArray[np.uint8], index: NDArray[np.int64], actions: NDArray[np.int64], valid: NDArray[np.bool_]
    ) -> tuple[NDArray[np.float64], list[str]]:
        if self._busy_seconds > self.limits.cpu_seconds / 2:  # well before the CPU limit would end an honest program
            self.restart()
        began = time.monotonic()
        try:
            return self._request(views, index, actions, valid)
        except ProgramFailed as error:
            if error.kind != "killed":
                raise
            self.restart()  # a kill can come from outside (the machine ran out of memory): one second chance
            return self._request(views, index, actions, valid)
        finally:
            self._busy_seconds += time.monotonic() - began

    def _request(
        self, views: NDArray[np.uint8], index: NDArray[np.int64], actions: NDArray[np.int64], valid: NDArray[np.bool_]
    ) -> tuple[NDArray[np.float64], list[str]]:
        worker = self._alive()
        try:
            return worker.evaluate(views, index, actions, valid, self.limits.call)
        except ProgramFailed:
            if not worker.alive:
                worker.close()
            raise

    def restart(self) -> None:
        """Replace the worker by a fresh one with the same program."""
        self.close()
        self.restarts += 1
        self._start()

    def close(self) -> None:
        """End the worker."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _alive(self) -> _Worker:
        if self._worker is None or not self._worker.alive:
            self._start()
        if self._worker is None:
            raise RunFailed("The sandbox has no worker.")
        return self._worker

    def _start(self) -> None:
        worker = _Worker(
            self.obs_shape, self.horizon, self.limits, self._static_check, self._skip, False, self._divisors
        )
        try:
            reached = level_of(worker.layers)
            if LEVELS.index(reached) < LEVELS.index(self._require):
                raise RunFailed(
                    f"This system's sandbox reaches level '{reached}', '{self._require}' is required: "
                    f"{describe_layers(worker.layers)}."
                )
            worker.load(self.source, self.limits.load)
        except BaseException:
            worker.close()
            raise
        self._worker, self._busy_seconds = worker, 0.0


def check_source(source: str) -> list[tuple[int, str]]:
    """All (line, reason) problems the static check finds, empty when there are none; nothing of the program runs.

    The check itself runs in a locked worker, which is started on the first use and kept.
    """
    try:
        sandbox_check.check_size(source)
    except sandbox_check.Rejected as error:
        return [(p.line, p.reason) for p in error.problems]
    worker = _checking_worker()
    if not worker.alive:
        _checking_worker.cache_clear()
        worker = _checking_worker()
    try:
        worker.load(source, Limits().load, run=False)
    except ProgramRejected as error:
        return error.problems
    except ProgramFailed as error:  # the parser itself died: that is a reason too
        return [(error.line, error.reason)]
    return []


@cache
def _checking_worker() -> _Worker:
    return _Worker((1,), 0, Limits(), True, frozenset(), probe=False)


def probation(program: Sandbox, windows: Windows, seed: int = 0) -> None:
    """Behaviour checks before any training; `ProgramFailed` (kind "probation") names the first that fails.

    Checked bit for bit on a few hundred of the given windows: the same call twice, another order, other companions,
    one window alone, none at all, all-zero and all-255 observations, and the same answers from a fresh process.
    """
    rng = np.random.default_rng(seed)
    sample = windows[np.sort(rng.permutation(len(windows))[: 3 * CHUNK])]
    if len(sample) == 0:
        raise InputError("Probation needs at least one window.")

    def values(part: Windows) -> NDArray[np.float64]:
        # past the removal of duplicates, which would hide much
        index = np.arange(len(part) * (program.horizon + 1)).reshape(len(part), -1)
        return program.evaluate_views(
            part.observations.reshape(-1, *program.obs_shape), index, part.actions, part.valid
        )[0]

    def require(fine: bool, reason: str) -> None:
        if not fine:
            raise ProgramFailed("probation", reason)

    first = values(sample)
    require(np.array_equal(first, values(sample)), "the same windows gave other values the second time")
    order = rng.permutation(len(sample))
    moved = values(sample[order])
    require(
        np.array_equal(first[order], moved), "a value depends on the order or the company of its window in the batch"
    )
    few = min(7, len(sample))
    require(np.array_equal(first[:few], values(sample[:few])), "a value depends on how many windows are in the batch")
    require(first[0] == values(sample[:1])[0], "a value depends on how many windows are in the batch")
    for level, name in ((0, "all-zero"), (255, "all-255")):
        extreme = Windows(np.full_like(sample.observations, level), sample.actions, sample.valid)
        try:
            values(extreme)
        except ProgramFailed as error:
            if error.kind in {"timeout", "killed"} or level == 0:
                raise ProgramFailed("probation", f"{name} observations: {error.reason}", error.line) from None
    program.restart()
    require(np.array_equal(first, values(sample)), "a fresh process gives other values")


def level_of(layers: dict[str, str]) -> Level:
    """strong: every kernel layer; good: seccomp and limits; basic: a separate process with what limits there are."""
    on = {name for name, state in layers.items() if state == "on"}
    if {"limits", "namespaces", "landlock", "seccomp"} <= on:
        return "strong"
    return "good" if {"limits", "seccomp"} <= on else "basic"


def describe_layers(layers: dict[str, str]) -> str:
    """One clause for people: what is on, and why the rest is not."""
    on = [name for name, state in layers.items() if state == "on"]
    off = [f"{name} {state}" for name, state in layers.items() if state != "on"]
    return ", ".join([f"{' + '.join(on) or 'nothing'} on", *off])


def describe_level() -> str:
    """One line for `bkrl doctor`: the level this system demonstrates, and which layers make it up."""
    tested = self_test()
    return f"level {tested.level}: {describe_layers(tested.layers)}"


@dataclass(frozen=True)
class SelfTest:
    """What a probe worker could and could not do."""

    level: Level
    layers: dict[str, str]
    attempts: dict[str, str] = field(default_factory=dict)


def self_test(skip: frozenset[str] = frozenset()) -> SelfTest:
    """Start a worker that tries to open and write a file, open a socket, take 64 GiB and fork; what held is reported.

    A level is claimed only where every attempt it promises to stop did fail.
    """
    worker = _Worker((1,), 0, Limits(), True, skip, probe=True)
    try:
        attempts: dict[str, str] = dict(worker.receive(0, 10.0)[1]["probe"])
        try:
            attempts = dict(worker.receive(0, 10.0)[1]["probe"])
        except ProgramFailed as error:
            attempts["fork"] = f"refused ({error.reason})"
    finally:
        worker.close()
    level = level_of(worker.layers)
    held = {name for name, outcome in attempts.items() if outcome.startswith("refused")}
    if not {"open", "write", "socket", "fork"} <= held:
        level = "basic"
    return SelfTest(level, worker.layers, attempts)


class _Worker:
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
    ) -> None:
        rows, size = horizon + 1, math.prod(obs_shape)
        window_bytes = rows * size + 8 * horizon + rows
        self.capacity = max(1, min(32, _INPUT_BYTES // (window_bytes * CHUNK))) * CHUNK
        capacity = self.capacity
        bytes_in, bytes_out = max(capacity * window_bytes, 1), 8 * capacity * (1 + MAX_COMPONENTS)
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
                "max_components": MAX_COMPONENTS,
                "memory_bytes": limits.memory_mb * 2**20,
                "cpu_seconds": limits.cpu_seconds,
                "skip": sorted(skip),
                "static_check": static_check,
                "probe": probe,
                "divisors": list(divisors),
                "numpy_path": str(Path(np.__file__).parents[1]),
            }
            script = Path(__file__).with_name("sandbox_worker.py")
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
        size_obs = capacity * rows * size
        self._observations = np.frombuffer(self._input, np.uint8, size_obs).reshape(capacity, rows, *obs_shape)
        flat = np.frombuffer(self._input, np.uint8, capacity * horizon * 8, size_obs)
        self._actions = flat.view(np.int64).reshape(capacity, horizon)
        valid = np.frombuffer(self._input, np.uint8, capacity * rows, size_obs + capacity * horizon * 8)
        self._valid = valid.reshape(capacity, rows)
        self._out = np.frombuffer(self._output, np.float64).reshape(1 + MAX_COMPONENTS, capacity)
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

    def load(self, source: str, seconds: float, run: bool = True) -> None:
        text = source.encode()
        status, message = self._ask(_LOAD if run else _CHECK, len(text), text, seconds)
        if status == _REFUSED:
            raise ProgramRejected([(int(line), str(reason)) for line, reason in message["problems"]])
        self._check(status, message)

    def evaluate(
        self,
        views: NDArray[np.uint8],
        index: NDArray[np.int64],
        actions: NDArray[np.int64],
        valid: NDArray[np.bool_],
        seconds: float,
    ) -> tuple[NDArray[np.float64], list[str]]:
        count = len(index)
        np.take(views, index, axis=0, out=self._observations[:count], mode="clip")  # "raise" would copy once more
        self._actions[:count] = actions
        self._valid[:count] = valid
        status, message = self._ask(_EVALUATE, count, b"", seconds)
        self._check(status, message)
        names = [str(name) for name in message.get("components", [])][:MAX_COMPONENTS]
        values = self._out[: 1 + len(names), :count].copy()
        if not np.isfinite(values[0]).all():  # the worker looked too; its word is not enough
            raise ProgramFailed("returned", "the potential holds values that are not finite")
        return values, names

    def _check(self, status: int, message: dict[str, Any]) -> None:
        if status != _OK:
            kind = "raised" if status == 2 else "returned"
            raise ProgramFailed(kind, str(message.get("reason", "unknown reason")), int(message.get("line", 0)))

    def _ask(self, command: int, count: int, payload: bytes, seconds: float) -> tuple[int, dict[str, Any]]:
        nonce = secrets.randbits(64)
        try:
            os.write(self._request_fd, _REQUEST.pack(nonce, command, count) + payload)
        except OSError:
            raise self._dead() from None
        return self.receive(nonce, seconds)

    def receive(self, nonce: int, seconds: float) -> tuple[int, dict[str, Any]]:
        """The next reply, which must carry `nonce`; kills the worker when it is late or speaks nonsense."""
        deadline = time.monotonic() + seconds
        got, status, length = _REQUEST.unpack(self._read(_REQUEST.size, deadline, seconds))
        if got != nonce or status > 3 or length > _MAX_MESSAGE:
            self.close()
            raise ProgramFailed("killed", "the worker sent a forged or damaged reply")
        text = self._read(length, deadline, seconds)
        try:
            message = json.loads(text)
            if not isinstance(message, dict):
                raise ValueError
        except ValueError:
            self.close()
            raise ProgramFailed("killed", "the worker sent a damaged reply") from None
        return status, message

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
