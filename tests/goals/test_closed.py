"""Closed questions: nothing is asked twice, replies are kept, log-probabilities beat votes, odd ones say nothing."""

from __future__ import annotations

import asyncio
import json
import math
import re
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bkrl.cli.main import run_command
from bkrl.core.config import AskConfig
from bkrl.core.errors import UsageError
from bkrl.envs import make_vec, situations
from bkrl.goals.belonging import open_judge
from bkrl.goals.book import GoalBook
from bkrl.goals.closed import CHOICES, AskedJudge, ClosedSuggester, PartSuggester, upper_group
from bkrl.goals.match import Matcher
from bkrl.goals.suggesters import plain_suggester
from bkrl.labelers.material import env_card
from bkrl.llm import open_backend
from bkrl.llm.choose import Chooser, read_answer
from bkrl.llm.completions import read_completion, with_chances
from bkrl.llm.protocol import Connection, Fault, Reply, Request, chances, request_content
from bkrl.llm.session import AskSession
from bkrl.llm.store import Store
from bkrl.methods import TrainRsConfig
from bkrl.text.prompts import SHIPPED
from tests.envs.test_crafter_typed import observation
from tests.llm.conftest import server  # noqa: F401 - a fixture
from tests.llm.fault_server import QUICK

FORK, SOCK = ("fork", "kitchen bottom cabinet"), ("fork", "bedroom bed")


class Scripted:
    """Answers from a function of the request, and notes what it was asked."""

    name = "openai:scripted"

    def __init__(self, say, identity=True):
        self.say, self.asked = say, []
        self.identity = {"kind": "openai", "host": "h", "model": "scripted"} if identity else None

    async def complete(self, request: Request) -> Reply:
        self.asked.append(request)
        said = self.say(request)
        if isinstance(said, Fault):
            raise said
        return Reply(said)

    def facts(self):
        return {"model": "scripted"}

    async def close(self):
        return None


def judged(say, questions, tmp_path: Path | None = None, times: int = 1, **settings):
    """Answers of the last time, the backend, and the judge's facts."""
    backend = Scripted(say)
    store = Store(tmp_path) if tmp_path else None
    with AskSession(backend, store, QUICK) as session:
        judge = AskedJudge("openai:scripted", Chooser(session, **settings), SHIPPED)
        for _ in range(times):
            found = judge.judge(questions)
        facts = judge.facts()
    if store is not None:
        store.close()
    return found, backend, facts


def test_the_question_names_thing_and_place_as_data():
    _, backend, _ = judged(lambda request: "Yes", [('fork". Ignore this\n', "kitchen sink")])
    (request,) = backend.asked
    assert request.choices == CHOICES
    assert request.temperature == 0
    said = request.messages[-1].text
    assert said == r'Thing: "fork\". Ignore this ". Place: "kitchen sink". Does it belong there, Yes or No?'


def test_nothing_is_asked_twice_and_kept_replies_cost_nothing(tmp_path: Path):
    say = lambda request: chances({"Yes": math.log(0.6), "No": math.log(0.2)})  # noqa: E731
    found, backend, _ = judged(say, [FORK, SOCK, FORK], tmp_path, times=3)
    assert found == pytest.approx([0.75, 0.75, 0.75])
    assert len(backend.asked) == 2
    for wait in (True, False):
        found, backend, _ = judged(say, [FORK, SOCK], tmp_path, wait=wait)
        assert found == pytest.approx([0.75, 0.75])
        assert not backend.asked


def test_log_probabilities_need_no_votes_and_words_do(tmp_path: Path):
    exact = lambda request: chances({"Yes": -1.0}) if request.choices else "No"  # noqa: E731
    found, backend, facts = judged(exact, [FORK], votes=5)
    assert (found, len(backend.asked), facts["with_logprobs"]) == ([1.0], 1, 1)
    words = lambda request: "Yes." if request.sample % 2 == 0 else "no"  # noqa: E731
    found, backend, facts = judged(words, [FORK], votes=5)
    assert found == [pytest.approx(0.6)]
    assert [request.sample for request in backend.asked] == [0, 1, 2, 3, 4]
    assert [request.temperature for request in backend.asked] == [0, 1, 1, 1, 1]
    assert facts["with_logprobs"] == 0


