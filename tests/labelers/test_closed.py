"""Labels by closed questions: soft, free of a favourite place, and made into tables that others read as any labels."""

from __future__ import annotations

import ast
import asyncio
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from bkrl.core.config import CollectConfig
from bkrl.core.errors import UsageError
from bkrl.core.reporter import Reporter
from bkrl.data.dataset import Dataset
from bkrl.data.partition import partition
from bkrl.labelers import closed, finish
from bkrl.labelers.config import LabelConfig
from bkrl.labelers.material import SegmentText
from bkrl.labelers.plan import Plan
from bkrl.labelers.preferences import draw_pairs
from bkrl.llm import open_backend
from bkrl.llm.choose import ClosedAnswer, read_answer, settled
from bkrl.llm.protocol import Fault, Request, chances
from bkrl.potentials.preference.fit import bradley_terry
from bkrl.stages import collect
from tests.labelers.runs import babyai
from tests.labelers.scripted import asker


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return babyai(tmp_path_factory.mktemp("closed") / "data")


def plan_of(data, variant: str, **settings) -> Plan:
    return Plan.of(LabelConfig(data.path, variant, llm="openai:x", ask="closed", **settings), data)


def odds_of(odds: float, options=("1", "2")) -> str:
    return chances({options[0]: -math.log1p(math.exp(-odds)), options[1]: -math.log1p(math.exp(odds))})


def worth(text: str) -> float:
    """What the scripted annotator likes: things in view."""
    return 0.3 * (text.count("ball") - text.count("key"))


def shown(one: SegmentText) -> str:
    """What a question about one segment shows of it."""
    return " ".join((one.captions[0], *one.actions, one.captions[-1]))


def test_a_segment_in_few_words_keeps_what_is_seen_at_last_and_what_changed_of_the_agent():
    first = "You carry a key. You see a ball 2 steps forward. You see a wall 3 steps left."
    last = "You see a ball 1 step forward. You see a wall 3 steps left."
    told = closed.brief(SegmentText((first, "Between.", last), ("forward", "drop"), "go to the ball"))
    assert told.captions == ("You carry a key.", "You see a ball 1 step forward, a wall 3 steps left.")
    assert told.actions == ("forward", "drop")
    assert told.mission == "go to the ball"
    still = closed.brief(SegmentText(("It is night. You carry nothing.",) * 2, ("noop",)))
    assert still.captions == ("", "It is night. You carry nothing.")


def test_a_mission_that_both_segments_have_is_said_once(data):
    one = SegmentText(("You carry nothing.", "You carry a key."), ("pickup",), "get the key")
    other = SegmentText(("You carry nothing.", "You carry nothing."), ("left",), "get the key")
    card = plan_of(data, "pref").card
    asked = closed.pair_question(card, one, other, "overall").phrasings[1].messages[-1].text
    assert asked == (
        "In which segment does the agent do better, whatever its task may be?\n"
        'Mission of both: "get the key"\n'
        '1: does left; at last "You carry nothing."\n'
        '2: at first "You carry nothing."; does pickup; at last "You carry a key."\n'
        "Answer 1 or 2."
    )
    asked = closed.pair_question(card, one, other, "mission").phrasings[0].messages[-1].text
    assert '1: at last "You carry a key."\n2: at last "You carry nothing."' in asked, "of ends alone"
    third = SegmentText(other.captions, other.actions, "get the ball")
    asked = closed.pair_question(card, one, third, "overall").phrasings[0].messages[-1].text
    assert '2: mission "get the ball"; does left' in asked


