"""Kernels on disk: where they are kept, that the person who waits is told, and that old ones go."""

from __future__ import annotations

import ast
import ctypes
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from bkrl.core import jit
from bkrl.core.reporter import Reporter
from tests.commands import Started, bkrl


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for caches, and nothing remembered of others."""
    monkeypatch.setattr(jit, "_candidates", lambda source: iter([tmp_path]))
    jit._cache_folder.cache_clear()
    yield tmp_path
    jit._cache_folder.cache_clear()


def kept(folder: Path, name: str, days: float) -> Path:
    """A cache that was last used some days ago."""
    made = folder / name
    made.mkdir()
    (made / "f.nbi").write_text("an index")
    then = time.time() - days * 86_400
    os.utime(made, (then, then))
    return made


def test_kernels_without_a_writable_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    writable = tmp_path / "cache"

    def folder_among(*candidates: Path) -> Path | None:
        monkeypatch.setattr(jit, "_candidates", lambda source: iter(candidates))
        jit._cache_folder.cache_clear()
        return jit._cache_folder(Path(jit.__file__).parent)

    found = folder_among(blocked / "__pycache__", writable)
    assert found is not None
    assert found.parent == writable
    assert folder_among(blocked / "__pycache__", blocked / "x") is None

    shared = tmp_path / "shared"
    assert jit._private(shared)
    shared.chmod(0o777)
    assert not jit._private(shared)
    assert not jit._private(blocked)

    def add_one(x: int) -> int:
        return x + 1

    assert jit.kernel(add_one)(1) == 2  # compiled, kept nowhere
    jit._cache_folder.cache_clear()


def compile_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile a kernel of ours that no folder holds."""

    def double(x: float) -> float:
        return x * 2

    double.__module__ = "bkrl.envs.nowhere"
    monkeypatch.setattr(jit, "_cache_folder", lambda source: None)
    assert jit.kernel(double)(1.5) == 3.0


def test_compilation_is_announced_once_and_inside_the_block_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    with jit.announce_compilation(said.append):
        compile_one(monkeypatch)
        compile_one(monkeypatch)
        assert said == [jit.COMPILING]
    with pytest.raises(ZeroDivisionError), jit.announce_compilation(said.append):
        raise ZeroDivisionError
    compile_one(monkeypatch)
    assert said == [jit.COMPILING]


def test_an_inner_block_gives_the_word_back(monkeypatch: pytest.MonkeyPatch) -> None:
    outer: list[str] = []
    inner: list[str] = []
    with jit.announce_compilation(outer.append):
        with jit.announce_compilation(inner.append):
            compile_one(monkeypatch)
        assert (outer, inner) == ([], [jit.COMPILING])
        compile_one(monkeypatch)
    assert outer == [jit.COMPILING]


def test_outside_of_stages_stderr_is_told_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(jit._announcer, "say", jit._to_stderr)
    compile_one(monkeypatch)
    compile_one(monkeypatch)
    assert capsys.readouterr() == ("", f"{jit.COMPILING}\n")
    monkeypatch.setattr(jit._announcer, "say", jit._to_stderr)
    with jit.announce_compilation(lambda text: None):
        compile_one(monkeypatch)
    compile_one(monkeypatch)
    assert capsys.readouterr() == ("", "")  # whoever waited was told already


FIRST_STEP = """
import gymnasium
env = gymnasium.make("bkrl.envs:BabyAI-Text-GoToLocal-RedBall-S20")
env.reset(seed=0)
"""


@pytest.mark.slow
def test_gymnasium_make_tells_that_it_compiles(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FIRST_STEP]
    for told in (f"{jit.COMPILING}\n", ""):
        ran = subprocess.run(
            command, env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}, capture_output=True, text=True
        )
        assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", told)


def test_a_helper_is_compiled_once_for_all_constants(cache: Path) -> None:
    @jit.helper
    def added(x: int, y: int) -> int:
        return x + y

    @jit.kernel
    def added_twice(x: int) -> int:
        return added(added(x, 1), 2)

    assert added_twice(1) == 4
    assert len(added.overloads) == 1  # type: ignore[attr-defined]
    assert len(list(cache.rglob("*.nbi"))) == 1  # the kernel's alone


def test_a_helper_that_returns_an_array_is_refused(cache: Path) -> None:
    """Whoever calls it would not know that it has to give the array back, or would give back what was lent."""
    made = jit.helper(lambda: np.zeros(2))
    lent = jit.helper(lambda of: of[1:])
    with pytest.raises(Exception, match="returns an array"):
        jit.kernel(lambda: made()[0])()
    with pytest.raises(Exception, match="returns an array"):
        jit.kernel(lambda of: lent(of)[0])(np.zeros(2))