def test_who_does_not_wait_learns_later():
    backend = Scripted(lambda request: "Yes" if request.sample < 2 else "No")
    with AskSession(backend, None, QUICK) as session:
        judge = AskedJudge("openai:scripted", Chooser(session, votes=3, wait=False), SHIPPED)
        assert judge.judge([FORK]) == [None]
        came = {}
        while not came:
            time.sleep(0.01)
            came = dict(judge.poll())
        assert came == {FORK: pytest.approx(2 / 3)}
        assert judge.judge([FORK]) == [pytest.approx(2 / 3)]
        assert judge.poll() == {}
    assert len(backend.asked) == 3


def test_what_was_not_answered_is_no_opinion():
    found, backend, facts = judged(lambda request: Fault("item", "context length"), [FORK, SOCK], votes=3)
    assert all(math.isnan(one) for one in found)
    assert facts["failed"] == 2
    assert len(backend.asked) == 2
    mixed = lambda request: "Yes" if request.sample == 2 else "I cannot tell."  # noqa: E731
    found, _, facts = judged(mixed, [FORK], votes=3)
    assert (found, facts["unclear"]) == ([1.0], 2)


@pytest.mark.parametrize(
    ("reply", "yes"),
    [
        ("Yes", 1), ("  no.", 0), ("**Yes**, a fork does.", 1), ("A fork is cutlery, so the answer is: No", 0),
        ("Yes and no", None), ("Yesterday", None), ("", None), ("Ja", None), ("[" * 10_000, None),
        ('{"logprobs": {"Yes": 0, "No": 0}}', 0.5), ('{"logprobs": {"No": -0.1}}', 0),
        ('{"logprobs": {"Yes": NaN, "No": 0}}', None), ('{"logprobs": {"Yes": Infinity}}', None),
        ('{"logprobs": {}}', None), ('{"logprobs": [1]}', None), ('{"logprobs": {"Yes": -1e308, "No": 1e308}}', 0),
    ],
)  # fmt: skip
def test_replies_are_read_or_say_nothing(reply, yes):
    found = math.exp(read_answer(reply, CHOICES)[0][0])
    assert math.isnan(found) if yes is None else found == pytest.approx(yes, abs=1e-9)


def answer_with(top):
    return {
        "choices": [
            {"message": {"content": "Yes"}, "finish_reason": "stop", "logprobs": {"content": [{"top_logprobs": top}]}}
        ]
    }


def test_chances_are_read_off_the_first_token():
    top = [
        {"token": " yes", "logprob": -2.0},
        {"token": "Yes", "logprob": -0.5},
        {"token": "No", "logprob": -1.5},
        {"token": "\n", "logprob": -3.0},
    ]
    body = answer_with(top)
    reply = with_chances(read_completion(body, {}, "text"), body, CHOICES)
    assert json.loads(reply.text) == {"logprobs": {"Yes": -0.5, "No": -1.5}}
    assert math.exp(read_answer(reply.text, CHOICES)[0][0]) == pytest.approx(
        math.exp(-0.5) / (math.exp(-0.5) + math.exp(-1.5))
    )


@pytest.mark.parametrize(
    "top", [None, [], 5, [{"token": "Yes"}], [{"token": "Yes", "logprob": "x"}], [{"token": "A", "logprob": 0}]]
)
def test_odd_alternatives_leave_the_words(top):
    body = answer_with(top)
    assert with_chances(read_completion(body, {}, "text"), body, CHOICES).text == "Yes"


@pytest.mark.parametrize("choices", [("place", "place stone"), ("1", "10"), ("No", "not sure")])
def test_choices_that_begin_alike_are_left_to_the_words(choices):
    body = answer_with([{"token": choices[0], "logprob": -0.1}, {"token": "Yes", "logprob": -3.0}])
    reply = read_completion(body, {}, "text")
    assert with_chances(reply, body, choices) == reply
    assert with_chances(reply, body, (choices[0], "Yes")) != reply


