"""The sandbox's worker process: locks itself, then checks, loads and evaluates one untrusted program.

Started by `bkrl.sandbox.process` as a fresh interpreter with an empty environment, never by fork (the
parent may hold API keys in memory).  `bkrl` is not importable here; the two sibling files are loaded by path before the
lock.

Argument: one JSON object with request_fd, reply_fd, input_fd, output_fd, capacity, chunk, horizon, obs_shape,
max_components, memory_bytes, cpu_seconds, skip, static_check, probe, divisors, told, numpy_path. `told`: so many last
entries of each flat observation are the words of the mission and, after them, the memory of the episode, [0, 0] where
the program reads neither; `view_shape` is that of the entries before.

Protocol (little endian): the parent writes `<QII` = nonce, command, count, and for LOAD `count` bytes of source; the
worker answers `<QII` = nonce, status, length and `length` bytes of JSON.  Arrays travel in shared memory.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import math
import mmap
import os
import struct
import sys
import types
import warnings
from collections.abc import Sequence
from typing import Any

REQUEST = struct.Struct("<QII")
LOAD, EVALUATE = 1, 2
OK, REFUSED, RAISED, BAD_RETURN = 0, 1, 2, 3
MAX_MESSAGE = 8192
FILENAME = "<program>"


def window_bytes(rows: int, shape: Sequence[int]) -> int:
    """What a window of `rows` observations takes in shared memory."""
    return rows * math.prod(shape) + 8 * (rows - 1) + rows


def inputs(np: Any, memory: Any, capacity: int, rows: int, shape: Sequence[int]) -> tuple[Any, Any, Any]:
    """Shared memory as `capacity` windows, all observations first: observations, actions and valid, see `Windows`."""
    ends = [0]
    for size in (rows * math.prod(shape), 8 * (rows - 1), rows):
        ends.append(ends[-1] + capacity * size)
    observations, actions, valid = (
        np.frombuffer(memory, np.uint8, stop - start, start) for start, stop in itertools.pairwise(ends)
    )
    actions = actions.view(np.int64).reshape(capacity, rows - 1)
    return observations.reshape(capacity, rows, *shape), actions, valid.reshape(capacity, rows)


def main() -> None:
    config: dict[str, Any] = json.loads(sys.argv[1])
    try:
        worker, layers = _prepare(config)
    except Exception as error:  # noqa: BLE001 - the parent has no other way to learn why there is no worker
        text = json.dumps({"reason": _clean(f"{type(error).__name__}: {error}")}).encode()
        os.write(config["reply_fd"], REQUEST.pack(0, RAISED, len(text)) + text)
        os._exit(1)
    worker.reply(0, OK, {"layers": layers})
    if config["probe"]:
        _probe(worker)
    worker.serve()


def _prepare(config: dict[str, Any]) -> tuple[_Worker, dict[str, str]]:
    here = os.path.dirname(os.path.abspath(__file__))
    checker = _load_by_path("check", here)
    locker = _load_by_path("lock", here)
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # read when numpy loads; a thread pool would need clone()
    os.environ["OMP_NUM_THREADS"] = "1"
    sys.path.append(config["numpy_path"])
    import numpy as np

    worker = _Worker(np, checker, config)
    worker.warm_up()
    if config["probe"]:
        import _socket  # noqa: F401 - after the lock nothing can be imported
    sys.path.clear()
    layers = locker.lock(
        worker.request_fd, worker.reply_fd, config["memory_bytes"], config["cpu_seconds"], frozenset(config["skip"])
    )
    return worker, layers


def _load_by_path(name: str, folder: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, os.path.join(folder, name + ".py"))
    if spec is None or spec.loader is None:
        raise ImportError(name)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _clean(text: str, limit: int = 300) -> str:
    return "".join(c if c.isprintable() else " " for c in text[:limit])


class _List(list[Any]):
    """A list in a constant: it indexes an array and equals another list as one does, which no tuple would."""

    def append(self, *_: Any) -> Any:
        raise TypeError("a module constant cannot be changed")

    extend = pop = __setitem__ = __iadd__ = __imul__ = append


def _frozen(value: Any) -> Any:
    """A constant, made anew, that cannot be changed, nor anything in it: no state survives a call."""
    if isinstance(value, dict):
        return types.MappingProxyType({key: _frozen(one) for key, one in value.items()})
    if isinstance(value, list | tuple):
        return (_List if isinstance(value, list) else tuple)(map(_frozen, value))
    return frozenset(value) if isinstance(value, set) else value


class _Worker:
    def __init__(self, np: Any, checker: Any, config: dict[str, Any]) -> None:
        self.np, self.checker = np, checker
        self.request_fd, self.reply_fd = config["request_fd"], config["reply_fd"]
        self.chunk, self.static_check = config["chunk"], config["static_check"]
        self.program: Any = None
        capacity, rows = config["capacity"], config["horizon"] + 1
        shape = tuple(config["obs_shape"])
        source = mmap.mmap(config["input_fd"], capacity * window_bytes(rows, shape), prot=mmap.PROT_READ)
        sink = mmap.mmap(config["output_fd"], 8 * capacity * (1 + config["max_components"]))
        self.observations, self.actions, self.valid = inputs(np, source, capacity, rows, shape)
        self.out = np.frombuffer(sink, np.float64).reshape(1 + config["max_components"], capacity)
        self.divisors = np.array(config["divisors"]) if config["divisors"] else None
        kind = np.int64 if self.divisors is None else np.float64
        self.told, self.view_shape = config["told"], tuple(config["view_shape"])
        self.chunk_observations = np.zeros((self.chunk, rows, *shape), kind)
        self.chunk_actions = np.zeros((self.chunk, rows - 1), np.int64)
        self.chunk_valid = np.zeros((self.chunk, rows), bool)
        for fd in (config["input_fd"], config["output_fd"]):
            os.close(fd)

    def warm_up(self) -> None:
        """Run, before the lock, whatever numpy imports lazily: afterwards no file can be opened any more."""
        np = self.np
        warnings.simplefilter("ignore")
        np.seterr(all="ignore")
        small = np.arange(6.0).reshape(2, 3)
        for name in ("sum", "mean", "std", "var", "min", "max", "any", "all", "prod", "argmax", "argmin", "cumsum"):
            getattr(small, name)()
            getattr(small, name)(axis=1)
        small.clip(0, 1), small.round(2), small.astype("float64"), small.astype("int64"), small.dot(small.T)
        for call in (
            np.median, np.ptp, np.linalg.norm, np.unique, np.gradient, np.nanmean, np.nanmedian, np.nanstd, np.nanmax,
            np.argsort, np.corrcoef, np.histogram, np.average, np.diff, np.trace, np.nansum, np.flatnonzero,
        ):  # fmt: skip
            call(small)
        np.percentile(small, 50), np.quantile(small, 0.5), np.einsum("ij,kj->ik", small, small)
        np.tensordot(small, small.T, 1), np.pad(small, 1), np.piecewise(small, [small > 1], [1, 0])
        np.isin(small, [1.0]), np.union1d(small, small), np.polyfit([0, 1], [0, 1], 1), np.select([small > 1], [small])
        for broken in (
            lambda: small + "a", lambda: np.sum(small, axis=5), lambda: np.zeros(10**15), lambda: small @ small,
            lambda: small.reshape(5), lambda: np.add(small, 1, out=np.broadcast_to(0.0, (2, 3))), lambda: small[9],
            lambda: np.concatenate([small, np.zeros(3)]), lambda: np.asarray([[1], [1, 2]]), lambda: np.dtype("zz"),
            lambda: np.add(small, 1, casting="no", dtype=np.int8), lambda: np.array([10**400]).astype(float),
        ):  # fmt: skip
            try:
                broken()
            except Exception:  # noqa: BLE001 - each is meant to fail, only its lazy imports matter
                continue
        import unicodedata  # the tokenizer imports it at the first non-ASCII name

        unicodedata.name("a")
        with contextlib.suppress(self.checker.Rejected):
            self.checker.check_program("def potential(a, b, c):\n    return\u00e9 + (")

    def namespace(self) -> dict[str, Any]:
        import builtins

        if not self.static_check:  # the layers below must hold alone; tests switch this one off to see that they do
            return {"__builtins__": builtins, "np": self.np, "math": math, "__name__": "program"}
        np = types.SimpleNamespace(**{name: vars(self.np)[name] for name in self.checker.NUMPY})
        np.linalg = types.SimpleNamespace(**{name: vars(self.np.linalg)[name] for name in self.checker.NUMPY_LINALG})
        mathematics = types.SimpleNamespace(**{name: vars(math)[name] for name in self.checker.MATH})
        allowed = {name: vars(builtins)[name] for name in self.checker.BUILTINS}
        allowed["AssertionError"] = AssertionError  # what an assert statement raises
        return {"__builtins__": allowed, "np": np, "math": mathematics, "__name__": "program"}

    def reply(self, nonce: int, status: int, message: dict[str, Any]) -> None:
        text = json.dumps(message).encode()[:MAX_MESSAGE]
        os.write(self.reply_fd, REQUEST.pack(nonce, status, len(text)) + text)

    def read(self, size: int) -> bytes:
        parts = b""
        while len(parts) < size:
            part = os.read(self.request_fd, size - len(parts))
            if not part:
                os._exit(0)  # the parent closed the pipe or died
            parts += part
        return parts

    def serve(self) -> None:
        while True:
            nonce, command, count = REQUEST.unpack(self.read(REQUEST.size))
            try:
                if command == EVALUATE:
                    status, message = self.evaluate(count)
                else:
                    status, message = self.load(self.read(count).decode("utf-8", "replace"))
            except BaseException as error:  # noqa: BLE001 - nothing the program raises may end the worker
                status, message = RAISED, self.describe(error)
            self.reply(nonce, status, message)

    def describe(self, error: BaseException) -> dict[str, Any]:
        line = 0
        trace = error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == FILENAME:
                line = trace.tb_lineno
            trace = trace.tb_next
        try:
            text = _clean(str(error))
        except Exception:  # noqa: BLE001 - an exception's text may itself fail
            text = ""
        return {"line": line, "reason": f"{type(error).__name__}: {text}" if text else type(error).__name__}

    def load(self, source: str) -> tuple[int, dict[str, Any]]:
        if self.static_check:
            try:
                tree = self.checker.check_program(source, self.checker.parameters(*map(bool, self.told)))
            except self.checker.Rejected as error:
                problems = [[problem.line, _clean(problem.reason, 200)] for problem in error.problems]
                return REFUSED, {"problems": problems}
        else:
            tree = source
        # compiled from the checked tree, so that no encoding cookie or other trick of the text matters
        code = compile(tree, FILENAME, "exec", dont_inherit=True)
        space = self.namespace()
        exec(code, space)  # noqa: S102 - this process exists to do it
        program = space.get(self.checker.ENTRY)
        if not callable(program):
            return BAD_RETURN, {"line": 0, "reason": f"no function named {self.checker.ENTRY} is defined"}
        constants = {name: value for name, value in space.items() if name != "__builtins__"}

        def call(*arguments: Any) -> Any:
            space.update(_frozen(constants))  # anew, since `list.append` could still change a list
            return program(*arguments)

        self.program = call
        return OK, {}

    def evaluate(self, count: int) -> tuple[int, dict[str, Any]]:
        """Windows in equal chunks, the last one padded, so that a result cannot depend on the batch it came in."""
        np = self.np
        names: list[str] | None = None
        for start in range(0, count, self.chunk):
            stop = min(start + self.chunk, count)
            used = stop - start
            for target, source in (
                (self.chunk_observations, self.observations),
                (self.chunk_actions, self.actions),
                (self.chunk_valid, self.valid),
            ):
                target.flags.writeable = True
                target[:used] = source[start:stop]
                if self.divisors is not None and target is self.chunk_observations:
                    target[:used] /= self.divisors
                if used < self.chunk:
                    target[used:] = target[0]
                target.flags.writeable = False
            result = self.program(*self.arguments())
            components: Any = {}
            if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict):
                result, components = result
            problem = self.store(0, "the potential", result, start, used)
            named = {_clean(str(name), 40): value for name, value in components.items()}
            if problem is None and names is None:
                names = list(named)[: len(self.out) - 1]
            if problem is None:
                for row, name in enumerate(names or [], start=1):
                    if name not in named:  # by the first chunk's names, whatever the others leave out or rearrange
                        self.out[row, start : start + used] = np.nan
                    else:
                        problem = problem or self.store(row, f"component {name!r}", named[name], start, used)
            if problem is not None:
                return BAD_RETURN, {"line": 0, "reason": _clean(problem)}
        finite = np.isfinite(self.out[0, :count])
        if not finite.all():
            first = int(np.flatnonzero(~finite)[0])
            value = float(self.out[0, first])
            bad = int(count - finite.sum())
            reason = f"{bad} of {count} values are not finite (window {first}: {value})"
            return BAD_RETURN, {"line": 0, "reason": reason}
        return OK, {"components": names or []}

    def arguments(self) -> tuple[Any, ...]:
        """What the program is called with; what it is told beside is the same in all valid rows of a window."""
        if not any(self.told):
            return self.chunk_observations, self.chunk_actions, self.chunk_valid
        words, memory = self.told
        views = self.chunk_observations[..., : -(words + memory)]
        views = views.reshape(*views.shape[:2], *self.view_shape)
        last = self.chunk_observations[:, -1, -(words + memory) :]
        parts = [part.copy() for part in (last[:, :words], last[:, words:]) if part.shape[1]]
        for part in (views, *parts):
            part.flags.writeable = False
        return views, self.chunk_actions, self.chunk_valid, *parts

    def store(self, row: int, what: str, result: Any, start: int, used: int) -> str | None:
        """Write one returned array to shared memory; the sentence that says what is wrong with it, or None."""
        np = self.np
        if result is None:
            return f"{what} returned None; a return statement is missing"
        if isinstance(result, dict | str | bytes):
            return f"{what} returned {type(result).__name__}, not an array of {self.chunk} numbers"
        try:
            array = np.asarray(result)
        except (ValueError, OverflowError, TypeError):
            return f"{what} returned a {type(result).__name__} that is not an array of numbers"
        if array.dtype.kind not in "biuf":
            return f"{what} returned dtype {array.dtype}, not numbers"
        if array.shape != (self.chunk,):
            return f"{what} returned shape {array.shape}, not one number for each window ({self.chunk},)"
        self.out[row, start : start + used] = array[:used]
        return None


def _probe(worker: _Worker) -> None:
    """Try what must not work and report it: a level is claimed only where these attempts fail."""
    outcome: dict[str, str] = {}

    def attempt(name: str, action: Any) -> None:
        try:
            action()
            outcome[name] = "allowed"
        except (OSError, ImportError, MemoryError, ValueError) as error:
            outcome[name] = f"refused ({type(error).__name__})"

    import _socket

    attempt("open", lambda: os.open("/dev/null", os.O_RDONLY))
    attempt("write", lambda: os.open("/tmp/bkrl-sandbox-probe", os.O_WRONLY | os.O_CREAT))
    attempt("socket", lambda: _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM))
    attempt("memory", lambda: bytearray(1 << 36))
    worker.reply(0, OK, {"probe": outcome})
    try:  # last: where seccomp is on this kills the process, which is what the parent wants to see
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        outcome["fork"] = "allowed"
    except OSError as error:
        outcome["fork"] = f"refused ({type(error).__name__})"
    worker.reply(0, OK, {"probe": outcome})
    os._exit(0)


if __name__ == "__main__":
    main()
