"""What asking for goals will take, said before anything is asked."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from bkrl.core.errors import UsageError
from bkrl.core.reporter import Reporter
from bkrl.goals.outlook import most_of, situations_met
from bkrl.llm.budget import FILE
from bkrl.llm.protocol import Reply, request_key
from bkrl.llm.store import Store
from bkrl.methods.goals import source_of
from bkrl.stages import train_rs
from tests.goals.test_goals import settings
from tests.goals.test_hostile import hostile  # noqa: F401 - a fixture


def test_more_steps_meet_more_situations_and_ever_fewer():
    met, as_many = situations_met("Crafter-Typed-Easier", 4_096, 3)
    _, ten_times = situations_met("Crafter-Typed-Easier", 655_360, 3)
    assert len(set(met)) == len(met) == as_many
    assert as_many < ten_times < 160 * as_many


@pytest.mark.parametrize(
    ("steps", "reckoned", "met"),
    [(20_000, 281, 291), (100_000, 708, 1_223), (300_000, 1_312, 4_279), (1_000_000, 2_580, 17_637)],
)
def test_what_runs_met_lies_below_the_most_that_is_said(steps, reckoned, met):
    """Of runs with the goals of `rules` in Crafter-Typed-Harder; without the factor the forecast was too low."""
    assert reckoned < met < most_of(steps) * reckoned < 2 * met


WHOLE_ROWS = {"eval_every": 4_096, "eval_episodes": 16}  # 6,016 steps, in rows of 64


def played(config) -> int:
    """Steps of training and, at most, of its evaluations."""
    return config.steps + (1 + -(-config.steps // config.eval_every)) * config.eval_episodes * 60


def test_evaluations_meet_situations_too(tmp_path: Path, monkeypatch):
    """They were left out, however many there were."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    how = {"suggester": "openai:gpt-4o-mini", "steps": 4_096, "cache": tmp_path / "c", "dry_run": True}
    few, many, greedy = (
        train_rs.outlook(settings(tmp_path / "run", **how, **more)).requests
        for more in ({"eval_episodes": 1}, {"eval_episodes": 300}, {"eval_episodes": 150, "eval_greedy": True})
    )
    assert 1.5 * few < many == greedy


def test_a_dry_run_says_what_it_would_take_and_writes_nothing(tmp_path: Path, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    config = settings(tmp_path / "run", suggester="openai:gpt-4o-mini", steps=4_096, cache=tmp_path / "c", dry_run=True)
    found = train_rs.outlook(config)
    assert found.requests > 10
    assert found.tokens_in > 100 * found.requests / 2
    assert "$" in found.text()
    assert f"{found.requests:,} to {found.at_most * found.requests:,.0f} requests" in found.text()
    assert "You see" in found.prompts[0]
    choosing = replace(config, goal_ask="closed", goal_votes=3)
    assert train_rs.outlook(choosing).at_most == 3 * found.at_most, "samples may have to vote"
    assert not list(tmp_path.iterdir())
    with pytest.raises(UsageError, match="dry-run makes no run"):
        train_rs.run(config, Reporter())


@pytest.mark.parametrize(("ask", "each"), [("open", 1), ("closed", 44)])
def test_situations_that_read_alike_are_one_question(tmp_path: Path, monkeypatch, ask, each):
    """How a player feels is told of the sleepy alone, so 281 situations were 180 questions, and 281 were reckoned."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    how = {"suggester": "openai:gpt-4o-mini", "goal_ask": ask, "steps": 4_096, "cache": tmp_path / "c"}
    config = settings(tmp_path / "run", dry_run=True, **how, **WHOLE_ROWS)
    with ExitStack() as stack:
        suggester = source_of(config, stack).book.suggester
        met, expected = situations_met(config.env, played(config), config.seed)
        sent = {request_key({}, request) for key in met for request in suggester.requests(key)}
    assert expected == len(met)
    found = train_rs.outlook(config)
    assert found.requests == len(sent) < 0.9 * each * len(met)
    most = most_of(played(config)) * each * len(met)  # a policy may meet such as all read differently
    assert found.at_most * found.requests == pytest.approx(most * (1 if ask == "open" else config.goal_votes))


def test_what_is_kept_does_not_lower_what_more_situations_may_ask(tmp_path: Path, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    how = {"suggester": "openai:gpt-4o-mini", "steps": 4_096, "cache": tmp_path / "c"}
    config = settings(tmp_path / "run", dry_run=True, **how, **WHOLE_ROWS)
    before = train_rs.outlook(config)
    with ExitStack() as stack, Store(config.cache) as store:
        asked = source_of(config, stack).book.suggester
        for key in situations_met(config.env, played(config), config.seed)[0]:
            (request,) = asked.requests(key)
            store.put(request_key(asked.session.backend.identity, request), Reply("- drink water", completion_tokens=3))
    found = train_rs.outlook(config)
    assert found.kept == found.requests == before.requests
    most, then = (float(one.values()["most_usd"]) for one in (before, found))
    left = 1 - 1 / found.at_most
    assert then == pytest.approx(left * most, rel=0.1), "of at most as many situations those met by chance are kept"


def test_limits_hold_over_restarts(hostile, tmp_path: Path):  # noqa: F811
    config = settings(
        tmp_path / "run", suggester="openai:m", steps=600, cache=tmp_path / "c", max_requests=5, goal_wait=False
    )
    train_rs.run(config, Reporter())
    assert len(hostile.bodies) == 5
    assert (tmp_path / "run" / FILE).is_file()
