"""Write docs/results.md from report runs: nothing on the page is typed, and the same runs give the same bytes.

python docs/results.py REPORT … [--out docs/results.md] [--images docs/images]
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from bkrl.core.errors import BkrlError, InputError, UsageError
from bkrl.core.files import atomic_write, make_folder, read_json
from bkrl.core.reporter import duration, percent
from bkrl.report.groups import short_world
from bkrl.report.model import FORMAT, Cost, Estimate, Evaluated, Paired, Results, Row, Said, Timings, World
from bkrl.report.pages.html import figure
from bkrl.report.provenance import Chain, Node, follow
from bkrl.runs.record import Run
from bkrl.stats.crossings import bounded
from bkrl.stats.curves import step_label
from bkrl.stats.variance import Part

NAME_CHARS = 40
INTRODUCTION = """# Results

Made by `docs/results.py` from the report runs named below: every number, table and picture on this page comes out
of run directories. How the numbers are worked out is said in [statistics.md](statistics.md), what
the forms of shaping keep in [method.md](method.md). Intervals are 95 %; n is the number of training runs (seeds × draws
of labels); "× PPO's steps" below 1 is faster. Controls stand in italics.
"""


def write_results(reports: Sequence[Path], out: Path, images: Path) -> tuple[dict[str, Any], list[str]]:
    """Write the page and copy its pictures: one section for each report run. A section that the page has already is
    replaced where it stands, new ones follow in the given order, and all others stay as they are.

    Returns what was written, and sentences about runs that are gone or were changed since a report was made.

    Raises:
        UsageError: no report was named, two have the same title, or `out` is a folder.
        InputError: a folder is no complete report run, was changed, or was made by another bkrl.
    """
    if not reports:
        raise UsageError("Name the report runs, for example: docs/results.py logs/reproduce/report")
    if out.is_dir():
        raise UsageError(f"{out} is a folder; name a file with --out.")
    runs = [Run.open(path, "report") for path in reports]
    settings = [run.config["config"] for run in runs]
    for what, given in (
        ("title", [str(one["title"]) for one in settings]),
        ("name", slugs := [_slug(str(one.get("name") or one["title"])) for one in settings]),
    ):
        if twice := sorted({one for one in given if given.count(one) > 1}):
            raise UsageError(f"Two reports have the {what} '{twice[0]}'; give each its own with --{what}.")
    before = _sections(out)
    sections, problems, pictures = dict(before), [], []
    for run, slug in zip(runs, slugs, strict=True):
        chain = follow([run.path])
        problems += chain.problems
        text, copied = _section(run, chain, slug, images, out.parent)
        sections[text.partition("\n")[0]] = text
        pictures += copied
    make_folder(out.parent)
    make_folder(images)
    for target, source in pictures:
        atomic_write(target, source.read_bytes())
    atomic_write(out, _without_machine(_page(sections)))
    made = {f"## {_text(str(one['title']))}" for one in settings}
    kept = [heading.removeprefix("## ") for heading in before if heading not in made]
    facts = {"out": out.as_posix(), "reports": len(runs), "pictures": len(pictures), "kept": kept}
    return facts, problems


def _page(sections: Mapping[str, str]) -> str:
    """The whole page: what it is, what each section says in a sentence, the sections."""
    lines = []
    for heading, text in sections.items():
        title, said = heading.removeprefix("## "), re.search(r"^\*\*(.+)\*\*$", text, re.MULTILINE)
        anchor = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")  # as GitHub makes them
        lines.append(f"* [{title}](#{anchor})" + (f": {said.group(1)}" if said else ""))
    return "\n".join([INTRODUCTION, "In short:", "", *lines, "", *sections.values()])


def _sections(page: Path) -> dict[str, str]:
    """The sections of a page that was written before, by their headings; none where there is no page.

    Raises:
        InputError: the file there is no page of this command.
    """
    if not page.exists():
        return {}
    try:
        text = page.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        text = ""
    head, *sections = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    if not head.startswith("# Results\n"):
        raise InputError(f"{page} is there already, and docs/results.py did not make it; name another --out.")
    return {one.partition("\n")[0]: one.rstrip("\n") + "\n" for one in sections}


def _section(run: Run, chain: Chain, slug: str, images: Path, page: Path) -> tuple[str, list[tuple[Path, Path]]]:
    if read_json(run.file("results.json")).get("format") != FORMAT:
        raise InputError(
            f"{run.path} was made by another bkrl, whose verdicts follow another rule; make it again with the command "
            f"that bkrl show {run.path} names."
        )
    results: Results = read_json(run.file("results.json"), Results)
    timings: Timings = read_json(run.file("timings.json"), Timings)
    lines = [f"## {_text(results.title)}", "", f"**{_text(results.headline)}**", ""]
    lines += [*_glance(results), "", "<details><summary>Made with</summary>", ""]
    lines += ["```sh", *_commands(chain), "```", "", _counts(chain, run), "", "</details>", ""]
    if chain.problems:
        lines += ["Not as it was when the report was made:", "", *(f"* {_text(one)}" for one in chain.problems), ""]
    lines += ["### What the numbers say", ""]
    lines += [*(f"* {_finding(one)}" for one in results.findings), ""]
    copied = []
    for world in results.worlds:
        lines += [f"### {_text(world.env)}", ""]
        lines += [world.solved and f"Success: {_text(world.solved)}", ""]
        light, dark = f"curves-{world.env}.png", f"curves-{world.env}-dark.png"
        names = [f"{slug}-{_slug(short_world(world.env))}{end}.png" for end in ("", "-dark")]
        copied += [(images / names[0], run.file(light)), (images / names[1], run.file(dark))]
        where = Path(os.path.relpath(images, page)).as_posix()  # as the page finds them
        links = [quote(f"{where}/{name}") for name in names]  # a srcset is split at spaces
        alt = f"{world.measure.capitalize()} rate against environment steps in {world.env}: {_final_success(world)}"
        lines += [
            f'<picture><source media="(prefers-color-scheme: dark)" srcset="{links[1]}">',
            f'<img alt="{escape(alt)}" src="{links[0]}"></picture>',
            "",
            *_world(world, results.threshold),
        ]
    if results.evaluated:
        lines += ["### Frozen policies on episodes never seen in training", "", *_evaluated(results.evaluated), ""]
    lines += ["### Forms of shaping", ""]
    lines += _table(
        ["form", "methods", "what is added to the reward", "guarantee"],
        [[_text(words) for words in (one.form, ", ".join(one.algs), one.what, one.guarantee)] for one in results.forms],
    )
    lines += ["", "### Cost", "", *_costs(results.costs, timings), ""]
    return "\n".join(lines), copied


def _glance(results: Results) -> list[str]:
    """Each method in each world: × PPO's steps, and what may be said of it."""
    cells: dict[str, dict[str, str]] = {}
    for world in results.worlds:
        for row in world.rows:
            if not row.baseline:
                cells.setdefault(_name(row), {})[world.env] = f"{row.ratio or '–'}<br>{row.verdict or '–'}"
    if not cells:
        return []
    envs = [world.env for world in results.worlds]
    ordered = sorted(cells, key=lambda label: label.startswith("_"))
    rows = [[label, *(cells[label].get(env, "–") for env in envs)] for label in ordered]
    return ["× PPO's steps:", "", *_table(["", *map(short_world, envs)], rows)]


