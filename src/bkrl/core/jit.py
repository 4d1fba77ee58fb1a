"""How kernels are compiled: once, kept on disk, and with a line for the person who waits.

Kernels are ordinary functions decorated with `kernel`, and with `helper` where only kernels call them. numba compiles a
kernel when it is first called. What it makes is kept in a folder beside the source, in the user's cache, or, where
neither can be written, in a temporary folder. A cache that no process has opened for two weeks is removed.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, wraps
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

import numba
from numba.core import event
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.compiler_lock import global_compiler_lock

from bkrl.core.activity import spoken
from bkrl.core.files import exclusive
from bkrl.core.reporter import Reporter

F = TypeVar("F", bound=Callable[..., Any])
Config = TypeVar("Config")
Result = TypeVar("Result")

Int: TypeAlias = Any
"""An integer in a kernel: an int64 or smaller in machine code. To a type checker NumPy's integers are no ints."""

COMPILING = "Compiling kernels: this happens once on a machine and takes up to half a minute."

KEPT_DAYS = 14
"""Days without use after which a cache is removed: every change to a source file begins another one."""

_CACHE = re.compile(r"kernels-[0-9a-f]{12}(\.[0-9a-f]+)?")


def _candidates(source_folder: Path) -> Iterator[Path]:
    if numba.config.CACHE_DIR:
        yield Path(numba.config.CACHE_DIR)
    yield source_folder / "__pycache__"
    yield Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "bkrl"
    shared = Path(tempfile.gettempdir()) / f"bkrl-{_user() or 0}"
    if _private(shared):
        yield shared


def _user() -> int | None:
    """The number of the user; None where users have none."""
    return os.getuid() if hasattr(os, "getuid") else None


def _private(folder: Path) -> bool:
    """Whether no other user can write to a folder in a public place: what is kept there is loaded as code."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
    except OSError:
        return False
    ours = _user() in (None, status.st_uid)
    return stat.S_ISDIR(status.st_mode) and ours and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _sources(folder: Path) -> list[bytes]:
    """The sources in a folder, of an env family all of its folders, and those elsewhere from which they import and
    that have helpers.
    """
    package = Path(__file__).parents[1]
    whole = package.joinpath(*folder.relative_to(package).parts[:2]) if folder.is_relative_to(package) else folder
    own = [source.read_bytes() for source in sorted(whole.rglob("*.py"))]
    names = {name.decode() for text in own for name in re.findall(rb"^from bkrl\.([\w.]+) import", text, re.M)}
    others = [package.joinpath(*name.split(".")).with_suffix(".py") for name in sorted(names)]
    return own + [text for one in others if one.is_file() and b"\n@helper" in (text := one.read_bytes())]


@cache
def _cache_folder(source_folder: Path) -> Path | None:
    """Where the kernels of one source folder are kept; None where nothing can be written.

    numba knows a function's own file only, so a kernel kept on disk would survive a change to a rule it calls in
    another file. The name of the folder therefore holds a fingerprint of all sources whose code a kernel may hold.
    """
    digest = hashlib.sha256(b"".join(_sources(source_folder)))
    for base in _candidates(source_folder):
        folder = base / f"kernels-{digest.hexdigest()[:12]}"
        if _writable(folder):
            with suppress(OSError):
                os.utime(folder)  # used today: loading a kernel leaves no trace by itself
            _remove_unused(base)
            return folder
    return None


def _remove_unused(base: Path) -> None:
    """Remove the caches in a folder that no process has opened for `KEPT_DAYS`.

    Several processes may do so at once, and one may open a cache just then: it goes in one step, by a new name, and
    numba, which finds its files gone, compiles and makes the folder again. What a kill leaves is old the next time.
    """
    before = time.time() - KEPT_DAYS * 86_400
    with suppress(OSError):
        for folder in [entry for entry in base.iterdir() if _CACHE.fullmatch(entry.name)]:
            with suppress(OSError):
                if folder.lstat().st_mtime < before:
                    doomed = folder.with_suffix(f".{secrets.token_hex(4)}")
                    shutil.rmtree(folder.rename(doomed), ignore_errors=True)


def kernel(function: F) -> F:
    """Compile a function to machine code at its first call; it runs without the GIL and is kept on disk."""
    with _kept_in(_cache_folder(Path(function.__code__.co_filename).parent)) as folder:
        compiled = numba.njit(function, cache=folder is not None, nogil=True, _nrt=_makes_arrays(function))
    if folder is not None:
        _compile_in_turn(compiled, folder)
    return cast(F, compiled)


@contextmanager
def _kept_in(folder: Path | None) -> Iterator[Path | None]:
    """numba keeps what is decorated inside the block in this folder."""
    configured = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(folder or "")
    try:
        yield folder
    finally:
        numba.config.CACHE_DIR = configured


@contextmanager
def kept_where_possible(package: str) -> Iterator[None]:
    """Import inside the block what imports `package`, which keeps compiled functions of its own on disk.

    numba cannot import such a package where neither its folder nor the user's cache can be written. It then keeps
    them beside our kernels, or, where there is no folder at all, leaves them uncompiled.
    """
    found = find_spec(package)
    source = Path(found.origin).parent if found and found.origin else Path(__file__).parent
    if _writable(source / "__pycache__"):
        yield
        return
    folder = _cache_folder(source)
    disabled = numba.config.DISABLE_JIT
    numba.config.DISABLE_JIT = disabled or folder is None
    try:
        with _kept_in(folder):
            yield
    finally:
        numba.config.DISABLE_JIT = disabled


def helper(function: F) -> F:
    """A function that only kernels call: it is compiled with them, once for each set of types, and not kept by itself.

    There is no code with which Python could call it, and division by zero is not looked for; both are much of what
    compiling takes. A test calls `kernel(function.py_func)`. A helper returns no array: see `_makes_arrays`.
    """
    return _inside(function, pipeline_class=_ForKernels)


def adding(function: F) -> F:
    """A helper that adds up in whatever order is quickest: several parts at once, the same ones in every call."""
    return _inside(function, fastmath={"reassoc"})


def _inside(function: F, **options: Any) -> F:
    without = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "_nrt": _makes_arrays(function)}
    compiled = numba.njit(function, nogil=True, error_model="numpy", **without, **options)
    _ignore_constants(compiled)
    return cast(F, compiled)


def _makes_arrays(function: Callable[..., Any]) -> bool:
    """Whether numba has to count who uses which array: that takes half the time of a step of BabyAI, and more."""
    return not {"arange", "astype", "copy", "empty", "full", "zeros"}.isdisjoint(function.__code__.co_names)


# What follows, up to `_compile_in_turn`, alone uses what numba does not document.


class _ForKernels(Compiler):  # type: ignore[misc]
    """Compiles a helper for kernels alone, which takes a quarter less: they optimise it anyway, and nobody calls it."""

    def __init__(self, typing: Any, target: Any, library: Any, *more: Any) -> None:
        super().__init__(typing, target, library or _Library(target.codegen(), "helper"), *more)

    def compile_extra(self, func: Any) -> Any:
        result = super().compile_extra(func)
        returned = result.signature.return_type
        if self.state.targetctx.data_model_manager[returned].contains_nrt_meminfo():
            raise TypeError(f"helper '{func.__name__}' returns an array, whose users are not counted: fill one instead")
        return result


class _Library(JITCodeLibrary):  # type: ignore[misc]
    """Code that is linked into kernels, and not made machine code by itself."""

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        self._ensure_finalized()
        return 0

    @property
    def codegen(self) -> Any:
        return self

    def set_env(self, name: str, environment: Any) -> None:
        pass


def _ignore_constants(compiled: Any) -> None:
    """Have a function compiled once for `f(1)` and `f(2)`, not once for each constant that it is called with.

    numba's documented way, `register_jitable`, does the same and takes 8 % longer to compile our engines.
    """
    of_types = compiled.get_call_template

    def of_plain_types(args: Any, kws: Any) -> Any:
        return of_types(tuple(map(numba.types.unliteral, args)), kws)

    compiled.get_call_template = of_plain_types


@helper
def write(to: Any, of: Any) -> None:
    """`to[:] = of`, but three seconds quicker to compile: numba's own compiles the message of an error that is none."""
    for i in range(len(to)):
        to[i] = of[i]


