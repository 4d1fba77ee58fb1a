"""Which runs belong together: of one method in one env, differing in seed (and in dataset and labels) alone.

Runs are pooled over seeds only when they agree in everything else; envs are never pooled. What sets runs of one
algorithm apart (a control, another annotator, another setting) becomes part of their label.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bkrl.core.errors import UsageError
from bkrl.core.files import plain
from bkrl.core.flags import flags_of
from bkrl.methods import find_method
from bkrl.stats import curves
from bkrl.stats.curves import Series

_TITLE = re.compile(r"\s*((?!\s)(?:[^=(]|\(.*?\))+?)\s*=\s*(\S.*?)\s*")  # NAME=TITLE; in brackets NAME has = of its own
NO_EFFECT = "–"  # in place of a setting's value
SUCCESS, RETURN, LENGTH = "eval/success_rate", "eval/return", "eval/length"


def entry_of(run: str) -> str:
    """The name of a study's training run without its draws and its seed."""
    return re.sub(r"(-d\d+)?(-l\d+)?-s\d+$", "", run)


@dataclass(frozen=True)
class Trained:
    """One training run, as far as a comparison needs it.

    `settings`: what must agree for runs to be pooled. `dataset`, `potential`: hashes of what it rests on, "" where it
    rests on none; the first in both for a clone, "as" before the second where the policy it begins as rests on it.
    `empty`: its shaping takes advice, and there was none to take.
    """

    key: str
    env: str
    alg: str
    seed: int
    settings: Mapping[str, str]
    series: Mapping[str, Series]
    control: str = "none"
    annotator: str = ""
    collect_steps: int = 0
    dataset: str = ""
    potential: str = ""
    doubts: tuple[str, ...] = ()
    form: str = "none"
    guarantee: str = ""
    empty: bool = False


@dataclass(frozen=True)
class Group:
    """Runs of one method in one env, differing in seed (and in dataset and labels) alone."""

    env: str
    alg: str
    label: str
    control: str
    runs: tuple[Trained, ...]
    title: str = ""

    @property
    def name(self) -> str:
        """What pages call it: the title that a person gave it, else its label, after which random draws are named."""
        return self.title or self.label

    @property
    def form(self) -> str:
        """The form of shaping, such as "pbrs"; "none" without any."""
        return self.runs[0].form

    @property
    def guarantee(self) -> str:
        """What the form keeps, in a sentence; it begins with "none" where nothing is kept, be it in one run alone."""
        said = [run.guarantee for run in self.runs]
        return next(filter(_is_none, said), said[0])

    @property
    def unguarded(self) -> bool:
        """Whether what is optimal may have been changed: said wherever its result is shown."""
        return _is_none(self.guarantee)

    @property
    def doubt(self) -> str:
        """Why its potential may mislead, in a sentence; "" where nothing was found against it."""
        doubted = {run.potential: run.doubts for run in self.runs if run.doubts}
        if not doubted:
            return ""
        made = len({run.potential for run in self.runs})
        which = "its potential" if made == 1 else f"{len(doubted)} of its {made} potentials"
        why = "; ".join(next(iter(doubted.values()))) + (" (the first of them)" if len(doubted) > 1 else "")
        return f"{self.name}: {which} may mislead: {why}."

    @property
    def legend(self) -> str:
        """The label with its form of shaping, and a warning where that keeps nothing or where it is an oracle's."""
        form = f" · {self.form}" if self.form not in ("none", "novelty", "") and self.form not in self.name else ""
        oracle = " · not for claims" if self.is_oracle else ""
        return self.name + ("" if self.title else form) + oracle + (" · no guarantee" if self.unguarded else "")

    @property
    def origins(self) -> list[tuple[str, str]]:
        """Dataset and potential of each run."""
        return [(run.dataset, run.potential) for run in self.runs]

    @property
    def is_clone(self) -> bool:
        """Whether it learns from a dataset alone: its steps are samples."""
        return self.runs[0].dataset == self.runs[0].potential != ""

    @property
    def empty(self) -> bool:
        """Whether there was no advice to take: "advice" is plain PPO then."""
        return self.runs[0].empty

    @property
    def is_baseline(self) -> bool:
        return is_baseline(self.label)

    @property
    def is_control(self) -> bool:
        return self.control != "none"

    @property
    def is_oracle(self) -> bool:
        """Whether it knows the task: something to look at beside the others, not something a method has to beat."""
        return self.control.startswith("oracle")

    @property
    def is_method(self) -> bool:
        """Whether it carries background knowledge: shaped, no control, and no plain PPO under another name."""
        method = find_method(self.alg)
        informed = method is not None and method.informed
        return informed and not self.is_control and not (self.empty and self.form == "advice")