def _name(row: Row) -> str:
    return f"_{_text(row.label)}_" if row.control else f"**{_text(row.label)}**"


def _world(world: World, threshold: float) -> list[str]:
    goal = percent(threshold)
    header = [
        "method", "form", "n", f"{world.measure} at the end", f"mean {world.measure} in training", f"reached {goal}",
        f"steps to {goal}", "× PPO's steps", "with collection", "paid back after so many tasks", "P(better)", "paired p (Holm)", "shown",
    ]  # fmt: skip
    rows = [
        [
            _name(row),
            _text(row.form_text),
            str(row.n) + (f" ({row.rests_on})" if row.rests_on else ""),
            _share(row.final),
            _share(row.average),
            f"{row.reached} of {row.n}",
            row.steps_text + (row.steps_interval.spread(step_label, row.grid) if row.reached else ""),
            "1" if row.baseline else str(row.ratio or "–"),
            "–" if row.with_collection is None or row.ratio is None else bounded(row.with_collection, row.ratio.bound),
            str(row.payback or "–"),
            _chance(row.improvement),
            _p(row.p),
            row.verdict or "–",
        ]
        for row in world.rows
    ]
    lines = [f"All methods over the first {step_label(world.horizon)} steps.", "", *_table(header, rows), ""]
    tests = [
        [
            f"**{_text(row.label)}**",
            f"_{_text(one.control)}_" + (" (made for another method)" if one.borrowed else ""),
            one.verdict,
            str(one.ratio or "–"),
            _chance(one.improvement),
            _p(one.p),
        ]
        for row in world.rows
        for one in row.versus
    ]
    if tests:
        header = ["method", "against its control", "shown", "× the control's steps", "P(better)", "paired p (Holm)"]
        lines += [*_table(header, tests), ""]
    splits = [row.split for row in world.rows if row.split]
    if splits:
        header = ["method", "n", "what mean success varies with (standard deviation, share of the variance)"]
        header += ["F test p", "mean over what is drawn first"]
        body = [
            [_text(one.label), str(one.n), _parts(one.parts), f"{one.p:.2g}", _share(one.over_draws)] for one in splits
        ]
        lines += [*_table(header, body), ""]
    return lines


def _final_success(world: World) -> str:
    return "; ".join(f"{row.label} {percent(row.final.estimate)} at the end" for row in world.rows)


def _evaluated(rows: Sequence[Evaluated]) -> list[str]:
    body = [
        [
            _text(row["env"] + (f" (trained in {row['elsewhere']})" if row["elsewhere"] else "")),
            _text(row["alg"]),
            str(row["n"]),
            *("–" if share is None else _share(share) for share in (row.get("sampled"), row.get("greedy"))),
        ]
        for row in rows
    ]
    return _table(["world", "method", "n", "success, actions sampled", "success, likeliest actions"], body)


