"""Write the pages of studies in results/ from report runs, and the index of all pages with its forest plot. Nothing in them is
typed, and the same runs give the same bytes.

python results/pages.py REPORT … [--out results]     # one page for each report run, then the index
python results/pages.py                              # the index alone, from the pages that are there
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote

from bkrl.core.errors import BkrlError, InputError, UsageError
from bkrl.core.files import atomic_write, make_folder, read_json
from bkrl.core.reporter import duration, percent
from bkrl.report.groups import picture_files, short_env
from bkrl.report.model import FORMAT, Cost, EnvResults, Evaluated, ResultRow, Results, Said, Timings
from bkrl.report.pages.html import figure
from bkrl.runs.provenance import Chain, Node, follow
from bkrl.runs.record import Run
from bkrl.stats.crossings import bounded
from bkrl.stats.intervals import Interval, PairedTest, step_label
from bkrl.stats.variance import Part

sys.path.insert(0, str(Path(__file__).parent))
from index import make_index

NAME_CHARS = 40
ALIKE = 3
"""So many findings in the same words are one sentence with a list."""
MADE = "<!-- made by results/pages.py -->"
READING = """How to read this page: intervals are 95 %; n is the number of training runs (seeds × draws of labels); "× PPO's steps"
below 1 is faster; controls stand in italics. [Statistics](../docs/statistics.md) says how the figures are computed,
[shaping](../docs/shaping.md) what each form of shaping keeps, [the index](README.md) what the other studies found.
"""


def write_results(reports: Sequence[Path], out: Path) -> tuple[dict[str, Any], list[str]]:
    """Write a page with its pictures for each report run, then the index of all pages of the folder. Pages of other
    studies stay as they are, and so does a paragraph that was written by hand below a page's picture.

    Returns the facts of what was written, and sentences about runs that are gone or were changed since a report was made.

    Raises:
        UsageError: two reports have the same title or name, or `out` is a file.
        InputError: a folder is no complete report run, was changed, or was made by another bkrl; or a page of that name
            was not made by this command.
    """
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out} is a file; name a folder with --out.")
    runs = [Run.open(path, "report") for path in reports]
    settings = [run.config["config"] for run in runs]
    slugs = [_slug(str(one.get("name") or one["title"])) for one in settings]
    for what, given in (("title", [str(one["title"]) for one in settings]), ("name", slugs)):
        if twice := sorted({one for one in given if given.count(one) > 1}):
            raise UsageError(f"Two reports have the {what} '{twice[0]}'; give each its own with --{what}.")
    problems: list[str] = []
    files: dict[Path, bytes] = {}
    for run, slug in zip(runs, slugs, strict=True):
        chain = follow([run.path])
        problems += chain.problems
        page = out / f"{slug}.md"
        text, pictures = _page(run, chain, slug, _by_hand(page))
        files[page] = _without_machine(text).encode()
        files |= {out / "images" / name: source.read_bytes() for name, source in pictures.items()}
    make_folder(out / "images")
    for path, content in files.items():
        atomic_write(path, content)
    make_index(out)
    return {"out": out.as_posix(), "pages": len(reports), "pictures": len(files) - len(reports)}, problems


def _by_hand(page: Path) -> str:
    """The paragraph of a page that somebody wrote by hand; "" where there is none.

    Raises:
        InputError: the file there is no page of this command.
    """
    if not page.exists():
        return ""
    text = page.read_bytes().decode("utf-8", "replace")
    if MADE not in text:
        raise InputError(f"{page} is there already, and results/pages.py did not make it; name another --out.")
    found = re.search(r"^_[^\n]{0,40}by hand\b.*?_$\n\n", text, re.M | re.S | re.I)
    return found[0] if found else ""


def _page(run: Run, chain: Chain, slug: str, by_hand: str) -> tuple[str, dict[str, Path]]:
    """The page of a report run, and its pictures by their names."""
    if read_json(run.file("results.json")).get("format") != FORMAT:
        raise InputError(
            f"{run.path} was made by another bkrl, whose verdicts follow another rule; make it again with the command "
            f"that bkrl show {run.path} names."
        )
    results: Results = read_json(run.file("results.json"), Results)
    timings: Timings = read_json(run.file("timings.json"), Timings)
    names = _picture_names(slug, [section.env for section in results.envs])
    pictures: dict[str, Path] = {}
    for env, name in names.items():
        for file, dark in picture_files("curves", env).items():
            pictures[f"{name}{'-dark' if dark else ''}.png"] = run.file(file)
    shown = [_picture(names[section.env], section) for section in results.envs]  # none where policies alone are shown
    lines = [
        f"# {_text(results.title)}",
        "",
        MADE,
        "",
        f"**{_text(results.headline)}**",
        "",
        *(shown[0] if shown else []),
        by_hand.rstrip(),
        "",
    ]
    lines += [*_glance(results), "", "<details><summary>Made with</summary>", ""]
    lines += ["```sh", *_commands(chain), "```", "", _counts(chain, run), "", "</details>", ""]
    if chain.problems:
        lines += ["Not as it was when the report was made:", "", *(f"* {_text(one)}" for one in chain.problems), ""]
    lines += ["## What the numbers say", "", *_findings(results), ""]
    for section, picture in zip(results.envs, [[], *shown[1:]], strict=bool(shown)):
        lines += [f"## {_text(section.env)}", "", section.solved and f"Success: {_text(section.solved)}", "", *picture]
        lines += _world(section, results.threshold)
    if results.evaluated:
        lines += ["## Frozen policies on episodes never seen in training", "", *_evaluated(results.evaluated), ""]
    lines += ["## Forms of shaping", ""]
    lines += _table(
        ["form", "methods", "what is added to the reward", "guarantee"],
        [[_text(words) for words in (one.form, ", ".join(one.algs), one.what, one.guarantee)] for one in results.forms],
    )
    lines += ["", "## Cost", "", *_costs(results.costs, timings), "", READING]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)), pictures


def _picture_names(slug: str, envs: Sequence[str]) -> dict[str, str]:
    """The name of each env's picture; ids that are alike as far as a name goes are numbered."""
    names: dict[str, str] = {}
    for env in envs:
        name, number = f"{slug}-{_slug(short_env(env))}", 1
        while name in names.values():
            number += 1
            name = f"{slug}-{_slug(short_env(env))}-{number}"
        names[env] = name
    return names