def test_a_kernel_that_makes_no_array_counts_none(cache: Path) -> None:
    first = jit.helper(lambda of: of[0] + 0)
    kernel = jit.kernel(lambda rows: first(rows[0]))
    assert kernel(np.ones((2, 2))) == 1
    assert all("NRT_incref" not in code for code in kernel.inspect_llvm().values())


def test_a_package_that_keeps_kernels_is_imported_where_nothing_can_be_written(tmp_path: Path) -> None:
    """numba's `cache=True` raises where it finds no folder. A file where a folder should be stops root, too."""
    installed = importlib.util.find_spec("opensimplex")
    assert installed is not None
    assert installed.origin is not None
    shutil.copytree(
        Path(installed.origin).parent, tmp_path / "opensimplex", ignore=shutil.ignore_patterns("__pycache__")
    )
    (tmp_path / "opensimplex" / "__pycache__").write_text("no folder")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    surroundings = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"} | {
        "PYTHONPATH": f"{tmp_path}",
        "HOME": os.devnull,
        "XDG_CACHE_HOME": os.devnull,
        "TMPDIR": str(temporary),
    }

    def kept_in(code: str) -> subprocess.CompletedProcess[str]:
        script = f"{code}; from opensimplex import internals; print(internals._noise3._cache.cache_path)"
        return subprocess.run([sys.executable, "-c", script], env=surroundings, capture_output=True, text=True)

    assert "no locator available" in kept_in("pass").stderr
    for module in ("reference", "textures; textures.tiles()"):
        ran = kept_in(f"from bkrl.envs.crafter import {module}")
        assert ran.returncode == 0, ran.stderr
        assert Path(ran.stdout.strip()).is_relative_to(temporary)


def test_a_stage_announces_by_its_reporter(monkeypatch: pytest.MonkeyPatch) -> None:
    class Listener(Reporter):
        def __init__(self) -> None:
            self.said: list[str] = []

        def say(self, text: str) -> None:
            self.said.append(text)

    @jit.announced
    def stage(config: str, reporter: Reporter) -> str:
        compile_one(monkeypatch)
        return config

    listener = Listener()
    assert stage("done", listener) == "done"
    assert listener.said == [jit.COMPILING]


@pytest.mark.parametrize("name", ["collect", "train_rs", "evaluate"])
def test_the_stages_that_play_announce(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    listening: list[object] = []

    @contextmanager
    def listen(say: Callable[[str], None]) -> Iterator[None]:
        listening.append(say)
        yield

    monkeypatch.setattr(jit, "announce_compilation", listen)
    reporter = Reporter()
    with pytest.raises(AttributeError):
        import_module(f"bkrl.stages.{name}").run(None, reporter)
    assert listening == [reporter.say]


def test_caches_of_older_sources_go_when_nobody_used_them_for_long(cache: Path) -> None:
    old = kept(cache, "kernels-0123456789ab", jit.KEPT_DAYS + 1)
    left_by_a_kill = kept(cache, "kernels-0123456789ac.0f0f0f0f", jit.KEPT_DAYS + 1)
    recent = kept(cache, "kernels-fedcba987654", jit.KEPT_DAYS - 1)
    of_others = [kept(cache, name, 1000) for name in ("module.cpython-311", "kernels", "kernels-of-another-tool")]
    own = jit._cache_folder(Path(jit.__file__).parent)
    assert sorted(cache.iterdir()) == sorted([*of_others, recent, own])
    assert not old.exists()
    assert not left_by_a_kill.exists()


def test_a_cache_in_use_does_not_grow_old(cache: Path) -> None:
    own = jit._cache_folder(Path(jit.__file__).parent)
    assert own is not None
    os.utime(own, (0, 0))
    (own / "f.nbi").write_text("an index")
    jit._cache_folder.cache_clear()
    assert jit._cache_folder(Path(jit.__file__).parent) == own
    assert (own / "f.nbi").exists()


def test_many_processes_may_remove_the_same_caches(tmp_path: Path) -> None:
    for number in range(50):
        kept(tmp_path, f"kernels-{number:012x}", jit.KEPT_DAYS + 1)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(jit._remove_unused, [tmp_path] * 8))
    assert not list(tmp_path.iterdir())
    jit._remove_unused(tmp_path / "nowhere")


def test_a_kernel_whose_cache_was_removed_is_compiled_and_kept_again(cache: Path) -> None:
    def doubled(x: float) -> float:
        return x * 2

    kernel = jit.kernel(doubled)
    own = jit._cache_folder(Path(doubled.__code__.co_filename).parent)
    assert own is not None
    shutil.rmtree(own)
    assert kernel(1.5) == 3.0
    assert list(own.rglob("*.nbi"))


