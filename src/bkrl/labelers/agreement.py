"""Figures of agreement, each with its interval and the number of things it was measured on.

Answers to the same question depend on each other, so a question counts once however often it was asked: a rate is the
mean over questions, and its interval that of as many independent trials as there are questions.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from bkrl.core.seeds import generator
from bkrl.stats.intervals import wilson_interval

_RESAMPLES = 1000


def share(count: float, of: int) -> dict[str, Any]:
    """count / of with its Wilson 95 % interval; everything null when `of` is 0."""
    if of == 0:
        return {"rate": None, "low": None, "high": None, "n": 0}
    low, high = wilson_interval(count, of)
    return {"rate": count / of, "low": low, "high": high, "n": of}


def mean_share(shares: Sequence[float]) -> dict[str, Any]:
    """The mean of shares, one for each question, as a `share` of that many questions."""
    return share(float(sum(shares)), len(shares))


def self_agreement(questions: Sequence[Sequence[str]]) -> dict[str, Any]:
    """How often two answers to one question are equal, over the questions with at least two."""
    kinds = [Counter(answers).values() for answers in questions if len(answers) >= 2]
    return mean_share([sum(n * (n - 1) for n in one) / (sum(one) * (sum(one) - 1)) for one in kinds])


def krippendorff_alpha(units: Sequence[Sequence[str]]) -> float | None:
    """Krippendorff's alpha for nominal answers; a unit is the list of answers to one question.

    1: always the same answer, 0: as by chance. None when fewer than two answers can be compared, or all answers are
    equal (Krippendorff 2011, "Computing Krippendorff's alpha-reliability").
    """
    counts = _counts(units)
    return None if len(counts) == 0 else _alpha(np.ones((1, len(counts))), counts)[0]


def alpha_with_interval(units: Sequence[Sequence[str]], seed: int = 0) -> dict[str, Any]:
    """Krippendorff's alpha as value, 95 % percentile bootstrap interval over units, and n units that could be compared.

    An interval is null where hardly any resample has two different answers.
    """
    counts = _counts(units)
    value = krippendorff_alpha(units)
    low = high = None
    if value is not None:
        rng = generator(seed, "label", "alpha")
        weights = rng.multinomial(len(counts), np.full(len(counts), 1 / len(counts)), _RESAMPLES)
        resampled = [one for one in _alpha(weights, counts) if one is not None]
        if len(resampled) >= 0.95 * _RESAMPLES:
            low, high = (float(x) for x in np.quantile(resampled, (0.025, 0.975)))
    return {"value": value, "low": low, "high": high, "n": len(counts)}


def cohen_kappa(pairs: Sequence[tuple[str, str]]) -> float | None:
    """Cohen's kappa of two annotators over (first, second) answers: 1 always equal, 0 as by chance.

    None without answers, or when both gave one and the same answer throughout (Cohen 1960, "A coefficient of agreement
    for nominal scales").
    """
    n = len(pairs)
    first, second = Counter(one for one, _ in pairs), Counter(other for _, other in pairs)
    by_chance = sum(first[answer] * second[answer] for answer in first)
    if n == 0 or by_chance == n * n:
        return None
    observed = sum(one == other for one, other in pairs) / n
    expected = by_chance / n**2
    return (observed - expected) / (1 - expected)


def _counts(units: Sequence[Sequence[str]]) -> np.ndarray:
    """(units with at least two answers, kinds of answer) how often each was given."""
    pairable = [Counter(unit) for unit in units if len(unit) >= 2]
    kinds = sorted({answer for counts in pairable for answer in counts})
    table = [[counts[kind] for kind in kinds] for counts in pairable]
    return np.array(table, np.float64).reshape(len(pairable), len(kinds))


def _alpha(weights: np.ndarray, counts: np.ndarray) -> list[float | None]:
    """Alpha for each row of weights (R, units) given to the units' counts (units, kinds)."""
    sizes = counts.sum(axis=1)
    disagreeing = (sizes**2 - (counts**2).sum(axis=1)) / (sizes - 1)
    totals = weights @ counts
    n = totals.sum(axis=1)
    expected = n**2 - (totals**2).sum(axis=1)
    observed = weights @ disagreeing
    return [
        None if e <= 0 else float(1.0 - (size - 1) * o / e) for size, o, e in zip(n, observed, expected, strict=True)
    ]
