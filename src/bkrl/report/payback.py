"""After how many tasks of an env what was spent on it once is saved: the dataset, and choosing the method's settings.

One task costs plain PPO T steps to the threshold, and a method r · T. So n tasks cost the method C + n · r · T, and
C is paid back after n = C / (T (1 − r)) tasks. The interval is that of the ratio r, with T as it was measured. Labels
cost requests and money, which no steps pay back; a report's table of costs has them.
"""

from __future__ import annotations

from dataclasses import dataclass

from bkrl.stats.crossings import StepsRatio


@dataclass(frozen=True)
class Payback:
    """Tasks after which `spent` steps are saved.

    Attributes:
        spent: environment steps.
        once: what they are in steps of plain PPO for one task.
        tasks: how many; None: never.
        known: whether there is an interval.
        low, high: its ends; None: never.
        bound: what runs that never got there do to it, as in a ratio: "", "at least", "at most" or "unknown".
    """

    spent: int
    once: float
    tasks: float | None
    known: bool
    low: float | None
    high: float | None
    bound: str

    @classmethod
    def of(cls, spent: int, ratio: StepsRatio, steps: float) -> Payback:
        """Of what was spent, the ratio of steps, and plain PPO's steps for one task."""
        once = spent / steps

        def after(one: float) -> float | None:
            return once / (1.0 - one) if one < 1.0 else None

        ends = (after(ratio.low), after(ratio.high)) if ratio.known else (None, None)
        return cls(spent, once, after(ratio.estimate), ratio.known, *ends, ratio.bound)

    def __str__(self) -> str:
        """ "8.4 (7.0 to 9.9)", "at most 3.0 (2.1 to never)", "never", "not known"."""
        if self.bound == "unknown" or (self.bound == "at most" and self.tasks is None):  # it may yet save some
            return "not known"
        text = "never" if self.tasks is None else f"{self.bound} {_count(self.tasks)}".strip()
        return f"{text} ({_count(self.low)} to {_count(self.high)})" if self.known and self.low is not None else text


def _count(tasks: float | None) -> str:
    return "never" if tasks is None else f"{tasks:.1f}" if tasks < 9.95 else f"{tasks:,.0f}"