def _compile_in_turn(compiled: Any, folder: Path) -> None:
    """Have processes compile and keep a kernel one after the other: whoever waits finds what the first has made.

    numba offers no lock. It reads a kernel's index, chooses the name of a file and writes both, so two processes that
    keep different signatures at once would choose the same name, and from then on one signature would be answered with
    the code of the other.
    """
    compile, lock = compiled.compile, folder / f".{compiled.__module__}.{compiled.__name__}.lock"

    def compile_in_turn(signature: Any) -> Any:
        # the locks in the order in which a kernel that calls this one has them
        with global_compiler_lock, exclusive(lock), _interrupts_heard():
            return compile(signature)

    compiled.compile = compile_in_turn


@contextmanager
def _interrupts_heard() -> Iterator[None]:
    """Have Ctrl-C and SIGTERM end the block: LLVM calls Python back, and what is raised there is printed, no more."""
    before, heard = sys.unraisablehook, list[BaseException]()

    def hear(one: sys.UnraisableHookArgs) -> None:
        if isinstance(one.exc_value, KeyboardInterrupt):
            heard.append(one.exc_value)
        else:
            before(one)

    sys.unraisablehook = hear
    try:
        yield
    finally:
        sys.unraisablehook = before
        if heard:
            raise heard[0]


def _to_stderr(text: str) -> None:
    with suppress(OSError, ValueError, AttributeError):  # there may be no stderr, or a closed one
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


class _Announcer(event.Listener):  # type: ignore[misc]
    """Says once that a kernel is being compiled, because no folder holds it yet."""

    def __init__(self) -> None:
        self.say: Callable[[str], None] | None = _to_stderr

    def on_start(self, event: Any) -> None:
        dispatcher = (event.data or {}).get("dispatcher")
        if self.say is not None and dispatcher and dispatcher.py_func.__module__.startswith(("bkrl.", "opensimplex.")):
            say, self.say = self.say, None
            say(COMPILING)

    def on_end(self, event: Any) -> None:
        pass


_announcer = _Announcer()
event.register("numba:compile", _announcer)


@contextmanager
def announce_compilation(say: Callable[[str], None]) -> Iterator[None]:
    """Have `say` called with one sentence before the first kernel is compiled inside the `with` block, if any is.

    Outside of such blocks the sentence goes to stderr. It is said once to each.
    """
    before, _announcer.say = _announcer.say, say
    try:
        yield
    finally:
        said, _announcer.say = _announcer.say is None, before
        if said and before is _to_stderr:
            _announcer.say = None


def announced(stage: Callable[[Config, Reporter], Result]) -> Callable[[Config, Reporter], Result]:
    """A stage (config, reporter) whose reporter names the work that it has to wait for, that of the compiler too."""

    @wraps(stage)
    def run(config: Config, reporter: Reporter) -> Result:
        with announce_compilation(reporter.say), spoken(reporter.say):
            return stage(config, reporter)

    return run