def _costs(costs: Sequence[Cost], timings: Timings) -> list[str]:
    seconds = {row.stage: row.seconds for row in timings.timings}
    body = [
        [
            row.stage,
            figure(row.runs),
            figure(row.steps),
            duration(seconds.get(row.stage)),
            figure(row.requests),
            figure(row.tokens),
            "–" if row.stage != "label" else "not known" if row.money is None else f"{row.money:.2f}",
        ]
        for row in costs
    ]
    header = ["stage", "runs", "environment steps", "time in its loop", "requests", "tokens", "US dollars"]
    return _table(header, body)


def _commands(chain: Chain) -> list[str]:
    """The commands that made the runs, each once, oldest stage first; places on this machine are cut to their names."""
    found = dict.fromkeys(_command(node) for node in chain.nodes.values() if node.run is not None)
    return [command for command in found if command]


def _command(node: Node) -> str:
    words = [str(word) for word in (node.run.manifest.get("argv", []) if node.run is not None else [])]
    if words[1:2] == ["report"]:  # its many runs are named by their folders
        folders = dict.fromkeys(f"{Path(word).parent.as_posix()}/*" for word in words if "/" in word[:-1])
        return " ".join(["bkrl report", *folders])
    words = [Path(word).name if word.startswith("/") else word for word in words]
    words = [" ".join(word.splitlines()) for word in words]  # no line of its own, where a fence could end
    return " ".join(f"'{word}'" if re.search(r"[\s*?\[\]'\"$&;|<>()]", word) else word for word in words)


def _counts(chain: Chain, run: Run) -> str:
    trained = chain.of("train-rs")
    seeds = sorted({int(node.config.get("seed", 0)) for node in trained})
    commits = sorted(
        {str((n.run.manifest.get("code") or {}).get("commit") or "unknown")[:12] for n in trained if n.run}
    )
    return (
        f"{len(trained)} training runs, seeds {', '.join(map(str, seeds))}, {len(chain.nodes)} runs in the chain; "
        f"code {', '.join(commits)}; report `{run.facts['identity'][:12]}` (`bkrl trace` finds it from any picture)."
    )


def _finding(one: Said) -> str:
    worlds = f"**{_text(one.worlds)}** " if one.worlds else ""
    return f"_{one.word}._ {worlds}{_text(one.text)}"


def _share(x: Estimate) -> str:
    return percent(x.estimate) + x.spread(lambda end: f"{100 * end:.0f}")


def _chance(x: Estimate | None) -> str:
    return "–" if x is None else f"{x.estimate:.2f}" + x.spread("{:.2f}".format)


def _parts(parts: Sequence[Part]) -> str:
    """What a variance is made of: "datasets 4.1 points (60 %), seeds 3.3 points (40 %)"."""
    return ", ".join(f"{one.name} {100 * one.sd:.1f} points ({percent(one.share)})" for one in parts)


def _p(p: Paired | None) -> str:
    return "–" if p is None else f"{p.holm:.2g} ({p.n} {p.units})"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table of cells in which texts of others went through `_text`."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return [line(header), "|" + "---|" * len(header), *(line(row) for row in rows)]


def _text(text: str) -> str:
    """Text of others on one line, in which no markup begins."""
    text = re.sub(r"([\\`*\[\]])|(?<![^\W_])_|_(?![^\W_])", r"\\\g<0>", " ".join(text.split()))
    return re.sub(r"&(?=#?\w+;)", "&amp;", text).replace("<", "&lt;")


def _slug(name: str) -> str:
    """A name as part of a file's name: whole words, as many as fit."""
    words = re.findall(r"[^\W_]+", name.lower())
    if not words:
        raise InputError(f"The name '{name}' holds no letter or digit; make the report again with another --name.")
    fitting = [words[0][:NAME_CHARS]]
    for word in words[1:]:
        if len("-".join([*fitting, word])) > NAME_CHARS:
            break
        fitting.append(word)
    return "-".join(fitting)


def _without_machine(text: str) -> str:
    """Without the place of this checkout: paths below it are named from here."""
    return text.replace(Path.cwd().as_posix() + "/", "")


def main() -> int:
    """The command; its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reports", nargs="+", type=Path, help="report runs, one for each section, in order")
    parser.add_argument("--out", type=Path, default=Path("docs/results.md"), help="page to write")
    parser.add_argument("--images", type=Path, help="folder for its pictures (images/ beside the page)")
    given = parser.parse_args()
    try:
        facts, problems = write_results(given.reports, given.out, given.images or given.out.parent / "images")
    except BkrlError as problem:
        sys.stderr.write(f"{problem}\n")
        return problem.exit_code
    for line in [*(f"warning: {problem}" for problem in problems), f"{facts['out']}: {facts['pictures']} pictures"]:
        sys.stderr.write(f"{line}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
