"""The board: results that anyone can make anew from what their manifests say, and the command that does so and compares.

python results/board.py add STUDY CELLS --runs FOLDER [--name NAME] [--measure success_rate]   # a row of finished runs
python results/board.py replay NAME [--seed N] [--runs FOLDER]        # one run of a row anew, compared with what it says
python results/board.py page                                          # board.md, the table of board.toml

STUDY is a study file or a shipped study, CELLS a pattern of `bkrl sweep --only` that fits the training runs of one entry
in one task, as in 'minigrid/corridor-s3r3/bk-code+progress-d6-s[0-9]*'. A row holds, for each seed, the score and the hash of
every policy, potential and table that the run rests on. To add a row by pull request: sweep the study from a clean
commit, `add` the entry, `page`, and send board.toml and board.md; whoever reviews it runs `replay`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from bkrl.core.errors import BkrlError, InputError, RunFailed, UsageError
from bkrl.core.files import atomic_write
from bkrl.report.groups import entry_of
from bkrl.report.runs import answered
from bkrl.runs.provenance import Node, follow
from bkrl.stats.intervals import symmetric, t_interval
from bkrl.studies.cells import chosen, name_of
from bkrl.studies.study import load_study

BOARD = Path(__file__).parent / "board.toml"
HASHED = (".safetensors", ".parquet", ".py")
"""What is the same in every repetition: weights, tables and programs; metrics and manifests have clocks in them."""
HEAD = """# The board: results that a command makes anew

**Each row can be checked: `python results/board.py replay NAME` runs one of its seeds, from its data to its policy, and compares the bytes.**

Where a processor rounds otherwise, it compares the score with those of the row's other seeds. [board.toml](board.toml) has
the seeds, scores and hashes; the head of [board.py](board.py) says how to add a row. The score is the last evaluation's.

| row | env | who answered | steps | n | measure | score, 95 % interval | commit |
|---|---|---|---|---|---|---|---|
"""


def add(study: str, cells: str, folder: Path, name: str, measure: str) -> dict[str, Any]:
    """A row of the board: what these runs reached, and the hashes of all that they rest on.

    Raises:
        InputError: a run is not finished, was changed, comes from no clean commit, or has no such measure.
        UsageError: the pattern fits no training run of the study, or those of several entries or tasks.
    """
    found = [cell for cell in chosen(load_study(study, folder), folder, cells) if cell.stage == "train_rs"]
    names = [at for cell in found if fnmatchcase(at := name_of(cell, folder), cells)]  # without what those need
    runs = [_run(folder, name, measure) for name in names]
    if not runs:
        raise UsageError(f"No training run of {study} is called '{cells}'; `bkrl sweep {study} --dry-run` lists them.")
    same = {
        key: {json.dumps(run[key]) for run in runs}
        for key in ("env", "answered", "steps", "episodes", "commit", "packages")
    }
    if several := [key for key, values in same.items() if len(values) > 1]:
        raise UsageError(f"The runs of '{cells}' differ in {', '.join(several)}; a row is one entry in one task.")
    entries = sorted({entry_of(name) for name in names})
    if len(entries) > 1:
        raise UsageError(f"'{cells}' fits runs of {', '.join(entries)}; name one entry, and its seeds as -s[0-9]*.")
    if len({run["seed"] for run in runs}) < len(runs):
        raise UsageError(f"'{cells}' fits several draws of labels or data of a seed; name one, as in -d6-l1-s[0-9]*.")
    shared = {key: runs[0][key] for key in same}
    each = [{key: run[key] for key in ("cell", "seed", "score", "files")} for run in runs]
    return {"name": name or entries[0], "study": study, "measure": measure, **shared, "run": each}


def _run(folder: Path, cell: str, measure: str) -> dict[str, Any]:
    chain = follow([folder / cell])
    if chain.problems:
        raise InputError(chain.problems[0])
    node = chain.nodes[(folder / cell).as_posix()]
    assert node.run is not None
    code, facts = node.run.manifest["code"], node.facts
    if not code["commit"] or code["dirty"]:
        raise InputError(f"{folder / cell} comes from no clean commit, so nobody can make it anew; sweep from one.")
    if not isinstance(facts.get(measure), int | float):
        raise InputError(f"{folder / cell} has no {measure}; it has {', '.join(sorted(facts))}.")
    packages = {key: node.run.manifest["packages"][key] for key in ("torch", "numpy", "numba")}
    return {
        "cell": cell, "seed": node.config["seed"], "env": facts["env_id"], "steps": facts["steps"],
        "episodes": node.config["eval_episodes"],
        "commit": code["commit"][:12], "packages": packages, "answered": _who(list(chain.nodes.values())),
        "score": float(facts[measure]), "files": _hashes(folder, list(chain.nodes.values())),
    }  # fmt: skip


def _who(nodes: Sequence[Node]) -> str:
    """Who answered: annotators of labels or of actions, and suggesters of goals; "nobody" where there are none."""
    said = [node.config.get("llm" if node.stage == "label" else "advice") for node in nodes if answered(node)]
    said += [node.facts["goals"]["suggester"] for node in nodes if "suggester" in node.facts.get("goals", {})]
    return ", ".join(sorted({str(one) for one in said if one})) or "nobody"


def _hashes(folder: Path, nodes: Sequence[Node]) -> dict[str, str]:
    """Path below the study's folder → SHA-256, of each file that every repetition makes alike."""
    found: dict[str, str] = {}
    for node in nodes:
        assert node.run is not None
        place = node.run.path.resolve()
        below = place.relative_to(folder.resolve()).as_posix() if place.is_relative_to(folder.resolve()) else place.name
        for file, output in node.run.manifest["outputs"].items():
            if file.endswith(HASHED):
                found[f"{below}/{file}"] = output["sha256"]
    return found