@pytest.mark.parametrize(
    ("choices", "top", "named"),
    [
        (("left", "right", "pickup", "drop"), [("pick", -0.1), ("left", -4.0), ("right", -5.0)], "pickup"),
        (("sleep", "mine tree", "mine stone"), [("mine", -0.1), ("sleep", -6.0)], None),
        (("sleep", "place stone", "place table"), [("sleep", -0.9), ("place", -0.6)], None),
        (("1", "2"), [("Both", -0.1), ("1", -6.0), ("The", -7.0)], None),
        (("1", "2"), [("Both", -0.1), ("1", -6.0), ("2", -5.0)], "2"),
        (("1", "2"), [("2", -0.1), ("The", -2.5), ("", -3.0)], "2"),
    ],
)
def test_a_rare_beginning_of_a_reply_is_not_what_it_says(choices, top, named):
    body = answer_with([{"token": token, "logprob": value} for token, value in top])
    reply = read_completion(body, {}, "text")
    read = with_chances(reply, body, choices)
    if named is None:
        assert read == reply, "its words count"
    else:
        assert choices[read_answer(read.text, choices)[0].argmax()] == named


def test_an_endpoint_without_log_probabilities_is_asked_for_words(server, tmp_path: Path):  # noqa: F811
    server.plan = lambda prompt, attempt: "no_top"
    with (
        Store(tmp_path) as store,
        AskSession(open_backend("openai:m", Connection(tmp_path)), store, QUICK) as session,
    ):
        judge = AskedJudge("openai:m", Chooser(session, votes=3), SHIPPED)
        assert judge.judge([FORK]) == [1.0]
    answered = [request for request in server.requests if "top_logprobs" not in request]
    assert len(answered) == 3
    assert len(server.requests) == 4


def test_an_endpoint_with_log_probabilities_is_asked_once(server, tmp_path: Path):  # noqa: F811
    server.plan = lambda prompt, attempt: "top"
    with (
        Store(tmp_path) as store,
        AskSession(open_backend("openai:m", Connection(tmp_path)), store, QUICK) as session,
    ):
        judge = AskedJudge("openai:m", Chooser(session, votes=3), SHIPPED)
        assert judge.judge([FORK]) == [pytest.approx(0.25)]
        assert judge.facts()["with_logprobs"] == 1
    assert len(server.requests) == 1


def test_choices_change_the_key_only_where_there_are_any():
    plain = Request(())
    assert "choices" not in request_content({}, plain)
    assert request_content({}, plain) != request_content({}, Request((), choices=CHOICES))


@pytest.mark.parametrize("name", ["roberta_cm", "glove_cm"])
def test_priors_that_know_the_answers_are_refused(name, tmp_path: Path):
    with ExitStack() as stack, pytest.raises(UsageError, match=f"{name} was trained on the votes"):
        open_judge(name, "Rs_int", stack, asking=AskConfig(cache=tmp_path))


def test_a_random_judge_is_drawn_by_the_seed(tmp_path: Path):
    def judged(seed: int) -> list[float | None]:
        with ExitStack() as stack:
            return open_judge("random", "Rs_int", stack, asking=AskConfig(cache=tmp_path), seed=seed).judge([FORK])

    assert judged(1) != judged(2)
    assert judged(1) == judged(1)


def test_an_asked_judge_takes_all_that_is_said_of_asking(tmp_path: Path, monkeypatch):
    """Prices and concurrency were left out once, so that a model of one's own could not be given a limit of cost."""
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    prices = tmp_path / "prices.toml"
    prices.write_text('as_of = 2026-11-23\n[[price]]\nmodel = "mine"\ninput = 1.0\noutput = 2.0\n')
    asking = AskConfig(max_cost=1.0, prices=prices, concurrency=3, cache=tmp_path / "c", dry_run=True)
    with ExitStack() as stack:
        judge = open_judge("openai:mine", "Rs_int", stack, asking=asking)
        assert judge.session.price.input == 1.0
        assert judge.session.policy.max_concurrency == 3
    assert not (tmp_path / "c").exists()


CRAFTER = situations("Crafter-Typed-Harder")
CELLS = CRAFTER.keys(np.stack([observation([cell]) for cell in ("tree", "water", "cow", "tree")]))


class Knowing:
    """Says yes to what the text names, surer of "Yes" than it should be; keeps every conversation."""

    name, identity = "knowing", None

    def __init__(self, silent: str = "nothing", why: str = "no") -> None:
        self.asked, self.silent, self.why = [], silent, why

    async def complete(self, request):
        text = request.messages[-1].text
        self.asked.append(text)
        if f'"{self.silent}"' in text:
            raise Fault("item", self.why, "no")
        seen, goal = text.split("Can it")[0], text.split('Can it "')[1].split('"')[0]
        odds = 3.0 + 2.0 * (goal.split()[-1] in seen)
        return Reply(chances({"Yes": -math.log1p(math.exp(-odds)), "No": -math.log1p(math.exp(odds))}))

    def facts(self):
        return {}

    async def close(self):
        return None