def _is_none(guarantee: str) -> bool:
    return guarantee.lower().startswith("none")


def is_baseline(name: str) -> bool:
    """Whether a method of this name is what others are compared with."""
    method = find_method(name)
    return method is not None and method.baseline == name


def short_env(env_id: str) -> str:
    """The name of an env without what many share: "GoToLocal-RedBall-S20" of BabyAI-Text-GoToLocal-RedBall-S20."""
    return env_id.partition("-Text-")[2] or env_id


def picture_files(kind: str, env: str) -> dict[str, bool]:
    """The files of a report's pictures of an env, whose id may hold a path, and whether each is for dark pages."""
    return {f"{kind}-{env.replace('/', '%2F')}{end}.png": bool(end) for end in ("", "-dark")}


def group_runs(runs: Sequence[Trained]) -> tuple[list[Group], list[str]]:
    """Groups in table order (baseline, methods, controls; envs by name), and sentences about what was left out."""
    found = [without_repeats(group) for group in grouped(runs)]
    return [group for group, _ in found], [note for _, notes in found for note in notes]


def titled(groups: Sequence[Group], titles: Sequence[str]) -> tuple[list[Group], list[str]]:
    """The groups under the names that NAME=TITLE gives them, and a sentence for each title that could not be given.

    NAME is a label, or what the names of a group's runs begin with before the seed, as the entry of a study.

    Raises:
        UsageError: one is no NAME=TITLE.
    """
    wanted = {}
    for given in titles:
        if (parts := _TITLE.fullmatch(given)) is None:
            raise UsageError(f"A title is written NAME=TITLE, not '{given}'.")
        wanted[parts[1]] = parts[2]
    found, used = [], set()
    for group in groups:
        names = [group.label, *sorted({entry_of(Path(run.key).name) for run in group.runs})]
        used.update(names)
        found.append(replace(group, title=next((wanted[name] for name in names if name in wanted), "")))
    notes = [f"No method here is named '{name}', so its title is not used." for name in wanted if name not in used]
    counts = Counter((group.env, group.name) for group in found)
    if twice := {name for (_, name), count in counts.items() if count > 1}:
        notes += [
            f"Several methods of an env would be called '{name}'; they keep their labels." for name in sorted(twice)
        ]
        found = [replace(group, title="") if group.name in twice else group for group in found]
    return found, notes


def grouped(runs: Sequence[Trained]) -> list[Group]:
    """Groups in table order, of all runs."""
    groups: list[Group] = []
    for env in sorted({run.env for run in runs}):
        here = [run for run in runs if run.env == env]
        for alg in sorted({run.alg for run in here}, key=lambda alg: (not is_baseline(alg), alg)):
            same = [run for run in here if run.alg == alg]
            by_label: dict[str, list[Trained]] = {}
            for run, label in zip(same, _labels(same, here), strict=True):
                by_label.setdefault(label, []).append(run)
            groups += [Group(env, alg, label, own[0].control, tuple(own)) for label, own in by_label.items()]
    return sorted(groups, key=lambda g: (g.env, not g.is_baseline, g.is_control, g.label))


def carried_on(groups: Sequence[Group]) -> list[Group]:
    """The groups; evaluations of what learns nothing hold as far as the longest run of the others goes."""
    end = max((run.series[SUCCESS][0][-1] for group in groups for run in group.runs), default=0)

    def to_the_end(run: Trained) -> Trained:
        method = find_method(run.alg)
        if method is None or method.learns:
            return run
        series = {
            name: (np.append(steps, end), np.append(values, values[-1]))
            if name.startswith("eval/") and steps[-1] < end
            else (steps, values)
            for name, (steps, values) in run.series.items()
        }
        return replace(run, series=series)

    return [replace(group, runs=tuple(map(to_the_end, group.runs))) for group in groups]


