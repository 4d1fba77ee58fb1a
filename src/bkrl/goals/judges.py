"""Judges: who says whether a thing belongs in a place. Suggesters of an env in which things are put away.

A question is a pair of words as captions have them: ("golf ball", "living room shelf"). A judge answers with the
probability of yes. `oracle`, `noisy` and `zs_mlm` read the data pack; `novelty` and `uniform` know nothing; all other
names are annotators, which are asked (`closed.AskedJudge`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from bkrl.core.errors import UsageError
from bkrl.core.seeds import generator
from bkrl.goals.protocol import Adviser, Known

Question = tuple[str, str]
"""A thing and a place, in words."""


class Judge(Adviser, Protocol):
    """Answers questions, each of which it is asked once.

    Attributes:
        knows: whether it knows anything; one that does not suggests every deed.
    """

    knows: bool

    def judge(self, questions: Sequence[Question]) -> list[float | None]:
        """The probability of yes; NaN where it has no opinion, None where its answer has not come yet."""

    def poll(self) -> Mapping[Question, float]:
        """What has become known since the last call."""


class KnownJudge(Known):
    """A judge that knows its answers at once.

    Args:
        name: see `Judge`.
        answer: a question's probability of yes.
        knows: see `Judge`.
        said: what a manifest says of it.
    """

    def __init__(
        self, name: str, answer: Callable[[Question], float], knows: bool = True, said: Mapping[str, Any] | None = None
    ) -> None:
        self.name, self.knows, self._answer, self.said = name, knows, answer, dict(said or {})

    def judge(self, questions: Sequence[Question]) -> list[float | None]:
        return [self._answer(question) for question in questions]


def noisy(truth: Judge, accuracy: float, seed: int) -> KnownJudge:
    """The answers of `truth`, each of which is kept with probability `accuracy` and turned round otherwise.

    A question's error is drawn once, from the seed and its words, so it is the same in every process.
    """
    if not 0 <= accuracy <= 1:
        raise UsageError(f"The accuracy of noisy votes lies within 0 and 1, not at {accuracy:g}.")

    def answer(question: Question) -> float:
        (known,) = truth.judge([question])
        assert known is not None
        kept = generator(seed, "noisy votes", *question).random() < accuracy
        return known if kept else 1.0 - known

    return KnownJudge("noisy", answer, said={"accuracy": accuracy})


@dataclass(frozen=True)
class Scores:
    """How well a judge knows where things belong, over the questions that it has an opinion on.

    Attributes:
        questions: how many there were.
        answered: share of them with an opinion; one without counts as no.
        base: share whose true answer is yes.
        accuracy: share of right answers.
        precision: share of true ones among its yes; NaN without any.
        recall: share of right answers among the true yes; NaN without any.
        balanced: mean of `recall` and `wrong_accuracy`; .5 is a coin.
        wrong_accuracy: share of right answers among the true no.
    """

    questions: int
    answered: float
    base: float
    accuracy: float
    precision: float
    recall: float
    balanced: float
    wrong_accuracy: float

    def weighted(self, base: float) -> Self:
        """What these figures of a sample, half of which is right, say of all questions, a share `base` of which is."""
        hits, slips = base * self.recall, (1 - base) * (1 - self.wrong_accuracy)
        precision = hits / (hits + slips) if hits + slips else float("nan")
        return replace(self, base=base, accuracy=hits + (1 - base) * self.wrong_accuracy, precision=precision)


def scores(said: Sequence[float | None], truth: Sequence[bool], threshold: float = 0.5) -> Scores:
    """How answers compare with the truth; yes is a probability above `threshold`."""
    if len(said) != len(truth):
        raise ValueError(f"{len(said)} answers to {len(truth)} questions")
    yes = np.array([one is not None and one > threshold for one in said], bool)
    right, silent = np.array(truth, bool), np.array([one is None or one != one for one in said], bool)
    recall, wrong = _share(yes[right]), _share(~yes[~right])
    answered, base, accuracy, precision = map(_share, (~silent, right, yes == right, right[yes]))
    return Scores(len(truth), answered, base, accuracy, precision, recall, (recall + wrong) / 2, wrong)


def _share(found: NDArray[np.bool_]) -> float:
    return float(found.mean()) if len(found) else float("nan")