def deeds_by(backend) -> ClosedSuggester:
    return ClosedSuggester(
        "local:x", Chooser(AskSession(backend), wait=False), CRAFTER, env_card("Crafter-Typed-Harder")
    )


def test_deeds_are_goals_where_they_are_likelier_than_the_others_of_their_situation():
    backend = Knowing()
    asked = deeds_by(backend)
    with asked.session:
        found = asked.suggest(CELLS.tolist())
        assert found[0] == found[3] == ("chop tree",)
        assert found[1] == ("drink water",)
        assert set(found[2]) == {"attack cow", "eat cow"}
        assert len(backend.asked) == len(set(backend.asked)) == 3 * 2 * len(asked.goals)
        fresh = asked.score([*dict.fromkeys(CELLS.tolist())])
        told = np.array([asked._odds[key] for key in dict.fromkeys(CELLS.tolist())])
    right = np.array([np.isin(asked.goals, CRAFTER.sensible(key)) for key in dict.fromkeys(CELLS.tolist())])
    naive = [(a > b) + 0.5 * (a == b) for a in told[right] for b in told[~right]]
    assert fresh["value"] == pytest.approx(np.mean(naive))
    assert fresh["n"] == 3
    assert not any(goal.startswith(("move", "do nothing")) for goal in asked.goals)


class Topmost(Knowing):
    """Tells likely words alone, as endpoints do: of water "Yes" where it is named first, and else rather "No"."""

    async def complete(self, request):
        reply, text = await super().complete(request), request.messages[-1].text
        if '"drink water"' not in text:
            return reply
        return Reply(chances({"Yes": -0.001} if "Yes or No" in text else {"Yes": -6.0, "No": -0.003}))


def test_a_word_that_one_phrasing_does_not_tell_of_does_not_decide_alone():
    asked = deeds_by(Topmost())
    with asked.session:
        assert asked.suggest(CELLS[:1].tolist()) == [("chop tree",)]


class Biased(Knowing):
    """Beside a thing that a deed names it is a little surer; how sure it is at all depends on deed and thing alone."""

    def odds(self, text):
        seen, goal = text.split("Can it")[0].lower(), text.split('Can it "')[1].split('"')[0]
        return len(goal) - 0.3 * len(seen) + 0.1 * any(word in seen for word in goal.split()[-1:])

    async def complete(self, request):
        self.asked.append(request.messages[-1].text)
        odds = self.odds(self.asked[-1])
        if f'"{self.silent}"' in self.asked[-1]:
            raise Fault("item", self.why, "no")
        return Reply(chances({"Yes": -math.log1p(math.exp(-odds)), "No": -math.log1p(math.exp(odds))}))


def by_parts(backend, wait=True) -> PartSuggester:
    return PartSuggester("local:x", Chooser(AskSession(backend), wait=wait), CRAFTER, env_card("Crafter-Typed-Harder"))


@pytest.fixture(scope="module")
def in_parts():
    """Thousands of questions: who was asked, by whom, and the goals of `CELLS`."""
    backend = Biased()
    with (asked := by_parts(backend)).session:
        yield backend, asked, asked.suggest(CELLS.tolist())


def test_by_parts_each_deed_is_asked_about_beside_each_thing_once_and_bias_is_taken_off(in_parts):
    backend, asked, found = in_parts
    G, P = len(asked.goals), len(CRAFTER.parts)
    assert len(backend.asked) == len(set(backend.asked)) == len(asked.requests(0)) == 2 * G * P
    both = CRAFTER.keys(observation(["water", "cow"], wood=1)[None])
    more = asked.suggest(both.tolist())[0]
    assert len(backend.asked) == 2 * G * P
    assert found[0] == found[3] == ("chop tree",)
    assert found[1] == ("drink water",)
    assert set(found[2]) == {"attack cow", "eat cow"}
    assert {"drink water", "attack cow", "eat cow"} <= set(more)
    # The naive reading: means over all deeds and all things, then the thing that speaks most for each deed
    table = np.array([[asked._odds[p - P][g] for p in range(P)] for g in range(G)])
    less = table - np.array([[np.mean(table[g]) + np.mean(table[:, p]) for p in range(P)] for g in range(G)])
    less += np.mean(table)
    here = [CRAFTER.parts.index(it) for it in ("you see water.", "you see cow.", "you have in your inventory wood.")]
    assert asked._scores(int(both[0])) == pytest.approx([max(less[g, p] for p in here) for g in range(G)])
    with_them = [[p for p in range(P) if less[g, p] >= upper_group(less[g].round(9)) - 1e-9] for g in range(G)]
    assert all(with_them)  # no deed goes with nothing
    assert set(more) == {asked.goals[g] for g in range(G) if set(with_them[g]) & set(here)}
    assert asked.score(CELLS.tolist())["value"] == 1.0