def without_repeats(group: Group) -> tuple[Group, list[str]]:
    """The group without runs that repeat a seed with the same potential, which would add no information to n, and a
    sentence for each of them.
    """
    kept: dict[tuple[int, str], Trained] = {}
    notes = []
    for run in sorted(group.runs, key=lambda run: (run.seed, run.potential, run.key)):
        if kept.setdefault((run.seed, run.potential), run) is not run:
            notes.append(
                f"{run.key} repeats {group.env}, {group.label}, seed {run.seed} with the same potential; it is counted "
                "once."
            )
    return replace(group, runs=tuple(kept.values())), notes


def _labels(runs: Sequence[Trained], everybody: Sequence[Trained]) -> list[str]:
    """One label for each run of an algorithm in an env: the algorithm, and what sets it apart from the others.

    `everybody`: the runs of all algorithms there. PPO that begins as a policy is plain only beside what does, too.

    What all runs have needs no mention, and what is a method's default; of other settings, what most runs have.
    """
    keys = {key for run in runs for key in run.settings} - {"compat", "rm.part", "rm.advice"}
    told = [{"steps": NO_EFFECT, **run.settings} for run in runs]  # a setting where something falls to their end
    if is_baseline(runs[0].alg):  # plain, it rests on nothing; of others, what they begin as or are guided by is named
        inputs = {key for key in keys if key.startswith(("collect.", "label.", "rm."))}
        told = [one if inputs & one.keys() else dict.fromkeys(inputs, NO_EFFECT) | one for one in told]
    effective = {key: [one.get(key, "") for one in told if one.get(key) != NO_EFFECT] for key in keys}
    usual = {key: Counter(values).most_common() for key, values in effective.items()}
    # Ties go to the first in the alphabet, so that labels are stable.
    common = {key: min((one for one, n in counts if n == counts[0][1]), default="") for key, counts in usual.items()}
    defaults = _defaults(runs[0].alg)
    common |= {key: defaults[key] for key in keys & defaults.keys() if len(usual[key]) > 1}
    if is_baseline(runs[0].alg):
        values = {key: {one.settings.get(key, "") for one in everybody} for key in keys & {"init_from", "guide"}}
        common |= {key: "" for key, own in values.items() if len(own) > 1}
    drawn = ("labels", "advice")  # controls whose name says who answered
    annotators = {run.annotator for run in runs if run.annotator and not run.control.endswith(drawn)}
    labels = []
    for run, settings in zip(runs, told, strict=True):
        parts = [] if run.form in ("none", "pbrs", "novelty") else [run.form]
        if defects := run.settings.get("compat", ""):  # named even where all runs have them
            parts.append(f"defects {defects}")
        parts += [] if run.settings.get("rm.part", "whole") == "whole" else [run.settings["rm.part"]]
        parts += [] if run.control == "none" else [run.control]
        parts += ["empty"] if run.empty and run.control != "zero" else []
        named = len(annotators) > 1 or run.annotator != "rules"  # `rules` alone is what is usual, and is said elsewhere
        if named and run.annotator and not run.control.endswith(drawn):
            parts.append(run.annotator)
        parts += [
            f"{key}={settings.get(key, 'default')}"
            for key in sorted(keys)
            if settings.get(key, "") not in (common[key], NO_EFFECT)
        ]
        labels.append(run.alg + (f" ({', '.join(parts)})" if parts else ""))
    return labels


def _defaults(alg: str) -> dict[str, str]:
    """A method's settings where nothing is said, written as in `Trained.settings`; none of an unknown method."""
    method = find_method(alg)
    own = flags_of(method.settings) if method is not None else []
    return {".".join(one.path): "" if one.default is None else str(plain(one.default)) for one in own}


def curves_of(group: Group, metric: str) -> list[Series]:
    """The runs' curves of one metric; runs without it are left out."""
    found = [run.series[metric] for run in group.runs if metric in run.series]
    return [curve for curve in found if np.isfinite(curve[1]).any()]


def final_and_average(group: Group, horizon: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(n,) success at the end, and (n,) mean success in training, of each run over the first `horizon` steps."""
    finals, averages = np.array([curves.final_and_average(*run.series[SUCCESS], horizon) for run in group.runs]).T
    return finals, averages
