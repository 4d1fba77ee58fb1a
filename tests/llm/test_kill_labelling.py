"""A small kill test on every commit; the full one is `python -m tests.llm.kill_labelling`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.llm.kill_labelling import plan, trial


@pytest.mark.slow
def test_kill_9_loses_nothing_pays_nothing_twice_and_changes_no_byte(tmp_path: Path) -> None:
    outcome = trial(tmp_path, labels=160, kills=3, rate=0.2, seed=3)
    assert outcome.perfect, outcome
    assert outcome.requests > 160, "there were faults"
    assert outcome.unreadable > 0
    assert outcome.in_flight_at_kills > 0, "some kill met a request in flight"


def test_the_share_of_faults_is_what_was_asked_for() -> None:
    does = plan(0.2, seed=1)
    faults = sum(does(f"prompt {number}", attempt) != "ok" for number in range(2000) for attempt in (0, 1))
    assert 0.17 < faults / 4000 < 0.23
    assert does("prompt", 0) == plan(0.2, seed=1)("prompt", 0)