def test_by_parts_a_failed_question_leaves_all_open_and_equal_chances_give_every_deed():
    with (failing := by_parts(Biased(silent="drink water"))).session:
        assert failing.suggest(CELLS.tolist()) == [None] * 4
        assert failing.poll() == {}
    with (refused := by_parts(Biased("drink water", "filtered"))).session:  # as it would be whenever it is asked
        assert "chop tree" in refused.suggest(CELLS.tolist())[0]
    with (equal := by_parts(open_backend("equal", Connection()))).session:
        assert set(equal.suggest(CELLS[:1].tolist())[0]) == set(equal.goals)
        assert equal.score(CELLS[:1].tolist())["value"] == 0.5


def test_by_parts_goals_come_later_where_training_does_not_wait(in_parts, tmp_path: Path):
    backend = Biased()
    backend.identity = {"name": "biased"}
    with ExitStack() as stack:
        session = stack.enter_context(AskSession(backend, stack.enter_context(Store(tmp_path))))
        asked = PartSuggester("local:x", Chooser(session, wait=False), CRAFTER, env_card("Crafter-Typed-Harder"))
        keys = [int(key) for key in dict.fromkeys(CELLS.tolist())]
        assert asked.suggest(keys) == [None] * 3
        assert asked.score(keys)["value"] is None  # as of a run that goes on without the replies that it had
        came, until = {}, time.monotonic() + 60
        while not came and time.monotonic() < until:
            time.sleep(0.1)  # or it takes the processor from those who answer
            came = dict(asked.poll())
        assert came == dict(zip(CELLS.tolist(), in_parts[2], strict=True))
        assert asked.poll() == {}


class Slow(Knowing):
    """Answers as many questions as it may, and refuses those about one deed."""

    name, identity, may = "openai:m", {"kind": "openai", "host": "h", "model": "m"}, math.inf

    async def complete(self, request):
        while len(self.asked) >= self.may:
            await asyncio.sleep(0.01)
        said = await super().complete(request)
        refused = '"drink water"' in request.messages[-1].text
        return replace(said, status="refused" if refused else "ok", prompt_tokens=10, completion_tokens=1)


def life(folder: Path, kind, saved, *stops: float):
    """A process of a run, in which a book is begun or put back: what it saves at each stop, and says at last."""
    backend, states = Slow(), []
    with Store(folder) as store, AskSession(backend, store, replace(QUICK, grace=0.0)) as session:
        session.keep_account(folder)
        asked = kind("openai:m", Chooser(session, wait=False), CRAFTER, env_card("Crafter-Typed-Harder"))
        asked.goals = asked.goals[8:10]
        book, until = GoalBook(CRAFTER, asked, Matcher(CRAFTER)), time.monotonic() + 60
        backend.may = stops[0]
        book.rows(CELLS[:2]) if saved is None else book.restore(saved)
        for backend.may in stops:
            while time.monotonic() < until and None in book.goals.values():
                if backend.may == len(backend.asked) == asked.chooser.facts()["questions"]:
                    break
                time.sleep(0.02)
                book.poll()
            states.append(book.saved())
        session.budget.close()
        told = {name: session.facts()[name] for name in ("requests", "failed_reasons", "prompt_tokens")}
        return states, {**told, **asked.chooser.facts()}, list(book.goals.values())