TWICE = """
import sys
import time
from pathlib import Path
from numba.core import event
from bkrl.core.jit import kernel

@kernel
def doubled(x):
    return x * 2

with event.install_recorder("numba:compile") as recorder:
    Path(sys.argv[1]).touch()
    while not Path("go").exists():
        time.sleep(0.001)
    found = [doubled(x) for x in ((2, 1.5) if sys.argv[1] == "a" else (1.5, 2))]
assert sorted(found) == [3.0, 4], found
print(sum(one.is_start for _, one in recorder.buffer))
"""


def test_processes_compile_a_kernel_once_and_keep_both_of_its_signatures(tmp_path: Path) -> None:
    """numba would name one file for both, and a later process would run the code of the other signature."""
    (tmp_path / "twice.py").write_text(TWICE)
    started = [Started([tmp_path / "twice.py", name], tmp_path, NUMBA_CACHE_DIR=str(tmp_path)) for name in "ab"]
    for one, name in zip(started, "ab", strict=True):
        one.wait_for(name, tmp_path)
    (tmp_path / "go").touch()
    assert sum(int(one.done().stdout) for one in started) == 2
    later = bkrl(tmp_path / "twice.py", "c", cwd=tmp_path, NUMBA_CACHE_DIR=str(tmp_path))
    assert int(later.stdout) == 0


def test_a_change_to_any_source_beside_a_kernel_begins_another_cache(cache: Path, tmp_path: Path) -> None:
    """numba watches a kernel's own file alone; the rules it calls may stand in another."""
    sources = tmp_path / "sources"
    sources.mkdir()
    folders = []
    for text in ("x = 1", "x = 2"):
        (sources / "kernels.py").write_text("import rules")
        (sources / "rules.py").write_text(text)
        jit._cache_folder.cache_clear()
        folders.append(jit._cache_folder(sources))
    assert folders[0] != folders[1]


def test_a_fingerprint_reads_all_that_a_kernel_holds() -> None:
    """Functions and constants from other folders, too. envs/memory.py was one that it did not read."""
    source, elsewhere = Path(jit.__file__).parents[1], set()
    compiled = {"kernel", "helper", "adding"}
    for path in sorted(source.rglob("*.py")):
        tree = ast.parse(path.read_text()) if "bkrl.core.jit import" in path.read_text() else ast.Module([], [])
        functions = [one for one in tree.body if isinstance(one, ast.FunctionDef)]
        kernels = [one for one in functions if compiled & {ast.unparse(each) for each in one.decorator_list}]
        used = {one.id for each in kernels for one in ast.walk(each) if isinstance(one, ast.Name)} - {"Int"} - compiled
        for one in [one for one in tree.body if isinstance(one, ast.ImportFrom) and (one.module or "")[:5] == "bkrl."]:
            home = source.joinpath(*(one.module or "").split(".")[1:])
            for name in [alias.name for alias in one.names if (alias.asname or alias.name) in used]:
                places = (home / f"{name}.py", home.with_suffix(".py"), home / "__init__.py")
                read = next(place for place in places if place.is_file())  # a module beside others is one's own
                if path.parent not in (read.parent, home):
                    assert read.read_bytes() in jit._sources(path.parent), f"{path}: {one.module}"
                    elsewhere.add((one.module, path.parent.name))
    seen = [("bkrl.envs.memory", "babyai"), ("bkrl.envs.memory", "crafter"), ("bkrl.core.jit", "babyai")]
    assert {*seen, ("bkrl.envs.babyai", "bot"), ("bkrl.envs.babyai.rooms", "minigrid")} <= elsewhere


def test_an_interrupt_while_llvm_calls_back_ends_the_compilation(tmp_path: Path) -> None:
    """It was printed as "Exception ignored on calling ctypes callback", and work went on, or ended in an odd error."""

    def interrupted() -> None:
        raise KeyboardInterrupt

    class Compiled:
        __module__, __name__ = "m", "kernel"

        def compile(self, signature: bool) -> str:
            ctypes.CFUNCTYPE(None)(interrupted)()
            if signature:
                raise ValueError("no compiled object yet")
            return "compiled"

    before = sys.unraisablehook
    for signature in (False, True):
        compiled = Compiled()
        jit._compile_in_turn(compiled, tmp_path)
        with pytest.raises(KeyboardInterrupt):
            compiled.compile(signature)
    assert sys.unraisablehook is before