@pytest.mark.parametrize(
    ("missions", "ends", "more"),
    [
        (["go to the red ball"] * 2, ("You see a red ball 6 steps forward.", "You see a wall."), 3),  # red, ball, both
        (["go to the red ball"] * 2, ("You see a red ball.", "You see a red key. You see a blue ball."), 1),
        (["go to the red ball", "get the key"], ("You see a blue key.", "You see a blue key."), -1),  # each by its own
        (["go to the red ball", ""], ("You see a red ball.", "You see a red ball."), 3),
        (["", ""], ("You see a red ball.", "You see a wall."), 0),
        (['say "red ball"'] * 2, ('You read \\ "red ball".', "You see a wall."), 3),
    ],
)
def test_words_prefer_the_end_that_names_what_its_mission_names(data, missions, ends, more):
    sides = [SegmentText(("A.", end), ("left",), mission) for end, mission in zip(ends, missions, strict=True)]
    for phrasing in closed.pair_question(plan_of(data, "pref").card, *sides, "mission").phrasings:
        request = Request(phrasing.messages, choices=phrasing.options)
        scores, exact = read_answer(asyncio.run(open_backend("words").complete(request)).text, phrasing.options)
        assert exact
        assert np.exp(scores).sum() == pytest.approx(1)
        assert np.subtract(*scores[list(phrasing.outcomes)]) == pytest.approx(more)


def fond_of_the_first(request: Request) -> str:
    one, two = request.messages[1].text.split("\n2: ")
    return odds_of(worth(one) - worth(two) + 4.0)


def test_pairs_become_soft_labels_without_the_favourite_place(data):
    plan = plan_of(data, "pref", num=30, length=3)
    session = asker(fond_of_the_first)
    with session:
        done = closed.CLOSED["pref"].label(plan, session)
    answered = [row for row in done.table if row["status"] == "labelled"]
    assert len(answered) > 15
    for row, (_, pair) in zip(done.table, closed.pairs_of(plan), strict=True):
        a, b = (worth(shown(closed.brief(one))) for one in closed.texts_of(plan, pair))
        if row["status"] == "labelled":
            assert row["label"] == pytest.approx(1 / (1 + math.exp(b - a)), abs=1e-6)
        elif row["status"] == "inconsistent":
            assert row["label"] is None
            assert abs(a - b) < 0.3
    assert done.quality["first_shown_preferred"]["rate"] > 0.9
    assert done.more["choices.parquet"].num_rows == 2 * len([r for r in done.table if r["status"] != "identical"])


def test_order_is_measured_on_the_answers_to_the_first_criterion_where_some_failed(data):
    def say(request: Request) -> str:
        one, two = map(worth, request.messages[1].text.split("\n2: "))
        if "whatever its task may be" in request.messages[1].text and one <= two:
            raise Fault("item", "filtered")
        return "1" if one > two else "2"

    plan = plan_of(data, "pref", num=30, length=3, criteria="overall,safety", votes=3)
    with asker(say) as session:
        session.backend.identity = {"kind": "openai", "host": "h", "model": "m"}
        done = closed.CLOSED["pref"].label(plan, session)
    assert done.quality["first_shown_preferred"]["rate"] == 1.0, "it answers where the better one stands first"
    assert done.quality["swap_consistency"]["n"] == 0, "of no pair both orders were answered"


def test_points_and_criteria_are_combined_by_log_odds(data):
    def say(request: Request) -> str:
        return odds_of(worth(request.messages[1].text) + 0.5, request.choices)

    plan = plan_of(data, "pref", num=20, length=3, compare="points", criteria="overall,safety")
    with asker(say) as session:
        done = closed.CLOSED["pref"].label(plan, session)
    pairs = [pair for _, pair in closed.pairs_of(plan)]
    for row, pair in zip(done.table, pairs, strict=True):
        a, b = (worth(shown(one)) for one in closed.texts_of(plan, pair))
        if row["status"] == "labelled":
            assert row["label"] == pytest.approx(1 / (1 + math.exp(b - a)), abs=1e-6)
    assert len(set(pairs)) == len(pairs) == 20
    assert len({one for pair in pairs for one in (pair.a, pair.b)}) <= 24, "nearly each segment stands in two pairs"
    for pair in pairs:
        assert len(set(partition(np.array([pair.a.episode_id, pair.b.episode_id])))) == 1
    with pytest.raises(UsageError, match="--criteria are of"):
        closed.CLOSED["pref"].requests(plan_of(data, "pref", num=5, criteria="beauty"))
    with pytest.raises(UsageError, match="pass --with-mission"):
        closed.CLOSED["pref"].requests(plan_of(data, "pref", num=5, criteria="mission"))