def _picture(name: str, section: EnvResults) -> list[str]:
    """The picture of an env, for light and for dark pages."""
    light, dark = (quote(f"images/{name}{end}.png") for end in ("", "-dark"))
    alt = f"{section.measure.capitalize()} rate against environment steps in {section.env}: {_final_success(section)}"
    return [
        f'<picture><source media="(prefers-color-scheme: dark)" srcset="{dark}">',
        f'<img alt="{escape(alt)}" src="{light}"></picture>',
        "",
    ]


def _findings(results: Results) -> list[str]:
    """The findings, where those that say the same of several methods are one sentence with a list."""
    labels = sorted({row.label for section in results.envs for row in section.rows}, key=len, reverse=True)
    return list_findings(results.findings, labels)


def list_findings(findings: Sequence[Said], labels: Sequence[str]) -> list[str]:
    """Each finding as a line; `ALIKE` or more that differ in methods, envs and figures alone are one.

    labels: names of methods, the longest first.
    """
    name = "|".join(rf"(?<![\w+(-]){re.escape(label)}(?! \((?!made for))(?![\w+-])" for label in labels) or r"(?!)"
    alike: dict[tuple[str, str], list[Said]] = {}
    for one in findings:
        said = re.sub(name, "…", re.sub(r" \(none: [^)]*\)", "", one.text))
        said = said.partition(": ")[0] if _figures(one.text) else said
        alike.setdefault((one.word, said), []).append(one)
    lines = []
    for (word, said), group in alike.items():
        if len(group) < ALIKE or "…" not in said:
            lines += [f"* {_finding(one)}" for one in group]
            continue
        where: dict[str, list[str]] = {}
        for one in group:
            who = re.findall(name, one.text.partition(": ")[0])[:2]
            where.setdefault(one.envs, []).append(f"{' against '.join(who)} {_figures(one.text)}".strip())
        said = (
            said.removeprefix("…")
            .lstrip(": ")
            .replace("its control …", "its control")
            .replace("The control …", "A control")
        )
        listed = "; ".join(
            f"{f'**{_text(env)}** ' if env else ''}{_text(', '.join(all_))}" for env, all_ in where.items()
        )
        lines.append(f"* _{word}._ {_text(said[0].upper() + said[1:].rstrip('.'))}: {listed}.")
    return lines


