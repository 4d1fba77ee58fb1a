"""How far labels can be trusted: agreement beyond chance, and shares with their intervals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from bkrl.report.statistics import wilson_interval


def share(count: int, of: int) -> dict[str, Any]:
    """count / of with its Wilson 95 % interval; everything null when `of` is 0."""
    if of == 0:
        return {"rate": None, "low": None, "high": None, "n": 0}
    low, high = wilson_interval(count, of)
    return {"rate": count / of, "low": low, "high": high, "n": of}


def krippendorff_alpha(units: Sequence[Sequence[str]]) -> float | None:
    """Krippendorff's alpha for nominal answers; a unit is the list of answers to one question.

    1: always the same answer, 0: as by chance. None when fewer than two answers can be compared, or all answers are
    equal (Krippendorff 2011, "Computing Krippendorff's alpha-reliability").
    """
    pairable = [Counter(unit) for unit in units if len(unit) >= 2]
    totals: Counter[str] = Counter()
    for counts in pairable:
        totals.update(counts)
    n = totals.total()
    expected = n * n - sum(count * count for count in totals.values())
    if n < 2 or expected == 0:
        return None
    observed = 0.0
    for counts in pairable:
        size = counts.total()
        observed += (size * size - sum(count * count for count in counts.values())) / (size - 1)
    return 1.0 - (n - 1) * observed / expected


def pairwise_agreement(units: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Share of equal answers among all pairs of answers to the same question."""
    same = pairs = 0
    for unit in units:
        counts = Counter(unit)
        pairs += len(unit) * (len(unit) - 1) // 2
        same += sum(count * (count - 1) // 2 for count in counts.values())
    return share(same, pairs)