@pytest.mark.parametrize("num", [1, 2, 3, 4, 5, 9, 20, 41])
def test_points_give_as_many_pairs_as_were_asked_for(data, num):
    """A part of the dataset that got one pair has no other to cross it with: there were fewer, and nobody was told."""
    for seed in range(12):
        plan = plan_of(data, "pref", num=num, length=3, compare="points", seed=seed)
        pairs = [pair for _, pair in closed.pairs_of(plan)]
        assert len(pairs) == num
        half = closed._crossed(draw_pairs(data, -(-num // 2), 3, seed))
        assert pairs == half[:num] or len(half) < num, "where there were enough they stay as they were"
        assert len(closed.CLOSED["pref"].requests(plan)) <= closed.CLOSED["pref"].most_questions(plan)


def test_ratings_become_the_weights_of_a_program_that_runs(data):
    def say(request: Request) -> str:
        likes = 8 if "go to a ball" in request.messages[1].text else 2
        return chances({str(k): -2.0 * abs(k - likes) for k in range(10)})

    plan = plan_of(data, "code")
    with asker(say) as session:
        done = closed.CLOSED["code"].label(plan, session)
    (row,) = done.table
    assert row["status"] == "ok", row["error"]
    assert done.quality["ratings"]["facing_ball"] == pytest.approx(8, abs=0.3)
    program = ast.parse(row["program"])
    assert [node.name for node in program.body if isinstance(node, ast.FunctionDef)] == ["potential"]
    assert "facing_ball" in row["program"]
    assert "facing_key" not in row["program"]  # the lowest rating weighs nothing
    same = closed.weights_of(np.full(4, 4.5))
    assert same == pytest.approx(0.25)
    assert closed.weights_of(np.array([2.0, np.nan, 3.0, 4.0])) == pytest.approx([0, 0, 1 / 3, 2 / 3])


def test_a_sub_goal_is_rated_by_how_many_others_need_it(data):
    def say(request: Request) -> str:
        needed = request.messages[1].text.startswith('Is it necessary to "go to a door"')
        return chances({"Yes": math.log(0.75 if needed else 0.5), "No": math.log(0.25 if needed else 0.5)})

    plan = plan_of(data, "code", rate="need")
    with asker(say) as session:
        done = closed.CLOSED["code"].label(plan, session)
    ratings = done.quality["ratings"]
    assert ratings.pop("facing_door") == pytest.approx(6.75)
    assert set(ratings.values()) == {4.5}
    count = len(ratings) + 1
    assert len(session.backend.requests) == count * (count - 1)
    rows = done.more["choices.parquet"].to_pylist()
    assert rows[0]["outcomes"] == ["yes", "no"]
    first, second, *_ = closed.subgoals(plan)
    assert rows[0]["about"] == f"{first} for {second}"


def test_one_unclear_answer_does_not_undo_what_a_sub_goal_is_rated():
    yes = np.log([[0.9, 0.1], [0.7, 0.3], [0.5, 0.5], [0.5, 0.5], [0.2, 0.8], [0.4, 0.6]])[:, None]
    assert closed.ratings_of(yes, "need") == pytest.approx([9 * 0.8, 9 * 0.5, 9 * 0.3])
    yes[[1, 2, 3]] = np.nan
    assert closed.ratings_of(yes, "need")[[0, 2]] == pytest.approx([9 * 0.9, 9 * 0.3])
    assert np.isnan(closed.ratings_of(yes, "need")[1]), "no answer about it is clear"


@pytest.mark.parametrize("variant", ["pref", "code", "goal"])
def test_closed_questions_are_asked_with_the_effort_that_was_chosen(data, variant):
    plan = plan_of(data, variant, num=2, effort="none", max_tokens=50)
    with asker(lambda request: odds_of(1.0, request.choices[:2])) as session:
        closed.CLOSED[variant].label(plan, session)
    assert {(one.reasoning_effort, one.max_tokens) for one in session.backend.requests} == {("none", 50)}
    assert {*closed.CLOSED[variant].requests(plan)} == {*session.backend.requests}


def test_a_memory_that_an_env_does_not_have_is_not_advised(tmp_path):
    config = CollectConfig("Toy-Chain", tmp_path / "d", explorer="random", episodes=3)
    toy = Dataset.open(collect.run(config, Reporter()).path)
    with pytest.raises(UsageError, match="No sub-goals are named for Toy-Chain; pass --ask open, to a model"):
        closed.subgoals(plan_of(toy, "code"))


def test_renamed_things_stand_in_no_question_and_by_their_own_names_in_the_labels(data):
    def say(request: Request) -> str:
        return odds_of(1.0 if "go to a wug" in request.messages[1].text else -1.0, request.choices)

    plan = plan_of(data, "goal", num=5, rename="key=wug,ball=dax,box=toma,door=blicket")
    with asker(say) as session:
        done = closed.CLOSED["goal"].label(plan, session)
    assert {row["goal"] for row in done.table} == {"go to a key"}
    for request in session.backend.requests:
        text = " ".join(message.text.lower() for message in request.messages)
        assert not set(re.findall("[a-z]+", text)) & {"key", "keys", "ball", "balls", "box", "boxes", "door", "doors"}
        assert "Wugs, daxs and tomas in six colours" in request.messages[0].text


@pytest.mark.parametrize("words", ["", "key", "key=wug,", "Key=wug", "key=wug,key=dax", "key=wug,box=wug", "key=key"])
def test_words_that_do_not_rename_are_refused(data, words):
    with pytest.raises(UsageError, match="must read as ball=dax,key=wug does"):
        plan_of(data, "goal", rename=words)


def test_a_moment_of_which_no_answer_came_is_not_one_without_a_goal(data):
    """It was "labelled" without a goal, as where the annotator finds none, and no share of such answers was told."""
    plan = plan_of(data, "goal", num=8)
    captions = closed.captions_of(plan.dataset, closed.queries_of(plan))

    def say(request: Request) -> str:
        if captions[0] in request.messages[1].text:
            raise Fault("item", "filtered")
        return odds_of(2.0 if "go to a key" in request.messages[1].text else -1.0, request.choices)

    with asker(say) as session:
        done = closed.CLOSED["goal"].label(plan, session)
    for row, caption in zip(done.table, captions, strict=True):
        wanted = ("failed", None) if caption == captions[0] else ("labelled", "go to a key")
        assert (row["status"], row["goal"]) == wanted
    distinct = len(set(captions))
    assert done.quality["invalid"]["rate"] == pytest.approx(1 / distinct)
    assert done.quality["invalid"]["n"] == distinct * len(closed.vocabulary(plan.dataset.env_id))


def test_goals_are_those_that_are_likelier_than_most(data):
    def say(request: Request) -> str:
        text = request.messages[1].text
        return odds_of(2.0 if "go to a key" in text or "open a door" in text else -1.0, request.choices)

    plan = plan_of(data, "goal", num=8)
    with asker(say) as session:
        done = closed.CLOSED["goal"].label(plan, session)
    assert {row["goal"] for row in done.table} == {"go to a key", "open a door"}
    assert len({row["query_id"] for row in done.table}) == 8
    assert done.more["library.parquet"].num_rows == 2


def test_what_the_rules_say_of_goals_is_held_against_goals_without_their_things_colours(data):
    """The rules say "go to the red ball", the env "go to a ball": each sensible goal counted as a known No."""

    def say(request: Request) -> str:
        seen, goal = request.messages[1].text, re.search(r"go to a (\w+)", request.messages[1].text)
        near = goal is not None and re.search(rf"You see [^.]*{goal[1]}", seen) is not None
        return odds_of(2.0 if near else -2.0, request.choices)

    plan = plan_of(data, "goal", num=60, calibrate="rules")
    with asker(say) as session:
        done = closed.CLOSED["goal"].label(plan, session)
    assert done.usable
    assert {row["goal"] for row in done.table} - {None} == {"go to a ball", "go to a box", "go to a key"}
    with asker(lambda request: odds_of(-3.0, request.choices)) as session:
        done = closed.CLOSED["goal"].label(plan, session)
    assert "leave it out" in finish._why_unusable(done)


def test_the_rules_words_for_deeds_in_crafter_are_goals_of_the_env(data, monkeypatch):
    said = {
        "collect wood from a tree": "collect wood",
        "place a crafting table": "place table",
        "eat the ripe plant": "eat plant",
        "collect a sapling from grass": "collect sapling",
        "make a stone sword": "make stone sword",
        "collect iron": "collect iron",
    }
    monkeypatch.setattr(closed, "answer", lambda turns: json.dumps({"goals": [*said]}))
    plan, named = plan_of(data, "goal", num=1), closed.vocabulary("Crafter-Text-Reward")
    queries = closed.queries_of(plan)
    captions = closed.captions_of(data, queries)
    known, _ = closed._known_goals(plan, queries, captions, captions, named)
    assert {named[k] for k in np.flatnonzero(known == 0)} == set(said.values())


@pytest.mark.parametrize("reply", ["I cannot say", "", "1 or 2", '{"logprobs": {}}', '{"logprobs": {"1": NaN}}'])
def test_nasty_replies_give_no_label(data, reply):
    plan = plan_of(data, "pref", num=5, length=3)
    with asker(lambda request: reply) as session:
        done = closed.CLOSED["pref"].label(plan, session)
    assert not done.usable
    assert {row["status"] for row in done.table} <= {"unparsed", "identical"}


def test_the_dry_run_asks_what_the_run_asks(data):
    pairs = {"num": 6}, {"num": 5, "criteria": "overall,effect"}, {"num": 5, "compare": "points"}
    rest = ("code", {}), ("code", {"rate": "need"}), ("goal", {"num": 3})
    for variant, settings in (*(("pref", one) for one in pairs), *rest):
        plan = plan_of(data, variant, **settings)
        session = asker(lambda request: odds_of(1.0, request.choices[:2]))
        with session:
            closed.CLOSED[variant].label(plan, session)
        foretold = closed.CLOSED[variant].requests(plan)
        assert variant == "code" or len(foretold) <= closed.CLOSED[variant].most_questions(plan)
        assert {one.messages for one in session.backend.requests} == {one.messages for one in foretold}
        assert len(foretold) == len({one.messages for one in foretold})


def test_the_loss_of_soft_labels_is_that_of_a_naive_reference():
    margins, labels = [0.3, -2.0, 5.0, 0.0], [0.7, 0.5, 0.01, 1.0]
    sigma = [1 / (1 + math.exp(-m)) for m in margins]
    naive = -sum(y * math.log(s) + (1 - y) * math.log(1 - s) for y, s in zip(labels, sigma, strict=True)) / 4
    found = bradley_terry(torch.tensor(margins), torch.tensor(labels))
    assert float(found) == pytest.approx(naive, rel=1e-5)


def test_who_is_asked_so_by_default():
    asked = {
        llm: LabelConfig(Path("d"), "goal", llm=llm).closed
        for llm in ("local:q", "gguf:q", "equal", "random", "openai:m", "rules")
    }
    assert asked == {"local:q": True, "gguf:q": True, "equal": True, "random": True, "openai:m": False, "rules": False}
    assert not LabelConfig(Path("d"), "pref", llm="random").closed


def test_a_word_that_one_phrasing_does_not_tell_of_does_not_decide_figures_alone():
    scores = np.array([[0.0, -np.inf], [-5.0, -0.007]])
    record = closed.AnswerRecord()
    record.add("x", ("yes", "no"), ClosedAnswer(scores, True, ((), ())))
    together = settled(scores[None])[0][0]
    assert closed.odds_of(record.table["choices.parquet"])["x"] == pytest.approx(together[0] - together[1])