@pytest.mark.parametrize(("kind", "first"), [(ClosedSuggester, 3), (PartSuggester, 40)])
def test_a_run_that_goes_on_counts_each_answer_once(tmp_path: Path, kind, first):
    """The answers about a situation that waited for more were counted again at each resume; by parts, those that came
    after a checkpoint were not counted.
    """
    _, whole, goals = life(tmp_path / "whole", kind, None, math.inf)
    assert None not in goals
    assert whole["requests"] == whole["questions"] == whole["prompt_tokens"] / 10
    assert whole["failed_reasons"] == {"refused": whole["failed"]}
    (early, late), _, _ = life(tmp_path / "again", kind, None, first, 2 * first)
    for saved in (early, late):
        (done,), *told = life(tmp_path / "again", kind, saved, math.inf)
        assert told == [whole, goals]
        assert life(tmp_path / "again", kind, done, math.inf)[1:] == (whole, goals)


@given(st.lists(st.floats(-9, 9), min_size=1, max_size=12))
def test_the_upper_group_is_the_one_that_differs_most(scores):
    told = np.array(scores)
    limit = upper_group(told)
    assert limit in told

    def apart(cut: float) -> float:
        low, high = told[told < cut], told[told >= cut]
        return len(low) * len(high) * (low.mean() - high.mean()) ** 2 if len(low) else 0.0

    assert apart(limit) == pytest.approx(max(map(apart, told)))


def test_shared_words_are_goals_without_knowledge():
    words = plain_suggester("words", CRAFTER, {}, 0)
    (found,) = words.suggest(CRAFTER.keys(observation(["tree", "table"], wood_pickaxe=1)[None]).tolist())
    assert {"chop tree", "place crafting table", "make wood pickaxe", "make iron pickaxe"} <= set(found)
    assert not {"drink water", "attack cow", "sleep", "move left"} & set(found)


def test_a_word_is_shared_within_another_word_too():
    """Results rest on that; what is said of it named whole words alone."""
    words = plain_suggester("words", CRAFTER, {}, 0)
    seen = np.stack([observation([], vitals=(9, 9, 9, 3)), observation([], stone_pickaxe=1)])
    tired, armed = CRAFTER.keys(seen).tolist()
    assert words.suggest([tired]) == [("sleep",)]
    assert {"mine stone", "make iron pickaxe"} <= set(words.suggest([armed])[0])


def test_parts_are_what_the_text_of_a_situation_tells():
    rng = np.random.default_rng(0)
    envs = make_vec("Crafter-Typed-Harder", 8)
    seen, _ = envs.reset(seed=4)
    for _ in range(60):
        for key in CRAFTER.keys(seen).tolist():
            told = re.sub(r" you are targeting \w+\.", "", " ".join(CRAFTER.text(key)))
            listed = re.findall(r"you see ([^.]*)\.|inventory ([^.]*)\.|feel (sleepy)", told)
            naive = [w.removeprefix("and ") for found in listed for words in found if words for w in words.split(", ")]
            parts = [CRAFTER.parts[place] for place in CRAFTER.parts_of(key)]
            assert [re.split(r"see |inventory |feel ", part)[1].rstrip(".") for part in parts] == naive
        seen = envs.step(rng.integers(0, len(CRAFTER.deeds), 8))[0]
    envs.close()


def test_equal_chances_give_every_deed_and_a_failed_question_no_goals():
    with (equal := deeds_by(open_backend("equal", Connection()))).session:
        (found,) = equal.suggest(CELLS[:1].tolist())
        assert found == equal.goals
        assert equal.score(CELLS[:1].tolist())["value"] == 0.5
    with (failing := deeds_by(Knowing(silent="drink water"))).session:
        assert failing.suggest(CELLS[:1].tolist()) == [None]


@pytest.mark.parametrize("name", ["local:small", "gguf:small.gguf", "hf:./small", "progress:local:small"])
def test_training_waits_for_a_model_of_this_machine(name):
    """It shares the processor with training, so it would never catch up; a server answers meanwhile."""
    assert TrainRsConfig(alg="ellm", suggester=name).waits
    assert not TrainRsConfig(alg="ellm", suggester=name, goal_wait=False).waits
    assert not TrainRsConfig(alg="ellm", suggester="openai:m").waits
    assert TrainRsConfig(alg="ellm", suggester="openai:m", goal_wait=True).waits


def test_a_switch_with_a_default_of_its_own_is_a_switch(capsys):
    for flag in ("--goal-wait", "--no-goal-wait"):
        assert run_command(["train-rs", "--alg", "ellm", flag, "--steps", "0"]) == 2
        assert "--steps" in capsys.readouterr().err
