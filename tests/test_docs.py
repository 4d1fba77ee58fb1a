"""Documents say what the code says: generated pages, commands, flags, defaults, files, names."""

import ast
import re
import shlex
import subprocess
import tomllib
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.main import get_command

import bkrl
from bkrl.cli.main import app, run_command
from bkrl.cli.train import named as method_named
from bkrl.envs.sets import FIRST, SECOND
from bkrl.llm.prices import find_price
from bkrl.studies.study import plan
from bkrl.verbs import VERBS
from tests.commands import bkrl as command_line
from tests.sources import parsed

ROOT = Path(__file__).parents[1]
FIRST_PAGE = ROOT / "README.md"
PAGES = [
    FIRST_PAGE,
    ROOT / "CHANGELOG.md",
    *(path for folder in ("docs", "results") for path in sorted((ROOT / folder).rglob("*.md"))),
]
LONGEST = 40_000
"""Bytes of the longest page in docs/ and results/."""
SAMPLES = ROOT / "src" / "bkrl" / "runs" / "samples" / "README.md"
MANY_LINES = {ROOT / "results" / "glam.md", ROOT / "results" / "models.md"}
# Files that a reader is told to write, and flags of other programs.
OWN_FILES = {"my.toml", "prices.toml"}
OF_OTHERS = {"--alg", "--nproc-per-node", "--logdir", "--project", "--install-completion", "--version", "--help"}


def named(pages):
    return pytest.mark.parametrize("page", pages, ids=lambda page: page.relative_to(ROOT).as_posix())


def spans(page):
    """The inline code of a page, each span on one line."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", text)]


def command_lines(page):
    """The command lines of a page that stand in blocks: fenced as shell, or indented."""
    text = page.read_text()
    blocks = re.findall(r"```(?:sh|bash|console)\n(.*?)```", text, re.S) + re.findall(
        r"^    (?:\$ )?bkrl .*", text, re.M
    )
    for line in "\n".join(blocks).replace("\\\n", " ").splitlines():
        for part in line.split("&&"):
            words = shlex.split(part.split(" # ")[0].split(" > ")[0], comments=True)
            if words[:1] == ["bkrl"] and len(words) > 1:
                yield words[1:]


@cache
def commands():
    return get_command(app).commands


def resolve(words):
    """The command that some words begin with, its name, and the words left; None for `data`."""
    two = " ".join(words[:2])
    if two in commands():
        return commands()[two], two, words[2:]
    command = commands().get(words[0])
    if words[0] in ("train", "train-rs"):
        method, left = method_named(words[1:])
        return command.get_command(None, method or "ppo"), words[0], left
    if hasattr(command, "commands"):
        return command.commands.get(words[1]) if len(words) > 1 else None, two, words[2:]
    return command, words[0], words[1:]


def flags_of(command):
    return {flag for p in command.params if p.param_type_name == "option" for flag in (*p.opts, *p.secondary_opts)}


def all_commands():
    for command in commands().values():
        subcommands = hasattr(command, "list_commands") and command.list_commands(None)
        yield from [command.get_command(None, name) for name in subcommands] if subcommands else [command]


def test_generated_pages_are_up_to_date():
    command_line(ROOT / "docs" / "generate.py", "--check")


@named([SAMPLES, *(pytest.param(page, marks=pytest.mark.slow) if page in MANY_LINES else page for page in PAGES)])
def test_every_command_line_parses(page, monkeypatch, capsys):
    """The pipeline's verbs also refuse flags without effect, so they are run, with stages that do nothing."""
    stage = SimpleNamespace(run=lambda config, reporter: None, outlook=lambda config: None)
    monkeypatch.setattr("bkrl.cli.main.import_module", lambda name: stage)
    monkeypatch.setattr("bkrl.cli.main.labels.label", lambda config, reporter: None)
    for words in command_lines(page):
        command, name, left = resolve(words)
        assert command is not None, words
        if name in VERBS and name != "reproduce":
            assert run_command(words) == 0, f"{words}: {capsys.readouterr().err}"
        else:
            command.make_context(name, [word for word in left if word != "..."])


def test_the_readme_shows_the_whole_pipeline():
    assert {words[0] for words in command_lines(PAGES[0])} >= set(VERBS) - {"reproduce"}


@cache
def known_flags():
    """Of all commands and scripts."""
    scripts = [
        *(ROOT / "benchmarks").glob("*.py"),
        *(ROOT / "docs").glob("*.py"),
        *(ROOT / "results").glob("*.py"),
        *(ROOT / "tests").rglob("*.py"),
        *(ROOT / "src").rglob("verify.py"),
    ]
    known = OF_OTHERS.union(*map(flags_of, all_commands()))
    return known | {flag for path in scripts for flag in re.findall(r'"(--[a-z-]+)"', path.read_text())}


