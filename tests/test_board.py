"""results/board.py: rows that manifests fill, made anew and compared."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bkrl.core.errors import InputError, RunFailed, UsageError
from bkrl.runs import software
from bkrl.runs.provenance import Node
from bkrl.studies.cells import chosen
from bkrl.studies.executors.work import work
from bkrl.studies.study import load_study
from tests.studies.toy_study import TOY

_SPEC = spec_from_file_location("board", Path(__file__).parents[1] / "results" / "board.py")
assert _SPEC is not None
assert _SPEC.loader is not None
board = module_from_spec(_SPEC)
_SPEC.loader.exec_module(board)
COMMIT = {"commit": "0123456789abcdef", "dirty": False}
SEEDS = [{"cell": f"w/ppo-s{seed}", "seed": seed, "score": score, "files": {"w/policy.safetensors": "aa"}}
         for seed, score in ((1, 0.5), (2, 0.6), (3, 0.7))]  # fmt: skip
ROW = {"name": "w", "study": "toy", "measure": "success_rate", "env": "E", "answered": "rules", "steps": 512,
       "episodes": 50, "commit": "0123456789ab", "packages": {"torch": "2"}, "run": SEEDS}  # fmt: skip


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toy study, done from a commit."""
    root = tmp_path_factory.mktemp("board")
    (root / "toy.toml").write_text(TOY.replace("= 4096", "= 512").replace("= 2048", "= 256"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(software, "_code", lambda: COMMIT)
        done(root, root / "runs")
    return root


def done(root: Path, out: Path, only: str = "") -> None:
    for cell in chosen(load_study(str(root / "toy.toml"), out), out, only):
        assert work(cell, out / "log") == ""


def test_a_row_says_what_the_runs_reached_and_what_they_rest_on(swept: Path) -> None:
    row = board.add(str(swept / "toy.toml"), "*/bk-pref-s1", swept / "runs", "toy/bk-pref", "success_rate")
    (run,) = row["run"]
    assert (row["name"], run["cell"]) == ("toy/bk-pref", "chain/bk-pref-s1")
    assert (row["commit"], row["answered"], run["seed"]) == ("0123456789ab", "return", 1)
    kinds = {Path(name).suffix for name in run["files"]}
    assert kinds == {".safetensors", ".parquet"}
    assert len({Path(name).parent for name in run["files"]}) > 2
    back = board.tomllib.loads(board.written([row, ROW]))["row"]
    assert back == [row, ROW]


@pytest.mark.slow
def test_a_replay_gives_the_same_bytes(swept: Path, tmp_path: Path) -> None:
    row = board.add(str(swept / "toy.toml"), "*/bk-pref-s1", swept / "runs", "", "success_rate")
    lines, agrees = board.replay(row, None, tmp_path / "again")
    assert agrees
    assert lines[-1] == f"The same bytes in all {len(row['run'][0]['files'])} files."
    with pytest.raises(InputError, match="has no seed 7; it has 1"):
        board.replay(row, 7, tmp_path)


def test_a_replay_makes_its_run_anew(swept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder with the run it compared what was there, with the same bytes; what is unfinished goes on."""
    row = board.add(str(swept / "toy.toml"), "*/bk-pref-s1", swept / "runs", "", "success_rate")
    with pytest.raises(InputError, match="bk-pref-s1 is done already; remove it, or name another folder with --runs"):
        board.replay(row, None, swept / "runs")
    asked: list[list[str]] = []
    run = lambda argv, **how: asked.append(argv) or SimpleNamespace(returncode=1)  # noqa: E731
    monkeypatch.setattr(board.subprocess, "run", run)
    (swept / "begun" / "chain" / "bk-pref-s1").mkdir(parents=True)
    (swept / "begun" / "chain" / "bk-pref-s1" / "config.json").write_text("{}")
    with pytest.raises(RunFailed, match="run it again, it goes on where it was"):
        board.replay(row, None, swept / "begun")
    assert "--retry-failed" in asked[0], "what failed once stayed failed"


def test_a_row_is_of_one_entry(swept: Path, tmp_path: Path) -> None:
    """bk-code-s* fits bk-code-shuffled-s1, too: a method was pooled with its own control."""
    two = TOY.replace("= 4096", "= 512").replace("= 2048", "= 256").replace('"bk-pref"]', '"ppo-shorter"]')
    two = two.replace('"ppo-shorter"', '{ name = "ppo-shorter", alg = "ppo", train_rs = { checkpoint_every = 256 } }')
    (tmp_path / "toy.toml").write_text(two)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(software, "_code", lambda: COMMIT)
        done(tmp_path, tmp_path / "runs", "*/ppo-s*")
    ask = (str(tmp_path / "toy.toml"), "*/ppo-s*", tmp_path / "runs", "", "success_rate")
    with pytest.raises(UsageError, match="fits runs of chain/ppo, chain/ppo-shorter; name one entry, and its seeds as"):
        board.add(*ask)
    assert board.add(ask[0], "*/ppo-s[0-9]*", *ask[2:])["name"] == "chain/ppo"
    rows = board.tomllib.loads(board.BOARD.read_text())["row"]
    assert all(len({board.entry_of(run["cell"]) for run in row["run"]}) == 1 for row in rows)


@pytest.mark.parametrize(
    ("score", "agrees"), [(0.6, True), (0.6 + 4.3026 * 0.1 * (4 / 3) ** 0.5, True), (0.0, False), (1.2, False)]
)
def test_other_bytes_agree_where_another_seed_would_lie(score: float, agrees: bool) -> None:
    lines, found = board.compare(ROW, SEEDS[0], score, {"w/policy.safetensors": "bb"})
    assert found == agrees
    assert "Other bytes in 1 of 1 files, first in w/policy.safetensors." in lines


def test_what_cannot_be_said_does_not_agree() -> None:
    assert not board.compare({**ROW, "run": SEEDS[:1]}, SEEDS[0], 0.5, {})[1]
    assert not board.compare(ROW, SEEDS[0], 0.4, {"w/policy.safetensors": "aa"})[1]
    solved: dict[str, Any] = {**ROW, "run": [{**one, "score": 1.0} for one in SEEDS]}
    assert board.compare(solved, solved["run"][0], 0.95, {})[1]
    assert not board.compare(solved, solved["run"][0], 0.93, {})[1]


@pytest.mark.parametrize(
    ("cells", "measure", "said"),
    [
        ("*/bk-code-s1", "success_rate", "No cell is called"),
        ("*/bk-pref-s1", "beauty", "has no beauty; it has"),
        ("*-s1", "success_rate", "differ in answered"),
    ],
)
def test_bad_rows_are_refused_in_one_sentence(swept: Path, cells: str, measure: str, said: str) -> None:
    with pytest.raises((InputError, UsageError), match=said):
        board.add(str(swept / "toy.toml"), cells, swept / "runs", "", measure)


def test_a_row_has_one_draw_of_a_seed(swept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two draws of labels were counted as independent seeds, and only the last one's run could be replayed."""
    monkeypatch.setattr(board, "chosen", lambda *which: 2 * chosen(*which))
    with pytest.raises(UsageError, match="fits several draws of labels or data of a seed; name one"):
        board.add(str(swept / "toy.toml"), "*/bk-pref-s1", swept / "runs", "", "success_rate")


def test_a_damaged_board_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(board, "BOARD", tmp_path / "board.toml")
    (tmp_path / "board.toml").write_text("<<<<<<< HEAD\n")
    assert board.main(["page"]) == 3
    assert "board.toml is damaged" in capsys.readouterr().err


def test_who_told_the_advice_is_named() -> None:
    """A model that was asked about actions, without labels, was nobody."""
    run: Any = SimpleNamespace(manifest={"config": {"advice": "local:qwen"}}, facts={})
    assert board._who([Node("phi", "train-rm", run, "")]) == "local:qwen"


def test_runs_of_no_commit_are_refused(swept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "_code", lambda: {"commit": "01", "dirty": True})
    done(swept, tmp_path / "runs", "*/ppo-s1")
    with pytest.raises(InputError, match="comes from no clean commit"):
        board.add(str(swept / "toy.toml"), "*/ppo-s1", tmp_path / "runs", "", "success_rate")


def test_a_row_keeps_every_digit_of_a_score(swept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def thirds(paths: list[Path], follow: Any = board.follow) -> Any:
        chain = follow(paths)
        for node in chain.of("train-rs"):
            node.run.manifest["facts"]["episode_return"] = 1 / 3
        return chain

    monkeypatch.setattr(board, "follow", thirds)
    row = board.add(str(swept / "toy.toml"), "*/ppo-s1", swept / "runs", "", "episode_return")
    (back,) = board.tomllib.loads(board.written([row]))["row"]
    assert board.compare(back, back["run"][0], 1 / 3, back["run"][0]["files"])[1]


def test_the_page_is_made_of_the_rows() -> None:
    assert "| `w` | E | rules | 512 | 3 | success_rate | 60 % (35 to 85) | 0123456789ab |" in board.page([ROW])
    rows = board.tomllib.loads(board.BOARD.read_text())["row"]
    assert board.BOARD.with_suffix(".md").read_text() == board.page(rows)
    assert board.BOARD.read_text() == board.written(rows)
