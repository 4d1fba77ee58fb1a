"""What asking for goals will take, said before anything is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from bkrl.core.errors import UsageError
from bkrl.core.reporter import Reporter
from bkrl.goals.outlook import situations_met
from bkrl.llm.budget import FILE
from bkrl.stages import train_rs
from tests.goals.test_goals import settings
from tests.goals.test_hostile import hostile  # noqa: F401 - a fixture


def test_more_steps_meet_more_situations_and_ever_fewer():
    met, as_many = situations_met("Crafter-Typed-Easier", 4_096, 3)
    _, ten_times = situations_met("Crafter-Typed-Easier", 655_360, 3)
    assert len(set(met)) == len(met) == as_many
    assert as_many < ten_times < 160 * as_many


def test_a_dry_run_says_what_it_would_take_and_writes_nothing(tmp_path: Path, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    config = settings(tmp_path / "run", suggester="openai:gpt-4o-mini", steps=4_096, cache=tmp_path / "c", dry_run=True)
    found = train_rs.outlook(config)
    assert found.requests > 10
    assert found.tokens_in > 100 * found.requests / 2
    assert "$" in found.text()
    assert "You see" in found.prompts[0]
    assert not list(tmp_path.iterdir())
    with pytest.raises(UsageError, match="dry-run makes no run"):
        train_rs.run(config, Reporter())


def test_limits_hold_over_restarts(hostile, tmp_path: Path):  # noqa: F811
    config = settings(
        tmp_path / "run", suggester="openai:m", steps=600, cache=tmp_path / "c", max_requests=5, goal_wait=False
    )
    train_rs.run(config, Reporter())
    assert len(hostile.bodies) == 5
    assert (tmp_path / "run" / FILE).is_file()