@named([*PAGES, SAMPLES])
def test_commands_and_flags_in_the_text_exist(page):
    for span in spans(page):
        assert set(re.findall(r"(?<!\S)--[a-z][a-z-]*", span)) <= known_flags(), span
        words = span.split()
        if words[0] == "bkrl" and len(words) > 1 and not words[1].startswith("-"):
            if "|" in span or not {"METHOD", "mine"}.isdisjoint(words):
                continue
            command, _, left = resolve(words[1:])
            assert command is not None or words[1:] in (["data", "…"], ["cache"], ["data"], ["cache", "…"]), span
            if command is not None:
                assert {word.split("=")[0] for word in left if word.startswith("--")} <= flags_of(command), span


@named(PAGES)
def test_defaults_in_tables_are_the_defaults(page):
    """A table whose first column is a flag marks its default."""
    for flag, body in re.findall(r"^\| `(--[a-z-]+)` \|.*\n\|[-|]+\n((?:\|.*\n)+)", page.read_text(), re.M):
        marked = re.findall(r"^\| `([^`]+)` \(default\)", body, re.M)
        [default] = {
            p.default for command in all_commands() for p in command.params if flag in p.opts and p.default is not None
        }
        assert marked == [default], flag


@named([*PAGES, SAMPLES])
def test_every_file_that_is_named_exists(page):
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files"], capture_output=True, text=True, check=True).stdout
    tracked = listed.split()
    for span in spans(page):
        for word in span.split():
            if re.fullmatch(r"[a-z_0-9][a-z_0-9./-]*\.(py|toml|sh|md)", word) and word not in OWN_FILES:
                there = any(path == word or path.endswith(f"/{word}") for path in tracked)
                assert there or (ROOT / word).exists(), f"{page.name}: {word}"


def test_links_between_documents_lead_somewhere():
    for page in [*PAGES, SAMPLES]:
        for target, part in re.findall(r"\]\(([^)#]*)(#[^)]*)?\)", page.read_text()):
            if target.startswith(("http:", "https:")):
                continue
            there = page.parent / target if target else page
            assert there.exists(), f"{page.name} → {target}"
            if part:
                titles = re.findall(r"^#+ (.*)", there.read_text(), re.M)
                anchors = [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles]
                assert part[1:] in anchors, f"{page.name} → {target}{part}"


def test_the_page_for_developers_has_a_place_for_every_module():
    text = (ROOT / "docs" / "extending.md").read_text()
    shown = text[text.index("```\nsrc/bkrl/") :].split("```")[1]
    package = ROOT / "src" / "bkrl"
    for path in package.iterdir():
        if path.name.startswith("__") or path.name == "py.typed":
            continue
        name = path.name + "/" * path.is_dir()
        assert re.search(rf"(?<!\S){re.escape(name)}(?!\S)", shown), f"{name} is not in What is where"


def test_no_page_is_too_long():
    lengths = {page.relative_to(ROOT).as_posix(): page.stat().st_size for page in PAGES[2:]}
    assert {name: length for name, length in lengths.items() if length > LONGEST} == {}


def test_the_changelog_is_what_a_user_must_know():
    assert len((ROOT / "CHANGELOG.md").read_text().splitlines()) <= 200


def test_every_page_is_linked_from_its_index():
    for folder in (ROOT / "docs", ROOT / "results", ROOT / "results" / "log"):
        index = (folder / "README.md").read_text()
        for page in folder.glob("*.md"):
            assert page.name == "README.md" or f"]({page.name})" in index, page


def test_no_docstring_only_refers_to_another():
    """One that overrides and says nothing of its own has none: readers find the contract's."""
    for path in (ROOT / "src").rglob("*.py"):
        assert not re.search(r'^\s*"""See (the class|`[\w.]+`)\."""$', path.read_text(), re.M), path


def test_the_citation_names_this_version():
    cited = dict(re.findall(r"^(\w[\w-]*): (.+)$", (ROOT / "CITATION.cff").read_text(), re.M))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {key: cited[key] for key in ("title", "version", "license")} == {
        "title": project["name"],
        "version": project["version"],
        "license": project["license"],
    }


def test_ids_of_gymnasium_are_written_in_one_way():
    """Without the second bkrl/ a level of minigrid is minigrid's own env."""
    for page in PAGES:
        for wanted in re.findall(r'gym\.make(?:_vec)?\("([^"]*)"', page.read_text()):
            assert wanted.startswith("bkrl.envs:bkrl/"), f"{page.name}: {wanted}"


