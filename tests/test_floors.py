"""The house rules that a reader relies on: floors, one home for each heavy library, quick help, no pickles."""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.sources import parsed

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "bkrl"

FLOORS = [
    "core", "stats", "runs", "envs", "data", "text", "llm", "sandbox", "labelers", "goals", "agents", "potentials",
    "rewards", "inspect", "learn", "methods", "verbs", "report", "stages", "studies", "serve", "cli", "api", "__main__",
]  # fmt: skip
"""From the ground up, one folder (or module) a floor, so no two of them need each other."""
HOMES = {
    "openai": {"llm/openai.py"},
    "typer": {
        "cli/main.py",
        "cli/options.py",
        "cli/train.py",
        *(f"cli/commands/{path.name}" for path in (SOURCE / "cli/commands").glob("*.py")),
    },
    "rich": {"cli/console.py", "cli/progress.py"},
    "transformers": {
        "core/hub.py",
        "llm/scoring.py",
        "llm/weights.py",
        "text/encoders.py",
        "agents/language/models.py",
        "agents/language/vocabulary.py",
    },
    "peft": {"agents/language/adapters.py"},
    "websockets": {"serve/openenv.py"},
    "mcp": {"serve/mcp.py"},
}


@cache
def modules() -> dict[str, Path]:
    return {
        ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
        for path in sorted(SOURCE.rglob("*.py"))
        if path != SOURCE / "__init__.py"
        and path.parents[1] != SOURCE / "runs" / "samples"  # those are programs of models
    }


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """All statements below a node, wherever they stand, without what stands in them: most of a tree is that."""
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        for one in getattr(node, name, ()):
            yield one
            yield from statements(one)


@cache
def imports(path: Path) -> frozenset[str]:
    found = set()
    for node in statements(parsed(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            # `from package import module` is an import of the module, not of all that the package holds.
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner.removeprefix("bkrl.") in modules() else node.module)
    return frozenset(found)


def floor_of(module: str) -> int:
    """The floor of the folder that a dotted name below bkrl lies in."""
    folder = module.split(".")[0]
    assert folder in FLOORS, f"{folder} stands on no floor: add it to FLOORS"
    return FLOORS.index(folder)


def test_no_import_runs_upward():
    for module, path in modules().items():
        own = floor_of(module)
        for name in imports(path):
            other = name.removeprefix("bkrl.")
            if not name.startswith("bkrl."):
                continue
            there = floor_of(other)
            assert there <= own, f"{module} (floor {own}) imports {other} (floor {there})"
            if module.startswith("stages.") and other.startswith("stages."):
                assert other.split(".")[1] == module.split(".")[1], f"{module} imports another stage"


@cache
def looked_at(path: Path) -> tuple[set[str], list[ast.ImportFrom]]:
    """What a module binds outside its functions and classes, with the modules beside it where it is a package; and
    what it imports from others, inside functions too.
    """
    tree = parsed(path)
    found, ahead = set(), list(tree.body)
    while ahead:
        node = ahead.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        else:
            ahead += ast.iter_child_nodes(node)
    if path.name == "__init__.py":
        found |= {beside.stem for beside in path.parent.iterdir()}
    return found, [node for node in statements(tree) if isinstance(node, ast.ImportFrom)]


def test_every_imported_name_exists():
    """Imports inside functions too, which nothing else looks at before the function runs."""
    for path in sorted(
        one for folder in ("src", "tests", "benchmarks", "examples") for one in (ROOT / folder).rglob("*.py")
    ):
        for node in looked_at(path)[1]:
            if not (node.module or "").startswith(("bkrl.", "tests.")):
                continue
            base = (ROOT if node.module.startswith("tests.") else ROOT / "src").joinpath(*node.module.split("."))
            home = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
            if base.is_dir() and not home.exists():
                continue  # a folder without a module of its own, as some of the tests are
            assert home.exists(), (
                f"{path.relative_to(ROOT)}:{node.lineno} imports from {node.module}, which is not there"
            )
            known = looked_at(home)[0]
            missing = {alias.name for alias in node.names} - known
            assert not missing or "__getattr__" in known, f"{path.relative_to(ROOT)}:{node.lineno}: {missing}"


def test_ppo_knows_nothing_of_language_models_captions_or_parquet():
    known = imports(SOURCE / "learn" / "ppo.py")
    assert not {
        name
        for name in known
        if name.startswith(("bkrl.llm", "bkrl.text", "bkrl.envs.babyai", "bkrl.data.dataset", "pyarrow"))
    }


@pytest.mark.parametrize("library", HOMES)
def test_each_library_has_one_home(library):
    homes = {
        path.relative_to(SOURCE).as_posix()
        for path in modules().values()
        if any(name == library or name.startswith(library + ".") for name in imports(path))
    }
    assert homes <= HOMES[library]


def test_labelers_never_import_torch():
    for path in (SOURCE / "labelers").rglob("*.py"):
        assert "torch" not in {name.split(".")[0] for name in imports(path)}


def test_help_imports_nothing_heavy():
    code = (
        "import sys, json\nfrom bkrl.cli.main import run_command\nrun_command(['--help'])\n"
        "sys.stderr.write(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in json.loads(done.stderr)}
    heavy = {"torch", "numba", "pyarrow", "gymnasium", "transformers", "openai", "numpy", "matplotlib"}
    assert not loaded & heavy


def test_no_pickles_and_no_exec_outside_the_sandbox():
    for name, path in modules().items():
        used = imports(path)
        assert not used & {"pickle", "cloudpickle", "dill", "shelve", "marshal"}, name
        if name == "sandbox.worker":
            continue
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("exec", "eval"), f"{name} calls {node.func.id}"
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                assert isinstance(node.value, ast.Constant)
                assert node.value.value is False


def test_the_repository_speaks_of_the_project_alone():
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files"], capture_output=True, text=True)
    for name in listed.stdout.split():
        path = ROOT / name
        if path.suffix in {".py", ".md", ".toml", ".txt", ".html"} and path.exists() and path != Path(__file__):
            text = path.read_text()
            for place in (ROOT, Path.home()):
                assert len(place.parts) < 2 or f"{place}/" not in text, name
