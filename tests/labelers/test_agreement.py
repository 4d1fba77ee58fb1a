"""Figures of agreement against published examples, hand computations and naive implementations."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from bkrl.labelers.agreement import (
    alpha_with_interval,
    cohen_kappa,
    krippendorff_alpha,
    mean_share,
    self_agreement,
    share,
)


def units_of(*columns: str) -> list[list[str]]:
    return [[value for value in column.split() if value != "-"] for column in columns]


PUBLISHED = units_of(
    "1 1 - 1", "2 2 3 2", "3 3 3 3", "3 3 3 3", "2 2 2 2", "1 2 3 4", "4 4 4 4", "1 1 2 1", "2 2 2 2", "- 5 5 5",
    "- - 1 1", "- - 3 -",
)  # fmt: skip


def naive_alpha(units: list[list[str]]) -> float:
    """The definition: 1 - observed / expected disagreement, by looking at every ordered pair of values."""
    pairable = [unit for unit in units if len(unit) >= 2]
    values = [value for unit in pairable for value in unit]
    observed = sum(sum(a != b for a, b in permutations(unit, 2)) / (len(unit) - 1) for unit in pairable) / len(values)
    expected = sum(a != b for a, b in permutations(values, 2)) / (len(values) * (len(values) - 1))
    return 1 - observed / expected


def test_krippendorffs_alpha_against_a_published_example() -> None:
    """Krippendorff (2011), example C: nominal data, 4 observers, 12 units, alpha = 0.743."""
    assert krippendorff_alpha(PUBLISHED) == pytest.approx(0.743, abs=5e-4)
    assert naive_alpha(PUBLISHED) == pytest.approx(0.743, abs=5e-4)


def test_krippendorffs_alpha_by_hand() -> None:
    """AA, AB, BB: coincidences AA 2, BB 2, AB 1, BA 1; alpha = 1 - 5 * 2 / (3 * 3 * 2)."""
    assert krippendorff_alpha(units_of("A A", "A B", "B B")) == pytest.approx(1 - 10 / 18)
    assert krippendorff_alpha(units_of("A A", "B B")) == 1.0


def test_krippendorffs_alpha_equals_its_definition_on_ragged_units() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        units = [list(rng.choice(["A", "B", "tie"], rng.integers(0, 6), p=[0.5, 0.3, 0.2])) for _ in range(12)]
        if len({value for unit in units if len(unit) > 1 for value in unit}) > 1:
            assert krippendorff_alpha(units) == pytest.approx(naive_alpha(units))


def test_alpha_is_unknown_where_nothing_can_differ() -> None:
    for units in ([], units_of("A", "B"), units_of("A A"), units_of("A A", "A A A")):
        assert krippendorff_alpha(units) is None
        assert alpha_with_interval(units)["value"] is alpha_with_interval(units)["low"] is None


def test_alphas_interval_holds_it_and_narrows_with_more_units() -> None:
    few, many = alpha_with_interval(PUBLISHED), alpha_with_interval(PUBLISHED * 10)
    assert few["n"] == 11
    assert few["low"] < few["value"] < few["high"] <= 1
    assert many["high"] - many["low"] < 0.5 * (few["high"] - few["low"])
    assert few == alpha_with_interval(PUBLISHED), "the same figures every time"


def test_shares_carry_wilson_intervals() -> None:
    known = share(8, 10)
    assert (known["low"], known["high"]) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert share(0, 0) == {"rate": None, "low": None, "high": None, "n": 0}


def test_a_question_counts_once_however_often_it_was_asked() -> None:
    once, often = self_agreement([["A", "A"], ["A", "B"]]), self_agreement([["A"] * 9, ["A", "B"], ["tie"]])
    assert once == often == share(1, 2)
    assert self_agreement([["A", "A", "B"]])["rate"] == pytest.approx(1 / 3)
    assert mean_share([0.5, 1.0])["n"] == 2


def test_cohens_kappa_by_hand() -> None:
    """20 and 15 equal answers of 50: po = 0.7, pe = 0.5 * 0.6 + 0.5 * 0.4 = 0.5, kappa = 0.4."""
    pairs = [("yes", "yes")] * 20 + [("yes", "no")] * 5 + [("no", "yes")] * 10 + [("no", "no")] * 15
    assert cohen_kappa(pairs) == pytest.approx(0.4)
    assert cohen_kappa([("A", "A"), ("B", "B")]) == 1.0
    assert cohen_kappa([("A", "B"), ("B", "A")]) == -1.0
    assert cohen_kappa([]) is cohen_kappa([("A", "A")]) is None