def replay(row: Mapping[str, Any], seed: int | None, folder: Path) -> tuple[list[str], bool]:
    """Make one run of a row anew in a folder; what came out, in sentences, and whether it agrees. What it rests on is
    kept for the row's other seeds.

    Raises:
        InputError: the row has no such seed, or its run is there already.
        RunFailed: the sweep failed.
    """
    known = {run["seed"]: run for run in row["run"]}
    if seed is not None and seed not in known:
        raise InputError(f"{row['name']} has no seed {seed}; it has {', '.join(map(str, known))}.")
    run = known[seed] if seed is not None else row["run"][0]
    if (folder / run["cell"] / "manifest.json").exists():  # the sweep would skip it, whoever made it
        raise InputError(f"{folder / run['cell']} is done already; remove it, or name another folder with --runs.")
    command = ["sweep", row["study"], "--out", str(folder), "--jobs", "1", "--retry-failed", "--only", run["cell"]]
    if subprocess.run([sys.executable, "-m", "bkrl", *command], check=False).returncode:
        raise RunFailed(f"`bkrl {' '.join(command)}` failed; run it again, it goes on where it was.")
    chain = follow([folder / run["cell"]])
    node = chain.nodes[(folder / run["cell"]).as_posix()]
    assert node.run is not None
    return compare(row, run, float(node.facts[row["measure"]]), _hashes(folder, list(chain.nodes.values())))


def compare(
    row: Mapping[str, Any], run: Mapping[str, Any], score: float, files: Mapping[str, str]
) -> tuple[list[str], bool]:
    """What a repetition says of a row, in sentences, and whether it agrees.

    The same bytes agree. Other bytes are another draw of the same experiment, as another seed is: they agree when the
    score lies in the 95 % prediction interval of the row's seeds (mean ± t·s·√(1 + 1/n)); of a rate that is at least
    ± 3 / episodes (the rule of three), since seeds that all end at 1 show no spread.
    """
    other = [name for name, digest in run["files"].items() if files.get(name) != digest]
    lines = [f"{run['cell']}: {row['measure']} {score:.6g}; the row says {run['score']:.6g}."]
    if not other:
        return [*lines, f"The same bytes in all {len(run['files'])} files."], score == run["score"]
    lines.append(f"Other bytes in {len(other)} of {len(run['files'])} files, first in {other[0]}.")
    scores = np.array([one["score"] for one in row["run"]])
    if len(scores) < 2:
        return [*lines, "With one seed nobody can say whether that is chance."], False
    mean, error = float(scores.mean()), float(scores.std(ddof=1)) * (1 + 1 / len(scores)) ** 0.5
    floor = 3 / row["episodes"] if row["measure"].endswith("rate") else 0.0
    reach = max(symmetric(0.0, error, len(scores) - 1, len(scores)).high, floor)
    agrees = abs(score - mean) <= reach + 1e-9
    said = "lies in" if agrees else "lies outside"
    return [*lines, f"It {said} what the row's {len(scores)} seeds foretell: {mean:.4g} ± {reach:.4g}."], agrees


