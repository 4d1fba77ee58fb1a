"""The pages of results and their index, results/pages.py."""

from __future__ import annotations

import json
import re
import shutil
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote

import pyarrow as pa
import pytest
from PIL import Image

from bkrl.core.config import ReportConfig
from bkrl.core.errors import InputError, UsageError
from bkrl.core.files import atomic_write, read_json, to_json, write_table
from bkrl.core.reporter import Reporter
from bkrl.envs.housekeep.episodes import to_columns
from bkrl.envs.housekeep.sampling import draw_episodes
from bkrl.report.model import Cost, Results, Said, Timings
from bkrl.runs.record import Run
from bkrl.stages import report
from tests.report.synthetic import KEY, RED, evaluate, study, train_rs

_SPEC = spec_from_file_location("results_pages", Path(__file__).parents[1] / "results" / "pages.py")
assert _SPEC is not None
assert _SPEC.loader is not None
markdown = module_from_spec(_SPEC)
_SPEC.loader.exec_module(markdown)
write_results = markdown.write_results
PAGES = {"one": "red-balls.md", "two": "keys.md"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two reports: a study with controls, and a second env with few seeds."""
    root = tmp_path_factory.mktemp("made")
    first = study(root / "a", range(1, 4))
    second = [train_rs(root / "b", alg, seed, 4e5, KEY) for alg in ("ppo", "rnd") for seed in (1, 2)]
    for name, runs, title in (("one", first, "Red | balls"), ("two", second, "Keys")):
        report.run(ReportConfig(runs=tuple(runs), out=root / name, title=title), Reporter())
    return root


def written(made: Path, out: Path, names: tuple[str, ...] = ("one", "two")) -> str:
    """The pages one after the other."""
    _, problems = write_results([made / name for name in names], out)
    assert problems == []
    return "".join((out / page).read_text() for page in (PAGES[name] for name in names))


def test_the_page_says_what_the_runs_say(made: Path, tmp_path: Path):
    text = written(made, tmp_path)
    assert text.index("# Red | balls") < text.index("# Keys")
    for said in (
        "No gain over plain PPO is shown; 1 of 3 methods was faster, not significantly",
        "hand-written heuristics, not a language model", f"## {RED}", f"## {KEY}",
        "| **bk-code** | pbrs | 3 |", "| _bk-pref (shuffled)_ | pbrs |", "against its control", "no guarantee",
        "## Forms of shaping", "## Cost", "seeds 1, 2, 3", "There are only 2 seeds",
    ):  # fmt: skip
        assert said in text, said
    for name in re.findall(r'(?:src|srcset)="([^"]+)"', text):
        with Image.open(tmp_path / name) as image:
            assert image.width > 500
        assert (tmp_path / name).stat().st_size < 120_000
    for line in (line for line in text.split("\n") if line.startswith("|")):
        assert not re.search(r"\bnan\b|None", line), line
    assert str(made) not in re.sub(r"`[^`]*`", "", text)  # no place on this machine outside commands


def test_the_money_of_training_is_told_too():
    costs = [Cost("collect", 1, 8, None, None, None), Cost("train-rs", 1, 8, 30, 1000, 12.34)]
    lines = markdown._costs(costs, Timings([]))
    assert lines[-2].endswith("| – | – | – |")
    assert lines[-1].endswith("| 30 | 1,000 | 12.34 |")


def test_a_report_with_verdicts_of_another_rule_is_refused(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(markdown, "FORMAT", 4)
    with pytest.raises(InputError, match="verdicts follow another rule; make it again with the command that bkrl show"):
        write_results([made / "one"], tmp_path)
    assert not any(tmp_path.iterdir())


def test_results_are_read_as_they_were_written(made: Path):
    for name, kind in (("results.json", Results), ("timings.json", Timings)):
        path = made / "one" / name
        assert to_json(read_json(path, kind)) == path.read_text()


@pytest.mark.parametrize(
    ("name", "place", "value", "said"),
    [
        ("results.json", ("threshold",), "high", r"threshold must be of type float, not 'high'"),
        (
            "results.json",
            ("envs", 0, "rows", 0, "final"),
            None,
            r"envs\[0\].rows\[0\].final must be a table",
        ),
        ("results.json", ("envs", 0, "rows", 1, "ratio", "bound"), 3, r"ratio.bound must be of type str, not 3"),
        ("results.json", ("costs",), {}, r"costs must be a list"),
        ("results.json", ("more",), 1, r"it has no 'more'"),
        ("timings.json", ("timings", 0), {"stage": "label"}, r"timings\[0\] lacks 'cached'"),
    ],
)
def test_results_of_another_form_are_refused(made: Path, tmp_path: Path, name, place, value, said):
    old = Run.open(made / "one", "report")
    odd = Run.renew(tmp_path / "odd", stage="report", config=old.config["config"])
    for copied in old.manifest["outputs"]:
        shutil.copy(old.file(copied), odd.file(copied))
    document = json.loads(odd.file(name).read_text())
    inner = document
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    atomic_write(odd.file(name), to_json(document))
    odd.finish(list(old.manifest["outputs"]), **old.facts)
    with pytest.raises(InputError, match=rf"{name} is damaged: .*{said}"):
        write_results([odd.path], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_pictures_are_found_from_the_page(made: Path, tmp_path: Path):
    page = tmp_path / "my site" / "keys.md"
    write_results([made / "two"], page.parent)
    names = re.findall(r'(?:src|srcset)="([^"]+)"', page.read_text())
    assert len(names) == 2
    for name in names:
        assert " " not in name
        assert (page.parent / unquote(name)).is_file(), name


def test_a_title_begins_no_markup(made: Path, tmp_path: Path):
    title = '</style><script>alert("1")</script>\n# x'
    runs = tuple(sorted((made / "b").iterdir())[:1])
    report.run(ReportConfig(runs=runs, out=tmp_path / "r", title=title), Reporter())
    write_results([tmp_path / "r"], tmp_path / "out")
    [page_of_study] = (tmp_path / "out").glob("style*.md")
    for page in (page_of_study, tmp_path / "out" / "README.md", tmp_path / "r" / "report.html"):
        assert "<script>alert" not in page.read_text()
        assert "</style><script" not in page.read_text()
    assert "\n# x" not in page_of_study.read_text()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("place_table, lr=1e-05", "place_table, lr=1e-05"),
        ("*a* `b` [c](d) _e_ __f__", r"\*a\* \`b\` \[c\](d) \_e\_ \_\_f\_\_"),
        ("a\nb \\ <i> &lt; R&D", r"a b \\ &lt;i> &amp;lt; R&D"),
    ],
)
def test_names_begin_no_markup(text: str, shown: str):
    assert markdown._text(text) == shown


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        ("bkrl report logs/a/one logs/b/two", "bkrl report logs/a/* logs/b/*"),
        ("bkrl report /home/me/exp/one --title a/b --out /home/me/out/r", "bkrl report exp/*"),
    ],
)
def test_a_report_names_the_folders_of_its_runs_and_no_place_on_this_machine(argv: str, shown: str):
    node = SimpleNamespace(run=SimpleNamespace(manifest={"argv": argv.split()}))
    assert markdown._command(node) == shown


def test_a_title_may_be_in_any_script(made: Path, tmp_path: Path):
    runs = tuple(sorted((made / "b").iterdir())[:1])
    report.run(ReportConfig(runs=runs, out=tmp_path / "r", title="日本 é"), Reporter())
    write_results([tmp_path / "r"], tmp_path / "out")
    [page] = (tmp_path / "out").glob("日本*.md")
    for name in re.findall(r'(?:src|srcset)="([^"]+)"', page.read_text()):
        assert name.isascii()
        assert (page.parent / unquote(name)).is_file(), name


def test_a_page_is_replaced_and_all_others_stay(made: Path, tmp_path: Path):
    written(made, tmp_path)
    before = {path.name: path.read_text() for path in tmp_path.glob("*.md")}
    write_results([made / "two"], tmp_path)  # only one of the studies is at hand
    assert {path.name: path.read_text() for path in tmp_path.glob("*.md")} == before
    for name in PAGES.values():
        (tmp_path / name).write_text(before[name].replace("## Cost", "## Price"))
    write_results([made / "one"], tmp_path)
    assert (tmp_path / PAGES["one"]).read_text() == before[PAGES["one"]]
    assert "## Price" in (tmp_path / PAGES["two"]).read_text()


def test_what_was_written_by_hand_stays(made: Path, tmp_path: Path):
    page = tmp_path / PAGES["two"]
    whole = written(made, tmp_path, ("two",))
    said = "_By hand: the aim\nwas not reached._\n\n"
    page.write_text(whole.replace("× PPO's steps:\n", said + "× PPO's steps:\n", 1))
    kept = page.read_text()
    assert kept != whole
    assert written(made, tmp_path, ("two",)) == kept


def test_the_index_has_every_method_with_its_verdict(made: Path, tmp_path: Path):
    written(made, tmp_path)
    table = "| agent | end |\n|---|---|\n| a | 20 % (10 to 30) |\n"
    (tmp_path / "other.md").write_text(f"# Other\n\n**Nothing is learnt.**\n\n<!-- draw: end by 1 -->\n\n{table}")
    write_results([], tmp_path)
    index = (tmp_path / "README.md").read_text()
    assert "[Keys](keys.md)" in index
    assert r"| [Red \| balls](red-balls.md) |" in index
    assert "| [Other](other.md) | Nothing is learnt. |" in index
    assert "_bk-pref (shuffled)_" in index
    for name in ("forest.png", "other.png"):
        with Image.open(tmp_path / "images" / name) as image:
            assert image.width > 500


def test_the_index_counts_a_verdict_only_with_its_p(tmp_path: Path):
    header = "| method | n | × PPO's steps | paired p (Holm) | shown |\n|---|---|---|---|---|\n"
    rows = [
        "| **ppo** | 8 | 1 | – | – |",
        "| **a** | 8 | at most 0.50 (0.40 to 0.60) | 0.02 (8 pairs) | significantly faster |",
        "| **b** | 8 | 0.50 (0.40 to 0.60) | 0.05 (8 pairs) | significantly faster |",
        "| _c_ | 3 | not known | 0.01 (8 pairs) | significantly slower |",
    ]
    (tmp_path / "images").mkdir()
    (tmp_path / "x.md").write_text(f"# X\n\n**One.**\n\n## Env-v0\n\n{header}" + "\n".join(rows) + "\n")
    markdown.make_index(tmp_path)
    assert "| [X](x.md) | Env-v0 | 3 to 8 | a ≤ 0.50 | b 0.50 | _c_ |" in (tmp_path / "README.md").read_text()
    (tmp_path / "y.md").write_text("# Y\n\nNo sentence.\n")
    with pytest.raises(InputError, match="y.md does not begin with '# title' and a sentence in bold"):
        markdown.make_index(tmp_path)


def test_findings_in_the_same_words_are_one():
    faster = (
        "m{} reached 80 % significantly faster than plain PPO: 0.{} of PPO’s steps, 95 % interval 0.1 to 0.9; n = 5"
    )
    careful = "m{} has no guarantee (none: defects b{}): it may solve another task."
    said = [Said("for", "For", faster.format(i, i), "E") for i in (1, 2, 3)]
    said += [Said("care", "Care", careful.format(i, i), "") for i in (1, 2, 3)]
    said += [Said("care", "Care", "Nothing here is of a language model.", "")]
    figures = ", ".join(f"m{i} 0.{i} (0.1 to 0.9)" for i in (1, 2, 3))
    assert markdown.list_findings(said, ["m1", "m2", "m3"]) == [
        f"* _For._ Reached 80 % significantly faster than plain PPO: **E** {figures}.",
        "* _Care._ Has no guarantee: it may solve another task: m1, m2, m3.",
        "* _Care._ Nothing here is of a language model.",
    ]
    assert markdown.list_findings(said[:2], ["m1", "m2"])[0].startswith("* _For._ **E** m1 reached")


def test_a_page_of_others_is_not_overwritten(made: Path, tmp_path: Path):
    page = tmp_path / PAGES["two"]
    for content in (b"# Mine\n", b"\xff\xfe"):
        page.write_bytes(content)
        with pytest.raises(InputError, match="did not make it; name another --out"):
            write_results([made / "two"], tmp_path)
        assert page.read_bytes() == content


def test_pictures_are_named_by_study_and_env(made: Path, tmp_path: Path):
    runs = tuple(sorted((made / "b").iterdir()))
    long = "Does background knowledge help in every single world of them all?"
    for name, title in (("tiny", "x"), ("", long)):
        report.run(ReportConfig(runs=runs, out=tmp_path / "r", title=title, name=name), Reporter())
        write_results([tmp_path / "r"], tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out" / "images").iterdir() if path.name != "forest.png") == [
        "does-background-knowledge-help-in-every-gotolocal-purplekey-s20-dark.png",
        "does-background-knowledge-help-in-every-gotolocal-purplekey-s20.png",
        "tiny-gotolocal-purplekey-s20-dark.png",
        "tiny-gotolocal-purplekey-s20.png",
    ]


def test_envs_that_begin_alike_have_pictures_of_their_own(tmp_path: Path):
    """Both sections showed the picture of the last one: what a file's name has room for was the same."""
    envs = [f"Housekeep-Symbolic-Original@scene=Pomaria_{n}_int,control=high,reward=sparse" for n in (1, 2)]
    runs = tuple(train_rs(tmp_path, "ppo", 1, 2e5 * n, env, name=f"ppo-{n}") for n, env in enumerate(envs, 1))
    made = report.run(ReportConfig(runs=runs, out=tmp_path / "r", title="x", name="two"), Reporter())
    write_results([tmp_path / "r"], tmp_path / "out")
    name = "two-housekeep-symbolic-original-scene"
    text = (tmp_path / "out" / "two.md").read_text()
    for env, file in zip(envs, (f"{name}.png", f"{name}-2.png"), strict=True):
        assert (tmp_path / "out" / "images" / file).read_bytes() == made.file(f"curves-{env}.png").read_bytes()
        assert f'src="images/{file}"' in text


def test_a_report_of_policies_alone_has_a_page(tmp_path: Path):
    """An IndexError, for want of a picture."""
    played = evaluate(tmp_path, train_rs(tmp_path, "ppo", 1), alg="ppo")
    report.run(ReportConfig(runs=(played,), out=tmp_path / "r", title="x", name="alone"), Reporter())
    write_results([tmp_path / "r"], tmp_path / "out")
    assert "## Frozen policies on episodes never seen in training" in (tmp_path / "out" / "alone.md").read_text()


def test_an_env_that_names_a_file_has_its_pictures_too(tmp_path: Path):
    """Its id has a path in it, which no file of a report may have."""
    path = tmp_path / "own.parquet"
    write_table(path, pa.table(to_columns(draw_episodes("Rs_int", "train", 1, 0))))
    trained = train_rs(tmp_path, "ppo", 1, env=f"Housekeep-Symbolic-Original@file={path}", name="ppo-s1")
    report.run(ReportConfig(runs=(trained,), out=tmp_path / "r", title="x", name="own"), Reporter())
    assert write_results([tmp_path / "r"], tmp_path / "out")[1] == []
    assert len(list((tmp_path / "out" / "images").glob("own-*.png"))) == 2


def test_a_file_is_no_folder(made: Path, tmp_path: Path):
    (tmp_path / "r.md").write_text("mine")
    with pytest.raises(UsageError, match="is a file"):
        write_results([made / "two"], tmp_path / "r.md")
    assert (tmp_path / "r.md").read_text() == "mine"


def test_the_same_runs_give_the_same_page(made: Path, tmp_path: Path):
    assert written(made, tmp_path / "x") == written(made, tmp_path / "y")
    pictures = sorted((tmp_path / "x" / "images").iterdir())
    assert len(pictures) == 5
    for picture in pictures:
        assert picture.read_bytes() == (tmp_path / "y" / "images" / picture.name).read_bytes()


def test_a_run_that_is_gone_is_said(made: Path, tmp_path: Path):
    shutil.copytree(made, tmp_path / "copy")
    report.run(
        ReportConfig(runs=tuple(sorted((tmp_path / "copy" / "b").iterdir())), out=tmp_path / "copy" / "two", title="K"),
        Reporter(),
    )
    shutil.rmtree(next((tmp_path / "copy" / "b").glob("ppo-*-s1")))
    _, problems = write_results([tmp_path / "copy" / "two"], tmp_path / "out")
    assert any("no longer there" in problem for problem in problems)
    assert "Not as it was when the report was made" in (tmp_path / "out" / "k.md").read_text()


def test_wrong_input(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(UsageError, match="Two reports have the title"):
        write_results([made / "two", made / "two"], tmp_path / "out")
    for name in ("x", "y"):
        settings = ReportConfig(runs=(made / "b",), out=tmp_path / name, title=name, name="same")
        report.run(settings, Reporter())
    with pytest.raises(UsageError, match="Two reports have the name 'same'; give each its own with --name"):
        write_results([tmp_path / "x", tmp_path / "y"], tmp_path / "out")
    monkeypatch.setattr("sys.argv", ["results.py", str(made / "b" / "nothing"), "--out", str(tmp_path / "out")])
    assert markdown.main() == 3
    assert "nothing" in capsys.readouterr().err
