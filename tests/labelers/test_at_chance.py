"""Labels at chance are named: a favourite place, no agreement with what is known, log-odds all alike."""

from __future__ import annotations

import pytest

from bkrl.labelers.agreement import share
from bkrl.labelers.quality import at_chance


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({}, []), ({"first_shown_preferred": share(0, 0)}, []),
        ({"first_shown_preferred": share(45, 50)}, ["shown first is preferred in 90 %"]),
        ({"first_shown_preferred": share(2, 50)}, ["shown second is preferred in 96 %"]),
        ({"first_shown_preferred": share(45, 50), "agreement_with_rules": share(80, 100)}, []),
        ({"first_shown_preferred": share(45, 50), "agreement_with_rules": share(52, 100)}, ["first", "52 % of 100"]),
        ({"agreement_with_rules": share(5, 10)}, []), ({"log_odds_spread": 0.001}, ["all alike"]),
        ({"log_odds_spread": 0.5, "first_shown_preferred": share(30, 50)}, []),
    ],
)  # fmt: skip
def test_what_is_at_chance_is_said(facts, words):
    found = at_chance(facts)
    assert len(found) == len(words)
    assert all(word in one.replace("\N{NO-BREAK SPACE}", " ") for word, one in zip(words, found, strict=True))
