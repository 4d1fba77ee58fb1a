"""What a report says, as typed values. results.json is one `Results`, timings.json one `Timings`; the page, the
terminal and results/ show the same values.

The fields stand in the order of the files. Shares lie in [0, 1], steps are environment steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NotRequired, TypedDict

from bkrl.report.payback import Payback
from bkrl.stats.crossings import StepsRatio
from bkrl.stats.intervals import Interval, PairedTest
from bkrl.stats.variance import VarianceSplit
from bkrl.stats.verdicts import ALPHA, Verdict, verdict

FORMAT = 3
"""Of results.json: 2 since verdicts follow the adjusted test, 3 since its envs stand under `envs`."""

Tone = Literal["caution", "against", "open", "for"]
TONE_OF: dict[int, Tone] = {1: "for", 0: "open", -1: "against"}
"""By the sign of a verdict."""


@dataclass(frozen=True)
class Difference:
    """One group against another: steps to the threshold, and mean success in training; None where it cannot be said.

    The test's p is adjusted for all tests of its family (all methods against the baseline of an env, or all methods
    against controls).
    """

    ratio: StepsRatio | None = None
    improvement: Interval | None = None
    p: PairedTest | None = None

    @property
    def verdict(self) -> Verdict:
        """What may be said of it."""
        shift = None if self.p is None else self.p.difference.estimate if self.p.holm < ALPHA else 0.0
        return verdict(self.ratio, shift)


@dataclass(frozen=True)
class VersusControl:
    """A method against a control. `borrowed`: it was made for another method, and holds none of its labels. `tone` is
    that of a `Finding`.
    """

    control: str
    borrowed: bool
    verdict: str
    tone: str
    ratio: StepsRatio | None
    improvement: Interval | None
    p: PairedTest | None

    @classmethod
    def of(cls, control: str, borrowed: bool, found: Difference) -> VersusControl:
        """The finding against a control."""
        return cls(control, borrowed, found.verdict.words, TONE_OF[found.verdict.sign], **vars(found))

    @property
    def difference(self) -> Difference:
        """The finding."""
        return Difference(self.ratio, self.improvement, self.p)


@dataclass(frozen=True)
class ResultRow:
    """One method in one env; None where something cannot be said. `ratio`, `improvement` and `p` are against plain
    PPO.

    `split`: variance of mean success between datasets, draws of labels and seeds, where there are several of those.
    `slot` and `dash` are its look, `grid` the steps between its evaluations, `group` the runs.
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
    versus: Sequence[VersusControl] = ()
    ratio: StepsRatio | None = None
    improvement: Interval | None = None
    p: PairedTest | None = None
    slot: int = 0
    dash: str = ""
    payback: Payback | None = None
    grid: float = 0.0
    group: Any = field(default=None, compare=False, metadata={"kept": False})

    @property
    def against(self) -> Difference | None:
        """The finding against plain PPO."""
        return Difference(self.ratio, self.improvement, self.p) if self.verdict else None

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
    """All methods in one env over its first `horizon` steps; `measure`: success, or what stands in its place."""

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
    envs: str


@dataclass(frozen=True)
class FormUse:
    """A form of shaping, and the methods that use it."""

    form: str
    algs: Sequence[str]
    what: str
    guarantee: str
    unguarded: bool


class Evaluated(TypedDict):
    """Frozen policies of one method in one env: success over seeds, by how actions were chosen."""

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
    envs: Sequence[EnvResults]
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
