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

import math
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bkrl.core.errors import InputError, RunFailed
from bkrl.data.distinct import distinct_rows, numbered
from bkrl.data.windows import Windows
from bkrl.sandbox.level import LEVELS, Level, describe_layers, level_of
from bkrl.sandbox.process import CHUNK, Limits, ProgramFailed, Worker
from bkrl.text.mission_words import MissionWords

Components = dict[str, NDArray[np.float64]]


class Sandbox:
    """One program in one worker process, started when it is first needed or entered as a context manager.

    `close()`, the end of the `with` block and garbage collection end it.

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
        words: of missions, for a program that has them as its fourth argument, (B, length) int64.
        memory: M fields of the memory of episodes, for a program that has them as its last argument, (B, M) int64.

    Starting raises:
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
        words: MissionWords | None = None,
        memory: int = 0,
    ) -> None:
        self.source, self.words, self.memory = source, words, memory
        self.obs_shape = tuple(obs_shape)
        self.horizon = horizon
        self.limits = limits or Limits()
        self._require = require
        self._static_check, self._skip, self._divisors = static_check, skip, divisors
        self._worker: Worker | None = None
        self._busy_seconds = 0.0

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

    def evaluate(self, windows: Windows) -> tuple[NDArray[np.float64], Components]:
        """Raw values (B,) and the program's named components, each (B,)."""
        if windows.observations.shape[2:] != self.obs_shape or windows.horizon != self.horizon:
            raise InputError(
                f"The program was made for windows of horizon {self.horizon} and observations {self.obs_shape}; it got "
                f"horizon {windows.horizon} and {windows.observations.shape[2:]}."
            )
        if len(windows) == 0:
            return np.zeros(0), {}
        actions = np.ascontiguousarray(windows.actions, "<u2").view(np.uint8)  # Crafter-Typed-Full has 260
        parts = [windows.observations, actions, windows.valid.astype(np.uint8)]
        if self.words is not None:
            parts.append(self.words.tokens(_missions(windows)))
        if self.memory:
            parts.append(_memory(windows))
        key = np.concatenate([part.reshape(len(windows), -1) for part in parts], axis=1)
        rows = key.view(np.dtype((np.void, key.shape[1]))).ravel()  # in whose order a bad value names its window
        _, first, inverse = np.unique(rows, return_index=True, return_inverse=True)
        values, components = self.evaluate_numbered(windows[first])
        return values[inverse], {name: column[inverse] for name, column in components.items()}

    def evaluate_numbered(self, windows: Windows) -> tuple[NDArray[np.float64], Components]:
        """The same for windows whose views are numbered; every window is evaluated, repetitions too."""
        if self.words is not None or self.memory:
            windows = with_told(windows, self.words, bool(self.memory))
        count = len(windows)
        values = np.empty(count)
        components: Components = {}
        capacity = self._alive().capacity
        for start in range(0, count, capacity):
            part = slice(start, min(start + capacity, count))
            results, names = self._evaluate_part(windows[part])
            values[part] = results[0]
            for row, name in enumerate(names, start=1):
                components.setdefault(name, np.full(count, np.nan))[part] = results[row]
        return values, components

    def _evaluate_part(self, windows: Windows) -> tuple[NDArray[np.float64], list[str]]:
        """At most as many as the worker takes at once."""
        if self._busy_seconds > self.limits.cpu_seconds / 2:  # well before the CPU limit would end an honest program
            self.restart()
        began = time.monotonic()
        seconds = self.limits.call * math.ceil(len(windows) / CHUNK)
        try:
            try:
                return self._alive().evaluate(windows, seconds)
            except ProgramFailed as error:
                if error.kind != "killed":
                    raise
                self.restart()  # a kill can come from outside (the machine ran out of memory): one second chance
                return self._alive().evaluate(windows, seconds)
        finally:
            self._busy_seconds += time.monotonic() - began

    def restart(self) -> None:
        """Replace the worker by a fresh one with the same program."""
        self.close()
        self._worker = self._started()

    def close(self) -> None:
        """End the worker."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def __enter__(self) -> Sandbox:
        self._alive()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _alive(self) -> Worker:
        if self._worker is None or not self._worker.alive:
            self.close()
            self._worker = self._started()
        return self._worker

    def _started(self) -> Worker:
        told = (0 if self.words is None else self.words.length, self.memory)
        worker = Worker(
            self.obs_shape, self.horizon, self.limits, self._static_check, self._skip, False, self._divisors, told
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
        self._busy_seconds = 0.0
        return worker


def _missions(windows: Windows) -> NDArray[np.object_]:
    if windows.missions is None:
        raise InputError("The program reads the mission, and these windows come without one.")
    return windows.missions


def _memory(windows: Windows) -> NDArray[np.uint8]:
    if windows.memory is None:
        raise InputError("The program reads the memory of episodes, and these windows come without one.")
    return windows.memory


def with_told(windows: Windows, words: MissionWords | None, memory: bool) -> Windows:
    """Windows of flat views after whose entries the words of the mission and the memory stand, where they are read; of
    rows before the episode, zeros.
    """
    told: list[NDArray[np.uint8]] = []
    if words is not None:
        said, texts = numbered(_missions(windows))
        told.append(words.tokens(texts)[said])
    if memory:
        told.append(_memory(windows))
    every = np.concatenate(told, axis=1)
    first, numbers = distinct_rows(every)
    table = np.concatenate([np.zeros((1, every.shape[1]), np.uint8), every[first]])
    pairs = windows.index * len(table) + np.where(windows.valid, numbers[:, None] + 1, 0)
    found, index = np.unique(pairs, return_inverse=True)
    views = windows.symbols.reshape(len(windows.symbols), -1)[found // len(table)]
    joined = np.concatenate([views, table[found % len(table)]], axis=1)
    return Windows(joined, index.reshape(pairs.shape), windows.actions, windows.valid)


def probation(program: Sandbox, windows: Windows, seed: int = 0) -> None:
    """Behaviour checks before any training; `ProgramFailed` (kind "probation") names the first that fails.

    Checked bit for bit on a few hundred of the given windows: the same call twice, another order, other companions,
    one window alone, all-zero and all-255 observations, and the same answers from a fresh process.
    """
    rng = np.random.default_rng(seed)
    sample = windows[np.sort(rng.permutation(len(windows))[: 3 * CHUNK])]
    if len(sample) == 0:
        raise InputError("Probation needs at least one window.")

    def values(part: Windows) -> NDArray[np.float64]:
        return program.evaluate_numbered(part)[0]  # to evaluate a repeated window once would hide much

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
        extreme = sample.showing(np.full_like(sample.observations, level))
        try:
            values(extreme)
        except ProgramFailed as error:
            if error.kind in {"timeout", "killed"} or level == 0:
                raise ProgramFailed("probation", f"{name} observations: {error.reason}", error.line) from None
    program.restart()
    require(np.array_equal(first, values(sample)), "a fresh process gives other values")
