"""`bkrl compare A B`: one method against another in every env they share, and what else sets them apart."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bkrl.core.errors import InputError, UsageError
from bkrl.core.files import plain
from bkrl.core.reporter import percent
from bkrl.core.seeds import generator
from bkrl.report.comparison import by_seed, compare, difference
from bkrl.report.groups import NO_EFFECT, Group, final_and_average, grouped, without_repeats
from bkrl.report.model import Difference, ResultRow
from bkrl.report.results import ratio_cell
from bkrl.report.runs import training_runs
from bkrl.runs.folder import no_run
from bkrl.runs.provenance import follow, runs_below
from bkrl.runs.record import Run
from bkrl.stats import intervals as st
from bkrl.stats.variance import compare_over_datasets, several
from bkrl.stats.verdicts import too_few_pairs

TRAINED = ("train-rs",)


@dataclass(frozen=True)
class Contrast:
    """A against B in one env. `settings`: name → (A's, B's) where both have it and it differs."""

    env: str
    horizon: float
    a: ResultRow
    b: ResultRow
    difference: Difference
    final: st.Interval
    average: st.Interval
    settings: dict[str, tuple[str, str]]
    notes: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """In a few words."""
        return f"A against B: {self.difference.verdict.words}"


def contrast(a: str, b: str, threshold: float) -> tuple[list[Contrast], list[str]]:
    """Each env that both sides have, and sentences about all that was left out or may mislead.

    `a`, `b`: a run, a folder of runs, or a pattern in quotes; ":METHOD" after a folder picks one of several methods.

    Raises:
        UsageError: a side holds several methods, no env is shared, or both sides are the same runs.
        InputError: there is no run, or none that can be used.
    """
    paths = [_paths(side) for side in (a, b)]
    chain = follow(list(dict.fromkeys(paths[0][0] + paths[1][0])))
    trained, problems = training_runs(chain, list(chain.nodes.values()))
    problems = [*chain.problems, *problems]
    groups = grouped(trained)
    keys = [{path.resolve() for path in found} for found, _ in paths]
    at = {run.key: Path(run.key).resolve() for run in trained}
    sides = [
        _chosen(side, [replace(one, runs=tuple(run for run in one.runs if at[run.key] in mine)) for one in groups], how)
        for side, mine, (_, how) in zip((a, b), keys, paths, strict=True)
    ]
    repeated: list[str] = []
    for found in sides:  # what stands on both sides repeats nothing: it may be the same command with another bkrl
        for env, group in found.items():
            found[env], notes = without_repeats(group)
            repeated += notes
    for side, found in zip((a, b), sides, strict=True):
        if not found:
            raise InputError(problems[0] if problems else f"{side} holds no train-rs run with an evaluation.")
    shared = [env for env in sides[0] if env in sides[1]]
    if not shared:
        envs = [", ".join(found) for found in sides]
        raise UsageError(f"{a} was trained in {envs[0]} and {b} in {envs[1]}: different envs are never compared.")
    problems += [
        f"{env} is only in {side}; it is left out."
        for side, mine, other in ((a, *sides), (b, *sides[::-1]))
        for env in mine
        if env not in other
    ]
    return [_contrast(env, sides[0][env], sides[1][env], threshold) for env in shared], problems + repeated


def values(found: Sequence[Contrast], problems: Sequence[str]) -> dict[str, Any]:
    """All of it as plain values, for --json."""
    document = {
        "envs": [
            {
                "env": one.env,
                "horizon": one.horizon,
                **{name: _side(row) for name, row in (("a", one.a), ("b", one.b))},
                "difference_of": "means",
                "success_at_the_end": one.final,
                "mean_success_in_training": one.average,
                **vars(one.difference),
                "verdict": one.verdict,
                "settings": {name: list(pair) for name, pair in one.settings.items()},
                "notes": list(one.notes),
            }
            for one in found
        ],
        "problems": problems,
    }
    return plain(document)


def table(one: Contrast, threshold: float) -> tuple[list[str], list[list[str]]]:
    """Header and rows for a terminal."""
    goal = percent(threshold)
    test = one.difference.p
    p = f"{test.value:.3g} ({test.n} {test.units})" if test is not None else "–"
    header = [
        "",
        f"A: {one.a.group.legend} (n = {one.a.n})",
        f"B: {one.b.group.legend} (n = {one.b.n})",
        "A − B, of means",
        "p",
    ]
    ratio = ratio_cell(one.difference.ratio)
    rows = [
        ["success at the end", percent(one.a.final.estimate), percent(one.b.final.estimate),
         _points(one.final), "–"],
        ["mean success in training", percent(one.a.average.estimate), percent(one.b.average.estimate),
         _points(one.average), p],
        [f"steps to {goal}", one.a.steps_text, one.b.steps_text, ratio if ratio == "–" else f"× {ratio}", "–"],
        ["A beats B", "", "", _chance(one.difference), "–"],
        ["shown", "", "", one.verdict, ""],
    ]  # fmt: skip
    return header, rows


def _points(interval: st.Interval) -> str:
    spread = interval.spread(lambda end: f"{100 * end:+.1f}")
    return f"{100 * interval.estimate:+.1f} points{spread or ' (no interval)'}"


def _chance(found: Difference) -> str:
    chance = found.improvement
    if chance is None:
        return f"– (from {st.FEW_SEEDS} runs on each side)"
    return f"{chance.estimate:.2f}{chance.spread('{:.2f}'.format) or ' (no interval)'}"


def _side(row: ResultRow) -> dict[str, Any]:
    return {
        "method": row.group.label,
        "form": row.group.form,
        "guarantee": row.group.guarantee,
        "n": row.n,
        "centre": "interquartile mean" if row.final.method == "bootstrap" else "mean",
        "seeds": sorted(run.seed for run in row.group.runs),
        "final": row.final,
        "average": row.average,
        "reached": row.reached,
        "steps": row.steps,
    }


def _paths(side: str) -> tuple[list[Path], str]:
    """The train-rs runs a side names, and the method asked for ("" for whichever there is)."""
    colons = [at for at, one in enumerate(side) if one == ":"]  # a label may hold some, and so may a folder's name
    for text, method in ((side, ""), *((side[:at], side[at + 1 :]) for at in reversed(colons))):
        if not text:
            continue
        path = Path(text)
        if (path / "config.json").exists():
            Run.open(path, "train-rs", verify=False)
            return [path], method
        if path.is_dir():
            return runs_below(path, TRAINED), method
        try:
            matches = sorted(Path().glob(text)) if not path.is_absolute() else sorted(Path("/").glob(text[1:]))
        except (ValueError, NotImplementedError) as problem:
            raise UsageError(f"{text} is no pattern ({problem}).") from None
        if matches and any(letter in text for letter in "*?["):
            return [run for match in matches for run in runs_below(match, TRAINED)], method
    path = Path(side)
    if path.is_file():
        raise InputError(f"{path} is a file, and a run is a folder; name the folder.")
    raise no_run(path, TRAINED, "run or folder of runs")


def _chosen(side: str, groups: Sequence[Group], method: str) -> dict[str, Group]:
    """Env → the one group of this side; UsageError where there are several."""
    found: dict[str, Group] = {}
    labels = sorted({group.label for group in groups if group.runs})
    there = [group for group in groups if group.runs]
    wanted = [group for group in there if not method or method in (group.label, group.legend)]
    for group in wanted or [group for group in there if method == group.alg and group.control == "none"]:
        if group.env in found:
            raise UsageError(
                f"{side} holds several methods in {group.env}: {', '.join(labels)}; name one, as in "
                f"'{side.removesuffix(f':{method}')}:{found[group.env].label}'."
            )
        found[group.env] = group
    if method and not found:
        raise UsageError(f"{side}: there is no method '{method}' there, but {', '.join(labels) or 'nothing'}.")
    return found


def _contrast(env: str, a: Group, b: Group, threshold: float) -> Contrast:
    if {run.key for run in a.runs} == {run.key for run in b.runs}:
        raise UsageError(f"Both sides are the same runs in {env}; name two.")
    both = compare(env, [a, b], threshold)
    a, b = (row.group for row in both.rows)  # what learns nothing is carried on to the horizon there
    rng = generator(0, "report", "contrast", env, a.label, b.label)
    finals, scores = zip(*(final_and_average(group, both.horizon) for group in (a, b)), strict=True)
    found = difference(a, b, both.horizon, threshold)
    origins = (a.origins, b.origins)  # runs on one dataset say little of another
    datasets = several(*origins)

    def apart(sides: Any, one: st.Interval, other: st.Interval) -> st.Interval:
        """What no test was made of has no interval over datasets."""
        if datasets:
            return st.unknown(one.estimate - other.estimate, datasets)
        return st.mean_difference(sides[0], sides[1], rng)

    average = found.p.difference if found.p else apart(scores, both.rows[0].average, both.rows[1].average)
    end = compare_over_datasets(finals[0], finals[1], origins) if datasets else None
    paired = found.p is not None and found.p.units == "pairs"
    if paired:
        end = st.paired_test(by_seed(a, finals[0]), by_seed(b, finals[1]), rng)
    final = end.difference if end else apart(finals, both.rows[0].final, both.rows[1].final)
    final, average = (one.clipped(least=-1.0) for one in (final, average))
    left, right = a.runs[0].settings, b.runs[0].settings
    settings = {key: (left[key], right[key]) for key in sorted(left) if key in right and left[key] != right[key]}
    settings = {key: sides for key, sides in settings.items() if NO_EFFECT not in sides}
    notes = [*both.notes]
    partly = paired and {run.seed for run in a.runs} != {run.seed for run in b.runs}
    if partly:
        notes.append(f"A − B is over the {final.n} seeds that both have, the columns are over all runs.")
    middle = [name for name, row in zip(("A", "B"), both.rows, strict=True) if row.final.method == "bootstrap"]
    if middle:
        means = "the datasets' means" if datasets else f"means{'' if partly else ' over all of them'}"
        verb, what = ("is", "an interquartile mean") if len(middle) == 1 else ("are", "interquartile means")
        notes.append(
            f"What stands under {' and '.join(middle)} {verb} {what} (of the middle half of the runs), A − B is a "
            f"difference of {means}: the columns need not differ by it."
        )
    notes += filter(None, (st.few_seeds_warning(min(len(a.runs), len(b.runs))), too_few_pairs([found.p])))
    notes += [f"{group.legend}: {group.guarantee}." for group in (a, b) if group.unguarded and group.guarantee]
    return Contrast(
        env, both.horizon, both.rows[0], both.rows[1], found, final, average, settings, tuple(notes),
    )  # fmt: skip
