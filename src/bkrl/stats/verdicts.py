"""What may be said of one method against another. Every verdict, in tables and in sentences, is one of these.

Two measures have to agree: the interval of the ratio of steps that stands in the table, and the paired test of mean
success in training, its p adjusted for the number of tests. A word such as "significantly" needs the adjusted p below
`ALPHA`; a word about steps needs the interval on one side of 1; "half" needs the whole interval at or below one half.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bkrl.stats.crossings import StepsRatio
from bkrl.stats.intervals import PairedTest

ALPHA = 0.05
HALF = 0.5


@dataclass(frozen=True)
class Verdict:
    """`sign`: 1 shown to be better, -1 shown to be worse, 0 neither. `words` stand in tables. `sentence` follows the
    name of a method and has places for {goal} (the success to reach) and {other} (what it is compared with).
    """

    sign: int
    words: str
    sentence: str


_HALF = Verdict(1, "at most half the steps", "reached {goal} in at most half the steps of {other}")
_FASTER = Verdict(1, "significantly faster", "reached {goal} significantly faster than {other}")
_SLOWER = Verdict(-1, "significantly slower", "was significantly slower to reach {goal} than {other}")
_MORE = Verdict(
    1,
    "significantly more success",
    "had significantly more success in training than {other}, and fewer steps to {goal} are not shown",
)
_LESS = Verdict(
    -1,
    "significantly less success",
    "had significantly less success in training than {other}, and more steps to {goal} are not shown",
)
_CONTRADICT = Verdict(
    0,
    "steps and mean success contradict each other",
    "is neither better nor worse than {other}: steps to {goal} and mean success in training contradict each other",
)
_NONE = Verdict(0, "no difference shown", "is not shown to differ from {other}")
_NOTHING = Verdict(0, "nothing can be said", "cannot be compared with {other}")


def verdict(ratio: StepsRatio | None, shift: float | None) -> Verdict:
    """The one rule.

    Args:
        ratio: steps to the threshold, over the other's; None where no run got there.
        shift: the difference of mean success if the adjusted p is below `ALPHA`, else 0; None where nothing was tested.
    """
    steps = 0 if ratio is None else ratio.side
    tested = 0 if not shift else 1 if shift > 0 else -1
    if steps * tested < 0:
        return _CONTRADICT
    if steps and tested:
        half = ratio is not None and ratio.high <= HALF
        return _SLOWER if steps < 0 else _HALF if half else _FASTER
    if tested:
        return _MORE if tested > 0 else _LESS
    if steps:
        return _only_steps(steps, shift is not None)
    if ratio is not None and ratio.known:
        return _as_far_as_seen(ratio) or _NONE
    return _NOTHING if shift is None else _NONE


def _only_steps(side: int, tested: bool) -> Verdict:
    word = "faster" if side > 0 else "slower"
    why = "not significant" if tested else "not tested"
    reason = "the test does not confirm it" if tested else "there are no two pairs of seeds to test it over"
    return Verdict(0, f"{word}, {why}", f"reached {{goal}} {word} than {{other}}, but {reason}")


def _as_far_as_seen(ratio: StepsRatio) -> Verdict | None:
    """Where some runs of both never got there, what the others say; None if they say nothing."""
    if ratio.bound != "unknown" or ratio.low <= 1 <= ratio.high:
        return None
    words = f"{'slower' if ratio.low > 1 else 'faster'} as far as seen"
    return Verdict(0, words, f"was {words} than {{other}} to reach {{goal}}, which is no verdict")


def too_few_pairs(tests: Sequence[PairedTest | None]) -> str:
    """A sentence where no p of this family of tests can fall below `ALPHA`, whatever the runs did, else ""."""
    made = [one for one in tests if one is not None]
    smallest = min([1.0, *(len(made) * one.smallest for one in made)])
    if not made or smallest < ALPHA:
        return ""
    needed = math.floor(2 + math.log2(len(made) / ALPHA))
    tested = "1 test" if len(made) == 1 else f"{len(made)} tests (Holm)"
    return (
        f"With {max(one.n for one in made)} shared seeds and {tested} no p can fall below {smallest:.2g}, so nothing "
        f"can be called significant; with {needed} seeds it could."
    )