def _figures(text: str) -> str:
    """The ratio of steps in a finding, with its interval."""
    found = re.search(
        r": (?:the ratio of steps is (not known)|((?:at \w+ )?[\d.]+) of [\w’ ]+ steps), 95 % interval ([\d.]+ to [\d.]+)",
        text,
    )
    return f"{found[1] or found[2]} ({found[3]})" if found else ""


def _glance(results: Results) -> list[str]:
    """Each method in each env: × PPO's steps, and what may be said of it."""
    cells: dict[str, dict[str, str]] = {}
    for section in results.envs:
        for row in section.rows:
            if not row.baseline:
                cells.setdefault(_name(row), {})[section.env] = f"{row.ratio or '–'}<br>{row.verdict or '–'}"
    if not cells:
        return []
    envs = [section.env for section in results.envs]
    ordered = sorted(cells, key=lambda label: label.startswith("_"))
    rows = [[label, *(cells[label].get(env, "–") for env in envs)] for label in ordered]
    return ["× PPO's steps:", "", *_table(["", *map(short_env, envs)], rows)]


def _name(row: ResultRow) -> str:
    return f"_{_text(row.label)}_" if row.control else f"**{_text(row.label)}**"


def _world(section: EnvResults, threshold: float) -> list[str]:
    goal = percent(threshold)
    header = [
        "method", "form", "n", f"{section.measure} at the end", f"mean {section.measure} in training", f"reached {goal}",
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
        for row in section.rows
    ]
    lines = [f"All methods over the first {step_label(section.horizon)} steps.", "", *_table(header, rows), ""]
    tests = [
        [
            f"**{_text(row.label)}**",
            f"_{_text(one.control)}_" + (" (made for another method)" if one.borrowed else ""),
            one.verdict,
            str(one.ratio or "–"),
            _chance(one.improvement),
            _p(one.p),
        ]
        for row in section.rows
        for one in row.versus
    ]
    if tests:
        header = ["method", "against its control", "shown", "× the control's steps", "P(better)", "paired p (Holm)"]
        lines += [*_table(header, tests), ""]
    splits = [row.split for row in section.rows if row.split]
    if splits:
        header = ["method", "n", "what mean success varies with (standard deviation, share of the variance)"]
        header += ["F test p", "mean over what is drawn first"]
        body = [
            [_text(one.label), str(one.n), _parts(one.parts), f"{one.p:.2g}", _share(one.over_draws)] for one in splits
        ]
        lines += [*_table(header, body), ""]
    return lines


def _final_success(section: EnvResults) -> str:
    return "; ".join(f"{row.label} {percent(row.final.estimate)} at the end" for row in section.rows)


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
    return _table(["env", "method", "n", "success, actions sampled", "success, likeliest actions"], body)


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
            "–" if row.requests is None else "not known" if row.money is None else f"{row.money:.2f}",
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
        given = (word for before, word in pairwise(words) if not before.startswith("--"))  # a flag's value is no run
        parents = (Path(word).parent for word in given if "/" in word[:-1])
        folders = dict.fromkeys(f"{one.name if one.is_absolute() else one.as_posix()}/*" for one in parents)
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
    envs = f"**{_text(one.envs)}** " if one.envs else ""
    return f"_{one.word}._ {envs}{_text(one.text)}"


def _share(x: Interval) -> str:
    return percent(x.estimate) + x.spread(lambda end: f"{100 * end:.0f}")


def _chance(x: Interval | None) -> str:
    return "–" if x is None else f"{x.estimate:.2f}" + x.spread("{:.2f}".format)


def _parts(parts: Sequence[Part]) -> str:
    """What a variance is made of: "datasets 4.1 points (60 %), seeds 3.3 points (40 %)"."""
    return ", ".join(f"{one.name} {100 * one.sd:.1f} points ({percent(one.share)})" for one in parts)


def _p(p: PairedTest | None) -> str:
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
    parser.add_argument("reports", nargs="*", type=Path, help="report runs, one for each page; none: the index alone")
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder of the pages")
    given = parser.parse_args()
    try:
        facts, problems = write_results(given.reports, given.out)
    except BkrlError as problem:
        sys.stderr.write(f"{problem}\n")
        return problem.exit_code
    for line in [
        *(f"warning: {problem}" for problem in problems),
        f"{facts['out']}: {facts['pages']} pages, {facts['pictures']} pictures",
    ]:
        sys.stderr.write(f"{line}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
