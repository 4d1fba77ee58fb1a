"""What a report says, as typed values. results.json is one `Results`, timings.json one `Timings`; the page, the
terminal and results/ show the same values.

The fields stand in the order of the files. Shares lie in [0, 1], steps are environment steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NotRequired, TypedDict

from bkrl.report.payback import Payback
from bkrl.stats.crossings import StepsRatio
from bkrl.stats.intervals import Interval, PairedTest
from bkrl.stats.variance import VarianceSplit

FORMAT = 2
"""Of results.json: 2 since verdicts follow the adjusted test."""


@dataclass(frozen=True)
class VersusControl:
    """A method against a control; `borrowed`: one that was made for another method. `tone` is that of a `Finding`."""

    control: str
    borrowed: bool
    verdict: str
    tone: str
    ratio: StepsRatio | None
    improvement: Interval | None
    p: PairedTest | None


@dataclass(frozen=True)
class ResultRow:
    """One method in one world; `ratio`, `improvement` and `p` are against plain PPO.

    `slot` and `dash` are its look, `grid` the steps between its evaluations.
    """

    label: str
    alg: str
    form: str
    guarantee: str
    unguarded: bool
    control: bool
    baseline: bool
    n: int
    seeds: str
    draws: int
    datasets: int
    rests_on: str
    final: Interval
    average: Interval
    reached: int
    steps: float
    steps_text: str
    steps_interval: Interval
    verdict: str
    with_collection: float | None
    collected: int | None
    split: VarianceSplit | None
    versus: Sequence[VersusControl]
    ratio: StepsRatio | None
    improvement: Interval | None
    p: PairedTest | None
    slot: int
    dash: str
    payback: Payback | None = None
    grid: float = 0.0

    @property
    def form_text(self) -> str:
        """The form of shaping, marked where it keeps nothing."""
        return "–" if self.form == "none" else self.form + (", no guarantee" if self.unguarded else "")


@dataclass(frozen=True)
class CurveLine:
    """A curve and its interval at the points `x`."""

    x: Sequence[float]
    y: Sequence[float | None]
    low: Sequence[float | None]
    high: Sequence[float | None]


@dataclass(frozen=True)
class Curves:
    """The curves of one figure."""

    metric: str
    panel: str
    lines: Sequence[str]
    bands: Sequence[CurveLine]


@dataclass(frozen=True)
class EnvResults:
    """All methods in one world over its first `horizon` steps; `measure`: success, or what stands in its place."""

    env: str
    solved: str
    rules: str
    horizon: float
    rows: Sequence[ResultRow]
    curves: Sequence[Curves]
    measure: str = "success"


@dataclass(frozen=True)
class Said:
    """One sentence of the summary; `word` says its `tone`."""

    tone: str
    word: str
    text: str
    worlds: str


@dataclass(frozen=True)
class FormUse:
    """A form of shaping, and the methods that use it."""

    form: str
    algs: Sequence[str]
    what: str
    guarantee: str
    unguarded: bool


class Evaluated(TypedDict):
    """Frozen policies of one method in one world: success over seeds, by how actions were chosen."""

    env: str
    alg: str
    elsewhere: str
    n: int
    sampled: NotRequired[Interval]
    greedy: NotRequired[Interval]


# One policy's evaluation. "return" cannot be the name of a field in a class.
Evaluation = TypedDict(
    "Evaluation",
    {
        "alg": str,
        "seed": str,
        "env": str,
        "mode": str,
        "elsewhere": str,
        "episodes": int | None,
        "success": float | None,
        "low": float | None,
        "high": float | None,
        "return": float | None,
        "length": float | None,
    },
)


@dataclass(frozen=True)
class GoalRow:
    """One method where goals were suggested: `quality`, the shares of good, badly timed, nonsensical and impossible
    ones ({} for a method without goals), and achievements in an episode of the frozen policy, means over `n` runs.
    """

    env: str
    method: str
    n: int
    quality: Mapping[str, Interval]
    achievements: Interval


@dataclass(frozen=True)
class Cost:
    """What the runs of one stage cost, as far as it does not change when they are run again."""

    stage: str
    runs: int
    steps: int | None
    requests: int | None
    tokens: int | None
    money: float | None


@dataclass(frozen=True)
class Results:
    """results.json: no clock, path or hash is in it, so that the same study run again gives the same bytes.

    `task_set`: "first" or "second" where all runs are of that set of tasks and seeds, else "".
    """

    format: int
    title: str
    headline: str
    findings: Sequence[Said]
    problems: Sequence[str]
    threshold: float
    worlds: Sequence[EnvResults]
    forms: Sequence[FormUse]
    evaluated: Sequence[Evaluated]
    evaluations: Sequence[Evaluation]
    costs: Sequence[Cost]
    task_set: str = ""
    goals: Sequence[GoalRow] = ()


@dataclass(frozen=True)
class Time:
    """Seconds in the loops of one stage's runs; requests that were sent, and those found in the store."""

    stage: str
    seconds: float | None
    sent: int | None
    cached: int | None


@dataclass(frozen=True)
class Timings:
    """timings.json: what differs each time."""

    timings: Sequence[Time]
