"""The index of results: every page of the folder, every method of their tables with its verdict, and one forest plot.

The pages are read, not the runs, so the index covers studies whose runs are elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt

from bkrl.core.errors import InputError
from bkrl.core.files import atomic_write
from bkrl.report.groups import short_env

BETTER = ("at most half the steps", "significantly faster", "significantly more success")
WORSE = ("significantly slower", "significantly less success")
ALPHA = 0.05
COLOURS = {"better": "#0072b2", "open": "#888888", "worse": "#d55e00"}
FOREST = "forest.png"
HEAD = """# Results

One page for each study. **Hand-written rules answered wherever a page names no language model** (`--llm rules`): a gain shows what
the method does with knowledge, not what a language model knows. Dated experiments, negative ones included, are in the
[log](log/README.md). `python results/pages.py` makes this index from the pages.
"""
FIGURE = f"""![Steps to 80 % success divided by PPO's steps, with 95 % intervals, for every method without a published defect in every task; most methods of preferences and programs lie left of 1, goals right of it or at 1](images/{FOREST})

Steps to 80 % success as a share of plain PPO's; left of 1 is faster. Colour: significantly better (blue), not shown (grey),
significantly worse (orange). ◂ and ▸: the ratio is at most, or at least, so large, since runs of PPO, or of the method, never
reached 80 %. Of a method that several studies have in one task, the study with the most runs is drawn.
"""
TABLE = """Every method and control (in italics) of every study with a report, in each task. A verdict counts the adjusted paired p (below .05);
behind a method stands the share of PPO's steps to 80 % where it is known. n: runs of each method.
"""


@dataclass(frozen=True)
class Entry:
    """One method in one task of one study; `ratio`, `low` and `high` are × PPO's steps, None where they are not known."""

    env: str
    label: str
    control: bool
    n: int
    verdict: str
    bound: str
    ratio: float | None
    low: float | None
    high: float | None

    @property
    def shown(self) -> str:
        """The verdict with its ratio, as a cell of the index."""
        ratio = "" if self.ratio is None else f" {_BOUND[self.bound]}{self.ratio:.2f}"
        return f"_{self.label}_{ratio}" if self.control else f"{self.label}{ratio}"


_BOUND = {"": "", "at most": "≤ ", "at least": "≥ "}


@dataclass(frozen=True)
class Page:
    """A page of results: its file, title, first sentence in bold, and what its tables say of methods."""

    name: str
    title: str
    sentence: str
    entries: Sequence[Entry]


def make_index(folder: Path) -> None:
    """Write README.md and the forest plot of the pages in a folder. Pages keep the order of an earlier index; new ones follow.

    Raises:
        InputError: a page has no title or no sentence.
    """
    index = folder / "README.md"
    before = re.findall(r"\]\(([\w-]+\.md)\)", index.read_text()) if index.exists() else []
    names = sorted(path.name for path in folder.glob("*.md") if path.name != "README.md")
    pages = [
        read_page(folder / name)
        for name in [*(n for n in dict.fromkeys(before) if n in names), *sorted({*names} - {*before})]
    ]
    for page in pages:
        draw_dots(folder / page.name, folder / "images")
    lines = [HEAD]
    if any(page.entries for page in pages):
        draw_forest([entry for page in pages for entry in page.entries], folder / "images" / FOREST)
        lines += [
            FIGURE,
            TABLE,
            "| study | task | n | better than PPO | not shown | worse |",
            "|---|---|---|---|---|---|",
        ]
        lines += [row for page in pages for row in _rows(page)]
    if others := [page for page in pages if not page.entries]:
        lines += ["", "Studies with tables of their own:", "", "| study | finding |", "|---|---|"]
        lines += [f"| [{page.title}]({page.name}) | {page.sentence} |" for page in others]
    atomic_write(index, "\n".join(lines) + "\n")


def read_page(path: Path) -> Page:
    """What a page says in short.

    Raises:
        InputError: it has no title or no sentence.
    """
    text = path.read_text(encoding="utf-8")
    title = re.match(r"# (.+)\n", text)
    sentence = re.search(r"^\*\*(.+?)\*\*", text, re.M | re.S)
    if not title or not sentence:
        raise InputError(f"{path} does not begin with '# title' and a sentence in bold, as every page of results does.")
    head, said = (re.sub(r"(?<!\\)\|", r"\|", one) for one in (title[1], " ".join(sentence[1].split())))  # for a table
    return Page(path.name, head, said, list(_entries(text)))


def _entries(text: str) -> Iterator[Entry]:
    for section in re.split(r"^## ", text, flags=re.M)[1:]:
        env = section.partition("\n")[0]
        for header, _, *rows in (
            block.split("\n") for block in re.findall(r"(?:^\|.*\n)+", section, re.M) for block in [block.rstrip("\n")]
        ):
            names = _cells(header)
            if "× PPO's steps" not in names or "shown" not in names:
                continue
            for row in rows:
                cells = dict(zip(names, _cells(row), strict=True))
                if cells["× PPO's steps"] == "1":
                    continue
                found = re.match(r"(at \w+ )?([\d.]+)(?: \(([\d.]+) to ([\d.]+)\))?", cells["× PPO's steps"])
                low, high = (float(found[3]), float(found[4])) if found and found[3] else (None, None)
                p = re.match(r"[\d.e-]+", cells.get("paired p (Holm)", ""))
                yield Entry(
                    env,
                    cells["method"].strip("*_"),
                    cells["method"].startswith("_"),
                    int(cells["n"].split()[0]),
                    _verdict(cells["shown"], float(p[0]) if p else 1.0),
                    (found[1] or "").strip() if found else "",
                    float(found[2]) if found else None,
                    low,
                    high,
                )


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def _verdict(words: str, p: float) -> str:
    return "better" if words in BETTER and p < ALPHA else "worse" if words in WORSE and p < ALPHA else "open"


def _rows(page: Page) -> Iterator[str]:
    study = f"[{page.title}]({page.name})"
    for env in dict.fromkeys(entry.env for entry in page.entries):
        here = [entry for entry in page.entries if entry.env == env]
        counts = sorted({entry.n for entry in here})
        n = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        cells = [
            ", ".join(one.shown for one in here if one.verdict == kind) or "–" for kind in ("better", "open", "worse")
        ]
        yield f"| {study} | {short_env(env)} | {n} | {' | '.join(cells)} |"
        study = ""  # once a study


def draw_forest(entries: Sequence[Entry], path: Path) -> None:
    """One interval for each method in each task, in two columns: of controls and of published defects none, and of a
    method in a task the one with the most runs.
    """
    best: dict[tuple[str, str], Entry] = {}
    for one in entries:
        key = (one.env, re.sub(r"(, )?[\w.]+=[^ )]+(?<!,)", "", one.label).replace(" ()", ""))
        drawn = one.ratio is not None and not one.control and "defects" not in one.label and "empty" not in one.label
        if drawn and (key not in best or one.n > best[key].n):
            best[key] = one
    envs = list(dict.fromkeys(env for env, _ in best))
    lines: list[tuple[str, Entry | None]] = []
    for env in envs:
        lines += [(short_env(env), None)]
        lines += [(f"{label} ({one.n})", one) for (where, label), one in sorted(best.items()) if where == env]
    half = _middle(lines)
    with matplotlib.rc_context(
        {"font.size": 8, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "bkrl"}
    ):
        figure, axes = plt.subplots(1, 2, figsize=(10, 0.17 * max(half, len(lines) - half) + 0.6), sharex=True)
        for axis, part in zip(axes, (lines[:half], lines[half:]), strict=True):
            for at, (_, one) in enumerate(part):
                if one is not None:
                    _draw(axis, at, one)
            axis.set_yticks(range(len(part)), [label for label, _ in part])
            for tick, (_, one) in zip(axis.get_yticklabels(), part, strict=True):
                tick.set_fontweight("bold" if one is None else "normal")
            axis.axvline(1, color="black", linewidth=0.8)
            axis.set_xscale("log")
            axis.set_xticks([0.1, 0.25, 0.5, 1, 2], ["0.1", "0.25", "0.5", "1", "2"])
            axis.minorticks_off()
            axis.set_ylim(max(half, len(lines) - half) - 0.5, -0.5)
            axis.tick_params(axis="y", length=0)
            axis.set_xlabel("× PPO's steps to 80 % (n in brackets)")
        figure.tight_layout()
        figure.savefig(path, dpi=110, metadata={"Software": None})
        plt.close(figure)


def draw_dots(page: Path, images: Path) -> None:
    """The picture of a page without a report, where a comment asks for one: `<!-- draw: COLUMN, … by N as AXIS -->` names columns of the
    next table that has them, how many of its first columns name a row (1), and the axis.
    """
    text = page.read_text(encoding="utf-8")
    asked = re.search(r"<!-- draw: (.+?)(?: by (\d))?(?: as (.+?))? -->", text)
    if not asked:
        return
    columns, named = asked[1].split(", "), int(asked[2] or 1)
    tables = (block.rstrip().split("\n") for block in re.findall(r"(?:^\|.*\n)+", text, re.M))
    header, _, *rows = next(table for table in tables if {*columns} <= {*_cells(table[0])})
    dots: list[tuple[str, str, re.Match[str]]] = []
    for row in rows:
        cells = _cells(row)
        labels = ", ".join(cell for cell in cells[:named]).replace("`", "").replace("**", "").split("; ")
        for column in columns:
            parts = [part for part in cells[_cells(header).index(column)].split(";") if re.search(r"\d", part)]
            parts = parts if len(parts) == len(labels) else parts[-1:]
            dots += [
                (label, column, _DOT.search(part.replace("**", "").replace("−", "-")) or _fail(page, part))
                for label, part in zip(labels, parts, strict=False)
            ]
    names = list(dict.fromkeys(label for label, _, _ in dots))
    with matplotlib.rc_context({"font.size": 8, "axes.spines.top": False, "axes.spines.right": False}):
        figure, axis = plt.subplots(figsize=(8, 0.2 * len(names) + 0.8))
        for at, column in enumerate(columns):
            shift = 0.2 * (at - (len(columns) - 1) / 2)
            mine = [(names.index(label) + shift, found) for label, of, found in dots if of == column]
            axis.plot(
                [float(found[1]) for _, found in mine],
                [y for y, _ in mine],
                "os^D"[at],
                markersize=4,
                label=column.replace("`", ""),
            )
            for y, found in mine:
                low, high = (
                    (float(found[1]) - float(found[2]), float(found[1]) + float(found[2]))
                    if found[2]
                    else (found[3], found[4])
                )
                if low is not None:
                    axis.plot([float(low), float(high)], [y, y], color=f"C{at}", linewidth=1.2)
        axis.set_yticks(range(len(names)), names)
        axis.set_ylim(len(names) - 0.5, -0.5)
        if all(float(found[1]) >= 0 for _, _, found in dots):
            axis.set_xlim(left=0)
        axis.set_xlabel(asked[3] or columns[0])
        if len(columns) > 1:
            axis.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
        figure.tight_layout()
        figure.savefig(images / f"{page.stem}.png", dpi=110, metadata={"Software": None})
        plt.close(figure)


_DOT = re.compile(r"([-+]?[\d.]+)(?: %)?(?: ± ([\d.]+)| \(([-\d.]+) to ([-\d.]+)\))?")


def _fail(page: Path, part: str) -> re.Match[str]:
    raise InputError(f"{page}: no figure can be read from '{part}', which its picture is to show.")


def _middle(lines: Sequence[tuple[str, Entry | None]]) -> int:
    """The heading of a task that is nearest to the middle."""
    starts = [at for at, (_, one) in enumerate(lines) if one is None]
    return min(starts, key=lambda at: abs(at - len(lines) / 2))


def _draw(axis: plt.Axes, at: int, one: Entry) -> None:
    colour = COLOURS[one.verdict]
    if one.low is not None and one.high is not None:
        axis.plot([one.low, one.high], [at, at], color=colour, linewidth=1.4)
    axis.plot([one.ratio], [at], {"": "o", "at most": "<", "at least": ">"}[one.bound], color=colour, markersize=4.5)
