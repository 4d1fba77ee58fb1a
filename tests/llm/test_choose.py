"""Closed questions: bias of place and word cancels, what stays inconsistent weighs nothing, nothing is asked twice."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import numpy as np
import pytest

from bkrl.core.errors import UsageError
from bkrl.llm import open_backend
from bkrl.llm.choose import Calibration, Chooser, ClosedQuestion, Phrasing, calibration, read_answer, settled
from bkrl.llm.protocol import Message, Reply, Request, chances
from bkrl.llm.session import AskSession
from bkrl.llm.store import Store
from tests.llm.fault_server import QUICK


class Scripted:
    """A paid model that answers by a function of its request."""

    name, identity = "openai:s", {"kind": "openai", "host": "h", "model": "s"}

    def __init__(self, say):
        self.say, self.asked = say, []

    async def complete(self, request: Request) -> Reply:
        self.asked.append(request)
        return Reply(self.say(request))

    def facts(self):
        return {}

    async def close(self):
        return None


def pair(a: str, b: str) -> ClosedQuestion:
    """Which of two is better, in both orders; outcome 0 is a."""
    say = lambda one, two: (Message("user", f"{one}|{two}"),)  # noqa: E731
    return ClosedQuestion((Phrasing(say(a, b), ("1", "2"), (0, 1)), Phrasing(say(b, a), ("1", "2"), (1, 0))))


def biased(request: Request) -> str:
    """Prefers the larger number, and the first one by 3 more."""
    one, two = map(float, request.messages[0].text.split("|"))
    odds = (one - two) + 3.0
    return chances({"1": -math.log1p(math.exp(-odds)), "2": -math.log1p(math.exp(odds))})


def test_both_orders_cancel_a_favourite_place_and_half_of_the_requests_are_shared(tmp_path: Path):
    backend = Scripted(biased)
    questions = [pair("2", "1"), pair("1", "2"), pair("5", "4.5"), pair("1", "1.5")]
    with Store(tmp_path) as store, AskSession(backend, store, QUICK) as session:
        answers = Chooser(session).ask(questions)
        scores, agree = settled(np.stack([answer.scores for answer in answers]))
    odds = scores[:, 0] - scores[:, 1]
    assert odds == pytest.approx([1, -1, 0.5, -0.5], abs=1e-6)
    assert agree.all()  # although every single answer names the first
    assert all(answer.scores[0, 0] > answer.scores[0, 1] for answer in answers)
    assert len(backend.asked) == 6  # the first two pairs are the same two conversations


def test_what_still_disagrees_weighs_nothing():
    noisy = np.log([[[0.9, 0.1], [0.2, 0.8]], [[0.8, 0.2], [0.9, 0.1]], [[0.1, 0.9], [0.2, 0.8]]])
    _, agree = settled(noisy)
    assert agree.tolist() == [False, True, True]
    unclear = noisy.copy()
    unclear[1, 0] = np.nan
    scores, agree = settled(unclear)
    assert np.isnan(scores[1]).all()
    assert not agree[1]


def test_a_rotated_option_cancels_any_bias_of_words():
    rng = np.random.default_rng(0)
    truth, bias = rng.normal(size=(50, 4)), np.array([2.0, -1.0, 0.5, 0.0])
    views = [truth + np.roll(bias, r) for r in range(4)]
    scores = np.stack(views, 1)
    scores -= np.log(np.exp(scores).sum(2, keepdims=True))
    found, _ = settled(scores)
    wanted = truth - np.log(np.exp(truth).sum(1, keepdims=True))
    assert found == pytest.approx(wanted, abs=1e-9)


def test_calibration_recovers_a_temperature_and_a_bias():
    rng = np.random.default_rng(1)
    true = rng.normal(size=(100, 2)) * 3
    true -= np.log(np.exp(true).sum(1, keepdims=True))
    known = (rng.random(100) < np.exp(true[:, 1])).astype(np.int64)
    told = (true - np.array([0.6, -0.6])) * 2.5  # too sure, and fond of the second
    told -= np.log(np.exp(told).sum(1, keepdims=True))
    found = calibration(told, known, "rules")
    assert found.temperature == pytest.approx(2.5, rel=0.4)
    assert found.bias[0] == pytest.approx(0.6, abs=0.4)
    assert np.exp(found(told)).sum(1) == pytest.approx(1)
    assert (found.known, found.source) == (100, "rules")
    told[7] = np.nan
    assert calibration(told, known, "rules").temperature == pytest.approx(found.temperature, rel=0.1)
    assert calibration(told, known, "rules").known == 99
    told[7] = true[7]
    flat = calibration(np.log(np.full((40, 2), 0.5)), known[:40], "rules", biased=False)
    assert flat.bias == (0, 0)
    sure = calibration(np.log(np.tile([0.9, 0.1], (5, 1))), np.zeros(5, np.int64), "rules")
    assert math.isfinite(sure.temperature)
    assert Calibration(1.0, (0.0, 0.0), 0, "")(told) == pytest.approx(told)


def test_a_question_asked_twice_costs_nothing_in_any_order(tmp_path: Path):
    for questions in ([pair("1", "2"), pair("3", "1")], [pair("1", "3"), pair("2", "1")]):
        backend = Scripted(biased)
        with Store(tmp_path) as store, AskSession(backend, store, QUICK) as session:
            chooser = Chooser(session)
            first = chooser.ask(questions)
            again = chooser.ask(questions)
        assert [one.scores.tolist() for one in first] == [one.scores.tolist() for one in again]
    assert not backend.asked


@pytest.mark.parametrize(
    ("reply", "options", "told"),
    [
        ("2", ("1", "2"), 1), ("Segment 1 is better than 2", ("1", "2"), None), ("It is 1.", ("1", "2"), 0),
        ("place stone", ("place", "place stone"), 1), ("", ("1", "2"), None), ("12", ("1", "2"), None),
        ("move left, not move right", ("move left", "move right"), None), ("A", ("A", "B"), 0),
        ('{"logprobs": {"1": ' + "9" * 400 + "}}", ("1", "2"), None),
        ("Segment 1 is the worse one.", ("1", "2"), None), ("1 is worse", ("1", "2"), None),  # were read as 1
        ("Neither 1", ("1", "2"), None), ("It isn't 2", ("1", "2"), None), ("**1**", ("1", "2"), 0),
        ("I would not place stone", ("place stone", "wait"), None), ("No, that does not help.", ("yes", "no"), 1),
        ("The weaker one is 1", ("1", "2"), None), ("Least promising: 1", ("1", "2"), None),
        ("Anything but 1", ("1", "2"), None), ("dont choose 1", ("1", "2"), None), ("Avoid 1", ("1", "2"), None),
        ("1 walks into a wall. I prefer the other.", ("1", "2"), 0), ("I prefer 1 by far.", ("1", "2"), None),
        ("7/10", tuple("0123456789"), 7), ("Answer: 7", tuple("0123456789"), 7), ("Never", ("never", "now"), 0),
    ],
)  # fmt: skip
def test_words_are_read_or_say_nothing(reply, options, told):
    scores, exact = read_answer(reply, options)
    assert not exact
    assert np.isnan(scores).all() if told is None else int(scores.argmax()) == told


def test_controls_know_nothing_and_say_so():
    request = Request((Message("user", "Which?"),), choices=("1", "2"))
    said = {name: asyncio.run(open_backend(name).complete(request)).text for name in ("equal", "random:1", "random:2")}
    assert read_answer(said["equal"], ("1", "2"))[0] == pytest.approx(np.log([0.5, 0.5]))
    assert said["random:1"] != said["random:2"]
    with pytest.raises(UsageError, match="takes no model name, but a number that it draws by, random:1"):
        open_backend("random:labels")
    assert said["random:1"] == asyncio.run(open_backend("random:1").complete(request)).text
    assert "control" in open_backend("random").facts()["annotator"]
