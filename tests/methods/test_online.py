"""bk-online: what is asked while a policy learns, what is accepted when, and that none of it depends on the clock."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bkrl.core.config import PPOConfig
from bkrl.core.errors import InputError, RunFailed, UsageError
from bkrl.core.reporter import Reporter
from bkrl.data.partition import partition
from bkrl.data.windows import Windows
from bkrl.envs import captioner, env_spec
from bkrl.labelers.asking import Sampling
from bkrl.labelers.live import ACCEPTED, LiveComparisons
from bkrl.labelers.material import env_card
from bkrl.llm import open_backend
from bkrl.llm.protocol import Reply, request_content, request_key
from bkrl.llm.session import AskSession
from bkrl.llm.store import Store
from bkrl.methods import TrainRsConfig, online
from bkrl.potentials.preference.live import LivePreferences
from bkrl.report.costs import costs
from bkrl.runs.provenance import follow
from bkrl.runs.record import Run
from bkrl.stages import train_rs
from tests.experience import views
from tests.llm.conftest import server  # noqa: F401 - a fixture
from tests.potentials.rollouts import rollout_of
from tests.stages.interrupted import the_same_when_killed

ENV = "BabyAI-GoToRedBall-v0"
SMALL = PPOConfig(num_envs=16, num_steps=16, num_minibatches=2, update_epochs=1)


def settings(out, **changes) -> Any:
    """Asks after each rollout of 256 steps, so that every checkpoint comes just after a fit."""
    base: Any = TrainRsConfig(
        "bk-online", env=ENV, out=out, steps=2_560, eval_every=512, eval_episodes=2, checkpoint_every=256, ppo=SMALL,
        label_every=256, label_num=16, length=3, epochs=2, cache=out.parent / "cache",
    )  # fmt: skip
    return replace(base, **changes)


def accepted(run) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / ACCEPTED).read_text().splitlines()]


def test_a_killed_run_goes_on_to_the_same_bytes(tmp_path, monkeypatch):
    metrics = the_same_when_killed(settings(tmp_path / "whole"), monkeypatch)
    fits = [json.loads(line)["live/fits"] for line in metrics if "live/fits" in line]
    assert fits[0] == 0
    assert fits[-1] > 3
    assert accepted(tmp_path / "whole") == accepted(tmp_path / "stopped")
    facts = Run.open(tmp_path / "whole", "train-rs").facts
    assert facts["form"] == "dynamic"
    assert facts["live"]["labelled"] == facts["live"]["pairs"] > 60
    assert facts["usage"]["requests"] == facts["live"]["pairs"]
    (row,) = costs(follow([tmp_path / "whole"]))
    assert (row.steps, row.requests) == (2_560, facts["live"]["pairs"])


@pytest.mark.slow
def test_a_killed_run_says_what_the_whole_run_asked(server, tmp_path, monkeypatch):  # noqa: F811
    """Killed long after its last checkpoint, so that most of what it asked was noted by the process that is gone."""
    the_same_when_killed(
        settings(tmp_path / "whole", llm="openai:m", label_wait=True, checkpoint_every=1_024), monkeypatch
    )
    usage = Run.open(tmp_path / "stopped", "train-rs").facts["usage"]
    assert usage["requests"] == usage["sent"] == sum(server.billed.values()) / 2 > 60
    assert usage["prompt_tokens"] > 0
    assert usage["cached"] == 0


@pytest.mark.slow
def test_waiting_and_kept_replies_give_the_same_bytes_and_nothing_is_asked_twice(server, tmp_path):  # noqa: F811
    first = settings(tmp_path / "cold", llm="openai:m", label_wait=True)
    cold = train_rs.run(first, Reporter())
    sent = sum(server.billed.values())
    assert sent == cold.facts["live"]["pairs"] == cold.facts["usage"]["sent"]
    assert max(server.billed.values()) == 1
    warm = train_rs.run(replace(first, out=tmp_path / "warm", label_wait=False), Reporter())
    assert sum(server.billed.values()) == sent
    assert warm.facts["usage"]["sent"] == 0
    assert (cold.path / "policy.safetensors").read_bytes() == (warm.path / "policy.safetensors").read_bytes()
    assert accepted(cold.path) == accepted(warm.path)


def test_a_slow_annotator_holds_nothing_up(server, tmp_path):  # noqa: F811
    server.latency = 0.05
    run = train_rs.run(settings(tmp_path / "run", steps=1_280, llm="openai:m", concurrency=2), Reporter())
    live = run.facts["live"]
    assert live["waiting"] > 0
    assert sum(len(point["labels"]) for point in accepted(run.path)) == live["labelled"]


def test_a_limit_holds_and_training_goes_on_with_what_there_is(server, tmp_path):  # noqa: F811
    config = settings(tmp_path / "run", steps=1_024, llm="openai:m", label_wait=True, max_requests=20)
    with pytest.raises(RunFailed, match="max-requests"):
        train_rs.run(config, Reporter())
    assert sum(server.seen.values()) == 20
    unpaid = replace(config, out=tmp_path / "other", steps=2_560, label_wait=False, max_requests=3)
    run = train_rs.run(unpaid, Reporter())
    assert sum(server.seen.values()) <= 23
    assert "max-requests" in run.facts["warnings"][0]
    whole = train_rs.run(replace(config, max_requests=0), Reporter())
    assert whole.complete
    assert max(server.billed.values()) == 1


def test_where_nothing_is_ever_answered_the_run_says_so(server, tmp_path):  # noqa: F811
    server.plan = lambda prompt, attempt: "401"
    with pytest.raises(RunFailed, match="there is no potential"):
        train_rs.run(settings(tmp_path / "run", llm="openai:m"), Reporter())


class Answers:
    """A backend that is never asked: what is there was kept before."""

    name, identity = "openai:m", {"kind": "openai", "host": "h", "model": "m"}

    async def complete(self, request):
        raise AssertionError("asked twice")

    def facts(self):
        return {}

    async def close(self):
        return None


def live(session, wait=False):
    return LiveComparisons(
        session, env_card(ENV), captioner(ENV), env_spec(ENV).obs_shape,
        length=2, count=4, sampling=Sampling(), seed=1, wait=wait,
    )  # fmt: skip


def offered(asked, seed=0):
    """Comparisons to which 64 segments of 16 envs were offered."""
    seen = views(np.random.default_rng(seed), "babyai", 64 * 3).reshape(64, 3, 7, 7, 3)
    asked._pool = Windows.of(seen, np.full((64, 2), 2), np.ones((64, 3), bool))
    asked._pool_groups = np.arange(64) % 16
    return asked


def test_what_is_offered_ends_after_an_action_in_the_true_last_view_too():
    """Rows hold 10 t + n; env 1 ends after its action 1, in 99."""
    rows = (np.arange(5)[:, None] * 10 + np.arange(2)).astype(np.uint8)[..., None]
    ages = np.array([[5, 5], [6, 6], [7, 0], [8, 1]], np.int32)
    ends = np.zeros((3, 2), bool)
    ends[1, 1] = True
    rollout = rollout_of(
        1, rows, np.arange(8).reshape(4, 2), ages, np.zeros((3, 2), np.float32), ends, ends & False,
        np.array([3]), np.array([[99]], np.uint8),
    )  # fmt: skip
    asked: Any = LiveComparisons(
        AskSession(Answers()), env_card("Toy-Grid"), captioner("Toy-Grid"), (1,), length=1, count=1,
        sampling=Sampling(), seed=1,
    )  # fmt: skip
    for _ in range(30):
        asked.offer(rollout)
    found = {tuple(window.ravel().tolist()) for window in asked._pool.observations}
    assert found == {(10, 20), (11, 21), (20, 30), (21, 99), (30, 40), (31, 41)}
    assert set(asked._pool_groups.tolist()) == {0, 1}


def test_what_was_accepted_when_is_accepted_again_however_quick_the_annotator_is(tmp_path):
    (tmp_path / "run").mkdir()
    with Store(tmp_path) as store, AskSession(Answers(), store) as session:
        asked = offered(live(session))
        came: list[Any] = []
        asked.session.submit = lambda requests, send: None
        asked.session.poll = lambda: [came.pop() for _ in list(came)]
        asked.open(tmp_path / "run")
        asked.ask(1)
        saved = {name: np.array(array) for name, array in asked.state().items()}
        requests = [request for _, request in asked._waiting.values()]
        assert len(requests) == 4

        def answer(index, choice):
            request = requests[index]
            key = request_key(Answers.identity, request)
            assert store.begin(key) is not None
            reply = Reply(json.dumps({"thoughts": "", "choice": choice}))
            store.put(key, reply, request_content(Answers.identity, request))
            return session.kept(request)

        came += [answer(2, "A")]
        asked.accept(1)
        came += [answer(0, "tie"), answer(1, "nonsense")]
        asked.accept(2)
        asked.accept(3)
        came += [answer(3, "B")]
        asked.accept(4)
        asked.close()
        history = asked.labels.copy()
        again = live(session)
        again.open(tmp_path / "run")
        again.restore(saved)
        labels = []
        for step in range(1, 5):
            again.accept(step)
            labels.append(again.labels.tolist())
        again.close()
    assert labels[0] == [-2.0, -2.0, 1.0, -2.0]
    assert labels[1] == labels[2] == [0.5, -1.0, 1.0, -2.0]
    assert labels[3] == history.tolist() == [0.5, -1.0, 1.0, 0.0]
    assert len(accepted(tmp_path / "run")) == 4


def test_what_could_not_be_accepted_any_more_is_not_sent(tmp_path):
    """Questions of the last time were sent and paid, and no answer to them was ever accepted; kept replies are."""
    with Store(tmp_path) as store, AskSession(Answers(), store) as session:
        asked = offered(live(session))
        requests: list[Any] = []
        submit = session.submit
        session.submit = lambda some, send: requests.extend(some)  # type: ignore[method-assign]
        asked.ask(1)
        asked = offered(live(session))
        session.submit = submit  # type: ignore[method-assign]
        key = request_key(Answers.identity, requests[2])
        assert store.begin(key) is not None
        reply = Reply(json.dumps({"thoughts": "", "choice": "A"}))
        store.put(key, reply, request_content(Answers.identity, requests[2]))
        asked.ask(1, last=True)
        asked.accept(1)
        assert asked.labels.tolist() == [-2.0, -2.0, 1.0, -2.0]
        again = live(session)
        again.restore({name: np.array(array) for name, array in asked.state().items()}, last=True)
        assert not session._submitted
        assert session.facts()["sent"] == 0


@pytest.mark.parametrize("every", [100, 256, 600, 1_000, 1_024, 1_280])
@pytest.mark.parametrize("steps", [1_281, 2_304, 2_305, 2_560])
def test_pairs_are_asked_about_after_so_many_steps_and_never_after_the_last(tmp_path, every, steps):
    config = settings(tmp_path, label_every=every, steps=steps)
    asked: list[tuple[int, bool]] = []
    comparisons: Any = SimpleNamespace(
        length=2, usable=np.zeros(0), offer=lambda rollout: None, accept=lambda step: None,
        ask=lambda step, last: asked.append((step, last)),
    )  # fmt: skip
    period, times = online._points(config)
    potential = LivePreferences(comparisons, env_spec(ENV), every=period, times=times, epochs=1, seed=1)
    rollout: Any = SimpleNamespace(rewards=np.zeros((16, 16)))
    while potential.steps < steps:
        potential.saw(rollout)
    points = [end for end in range(256, steps, 256) if end // every > (end - 256) // every]
    assert asked == [(end, end == points[-1]) for end in points]


def test_a_single_time_to_accept_answers_is_refused(server, tmp_path):  # noqa: F811
    """All questions were sent, and the run was plain PPO: their answers would have been accepted the next time."""
    config = settings(tmp_path / "run", llm="openai:m", label_every=1_280)
    with pytest.raises(UsageError, match="--label-every 1,280 leaves no time in 2,560 steps"):
        train_rs.run(config, Reporter())
    assert not (tmp_path / "run").exists()
    assert not server.requests
    assert train_rs.outlook(replace(config, dry_run=True, label_wait=True)).requests == 16


def test_a_segment_is_asked_about_once_and_pairs_stay_within_a_part():
    with AskSession(open_backend("rules")) as session:
        asked = offered(live(session))
        asked.count = 1_000
        parts = partition(asked._pool_groups)
        pairs = asked._drawn(1)
        assert len(pairs) > 25
        np.testing.assert_array_equal(parts[pairs[:, 0]], parts[pairs[:, 1]])
        assert len(np.unique(pairs)) == pairs.size
        assert len(asked._drawn(2)) <= 3  # the few that found no partner
        offered(asked, seed=1)
        asked.ask(3)
        asked.accept(3)
    assert len(asked.usable) == len(asked.labels) > 25


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"ppo": replace(SMALL, num_envs=8)}, UsageError, "--num-envs must be 10 or more, not 8"),
        ({"label_every": 4_000}, UsageError, "--label-every 4,000 is never reached in 2,560 steps"),
        ({"llm": "rulez"}, UsageError, "There is no annotator 'rulez'. Did you mean 'rules'"),
        ({"llm": "random"}, UsageError, "closed questions only, and --alg bk-online asks open ones"),
        ({"llm": "exact"}, UsageError, "closed questions only, and --alg bk-online asks open ones"),
        ({"llm": "replay:nowhere"}, InputError, "nowhere"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_written(tmp_path, changes, error, said):
    with pytest.raises(error, match=said):
        train_rs.run(settings(tmp_path / "run", **changes), Reporter())
    assert not (tmp_path / "run").exists()


def test_a_damaged_record_is_named(tmp_path, monkeypatch):
    stopped = tmp_path / "again"
    monkeypatch.setattr(train_rs, "Evaluation", lambda *arguments: lambda agent: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train_rs.run(settings(stopped), Reporter())
    (stopped / ACCEPTED).write_text('{"step": 256, "labels": {"x": 1.0}, "crc": 7}\n')
    with pytest.raises(InputError, match="accepted.jsonl is damaged at line 1"):
        train_rs.run(settings(stopped), Reporter())


def test_a_forecast_asks_nothing(server, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    found = train_rs.outlook(settings(tmp_path / "run", llm="openai:m", dry_run=True))
    assert found.requests == 8 * 16
    assert "At most 128 requests: 16 pairs at each of 8 times" in found.notes[0]
    assert found.tokens_in > 8 * 16 * 100
    assert len(found.prompts) == 3
    assert not server.requests
    assert not list(tmp_path.iterdir())
    waiting = train_rs.outlook(settings(tmp_path / "run", llm="openai:m", dry_run=True, label_wait=True))
    assert waiting.requests == 9 * 16