def page(rows: Sequence[Mapping[str, Any]]) -> str:
    """board.md."""
    lines = []
    for row in rows:
        scores = [run["score"] for run in row["run"]]
        rate = row["measure"].endswith("rate")
        spread = t_interval(np.array(scores))
        ends = np.clip([spread.low, spread.high], 0, 1) if rate else (spread.low, spread.high)
        figures = [f"{100 * one:.0f}" if rate else f"{one:.3g}" for one in (spread.estimate, *ends)]
        said = figures[0] + (" %" if rate else "") + (f" ({figures[1]} to {figures[2]})" if spread.known else "")
        lines.append(
            f"| `{row['name']}` | {row['env']} | {row['answered']} | {row['steps']:,} | {len(scores)} | {row['measure']} "
            f"| {said} | {row['commit']} |\n"
        )
    return HEAD + "".join(lines)


def written(rows: Sequence[Mapping[str, Any]]) -> str:
    """board.toml; JSON's strings and numbers are TOML's."""
    text = "# Rows of the board; `python results/board.py add` writes them.\n"
    for row in rows:
        text += "\n[[row]]\n" + "".join(f"{key} = {_value(value)}\n" for key, value in row.items() if key != "run")
        for run in row["run"]:
            text += "\n[[row.run]]\n" + "".join(f"{key} = {_value(run[key])}\n" for key in ("cell", "seed", "score"))
            text += "[row.run.files]\n" + "".join(
                f"{_value(key)} = {_value(one)}\n" for key, one in run["files"].items()
            )
    return text


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_value(one)}" for key, one in value.items()) + " }"
    return json.dumps(value, ensure_ascii=False)


def _rows() -> list[dict[str, Any]]:
    """Those of board.toml; InputError where it is no TOML."""
    try:
        rows: list[dict[str, Any]] = tomllib.loads(BOARD.read_text()).get("row", []) if BOARD.exists() else []
    except tomllib.TOMLDecodeError as problem:
        raise InputError(f"{BOARD} is damaged ({problem}); restore it from git, then add your row again.") from None
    return rows


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    adding = verbs.add_parser("add", help="a row of finished runs")
    adding.add_argument("study")
    adding.add_argument("cells")
    adding.add_argument("--runs", type=Path, required=True, help="the study's folder")
    adding.add_argument("--name", default="", help="of the row")
    adding.add_argument("--measure", default="success_rate", help="a fact of train-rs runs")
    again = verbs.add_parser("replay", help="one run of a row anew, compared")
    again.add_argument("name")
    again.add_argument("--seed", type=int)
    again.add_argument("--runs", type=Path, help="where it is made; otherwise logs/board/STUDY")
    verbs.add_parser("page", help="write board.md")
    args = parser.parse_args(arguments)
    try:
        rows = _rows()
        if args.verb == "add":
            row = add(args.study, args.cells, args.runs, args.name, args.measure)
            atomic_write(BOARD, written([*(one for one in rows if one["name"] != row["name"]), row]))
        elif args.verb == "page":
            atomic_write(BOARD.with_suffix(".md"), page(rows))
        else:
            named = {row["name"]: row for row in rows}
            if args.name not in named:
                raise UsageError(f"There is no row '{args.name}'; there are {', '.join(named) or 'none'}.")
            row = named[args.name]
            lines, agrees = replay(row, args.seed, args.runs or Path("logs/board", Path(row["study"]).stem))
            sys.stdout.write("\n".join(lines) + "\n")
            return 0 if agrees else 1
    except BkrlError as problem:
        sys.stderr.write(f"{problem}\n")
        return problem.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