def test_the_readme_links_the_indexes():
    text = FIRST_PAGE.read_text()
    for page in ("docs/README.md", "results/README.md", "results/log/README.md", "CHANGELOG.md"):
        assert f"]({page})" in text, page


def test_names_in_the_page_for_developers_exist():
    source = "\n".join(path.read_text() for path in [*(ROOT / "src").rglob("*.py"), ROOT / "tests" / "test_floors.py"])
    for span in spans(ROOT / "docs" / "extending.md"):
        if re.fullmatch(r"_?[A-Za-z]\w*", span):
            assert re.search(rf"\b{span}\b", source), span


def test_names_that_programs_in_the_documents_take_from_bkrl_exist():
    for page in PAGES:
        for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.S):
            tree = ast.parse(block)
            assert set(re.findall(r"\bbkrl\.([A-Za-z_]+)\(", block)) <= set(bkrl.__all__), page.name
            for module, name in (
                (node.module, one.name)
                for node in ast.walk(tree)
                if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("bkrl")
                for one in node.names
            ):
                path = ROOT / "src" / module.replace(".", "/")
                source = parsed(path / "__init__.py" if path.is_dir() else path.with_suffix(".py"))
                made = (node for node in source.body if isinstance(node, ast.ClassDef | ast.FunctionDef))
                assert name in {node.name for node in made}, f"{page.name}: {module}.{name}"


def test_make_help_knows_every_target():
    text = (ROOT / "Makefile").read_text()
    targets = set(re.search(r"\.PHONY: (.*)", text)[1].split()) - {"help"}
    assert targets <= set(re.findall(r"make ([a-z-]+)", text))


def test_the_program_in_the_readme_trains(tmp_path):
    [code] = [
        block for block in re.findall(r"```python\n(.*?)```", PAGES[0].read_text(), re.S) if "import bkrl" in block
    ]
    short = code.replace("100_000", "2_048")
    assert short != code
    (tmp_path / "program.py").write_text(short)
    assert re.match(r"[01]\.\d+ \[.*\]", command_line(tmp_path / "program.py", cwd=tmp_path).stdout)


def test_ratios_in_the_readme_stand_in_the_results():
    results = "".join(path.read_text() for path in (ROOT / "results").glob("*.md"))
    ratios = re.findall(r"(?:at most )?\d\.\d\d \(\d\.\d\d to \d\.\d\d\)", PAGES[0].read_text())
    assert ratios
    assert not [ratio for ratio in ratios if ratio not in results]


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "docs" / page).read_text(), re.S)


def test_the_study_in_the_documents_can_be_planned(tmp_path):
    """Its parts are shown one after the other; the list of entries takes the place of the first one."""
    whole, entries, models, tasks, slurm = blocks("studies.md", "toml")
    document = tomllib.loads(whole + tasks + slurm)
    document["world"][0]["algs"] += tomllib.loads(entries)["algs"][1:]
    found = {cell.run_dir.relative_to(tmp_path).as_posix() for cell in plan(document, tmp_path).cells}
    assert {"babyai/data", "babyai/rm-pref-shuffled", "babyai/redball/coin-s1", "babyai/key/bk-pref-s5"} <= found
    found = {cell.run_dir.relative_to(tmp_path).as_posix() for cell in plan(tomllib.loads(models), tmp_path).cells}
    assert {"three/lm-P2", "three/clone-s1", "three/cloned-s2"} <= found


def test_the_sets_in_the_documents_are_those_of_the_program():
    rows = re.findall(r"^\| (\w+) \| (.*) \| (.*) \|$", (ROOT / "docs" / "studies.md").read_text(), re.M)
    cells = {name: found for name, *found in rows if name in ("seeds", "Crafter", "MiniGrid", "BabyAI")}
    for column, held in enumerate((FIRST, SECOND)):
        listed = [
            re.sub(r" \(.*", "", one)
            for name in ("Crafter", "MiniGrid", "BabyAI")
            for one in cells[name][column].split(", ")
        ]
        assert sorted(listed) == sorted(held.tasks)
        assert cells["seeds"][column] == held.seeds


def test_the_price_list_in_the_documents_is_read(tmp_path):
    text = next(one for one in blocks("endpoints.md", "toml") if "[[price]]" in one)
    (tmp_path / "prices.toml").write_text(text)
    price = find_price({"kind": "openai", "host": "api.example.com", "model": "qwen-3-8b"}, tmp_path / "prices.toml")
    assert price is not None
    assert price.input == 0.10


def test_models_in_the_examples_have_a_price_and_no_end():
    for name in re.findall(r"openai:(gpt\S+)", (ROOT / "docs" / "endpoints.md").read_text()):
        price = find_price({"kind": "openai", "host": "api.openai.com", "model": name})
        assert price is not None
        assert price.ends is None, name
